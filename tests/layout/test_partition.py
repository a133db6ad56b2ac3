"""Splits of one axis, against torch.chunk told in lists."""

from __future__ import annotations

import gc
import pickle
import time
import tracemalloc
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.errors import LayoutError
from distarray.layout._partition import Partition, chunk, explicit, interval, length, shortest

counts = st.lists(st.integers(1, 6), max_size=3).map(tuple)


def torch_chunk(items: list[int], count: int) -> list[list[int]]:
    """Cut as torch.chunk does, with empty pieces where it returns fewer than asked."""
    step = -(-len(items) // count)
    pieces = [items[i : i + step] for i in range(0, len(items), step)] if items else []
    return pieces + [[] for _ in range(count - len(pieces))]


@st.composite
def partitions(draw: Any) -> Partition:
    size = draw(st.integers(0, 60))
    if draw(st.booleans()):
        return chunk(size, draw(counts))
    cuts = draw(st.lists(st.integers(0, size), max_size=9))
    return explicit((0, *sorted(cuts), size))


@given(st.integers(0, 100), counts)
@settings(max_examples=200)
def test_blocks_are_those_of_nested_torch_chunk(size: int, counts: tuple[int, ...]) -> None:
    pieces = [list(range(size))]
    for count in counts:
        pieces = [part for piece in pieces for part in torch_chunk(piece, count)]
    partition = chunk(size, counts)
    assert partition.count == len(pieces)
    for index, piece in enumerate(pieces):
        assert list(range(*partition.bounds(index))) == piece
    for piece, digits in zip(pieces, product(*map(range, counts)), strict=True):
        parts = [*zip(counts, digits, strict=True)]
        assert list(range(*interval(size, parts))) == piece
        assert length(size, parts) == len(piece)
    assert shortest(size, counts) == partition.smallest == min(map(len, pieces))


@given(partitions())
@settings(max_examples=200)
def test_offsets_tile_the_axis(partition: Partition) -> None:
    offsets = partition.offsets
    assert offsets[0] == 0
    assert offsets[-1] == partition.size
    assert len(offsets) == partition.count + 1
    assert [partition.bounds(i) for i in range(partition.count)] == list(pairwise(offsets))
    lengths = [stop - start for start, stop in pairwise(offsets)]
    assert [partition.length(i) for i in range(partition.count)] == lengths
    assert all(length >= 0 for length in lengths)
    assert (partition.smallest, partition.largest) == (min(lengths), max(lengths))
    assert partition.is_even is (len(set(lengths)) == 1)


@given(partitions(), st.integers(-3, 63), st.integers(-3, 63))
@settings(max_examples=300)
def test_owners_are_the_blocks_that_meet_the_interval(
    partition: Partition, start: int, stop: int
) -> None:
    expected = [
        index
        for index in range(partition.count)
        if set(range(*partition.bounds(index))) & set(range(start, stop))
    ]
    assert list(partition.owners(start, stop)) == expected


@given(partitions())
@settings(max_examples=60)
def test_every_position_has_one_owner(partition: Partition) -> None:
    for position in range(partition.size):
        start, stop = partition.bounds(partition.owner(position))
        assert start <= position < stop


@given(partitions())
@settings(max_examples=60)
def test_equality_is_that_of_the_blocks_and_survives_pickle(partition: Partition) -> None:
    again = explicit(partition.offsets)
    assert again == partition
    assert hash(again) == hash(partition)
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert chunk(partition.size + 1, (partition.count,)) != partition


def test_queries_on_a_huge_axis_cost_nothing() -> None:
    start = time.process_time()
    partition = chunk(10**15 + 7, (1000, 1000, 1000))
    first, last = partition.bounds(123_456_789)
    assert list(partition.owners(first, last)) == [123_456_789]
    assert not partition.is_even
    assert time.process_time() - start < 0.05


@pytest.mark.parametrize("offsets", [(), (0,), (1, 3), (0, 3, 2), (0, -1)])
def test_offsets_that_are_no_split_raise(offsets: tuple[int, ...]) -> None:
    with pytest.raises(LayoutError, match="start with 0, never decrease"):
        explicit(offsets)


def test_error_about_many_offsets_stays_short() -> None:
    with pytest.raises(LayoutError) as caught:
        explicit(range(100_000, 0, -1))
    assert len(str(caught.value)) < 300


def test_chunk_into_nothing_raises() -> None:
    with pytest.raises(LayoutError, match="at least 1"):
        chunk(4, (0,))
    with pytest.raises(LayoutError, match="negative"):
        chunk(-1, (2,))


def test_partition_is_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        chunk(4, (2,)).size = 5


def test_chunk_keeps_no_offsets_of_the_lengths_asked_for() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        for size in range(10**6, 10**6 + 200):
            assert len(chunk(size, (2, 512)).offsets) == 1025
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 200 * 1024
    finally:
        tracemalloc.stop()


def test_splits_are_equal_where_all_their_blocks_are() -> None:
    default = chunk(10, (4,))
    assert default == explicit(default.offsets)
    assert default != chunk(10, (2, 2))  # (0, 3, 5, 8, 10)
    assert chunk(8, (4,)) == chunk(8, (2, 2))
    assert default != explicit((0, 3, 6, 8, 10))
    assert default != explicit((0, 3, 6, 10))
