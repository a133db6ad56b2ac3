"""A module may be parallelized while results of earlier calls are still held."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64])
def test_gradients_have_the_shape_of_the_block_while_an_earlier_graph_lives(dtype) -> None:
    weight = torch.arange(24.0).reshape(6, 4).to(dtype)

    def program() -> None:
        layer = torch.nn.Linear(4, 6, bias=False, dtype=dtype)
        layer.weight.data.copy_(weight)
        x = torch.ones(3, 4, dtype=dtype)
        before = layer(x)
        mesh = da.init_device_mesh((2,))
        dt.parallelize_module(layer, mesh, dt.ColwiseParallel(output_layouts=da.Replicate()))
        after = layer(x)
        torch.testing.assert_close(after, before)
        after.abs().sum().backward()
        assert layer.weight.grad.shape == (3, 4)

    simulate(2, program)
