"""Where cut axes are after a reshape, as every rank tells alike from its own block's shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod

from distarray.layout import Layout, Shard

Axes = Mapping[int, int]
"""Where every cut axis of the input is in the result."""


def cut_axes(layout: Layout) -> list[int]:
    """Return the array axes that some mesh axis cuts."""
    return sorted({p.axis for p in layout.placements if type(p) is Shard})


@lru_cache(maxsize=4096)
def single_axes(layout: Layout) -> frozenset[int]:
    """Return the cut axes of which some rank has one item, as of axes that squeeze drops."""
    ends = ((axis, layout.partition(axis).offsets) for axis in cut_axes(layout))
    return frozenset(axis for axis, at in ends if any(j - i == 1 for i, j in pairwise(at)))


def squeezed_axes(shape: Sequence[int], dropped: Iterable[int], layout: Layout) -> Axes | None:
    """Return where cut axes are without axes of length 1; None where a rank might drop a cut one.

    Parameters
    ----------
    shape
        Of this rank's block.
    dropped
        Axes that are dropped if they are of length 1.
    """
    cut, dropped = cut_axes(layout), frozenset(dropped)
    if dropped & single_axes(layout):
        return None
    gone = [axis for axis in dropped if shape[axis] == 1]
    return {axis: axis - sum(one < axis for one in gone) for axis in cut}


def reshaped_axes(
    before: Sequence[int], after: Sequence[int], cut: Sequence[int], single: Collection[int] = ()
) -> Axes | None:
    """Return where cut axes are after a reshape; None where one does not stay an axis.

    An axis stays one where as many items lie before it, and after it, as did. Beside a new axis of
    length 1 it may not: one of the two is of that length on this rank alone, such as that of heads.
    Where there were axes of length 1 before, the one that is as far from the end, else from the
    start, is taken, as with longer axes on other ranks. Where a rank with one item could not tell
    which it is, no rank can.

    Parameters
    ----------
    before, after
        Shapes of this rank's block.
    cut
        Axes of ``before``.
    single
        Those of them that are of length 1 on some rank.
    """
    axes = {}
    for axis in cut:
        lead, trail = prod(before[:axis]), prod(before[axis + 1 :])
        fits = _fitting(after, before[axis], lead, trail)
        if not fits:
            return None
        from_end = axis - len(before) + len(after)
        found = axes[axis] = next((k for k in (from_end, axis) if k in fits), fits[0])
        if _ones(_with(after, found, 2), lead, trail) > _ones(_with(before, axis, 2), lead, trail):
            return None
        if axis in single:
            there = _with(before, axis, 1), _with(after, found, 1)
            if any(len(_fitting(shape, 1, lead, trail)) > 1 for shape in there):
                return None
    return axes if len(set(axes.values())) == len(axes) else None


def _with(shape: Sequence[int], axis: int, length: int) -> list[int]:
    """Return the shape of another rank's block."""
    return [*shape[:axis], length, *shape[axis + 1 :]]


def _fitting(shape: Sequence[int], own: int, lead: int, trail: int) -> list[int]:
    """Return the axes of a length with so many items before and after them."""
    return [
        k
        for k, length in enumerate(shape)
        if length == own and prod(shape[:k]) == lead and prod(shape[k + 1 :]) == trail
    ]


def _ones(shape: Sequence[int], lead: int, trail: int) -> int:
    """Count the axes of length 1 with at least so many items before and after them."""
    return sum(
        length == 1 and prod(shape[:k]) >= lead and prod(shape[k + 1 :]) >= trail
        for k, length in enumerate(shape)
    )
