"""The arena of a process: a pool of warm, page-aligned, reusable blocks in one memory file.

The file is sparse, anonymous and mapped once. The other processes of a node can map it too, and
copy straight from a block (see `_channel`). A block goes back to the pool when the last array
that looks at it is gone, never earlier: the array's ``base`` is the lease. Returned blocks keep
their pages, because touching fresh pages costs several times what the arithmetic on them costs;
the pool keeps at most `Arena.limit` bytes idle and gives the rest back to the system.

Stretches of several huge pages begin at one, so that the system can use them; the blocks in them
do not: each begins some lines before the last one, modulo a page. Blocks that all begin alike
compete for the same sets of the caches, and some processors (AMD's Zen 3) take a load for one of
what a store to the same offset of another page has just written, and let it wait.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import bisect_left, insort
from collections import deque
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from distarray.comm._launcher import count_local_ranks
from distarray.comm._settings import setting
from distarray.comm.kernels._loop_nest import address_of
from distarray.comm.shared_memory._hugepages import Mapping, huge_page
from distarray.comm.shared_memory._node import available, memory
from distarray.errors import ArgumentError, OutOfMemoryError

_PAGE = mmap.PAGESIZE
_MADV_REMOVE = 9  # Linux
_STAGGER = 5 * 64  # an odd number of cache lines: all of a page's are used before one comes again
_CHECKED_BYTES = (
    64 << 20
)  # of so many fresh bytes, at once or in sum, the system is asked first: a guess

_EVICTED_BYTES = 64 << 20
"""Bytes of blocks after which the caches of others hold something else.

