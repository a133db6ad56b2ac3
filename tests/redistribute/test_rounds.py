"""Rounds cut every message into equal parts, and keep what is packed within the bound."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from distarray.redistribute import plan
from distarray.redistribute._schedule import cut, slab
from distarray.redistribute._steps import AllReduceStep, ExchangeStep
from tests.redistribute.strategies import moves

boxes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda p: (p[0], p[0] + p[1])), max_size=4
).map(tuple)


@given(boxes, st.integers(1, 30))
@settings(max_examples=100)
def test_parts_follow_one_another_in_c_order_and_are_equal(box, count):
    values = np.arange(prod(stop - start for start, stop in box)).reshape(
        [stop - start for start, stop in box]
    )
    sizes, seen = [], []
    for index in range(count):
        parts = cut(box, (index, count))
        assert len(parts) <= max(2 * len(box) - 1, 1)
        found = [
            values[*[slice(a - s, b - s) for (a, b), (s, _) in zip(part, box, strict=True)], ...]
            for part in parts
        ]
        assert all(piece.size for piece in found)
        sizes.append(sum(piece.size for piece in found))
        seen += [int(v) for piece in found for v in piece.ravel()]
    assert seen == list(range(values.size))
    assert max(sizes) - min(sizes) <= 1


@given(boxes, st.integers(1, 30))
@settings(max_examples=100)
def test_slabs_tile_a_box_and_none_is_longer_than_the_first(box, count):
    seen = np.zeros([stop for _, stop in box], int)
    parts = [slab(box, (index, count)) for index in range(count)]
    for part in parts:
        assert len(part) <= 1
        for one in part:
            seen[(*[slice(*ends) for ends in one], ...)] += 1
    assert seen.sum() == prod(stop - start for start, stop in box)
    assert seen.max(initial=0) <= 1
    sizes = [sum(prod(b - a for a, b in one) for one in part) for part in parts]
    assert max(sizes) == sizes[0]


def test_slabs_of_short_axes_are_of_the_next_one():
    parts = [slab(((0, 2), (0, 6), (0, 5)), (index, 4)) for index in range(4)]
    assert parts == [[((i, i + 1), (at, at + 3), (0, 5))] for i in range(2) for at in (0, 3)]


def test_parts_of_whole_rows_are_one_box():
    assert cut(((2, 10), (0, 5)), (1, 4)) == [((4, 6), (0, 5))]
    assert cut(((0, 1), (0, 8)), (1, 2)) == [((0, 1), (4, 8))]


@given(moves(), st.integers(1, 400))
@settings(max_examples=100)
def test_packed_bytes_stay_within_the_bound(move, max_bytes):
    found = plan(*move, max_bytes=max_bytes)
    ranks = {*move.src.mesh.flat_ranks, *move.dst.mesh.flat_ranks}
    for step in found.steps:
        if not isinstance(step, ExchangeStep):
            continue
        for rank in ranks:
            messages = 0
            largest = 0
            for index in range(step.rounds):
                part = (index, step.rounds)
                arriving = step.receives(rank, part)
                leaving = [t for t in step.sends(rank, part) if t.peers != (rank,)]
                received = sum(t.size * (len(t.peers) - (rank in t.peers)) for t in arriving)
                largest = max(largest, received + sum(t.size for t in leaving))
                peers = {p for t in arriving for p in t.peers} - {rank}
                messages = max(messages, len(peers) + len({t.peers for t in leaving}))
            assert largest * step.dtype.itemsize <= max(max_bytes, messages * step.dtype.itemsize)
            assert largest * step.dtype.itemsize <= ExchangeStep.scratch_bytes(step, rank)


def test_all_reduce_in_pieces_stays_within_the_bound():
    layout = Layout(AbstractMesh((4,)), [Partial()], (1001,))
    found = plan(layout, layout.replace(placements=[Replicate()]), "f8", max_bytes=100)
    (step,) = found.steps
    assert isinstance(step, AllReduceStep)
    assert max(step.scratch_bytes(rank) for rank in range(4)) == 96
    assert "x21" in found.explain()


def test_generous_bound_leaves_one_round():
    layout = Layout(AbstractMesh((4,)), [Shard(0)], (64, 64))
    found = plan(layout, layout.replace(placements=[Shard(1)]), "f8", max_bytes=1 << 20)
    assert [step.rounds for step in found.steps] == [1]


def test_reduction_packs_every_contribution_within_the_bound():
    layout = Layout(AbstractMesh((8,)), [Partial()], (64, 64))
    found = plan(layout, layout.replace(placements=[Shard(0)]), "f8", max_bytes=1 << 13)
    (step,) = found.steps
    assert isinstance(step, ExchangeStep)
    assert step.rounds > 1
    assert all(step.scratch_bytes(rank) <= 1 << 13 for rank in range(8))
