"""Layouts of results whose items stay with their process while axes come, go or are cut anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distarray.layout import Layout, Replicate, Shard, carry_cuts
from distarray.typing import Shape

Offsets = tuple[int, ...]


def uncut_axes(layout: Layout, axes: Sequence[int]) -> Layout:
    """Return the layout in which none of some axes is cut: their mesh axes replicate."""
    if not any(map(layout.sharding_axes, axes)):
        return layout
    kept = {axis: axis for axis in range(layout.ndim) if axis not in axes}
    return carry_cuts(layout, layout.shape, kept)


def recut(
    layout: Layout,
    cuts: Mapping[int, Sequence[int]],
    offsets: Mapping[int, Sequence[int]] | None = None,
) -> Layout:
    """Return the layout in which other mesh axes cut some array axes, first cut first.

    These are cut evenly, or at `offsets`. Mesh axes that cut none any more replicate.
    """
    every = [cuts.get(axis, layout.sharding_axes(axis)) for axis in range(layout.ndim)]
    placements = [Replicate() if type(p) is Shard else p for p in layout.placements]
    for axis, cutting in enumerate(every):
        for mesh_axis in cutting:
            placements[mesh_axis] = Shard(axis)
    boundaries = {a: own for a, own in (layout.boundaries or {}).items() if a not in cuts}
    return layout.replace(
        placements=placements,
        shard_order=[mesh_axis for cutting in every for mesh_axis in cutting],
        boundaries={**boundaries, **(offsets or {})} or None,
    )


def move_cuts(layout: Layout, axes: Sequence[int], target: int) -> Layout:
    """Return the layout in which the mesh axes that cut some axes cut another one instead."""
    cutting = [m for axis in axes for m in layout.sharding_axes(axis)]
    if not cutting:
        return layout
    free: dict[int, Sequence[int]] = dict.fromkeys(axes, ())
    return recut(layout, {**free, target: (*layout.sharding_axes(target), *cutting)})


def resize_axis(layout: Layout, axis: int, length: int, offsets: Offsets | None = None) -> Layout:
    """Return the layout with another length of an axis, cut at `offsets`, or evenly."""
    boundaries = {a: own for a, own in (layout.boundaries or {}).items() if a != axis}
    if offsets is not None:
        boundaries[axis] = offsets
    shape = (*layout.shape[:axis], length, *layout.shape[axis + 1 :])
    return layout.replace(shape=shape, boundaries=boundaries or None)


def replace_axes(
    layout: Layout,
    axes: range,
    sizes: Shape,
    place: int,
    mesh_axes: tuple[int, ...],
    offsets: Offsets,
) -> Layout:
    """Return `layout` with consecutive axes replaced by others, one of which is cut.

    Parameters
    ----------
    layout : Layout
        Before.
    axes : range
        The axes that go; the mesh axes that cut them become free.
    sizes : tuple of int
        The axes that come.
    place : int
        Which of those is cut, counted from the first of them.
    mesh_axes, offsets : tuple of int
        How it is cut: mesh axes, first cut first, and the offsets of the blocks.
    """
    shift = len(sizes) - len(axes)
    places = {
        axis: axis if axis < axes.start else axis + shift
        for axis in range(layout.ndim)
        if axis not in axes
    }
    shape = (*layout.shape[: axes.start], *sizes, *layout.shape[axes.stop :])
    free = carry_cuts(layout, shape, places)
    axis = axes.start + place
    return recut(free, {axis: mesh_axes}, {axis: offsets})