Twice the last cache of Zen 4, where it takes three times as long to write over 16 MiB that others
have read, and no longer to write over 64 MiB.
"""

HAS_MEMORY_FILES = hasattr(os, "memfd_create")  # Linux; elsewhere there is no arena


class MemoryStats(NamedTuple):
    """What a pool of this process holds, in bytes.

    Examples
    --------
    >>> import distarray as da
    >>> found = da.memory.stats()
    >>> found.idle <= found.limit
    True
    """

    in_use: int
    """Held by arrays that are alive."""
    idle: int
    """Returned by arrays and kept warm for the next."""
    peak: int | None
    """Largest ``in_use`` so far; None where it is not counted."""
    limit: int | None
    """Most that is kept idle; None where nothing bounds it."""


class Lease:
    """A stretch of the arena that an array uses; it goes back when the array is gone."""

    __slots__ = ("__array_interface__", "__weakref__", "_arena", "_stretch", "was_lent")

    def __init__(
        self,
        arena: Arena,
        stretch: tuple[int, int, int],
        nbytes: int,
        shift: int,
        was_lent: tuple[int, int] | None,
    ) -> None:
        self._arena = arena
        self._stretch = stretch
        """Where it begins, the bytes that were asked for in its class, and those it has."""
        self.was_lent = was_lent
        """From where to where other ranks have read what lay here before, as addresses."""
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (arena.address + stretch[0] + shift, False),
        }

    def lend(self, start: int, stop: int) -> None:
        """Note that other ranks read what lies between two addresses."""
        lent, offset = self._arena.lent, self._stretch[0]
        first, last, _ = lent.get(offset, (start, stop, 0))
        lent[offset] = min(first, start), max(last, stop), self._arena.leased

    def __del__(self) -> None:
        # May run inside any allocation (garbage collection) or thread: only an atomic append here.
        self._arena.returned.append(self._stretch)


class Arena:
    """The sparse memory file of a process: which stretches are in use, idle, or empty."""

    def __init__(self) -> None:
        physical = os.sysconf("SC_PHYS_PAGES") * _PAGE
        self.identity = int.from_bytes(os.urandom(7), "little")
        self.file = os.memfd_create("distarray", os.MFD_CLOEXEC)
        self.map = _map_file(self.file, 1 << (4 * physical - 1).bit_length())
        self.capacity = len(self.map.bytes)
        self.address = self.map.address
        self.returned: deque[tuple[int, int, int]] = deque()
        self.lent: dict[int, tuple[int, int, int]] = {}
        """What others have read of stretches, and how much had been leased when they did."""
        self.leased = 0  # bytes, in all
        self._lock = threading.Lock()
        self._idle: dict[int, list[int]] = {}  # size -> offsets, last returned is used first
        self._idle_order: deque[tuple[int, int]] = deque()  # oldest first; may be stale
        self._idle_at: dict[int, int] = {}  # offset -> size
        self._empty: list[tuple[int, int]] = []  # stretches without pages, sorted by offset
        self._top = 0
        self._in_use = 0
        self._idle_bytes = 0
        self._unasked = 0  # bytes of fresh pages since the system was asked what it has left
        self._peak = 0
        self._shift = 0  # where in its first page the last large block began
        self.limit = _default_limit()

    def lease(self, nbytes: int) -> Lease | None:
        """Return a stretch of at least ``nbytes`` bytes, warm if one was returned that suits.

        None where the addresses of the arena do not suffice.
        """
        size = _size_class(nbytes)
        with self._lock:
            held, offset = size, self._take_returned(size)
            if self.returned:
                self._collect()
            if offset is None:
                idle = size if self._idle.get(size) else self._larger_idle(size)
                held = idle or size
                offset = self._take_idle(idle) if idle else self._fresh(size, nbytes)
            if offset is None:
                return None
            self._in_use += size
            self._peak = max(self._peak, self._in_use)
            self.leased += size
            was_lent = None
            if offset in self.lent:
                start, stop, then = self.lent.pop(offset)
                was_lent = (start, stop) if self.leased - then <= _EVICTED_BYTES else None
            shift = 0
            if _begins_at_huge_page(size):
                shift = self._shift = (self._shift - _STAGGER) % _PAGE
        return Lease(self, (offset, size, held), nbytes, shift, was_lent)

    def trim(self, keep: int = 0) -> None:
        """Give idle stretches back to the system until at most ``keep`` bytes stay warm."""
        with self._lock:
            self._collect()
            self._trim(keep)

    def stats(self) -> MemoryStats:
        with self._lock:
            self._collect()
            return MemoryStats(self._in_use, self._idle_bytes, self._peak, self.limit)

    def offset_of(self, array: np.ndarray) -> int | None:
        """Return where an array's first element lies in this arena; None if elsewhere."""
        offset = address_of(array) - self.address
        return offset if 0 <= offset < self.capacity else None

    def _take_returned(self, size: int) -> int | None:
        """Return where the stretch begins that came back last, if it is of this size.

        In loops it mostly is, and goes out again without being listed.
        """
        if not self.returned:
            return None
        offset, used, held = last = self.returned.pop()
        if held != size:
            self.returned.append(last)
            return None
        self._in_use -= used
        return offset

    def _collect(self) -> None:
        """Move what arrays have returned since the last call to the idle lists."""
        while self.returned:
            offset, used, size = self.returned.popleft()
            self._in_use -= used
            self._idle_bytes += size
            self._idle.setdefault(size, []).append(offset)
            self._idle_at[offset] = size
            self._idle_order.append((offset, size))
        if self._idle_bytes > self.limit:
            self._trim(self.limit)
        elif len(self._idle_order) > 64 + 4 * len(self._idle_at):
            live = {o: s for o, s in self._idle_order if self._idle_at.get(o) == s}
            self._idle_order = deque(live.items())

    def _larger_idle(self, size: int) -> int:
        """Return the size of an idle stretch that serves for one of `size`; 0 if there is none.

        It is the smallest of up to twice as much: so what becomes smaller from step to step, as the
        panels of a factorization, leaves no stretch of each size behind.
        """
        sizes = (s for s, offsets in self._idle.items() if offsets and size < s <= 2 * size)
        return min(sizes, default=0)

    def _take_idle(self, size: int) -> int:
        offset = self._idle[size].pop()
        del self._idle_at[offset]
        self._idle_bytes -= size
        return offset

    def _trim(self, keep: int) -> None:
        while self._idle_bytes > keep and self._idle_order:
            offset, size = self._idle_order.popleft()
            if self._idle_at.get(offset) != size:
                continue
            del self._idle_at[offset]
            self._idle[size].remove(offset)
            self._idle_bytes -= size
            self.lent.pop(offset, None)
            self.map.madvise(_MADV_REMOVE, offset, size)
            self._give_empty(offset, size)

    def _fresh(self, size: int, nbytes: int) -> int | None:
        """Return a stretch with new pages; None where the arena has no room for it."""
        self._unasked += size
        left = size
        if self._unasked >= _CHECKED_BYTES:
            self._unasked = 0
            left = available()
            if size + _CHECKED_BYTES > left and self._idle_bytes:
                self._trim(0)
                left = available()
        offset = self._take_empty(size)
        if offset is None:
            return None
        reason = "more than the system has left"
        if size < _CHECKED_BYTES or size <= left:
            try:
                self.map.populate(offset, size)
            except OSError as error:
                reason = str(error.strerror)
                self.map.madvise(_MADV_REMOVE, offset, size)  # what it did get
            else:
                return offset
        self._give_empty(offset, size)
        raise OutOfMemoryError(
            f"cannot have {nbytes} bytes for a local block ({reason}): {self._in_use} bytes are "
            "held by arrays that are alive; use more ranks, a smaller dtype, or drop arrays first"
        )

    def _take_empty(self, size: int) -> int | None:
        """Return a stretch without pages; one of several huge pages begins at one."""
        unit = huge_page() if _begins_at_huge_page(size) else _PAGE
        for i, (start, length) in enumerate(self._empty):
            offset = -(-start // unit) * unit
            if start + length >= offset + size:
                rest = ((start, offset - start), (offset + size, start + length - offset - size))
                self._empty[i : i + 1] = [(first, left) for first, left in rest if left]
                return offset
        offset = -(-self._top // unit) * unit
        if offset + size > self.capacity:
            return None
        skipped, self._top = self._top, offset + size
        if skipped < offset:
            self._give_empty(skipped, offset - skipped)
        return offset

    def _give_empty(self, offset: int, size: int) -> None:
        """Insert an empty stretch, joined with its neighbours."""
        i = bisect_left(self._empty, (offset, 0))
        if i < len(self._empty) and self._empty[i][0] == offset + size:
            size += self._empty.pop(i)[1]
        if i > 0 and sum(self._empty[i - 1]) == offset:
            i -= 1
            start, length = self._empty.pop(i)
            offset, size = start, length + size
        if offset + size == self._top:
            self._top = offset
        else:
            insort(self._empty, (offset, size))


def _map_file(file: int, capacity: int) -> Mapping:
    """Map a sparse file of this size, or of less where the address space is limited."""
    while True:
        os.ftruncate(file, capacity)
        try:
            return Mapping(file, capacity, writable=True)
        except (OSError, ValueError):
            if capacity <= _CHECKED_BYTES:
                raise
            # A quarter, so that the limit leaves room for everything else.
            capacity //= 4


@lru_cache(maxsize=256)  # a tenth of the time of a lease; any number of this size does
def _size_class(nbytes: int) -> int:
    """Round up so that blocks of nearly equal size reuse each other: at most 1/32 more, in pages.

    One that begins at a huge page has another page, to begin anywhere in its first.
    """
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 6))
    size = -(-nbytes // step) * step
    return size + _PAGE if _begins_at_huge_page(size) else size


def _begins_at_huge_page(size: int) -> bool:
    return size >= 2 * huge_page()


def _default_limit() -> int:
    configured = setting("DISTARRAY_POOL_LIMIT")
    if configured:
        if not configured.isdecimal():
            raise ArgumentError(
                f"DISTARRAY_POOL_LIMIT={configured!r} is not a number of bytes; set an integer "
                "such as 4000000000, or unset it"
            )
        return int(configured)
    return memory() // (2 * count_local_ranks())


_arena: Arena | None = None
_arena_lock = threading.Lock()


def arena() -> Arena:
    """Return this process's arena, made on first use."""
    global _arena
    if _arena is None:
        with _arena_lock:
            if _arena is None:
                os.register_at_fork(after_in_child=_forget_arena)
                _arena = Arena()
    return _arena


def _forget_arena() -> None:
    """Leave the parent's arena to the parent: what a forked child writes there is its own.

    It sees what the parent writes later to pages that it has not written itself.
    """
    global _arena, _arena_lock
    if _arena is not None:
        _arena.map.make_private()
    _arena = None
    _arena_lock = threading.Lock()


def take(nbytes: int) -> np.ndarray | None:
    """Return bytes of the arena, uninitialised; None where it has no room for them.

    An OutOfMemoryError says that the system has not enough memory left, and what holds it.
    """
    lease = arena().lease(nbytes)
    return None if lease is None else np.asarray(lease)


def lease_of(array: np.ndarray) -> Lease | None:
    """Return the stretch of the arena that an array lies in, None if elsewhere."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, Lease) else None


def offset_of(array: np.ndarray) -> int | None:
    """Return where an array's first element lies in the arena; None if elsewhere."""
    return None if _arena is None else _arena.offset_of(array)


def holds(array: np.ndarray) -> bool:
    """Tell whether an array lies in the arena, so that others of the node can map its memory."""
    return offset_of(array) is not None


def stats() -> MemoryStats:
    """Return what this process's pool holds."""
    return arena().stats() if HAS_MEMORY_FILES else MemoryStats(0, 0, 0, 0)


def trim(keep: int = 0) -> None:
    """Give idle buffers back to the system until at most ``keep`` bytes stay warm."""
    if _arena is not None:
        _arena.trim(keep)


def set_limit(nbytes: int) -> None:
    """Set how many bytes the pool may keep idle, and trim to it."""
    if HAS_MEMORY_FILES:
        arena().limit = nbytes
        arena().trim(nbytes)
