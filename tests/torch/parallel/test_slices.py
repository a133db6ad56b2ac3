"""Of inputs that were gathered for a module, ranks keep their shards; gradients stay the same."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ModifiedError  # noqa: E402
from distarray.torch.parallel import _slices  # noqa: E402
from tests.torch.parallel.reshard_models import (  # noqa: E402
    Mlp,
    filled,
    held_bytes,
    on_ranks,
    run,
    same,
    values,
)


@pytest.fixture(autouse=True)
def keep_shards_of_any_size(monkeypatch):
    monkeypatch.setattr(_slices, "WORTH_GATHERING_AGAIN", 0)


R, CUT = da.Replicate(), da.Shard(1)
ALONE = {
    "up": dt.ColwiseParallel(input_layouts=CUT),
    "gate": dt.ColwiseParallel(input_layouts=CUT),
    "down": dt.RowwiseParallel(output_layouts=CUT),
}
TOGETHER = {
    "": dt.PrepareModuleInput(input_layouts=CUT, desired_input_layouts=R),
    **ALONE,
    "up": dt.ColwiseParallel(),
    "gate": dt.ColwiseParallel(),
}
PLANS = pytest.mark.parametrize("plan", [ALONE, TOGETHER], ids=["alone", "together"])


def parallel(model, mesh, plan):
    """Return a copy of a model on ranks; it takes a rank's shard of the sequence and returns it."""
    return dt.parallelize_module(copy.deepcopy(model), mesh, plan)


def shard_of(x, mesh):
    return dt.redistribute(x, mesh, [R], [CUT])


def whole_of(y, mesh):
    return dt.redistribute(y, mesh, [CUT], [R])


def check(model, mesh, wanted, x, call=lambda model, x: model(x)):
    """Compare the gradients of what a parallel model makes of a whole input."""
    model.zero_grad()
    given = x.clone().requires_grad_()
    whole_of(call(model, shard_of(given, mesh)), mesh).square().sum().backward()
    terms = [g for g in wanted.values() if g is not None]
    same(given.grad, wanted["x"], terms)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            box = dt.layout_of(parameter).local_box()
            same(parameter.grad, wanted[name][tuple(slice(*ends) for ends in box)], terms)


