"""Blocks on GPUs that the other processes of a node read in place, through CUDA's handles for it.

An owner lends the allocation in which a block lies; a reader maps it once and keeps the mapping
until the owner lends another allocation at the same addresses, which tells that the first is gone,
until it has mapped many others since, or until `close_unread`. Memory that its owner gives back to
CUDA stays taken until all readers have closed it.
A block whose allocation CUDA cannot lend (of an asynchronous pool, managed, or made of pieces) is
copied to memory that it can. The calls are those of "Interprocess Communication" in the CUDA
Runtime API.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distarray.comm.cuda import _device
from distarray.errors import DeviceError
from distarray.typing import Buffer

_FORMAT = struct.Struct("=64sQQQ")
NBYTES = _FORMAT.size
"""Bytes of a `Lent` as it travels."""

_PROBE = struct.Struct("=QQ")
# Not measured; any numbers of these sizes do.
_HANDLES_KEPT = 4096  # allocations of which the handle is remembered
_MOST_MAPPED = 64  # allocations of one owner
_BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID


class Lent(NamedTuple):
    """An allocation that another process may map: CUDA's handle of it, which opens it there.

    It begins at ``base`` in the owner's addresses, and the owner gives its ``identity`` to no
    other.
    """

    handle: bytes
    identity: int
    base: int
    nbytes: int

    def pack(self) -> bytes:
        """Return it as `NBYTES` bytes."""
        return _FORMAT.pack(*self)

    @classmethod
    def unpack(cls, data: memoryview) -> Lent:
        """Return what `pack` made these bytes of."""
        return cls(*_FORMAT.unpack_from(data))


_NOTHING = Lent(b"", 0, 0, 0)


class _Mapped:
    """Another process's allocation, where it is in this one's addresses."""

    def __init__(self, lent: Lent, pointer: int) -> None:
        self.lent = lent
        self.pointer = pointer
        self.read: set[int] = set()
        """Stands for each array that looks at it."""

    @property
    def end(self) -> int:
        return self.lent.base + self.lent.nbytes


class _Reading:
    """What an array holds that looks at a mapping."""

    def __init__(self, mapped: _Mapped) -> None:
        self._mapped = mapped
        mapped.read.add(id(self))

    def __del__(self) -> None:
        # May run inside any allocation (garbage collection) or thread: only an atomic removal here.
        self._mapped.read.discard(id(self))


_lock = threading.Lock()
_handles: dict[tuple[int, int], bytes | None] = {}  # by identity and base; None: cannot be lent
_mapped: dict[Hashable, dict[int, _Mapped]] = {}  # by owner and base; last used last
_lendable: Any = None


def lend(block: Buffer) -> tuple[Lent, int, Buffer]:
    """Return how another process finds a block, once its values are there.

    That is its allocation, the offset of its first element there in bytes, and what must stay alive
    while it is read: the block, or a copy of it.
    """
    if not block.size:
        return _NOTHING, 0, block
    _device.use(block.device.id)
    lent = _handle_of(block)
    if lent is None:
        block = _copy_lendable(block)
        lent = _handle_of(block)
        assert lent is not None  # ordinary memory of CUDA
    _cuda().get_current_stream().synchronize()
    return lent, block.data.ptr - lent.base, block


def borrow(
    owner: Hashable,
    lent: Lent,
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: np.dtype[Any],
) -> Buffer:
    """Return another process's block, in place; ``owner`` always stands for the process."""
    cupy = _device.cupy()
    if not lent.nbytes:
        return cupy.empty(tuple(shape), dtype)
    cuda = cupy.cuda
    where, reading = _map(owner, lent)
    memory = cuda.UnownedMemory(where, lent.nbytes, reading)
    pointer = cuda.MemoryPointer(memory, offset)
    return cupy.ndarray(tuple(shape), dtype, memptr=pointer, strides=tuple(strides))


def await_reads() -> None:
    """Wait until what this thread has started to read has been read."""
    _cuda().get_current_stream().synchronize()


