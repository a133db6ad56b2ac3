"""`cupy.cuda.memory` of the stand-in: allocations, pointers into them, pools."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from cupy.cuda import runtime
from cupy.cuda.stream import get_current_stream

_ROUND = 512


class OutOfMemoryError(MemoryError):
    """As CuPy's."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        bound = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(
            f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{bound})."
        )


class BaseMemory:
    """A stretch of a device's memory."""

    ptr: int
    size: int
    device_id: int

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Any:
        """The device."""
        from cupy.cuda import Device

        return Device(self.device_id)


class Memory(BaseMemory):
    """An allocation of the runtime, given back when nobody holds it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = runtime.getDevice()
        self.ptr = runtime.malloc(size) if size > 0 else 0

    def __del__(self) -> None:
        if getattr(self, "ptr", 0) and sys is not None and not sys.is_finalizing():
            runtime.free(self.ptr)


class UnownedMemory(BaseMemory):
    """Memory that somebody else gives back."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        if device_id < 0:
            if ptr == 0:
                raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")
            device_id = runtime.pointerGetAttributes(ptr).device
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class PooledMemory(BaseMemory):
    """Memory of a pool, which it returns to."""

    def __init__(self, chunk: Memory, pool: MemoryPool, key: tuple[int, int, int]) -> None:
        self.ptr, self.size, self.device_id = chunk.ptr, chunk.size, chunk.device_id
        self.pool, self._chunk, self._key = pool, chunk, key

    def free(self) -> None:
        """Return it now."""
        if self.ptr:
            self.ptr = 0
            self.pool._take_back(self._chunk, self._key)

    def __del__(self) -> None:
        self.free()


class MemoryPointer:
    """A place in a stretch of memory, which it keeps alive."""

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        assert mem.ptr != 0 or offset == 0
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id
        self.mem = mem

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> Any:
        """The device."""
        return self.mem.device

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        """Copy from a device."""
        if size > 0:
            runtime.memcpy(self.ptr, src.ptr, size, runtime.memcpyDefault)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        """Copy from a device, on a stream."""
        if size > 0:
            runtime.memcpyAsync(self.ptr, src.ptr, size, runtime.memcpyDefault, _pointer(stream))

    def copy_from_host(self, mem: Any, size: int) -> None:
        """Copy from the host."""
        if size > 0:
            runtime.memcpy(self.ptr, _address(mem), size, runtime.memcpyHostToDevice)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy from the host, on a stream."""
        if size > 0:
            source = _address(mem)
            runtime.memcpyAsync(
                self.ptr, source, size, runtime.memcpyHostToDevice, _pointer(stream)
            )

    def copy_from(self, mem: Any, size: int) -> None:
        """Copy from anywhere."""
        (self.copy_from_device if isinstance(mem, MemoryPointer) else self.copy_from_host)(
            mem, size
        )

    def copy_from_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy from anywhere, on a stream."""
        device = isinstance(mem, MemoryPointer)
        (self.copy_from_device_async if device else self.copy_from_host_async)(mem, size, stream)

    def copy_to_host(self, mem: Any, size: int) -> None:
        """Copy to the host."""
        if size > 0:
            runtime.memcpy(_address(mem), self.ptr, size, runtime.memcpyDeviceToHost)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copy to the host, on a stream."""
        if size > 0:
            target = _address(mem)
            runtime.memcpyAsync(
                target, self.ptr, size, runtime.memcpyDeviceToHost, _pointer(stream)
            )

    def memset(self, value: int, size: int) -> None:
        """Set bytes."""
        if size > 0:
            runtime.memset(self.ptr, value, size)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Set bytes, on a stream."""
        if size > 0:
            runtime.memsetAsync(self.ptr, value, size, _pointer(stream))


def _address(mem: Any) -> int:
    return mem if isinstance(mem, int) else mem.value


def _pointer(stream: Any) -> int:
    return int((get_current_stream() if stream is None else stream).ptr)


def _malloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)


