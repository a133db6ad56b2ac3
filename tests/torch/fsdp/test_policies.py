"""Dtypes, accumulation, and when parameters come and go."""

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
    check_gradients,
    check_parameters,
    filled,
    gradients,
    mean_square,
    on_ranks,
    same,
    values,
)


class Layer(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.spare = nn.Linear(width, width)

    def forward(self, x, spare=False):
        x = torch.tanh(self.linear(x)) * self.scale
        return x + self.spare(x) if spare else x


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(5, 2)

    def forward(self, x, only=(0, 1, 2), spare=False):
        for i in only:
            x = self.layers[i](x, spare=spare)
        return self.head(x)


def stack(dtype=torch.float64):
    return filled(Stack()).to(dtype)


def sharded(module, mesh, **kwargs):
    mine = copy.deepcopy(module)
    for child in mine.layers:
        dt.fully_shard(child, mesh, **kwargs)
    return dt.fully_shard(mine, mesh, **kwargs)


def of_mesh(shape, program):
    names = ("r", "s", "t")[: len(shape)]
    count = 1
    for n in shape:
        count *= n
    return simulate(count, lambda: program(da.init_device_mesh(shape, names)), timeout=60)


X, Y, Z = (values(6, 5, seed=i) for i in range(3))


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


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2), (2, 1, 2)])
@pytest.mark.parametrize("after", [True, False])
def test_accumulation(shape, after):
    """Groups and parameters that some passes do not use."""
    uses = [{"only": (0, 1)}, {"only": (2,), "spare": True}, {"only": (1,)}]
    start = stack()
    whole = copy.deepcopy(start)
    wanted = []
    for _ in range(2):
        for x, use in zip((X, Y, Z), uses, strict=True):
            whole(x, **use).square().mean().backward()
        wanted.append(gradients(whole))
        whole.zero_grad()

    def program(mesh):
        mine = sharded(start, mesh, reshard_after_forward=after)
        for step in range(2):
            for i, (x, use) in enumerate(zip((X, Y, Z), uses, strict=True)):
                mine.set_requires_gradient_sync(i == 2)
                mine.set_reshard_after_backward(i == 2)
                with da.CommLog() as log:
                    mine(x, **use).square().mean().backward()
                if i < 2:
                    assert log.count("reduce_scatter") == 0
                    assert all(p.grad is None for p in mine.parameters())
            check_gradients(mine, wanted[step])
            mine.zero_grad()

    of_mesh(shape, program)


def test_accumulation_is_in_the_reduce_dtype():
    start = stack(torch.float32)
    policy = dt.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    cast = copy.deepcopy(start).to(torch.bfloat16)
    total = None
    for i in range(12):
        cast.zero_grad()
        cast(X.bfloat16(), spare=i > 0).square().mean().backward()
        new = {n: None if p.grad is None else p.grad.float() for n, p in cast.named_parameters()}
        if total is None:
            total = new
        else:
            total = {n: new[n] if g is None else g + new[n] for n, g in total.items()}

    def program(mesh):
        mine = sharded(start, mesh, mp_policy=policy)
        for i in range(12):
            mine.set_requires_gradient_sync(i == 11)
            mine(X.float(), spare=i > 0).square().mean().backward()
        check_gradients(mine, total, 1e-6)

    on_ranks(2, program)


@pytest.mark.parametrize("factor", [None, 1.0, 3.0])
@pytest.mark.parametrize("last", [True, False])
def test_replicas_that_are_reduced_later(factor, last):
    uses = [{"only": (0, 1), "spare": True}, {"only": (2, 0)}, {"only": (1,)}]
    start = stack()
    whole = copy.deepcopy(start)
    for x, use in zip((X, Y, Z), uses, strict=True):
        whole(x, **use).square().mean().backward()
    scale = 1.0 if factor is None else 4 / factor
    wanted = {n: None if g is None else g * scale for n, g in gradients(whole).items()}

    def program(mesh):
        mine = sharded(start, mesh)
        mine.set_gradient_divide_factor(factor)
        for _ in range(2):
            mine.zero_grad()
            for i, (x, use) in enumerate(zip((X, Y, Z), uses, strict=True)):
                mine.set_requires_all_reduce(i == 2)
                mine.set_is_last_backward(last or i == 2)
                with da.CommLog() as log:
                    mine(x, **use).square().mean().backward()
                if i < 2:
                    assert log.count("all_reduce") == 0
                    assert all(p.grad is None for p in mine.parameters())
                    some = torch.autograd.grad(mean_square(mine, X), mine.head.bias)
                    assert some[0].shape == mine.head.bias.shape
            check_gradients(mine, wanted)

    of_mesh((2, 2), program)


