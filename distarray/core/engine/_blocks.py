"""Blocks: moved to where an operation needs them, made of its results, fresh, copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core.engine._meshes import device_of
from distarray.core.engine._policy import permit
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer


def move(name: str, block: Buffer, src: Layout, dst: Layout) -> Buffer:
    """Return the block of `dst`, moved because operation `name` needs it so.

    Raises
    ------
    ImplicitCommunicationError
        If data would travel and the `communication` policy refuses it.
    """
    if src is dst:
        return block
    permit(name, src, dst, block.dtype)
    return redistribute_local(block, src, dst)


def move_all(
    name: str, blocks: Sequence[Buffer], moves: Sequence[tuple[Layout, Layout] | None]
) -> list[Buffer]:
    """Return blocks of the layouts that they must have, after asking the policy about all.

    Each move is (layout it has, layout it must have), or None where it fits.
    """
    for block, step in zip(blocks, moves, strict=True):
        if step is not None and not block.dtype.hasobject:
            permit(name, *step, block.dtype)
    return [
        block if step is None else _move_block(block, *step)
        for block, step in zip(blocks, moves, strict=True)
    ]


def _move_block(block: Buffer, src: Layout, dst: Layout) -> Buffer:
    if block.dtype.hasobject:  # a plain operand, which every rank has: objects cannot travel
        return block[boxes.slices(dst.local_box() or ())]
    return redistribute_local(block, src, dst)


def as_block(result: Any) -> Buffer:
    """Return `result` as an array: NumPy gives a scalar, or an object, where operands are 0-d."""
    if isinstance(result, np.generic):
        return np.asarray(result)
    if _backend.is_buffer(result):
        return result
    block = np.empty((), object)
    block[()] = result
    return block


def empty_block(layout: Layout, dtype: Any) -> Buffer:
    """Return an uninitialised block for this process; an empty one outside the mesh."""
    return _memory.empty(layout.local_shape(), dtype, device_of(layout))


def copy_block(block: Buffer, order: str = "C") -> Buffer:
    """Return a copy of a block in memory of its own, in one of NumPy's orders."""
    device = _backend.device_of(block)
    if order in "KA":  # not looked at otherwise: flags of an array take a while to make
        fortran = block.flags.f_contiguous and not block.flags.c_contiguous
        order = "F" if fortran else "C"
    if order == "F":
        out = _memory.empty(block.shape[::-1], block.dtype, device).T
    else:
        out = _memory.empty(block.shape, block.dtype, device)
    out[...] = block
    return out


def unshare(block: Buffer, source: Buffer) -> Buffer:
    """Return `block`, copied where it may share memory with `source`."""
    shares = block is source or _backend.may_share_memory(block, source)
    return copy_block(block) if shares else block
