"""`cupy.cuda.pinned_memory` of the stand-in: host memory in pages of its own."""

from __future__ import annotations

import ctypes
import mmap
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from cupy._device import operations


class PinnedMemory:
    """An allocation of host memory that a device copies from and to by itself."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self.map = mmap.mmap(-1, max(size, 1))
        self.ptr = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        operations["hostAlloc"] += 1


class PinnedMemoryPointer(mmap.mmap):
    """A buffer of pinned memory: `np.frombuffer` takes it, as it does CuPy's."""

    mem: Any
    ptr: int
    _size: int

    def __new__(cls, mem: Any, offset: int) -> PinnedMemoryPointer:
        made = super().__new__(cls, -1, max(mem.size, 1))
        made.mem = mem
        made.ptr = ctypes.addressof(ctypes.c_char.from_buffer(made))
        made._size = mem.size
        return made

    def size(self) -> int:
        """Return the number of bytes."""
        return self._size


class _Size:
    def __init__(self, size: int) -> None:
        self.size = size


def _malloc(size: int) -> PinnedMemoryPointer:
    operations["hostAlloc"] += 1
    return PinnedMemoryPointer(_Size(size), 0)


class PinnedMemoryPool:
    """Gives pinned memory out; what nobody holds is gone."""

    def __init__(self, allocator: Callable[[int], Any] = _malloc) -> None:
        self._allocator = allocator
        self._free: defaultdict[int, list[Any]] = defaultdict(list)

    def malloc(self, size: int) -> Any:
        """Return a buffer of at least so many bytes, a power of two of at least 512."""
        return self._allocator(max(512, 1 << (size - 1).bit_length()) if size else 0)

    def free_all_blocks(self) -> None:
        """Give idle memory back."""

    def n_free_blocks(self) -> int:
        """Return how many idle blocks there are."""
        return 0


default_pool = PinnedMemoryPool()
_current: Callable[[int], Any] = default_pool.malloc


def alloc_pinned_memory(size: int) -> Any:
    """Return pinned memory from the current allocator."""
    return _current(size)


def set_pinned_memory_allocator(allocator: Callable[[int], Any] | None = None) -> None:
    """Set the allocator."""
    global _current
    _current = _malloc if allocator is None else allocator