@pytest.mark.parametrize("change", ["freeze", "unfreeze", "extend"])
@pytest.mark.parametrize("kept", ["whole", "among replicas"])
def test_what_is_kept_stays_when_other_parameters_are_trained(kept, change):
    start = stack()
    start.layers[0].scale.requires_grad_(change != "unfreeze")

    def between(module):
        scale = module.layers[0].scale
        if change != "extend":
            scale.requires_grad_(not scale.requires_grad)
        elif isinstance(module, dt.FSDPModule):
            module.layers[0].set_all_gather_extension(
                "linear.weight",
                lambda block: block.clone(),
                lambda parts, *_: torch.cat([part for (part,) in parts]),
            )

    def program(mesh):
        whole, mine = copy.deepcopy(start), sharded(start, mesh)
        for step, x in enumerate((X, Y, Z)):
            mine.set_requires_gradient_sync(kept != "whole" or step > 0)
            mine.set_requires_all_reduce(kept == "whole" or step > 0)
            for one in (whole, mine):
                mean_square(one, x).backward()
                if not step:
                    between(one)
            if step:
                check_gradients(mine, gradients(whole))

    of_mesh((2, 2), program)


def test_passes_that_do_not_wait():
    start = stack()
    whole = copy.deepcopy(start)
    for x in (X, Y, Z):
        mean_square(whole, x).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        for i, x in enumerate((X, Y, Z)):
            mine.set_is_last_backward(i == 2)
            mean_square(mine, x).backward()
        check_gradients(mine, gradients(whole))

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
        whole.layers[0].linear.weight.square().sum() + functional.linear(X, whole.head.weight).sum()
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
        loss = layer.linear.weight.square().sum() + functional.linear(X, mine.head.weight).sum()
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


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up(set_to_none):
    start = stack()

    def program(mesh):
        mine, whole = sharded(start, mesh), copy.deepcopy(start)
        for module in (mine, whole):
            optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
            for step in range(4):
                mean_square(module, X).backward()
                if step % 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=set_to_none)
        check_parameters(mine, whole)

    on_ranks(2, program)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("kept", ["whole", "among replicas", "on their way"])
def test_zero_grad_forgets_what_is_kept(kept, set_to_none):
    start = stack()
    whole = copy.deepcopy(start)
    mean_square(whole, Y).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        for _ in range(2):
            mine.set_requires_gradient_sync(kept != "whole")
            mine.set_requires_all_reduce(kept != "among replicas")
            mine.set_is_last_backward(kept != "on their way")
            mean_square(mine, X).backward()
            mine.zero_grad(set_to_none)
            mine.set_requires_gradient_sync(True)
            mine.set_requires_all_reduce(True)
            mine.set_is_last_backward(True)
            mean_square(mine, Y).backward()
            check_gradients(mine, gradients(whole))
            mine.zero_grad()

    of_mesh((2, 2), program)


def test_an_optimizer_clears_what_it_sees():
    """Gradients that are kept are not those of shares: they stay, as they do in torch."""
    start = stack()
    whole = copy.deepcopy(start)
    for x in (X, Y):
        mean_square(whole, x).backward()

    def program(mesh):
        mine = sharded(start, mesh)
        optimizer = torch.optim.SGD(mine.parameters(), 0.1)
        mine.set_requires_gradient_sync(False)
        mean_square(mine, X).backward()
        optimizer.zero_grad()
        mine.set_requires_gradient_sync(True)
        mean_square(mine, Y).backward()
        check_gradients(mine, gradients(whole))

    on_ranks(2, program)


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_inside_of_backward(ranks):
    """An optimizer for each parameter that steps as soon as its gradient is there."""
    start = stack()

    def program(mesh):
        mine, whole = sharded(start, mesh), copy.deepcopy(start)
        for module in (mine, whole):
            each = {p: torch.optim.SGD([p], 0.1) for p in module.parameters()}

            def step(p, each=each):
                assert p.grad is not None
                each[p].step()
                each[p].zero_grad()

            for p in each:
                p.register_post_accumulate_grad_hook(step)
            for x in (X, Y):
                mean_square(module, x).backward()
        check_parameters(mine, whole)

    on_ranks(ranks, program)


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
        with pytest.raises(da.errors.ArgumentTypeError, match="shard_placement_fn"):
            dt.fully_shard(layer, mesh, shard_placement_fn=lambda p: da.Replicate())
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
