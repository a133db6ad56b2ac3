"""Fused weights are saved in the order of one process, whichever mesh axes cut them."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.on_device import DEVICE, has_gpu, host  # noqa: E402


def test_fused_parts_are_saved_in_the_order_of_one_process(tmp_path):
    weight = torch.arange(24 * 2.0).reshape(24, 2)

    def build(ranks: int) -> nn.Module:
        module = nn.Linear(2, 24, bias=False)
        with torch.no_grad():
            module.weight.copy_(weight)
        dt.distribute_parameter(
            module,
            "weight",
            da.init_device_mesh((ranks,)),
            [da.Shard(0)],
            parts=(12, 6, 6),
            unit=(4, 2, 2),
        )
        return module

    def save() -> None:
        da.checkpoint.save(tmp_path / "x", build(3))

    def load() -> None:
        module = build(2)
        with torch.no_grad():
            module.weight.zero_()
        da.checkpoint.load(tmp_path / "x", module)
        assert torch.equal(dt.full_tensor(module.weight), weight)
        columns = da.Layout(da.default_mesh(), [da.Shard(1)], (24, 2))
        array = da.checkpoint.load(tmp_path / "x", {"weight": columns})["weight"]
        assert (host(array.full_array()) == weight.numpy()).all()

    simulate(3, save)
    simulate(2, load)
    assert (da.checkpoint.open(tmp_path / "x")["weight"][:] == weight.numpy()).all()


def test_parts_that_two_mesh_axes_cut(tmp_path):
    """As fully sharded parameters on top of fused weights of tensor parallelism have it."""
    from distarray.torch import _shards
    from distarray.torch._layouts import Placed

    full = np.arange(20)
    parts, units = (12, 8), (2, 2)
    offsets = _shards.boundaries(parts, units, 2)
    slices = [one for own in _shards.order(parts, units, 2) for one in own]
    ordered = np.concatenate([full[s] for s in slices])
    nested = [0]
    for a, b in pairwise(offsets):
        nested += [(2 * a + b) // 3, b]

    def program() -> None:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        layout = da.Layout(
            mesh,
            [da.Shard(0), da.Shard(0)],
            (20,),
            shard_order=("tp", "dp"),
            boundaries={0: nested},
        )
        block = ordered[slice(*layout.local_box()[0])]
        boxes = _shards.list_boxes(Placed(layout, parts, 0, units))
        for ((a, b),), ((c, d),) in boxes:
            assert full[a:b].tolist() == block[c:d].tolist()
        assert sum(d - c for _, ((c, d),) in boxes) == len(block)

    simulate(4, program)


class Block(nn.Module):
    """Fused and plain weights, for tensor parallelism under full sharding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 18)
        self.out = nn.Linear(6, 6)


BLOCK = Block()
SHARDED = [((2, 2), 4), ((1, 3), 3), ((2, 1), 2), ((3, 1), 3), (None, 1)]


@pytest.mark.parametrize(("wanted", "ranks"), SHARDED)
def test_full_sharding_over_tensor_parallelism_with_fused_weights(tmp_path, wanted, ranks):
    def build(shape: tuple[int, ...] | None) -> nn.Module:
        model = copy.deepcopy(BLOCK)
        if shape is None:
            return model
        mesh = da.init_device_mesh(shape, ("dp", "tp"))
        for name in ("weight", "bias"):
            dt.distribute_parameter(
                model.qkv, name, mesh["tp"], [da.Shard(0)], parts=(6, 6, 6), unit=2
            )
        dt.parallelize_module(model, mesh["tp"], {"out": dt.RowwiseParallel()})
        return dt.fully_shard(model, mesh["dp"])

    def trained_on(model: nn.Module) -> torch.optim.Optimizer:
        """Give the optimizer states that are those of the parameters."""
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            parameter.grad = parameter.detach().clone()
        optimizer.step()
        return optimizer

    reference = copy.deepcopy(BLOCK).to("cuda" if DEVICE != "cpu" and has_gpu() else "cpu")
    expected = dt.optimizer_state_dict(reference, trained_on(reference))["state"]

    def save() -> None:
        model = build((2, 2))
        optimizer = trained_on(model)
        da.checkpoint.save(tmp_path / "x", {"model": model, "optimizer": optimizer})

    def load() -> None:
        model = build(wanted)
        optimizer = torch.optim.Adam(model.parameters())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        da.checkpoint.load(tmp_path / "x", {"model": model, "optimizer": optimizer})
        again = tmp_path / "again" / str(ranks)
        da.checkpoint.save(again, {"model": model, "optimizer": optimizer})
        stored = da.checkpoint.open(again)
        for name, value in reference.state_dict().items():
            assert (stored[f"model.{name}"][...] == value.cpu().numpy()).all(), name
        for name, state in expected.items():
            for key, value in state.items():
                assert (stored[f"optimizer.state.{name}.{key}"][...] == value.cpu().numpy()).all()

    simulate(4, save)
    simulate(ranks, load)
