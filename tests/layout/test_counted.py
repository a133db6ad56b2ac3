"""Layouts with boundaries that depend on values: what they are, and what caches keep of them."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
import tracemalloc
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distarray.layout import (
    AbstractMesh,
    Layout,
    Partial,
    Replicate,
    Shard,
    _recent,
    chunk,
    counted,
    dimmap,
    entry_bytes,
    forget_recent,
    has_counted,
    keep_recent,
    kept,
    mark_counted,
    propagate,
    recall,
)

MESH = AbstractMesh((2, 3), axis_names=("a", "b"))
LINE = AbstractMesh((4,))


@pytest.fixture(autouse=True)
def _empty():
    forget_recent()
    yield
    forget_recent()


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6), st.sampled_from([None, (1, 0)]))
def test_blocks_have_the_lengths_told_in_block_order(lengths, order) -> None:
    placements = (Shard(1), Shard(1))
    template = Layout(MESH, placements, (7, 99, 2), shard_order=order)
    layout = counted(template, 1, lengths)
    assert layout.shape == (7, sum(lengths), 2)
    for coordinate in itertools.product(range(2), range(3)):
        index = layout.block_index(1, coordinate)
        assert layout.local_shape(coordinate) == (7, lengths[index], 2)
    assert layout.is_counted is (layout.boundaries is not None)
    default = chunk(sum(lengths), (2, 3) if order is None else (3, 2))
    assert layout.is_counted is (default.offsets != layout.partition(1).offsets)
    assert counted(layout, 1, lengths) is layout
    assert counted(template.replace(shape=(7, 0, 2)), 1, lengths) is layout


def test_an_equal_layout_is_the_same_object_however_it_came_about() -> None:
    own = Layout(LINE, [Shard(0)], (10,), boundaries={0: (0, 1, 2, 3, 10)})
    assert not own.is_counted
    assert counted(Layout(LINE, [Shard(0)], (0,)), 0, [1, 1, 1, 7]) is own
    found = counted(Layout(LINE, [Shard(0)], (0,)), 0, [2, 1, 1, 7])
    assert Layout(LINE, [Shard(0)], (11,), boundaries={0: (0, 2, 3, 4, 11)}) is found
    assert pickle.loads(pickle.dumps(found)) is found
    assert hash(found.fingerprint) == hash(found.abstract.fingerprint)


def test_wrong_numbers_of_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="4 blocks"):
        counted(Layout(LINE, [Shard(0)], (0,)), 0, [1, 2, 3])


def test_layouts_derived_from_counted_ones_are_counted_where_they_have_boundaries() -> None:
    layout = counted(Layout(MESH, (Shard(0), Replicate()), (0, 6)), 0, [1, 5])
    assert layout.is_counted
    assert layout.abstract.is_counted
    assert layout.replace(placements=(Shard(0), Partial())).is_counted
    assert layout.replace(placements=(Shard(0), Partial())).without_partial() is layout
    assert not layout.replace(boundaries=None).is_counted
    assert not layout.replace(placements=(Replicate(), Replicate()), boundaries=None).is_counted
    _, result = propagate(dimmap.transpose(layout.shape, (1, 0)), layout)
    assert result.is_counted
    assert result.boundaries == {1: (0, 1, 6)}
    default = Layout(LINE, [Shard(0)], (8,))
    mark_counted(default)
    assert not default.is_counted


def test_keys_with_a_counted_layout_at_any_depth_are_told() -> None:
    layout = counted(Layout(LINE, [Shard(0)], (0,)), 0, [4, 0, 0, 1])
    plain = Layout(LINE, [Shard(0)], (5,))
    assert has_counted(layout)
    assert has_counted((1, ("roll", (plain, layout)), None))
    assert not has_counted((plain, (1, (plain,)), "x"))
    assert entry_bytes((1, (plain,))) == _recent.ENTRY_BYTES
    assert entry_bytes((1, (plain, layout))) == _recent.ENTRY_BYTES + 5 * _recent.OFFSET_BYTES


def test_the_short_memory_drops_what_was_used_longest_ago() -> None:
    owner = object()
    many = _recent.RECENT_BYTES // _recent.ENTRY_BYTES
    for i in range(many):
        keep_recent(owner, i, str(i))
    assert recall(owner, 0) == "0"
    keep_recent(owner, "new", "value")
    assert recall(owner, 0) == "0"
    assert recall(owner, 1) is None
    assert recall(owner, "new") == "value"
    assert recall(object(), "new") is None
    for _ in range(3 * many):
        keep_recent(owner, "new", "again")
    assert recall(owner, 0) == "0"
    assert recall(owner, "new") == "again"
    forget_recent()
    assert recall(owner, "new") is None
    assert _recent._used == 0


def test_one_entry_that_is_too_large_is_not_kept() -> None:
    mesh = AbstractMesh((50_000,))
    layout = counted(Layout(mesh, [Shard(0)], (0,)), 0, [0] * 49_999 + [1])
    keep_recent(test_wrong_numbers_of_lengths_are_refused, layout, "value")
    assert recall(test_wrong_numbers_of_lengths_are_refused, layout) is None
    assert _recent._used == 0


def test_functions_keep_ordinary_layouts_always_and_counted_ones_for_a_while(monkeypatch) -> None:
    made = []

    @kept(100)
    def halve(layout: Layout, number: int = 1) -> int | None:
        """Return something."""
        made.append((layout, number))
        return None if number == 3 else number // 2

    plain = Layout(LINE, [Shard(0)], (5,))
    layout = counted(Layout(LINE, [Shard(0)], (0,)), 0, [4, 0, 0, 1])
    for number in (7, 3):
        for one in (plain, layout, plain, layout):
            assert halve(one, number) == (3 if number == 7 else None)
    assert made == [(plain, 7), (layout, 7), (plain, 3), (layout, 3)]
    assert halve.__doc__ == "Return something."
    forget_recent()
    assert halve(plain, 7) == halve(layout, 7) == 3
    assert made[4:] == [(layout, 7)]
    monkeypatch.setattr(_recent, "RECENT_BYTES", 0)
    forget_recent()
    halve(layout, 7)
    halve(layout, 7)
    assert made[5:] == [(layout, 7)] * 2
    halve.cache_clear()
    halve(plain, 7)
    assert made[7:] == [(plain, 7)]


def test_nothing_stays_of_layouts_that_are_gone() -> None:
    mesh = AbstractMesh((1024,))
    random.seed(1)

    def make() -> int:
        lengths = [random.randrange(2000) for _ in range(1024)]
        one = counted(Layout(mesh, [Shard(0)], (0, 8)), 0, lengths)
        return reduce(int.__xor__, (one.fingerprint, one.abstract.size, one.is_even))

    make()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(100):
            make()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 300 << 10  # of offsets alone 4 MiB were made
    finally:
        tracemalloc.stop()
