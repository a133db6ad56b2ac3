"""Slices are what was saved: in calls within calls, that fail or run again, and after changes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.torch._compat import innermost_saved_tensor_hooks  # noqa: E402
from distarray.torch.parallel import _input_reshard  # noqa: E402
from tests.torch.parallel.reshard_models import (  # noqa: E402
    MLP_PLAN,
    Mlp,
    check,
    filled,
    on_ranks,
    run,
    same,
    values,
)


class Recursive(nn.Module):
    def __init__(self, depth, mesh):
        super().__init__()
        self.weight = nn.Parameter(values(6))
        self.depth = depth

    def forward(self, x, depth=None):
        depth = self.depth if depth is None else depth
        y = (x * self.weight).sin()
        return self(y, depth - 1) + x if depth else y


@pytest.mark.parametrize("ranks", [2, 3])
def test_recursion(ranks):
    x = values(5, 6)
    wanted = run(Recursive(3, None), x)

    def program(mesh):
        mine = dt.input_reshard(Recursive(3, mesh), mesh, 0)
        check(mine, x, wanted)
        assert not mine.__dict__["_distarray_resharding"].under_way

    on_ranks(ranks, program)


def test_calls_before_the_backward_pass_of_the_first():
    model, x = filled(Mlp().double()), values(3, 4, 6)
    twin = copy.deepcopy(model)
    wanted = run(twin, x, lambda y: (y + twin(2 * x)).square().sum())

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        check(mine, x, wanted, lambda y: (y + mine(2 * x)).square().sum())

    on_ranks(2, program)


def test_an_exception_in_forward_leaves_the_hooks_balanced():
    class Fails(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x, fail):
            y = self.layer(x)
            if fail:
                raise ZeroDivisionError
            return y

    model, x = filled(Mlp().double()), values(3, 4, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        inner = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = Fails(dt.input_reshard(inner, mesh, 1))
        dt.input_reshard(mine, mesh, 1)
        for failing in (True, True):
            with pytest.raises(ZeroDivisionError):
                mine(x, failing)
            with pytest.raises(RuntimeError):
                inner(x[..., :2])
            assert innermost_saved_tensor_hooks() is None
            assert _input_reshard._calls.get() == ()
        check(mine.layer, x, wanted)
        mine(x, False)
        assert innermost_saved_tensor_hooks() is None

    on_ranks(2, program)


class Changes(nn.Module):
    """Changes its input, or a result that backward needs, after it has been saved."""

    def __init__(self, what):
        super().__init__()
        self.weight = nn.Parameter(values(6))
        self.what = what

    def forward(self, x):
        x = x * 1
        y = self.inner(x) if self.what == "input of a part" else x * self.weight
        if self.what in ("input", "input of a part"):
            x.add_(1)
        z = y.exp()
        if self.what == "result":
            z.add_(1)
        return (x * z).sum()


def test_changes_in_place_of_what_was_kept_are_noticed():
    def program(mesh):
        x = values(4, 6).requires_grad_()
        for what in ("input", "result"):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                Changes(what)(x).backward()
            with pytest.raises(da.errors.ModifiedError, match="modified by an inplace operation"):
                dt.input_reshard(Changes(what), mesh, 0)(x).backward()
        dt.input_reshard(Changes("nothing"), mesh, 0)(x).backward()

    on_ranks(2, program)


def test_an_argument_changed_in_place_is_no_longer_taken_to_be_replicated():
    class Adds(nn.Module):
        def __init__(self, rank):
            super().__init__()
            self.rank = rank

        def forward(self, x, weight):
            x.add_(self.rank)
            return (x * weight).sum()

    def program(mesh):
        (rank,) = mesh.coordinate
        weight = torch.ones(6, dtype=torch.float64, requires_grad=True)
        dt.input_reshard(Adds(rank), mesh, 0)(values(4, 6), weight).backward()
        same(weight.grad, (values(4, 6) + rank).sum(0))

    on_ranks(3, program)


def test_what_was_cut_is_what_it_was():
    def program(mesh):
        x = values(4, 6)
        weight = torch.ones(6, dtype=torch.float64, requires_grad=True)

        class Product(nn.Module):
            def forward(self, x):
                return (x * weight).sum()

        loss = dt.input_reshard(Product(), mesh, 0)(x)
        x.zero_()
        loss.backward()
        same(weight.grad, values(4, 6).sum(0))

    on_ranks(2, program)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_checkpoints(reentrant, where):
    class Part(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            y = x * x.sin()
            return checkpoint(self.part, x, use_reentrant=reentrant) + y

    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(Part(copy.deepcopy(model)), x)

    def program(mesh):
        inner = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = Part(inner)
        dt.input_reshard(inner if where == "outside" else mine, mesh, 1)
        with da.CommLog() as log:
            check(mine, x, wanted)
        assert log.count("all_gather") == (where == "inside")

    on_ranks(2, program)


def test_inside_other_hooks_those_decide():
    model, x = filled(Mlp().double()), values(3, 5, 6)
    wanted = run(copy.deepcopy(model), x)

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
            check(mine, x, wanted)
        assert packed

    on_ranks(2, program)


def test_second_derivatives():
    model, x = filled(Mlp().double()), values(3, 5, 6)

    def penalty(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        loss = slope.square().sum()
        return torch.autograd.grad(loss, [x, *model.parameters()])

    def program(mesh):
        plain = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        for a, b in zip(penalty(mine, x), penalty(plain, x), strict=True):
            same(a, b)

    on_ranks(2, program)


def test_several_backward_passes_over_one_graph():
    model, x = filled(Mlp().double()), values(3, 5, 6)
    twin = copy.deepcopy(model)
    wanted = run(twin, x, lambda y: 3 * y.square().sum())

    def program(mesh):
        mine = dt.parallelize_module(copy.deepcopy(model), mesh, MLP_PLAN)
        dt.input_reshard(mine, mesh, 1)
        given = x.clone().requires_grad_()
        loss = mine(given).square().sum()
        for again in (True, True, False):
            loss.backward(retain_graph=again)
        same(given.grad, wanted["x"])
        same(mine.down.bias.grad, wanted["down.bias"])

    on_ranks(2, program)
