"""Memory files, mapped so that the system can use huge pages for them.

Reading memory through pages of 4 KiB is a quarter to a third slower than through huge ones, which
ordinary allocations get. Shared memory gets them only where an administrator has said so, or where
a process collapses its own pages: that needs the file and the addresses aligned alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_MAP_FIXED = 0x10  # Linux, as those below
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels refuse it and pages are touched on first use
_MADV_COLLAPSE = 25  # Linux 6.1
_LARGEST_HUGE = 8 << 20  # larger huge pages (of 512 MiB, on some ARM) are left alone


@cache
def huge_page() -> int:
    """Return the bytes of a huge page, or of a usual one where the system has none of use."""
    with contextlib.suppress(OSError, ValueError):
        size = int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
        if mmap.PAGESIZE <= size <= _LARGEST_HUGE:
            return size
    return mmap.PAGESIZE


class Mapping:
    """A memory file in this process's addresses; unmapped when nobody looks at it any more.

    The file's descriptor stays open; ``length`` bytes are mapped, from its beginning on.
    ``address`` is that of the first, a multiple of a huge page. ``bytes`` is the memory, never
    writable through this. An OSError says that there is no room for it.
    """

    def __init__(self, file: int, length: int, *, writable: bool) -> None:
        # Addresses are reserved first, with room to begin at a huge page, then the file is laid
        # over them: they are given back with the reservation.
        self._file = file
        self._length = length
        room = huge_page()
        self._reserved = mmap.mmap(
            -1,
            length + room,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
            prot=mmap.PROT_READ,
        )
        start = np.frombuffer(self._reserved, np.uint8).__array_interface__["data"][0]
        self._head = -start % room
        self.address = start + self._head
        self._protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._lay(mmap.MAP_SHARED)
        self.bytes = memoryview(self._reserved)[self._head : self._head + length]

    def _lay(self, flags: int) -> None:
        """Lay the file over the addresses."""
        flags |= _MAP_FIXED | _MAP_NORESERVE
        found = _libc().mmap(self.address, self._length, self._protection, flags, self._file, 0)
        if found != self.address:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def make_private(self) -> None:
        """Let what this process writes from now on be its own, not the file's."""
        self._lay(mmap.MAP_PRIVATE)

    def madvise(self, advice: int, offset: int, length: int) -> None:
        """Advise the system about a stretch."""
        self._reserved.madvise(advice, self._head + offset, length)

    def populate(self, offset: int, length: int) -> None:
        """Give a stretch of the file pages, huge ones where that is possible."""
        huge = huge_page()
        start, stop = -(-offset // huge) * huge, (offset + length) // huge * huge
        if huge > mmap.PAGESIZE and start < stop:
            for first in range(start, stop, huge):
                os.posix_fallocate(self._file, first, mmap.PAGESIZE)
            with contextlib.suppress(OSError):  # the rest of them comes as small pages
                self.madvise(_MADV_COLLAPSE, start, stop - start)
        os.posix_fallocate(self._file, offset, length)
        with contextlib.suppress(OSError):
            self.madvise(_MADV_POPULATE_WRITE, offset, length)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    return libc
