"""Ranks that move for different modules notice it, forward and backward, whatever the shapes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import MismatchError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._routes import current, moving_for  # noqa: E402

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Twice(nn.Module):
    """Two branches of one shape."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
        self.second = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


MODEL = Twice().double()
PLAN = {"*.0": dt.ColwiseParallel(), "*.2": dt.RowwiseParallel()}


def parallel(ranks=2):
    mesh = da.init_device_mesh((ranks,), ("tp",))
    return mesh.rank, dt.parallelize_module(copy.deepcopy(MODEL), mesh, PLAN)


def test_branches_that_one_rank_calls_in_another_order_raise():
    def program():
        rank, model = parallel(3)
        one, other = (model.second, model.first) if rank == 1 else (model.first, model.second)
        with pytest.raises(MismatchError) as caught:
            one(X) + other(X)
        assert ": first.2 of " in str(caught.value)
        assert ": second.2 of " in str(caught.value)

    simulate(3, program)


@pytest.mark.parametrize("backward", [False, True])
def test_models_of_one_class_that_one_rank_calls_in_another_order_raise(backward):
    def program():
        (rank, student), (_, teacher) = parallel(), parallel()
        x = X.clone().requires_grad_()
        calls = [lambda model=model: model.first(x) for model in (student, teacher)]
        if backward:
            calls = [call().sum().backward for call in calls]
        with pytest.raises(MismatchError, match="of parallelized model"):
            calls[rank]()

    simulate(2, program)


def test_models_over_two_meshes_run_whatever_was_parallelized_before():
    def program():
        grid = da.init_device_mesh((2, 2), ("a", "b"))
        if grid.coordinate[0]:  # another number of models over this line
            dt.parallelize_module(nn.Linear(4, 4), grid["b"], dt.ColwiseParallel())
        both = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
        dt.parallelize_module(both, grid["b"], {"0": dt.ColwiseParallel()})
        dt.parallelize_module(both, grid["a"], {"1": dt.ColwiseParallel()})
        together = dt.PrepareModuleOutput(
            output_layouts=da.Shard(-1), desired_output_layouts=da.Replicate()
        )
        dt.parallelize_module(both[0], grid["b"], together)
        both(torch.ones(2, 4, dtype=torch.float64)).sum().backward()

    simulate(4, program)


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_branches_that_one_rank_goes_back_through_in_another_order_raise(reentrant):
    def program():
        rank, model = parallel()
        x = X.clone().requires_grad_()

        def call(branch):
            if reentrant is None:
                return branch(x)
            return checkpoint(branch, x, use_reentrant=reentrant)

        one, other = call(model.first).sum(), call(model.second).sum()
        with pytest.raises(MismatchError) as caught:
            (other if rank else one).backward()
        if reentrant is None:
            assert ": backward through first.0 of " in str(caught.value)
            assert ": backward through second.0 of " in str(caught.value)
        # The ranks are in step again.
        one, other = call(model.first).sum(), call(model.second).sum()
        one.backward()
        other.backward()

    simulate(2, program)


def test_a_loss_that_does_not_depend_on_a_layer_on_one_rank_is_named():
    def program():
        rank, model = parallel()
        x = X.clone().requires_grad_()
        y = model.first(x)
        (x if rank else y).sum().backward()
        model.first(x)

    with pytest.raises(MismatchError, match=r"through first\.0 of .*, which each rank's loss"):
        simulate(2, program)


def test_the_same_order_is_right_whatever_else_a_rank_computes():
    x = X.clone().requires_grad_()
    (MODEL.first(x) * MODEL.second(x)).sum().backward()

    def program():
        rank, model = parallel()
        mine = X.clone().requires_grad_()
        if rank:  # nothing is sent forward here
            model.first[0](mine)
            with torch.no_grad():
                model.second[0](mine)
        copied = copy.deepcopy(model)  # another model of the same names
        copied.first(mine)
        (model.first(mine) * model.second(mine)).sum().backward()
        torch.testing.assert_close(mine.grad, x.grad)

    simulate(2, program)


def test_a_move_remembers_the_module_of_its_own_call():
    assert current() is None
    with moving_for("outer"):
        outer = current()
        with moving_for("inner"):
            assert current() != outer
        with moving_for(""):
            assert current() is None
        assert current() is outer
        assert outer.reversed.reversed == outer
    assert current() is None


class Failing(nn.Sequential):
    fails = False

    def forward(self, x):
        x = self[0](x)
        if self.fails:
            raise ValueError("here alone")
        return self[1](x)


def test_a_rank_that_catches_an_error_alone_is_found_by_its_next_call():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        model = Failing(nn.Linear(4, 6), nn.Linear(6, 4)).double()
        dt.parallelize_module(model, mesh, {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel()})
        for failing in ((0, 1), (0,)):  # all, which go on together, and one alone
            model.fails = mesh.rank in failing
            if model.fails:
                with pytest.raises(ValueError, match="here alone"):
                    model(X)
            model.fails = False
            if len(failing) == 2:
                model(X).sum().backward()
        with pytest.raises(MismatchError, match="after 1 calls of models that ended by an error"):
            model(2 * X if mesh.rank == 0 else X)
        model(X).sum().backward()  # in step again

    simulate(2, program)
