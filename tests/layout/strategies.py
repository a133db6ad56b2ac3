"""Hypothesis strategies for meshes, placements, shapes and layouts, and a walk over all blocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from hypothesis import strategies as st

from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard

shapes = st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 5, 7, 8, 12]), max_size=4).map(tuple)
full_shapes = st.lists(st.sampled_from([1, 1, 2, 3, 4, 6, 8, 9]), max_size=4).map(tuple)


@st.composite
def meshes(draw: Any) -> AbstractMesh:
    """Small meshes of one to three axes, now and then over scattered ranks."""
    shape = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4, 5]), min_size=1, max_size=3))
    size = prod(shape)
    ranks = draw(st.none() | st.permutations(range(3, 3 + size)))
    return AbstractMesh(shape, ranks=ranks)


@st.composite
def layouts(draw: Any, shape: tuple[int, ...] | None = None, partial: bool = True) -> Layout:
    """Layouts with every placement, in any shard order, now and then with boundaries."""
    mesh = draw(meshes())
    if shape is None:
        shape = draw(shapes)
    choices = [st.just(Replicate())]
    if partial:
        choices.append(st.just(Partial(draw(st.sampled_from(["sum", "max", "avg"])))))
    if shape:
        choices.append(st.integers(0, len(shape) - 1).map(Shard))
        choices.append(st.just(Shard(0)))
    placements = [draw(st.one_of(choices)) for _ in mesh.shape]
    order = draw(st.permutations(range(mesh.ndim)))
    layout = Layout(mesh, placements, shape, shard_order=order)
    boundaries = {}
    for axis, size in enumerate(shape):
        count = layout.partition(axis).count
        if count > 1 and draw(st.integers(0, 2)) == 0:
            cuts = st.lists(st.integers(0, size), min_size=count - 1, max_size=count - 1)
            boundaries[axis] = (0, *sorted(draw(cuts)), size)
    return layout.replace(boundaries=boundaries or None)


def blocks(layout: Layout) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield every coordinate and its block as slices of the global array."""
    for coordinate in product(*map(range, layout.mesh.shape)):
        box = layout.local_box(coordinate)
        assert box is not None
        yield coordinate, tuple(slice(start, stop) for start, stop in box)
