"""Axes made of parts, each of which is cut by itself in whole units: the arithmetic of them.

A fused weight is several weights one after another, such as query, key and value, or gate and up.
Every rank holds its share of each part, one after another: the order *by ranks*. In the order *by
parts*, which is that of one process, each part is whole.

A unit is what must not be torn apart: the features of a head, or of all query heads that share one
key. Units are dealt out as `torch.chunk` deals out items.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from distarray.errors import ArgumentError, LayoutError
from distarray.layout import chunk

Units = int | Sequence[int]


def checked_parts(
    size: int, parts: Sequence[int], unit: Units
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the parts of an axis and the unit of each; one part where none are given.

    Raises
    ------
    LayoutError
        The parts do not add up to the axis, or a unit does not divide its part.
    """
    parts = tuple(parts) or (size,)
    if sum(parts) != size or min(parts) < 0:
        raise LayoutError(
            f"parts {parts} add up to {sum(parts)}, but the axis that they make up has {size} items"
        )
    units = (unit,) * len(parts) if isinstance(unit, int) else tuple(unit)
    if len(units) != len(parts):
        raise ArgumentError(
            f"unit={units} for parts {parts}: give one number for all parts, or one for each"
        )
    for part, one in zip(parts, units, strict=True):
        if one < 1 or part % one:
            raise LayoutError(
                f"a part of {part} items is not made of whole units of {one}; parts {parts} need "
                "units that divide them"
            )
    return parts, units


def share(parts: Sequence[int], units: Sequence[int], count: int, rank: int) -> list[slice]:
    """Return which items of the full axis a rank has: one slice per part."""
    found, first = [], 0
    for part, unit in zip(parts, units, strict=True):
        start, stop = chunk(part // unit, (count,)).bounds(rank)
        found.append(slice(first + start * unit, first + stop * unit))
        first += part
    return found


@lru_cache(maxsize=1024)
def order(
    parts: tuple[int, ...], units: tuple[int, ...], count: int
) -> tuple[tuple[slice, ...], ...]:
    """Return which items each rank has, in its order: slices that do not continue each other."""
    found = []
    for rank in range(count):
        own: list[slice] = []
        for piece in share(parts, units, count, rank):
            if own and own[-1].stop == piece.start:
                own[-1] = slice(own[-1].start, piece.stop)
            elif piece.start < piece.stop:
                own.append(piece)
        found.append(tuple(own))
    return tuple(found)


def boundaries(parts: Sequence[int], units: Sequence[int], count: int) -> tuple[int, ...]:
    """Return where the ranks' blocks begin and end in the order by ranks."""
    lengths = [
        sum(piece.stop - piece.start for piece in share(parts, units, count, rank))
        for rank in range(count)
    ]
    return (0, *accumulate(lengths))


def own_share(
    full: torch.Tensor, parts: Sequence[int], units: Sequence[int], count: int, rank: int, axis: int
) -> torch.Tensor:
    """Return a rank's items of a tensor in the order by parts."""
    pieces = share(parts, units, count, rank)
    return torch.cat([full.narrow(axis, p.start, p.stop - p.start) for p in pieces], axis)


def by_ranks(
    full: torch.Tensor, parts: Sequence[int], units: Sequence[int], count: int, axis: int
) -> torch.Tensor:
    """Return a full tensor in the order by ranks, from one in the order by parts."""
    if len(parts) == 1:
        return full
    return torch.cat(
        [own_share(full, parts, units, count, rank, axis) for rank in range(count)], axis
    )


def by_parts(
    gathered: torch.Tensor, parts: Sequence[int], units: Sequence[int], count: int, axis: int
) -> torch.Tensor:
    """Return a full tensor in the order by parts, from one in the order by ranks."""
    if len(parts) == 1:
        return gathered
    lengths = [
        [piece.stop - piece.start for piece in share(parts, units, count, rank)]
        for rank in range(count)
    ]
    pieces = iter(gathered.split([length for one in lengths for length in one], axis))
    held = [[next(pieces) for _ in parts] for _ in range(count)]
    return torch.cat([held[rank][k] for k in range(len(parts)) for rank in range(count)], axis)
