"""The cache of resolutions has one bound in bytes, and programs can empty it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import distarray as da
from distarray.comm import _backend
from distarray.core.engine import _cache, _policy
from distarray.core.engine._pipeline import Step
from distarray.core.engine._policy import permit
from distarray.layout import _recent, counted, entry_bytes
from distarray.ops.families import _selection
from distarray.redistribute import _execute
from distarray.redistribute._execute import bound_steps
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
    monkeypatch.setattr(_cache, "LIMIT_BYTES", 10 * _recent.ENTRY_BYTES)

    def program() -> None:
        for length in range(2, 30):
            x = da.distribute_array(np.arange(float(length)))
            assert float(x.sum(axis=0)) == length * (length - 1) / 2
            assert entries() <= 2 * 10

    simulate(2, program)


def test_reductions_over_all_axes_keep_nothing_for_each_length() -> None:
    reset()

    def program() -> None:
        kept = set()
        for length in range(6, 30):
            values = np.arange(float(2 * length)).reshape(length, 2) - length
            x = da.distribute_array(values)
            assert float(x.sum()) == values.sum()
            assert x.min(keepdims=True).full_array().tolist() == [[values.min()]]
            kept.add(entries())
        assert len(kept) == 1

    simulate(1, program)


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
    assert bool(da.isclose(x, x, rtol=np.asarray(0.5)).full_array()[1])


def use_counted(turn: int) -> None:
    """Call functions of all kinds on an array whose boundaries depend on values."""
    rows = 2 * np.random.default_rng(turn).integers(1, 50, size=2)  # alike on both ranks
    y = da.arange(6.0).redistribute([da.Replicate()])
    layout = counted(da.Layout(y.mesh, [da.Shard(0)], (0, 6)), 0, rows.tolist())
    block = np.full((int(rows[y.mesh.coordinate[0]]), 6), 1.0 + turn)
    x = y._new(_backend.asarray(block, y.mesh.device), layout)
    results = [x + y, x.T, x @ x.T[:, :3], x[1:], x[::2, 1:3], x.reshape(2, -1), da.diff(x, axis=0)]
    results += [da.roll(x, 1, axis=0), da.concatenate([x, x]), x.cumsum(0), da.tril(x), x.var(0)]
    results += [da.flip(x, axis=0), da.repeat(x, 2, axis=0), x.rebalance(), da.stack([x, x])]
    results += [np.add(x, y, out=x), x.redistribute([da.Shard(1)]), da.argmax(x, axis=0)]
    for one in results:
        one.full_array()
    assert float(x.sum()) == int(rows.sum()) * (6 * (1.0 + turn) + 15)
    assert str(x).startswith("[[")


def with_boundaries(keys: object) -> int:
    """Return how many keys have a layout with boundaries in them."""
    return sum(entry_bytes(key) > _recent.ENTRY_BYTES for key in list(keys))


def live_counted() -> set[object]:
    """Return all layouts that are counted."""
    return {one for one in gc.get_objects() if type(one) is da.Layout and one.is_counted}


def test_caches_keep_nothing_of_boundaries_that_depend_on_values() -> None:
    reset()
    gc.collect()
    before = live_counted()

    def program() -> None:
        for turn in range(4):
            use_counted(turn)

    simulate(2, program)
    assert sum(with_boundaries(kept) for kept in _cache._dictionaries) == 0
    assert with_boundaries(_execute._programs) == 0
    assert 0 < _recent._used <= _recent.RECENT_BYTES
    reset()
    gc.collect()
    assert live_counted() <= before


def test_keys_that_do_not_come_back_stay_in_no_cache() -> None:
    reset()

    def program() -> None:
        x = da.arange(40.0)
        for i in range(20):
            assert float(x[i:][1]) == i + 1
        assert not _selection._selections  # x[1] is a key for twenty layouts
        for _ in range(3):
            assert x[1:-1].shape == (38,)
        assert len(_selection._selections) == 1

    simulate(1, program)
    reset()


def test_keys_that_came_last_are_bounded_by_the_bytes_of_their_selections(monkeypatch) -> None:
    reset()
    kept = _selection._selections

    def program() -> None:
        x = da.arange(40.0)
        for i in range(20):
            assert x[i:].shape == (40 - i,)
        assert 10 < len(kept._last) <= 20
        reset()
        assert not kept._last
        monkeypatch.setattr(_selection, "_LAST_BYTES", 0)
        for i in range(20):
            assert x[i:].shape == (40 - i,)
        assert len(kept._last) == 1
        assert x[19:].shape == (21,)  # the one before
        assert len(kept) == 1

    simulate(1, program)
    reset()


def test_operations_on_one_counted_layout_are_resolved_once(monkeypatch) -> None:
    reset()
    made = []
    plain = Step.__init__
    monkeypatch.setattr(
        Step, "__init__", lambda step, *parts: made.append(parts) or plain(step, *parts)
    )

    def program() -> None:
        y = da.arange(6.0).redistribute([da.Replicate()])
        c = y.mesh.coordinate[0]
        template = da.Layout(y.mesh, [da.Shard(0)], (0, 6))
        block = _backend.asarray(np.ones((3 * c, 6)), y.mesh.device)
        first = y._new(block, counted(template, 0, [0, 3]))
        second = y._new(block, counted(template, 0, [0, 3]))
        assert first.layout is second.layout
        assert first.layout.is_counted
        for x in (first, second, first):
            assert (x + y).layout is x.layout
            assert (x + second).layout is x.layout
            assert x.sum(0).full_array().tolist() == [3.0] * 6
        programs = bound_steps(first.layout, first.rebalance().layout, first.dtype)
        again = bound_steps(first.layout, first.rebalance().layout, first.dtype)
        assert programs is again

    simulate(2, program)
    keys = [(parts[0].name, *parts[1]) for parts in made]
    assert len(set(keys)) == len(keys)
    assert {name for name, *_ in keys} == {"add", "sum"}
    reset()


def test_policy_asks_a_plan_for_bytes_once(monkeypatch) -> None:
    mesh = da.AbstractMesh((1024,))
    rows, columns, whole = (
        da.Layout(mesh, [placement], (2048, 1024))
        for placement in (da.Shard(0), da.Shard(1), da.Replicate())
    )
    reset()
    planned = []
    monkeypatch.setattr(_policy, "plan", lambda *args: planned.append(args) or da.plan(*args))
    dtypes = np.dtype(np.float64), np.dtype(np.float32)
    for _ in range(3):
        with da.communication("warn", min_bytes=1 << 30):
            for dtype in dtypes:
                permit("x", rows, columns, dtype)
                permit("x", rows, whole, dtype)
    assert len(planned) == 4
    assert _policy.received_bytes(rows, columns, dtypes[0]) == 2 * 1023 * 8
    assert _policy.received_bytes(rows, whole, dtypes[1]) == 2 * 1023 * 1024 * 4
    reset()
    _policy.received_bytes(rows, columns, dtypes[0])
    assert len(planned) == 5
