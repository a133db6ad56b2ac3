"""Allocation of local blocks: out of the arena, by NumPy where they are small, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final
from weakref import ref

import numpy as np

from distarray.comm import _backend
from distarray.comm._launcher import count_local_ranks
from distarray.comm._packing import copy_box
from distarray.comm.cuda import _device
from distarray.comm.kernels._loop_nest import address_of, fill, renew, write_lent
from distarray.comm.shared_memory import _arena, _node
from distarray.comm.shared_memory._arena import MemoryStats, set_limit, stats, trim
from distarray.errors import OutOfMemoryError
from distarray.typing import Buffer, Shape

__all__ = [
    "POOLED_BYTES",
    "MemoryStats",
    "empty",
    "extent_of",
    "full",
    "is_shared",
    "lend",
    "make_contiguous",
    "owner_of",
    "set_limit",
    "stats",
    "take_lent",
    "trim",
    "write_new",
    "zeros",
]

POOLED_BYTES: Final = 64 * 1024
"""Blocks of at least this many bytes come from the arena: NumPy allocates smaller ones faster.

Measured: the arena takes 3 us, NumPy 0.2. In that time 100 KB are copied, as a block is that lies
outside when others are to read it.
"""


def empty(shape: Shape, dtype: Any, device: str | None = None, *, renews: bool = True) -> Buffer:
    """Return an uninitialised C-contiguous block in host memory, or on "cuda" or "cuda:<number>".

    Memory that others have read is made anew for ordinary writes, where that was measured to pay;
    without ``renews`` the caller does so by `take_lent` and `write_new`.

    Raises OutOfMemoryError where the system, or the GPU, has not enough left; it says what holds
    it.
    """
    if device is not None and device != "cpu":
        return _device.empty(shape, dtype, device)
    dtype = np.dtype(dtype)
    nbytes = dtype.itemsize * prod(shape)
    if nbytes < POOLED_BYTES or dtype.hasobject or not _arena.HAS_MEMORY_FILES:
        return np.empty(shape, dtype)
    found = _arena.take(nbytes)
    if found is not None:
        if renews and take_lent(found):
            renew(found)
        return found.view(dtype).reshape(shape)
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        raise OutOfMemoryError(
            f"cannot have {nbytes} bytes for a local block of shape {shape} and dtype {dtype}; use "
            "more ranks or a smaller dtype"
        ) from None


def full(shape: Shape, value: Any, dtype: Any, device: str | None = None) -> Buffer:
    """Return a C-contiguous block filled with ``value``."""
    block = empty(shape, dtype, device)
    fill(block, value)
    return block


def zeros(shape: Shape, dtype: Any, device: str | None = None) -> Buffer:
    """Return a C-contiguous block of NumPy's zeros: of text it is empty, of dates the epoch."""
    block = empty(shape, dtype, device)
    # Every dtype's zero is zero bytes, also between the fields of a structure.
    fill(block.reshape(-1).view(np.uint8) if _backend.is_numpy(block) else block, 0)
    return block


def available() -> int:
    """Return the bytes of host memory that each rank of this node can still have, if all do."""
    return _node.available() // count_local_ranks()


def is_shared(array: Buffer) -> bool:
    """Tell whether other processes of the node can map an array's memory.

    Of memory on GPUs CUDA finds out, and what it cannot lend is copied where it is lent.
    """
    return not _backend.is_numpy(array) or _arena.holds(array)


Extent = tuple[int, int]
"""Addresses from where to where something lies."""


def extent_of(block: Buffer) -> Extent:
    """Return where a contiguous block lies."""
    start = address_of(block)
    return start, start + block.nbytes


def lend(block: Buffer) -> None:
    """Note that other ranks read a block, or most of it, where it lies."""
    lease = _arena.lease_of(block)
    if lease is not None and block.flags.c_contiguous:
        lease.lend(*extent_of(block))


def take_lent(block: Buffer) -> Extent | None:
    """Return what others have read of a new block's memory before; it is told once."""
    lease = _arena.lease_of(block)
    if lease is None:
        return None
    lent, lease.was_lent = lease.was_lent, None
    return lent


def write_new(dst: Buffer, write: Callable[[], object], lent: Extent | None) -> None:
    """Call ``write``, which sets a contiguous part of a new block, of which others had read some.

    Where that was measured to pay, what they may still have in their caches is made anew first.
    """
    if lent is not None:
        start, stop = extent_of(dst)
        if start < lent[1] and lent[0] < stop:
            write_lent(dst, write)
            return
    write()


def owner_of(array: Buffer) -> Callable[[], object]:
    """Return a function that gives None once nothing looks at the memory of an array any more.

    Of memory that NumPy or the arena did not allocate nobody knows; nothing looks at no items.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if not array.size:
        return lambda: None
    return ref(owner) if isinstance(owner, (np.ndarray, _arena.Lease)) else lambda: owner


def make_contiguous(block: Buffer) -> Buffer:
    """Return a block's values in C order, copied only where they lie otherwise."""
    if block.flags.c_contiguous:
        return block
    copy = empty(block.shape, block.dtype, _backend.device_of(block))
    copy_box(copy, block)
    return copy