def find_peers(
    members: Sequence[int],
    owners: Mapping[int, Hashable],
    exchange: Callable[[bytes], Sequence[Any]],
) -> tuple[frozenset[int], ...]:
    """Return, for each of some ranks, whom it can read and be read by: collective over them.

    Each tries to read a number in every other's memory that only the owner could have put there.
    ``owners`` has what stands for the process of each member but this one; ``exchange`` gives a few
    bytes to all members, and returns by rank what they gave.
    """
    number = int.from_bytes(os.urandom(7), "little")
    probe = _device.empty((1,), np.int64, "cuda")
    probe.fill(number)
    told = b""
    try:
        lent, offset, probe = lend(probe)
        told = lent.pack() + _PROBE.pack(offset, number)
    except (DeviceError, _cuda().runtime.CUDARuntimeError):
        pass  # so that nobody reads it
    offers = {rank: bytes(data) for rank, data in enumerate(exchange(told)) if data is not None}
    found = bytes(rank not in owners or _is_read(owners[rank], offers[rank]) for rank in members)
    rows = exchange(found)  # all have read by then
    sees = {rank: bytes(rows[rank]) for rank in members}
    return tuple(
        frozenset(
            other for j, other in enumerate(members) if (sees[rank][j] and sees[other][i]) or i == j
        )
        for i, rank in enumerate(members)
    )


def _is_read(owner: Hashable, offer: bytes) -> bool:
    """Tell whether the number that another process offers can be read in its memory."""
    if not offer:
        return False
    lent = Lent.unpack(memoryview(offer))
    offset, number = _PROBE.unpack_from(offer, NBYTES)
    try:
        found = borrow(owner, lent, offset, (1,), (8,), np.dtype(np.int64))
        return int(found.get()[0]) == number
    except _cuda().runtime.CUDARuntimeError:
        return False


def _handle_of(block: Buffer) -> Lent | None:
    base, nbytes, identity = allocation_of(block.data.ptr)
    key = identity, base
    with _lock:
        if key not in _handles:
            if len(_handles) >= _HANDLES_KEPT:
                _handles.clear()
            runtime = _cuda().runtime
            try:
                _handles[key] = bytes(runtime.ipcGetMemHandle(base))
            except runtime.CUDARuntimeError:
                _handles[key] = None
        handle = _handles[key]
    return None if handle is None else Lent(handle, identity, base, nbytes)


def _copy_lendable(block: Buffer) -> Buffer:
    """Return a copy in memory that can be lent."""
    global _lendable
    if _lendable is None:
        _lendable = _cuda().MemoryPool()
    cupy = _device.cupy()
    copy = cupy.ndarray(block.shape, block.dtype, memptr=_lendable.malloc(block.nbytes))
    _device.bits(copy)[...] = _device.bits(block)
    return copy


def _map(owner: Hashable, lent: Lent) -> tuple[int, _Reading]:
    """Return where another process's allocation is in this one's addresses, and what to hold."""
    with _lock:
        mapped = _mapped.setdefault(owner, {})
        found = mapped.pop(lent.base, None)
        if found is None or found.lent.identity != lent.identity:
            if found is not None:
                _close(found)
            end = lent.base + lent.nbytes
            gone = [old for base, old in mapped.items() if base < end and lent.base < old.end]
            unread = [old for old in mapped.values() if not old.read and old not in gone]
            gone += unread[: max(0, len(mapped) - len(gone) + 1 - _MOST_MAPPED)]
            for old in gone:
                del mapped[old.lent.base]
                _close(old)
            found = _Mapped(lent, int(_cuda().runtime.ipcOpenMemHandle(lent.handle)))
        mapped[lent.base] = found
        return found.pointer, _Reading(found)


def close_unread() -> None:
    """Close what this process has mapped of others' memory, so that they can give it back."""
    with _lock:
        for mapped in _mapped.values():
            for base, old in list(mapped.items()):
                if not old.read:
                    del mapped[base]
                    _close(old)


def _close(mapped: _Mapped) -> None:
    _cuda().runtime.ipcCloseMemHandle(mapped.pointer)


def _cuda() -> Any:
    return _device.cupy().cuda


# --- what the driver tells and CuPy does not -----------------------------------------------------


class Allocation(NamedTuple):
    """A stretch of device memory that was allocated at once, with a number that no other has."""

    base: int
    nbytes: int
    identity: int


def allocation_of(pointer: int) -> Allocation:
    """Return the allocation in which an address of device memory lies."""
    library = driver()
    base, nbytes, identity = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
    address = ctypes.c_uint64(pointer)
    _check(library.cuMemGetAddressRange_v2(_at(base), _at(nbytes), address), pointer)
    _check(library.cuPointerGetAttribute(_at(identity), _BUFFER_ID, address), pointer)
    return Allocation(base.value, nbytes.value, identity.value)


@functools.cache
def driver() -> Any:
    """Return the driver's library."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(
            f"there is no CUDA driver here ({error}); use device='cpu', or a machine with a GPU"
        ) from error


def _at(value: Any) -> Any:
    return ctypes.byref(value)


def _check(status: int, pointer: int) -> None:
    if status:
        raise DeviceError(
            f"the CUDA driver does not know address {pointer:#x} (error {status}); pass memory of "
            "the GPU that this process is bound to"
        )
