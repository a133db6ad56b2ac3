"""The memory that a channel works through: slots, and the arenas of other processes of the node.

A slot is a header of 64-bit words and a payload. The header carries the number of the round, the
token of what its rank is doing, and the description of a block: its kind, item size, number of
axes, offset in the owner's arena, shape and strides.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from struct import pack_into
from typing import Any

import numpy as np

from distarray.comm.shared_memory._hugepages import Mapping

INLINE_BYTES = 128 * 1024
"""Payloads up to this size travel inside the slot: two blocks as NumPy allocates them, at most
(`_memory.POOLED_BYTES`). To copy so much takes 3 us on Zen 5, as measured; what it spares, a place
in the arena for each and a round at the end, took 9 to 16."""

INLINE_BLOCK = 64 * 1024
"""A block up to this size does. Larger ones lie in the arena, mostly, and need no copy there."""

MAX_NDIM = 64  # NumPy's own limit
HEADER = (8 + 2 * MAX_NDIM) * 8  # the words named below, then shape and strides
SLOT = HEADER + INLINE_BYTES
ROUND, TOKEN, KIND, SIZE, NDIM, OFFSET, SHAPE = range(7)
GONE = HEADER // 8 - 1  # set by a rank that has come to the end of the program
CORE = GONE - 1  # on which core a rank has run lately, counted from 1; 0 where nobody knows
_DESCRIBED = 5  # blocks of up to so many axes are described by one run of bytes
_DESCRIPTION = slice(KIND * 8, (SHAPE + 2 * _DESCRIBED) * 8)
_KEPT = 256  # descriptions whose arrays are kept, per slot; any number of this size does
BARRIER, MISMATCH, PROBE = -1, -2, -3  # tokens of the channel itself
BYTES, BLOCK_INLINE, BLOCK_IN_ARENA, BLOCK_STAGED, BLOCK_ON_DEVICE = range(5)


class Slot:
    """One slot: its header as words, the description of a block in it, and its payload."""

    __slots__ = ("bytes", "description", "known", "words")

    def __init__(self, memory: memoryview, offset: int) -> None:
        header = memory[offset : offset + HEADER]
        self.words = header.cast("q")
        self.description = header[_DESCRIPTION]
        self.bytes = memory[offset + HEADER : offset + SLOT]
        self.known: dict[Any, Any] = {}  # arrays of blocks, by what describes them

    def _keep(self, key: Any, value: Any) -> None:
        if len(self.known) >= _KEPT:
            self.known.clear()
        self.known[key] = value

    def put(self, block: np.ndarray) -> None:
        """Copy a block into the payload, and describe it."""
        key = (block.shape, block.dtype)
        found = self.known.get(key)
        if found is None:
            inline: np.ndarray = np.ndarray(block.shape, block.dtype, self.bytes)
            self.description[:] = bytes(len(self.description))
            describe(self.words, BLOCK_INLINE, inline, 0)
            if block.ndim <= _DESCRIBED:
                self._keep(key, (inline, bytes(self.description)))
        else:
            inline, self.description[:] = found
        inline[...] = block

    def array(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the block that lies in the payload."""
        return self._described(dtype, lambda shape, _: np.ndarray(shape, dtype, self.bytes))

    def lent(self, memory: PeerMemory, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the block that lies in the arena of the slot's owner."""

        def find(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
            offset = self.words[OFFSET]
            reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
            buffer = memory.map_up_to(offset + reach + dtype.itemsize)
            return np.ndarray(shape, dtype, buffer, offset, strides)

        return self._described(dtype, find)

    def extent(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape and the strides of the block that is described."""
        words = self.words
        ndim = words[NDIM]
        return tuple(words[SHAPE : SHAPE + ndim]), tuple(words[SHAPE + ndim : SHAPE + 2 * ndim])

    def _described(self, dtype: np.dtype[Any], find: Callable[..., np.ndarray]) -> np.ndarray:
        """Return what `find` makes of shape and strides, or has made of the same description."""
        key = (bytes(self.description), dtype)
        found: np.ndarray | None = self.known.get(key)
        if found is None:
            found = find(*self.extent())
            if found.ndim <= _DESCRIBED:
                self._keep(key, found)
        return found


class PeerMemory:
    """A peer's arena, mapped read-only as far as it has been needed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._length = os.fstat(self._file).st_size
        self._bytes = memoryview(b"")

    def map_up_to(self, end: int) -> memoryview:
        """Return memory that covers the first ``end`` bytes."""
        if len(self._bytes) < end:
            length = min(self._length, max(256 << 20, 1 << (end - 1).bit_length()))
            # The shorter mapping lives on while views of it do.
            self._bytes = Mapping(self._file, length, writable=False).bytes
        return self._bytes

    def slot(self, offset: int, i: int) -> Slot:
        """Return slot ``i`` of the pair at ``offset``."""
        return Slot(self.map_up_to(offset + 2 * SLOT), offset + i * SLOT)


def describe(words: memoryview, kind: int, block: np.ndarray, offset: int) -> None:
    """Write a block's description into the header."""
    ndim = block.ndim
    pack_into(
        f"{SHAPE - KIND + 2 * ndim}q",
        words,
        KIND * 8,
        kind,
        block.itemsize,
        ndim,
        offset,
        *block.shape,
        *block.strides,
    )
