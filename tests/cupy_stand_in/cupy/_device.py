"""The memory of make-believe devices: each a sparse memory file of this process, cut as asked.

Addresses are real, so that kernels in a simulator and NumPy views can use them, and another process
can map the file: that is what interprocess handles name. Fresh memory holds bytes that no test
expects, and so does memory that was given back.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct
import threading
from collections import Counter, defaultdict
from typing import Any, ClassVar

import numpy as np

UNIT = 512
CAPACITY = 1 << 36
POISON = 0xA5
_POISONED = 1 << 20  # larger stretches are poisoned at their ends only
_HANDLE = struct.Struct("<QQQQQ24x")

COUNT = int(os.environ.get("CUPY_STAND_IN_DEVICES", "2"))
"""How many devices there are."""
TOTAL = int(os.environ.get("CUPY_STAND_IN_MEMORY", str(4 << 30)))
"""Bytes of memory that each has."""

_identities = itertools.count(1)

operations: Counter[str] = Counter()
"""How often each thing was done that tests count: launches, copies, waits."""


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the status is a number of the runtime."""

    _NAMES: ClassVar = {
        1: ("cudaErrorInvalidValue", "invalid argument"),
        2: ("cudaErrorMemoryAllocation", "out of memory"),
        35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient"),
        100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
        101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
        201: ("cudaErrorDeviceUninitialized", "invalid device context"),
        400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    }

    def __init__(self, status: int) -> None:
        self.status = status
        name, text = self._NAMES.get(status, ("cudaErrorUnknown", "unknown error"))
        super().__init__(f"{name}: {text}")


class Heap:
    """The memory of one device."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.file = os.memfd_create(f"stand-in device {number}", os.MFD_CLOEXEC)
        os.ftruncate(self.file, CAPACITY)
        self.map = mmap.mmap(self.file, CAPACITY)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self.used = 0
        self.live: dict[int, tuple[int, int]] = {}  # offset -> bytes, number of the allocation
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._top = UNIT
        self._lock = threading.RLock()  # the collector may give memory back inside

    def malloc(self, nbytes: int) -> int:
        """Return the address of a new stretch."""
        size = -(-nbytes // UNIT) * UNIT
        with self._lock:
            if self.used + size > TOTAL:
                raise CUDARuntimeError(2)
            free = self._free[size]
            if free:
                offset = free.pop()
            else:
                offset, self._top = self._top, self._top + size
            self.used += size
            self.live[offset] = size, next(_identities)
        self._poison(offset, size)
        return self.address + offset

    def free(self, address: int) -> None:
        """Take a stretch back."""
        offset = address - self.address
        with self._lock:
            if offset not in self.live:
                raise CUDARuntimeError(1)
            size, _ = self.live.pop(offset)
            self._poison(offset, size)  # before another thread may have it
            self.used -= size
            self._free[size].append(offset)

    def allocation_of(self, address: int) -> tuple[int, int, int]:
        """Return offset, size and number of the stretch that holds an address."""
        offset = address - self.address
        with self._lock:
            for start, (size, identity) in self.live.copy().items():
                if start <= offset < start + size:
                    return start, size, identity
        raise CUDARuntimeError(1)

    def _poison(self, offset: int, size: int) -> None:
        if size <= _POISONED:
            self.bytes[offset : offset + size] = POISON
        else:
            self.bytes[offset : offset + UNIT] = POISON
            self.bytes[offset + size - UNIT : offset + size] = POISON


_heaps: dict[int, Heap] = {}
_opened: dict[int, tuple[mmap.mmap, int, int]] = {}  # address -> mapping, device, bytes
_lock = threading.RLock()


def heap(number: int) -> Heap:
    """Return the memory of a device."""
    if not 0 <= number < COUNT:
        raise CUDARuntimeError(101 if COUNT else 100)
    with _lock:
        found = _heaps.get(number)
        if found is None:
            found = _heaps[number] = Heap(number)
        return found


def owner(address: int) -> int:
    """Return the device whose memory holds an address, -1 for host memory."""
    for number, one in _heaps.copy().items():  # other threads add devices, open and close mappings
        if one.address <= address < one.address + CAPACITY:
            return number
    for start, (_, device, size) in _opened.copy().items():
        if start <= address < start + size:
            return device
    return -1


def allocation_of(address: int) -> tuple[int, int, int]:
    """Return base, bytes and number of the allocation that holds an address, as the driver does."""
    one = heap(owner(address))
    start, size, identity = one.allocation_of(address)
    return one.address + start, size, identity


def handle_of(address: int) -> bytes:
    """Return 64 bytes by which another process can map the stretch that holds an address."""
    number = owner(address)
    if number < 0 or address in _opened:
        raise CUDARuntimeError(1)
    one = heap(number)
    start, size, _ = one.allocation_of(address)
    return _HANDLE.pack(os.getpid(), one.file, start, size, number)


def open_handle(handle: bytes) -> int:
    """Map another process's stretch and return its address here."""
    process, file, start, size, number = _HANDLE.unpack(handle)
    if process == os.getpid():
        raise CUDARuntimeError(201)  # as the runtime refuses its own handles
    page = start // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        descriptor = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
    except OSError:
        raise CUDARuntimeError(400) from None
    try:
        mapped = mmap.mmap(descriptor, start + size - page, offset=page)
    finally:
        os.close(descriptor)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + start - page
    operations["ipcOpenMemHandle"] += 1
    _opened[address] = (mapped, number, size)
    return address


def close_handle(address: int) -> None:
    """Forget a mapping; the memory stays readable while arrays look at it."""
    if _opened.pop(address, None) is None:
        raise CUDARuntimeError(1)
    operations["ipcCloseMemHandle"] += 1


def at(address: int, nbytes: int) -> Any:
    """Return bytes in memory as a NumPy array, of a device or of the host."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    for one in _heaps.copy().values():
        if one.address <= address < one.address + CAPACITY:
            start = address - one.address
            return one.bytes[start : start + nbytes]
    for start, (mapped, _, size) in _opened.copy().items():
        if start <= address < start + size:
            skip = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            return np.frombuffer(mapped, np.uint8, nbytes, address - skip)
    buffer = (ctypes.c_ubyte * nbytes).from_address(address)
    return np.ctypeslib.as_array(buffer)
