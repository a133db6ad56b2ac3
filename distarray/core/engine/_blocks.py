"""Blocks: moved to where an operation needs them, made of its results, fresh, copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core.engine._meshes import device_of, meet
from distarray.core.engine._policy import permit
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute import redistribute_local, redistribute_together
from distarray.typing import Buffer


def move(name: str, block: Buffer, src: Layout, dst: Layout) -> Buffer:
    """Return the block of `dst`, moved because operation `name` needs it so.

    Raises
    ------
    ImplicitCommunicationError
        If data would travel and the `communication` policy refuses it.
    """
    if src.mesh is not dst.mesh:
        src, dst = meet(src, dst)
    if src is dst:
        return block
    permit(name, src, dst, block.dtype)
    return redistribute_local(block, src, dst)


def move_all(
    name: str,
    operands: Sequence[Any],
    blocks: Sequence[Buffer],
    moves: Sequence[tuple[Layout, Layout] | None],
    bring: Callable[..., Buffer] = redistribute_local,
) -> list[Buffer]:
    """Return blocks of the layouts that they must have, after asking the policy about all.

    Each move is (layout it has, layout it must have), or None where it fits. What Partial operands
    are reduced to is kept with them, and read-only. The rest is brought by `bring`: `read_local`,
    where the blocks are only read and nothing keeps them.
    """
    found = list(blocks)
    several: list[int] = []
    partial: list[int] = []
    for i, step in enumerate(moves):
        if step is None:
            continue
        src, dst = step
        block = blocks[i]
        if block.dtype.hasobject:  # a plain operand, which every rank has: objects cannot travel
            found[i] = block[boxes.slices(dst.local_box() or ())]
            continue
        if src.has_partial:
            partial.append(i)
            src = reduced_source(operands[i], block, src, dst)[1]
        else:
            several.append(i)
        permit(name, src, dst, block.dtype)
    for i in partial:
        found[i] = _reduce(operands[i], blocks[i], *moves[i])  # type: ignore[misc]
    if len(several) == 1:
        (i,) = several
        found[i] = bring(blocks[i], *moves[i])  # type: ignore[misc]
    elif several:
        pairs: Any = [moves[i] for i in several]
        moved = redistribute_together([blocks[i] for i in several], pairs, bring)
        for i, block in zip(several, moved, strict=True):
            found[i] = block
    return found


def _reduce(x: Any, block: Buffer, src: Layout, dst: Layout) -> Buffer:
    begin, near = reduced_source(x, block, src, dst)
    moved = redistribute_local(begin, near, dst)
    if not near.is_replicated and _is_kept(x, src, dst):
        moved = _backend.make_read_only(moved)
        x._reduced = x._new(moved, dst)
    return moved


def reduced_source(x: Any, block: Buffer, src: Layout, dst: Layout) -> tuple[Buffer, Layout]:
    """Return (block, layout) from which an operand goes to `dst`: reduced, where that is kept."""
    if _is_kept(x, src, dst) and x._reduced is not None:
        return x._reduced._local, x._reduced._layout
    return block, src


def _is_kept(x: Any, src: Layout, dst: Layout) -> bool:
    """Tell whether what a move makes of an operand is kept with it; all ranks say the same."""
    reduces = src.has_partial and not dst.has_partial and src.mesh is dst.mesh
    return reduces and getattr(x, "_reduced", False) is not False and x._layout is src


def as_block(result: Any) -> Buffer:
    """Return `result` as an array: NumPy gives a scalar, or an object, where operands are 0-d."""
    if result.__class__ is np.ndarray:
        return result
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


def copy_array(x: Any, order: str = "C") -> Any:
    """Return a copy of a distributed array in memory of its own, in one of NumPy's orders."""
    return x._new_apart(copy_block(x._local, order), x._layout)


def unshare(block: Buffer, source: Buffer) -> Buffer:
    """Return `block`, copied where it may share memory with `source`."""
    shares = block is source or _backend.may_share_memory(block, source)
    return copy_block(block) if shares else block
