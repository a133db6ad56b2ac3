"""Tensor-parallel parameters of every kind, sharded over another mesh axis."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    compare,
    filled,
    gradients,
    rows_of,
    same,
    trained,
    values,
)

R, S = da.Replicate(), da.Shard


class Fused(nn.Module):
    """Query, key and value in one weight."""

    def __init__(self, heads=4, size=3, width=5):
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv = nn.Linear(width, 3 * heads * size)
        self.out = nn.Linear(heads * size, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (-1, self.size)).transpose(-2, -3)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-2, -3).flatten(-2))


class Normed(nn.Module):
    """A norm that runs on a shard of the sequence."""

    def __init__(self, width=5):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 7)
        self.down = nn.Linear(7, width)
        self.last = nn.LayerNorm(width)

    def forward(self, x):
        return self.last(self.down(torch.tanh(self.up(self.norm(x)))))


FUSED = {"qkv": dt.ColwiseParallel(parts=(12, 12, 12), unit=3), "out": dt.RowwiseParallel(unit=3)}
SEQUENCE = {
    "norm": dt.SequenceParallel(),
    "up": dt.ColwiseParallel(input_layouts=S(1)),
    "down": dt.RowwiseParallel(output_layouts=S(1)),
    "last": dt.PrepareModuleOutput(output_layouts=S(1), desired_output_layouts=R),
}


def rows(p):
    return S(0)


def columns(p):
    return S(-1)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2), (2, 4)])
@pytest.mark.parametrize("placement", [rows, columns])
@pytest.mark.parametrize("after", [True, 2])
def test_fused_weights(shape, placement, after):
    def shard(module, mesh):
        dt.parallelize_module(module, mesh["tp"], FUSED)
        kwargs = {"shard_placement_fn": placement, "reshard_after_forward": after}
        dt.fully_shard(module.qkv, mesh["dp"], **kwargs)
        return dt.fully_shard(module, mesh["dp"], **kwargs)

    batches = [values(6, 4, 5, seed=i) for i in range(2)]
    compare(trained(filled(Fused()), batches), shard, shape, ("dp", "tp"), data=("dp",))


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (3, 2)])
@pytest.mark.parametrize("placement", [rows, columns])
@pytest.mark.parametrize("each", [True, False])
def test_norms_on_shards_of_the_sequence(shape, placement, each):
    def shard(module, mesh):
        dt.parallelize_module(module, mesh["tp"], {**SEQUENCE, "last": dt.SequenceParallel()})
        dt.parallelize_module(
            module,
            mesh["tp"],
            dt.PrepareModuleInputOutput(
                input_layouts=(R,),
                desired_input_layouts=(S(1),),
                output_layouts=S(1),
                desired_output_layouts=R,
            ),
        )
        if each:
            for child in module.children():
                dt.fully_shard(child, mesh["dp"], shard_placement_fn=placement)
        return dt.fully_shard(module, mesh["dp"], shard_placement_fn=placement)

    batches = [values(6, 4, 5, seed=i) for i in range(2)]
    compare(trained(filled(Normed()), batches), shard, shape, ("dp", "tp"), data=("dp",))


def test_evaluation_between_forward_and_backward():
    """Wholes know how tensor parallelism places them, also without gradients."""
    start, x = filled(Normed()), values(6, 4, 5)
    with torch.no_grad():
        expected = start(x)
    whole = copy.deepcopy(start)
    whole(x).square().mean().backward()

    def program():
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        mine = copy.deepcopy(start)
        dt.parallelize_module(
            mine, mesh["tp"], {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        )
        for child in mine.children():
            dt.fully_shard(child, mesh["dp"])
        dt.fully_shard(mine, mesh["dp"])
        loss = mine(rows_of(mine, x)).square().mean()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                same(mine(x), expected, "evaluated")
        loss.backward()
        wanted = gradients(whole)
        for name, p in mine.named_parameters():
            same(dt.full_tensor(p.grad), wanted[name], name)

    simulate(4, program)


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 1, 3)])
@pytest.mark.parametrize("placement", [rows, columns])
def test_weights_over_several_mesh_axes(shape, placement):
    """Columns over one axis, rows over the other, and a shard of that over the third."""
    start = filled(nn.Sequential(nn.Linear(5, 7)))

    def program():
        mesh = da.init_device_mesh(shape, ("dp", "a", "b"))
        mine = copy.deepcopy(start)
        inner = mesh["a", "b"]
        dt.distribute_parameter(mine[0], "weight", inner, [S(0), S(1)])
        dt.distribute_parameter(mine[0], "bias", inner, [S(0), S(0)])
        dt.fully_shard(mine, mesh["dp"], shard_placement_fn=placement)
        for name, p in mine.named_parameters():
            same(
                dt.full_tensor(p.detach() if dt.layout_of(p) is None else p).detach(),
                dict(start.named_parameters())[name].detach(),
                name,
            )
        found = dt.state_dict(mine)
        for name, value in start.state_dict().items():
            same(found[name], value, name)
        dt.load_state_dict(mine, {n: v * 2 for n, v in start.state_dict().items()})
        found = dt.state_dict(mine)
        for name, value in start.state_dict().items():
            same(found[name], value * 2, name)
        with torch.no_grad():
            mine.unshard()
            assert mine[0].weight.shape == dt.layout_of(mine[0].weight).local_shape()
            mine.reshard()

    n = shape[0] * shape[1] * shape[2]
    simulate(n, program)