class MemoryPool:
    """Keeps what is given back, for the same device, stream and size."""

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self._allocator = _malloc if allocator is None else allocator
        self._free: defaultdict[tuple[int, int, int], list[Any]] = defaultdict(list)
        self._used: dict[int, int] = defaultdict(int)
        self._idle: dict[int, int] = defaultdict(int)
        self._limits: dict[int, int] = defaultdict(int)
        self._lock = threading.RLock()
        self._chunks: dict[int, Any] = {}
        """All of them: the collector of cycles must not find one that an array gives back."""

    def malloc(self, size: int) -> MemoryPointer:
        """Return memory of the current device."""
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        size = -(-size // _ROUND) * _ROUND
        device = runtime.getDevice()
        key = (device, int(get_current_stream().ptr), size)
        with self._lock:
            free = self._free[key]
            if free:
                chunk = free.pop()
                self._idle[device] -= size
            else:
                limit = self._limits[device]
                total = self._used[device] + self._idle[device]
                if limit and total + size > limit:
                    raise OutOfMemoryError(size, total, limit)
                chunk = self._fresh(size, total)
                self._chunks[id(chunk)] = chunk
            self._used[device] += size
        return MemoryPointer(PooledMemory(chunk, self, key), 0)

    def _fresh(self, size: int, total: int) -> Any:
        for attempt in range(2):
            try:
                return self._allocator(size).mem
            except runtime.CUDARuntimeError as error:
                if error.status != runtime.errorMemoryAllocation:
                    raise
                if attempt:
                    break
                self.free_all_blocks()
        raise OutOfMemoryError(size, total)

    def _take_back(self, chunk: Any, key: tuple[int, int, int]) -> None:
        with self._lock:
            self._free[key].append(chunk)
            self._used[key[0]] -= key[2]
            self._idle[key[0]] += key[2]

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give idle memory of the current device back to it."""
        device = runtime.getDevice()
        with self._lock:
            for key in [key for key in self._free if key[0] == device]:
                for chunk in self._free.pop(key):
                    self._idle[device] -= key[2]
                    del self._chunks[id(chunk)]

    def free_all_free(self) -> None:
        """Give idle memory of the current device back to it."""
        self.free_all_blocks()

    def n_free_blocks(self) -> int:
        """Return how many idle blocks the current device has."""
        device = runtime.getDevice()
        return sum(len(free) for key, free in self._free.copy().items() if key[0] == device)

    def used_bytes(self) -> int:
        """Return bytes in use on the current device."""
        return self._used[runtime.getDevice()]

    def free_bytes(self) -> int:
        """Return idle bytes on the current device."""
        return self._idle[runtime.getDevice()]

    def total_bytes(self) -> int:
        """Return both."""
        return self.used_bytes() + self.free_bytes()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Bound what is had of the current device; 0 for no bound."""
        if fraction is not None:
            size = int(fraction * runtime.memGetInfo()[1])
        self._limits[runtime.getDevice()] = size or 0

    def get_limit(self) -> int:
        """Return the bound for the current device."""
        return self._limits[runtime.getDevice()]


default_pool = MemoryPool()
_current: Callable[[int], MemoryPointer] = default_pool.malloc
_thread = threading.local()


def alloc(size: int) -> MemoryPointer:
    """Return memory from the current allocator."""
    return get_allocator()(size)


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    """Set the allocator of all threads."""
    global _current
    if getattr(_thread, "allocator", None) is not None:
        raise ValueError(
            "Can't change the global allocator inside `using_allocator` context manager"
        )
    _current = _malloc if allocator is None else allocator


def get_allocator() -> Callable[[int], MemoryPointer]:
    """Return the allocator of this thread."""
    return getattr(_thread, "allocator", None) or _current


@contextlib.contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> Iterator[None]:
    """Use an allocator in this thread for a while."""
    before = getattr(_thread, "allocator", None)
    _thread.allocator = _malloc if allocator is None else allocator
    try:
        yield
    finally:
        _thread.allocator = before
