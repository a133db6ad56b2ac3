"""Dtypes, and when parameters come and go."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.torch.fsdp.stacks import X, Y, sharded, stack  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    gradients,
    mean_square,
    on_ranks,
    rows_of,
    same,
    values,
)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduced", [None, torch.float32])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("after", [True, 2])
def test_mixed_precision(low, reduced, ranks, after):
    """As one process does it by hand: cast weights, run, cast gradients."""
    policy = dt.MixedPrecisionPolicy(low, reduced, torch.float32)
    start = stack(torch.float32)
    batches = [values(4, 5, seed=i, dtype=torch.float32) for i in range(ranks)]
    each = []
    for x in batches:
        cast = copy.deepcopy(start).to(low)
        out = cast(x.to(low)).float()
        out.square().mean().backward()
        dtype = reduced or low
        each.append(
            {n: None if p.grad is None else p.grad.to(dtype) for n, p in cast.named_parameters()}
        )
    wanted = {}
    for name, gradient in each[0].items():
        total = None if gradient is None else sum(one[name].double() for one in each) / ranks
        wanted[name] = None if total is None else total.to(dtype).float()

    def program(mesh):
        mine = copy.deepcopy(start)
        for layer in mine.layers:
            inner = dt.MixedPrecisionPolicy(low, reduced)
            dt.fully_shard(layer, mesh, mp_policy=inner, reshard_after_forward=after)
        dt.fully_shard(mine, mesh, mp_policy=policy, reshard_after_forward=after)
        x = batches[mesh.coordinate[0]]
        out = mine(x)
        assert out.dtype is torch.float32
        out.square().mean().backward()
        for p in mine.parameters():
            assert p.dtype is torch.float32
            assert p.grad is None or p.grad.dtype is torch.float32
        rough = {torch.bfloat16: 2e-2, torch.float16: 3e-3}[low] if reduced is None else 1e-6
        check_gradients(mine, wanted, rough)

    on_ranks(ranks, program)


def test_inputs_that_are_not_cast():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 3))

        def forward(self, x, *, other):
            assert x.dtype is torch.float32
            assert other["i"].dtype is torch.int64
            assert self.weight.dtype is torch.bfloat16
            return x @ self.weight.float()

    def program(mesh):
        policy = dt.MixedPrecisionPolicy(torch.bfloat16, cast_forward_inputs=False)
        mine = dt.fully_shard(Asks(), mesh, mp_policy=policy)
        mine(torch.ones(2, 5), other={"i": torch.arange(3)}).sum().backward()
        assert mine.weight.grad.dtype is torch.float32

    on_ranks(2, program)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("in_backward", [True, False])
def test_prefetching(explicit, in_backward):
    start = stack()
    whole = copy.deepcopy(start)
    for x in (X, Y):
        mean_square(whole, x).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        if explicit:
            layers = mine.layers
            mine.set_modules_to_forward_prefetch([layers[0], layers[1]])
            layers[0].set_modules_to_forward_prefetch([layers[1], layers[2]])
            layers[1].set_modules_to_forward_prefetch([])
            layers[2].set_modules_to_forward_prefetch([layers[0]])  # for nothing
            layers[2].set_modules_to_backward_prefetch([layers[1], layers[0]])
            mine.set_modules_to_backward_prefetch([layers[2]])
        if not in_backward:
            for layer in mine.layers:
                layer.set_unshard_in_backward(False)
        for x in (X, Y):
            mean_square(mine, x).backward()
        check_gradients(mine, gradients(whole))
        assert all(
            p.shape != q.shape
            for p, q in zip(mine.parameters(), whole.parameters(), strict=True)
            if q.ndim
        )

    on_ranks(2, program)


@pytest.mark.parametrize("waits", [True, False])
def test_parameters_that_are_asked_for(waits):
    start = stack()
    whole = copy.deepcopy(start)
    mean_square(whole, X).backward()
    (
        whole.layers[0].linear.weight.square().sum()
        + functional.linear(X, whole.head.weight).mean()
    ).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        layer = mine.layers[0]
        assert layer.linear.weight.shape != (5, 5)
        for module in (layer, mine):
            if waits:
                assert module.unshard() is None
            else:
                handle = module.unshard(async_op=True)
                handle.wait()
                handle.wait()
        same(layer.linear.weight.detach(), start.layers[0].linear.weight.detach(), "unsharded")
        outside = functional.linear(rows_of(mine, X), mine.head.weight).mean()
        loss = layer.linear.weight.square().sum() + outside
        loss.backward()
        assert layer.linear.weight.shape != (5, 5)
        mine.unshard()
        mean_square(mine, X).backward()
        check_gradients(mine, gradients(whole))
        layer.unshard(async_op=True)
        layer.reshard()
        assert layer.linear.weight.shape != (5, 5)
        mine.layers[1].unshard(async_op=True)
        with torch.no_grad():
            for p in mine.parameters():
                p.mul_(2)
        twice = copy.deepcopy(start)
        with torch.no_grad():
            for p in twice.parameters():
                p.mul_(2)
        same(mine(X).detach(), twice(X).detach(), "after a change")
        handle = layer.unshard(async_op=True)
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(2)
        handle.wait()
        wanted = 4 * start.layers[0].linear.weight.detach()
        same(layer.linear.weight.detach(), wanted, "changed on the way")

    on_ranks(2, program)


@pytest.mark.parametrize("ranks", [3, 4])
def test_other_sizes_after_forward(ranks):
    start = stack()
    whole = copy.deepcopy(start)
    mean_square(whole, X).backward()
    wanted = gradients(whole)

    def program(mesh):
        mine = sharded(start, mesh)
        for after in (True, 2, False, 1, 3, True, 2):
            mine.set_reshard_after_forward(after)
            mine.zero_grad()
            with da.CommLog() as log:
                mean_square(mine, X).backward()
            check_gradients(mine, wanted)
            assert log.count("all_gather", "dp") == (
                8 if after is True or after == 3 == ranks else 4
            ), after

    on_ranks(ranks, program)


def test_offloaded_parameters():
    start = stack()
    whole = copy.deepcopy(start)
    mean_square(whole, X).backward()

    def program(mesh):
        mine = sharded(start, mesh, offload_policy=dt.CPUOffloadPolicy())
        mean_square(mine, X).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


def test_bad_arguments():
    def program(mesh):
        layer = nn.Linear(5, 5)
        with pytest.raises(da.errors.ArgumentTypeError, match="mp_policy"):
            dt.fully_shard(layer, mesh, mp_policy=torch.bfloat16)
        with pytest.raises(da.errors.ArgumentTypeError, match="True, False"):
            dt.fully_shard(layer, mesh, reshard_after_forward="yes")
        with pytest.raises(da.errors.ArgumentError, match="at least 1"):
            dt.fully_shard(nn.Linear(2, 2), mesh, reshard_after_forward=-2)
        with pytest.raises(da.errors.ArgumentTypeError, match="modules"):
            dt.fully_shard([layer, 3], mesh)
        with pytest.raises(da.errors.DistArrayError, match="weight"):
            dt.fully_shard(layer, mesh, shard_placement_fn=lambda p: da.Shard(2))
        for wrong in (da.Replicate(), 0, ""):  # what is no placement stands for none either
            with pytest.raises(da.errors.ArgumentTypeError, match="shard_placement_fn"):
                dt.fully_shard(layer, mesh, shard_placement_fn=lambda p, wrong=wrong: wrong)
        assert layer.weight.shape == (5, 5)
        assert type(layer) is nn.Linear
        dt.fully_shard(layer, mesh)
        with pytest.raises(da.errors.LayoutError, match="once"):
            dt.fully_shard(layer, mesh)
        with pytest.raises(da.errors.ArgumentError, match="positive"):
            layer.set_gradient_divide_factor(0)
        outer = nn.Sequential(layer, nn.Linear(5, 5))
        outer[1].weight = layer.weight
        with pytest.raises(da.errors.ArgumentError, match="shared"):
            dt.fully_shard(outer, mesh)
        other = nn.Linear(5, 5)
        other(torch.ones(5)).sum().backward()
        with pytest.raises(da.errors.ArgumentError, match="gradient already"):
            dt.fully_shard(other, mesh)
        with pytest.raises(da.errors.ArgumentError, match="no shape yet"):
            dt.fully_shard(nn.LazyLinear(3), mesh)
        with pytest.raises(da.errors.ArgumentError, match="prefetch"):
            layer.set_modules_to_forward_prefetch([other])

    on_ranks(2, program)
