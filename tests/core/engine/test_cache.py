"""The cache of resolutions has one bound in bytes, and programs can empty it."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.core.engine import _cache
from distarray.testing import reset, simulate


def entries() -> int:
    """Return how many resolutions are kept."""
    return sum(map(len, _cache._dictionaries))


def calls() -> None:
    """Call something of every family."""
    x = da.distribute_array(np.arange(24.0).reshape(6, 4))
    results = (x + x.T.redistribute(x.placements).T, x.sum(0), x.var(1), x.cumsum(0), x @ x.T)
    for one in (*results, x[1:3], x.reshape(24), da.diff(x)):
        assert np.isfinite(one.full_array()).all()


def test_reset_empties_all_and_the_next_calls_resolve_again() -> None:
    def program() -> None:
        calls()
        assert entries() > 8
        reset()
        calls()

    simulate(1, program)
    reset()
    assert entries() == 0


def test_a_full_cache_is_emptied_and_the_program_goes_on(monkeypatch) -> None:
    reset()
    monkeypatch.setattr(_cache, "LIMIT_BYTES", 10 * _cache._ENTRY_BYTES)

    def program() -> None:
        for length in range(2, 30):
            x = da.distribute_array(np.arange(float(length)))
            assert float(x.sum()) == length * (length - 1) / 2
            assert entries() <= 2 * 10

    simulate(2, program)


def test_long_boundaries_count_for_what_they_take(monkeypatch) -> None:
    reset()
    monkeypatch.setattr(_cache, "LIMIT_BYTES", 1 << 20)
    mesh = da.AbstractMesh((50_000,))
    offsets = tuple(range(0, 100_002, 2))
    long = da.Layout(mesh, [da.Shard(0)], (100_000,), boundaries={0: (0, 1, *offsets[2:])})
    kept = _cache.cache()
    _cache.remember(kept, (1, "small"), "first")
    _cache.remember(kept, (2, long), "second")
    assert (1, "small") not in kept
    reset()


@pytest.mark.parametrize("name", ["sum", "max", "mean", "var", "argmax", "cumulative_sum", "any"])
@pytest.mark.parametrize("axis", [1.0, True, np.float64(1), (1.0,)], ids=repr)
def test_what_equals_an_axis_is_refused_after_the_axis_too(name, axis) -> None:
    x = da.ones((2, 3))
    function = getattr(da, name)
    for _ in range(2):
        with pytest.raises(TypeError, match="axis"):
            function(x, axis=axis)
        assert function(x, axis=1).shape == function(x, axis=np.int64(1)).shape


def test_keywords_that_are_equal_and_mean_different_things_are_told_apart() -> None:
    x = da.asarray(np.array([np.nan, 1.0]))
    for nan in (0.0, -0.0, 0.0):
        assert np.signbit(da.nan_to_num(x, nan=nan).full_array()[0]) == np.signbit(nan)
    with pytest.raises(TypeError, match="one number, not an array"):
        da.nan_to_num(x, nan=np.ones(2))
    with pytest.raises(TypeError, match="one number, not an array"):
        da.isclose(x, x, rtol=x)
    assert bool(da.isclose(x, x, rtol=np.asarray(0.5)).full_array()[1])
