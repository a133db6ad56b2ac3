"""Linear layers whose products ranks add up compute what torch's do."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.comm import _memory  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from distarray.torch._buffers import buffer_of  # noqa: E402
from distarray.torch.parallel.layers import _linear  # noqa: E402
from tests.torch.programs import filled, values  # noqa: E402


@pytest.fixture
def of_any_size(monkeypatch):
    monkeypatch.setattr(_linear, "LEAST_BYTES", 1)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("adds_output", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 6), (2, 3, 6), (1, 2, 3, 6)])
def test_a_layer_computes_the_same(bias, adds_output, dtype, shape):
    layer = filled(nn.Linear(6, 5, bias=bias).to(dtype))
    twin = copy.deepcopy(layer)
    _linear.multiply_in_reach(twin, adds_output=adds_output)
    one, other = (values(*shape, dtype=dtype).requires_grad_() for _ in range(2))
    expected, found = layer(one), twin(other)
    assert type(found.grad_fn).__name__ == "_LinearBackward"
    torch.testing.assert_close(found, expected)
    for y in (expected, found):
        y.square().sum().backward()
    torch.testing.assert_close(other.grad, one.grad)
    for a, b in zip(twin.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
        assert a.grad.is_contiguous()


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own use
@pytest.mark.parametrize("adds_output", [True, False])
def test_derivatives_of_any_order_and_direction(adds_output):
    layer = filled(nn.Linear(3, 4).double())
    _linear.multiply_in_reach(layer, adds_output=adds_output)

    def call(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    inputs = [v.requires_grad_() for v in (values(2, 3), values(4, 3, seed=1), values(4, seed=2))]
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("which", ["input", "weight", "bias"])
def test_what_alone_has_a_gradient_keeps_no_more_than_it_needs(which):
    layer = filled(nn.Linear(6, 5).double()).requires_grad_(False)
    _linear.multiply_in_reach(layer, adds_output=False)
    x = values(3, 6)
    one = x if which == "input" else getattr(layer, which)
    one.requires_grad_()
    y = layer(x)
    kept = [t for t in y.grad_fn.saved_tensors if t is not None]
    wanted = {"input": [layer.weight], "weight": [x], "bias": []}[which]
    assert [t.data_ptr() for t in kept] == [t.data_ptr() for t in wanted]
    y.sum().backward()
    assert one.grad is not None


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.usefixtures("of_any_size")
def test_other_layers_are_left_to_torch():
    x = values(4, 6, dtype=torch.float32)

    def node(layer, *given, **named):
        _linear.multiply_in_reach(layer, adds_output=True)
        return type(layer(*given, **named).grad_fn).__name__

    assert node(nn.Linear(6, 5), x) == "_LinearBackward"
    assert node(nn.Linear(6, 5), input=x) == "_LinearBackward"
    assert node(Twice(6, 5), x) == "MulBackward0"
    assert node(nn.Linear(6, 5), x[0]) == "ViewBackward0"
    assert node(nn.Linear(6, 5), x[:0]) == "AddmmBackward0"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert node(nn.Linear(6, 5), x) == "AddmmBackward0"
    with pytest.raises(RuntimeError, match="dtype"):
        node(nn.Linear(6, 5).double(), x)
    with pytest.raises(RuntimeError, match="shapes"):
        node(nn.Linear(7, 5), x)
    with pytest.raises(TypeError):
        node(nn.Linear(6, 5), x, x)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own use
def test_tangents_pass_through_parallel_layers():
    model = filled(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double())
    x, tangent = values(3, 6), values(3, 6, seed=1)
    plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}

    def slope(model):
        y = model(forward_ad.make_dual(x, tangent))
        return forward_ad.unpack_dual(y).tangent

    def program():
        twin = dt.parallelize_module(copy.deepcopy(model), da.init_device_mesh((2,)), plan)
        torch.testing.assert_close(slope(twin), expected)

    with forward_ad.dual_level():  # of all threads
        expected = slope(model)
        simulate(2, program)


def test_products_that_ranks_add_up_lie_where_others_read_them(monkeypatch):
    size = _memory.POOLED_BYTES // 4 // 8
    model = filled(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8)))
    plan = {"0": dt.ColwiseParallel(), "1": dt.RowwiseParallel()}
    x = values(size, 8, dtype=torch.float32).requires_grad_()
    made = []
    multiply = _linear._multiply
    monkeypatch.setattr(_linear, "_multiply", lambda *a: made.append(multiply(*a)) or made[-1])

    def program():
        twin = dt.parallelize_module(copy.deepcopy(model), da.init_device_mesh((1,)), plan)
        twin(x).sum().backward()

    simulate(1, program)
    assert len(made) == 2  # the output, and the input's gradient
    assert all(y.shape == (size, 8) and _memory.is_shared(buffer_of(y)) for y in made)
