"""Enumerate the blocks of a layout that meet a box, without looking at the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from distarray.layout import Layout
from distarray.typing import Box, Coordinate

NONE_FIXED: Mapping[int, int] = {}

Piece = tuple[tuple[int, ...], int, int, int, int]
"""Digits (the block's coordinate on the mesh axes that cut one array axis), start and stop of the
overlap and start of the block in global indices, flat index of the block."""


def pieces(
    layout: Layout, axis: int, start: int, stop: int, fixed: Mapping[int, int] = NONE_FIXED
) -> list[Piece]:
    """Return what the blocks along one array axis share with ``start..stop``.

    Parameters
    ----------
    layout
        Whose blocks.
    axis
        Array axis.
    start, stop
        Interval in global indices.
    fixed
        Coordinates that the blocks must have, by mesh axis. Blocks with others are skipped, not
        filtered out: the work is proportional to the number of pieces returned.

    Returns
    -------
    list
        One piece per block with a non-empty overlap, in ascending order.
    """
    if stop <= start:
        return []
    cutting = layout.sharding_axes(axis)
    if not cutting:
        return [((), start, stop, 0, 0)]
    partition = layout.partition(axis)
    owners: Iterable[int] = partition.owners(start, stop)
    sizes = [layout.mesh.shape[i] for i in cutting]
    wanted = [fixed.get(i) for i in cutting]
    if any(digit is not None for digit in wanted):
        owners = _with_digits(owners, sizes, wanted)
    single = len(cutting) == 1
    found: list[Piece] = []
    for block in owners:
        lower, upper = partition.bounds(block)
        low, high = max(lower, start), min(upper, stop)
        if low < high:
            found.append(((block,) if single else digits(block, sizes), low, high, lower, block))
    return found


def digits(block: int, sizes: list[int]) -> tuple[int, ...]:
    """Return a flat block index as a coordinate on the mesh axes that cut, first cut first."""
    found = []
    for size in reversed(sizes):
        block, digit = divmod(block, size)
        found.append(digit)
    found.reverse()
    return tuple(found)


def overlaps(
    layout: Layout, box: Box, fixed: Mapping[int, int] = NONE_FIXED
) -> Iterator[tuple[list[int], Box, Coordinate]]:
    """Yield the blocks that meet a box: mesh coordinate, overlap, first index of the block.

    The coordinate is 0 on mesh axes that cut no array axis; the list is the caller's to change.
    """
    per_axis = [pieces(layout, axis, start, stop, fixed) for axis, (start, stop) in enumerate(box)]
    ndim = layout.mesh.ndim
    cutting = [layout.sharding_axes(axis) for axis in range(len(box))]
    for combination in product(*per_axis):
        coordinate = [0] * ndim
        for mesh_axes, piece in zip(cutting, combination, strict=True):
            for mesh_axis, digit in zip(mesh_axes, piece[0], strict=True):
                coordinate[mesh_axis] = digit
        yield (
            coordinate,
            tuple([(piece[1], piece[2]) for piece in combination]),
            tuple([piece[3] for piece in combination]),
        )


def _with_digits(
    owners: Iterable[int], sizes: list[int], wanted: list[int | None]
) -> Iterator[int]:
    """Yield the flat block indices of an ascending run that have the wanted digits."""
    if not isinstance(owners, range):
        yield from _filtered(owners, sizes, wanted)
    elif len(owners):
        yield from _descend(owners[0], owners[-1] + 1, 0, sizes, wanted)


def _filtered(owners: Iterable[int], sizes: list[int], wanted: list[int | None]) -> Iterator[int]:
    for block in owners:
        found = digits(block, sizes)
        if all(want is None or want == digit for want, digit in zip(wanted, found, strict=True)):
            yield block


def _descend(
    low: int, high: int, base: int, sizes: list[int], wanted: list[int | None]
) -> Iterator[int]:
    """Yield the matching indices in ``low..high`` among those that begin at ``base``."""
    if not sizes:
        yield base
        return
    below = 1
    for size in sizes[1:]:
        below *= size
    first = max((low - base) // below, 0)
    last = min((high - 1 - base) // below, sizes[0] - 1)
    want = wanted[0]
    if want is not None:
        first, last = max(first, want), min(last, want)
    for digit in range(first, last + 1):
        yield from _descend(low, high, base + digit * below, sizes[1:], wanted[1:])
