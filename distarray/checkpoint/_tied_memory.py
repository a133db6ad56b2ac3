"""Memory that is filled from several names: what they share, and whether that is alike.

Weights that are tied here may have been untied where they were saved, or written there twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from distarray.checkpoint.storage._blocks import Block, row_ranges
from distarray.checkpoint.storage._chunks import READ_BYTES, Reader
from distarray.checkpoint.storage._dtypes import Spec, dtype_of_spec, has_filling
from distarray.checkpoint.storage._manifest import Entry
from distarray.core import digest
from distarray.layout import box as boxes
from distarray.typing import Box, Shape


class MemoryPiece(NamedTuple):
    """A box of an array of a checkpoint, and the memory that it is to be read into.

    Attributes
    ----------
    low, high
        The first byte of the memory, and the one past the last.
    order
        The axes as they lie in memory, the slowest first; None where there are gaps.
    """

    name: str
    entry: Entry
    spec: Spec
    box: Box
    low: int
    high: int
    start: int
    shape: Shape
    strides: tuple[int, ...]
    order: tuple[int, ...] | None

    @property
    def key(self) -> object:
        """The same for memory of the same items, in whatever shape."""
        if self.order is not None:
            return self.low, self.high, str(self.spec)
        return self.start, self.shape, self.strides, str(self.spec)

    @property
    def lies(self) -> object:
        """The same where items of the same indices have the same memory."""
        return self.box, self.entry.shape, self.start, self.shape, self.strides


def memory_of(name: str, entry: Entry, block: Block) -> list[MemoryPiece]:
    """Return the memory of the pieces of a block."""
    itemsize = dtype_of_spec(block.spec).itemsize
    found = []
    for piece in block.pieces:
        start, shape, strides = piece.memory()
        reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
        low = start + sum(one for one in reach if one < 0)
        high = start + sum(one for one in reach if one > 0) + itemsize
        order = _order(shape, strides, itemsize)
        found.append(
            MemoryPiece(name, entry, block.spec, piece.box, low, high, start, shape, strides, order)
        )
    return found


def _order(shape: Shape, strides: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    order = sorted(range(len(shape)), key=lambda i: (shape[i] == 1, strides[i]), reverse=True)
    expected = itemsize
    for axis in reversed(order):
        if shape[axis] > 1:
            if strides[axis] != expected:
                return None
            expected *= shape[axis]
    return tuple(order)


def find_overlaps(pieces: list[MemoryPiece]) -> Iterator[tuple[MemoryPiece, MemoryPiece]]:
    """Yield which pieces, of different names, share memory."""
    before: list[MemoryPiece] = []
    for piece in sorted(pieces, key=lambda one: one.low):
        before = [one for one in before if one.high > piece.low]
        for one in before:
            if one.name != piece.name and _share_items(one, piece):
                yield one, piece
        before.append(piece)


class _Memory:
    """What NumPy sees as an array; nobody looks at its items."""

    def __init__(self, piece: MemoryPiece) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{dtype_of_spec(piece.spec).itemsize}",
            "data": (piece.start, True),
            "shape": piece.shape,
            "strides": piece.strides,
        }


def _share_items(one: MemoryPiece, other: MemoryPiece) -> bool:
    if one.order is not None and other.order is not None:
        return True  # all bytes between the bounds are theirs
    first, second = np.asarray(_Memory(one)), np.asarray(_Memory(other))
    shares: Any = np.shares_memory
    try:
        return bool(shares(first, second, max_work=10**6))
    except np.exceptions.TooHardError:
        return True


def values_differ(reader: Reader, one: MemoryPiece, other: MemoryPiece) -> bool:
    """Tell whether the checkpoint has different values for items that share memory.

    True also where that cannot be told: where the memory has gaps, or items that meet in part.
    """
    itemsize = dtype_of_spec(one.spec).itemsize
    if one.spec != other.spec or one.entry.spec != other.entry.spec:
        return True
    if one.lies == other.lies:
        return one.entry is not other.entry and _differ_in(reader, one, other)
    if one.order is None or other.order is None or (one.low - other.low) % itemsize:
        return True
    start, stop = max(one.low, other.low), min(one.high, other.high)
    step = max(1, READ_BYTES // itemsize) * itemsize
    return any(
        _values(reader, one, low, min(low + step, stop))
        != _values(reader, other, low, min(low + step, stop))
        for low in range(start, stop, step)
    )


def _values(reader: Reader, piece: MemoryPiece, low: int, high: int) -> bytes:
    """Return what the checkpoint has for some bytes of the memory of a piece."""
    order = piece.order or ()
    itemsize = dtype_of_spec(piece.spec).itemsize
    shape = tuple(piece.shape[axis] for axis in order)
    assert prod(shape) * itemsize == piece.high - piece.low  # there are no gaps
    found = []
    first, last = (low - piece.low) // itemsize, (high - piece.low) // itemsize
    for run in boxes.runs(shape, first, last):
        at = dict(zip(order, run, strict=True))
        box = tuple(
            (start + at[axis][0], start + at[axis][1]) for axis, (start, _) in enumerate(piece.box)
        )
        values = np.empty(boxes.shape(box), piece.entry.dtype)
        reader.read(piece.entry, box, values)
        found.append(values.transpose(order).reshape(-1))
    return _bytes(np.concatenate(found))  # runs may end elsewhere in an array of another shape


def _differ_in(reader: Reader, one: MemoryPiece, other: MemoryPiece) -> bool:
    """Tell whether two arrays differ in a box, which both have in the same memory."""
    step = max(1, READ_BYTES // one.entry.dtype.itemsize)
    for box in row_ranges(one.box, step):
        found = []
        for entry in (one.entry, other.entry):
            values = np.empty(boxes.shape(box), entry.dtype)
            reader.read(entry, box, values)
            found.append(_bytes(values))
        if found[0] != found[1]:
            return True
    return False


def _bytes(values: np.ndarray) -> bytes:
    """Return what tells values, and not what fills up their items, from others."""
    return digest(values).encode() if has_filling(values.dtype) else values.tobytes()
