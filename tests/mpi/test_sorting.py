"""Sorts, and selections among sorted runs, under MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog, world
from distarray.layout import Shard
from distarray.ops.sorting import _exchange, _multiselection
from tests.mpi.rank_counts import only_on
from tests.ops.sorting.items import DTYPES, draw_items, identical
from tests.ops.sorting.test_multiselection import select_on_rank, split
from tests.ops.sorting.test_sort import expected_order

only_on(2, 3, 4)


@pytest.mark.mpi
@pytest.mark.parametrize("few", [0, 32768])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cuts_and_values_are_those_of_a_stable_sort(
    dtype: Any, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_multiselection, "_FEW_BYTES", few)
    rng = np.random.default_rng(17)
    for trial in (1, 4):
        sizes = rng.integers(0, 30, world().size).tolist()
        native = np.dtype(dtype).newbyteorder("=")
        values = draw_items(rng, native, sum(sizes), bool(trial % 2))
        places = rng.integers(0, len(values) + 1, trial).tolist()
        select_on_rank(split(values, sizes), places)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_are_numpys_stable_ones(
    dtype: Any, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = world().size
    rng = np.random.default_rng(18)
    monkeypatch.setattr(_exchange, "GATHERED_BYTES", 0)
    for trial in range(2):
        lengths = rng.integers(0, 30, size) * rng.integers(0, 2, size)
        offsets = (0, *np.cumsum(lengths).tolist())
        values = draw_items(rng, np.dtype(dtype), offsets[-1], bool(trial % 2))
        x = da.distribute_array(values, placements=[Shard(0)], src=None)
        x = x.redistribute(boundaries={0: offsets})
        order = expected_order(values, 0, descending)
        y = da.sort(x, descending=descending)
        assert y.layout is x.layout
        assert identical(y.full_array(), values[order])
        assert (da.argsort(x, descending=descending).full_array() == order).all()


@pytest.mark.mpi
@pytest.mark.parametrize("shape", [(40_001,), (90, 3), (17, 50), (3, 90)])
def test_each_item_moves_at_most_once_along_any_axis(shape: tuple[int, ...]) -> None:
    size = world().size
    values = np.random.default_rng(19).integers(0, 50, shape)
    for cut in range(len(shape)):
        x = da.distribute_array(values, placements=[Shard(cut)], src=None)
        for axis in range(len(shape)):
            with CommLog() as log:
                y = da.sort(x, axis)
            block = -(-shape[cut] // size) * (values.size // shape[cut]) * 8
            assert log.bytes("rows") <= block + 8 * 32 * size
            assert axis == cut or log.bytes() == 0
            np.testing.assert_array_equal(y.full_array(), np.sort(values, axis))
            order = np.argsort(values, axis, kind="stable")
            np.testing.assert_array_equal(da.argsort(x, axis).full_array(), order)
            top, places = da.topk(x, 2, axis, largest=False)
            np.testing.assert_array_equal(places.full_array(), np.take(order, [0, 1], axis))
            taken = np.take(np.sort(values, axis), [0, 1], axis)
            np.testing.assert_array_equal(top.full_array(), taken)


@pytest.mark.mpi
def test_large_runs_are_merged_by_kernels() -> None:
    values = np.random.default_rng(20).integers(-999, 999, 400_003) / 7
    x = da.distribute_array(values, placements=[Shard(0)], src=None)
    np.testing.assert_array_equal(da.sort(x).full_array(), np.sort(values))
    order = np.argsort(values, kind="stable")
    np.testing.assert_array_equal(da.argsort(x).full_array(), order)
    down = da.argsort(x, descending=True).full_array()
    np.testing.assert_array_equal(down, expected_order(values, 0, True))
