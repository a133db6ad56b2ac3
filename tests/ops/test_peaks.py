"""What functions need beside arrays and results is what is told of them, in blocks of the array."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import _grouping
from distarray.comm.kernels import _jit
from distarray.layout import Shard
from distarray.ops import _index_arrays
from distarray.random import _bijection, _shuffling, _streams
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


@pytest.mark.parametrize("axis", [0, 1])
def test_norms_of_lines_need_a_few_tiles(axis: int) -> None:
    assert peak_memory.scratch(lambda x: da.linalg.norm(x, axis=axis), SQUARE, 2) < 0.5
    given = X.reshape(512, -1)

    def program() -> None:
        for one in (given, given + 1j * given[::-1], given.astype("f4")):
            x = da.distribute_array(one, placements=[Shard(0)])
            found = da.linalg.norm(x, axis=axis).full_array()
            np.testing.assert_allclose(found, np.linalg.norm(one, axis=axis), rtol=1e-6)
            assert found.dtype == one.real.dtype

    simulate(2, program)


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


def permuted(axis: int) -> Callable[[Any], Any]:
    return lambda x: da.random.default_rng(1).permuted(x, axis=axis)


CUT = {
    "argsort, descending": (lambda x: da.argsort(x.reshape(-1), descending=True), 4.2),
    "lexsort": (lambda x: da.lexsort((x.reshape(-1), x.reshape(-1))), 7.2),
    "permuted": (permuted(0), 2.9),
    "resize": (lambda x: da.resize(x, x.size), 0.1),
    "sort, descending": (lambda x: da.sort(x.reshape(-1), descending=True), 2.2),
    "topk": (lambda x: da.topk(x.reshape(-1), x.size // 2), 4.2),
    "trapezoid": (lambda x: da.trapezoid(x, axis=0), 2.1),
    "unravel_index": (lambda x: da.unravel_index(x, (1000, 2000)), 0.5),
}
"""Of arrays that are cut along the first axis; the last number is the most blocks."""


@pytest.mark.parametrize("name", CUT)
def test_memory_beside_array_and_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_grouping, "_PIECE", 1 << 10)
    monkeypatch.setattr(_index_arrays, "_PIECE", 1 << 10)
    for module in (_bijection, _shuffling, _streams):
        monkeypatch.setattr(module, "PIECE", 1 << 12)
    call, blocks = CUT[name]
    value = np.random.default_rng(0).integers(0, 10**6, (128, 2048))
    given = value if name == "unravel_index" else value / 8
    assert peak_memory.scratch(call, given, 2) <= blocks


def test_products_of_all_items_move_none_that_are_cut_alike() -> None:
    value = np.arange(600.0).reshape(20, 30)

    def program() -> None:
        x, y = (da.distribute_array(one, placements=[Shard(1)]) for one in (value, value[::-1]))
        with da.CommLog() as log:
            found = da.vdot(x, y)
        assert log.bytes() == 0
        assert float(found) == np.vdot(value, value[::-1])

    simulate(2, program)


def test_lines_that_are_cut_are_permuted_as_whole_ones() -> None:
    value = np.arange(600).reshape(20, 30)

    def program() -> None:
        for axis in (0, 1):
            whole = da.random.default_rng(3).permuted(da.asarray(value), axis=axis).full_array()
            for placement in (Shard(0), Shard(1)):
                x = da.distribute_array(value, placements=[placement])
                found = da.random.default_rng(3).permuted(x, axis=axis)
                assert found.layout is x.layout
                np.testing.assert_array_equal(found.full_array(), whole)
                np.testing.assert_array_equal(np.sort(whole, axis), value)

    simulate(3, program)
