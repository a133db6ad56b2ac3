"""Hooks of the user's see what arrives at a parallelized module and what leaves it."""

from __future__ import annotations

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402

R, S = da.Replicate(), da.Shard


def _values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def _halved(_, args):
    return (args[0] / 2,)


def _squared(_, __, output):
    return output * output


class Recorded:
    """Keeps what hooks are shown."""

    def __init__(self, module):
        self.inputs, self.outputs, self.gradients = [], [], []
        module.register_forward_pre_hook(lambda _, args: self.inputs.append(args[0].detach()))
        module.register_forward_hook(lambda _, __, y: self.outputs.append(y.detach()))
        module.register_full_backward_hook(
            lambda _, given, arrived: self.gradients.extend((given[0], arrived[0]))
        )


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize("first", [True, False])
def test_hooks_see_whole_inputs_outputs_and_gradients(style, first):
    model, x = nn.Linear(5, 6).double(), _values(3, 5)
    alone = copy.deepcopy(model)
    expected = Recorded(alone)
    given = x.clone().requires_grad_()
    alone(given).pow(2).sum().backward()

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        seen = Recorded(twin) if first else None
        dt.parallelize_module(twin, mesh, style(input_layouts=R, output_layouts=R))
        seen = seen or Recorded(twin)
        twin(x.clone().requires_grad_()).pow(2).sum().backward()
        for name in ("inputs", "outputs", "gradients"):
            torch.testing.assert_close(getattr(seen, name), getattr(expected, name))

    simulate(2, program)


@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize("first", [True, False])
def test_hooks_may_change_what_goes_in_and_out(style, first):
    model = nn.Linear(5, 6).double()
    model.register_forward_pre_hook(_halved)
    model.register_forward_hook(_squared)

    def parallel(twin, mesh):
        if not first:
            twin._forward_pre_hooks.clear()
            twin._forward_hooks.clear()
        dt.parallelize_module(twin, mesh, style(input_layouts=R, output_layouts=R))
        if not first:
            twin.register_forward_pre_hook(_halved)
            twin.register_forward_hook(_squared)
        return twin

    compare(3, model, (_values(4, 5),), parallel)


def test_several_styles_run_in_the_order_of_the_plan():
    model = nn.Sequential(nn.Linear(5, 6)).double()
    model[0].register_forward_hook(_squared)

    def parallel(twin, mesh):
        along = S(1)
        plan = [
            dt.PrepareModuleInput(input_layouts=along, desired_input_layouts=R),
            dt.ColwiseParallel(),
            dt.PrepareModuleOutput(output_layouts=S(-1), desired_output_layouts=R),
        ]
        for style in plan:
            dt.parallelize_module(twin, mesh, {"0": style})
        return lambda x: twin(dt.redistribute(x, mesh, [R], [along]))

    for log in compare(2, model, (_values(3, 4, 5),), parallel):
        assert log.count("all_gather") == 3  # the input, the output, and the input's gradient
        assert log.count("reduce_scatter") == 1


def test_a_call_of_forward_itself_moves_the_same():
    model, x = nn.Linear(5, 6).double(), _values(3, 5)
    expected = model(x).detach()

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        twin = copy.deepcopy(model)
        dt.parallelize_module(twin, mesh, dt.RowwiseParallel(input_layouts=R))
        torch.testing.assert_close(twin.forward(x).detach(), expected)
        assert list(inspect.signature(twin.forward).parameters) == ["input"]

    simulate(2, program)


def test_hooks_that_fail_leave_the_parameters_as_they_were():
    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        layer = nn.Linear(4, 4)

        def fail(_, args):
            if args[0].isnan().any():
                raise ValueError("no numbers")

        layer.register_forward_pre_hook(fail)
        dt.parallelize_module(layer, mesh, dt.RowwiseParallel(input_layouts=R))
        bias = layer.bias

        def again(_, args):
            if args[0].sum() == 4:
                with pytest.raises(ValueError, match="no numbers"):
                    layer(torch.full((1, 4), torch.nan))

        layer.register_forward_pre_hook(again)
        for _ in range(2):
            layer(torch.ones(1, 4))
            assert layer.bias is bias
        with pytest.raises(ValueError, match="no numbers"):
            layer(torch.full((1, 4), torch.nan))
        assert layer.bias is bias

    simulate(2, program)


def test_weights_that_become_computed_from_others_are_an_error():
    from torch.nn.utils import parametrizations

    def program():
        mesh = da.init_device_mesh((2,), ("tp",))
        for normalise in (parametrizations.weight_norm, parametrizations.spectral_norm):
            layer = nn.Linear(4, 4)
            dt.parallelize_module(layer, mesh, dt.ColwiseParallel())
            normalise(layer)
            with pytest.raises(ArgumentError, match="'weight' is computed from others"):
                layer(torch.ones(1, 4))
            layer = normalise(nn.Linear(4, 4))
            with pytest.raises(ArgumentError, match=r"'weight'.*computed from others"):
                dt.parallelize_module(layer, mesh, dt.ColwiseParallel())

    simulate(2, program)
