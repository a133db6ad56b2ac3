"""`cupy.cuda` of the stand-in."""

from __future__ import annotations

import threading
from typing import Any

from cupy import _device
from cupy.cuda import memory, pinned_memory, runtime, stream
from cupy.cuda.memory import (
    BaseMemory,
    Memory,
    MemoryPointer,
    MemoryPool,
    OutOfMemoryError,
    UnownedMemory,
    alloc,
    get_allocator,
    set_allocator,
    using_allocator,
)
from cupy.cuda.pinned_memory import (
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    alloc_pinned_memory,
    set_pinned_memory_allocator,
)
from cupy.cuda.stream import (
    Event,
    ExternalStream,
    Stream,
    get_current_stream,
    get_elapsed_time,
)

__all__ = [
    "BaseMemory",
    "Device",
    "Event",
    "ExternalStream",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "OutOfMemoryError",
    "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "Stream",
    "UnownedMemory",
    "alloc",
    "alloc_pinned_memory",
    "get_allocator",
    "get_current_stream",
    "get_device_id",
    "get_elapsed_time",
    "is_available",
    "memory",
    "pinned_memory",
    "runtime",
    "set_allocator",
    "set_pinned_memory_allocator",
    "stream",
    "using_allocator",
]

_thread = threading.local()


class Device:
    """A device, by its number; in a `with` block the current one of the thread."""

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        if not hasattr(_thread, "stack"):
            _thread.stack = []
        _thread.stack.append(runtime.getDevice())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        runtime.setDevice(_thread.stack.pop())

    def use(self) -> None:
        """Make it the current one."""
        runtime.setDevice(self.id)

    def synchronize(self) -> None:
        """Wait for all its work."""
        runtime.deviceSynchronize()

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        with self:
            return runtime.memGetInfo()

    @property
    def compute_capability(self) -> str:
        """As "90"."""
        return "90"

    @property
    def pci_bus_id(self) -> str:
        """Where it is on the bus."""
        return runtime.deviceGetPCIBusId(self.id)

    @property
    def attributes(self) -> dict[str, Any]:
        """Some of what CUDA tells."""
        return {"MultiProcessorCount": 4, "MaxThreadsPerBlock": 1024, "WarpSize": 32}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


def get_device_id() -> int:
    """Return the number of the current device."""
    return runtime.getDevice()


def is_available() -> bool:
    """Tell whether there is a device."""
    return _device.COUNT > 0
