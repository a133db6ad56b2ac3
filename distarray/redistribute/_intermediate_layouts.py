"""Intermediate layouts: where an exchange stops, and what a mesh axis may be in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from distarray.layout import REDUCTIONS, Layout, Partial, Placement, Replicate, Shard, chunk
from distarray.redistribute._blocks import (
    is_explicit,
    kept_partial,
    real_cuts,
    same_mesh,
    shared_cuts,
)

Placements = tuple[Placement, ...]


def layout_before_filling(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> Layout:
    """Return the layout from which `dst` needs no more communication.

    That is ``dst`` itself, unless it has ``Partial`` mesh axes that ``src`` lacks. These become

    - ``Replicate``, where the values are replicated already, or an operation has no identity with
      which to fill the rest of a block (``avg``);
    - otherwise the last cut of an array axis, so that every value travels once.
    """
    same = same_mesh(src, dst)
    kept = kept_partial(src, dst)
    created = [i for i in dst.partial_axes if i not in kept]
    if not created:
        return dst
    placements = list(dst.placements)
    for i in created:
        before = src.placements[i] if same else None
        axis = None
        if type(before) is not Replicate and has_identity(dst.placements[i], dtype):
            axis = before.axis if type(before) is Shard else choose_axis(dst, placements, i)
        whole = axis is None or dst.mesh.shape[i] == 1
        placements[i] = Replicate() if whole or axis is None else Shard(axis)
    return cut_further(dst, placements, like=src if same else None)


def scatter_copies(layout: Layout) -> Layout:
    """Return a layout without copies, from which an all-gather makes the given one."""
    placements = list(layout.placements)
    for i in layout.replicated_axes:
        axis = choose_axis(layout, placements, i)
        if axis is not None and layout.mesh.shape[i] > 1:
            placements[i] = Shard(axis)
    return cut_further(layout, placements)


def cut_further(
    layout: Layout, placements: Sequence[Placement], like: Layout | None = None
) -> Layout:
    """Return a layout whose blocks are parts of the given one's, cut by more mesh axes.

    ``placements`` are those of the layout, but for some mesh axes that now shard; they cut last.
    The boundaries of ``like`` are taken where it cuts an array axis by the same mesh axes.
    """
    cuts = {axis: list(layout.sharding_axes(axis)) for axis in range(layout.ndim)}
    for i, (old, new) in enumerate(zip(layout.placements, placements, strict=True)):
        if type(new) is Shard and old is not new:
            cuts[new.axis].append(i)
    boundaries = {
        axis: found
        for axis, mesh_axes in cuts.items()
        if (found := _cut_boundaries(layout, axis, mesh_axes, like)) is not None
    }
    order = _shard_order(cuts, layout.mesh.ndim)
    return layout.replace(placements=placements, shard_order=order, boundaries=boundaries or None)


def has_identity(placement: Placement, dtype: np.dtype[Any]) -> bool:
    """Tell whether blocks can be filled with values that do not change the reduced ones."""
    if type(placement) is not Partial or placement.op == "avg":
        return False
    return REDUCTIONS[placement.op].identity(dtype.kind, dtype.itemsize) is not None


def choose_axis(layout: Layout, placements: Sequence[Placement], mesh_axis: int) -> int | None:
    """Return the array axis that one more mesh axis had best cut; None in a 0-d array.

    One that it cuts evenly, and among these the longest in a block.
    """
    count = layout.mesh.shape[mesh_axis]
    counts = [1] * layout.ndim  # of blocks along each array axis
    for placement, size in zip(placements, layout.mesh.shape, strict=True):
        if type(placement) is Shard:
            counts[placement.axis] *= size
    lengths = [-(-size // n) for size, n in zip(layout.shape, counts, strict=True)]
    return max(
        range(layout.ndim),
        key=lambda axis: (lengths[axis] % count == 0, lengths[axis], -axis),
        default=None,
    )


def intermediate_layout(src: Layout, goal: Layout, placements: Placements) -> Layout:
    """Return the layout with these placements on the way from ``src`` to ``goal``, on one mesh.

    Cuts that it shares with the goal come first and in the goal's order, then those it shares with
    the source, then new ones, so that what is cut late is gathered early. Explicit boundaries stay
    where an array axis is cut as in the source or as in the goal.
    """
    if placements == src.placements:
        return src
    if placements == goal.placements:
        return goal
    cuts: dict[int, list[int]] = {}
    boundaries = {}
    for axis in range(src.ndim):
        here = [i for i, p in enumerate(placements) if type(p) is Shard and p.axis == axis]
        late, early = goal.sharding_axes(axis), src.sharding_axes(axis)
        if sorted(early) == here and sorted(late) != here:
            cuts[axis] = list(early)
        else:
            ranked = [*late, *early]
            cuts[axis] = sorted(here, key=lambda i: ranked.index(i) if i in ranked else 1 << 30)
        for layout, same_cuts in ((goal, late), (src, early)):
            if here and tuple(cuts[axis]) == tuple(same_cuts):
                if is_explicit(layout, axis):
                    boundaries[axis] = layout.partition(axis).offsets
                break
    order = _shard_order(cuts, src.mesh.ndim)
    return src.replace(placements=placements, shard_order=order, boundaries=boundaries or None)


def _shard_order(cuts: dict[int, list[int]], ndim: int) -> list[int]:
    """Return all mesh axes, those that cut one array axis in the order in which they do."""
    order = [i for mesh_axes in cuts.values() for i in mesh_axes]
    return order + [i for i in range(ndim) if i not in order]


def _cut_boundaries(
    layout: Layout, axis: int, mesh_axes: list[int], like: Layout | None
) -> tuple[int, ...] | None:
    """Return explicit offsets of the blocks along one axis, cut further by new mesh axes."""
    explicit = is_explicit(layout, axis)
    old = layout.sharding_axes(axis)
    if len(mesh_axes) == len(old):
        return layout.partition(axis).offsets if explicit else None
    alike = like is not None and tuple(mesh_axes) == like.sharding_axes(axis)
    if like and alike and shared_cuts(like, layout, axis) == len(real_cuts(layout, axis)):
        return like.partition(axis).offsets if is_explicit(like, axis) else None
    if not explicit:
        return None
    counts = tuple(layout.mesh.shape[i] for i in mesh_axes[len(old) :])
    offsets = [0]
    for start, stop in pairwise(layout.partition(axis).offsets):
        inner = chunk(stop - start, counts)
        offsets += [start + inner.bounds(i)[1] for i in range(prod(counts))]
    return tuple(offsets)
