"""What functions need beside arrays and results is what is told of them, in blocks of the array."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

import distarray as da
from distarray.comm.kernels import _jit
from distarray.layout import Shard
from distarray.testing import simulate
from tests import peak_memory

pytestmark = pytest.mark.host_only

N = 1 << 18
"""Items of each of two ranks: 2 MiB, several tiles."""
X = np.random.default_rng(0).normal(size=2 * N)
WITH_NAN = np.where(X > 1, np.nan, X)
SQUARE, WIDE, TALL = (WITH_NAN.reshape(shape) for shape in ((512, -1), (8, -1), (-1, 8)))

REDUCTIONS = ("nanargmax", "nanargmin", "nanmean", "nanstd", "nansum", "nanvar")


@pytest.fixture(autouse=True)
def numpy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jit, "forced", lambda: dict.fromkeys(_jit.JOBS, "numpy"))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_beside_nan_need_a_few_tiles(name: str, axis: int | None) -> None:
    blocks = peak_memory.scratch(lambda x: getattr(da, name)(x, axis=axis), SQUARE, 2)
    assert blocks < 1  # three tiles of a quarter, at most


def test_extremes_of_lines_that_lie_apart_need_a_tile() -> None:
    assert peak_memory.scratch(lambda x: da.argmax(x, axis=0), SQUARE, 2) < 0.6


def test_places_of_extremes_need_nothing_the_first_time() -> None:
    """What a step remembers lies beside the block as long as the step is remembered."""

    def program() -> int:
        x = da.distribute_array(X, placements=[Shard(0)])
        da.argmax(x[:100])
        tracemalloc.start()
        try:
            da.argmax(x)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert simulate(1, program)[0] < X.nbytes // 10


@pytest.mark.parametrize("value", [SQUARE, WIDE, TALL], ids=["square", "wide", "tall"])
@pytest.mark.parametrize("name", ["argmax", "argmin", "nanprod", *REDUCTIONS])
def test_reductions_by_tiles_give_numpys_results(name: str, value: np.ndarray) -> None:
    if name.startswith("arg"):
        value = np.round(np.nan_to_num(value), 2)  # with ties
    expected = {
        (axis, order): getattr(np, name)(value, axis=axis)
        for axis in (None, 0, 1)
        for order in "CF"
    }

    def program() -> None:
        for (axis, order), one in expected.items():
            x = da.distribute_array(np.asarray(value, order=order), placements=[Shard(1)])
            found = getattr(da, name)(x, axis=axis).full_array()
            if one.dtype.kind == "i":
                np.testing.assert_array_equal(found, one, strict=True)
            else:
                np.testing.assert_allclose(found, one, rtol=1e-9, atol=1e-9, strict=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of infinite products
        simulate(2, program)
