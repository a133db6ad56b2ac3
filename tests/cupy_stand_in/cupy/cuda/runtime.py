"""`cupy.cuda.runtime` of the stand-in: the calls of the CUDA runtime, by CuPy's names."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from cupy import _device
from cupy._device import CUDARuntimeError, operations

__all__ = ["CUDARuntimeError"]

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 0, 1, 2, 3
memcpyDefault = 4
streamDefault, streamNonBlocking, streamLegacy, streamPerThread = 0, 1, 1, 2
eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = 0, 1, 2, 3
errorMemoryAllocation, errorInvalidResourceHandle, errorNoDevice = 2, 400, 100
errorPeerAccessAlreadyEnabled = 704
hostAllocDefault, hostAllocPortable, hostAllocMapped, hostAllocWriteCombined = 0, 1, 2, 4
is_hip = False

_thread = threading.local()


class PointerAttributes(NamedTuple):
    device: int
    devicePointer: int
    hostPointer: int
    type: int


def getDeviceCount() -> int:
    """Return the number of devices."""
    if _device.COUNT == 0:
        raise CUDARuntimeError(100)
    return _device.COUNT


def getDevice() -> int:
    """Return the current device of this thread: a new thread begins with 0."""
    return getattr(_thread, "device", 0)


def setDevice(device: int) -> None:
    """Make a device the current one of this thread."""
    _device.heap(device)
    _thread.device = int(device)


def deviceSynchronize() -> None:
    """Wait for everything on the device (which is done already)."""
    operations["deviceSynchronize"] += 1


def streamSynchronize(stream: int) -> None:
    """Wait for a stream."""
    operations["streamSynchronize"] += 1


def memGetInfo() -> tuple[int, int]:
    """Return free and total bytes of the current device."""
    return _device.TOTAL - _device.heap(getDevice()).used, _device.TOTAL


def driverGetVersion() -> int:
    """Return the driver's version."""
    return 13000


def runtimeGetVersion() -> int:
    """Return the runtime's version."""
    return 13000


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Return some of what CUDA tells of a device."""
    _device.heap(device)
    return {
        "name": b"stand-in for a GPU",
        "totalGlobalMem": _device.TOTAL,
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 4,
        "warpSize": 32,
        "pciBusID": device,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "uuid": device.to_bytes(16, "little"),
    }


def deviceGetPCIBusId(device: int) -> str:
    """Return where a device is on the bus."""
    return f"0000:{device:02x}:00.0"


def deviceCanAccessPeer(device: int, peer: int) -> int:
    """Tell whether a device reaches another's memory."""
    return int(device != peer)


def deviceEnablePeerAccess(peer: int) -> None:
    """Let the current device reach another's memory."""


def malloc(size: int) -> int:
    """Return the address of memory of the current device."""
    operations["malloc"] += 1
    return _device.heap(getDevice()).malloc(size)


def free(ptr: int) -> None:
    """Give memory back."""
    if ptr:
        _device.heap(_device.owner(ptr)).free(ptr)


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    """Copy bytes between any memories, and wait."""
    operations["memcpy"] += 1
    _device.at(dst, size)[...] = _device.at(src, size)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """Copy bytes between any memories, in the order of a stream."""
    operations["memcpyAsync"] += 1
    _device.at(dst, size)[...] = _device.at(src, size)


def memset(ptr: int, value: int, size: int) -> None:
    """Set bytes, and wait."""
    operations["memset"] += 1
    _device.at(ptr, size)[...] = value


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    """Set bytes in the order of a stream."""
    operations["memsetAsync"] += 1
    _device.at(ptr, size)[...] = value


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    """Tell which device an address belongs to."""
    device = _device.owner(ptr)
    kind = memoryTypeDevice if device >= 0 else memoryTypeUnregistered
    return PointerAttributes(device, ptr, 0, kind)


def ipcGetMemHandle(devPtr: int) -> bytes:
    """Return by what another process maps the allocation that holds an address."""
    return _device.handle_of(devPtr)


def ipcOpenMemHandle(handle: bytes, flags: int = 1) -> int:
    """Map another process's allocation; the address of its start."""
    return _device.open_handle(handle)


def ipcCloseMemHandle(devPtr: int) -> None:
    """Unmap it."""
    _device.close_handle(devPtr)


def ipcGetEventHandle(event: int) -> bytes:
    """Return by what another process opens an event (events are done when recorded here)."""
    return event.to_bytes(8, "little").ljust(64, b"\0")


def ipcOpenEventHandle(handle: bytes) -> int:
    """Open another process's event."""
    return int.from_bytes(handle[:8], "little")
