"""A style of one's own takes a dozen lines, and its hooks leave nothing behind."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

R, P, S = da.Replicate(), da.Partial(), da.Shard


class Scale(nn.Module):
    """Multiplies features."""

    def __init__(self, width):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(1, 2, width).double())

    def forward(self, x):
        return x * self.factor


class CutScale(dt.ParallelStyle):
    """Cut a `Scale` by its features: an input and an output of all features."""

    def apply(self, module, mesh):
        self.distribute(module, "factor", mesh, [S(0)])
        self.on_input(
            module,
            lambda _, args, kwargs: ((dt.redistribute(args[0], mesh, [R], [S(-1)]),), kwargs),
        )
        self.on_output(module, lambda _, y: dt.redistribute(y, mesh, [S(-1)], [R]))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("width", [8, 5, 2])
def test_a_style_of_ones_own(ranks, width):
    x = torch.linspace(-1, 1, 3 * width).double().reshape(3, width)

    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, {"0": CutScale()})

    for log in compare(ranks, nn.Sequential(Scale(width), nn.Tanh()), (x,), parallel):
        assert log.count() == log.count("all_gather") == 2  # outputs, and gradients of inputs


class ColumnStyle(dt.ParallelStyle):
    """Cut a linear layer by its features: an input and an output that all ranks have."""

    def apply(self, module, mesh):
        self.distribute(module, "weight", mesh, [S(0)])
        self.on_input(
            module,
            lambda _, args, kwargs: (
                (dt.redistribute(args[0], mesh, [R], [R], grad_placements=[P]),),
                kwargs,
            ),
        )
        self.on_output(module, lambda _, y: self.leave(y, mesh))

    def leave(self, y, mesh):
        return dt.redistribute(y, mesh, [S(-1)], [R])


class LargestFeature(ColumnStyle):
    """Let only the largest feature leave."""

    def leave(self, y, mesh):
        own = nn.functional.pad(y, (0, 1), value=-torch.inf).amax(-1, keepdim=True)
        largest = super().leave(own, mesh).amax(-1, keepdim=True)
        assert dt.layout_of(largest) is None
        known = dt.redistribute(largest, mesh, [R], [R])
        assert dt.layout_of(known).placements == (R,)
        return known


class Largest(nn.Module):
    """Return the largest feature."""

    def forward(self, y):
        return y.amax(-1, keepdim=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("width", [5, 1])
@pytest.mark.parametrize("style", [ColumnStyle, LargestFeature])
def test_gradient_of_an_input_that_all_ranks_have_is_added(style, width, ranks):
    torch.manual_seed(3)
    last = Largest() if style is LargestFeature else nn.Identity()
    module = nn.Sequential(nn.Linear(4, width, bias=False), last).double()

    def parallel(twin, mesh):
        return dt.parallelize_module(twin, mesh, {"0": style()})

    compare(ranks, module, (torch.randn(3, 4, dtype=torch.float64),), parallel)


class Odd(dt.ParallelStyle):
    """Does not use the rank's block as its layout has it."""

    def apply(self, module, mesh):
        def wrong(_, y):
            return dt.redistribute(y, mesh, [S(0)], [R], shape=y.shape)

        self.on_output(module, wrong)


def test_an_error_in_a_hook_names_the_module_once():
    def program():
        mesh = da.init_device_mesh((2,))
        model = nn.Sequential(nn.Sequential(nn.Tanh()), nn.Tanh())
        dt.parallelize_module(model, mesh, {"0.0": Odd(), "0": Odd()})
        with pytest.raises(LayoutError, match=r"^0\.0 \(Tanh\): a block of shape") as caught:
            model(torch.ones(4))
        assert str(caught.value).count("(") - str(caught.value).count("((") >= 1
        assert "Sequential" not in str(caught.value)

    simulate(2, program)


class Doubled(dt.ParallelStyle):
    """Forward sees twice the weight."""

    def apply(self, module, mesh):
        self.substitute(module, lambda module: {"weight": module.weight * 2})


class Failing(nn.Linear):
    """Fails where it is told to."""

    def forward(self, x):
        if x.sum() < 0:
            raise ValueError("negative")
        return super().forward(x)


def test_substituted_parameters_are_put_back_also_after_errors():
    def program():
        mesh = da.init_device_mesh((1,))
        module = Failing(3, 2, bias=False)
        weight = module.weight
        dt.parallelize_module(module, mesh, Doubled())
        x = torch.ones(1, 3)
        torch.testing.assert_close(module(x), x @ weight.t() * 2)
        assert module.weight is weight
        with pytest.raises(ValueError, match="negative"):
            module(-x)
        assert module.weight is weight
        module(x).sum().backward()
        torch.testing.assert_close(weight.grad, torch.full_like(weight, 2.0))

    simulate(1, program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_modules_are_recomputed(reentrant):
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    x = torch.linspace(-1, 1, 8).double().reshape(2, 4)

    def parallel(twin, mesh):
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        dt.parallelize_module(twin, mesh, plan)
        return lambda x: checkpoint(twin, x, use_reentrant=reentrant)

    for log in compare(2, model, (x,), parallel):
        assert log.count() == log.count("all_reduce") == (3 if reentrant else 2)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules_compute_the_same(backend):
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)).double()
    x = torch.linspace(-1, 1, 8).double().reshape(2, 4)
    expected = model(x)
    torch._dynamo.reset()

    def program():
        mesh = da.init_device_mesh((1,))
        twin = copy.deepcopy(model)
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        dt.parallelize_module(twin, mesh, plan)
        compiled = torch.compile(twin, backend=backend)
        for _ in range(2):
            y = compiled(x)
            torch.testing.assert_close(y, expected)
            twin.zero_grad()
            y.sum().backward()
        model.zero_grad()
        model(x).sum().backward()
        for one, other in zip(twin.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)

    simulate(1, program)