@PLANS
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("length", [12, 7, 2])
def test_gradients_stay_what_they_are(ranks, plan, length):
    model, x = filled(Mlp().double()), values(3, length, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = parallel(model, mesh, plan)
        for _ in range(2):
            check(mine, mesh, wanted, x)

    on_ranks(ranks, program)


@PLANS
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_keeps_its_shard_and_gathers_once_for_each_input(ranks, plan):
    model, x = filled(Mlp()), values(2, 8, 6, dtype=torch.float32)
    one = x.numel() * 4

    def program(mesh):
        mine = parallel(model, mesh, plan)
        shard = shard_of(x, mesh).requires_grad_()
        hidden = 2 * 8 * (8 // ranks) * 4
        # What up returns, the sigmoid of what gate returns, and their product.
        assert held_bytes(mine, shard) == one // ranks + 3 * hidden
        y = mine(shard)
        with da.CommLog() as log:
            y.sum().backward()
        again = 1 if plan is TOGETHER else 2
        assert log.count("all_gather") == 1 + again  # that of the output's gradient
        other = log.bytes("all_gather") / log.count("all_gather")
        assert other == one * (ranks - 1) // ranks

    on_ranks(ranks, program)


def test_a_rank_keeps_its_shard_of_what_attends():
    model = nn.MultiheadAttention(8, 4, batch_first=True).double()
    x = values(2, 6, 8)
    expected = model(x, x, x, need_weights=False)[0].detach()

    def program(mesh):
        mine = copy.deepcopy(model)
        dt.parallelize_module(mine, mesh, dt.ColwiseParallel(input_layouts=CUT))
        shard = shard_of(x, mesh).requires_grad_()
        y = mine(shard, shard, shard, need_weights=False)[0]
        same(y.detach(), expected)
        with da.CommLog() as log:
            y.sum().backward()
        assert log.count("all_gather") == log.count("reduce_scatter") == 1

    on_ranks(2, program)


@PLANS
def test_nothing_is_gathered_for_weights_without_gradients(plan):
    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = parallel(model, mesh, plan).requires_grad_(False)
        check(mine, mesh, wanted, x)
        y = mine(shard_of(x.clone().requires_grad_(), mesh))
        with da.CommLog() as log:
            y.sum().backward()
        assert log.count("all_gather") == 2  # of the gradients of what down makes, and of x
        with torch.no_grad():
            same(whole_of(mine(shard_of(x, mesh)), mesh), model(x))

    on_ranks(2, program)


@PLANS
def test_weights_alone_have_gradients(plan):
    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = parallel(model, mesh, plan)
        whole_of(mine(shard_of(x, mesh)), mesh).square().sum().backward()
        rows = dt.layout_of(mine.up.weight).local_box()[0]
        same(mine.up.weight.grad, wanted["up.weight"][slice(*rows)])

    on_ranks(2, program)


@PLANS
def test_a_module_is_used_twice(plan):
    model, x = filled(Mlp().double()), values(3, 5, 6)
    given = x.clone().requires_grad_()
    twin = copy.deepcopy(model)
    (twin(twin(given)) + twin(given)).square().sum().backward()
    wanted = {"x": given.grad, **{name: p.grad for name, p in twin.named_parameters()}}

    def program(mesh):
        mine = parallel(model, mesh, plan)
        check(mine, mesh, wanted, x, lambda model, x: model(model(x)) + model(x))

    on_ranks(3, program)


@PLANS
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_decide_themselves(plan, reentrant):
    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = parallel(model, mesh, plan)
        check(mine, mesh, wanted, x, lambda m, x: checkpoint(m, x, use_reentrant=reentrant))
        with da.CommLog() as log:
            check(mine, mesh, wanted, x, lambda m, x: checkpoint(m, x, use_reentrant=False))
        # Forward, again, the output's gradient, and the test's own two.
        assert log.count("all_gather") == (2 if plan is TOGETHER else 4) + 1 + 2

    on_ranks(2, program)


@PLANS
def test_an_input_changed_after_the_call_is_an_error(plan):
    def program(mesh):
        mine = parallel(filled(Mlp().double()), mesh, plan)
        shard = shard_of(values(3, 4, 6), mesh) * 1
        y = mine(shard)
        shard.add_(1)
        with pytest.raises(ModifiedError, match="modified by an inplace operation"):
            y.sum().backward()

    on_ranks(2, program)


@PLANS
def test_shards_that_lie_anyhow(plan):
    model, x = filled(Mlp().double()), values(3, 6, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = parallel(model, mesh, plan)
        strided = lambda x: torch.stack([x.mT, x.mT], -1)[..., 0].mT  # noqa: E731
        check(mine, mesh, wanted, x, lambda m, x: m(strided(x)))

    on_ranks(2, program)


@PLANS
def test_several_backward_passes_and_second_derivatives(plan):
    model, x = filled(Mlp().double()), values(3, 5, 6)

    def penalty(call, x):
        x = x.clone().requires_grad_()
        loss = call(x).square().sum()
        loss.backward(retain_graph=True)
        first, x.grad = x.grad, None
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        same(slope, first)
        slope.square().sum().backward()
        return x.grad

    wanted = penalty(copy.deepcopy(model), x)

    def program(mesh):
        mine = parallel(model, mesh, plan)
        same(penalty(lambda x: whole_of(mine(shard_of(x, mesh)), mesh), x), wanted)

    on_ranks(2, program)


@PLANS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_and_half_precision(plan, dtype):
    model, x = filled(Mlp().to(dtype)), values(2, 5, 6, dtype=dtype)
    wanted = run(copy.deepcopy(model).double(), x.double())

    def program(mesh):
        mine = parallel(model, mesh, plan)
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.float32):
            y = whole_of(mine(shard_of(given, mesh)), mesh)
        y.double().square().sum().backward()
        scale = wanted["x"].abs().max()
        assert (given.grad.double() - wanted["x"]).abs().max() < 0.05 * scale

    on_ranks(2, program)


def test_what_linear_layers_take_under_autocast_is_gathered_and_kept_cast():
    model, x = filled(nn.Linear(6, 8)), values(2, 4, 6, dtype=torch.float32)

    def program(mesh):
        plan = dt.ColwiseParallel(input_layouts=CUT)
        mine = parallel(model, mesh, plan)
        shard = shard_of(x, mesh).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with da.CommLog() as log:
                mine(shard)
            assert log.bytes("all_gather") == x.numel() // 2 * 2  # in bfloat16
            # The shard, and the weight that is cast.
            assert held_bytes(mine, shard) == (shard.numel() + mine.weight.numel()) * 2
            y = mine(shard)
        assert y.dtype is torch.bfloat16
        y.float().sum().backward()
        assert shard.grad.dtype is torch.float32
        one = model.weight.bfloat16().float().sum(0).expand(2, 2, 6)
        torch.testing.assert_close(shard.grad, one, rtol=0.02, atol=0.02)

    on_ranks(2, program)


def test_small_inputs_are_not_gathered_again(monkeypatch):
    monkeypatch.undo()
    size = _slices.WORTH_GATHERING_AGAIN // 4 // 64

    def program(mesh):
        mine = parallel(nn.Linear(64, 2), mesh, dt.ColwiseParallel(input_layouts=da.Shard(0)))
        for rows, again in ((size - 2, 0), (size, 1)):
            x = torch.ones(rows // 2, 64)
            y = mine(x).sum()
            with da.CommLog() as log:
                y.backward()
            assert log.count() == log.count("all_gather") == again

    on_ranks(2, program)
