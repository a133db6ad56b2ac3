"""Blocks tile the array exactly once, and are where torch.distributed.tensor puts them."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod
from typing import Any

import numpy as np
from hypothesis import given, settings

from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from tests.layout.strategies import blocks, layouts


@given(layouts())
@settings(max_examples=100)
def test_every_element_is_held_once_per_copy(layout: Layout) -> None:
    held = np.zeros(layout.shape, int)
    for _, block in blocks(layout):
        held[block] += 1
    unsharded = (*layout.partial_axes, *layout.replicated_axes)
    assert np.all(held == prod(layout.mesh.shape[axis] for axis in unsharded))


@given(layouts())
@settings(max_examples=100)
def test_blocks_do_not_depend_on_axes_that_do_not_shard(layout: Layout) -> None:
    unsharded = (*layout.partial_axes, *layout.replicated_axes)
    by_rest: dict[tuple[int, ...], Any] = {}
    for coordinate, block in blocks(layout):
        rest = tuple(c for axis, c in enumerate(coordinate) if axis not in unsharded)
        assert by_rest.setdefault(rest, block) == block


@given(layouts())
@settings(max_examples=100)
def test_is_even_tells_whether_all_blocks_have_one_shape(layout: Layout) -> None:
    per_axis_even = all(
        len({b - a for a, b in map(layout.partition(axis).bounds, range(count))}) == 1
        for axis, count in ((a, layout.partition(a).count) for a in range(layout.ndim))
    )
    assert layout.is_even is per_axis_even
    if layout.is_even:
        assert len({layout.local_shape(coordinate) for coordinate, _ in blocks(layout)}) == 1


def cut(shape: list[int], starts: list[int], axis: int, count: int, index: int) -> None:
    """Take part `index` of torch.chunk along `axis` of a block, in place."""
    step = -(-shape[axis] // count)
    first = min(index * step, shape[axis])
    starts[axis] += first
    shape[axis] = min(step, shape[axis] - first)


@given(layouts())
@settings(max_examples=100)
def test_local_boxes_are_those_of_torch_chunk_cut_after_cut(layout: Layout) -> None:
    layout = layout.replace(boundaries=None)
    for coordinate, _ in blocks(layout):
        shape, starts = list(layout.shape), [0] * layout.ndim
        for axis in range(layout.ndim):
            for mesh_axis in layout.sharding_axes(axis):
                cut(shape, starts, axis, layout.mesh.shape[mesh_axis], coordinate[mesh_axis])
        assert layout.local_shape(coordinate) == tuple(shape)
        box = layout.local_box(coordinate)
        assert box is not None
        assert [start for start, _ in box] == starts


@given(layouts())
@settings(max_examples=100)
def test_block_indices_count_the_blocks_of_each_axis(layout: Layout) -> None:
    for axis in range(layout.ndim):
        seen = Counter(
            layout.block_index(axis, coordinate)
            for coordinate in product(*map(range, layout.mesh.shape))
        )
        count = layout.partition(axis).count
        assert seen == dict.fromkeys(range(count), layout.mesh.size // count)


def test_both_shard_orders_on_one_axis() -> None:
    mesh = AbstractMesh((2, 3), ("dp", "tp"))
    by_mesh = Layout(mesh, (Shard(0), Shard(0)), (12,))
    other = Layout(mesh, (Shard(0), Shard(0)), (12,), shard_order=("tp", "dp"))
    starts = [[layout.local_box((i, j))[0][0] for i in (0, 1) for j in (0, 1, 2)]  # type: ignore[index]
              for layout in (by_mesh, other)]  # fmt: skip
    assert starts == [[0, 2, 4, 6, 8, 10], [0, 4, 8, 2, 6, 10]]


def test_nested_cut_is_not_a_flat_cut() -> None:
    mesh = AbstractMesh((2, 2))
    nested = Layout(mesh, (Shard(0), Shard(0)), (10,))
    assert [nested.local_shape((i, j)) for i in (0, 1) for j in (0, 1)] == [(3,), (2,), (3,), (2,)]
    flat = Layout(AbstractMesh((4,)), (Shard(0),), (10,))
    assert [flat.local_shape((i,)) for i in range(4)] == [(3,), (3,), (3,), (1,)]


def test_more_ranks_than_rows_leaves_trailing_blocks_empty() -> None:
    layout = Layout(AbstractMesh((4,)), (Shard(0),), (2, 5))
    assert [layout.local_shape((i,)) for i in range(4)] == [(1, 5), (1, 5), (0, 5), (0, 5)]
    assert layout.local_box((3,)) == ((2, 2), (0, 5))


def test_scalar_is_held_by_every_rank() -> None:
    layout = Layout(AbstractMesh((2, 2)), (Replicate(), Partial()), ())
    assert layout.local_box((1, 1)) == ()
    assert layout.local_shape((1, 1)) == ()
