"""Arithmetic on boxes in files: where their items lie, how they are cut, whether they tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from distarray.layout import box as boxes
from distarray.layout import chunk
from distarray.typing import Box, Shape


class Run(NamedTuple):
    """Items that lie one after another in a C-contiguous array, and the box that they fill."""

    start: int
    box: Box


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all items."""
    return tuple((0, size) for size in shape)


def runs(shape: Shape, start: int, stop: int) -> Iterator[Run]:
    """Yield, in order, boxes that tile items ``start`` to ``stop`` of a C-contiguous array.

    They are fewer than twice the number of axes.
    """
    if start >= stop:
        return
    if not shape:
        yield Run(start, ())
        return
    inner = prod(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    if first == last:
        yield from _row(shape, first, head, tail)
        return
    if head:
        yield from _row(shape, first, head, inner)
        first += 1
    if first < last:
        yield Run(first * inner, ((first, last), *whole(shape[1:])))
    if tail:
        yield from _row(shape, last, 0, tail)


def _row(shape: Shape, row: int, start: int, stop: int) -> Iterator[Run]:
    offset = row * prod(shape[1:])
    for run in runs(shape[1:], start, stop):
        yield Run(offset + run.start, ((row, row + 1), *run.box))


def span(shape: Shape, box: Box) -> tuple[int, int]:
    """Return from which item to which those of a box, not empty, lie in a C-contiguous array."""
    first = last = 0
    for size, (start, stop) in zip(shape, box, strict=True):
        first = first * size + start
        last = last * size + stop - 1
    return first, last + 1


def together_from(shape: Shape, box: Box, gap: int) -> int:
    """Return from which axis on the items of a box lie together in a C-contiguous array.

    That is, with gaps of fewer than ``gap`` items; 0 where all of them do.
    """
    length = stride = 1
    for axis in reversed(range(len(shape))):
        start, stop = box[axis]
        if stop - start > 1 and stride - length >= gap:
            return axis + 1
        length += (stop - start - 1) * stride
        stride *= shape[axis]
    return 0


def clusters(shape: Shape, box: Box, gap: int) -> Iterator[Box]:
    """Yield boxes, in order, that make up a box and whose items lie together, as above."""
    axis = together_from(shape, box, gap)
    for index in product(*(range(*interval) for interval in box[:axis])):
        yield (*((i, i + 1) for i in index), *box[axis:])


def cut(box: Box, count: int) -> list[Box]:
    """Return a box cut into at most ``count`` boxes of about one size, along one axis."""
    shape = boxes.shape(box)
    axis = next((i for i, size in enumerate(shape) if size >= count), None)
    if axis is None:
        if not shape:
            return [box]
        axis = shape.index(max(shape))
        count = max(shape[axis], 1)
    start = box[axis][0]
    parts = [chunk(shape[axis], (count,)).bounds(i) for i in range(count)]
    return [
        (*box[:axis], (start + a, start + b), *box[axis + 1 :])
        for a, b in parts
        if a < b or count == 1
    ]


def tiles(shape: Shape, found: Sequence[Box]) -> bool:
    """Tell whether boxes, no two the same and none empty, tile the box of all items."""
    if sum(map(boxes.volume, found)) != prod(shape):
        return False
    if not all(boxes.contains(whole(shape), box) for box in found):
        return False
    for axis in range(len(shape)):
        intervals = sorted({box[axis] for box in found})
        if any(a[1] > b[0] for a, b in pairwise(intervals)):
            return _are_disjoint(found)
    return True  # they are distinct cells of one grid


def _are_disjoint(found: Sequence[Box]) -> bool:
    """Compare only boxes that overlap along the first axis."""
    ordered = sorted(found)
    for i, box in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if other[0][0] >= box[0][1]:
                break
            if boxes.intersect(box, other) is not None:
                return False
    return True
