"""Scans, methods of ufuncs and statistics under real MPI, on all ranks alike."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.comm import world
from distarray.errors import ArgumentError
from distarray.layout import Replicate, Shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


def test_methods_of_ufuncs_agree_with_numpy() -> None:
    size = world().size
    value = np.random.default_rng(2).integers(1, 99, (7 * size + 2, 3))
    starts = np.unique(np.random.default_rng(3).integers(0, len(value), 2 * size))
    for placements in ([Shard(0)], [Shard(1)], [Replicate()]):
        x = da.distribute_array(value, placements=placements, src=None)
        for ufunc in (np.add, np.maximum, np.gcd, np.bitwise_xor, np.logical_and):
            for result, expected in (
                (ufunc.accumulate(x), ufunc.accumulate(value)),
                (ufunc.reduce(x), ufunc.reduce(value)),
                (ufunc.reduceat(x, starts), ufunc.reduceat(value, starts)),
                (ufunc.outer(x[:, 0], x[0]), ufunc.outer(value[:, 0], value[0])),
            ):
                np.testing.assert_array_equal(result.full_array(), expected)


def test_statistics_agree_with_numpy() -> None:
    value = np.random.default_rng(4).random((50, 4))
    value[::7, 1] = value[3] = np.nan
    x = da.distribute_array(value, src=None)
    close = {"rtol": 1e-13, "atol": 1e-14}
    for name in ("nanvar", "nanstd", "nancumsum", "nancumprod"):
        result, expected = getattr(da, name)(x, axis=0), getattr(np, name)(value, axis=0)
        np.testing.assert_allclose(result.full_array(), expected, **close)
    np.testing.assert_array_equal(da.nanargmax(x, axis=0).full_array(), np.nanargmax(value, 0))
    rest = np.nan_to_num(value)
    y = da.nan_to_num(x)
    weights = np.arange(1.0, 51)
    for result, expected in (
        (da.cov(y, rowvar=False), np.cov(rest, rowvar=False)),
        (da.corrcoef(y, rowvar=False), np.corrcoef(rest, rowvar=False)),
        (da.average(y, axis=0, weights=weights), np.average(rest, 0, weights)),
        (da.trapezoid(y, axis=0), np.trapezoid(rest, axis=0)),
        (da.unwrap(y * 9, axis=0), np.unwrap(rest * 9, axis=0)),
        (da.ediff1d(y, to_begin=1), np.ediff1d(rest, to_begin=1)),
        (da.interp(y, [0, 1], [3, 4]), np.interp(rest, [0, 1], [3, 4])),
    ):
        np.testing.assert_allclose(result.full_array(), expected, **close)


def test_many_states_are_merged_in_parts() -> None:
    value = np.random.default_rng(5).integers(0, 9, (17, 70_001)).astype(np.float64)
    value[value == 4] = np.nan
    x = da.distribute_array(value)
    for name in ("nanvar", "nanargmax", "argmin", "nanmean"):
        result = getattr(da, name)(x, axis=0)
        np.testing.assert_allclose(np.asarray(result), getattr(np, name)(value, axis=0), rtol=1e-12)


def test_a_slice_of_one_rank_that_is_all_nan_raises_on_all() -> None:
    size = world().size
    value = np.ones((2 * size, 3))
    value[-1] = np.nan
    x = da.distribute_array(value, src=None)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="All-NaN"):
            da.nanargmin(x, axis=1)
    assert int(da.nanargmin(x)) == 0


def test_points_in_blocks_are_asked_for() -> None:
    rng = np.random.default_rng(6)
    points, values = np.sort(rng.random(20_000)), rng.random(20_000)
    wanted = rng.random(3_001) * 1.2 - 0.1
    x, xp, fp = (da.distribute_array(one, src=None) for one in (wanted, points, values))
    result = da.interp(x, xp, fp)
    np.testing.assert_array_equal(result.full_array(), np.interp(wanted, points, values))
