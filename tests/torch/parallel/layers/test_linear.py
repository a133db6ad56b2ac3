"""Linear layers cut by columns and by rows compute what one process computes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402
from tests.torch.parallel.twins import compare  # noqa: E402


def _values(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("hidden", [8, 7, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_column_then_row_needs_one_all_reduce_each_way(ranks, hidden, bias):
    model = torch.nn.Sequential(
        torch.nn.Linear(5, hidden, bias=bias),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, 6, bias=bias),
    ).double()

    def parallel(twin, mesh):
        plan = {"0": dt.ColwiseParallel(), "2": dt.RowwiseParallel()}
        return dt.parallelize_module(twin, mesh, plan)

    for log in compare(ranks, model, (_values(3, 4, 5),), parallel):
        assert log.count() == log.count("all_reduce") == 2


def test_row_parallel_output_has_the_dtype_of_autocast():
    model = torch.nn.Linear(8, 6)
    x = _values(4, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)

    def program():
        twin = copy.deepcopy(model)
        style = dt.RowwiseParallel(input_layouts=da.Replicate())
        dt.parallelize_module(twin, da.init_device_mesh((2,)), style)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = twin(x)
        assert found.dtype is expected.dtype is torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)

    simulate(2, program)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("output", [da.Replicate(), da.Shard(-1), da.Shard(0), da.Shard(1)])
@pytest.mark.parametrize("style", [dt.ColwiseParallel, dt.RowwiseParallel])
@pytest.mark.parametrize("arrives", [da.Replicate(), da.Shard(1), da.Shard(-1)])
def test_every_way_in_and_out(ranks, style, arrives, output):
    model = torch.nn.Linear(7, 5).double()
    x = _values(4, 3, 7)

    def parallel(twin, mesh):
        dt.parallelize_module(twin, mesh, style(input_layouts=arrives, output_layouts=output))
        replicated = [da.Replicate()]

        def run(x):
            x = dt.redistribute(x, mesh, replicated, [arrives])
            y = twin(x)
            return dt.redistribute(y, mesh, [output], replicated)

        return run

    compare(ranks, model, (x,), parallel)
