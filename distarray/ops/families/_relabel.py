"""Layouts of results whose items stay with their process while axes come, go or are cut anew."""

from __future__ import annotations

from collections.abc import Sequence

from distarray.layout import Layout, Replicate, Shard, carry_cuts
from distarray.typing import Shape

Offsets = tuple[int, ...]


def uncut_axes(layout: Layout, axes: Sequence[int]) -> Layout:
    """Return the layout in which none of some axes is cut: their mesh axes replicate."""
    cutting = {m for axis in axes for m in layout.sharding_axes(axis)}
    if not cutting:
        return layout
    placements = [Replicate() if m in cutting else p for m, p in enumerate(layout.placements)]
    boundaries = {a: o for a, o in (layout.boundaries or {}).items() if a not in axes}
    return layout.replace(placements=placements, boundaries=boundaries or None)


def move_cuts(layout: Layout, axes: Sequence[int], target: int) -> Layout:
    """Return the layout in which the mesh axes that cut some axes cut another one instead."""
    cutting = [m for axis in axes for m in layout.sharding_axes(axis)]
    if not cutting:
        return layout
    placements = [Shard(target) if m in cutting else p for m, p in enumerate(layout.placements)]
    others = [a for a in range(layout.ndim) if a != target and a not in axes]
    order = [*layout.sharding_axes(target), *cutting]
    order += [m for axis in others for m in layout.sharding_axes(axis)]
    boundaries = {axis: own for axis, own in (layout.boundaries or {}).items() if axis in others}
    return layout.replace(placements=placements, shard_order=order, boundaries=boundaries or None)


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
    free = carry_cuts(uncut_axes(layout, axes), shape, places)
    placements = list(free.placements)
    for mesh_axis in mesh_axes:
        placements[mesh_axis] = Shard(axes.start + place)
    cuts = [free.sharding_axes(axis) for axis in range(free.ndim)]
    cuts[axes.start + place] = mesh_axes
    return layout.replace(
        placements=placements,
        shape=shape,
        shard_order=[mesh_axis for cut in cuts for mesh_axis in cut],
        boundaries={**(free.boundaries or {}), axes.start + place: offsets},
    )
