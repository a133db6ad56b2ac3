"""Values written into selected items: converted as NumPy does, and brought to their layout.

Where a value is distributed it may have any layout, also on another mesh; a plain one every process
has alike, and takes its own part of. What can be wrong with it all processes find out alike, before
anything is sent.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    cast,
    convert_on_all,
    match_device,
    move,
    plain_buffer,
    refusal,
    replicated_layout,
)
from distarray.errors import DeviceError, DTypeError, FloatingError, ShapeError
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

_NUMERIC = "biufc"


def read_value(x: BaseArray, value: Any) -> Any:
    """Return a plain value as an array whose items can be written into `x`.

    Raises
    ------
    DeviceError
        If it is on another device.
    DTypeError, ArgumentError, FloatingError
        If its items do not become those of `x`.
    """
    if _backend.is_buffer(value):
        value = plain_buffer(value, "assignment", objects=True)
        value = match_device("assignment", value, x._local)
    array = _convert(value, x._local.dtype)
    return _cast(array, x._local.dtype) if x._layout.has_partial else array


def check_device(name: str, x: BaseArray, value: BaseArray) -> None:
    """Refuse a distributed value that is on another device."""
    here, there = x._layout.mesh.device, value._layout.mesh.device  # type: ignore[attr-defined]
    if here != there:
        raise DeviceError(
            f"{name} of a DistArray on {there!r} to items of one on {here!r}; nothing moves "
            f"between devices unless it is asked for: bring it over with value.to_device({here!r})"
        )


def check_kinds(x: BaseArray, value: BaseArray) -> None:
    """Refuse a distributed value whose items only some processes could convert."""
    own, other = x._local.dtype, value._local.dtype
    if other.kind != own.kind and not (other.kind in _NUMERIC and own.kind in _NUMERIC):
        raise DTypeError(
            f"values of {other} cannot be written into an array of {own}; convert them with "
            "astype first"
        )


def check_broadcasts(shape: Shape, selected: Shape) -> None:
    """Refuse a value that does not broadcast to the selected items (-1: of any number)."""
    extra = max(len(shape) - len(selected), 0)
    pairs = zip(shape[extra:][::-1], selected[::-1], strict=False)
    if shape[:extra] != (1,) * extra or any(n != 1 and m not in (n, -1) for n, m in pairs):
        shown = str(selected).replace("-1", "?")
        raise ShapeError(
            f"a value of shape {shape} does not broadcast to the selected shape {shown}; sizes "
            "must be equal or 1, counted from the last axis"
        )


def block_of_value(x: BaseArray, value: Any, target: Layout) -> Buffer:
    """Return this process's block of a value in the layout that it must have to be written.

    Collective where the value is distributed, or moves to make blocks that reduce to it.
    """
    if isinstance(value, BaseArray):
        if value._layout.has_partial or target.has_partial:
            value = cast("assignment", value, x._local.dtype)
        return move("assignment", value._local, value._layout, target)
    box = target.local_box()
    if box is None:
        return x._local[:0]
    if not target.has_partial:
        return on_device(value[boxes.slices(box)], x._local)
    whole = replicated_layout(target.mesh, target.shape)
    return redistribute_local(on_device(value, x._local), whole, target)


def on_device(array: Buffer, like: Buffer) -> Buffer:
    """Return an array, brought to the device of a block."""
    return array if _backend.is_numpy(like) else _backend.asarray(array, _backend.device_of(like))


def write(x: BaseArray, key: Any, block: Buffer, local: Buffer | None = None) -> None:
    """Write a block where a key selects items of the local one; what fails, fails on all ranks.

    `local` is a view of that one, if not itself.
    """
    local = x._local if local is None else local
    if _backend.may_share_memory(block, local):
        block = _backend.unaliased(block, local[key])
    put = functools.partial(local.__setitem__, key, block)
    convert_on_all(x._layout.mesh, "assignment", block.dtype, local.dtype, put)


def _convert(value: Any, dtype: Any) -> Buffer:
    """Return a plain value as an array; what cannot become `dtype` fails on every process alike."""
    if _backend.is_buffer(value) and (
        value.dtype == dtype
        or (value.ndim and value.dtype.kind in _NUMERIC and dtype.kind in _NUMERIC)
    ):
        return value  # cast item by item where it is written
    return _cast(value, dtype)


def _cast(value: Any, dtype: Any) -> Buffer:
    if _backend.is_cupy(value):
        if value.dtype.kind in _NUMERIC and dtype.kind in _NUMERIC:
            return value.astype(dtype)
        raise DTypeError(
            f"values of {value.dtype} cannot be written into an array of {dtype}; convert them "
            "with astype first"
        )
    try:
        if dtype.names and not _backend.is_numpy(value):  # a tuple is an item
            return np.asarray(value, dtype)
        item = np.empty(np.shape(value), dtype)
        item[...] = value
    except FloatingPointError as error:
        raise FloatingError(f"assignment: {error}; np.errstate asks to raise it") from None
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        kind = DTypeError if isinstance(error, TypeError) else refusal(error)
        raise kind(
            f"a value of type {type(value).__name__} cannot be written into an array of {dtype} "
            f"({error}); convert it first"
        ) from None
    return item
