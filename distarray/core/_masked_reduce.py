"""Reductions of the items where a mask is true."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import _on_device
from distarray.core._base import BaseArray
from distarray.core._dispatch import as_block, move_all
from distarray.core._float_errors import alike, converted
from distarray.core._operands import (
    broadcast_shape,
    lifted_layouts,
    local_blocks,
    normalised,
    without_partial,
)
from distarray.core._resolution import Resolution, resolve
from distarray.core._spec import Spec, reduction
from distarray.errors import DTypeError, ShapeError
from distarray.layout import REDUCTIONS
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.core._reduce import Reduction


def reduce_masked(
    row: Reduction, x: BaseArray, axes: tuple[int, ...], dtype: Any, keepdims: bool, where: Any
) -> Any:
    """Return the reduction of an array over `axes`, of the items where `where` is true.

    Raises
    ------
    DTypeError
        If the mask does not hold booleans.
    ShapeError
        If it does not broadcast to the array.
    """
    (mask,) = normalised(f"{row.name}(where=)", [where], mesh=x._layout.mesh)
    if not isinstance(mask, BaseArray) and not _backend.is_buffer(mask):
        mask = np.asarray(mask)
    if np.dtype(mask.dtype) != np.bool_:
        raise DTypeError(f"{row.name}(where=) takes booleans, not {mask.dtype}")
    if broadcast_shape(row.name, (x.shape, mask.shape)) != x.shape:
        raise ShapeError(
            f"{row.name}(where=) of shape {mask.shape} does not broadcast to {x.shape}"
        )
    kept = mask._layout if isinstance(mask, BaseArray) else mask.shape
    layouts = lifted_layouts(row.name, [x._layout, kept])
    result = row.result_dtype(x._local.dtype, dtype)
    combine = row.combine if result.kind in REDUCTIONS[row.combine].kinds else None
    whole = reduction(x.ndim, axes, keepdims, combine)
    shift = x.ndim - len(mask.shape)
    letters = tuple(
        None if size == 1 and x.shape[shift + i] != 1 else shift + i
        for i, size in enumerate(mask.shape)
    )
    found = resolve(Spec((*whole.inputs, letters), whole.output, combine), layouts)
    blocks = move_all(row.name, local_blocks(row.name, x, [x, mask]), found)
    mesh, output = found.output.mesh, found.output
    wide = row.wide_dtype(result, output)
    adds = (dtype, result) if wide is None else (wide, wide)
    if wide is not None:
        items = blocks[0]
        if items.dtype != result:
            cast = functools.partial(items.astype, result)
            blocks[0] = converted(mesh, row.name, items.dtype, result, cast)
    block = alike(mesh, row.name, lambda: _reduced(row, found, blocks, axes, keepdims, *adds))
    if wide is not None:
        output = without_partial(output)
        sums = redistribute_local(block, found.output, output)
        block = alike(mesh, row.name, lambda: sums.astype(result))
    return x._new(block, output)


def _reduced(
    row: Reduction,
    found: Resolution,
    blocks: Sequence[Any],
    axes: tuple[int, ...],
    keepdims: bool,
    dtype: Any,
    result: Any,
) -> Buffer:
    """Return the local result of dtype `result`."""
    block, mask = blocks
    nothing = row.identity(result)
    if found.outside or 0 in block.shape:
        device = _backend.device_of(block)
        return _memory.full(found.output.local_shape(), nothing, result, device)
    if _backend.is_cupy(block):  # whose reductions take no mask
        library = _backend.namespace_of(block)
        chosen = mask if _backend.is_cupy(mask) else library.asarray(mask)
        kept = library.where(chosen, block, _backend.scalar(nothing, block))
        return _on_device.conformed(row.local(kept, axes, dtype, keepdims), result)
    extra = {"where": mask}
    if row.ufunc is not None and row.ufunc.identity is None:
        extra["initial"] = nothing
    return as_block(row.local(block, axes, dtype, keepdims, **extra))
