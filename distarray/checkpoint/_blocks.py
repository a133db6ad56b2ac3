"""What this rank holds of an array that is saved or loaded, in memory of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.checkpoint._boxes import whole
from distarray.checkpoint._dtypes import Spec
from distarray.comm import _backend, _memory, copy_box
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.typing import Box, Shape


def within(array: Any, box: Box) -> Any:
    """Return a view of the items in a box of local indices; of 0-d arrays as well."""
    return array[(*boxes.slices(box), ...)]


class Piece:
    """A box of a global array and the memory, NumPy's or CuPy's, in which this rank holds it."""

    __slots__ = ("array", "box")

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
        found = within(self.array, boxes.shift(box, self.box))
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

    def opened(self) -> np.ndarray:
        """Return memory of the host to be filled."""
        if self.is_on_host:
            return self.array
        return np.empty(self.array.shape, self.array.dtype)

    def close(self, filled: np.ndarray) -> None:
        """Take what was filled."""
        if filled is not self.array:
            self.array.set(filled)


def has_overlap(piece: Piece) -> bool:
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
    is_torn
        Whether the pieces are not what the layout says, but parts of the array in another order.
    """

    __slots__ = ("is_outside", "is_same", "is_torn", "layout", "pieces", "shape", "spec")

    def __init__(
        self,
        spec: Spec,
        shape: Sequence[int],
        pieces: Sequence[Piece],
        layout: Layout | None = None,
        is_same: bool = False,
        is_outside: bool = False,
        is_torn: bool = False,
    ) -> None:
        self.spec = spec
        self.shape: Shape = tuple(shape)
        self.pieces = [piece for piece in pieces if not boxes.is_empty(piece.box)]
        self.layout = layout
        self.is_same = is_same
        self.is_outside = is_outside
        self.is_torn = is_torn

    @classmethod
    def of_whole(cls, spec: Spec, array: Any) -> Block:
        """Return the block of an array that every rank holds."""
        return cls(spec, array.shape, [Piece(whole(array.shape), array)], is_same=True)
