"""Blocks: what this rank holds of an array that is saved or loaded, in memory of any kind.

Below is the arithmetic on their boxes: where the items lie in files, how boxes are split, whether
they tile an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from distarray.checkpoint.storage._dtypes import Spec
from distarray.comm import _backend, _memory, copy_box
from distarray.layout import Layout, chunk
from distarray.layout import box as boxes
from distarray.typing import Box, Shape


def box_view(array: Any, box: Box) -> Any:
    """Return a view of the items in a box of local indices; of 0-d arrays as well."""
    return array[(*boxes.slices(box), ...)]


class Piece:
    """A box of a global array and the memory, NumPy's or CuPy's, in which this rank holds it."""

    def __init__(self, box: Box, array: Any) -> None:
        self.box = box
        self.array = array

    def memory(self) -> tuple[int, Shape, tuple[int, ...]]:
        """Return where the memory begins, its shape, and its strides in bytes."""
        array = self.array
        start = array.ctypes.data if _backend.is_numpy(array) else array.data.ptr
        return start, tuple(array.shape), tuple(array.strides)

    def part(self, box: Box) -> np.ndarray:
        """Return the values of a box within this one, in host memory; a view where it can be."""
        found = box_view(self.array, boxes.shift(box, self.box))
        return found if _backend.is_numpy(found) else found.get()

    @property
    def is_on_host(self) -> bool:
        """Whether the memory is the host's."""
        return _backend.is_numpy(self.array)

    def copy(self, box: Box) -> np.ndarray:
        """Return the values of a box within this one, in host memory of their own."""
        values = self.part(box)
        if not self.is_on_host:
            return values
        copy = _memory.empty(values.shape, values.dtype)
        copy_box(copy, values)
        return copy

    def host_memory(self) -> np.ndarray:
        """Return memory of the host to be filled."""
        if self.is_on_host:
            return self.array
        return np.empty(self.array.shape, self.array.dtype)

    def close(self, filled: np.ndarray) -> None:
        """Take what was filled."""
        if filled is not self.array:
            self.array.set(filled)


def overlaps_itself(piece: Piece) -> bool:
    """Tell whether items of a piece, none of whose sizes is 0, share memory with each other."""
    _, shape, strides = piece.memory()
    axes = sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1)
    reach = 1  # bytes that may be of the axes so far: strides are multiples of the item's size
    for stride, n in axes:
        if stride < reach:
            return _meets_itself(shape, strides)
        reach = stride * (n - 1) + reach
    return False


def _meets_itself(shape: Shape, strides: Sequence[int]) -> bool:
    """Tell whether two items begin at the same byte, where axes are interleaved."""
    if any(stride == 0 and n > 1 for n, stride in zip(shape, strides, strict=True)):
        return True
    offsets = np.zeros((), np.int64)
    for n, stride in zip(shape, strides, strict=True):
        offsets = np.add.outer(offsets, np.arange(n) * stride)
    return np.unique(offsets).size < offsets.size


class Block:
    """What this rank holds of one array.

    Attributes
    ----------
    spec
        The dtype of its items; the pieces have items of the same size.
    shape
        The global shape.
    pieces
        None of them empty, and no index in two of them.
    layout
        How it is placed; None where every rank has all of it.
    is_same
        Whether every rank passes a whole array of its own, which must be the same everywhere.
    is_outside
        Whether this rank is not in the mesh of the array, and need not know its dtype.
    is_fused
        Whether the pieces are not what the layout says, but shares of each part of fused weights.
    """

    def __init__(
        self,
        spec: Spec,
        shape: Sequence[int],
        pieces: Sequence[Piece],
        layout: Layout | None = None,
        is_same: bool = False,
        is_outside: bool = False,
        is_fused: bool = False,
    ) -> None:
        self.spec = spec
        self.shape: Shape = tuple(shape)
        self.pieces = [piece for piece in pieces if not boxes.is_empty(piece.box)]
        self.layout = layout
        self.is_same = is_same
        self.is_outside = is_outside
        self.is_fused = is_fused

    @classmethod
    def of_whole(cls, spec: Spec, array: Any) -> Block:
        """Return the block of an array that every rank holds."""
        return cls(spec, array.shape, [Piece(boxes.whole(array.shape), array)], is_same=True)


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


def split_box(box: Box, count: int) -> list[Box]:
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


def row_ranges(box: Box, items: int) -> Iterator[Box]:
    """Yield a box in parts along its first axis, of about so many items each."""
    if not box:
        yield box
        return
    (first, last), rest = box[0], box[1:]
    step = max(1, items // max(1, boxes.volume(rest)))
    for start in range(first, last, step):
        yield ((start, min(start + step, last)), *rest)


def tiles(shape: Shape, found: Sequence[Box]) -> bool:
    """Tell whether boxes, no two the same and none empty, tile the box of all items."""
    if sum(map(boxes.volume, found)) != prod(shape):
        return False
    if not all(boxes.contains(boxes.whole(shape), box) for box in found):
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
