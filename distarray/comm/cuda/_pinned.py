"""Pinned host memory, which a GPU copies from and to by itself, kept for reuse.

To pin memory takes the system longer than to fill it. A buffer goes back when the last array that
looks at it is gone: also the one that a message still under way holds.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Final

import numpy as np

from distarray.errors import OutOfMemoryError

KEPT_BYTES: Final = 128 << 20
"""Most that is kept idle; not measured, any number of this size does."""

_SMALLEST: Final = 64 << 10
"""Bytes of the smallest piece; any number of this size does."""


class _Lease:
    """Pinned memory that an array uses; it goes back when the array is gone."""

    def __init__(self, pool: PinnedPool, memory: np.ndarray) -> None:
        self._pool = pool
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        # May run inside any allocation (garbage collection) or thread: only an atomic append here.
        self._pool.returned.append(self._memory)


class PinnedPool:
    """Buffers of pinned memory, of powers of two; ``kept`` bytes at most stay idle."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self.kept = kept
        self.returned: deque[np.ndarray] = deque()
        self._idle: dict[int, list[np.ndarray]] = {}
        self._idle_bytes = 0
        self._in_use = 0
        self._lock = threading.Lock()

    def take(self, xp: Any, nbytes: int) -> np.ndarray:
        """Return ``nbytes`` bytes that CuPy, ``xp``, pins, uninitialised."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            self._collect()
            idle = self._idle.get(size)
            if idle:
                memory = idle.pop()
                self._idle_bytes -= size
            else:
                memory = self._allocate(xp, size)
            self._in_use += size
        return np.asarray(_Lease(self, memory))[:nbytes]

    @property
    def idle(self) -> int:
        """The bytes that are kept for the next."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    @property
    def in_use(self) -> int:
        """The bytes that arrays hold."""
        with self._lock:
            self._collect()
            return self._in_use

    def trim(self) -> None:
        """Give back what is idle."""
        with self._lock:
            self._collect()
            self._idle.clear()
            self._idle_bytes = 0

    def _allocate(self, xp: Any, size: int) -> np.ndarray:
        for last in (False, True):
            try:
                return np.frombuffer(xp.cuda.alloc_pinned_memory(size), np.uint8, size)
            except xp.cuda.runtime.CUDARuntimeError as error:
                if last:
                    raise OutOfMemoryError(
                        f"cannot have {size} bytes of pinned host memory for values on their way "
                        f"between GPUs ({error}): {self._in_use} bytes are on their way already; "
                        "wait for requests before starting more, or raise the limit of locked "
                        "memory (ulimit -l)"
                    ) from error
                self._idle.clear()
                self._idle_bytes = 0
                xp.get_default_pinned_memory_pool().free_all_blocks()
        raise AssertionError("unreachable")

    def _collect(self) -> None:
        """Take in what arrays have returned; what is too much goes back to CuPy."""
        while self.returned:
            memory = self.returned.popleft()
            self._in_use -= memory.size
            if self._idle_bytes + memory.size <= self.kept:
                self._idle.setdefault(memory.size, []).append(memory)
                self._idle_bytes += memory.size


pool = PinnedPool()
"""That of the process."""


def _forget_pool() -> None:
    """Leave the parent's memory to the parent: a forked child has no GPU to copy with."""
    pool.__init__(pool.kept)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
