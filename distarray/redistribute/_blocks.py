"""The blocks of layouts: which of them meet a box, and which cuts two layouts have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import prod

from distarray.layout import AbstractMesh, Layout, Partial
from distarray.typing import Box, Coordinate

NONE_FIXED: Mapping[int, int] = {}

Piece = tuple[tuple[int, ...], int, int, int, int]
"""Digits (the block's coordinate on the mesh axes that cut one array axis), start and stop of the
overlap and start of the block in global indices, flat index of the block."""


def is_explicit(layout: Layout, axis: int) -> bool:
    """Tell whether an array axis is split otherwise than by default."""
    boundaries = layout.boundaries
    return boundaries is not None and axis in boundaries


def block_at(layout: Layout, coordinate: Coordinate) -> Box:
    """Return the box that a mesh coordinate holds."""
    return layout.local_box(coordinate) or ()


def block_of(layout: Layout, rank: int) -> Box | None:
    """Return the box that a world rank holds; None outside the mesh."""
    coordinate = layout.mesh.coordinate_of(rank)
    return None if coordinate is None else block_at(layout, coordinate)


def pieces(
    layout: Layout, axis: int, start: int, stop: int, fixed: Mapping[int, int] = NONE_FIXED
) -> list[Piece]:
    """Return what the blocks along one array axis have in common with ``start..stop``, ascending.

    One piece per block with a non-empty overlap. ``fixed`` has coordinates that the blocks must
    have, by mesh axis: blocks with others are skipped, not filtered out, so that the work is
    proportional to the number of pieces returned.
    """
    if stop <= start:
        return []
    cutting = layout.sharding_axes(axis)
    if not cutting:
        return [((), start, stop, 0, 0)]
    partition = layout.partition(axis)
    sizes = [layout.mesh.shape[i] for i in cutting]
    owners: Iterable[int]
    if fixed.keys().isdisjoint(cutting):
        owners = partition.owners(start, stop)
    else:
        wanted = [fixed.get(i) for i in cutting]
        last = partition.owner(stop - 1)
        owners = _with_digits(partition.owner(start), last + 1, 0, sizes, wanted)
    single = len(cutting) == 1
    if single and not is_explicit(layout, axis):  # written out: lists may be long
        step = -(-partition.size // sizes[0])
        return [
            ((i,), max(i * step, start), min((i + 1) * step, stop), i * step, i) for i in owners
        ]
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


def overlaps(layout: Layout, box: Box) -> Iterator[tuple[list[int], Box, Coordinate]]:
    """Yield the blocks that meet a box: mesh coordinate, overlap, first index of the block.

    The coordinate is 0 on mesh axes that cut no array axis; the list is the caller's to change.
    """
    per_axis = [pieces(layout, axis, start, stop) for axis, (start, stop) in enumerate(box)]
    cutting = [layout.sharding_axes(axis) for axis in range(len(box))]
    blank = [0] * layout.mesh.ndim
    for combination in product(*per_axis):
        coordinate = blank.copy()
        shared, origin = [], []
        for mesh_axes, (found, start, stop, first, _) in zip(cutting, combination, strict=True):
            shared.append((start, stop))
            origin.append(first)
            for i, digit in enumerate(found):
                coordinate[mesh_axes[i]] = digit
        yield coordinate, tuple(shared), tuple(origin)


def count_blocks(layout: Layout, axis: int, start: int, stop: int) -> int:
    """Return how many blocks along one array axis share something with ``start..stop``."""
    partition = layout.partition(axis)
    if is_explicit(layout, axis):
        return len(partition.owners(start, stop))
    sizes = [layout.mesh.shape[i] for i in layout.sharding_axes(axis)]
    return _count_chunks(partition.size, sizes, start, stop)


def _count_chunks(size: int, counts: list[int], start: int, stop: int) -> int:
    """Count the non-empty nested chunks of ``range(size)`` in ``start..stop``, in closed form."""
    if start >= stop:
        return 0
    if not counts:
        return 1
    step = -(-size // counts[0])
    first, last = start // step, (stop - 1) // step
    if first == last or len(counts) == 1:
        if len(counts) == 1:
            return last - first + 1
        base = first * step
        return _count_chunks(min(step, size - base), counts[1:], start - base, stop - base)
    tail = last * step
    return (
        _count_chunks(step, counts[1:], start - first * step, step)
        + (last - first - 1) * _count_chunks(step, counts[1:], 0, step)
        + _count_chunks(min(step, size - tail), counts[1:], 0, stop - tail)
    )


def _with_digits(
    low: int, high: int, base: int, sizes: list[int], wanted: list[int | None]
) -> Iterator[int]:
    """Yield the block indices in ``low..high`` that have the wanted digits.

    Those among the blocks that begin at ``base`` and that the remaining sizes count.
    """
    if not sizes:
        yield base
        return
    below = prod(sizes[1:])
    first = max((low - base) // below, 0)
    last = min((high - 1 - base) // below, sizes[0] - 1)
    want = wanted[0]
    if want is not None:
        first, last = max(first, want), min(last, want)
    for digit in range(first, last + 1):
        yield from _with_digits(low, high, base + digit * below, sizes[1:], wanted[1:])


def same_mesh(src: Layout, dst: Layout) -> bool:
    """Tell whether two layouts have the same ranks at the same coordinates."""
    return src.mesh is dst.mesh or _same_ranks(src.mesh.abstract, dst.mesh.abstract)


@lru_cache(maxsize=1024)
def _same_ranks(a: AbstractMesh, b: AbstractMesh) -> bool:
    return a.shape == b.shape and a.flat_ranks == b.flat_ranks


def kept_partial(src: Layout, dst: Layout) -> tuple[int, ...]:
    """Return the mesh axes that are ``Partial`` with one operation before and after."""
    if not src.has_partial or not same_mesh(src, dst):
        return ()
    return tuple(i for i in src.partial_axes if dst.placements[i] is src.placements[i])


def shared_cuts(src: Layout, dst: Layout, axis: int) -> int:
    """Return how many leading cuts of one array axis two layouts on one mesh have in common.

    Blocks made by these cuts are the same in both, so that no value crosses between them.
    """
    before, after = real_cuts(src, axis), real_cuts(dst, axis)
    common = 0
    while common < min(len(before), len(after)) and before[common] == after[common]:
        common += 1
    if not common or not (is_explicit(src, axis) or is_explicit(dst, axis)):
        return common
    while common and _offsets(src, axis, common) != _offsets(dst, axis, common):
        common -= 1
    return common


def real_cuts(layout: Layout, axis: int) -> tuple[int, ...]:
    """Return the mesh axes that cut an array axis into more than one block, first cut first."""
    cuts, shape = layout.sharding_axes(axis), layout.mesh.shape
    return tuple([i for i in cuts if shape[i] > 1])


def _offsets(layout: Layout, axis: int, cuts: int) -> tuple[int, ...]:
    """Return the offsets of the blocks that the leading real cuts make."""
    below = prod(layout.mesh.shape[i] for i in real_cuts(layout, axis)[cuts:])
    return layout.partition(axis).offsets[::below]


def op_of(layout: Layout, mesh_axis: int) -> str:
    """Return the operation of a mesh axis that is ``Partial``."""
    placement = layout.placements[mesh_axis]
    assert type(placement) is Partial
    return placement.op
