"""The cache of resolutions has one bound in bytes, and programs can empty it."""

from __future__ import annotations

import numpy as np

import distarray as da
from distarray.core import _cache
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
