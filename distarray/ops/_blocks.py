"""Fresh blocks of memory: for a layout, for a box, or as the copy of another block."""

from __future__ import annotations

from typing import Any

from distarray.comm import _backend, _memory
from distarray.core import device_of
from distarray.layout import Layout
from distarray.typing import Buffer


def empty_block(layout: Layout, dtype: Any) -> Buffer:
    """Return an uninitialised block for this process; an empty one outside the mesh."""
    return _memory.empty(layout.local_shape(), dtype, device_of(layout))


def copied(block: Buffer) -> Buffer:
    """Return a C-contiguous copy of a block, in memory of its own."""
    out = _memory.empty(block.shape, block.dtype, _backend.device_of(block))
    out[...] = block
    return out


def separate(block: Buffer, source: Buffer) -> Buffer:
    """Return `block`, copied where it may share memory with `source`."""
    return copied(block) if _backend.may_share_memory(block, source) else block
