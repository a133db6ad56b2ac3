"""Bits packed into bytes along an axis, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    check_distributed,
    check_integer,
    describe,
    register,
    run_one,
)
from distarray.errors import ArgumentError, DTypeError
from distarray.layout import normalize_axis
from distarray.ops.families._relabel import resize_axis
from distarray.ops.families._values import on_host
from distarray.ops.manipulation._reshape import reshape
from distarray.typing import Buffer

_BYTE = np.dtype(np.uint8)
_ORDERS = ("big", "little")


def _spec(op: Op, call: Call) -> Layouts:
    """Cut the axis after whole bytes, and the result where the bytes are."""
    (layout,), (axis, length, _) = call.layouts, call.static
    whole = layout.without_partial()
    offsets = None
    if layout.sharding_axes(axis):
        *cuts, end = layout.partition(axis).offsets
        if op is _packed:
            cuts = [min(-(-i // 8) * 8, end) for i in cuts]
            whole = whole.replace(boundaries={**(whole.boundaries or {}), axis: (*cuts, end)})
        bounds = [-(-i // 8) if op is _packed else min(8 * i, length) for i in cuts]
        offsets = (*bounds, length)
    return Layouts((whole,), resize_axis(whole, axis, length, offsets))


def _bind(step: Step) -> Callable[[Buffer], Buffer]:
    axis, _, order = step.call.static
    if step.op is _packed:
        local: Any = functools.partial(np.packbits, axis=axis, bitorder=order)
    else:
        count = step.output.local_shape()[axis]
        local = functools.partial(_unpack, axis=axis, count=count, bitorder=order)
    return on_host(local)


def _unpack(block: np.ndarray, *, axis: int, count: int, bitorder: Any) -> np.ndarray:
    if not block.shape[axis]:  # NumPy 2.4 leaves the items that it adds as they come
        return np.zeros((*block.shape[:axis], count, *block.shape[axis + 1 :]), np.uint8)
    return np.unpackbits(block, axis=axis, count=count, bitorder=bitorder)


_packed = Op("packbits", np.packbits, _spec, dtypes=lambda *_: (_BYTE, _BYTE), bind=_bind)
_unpacked = replace(_packed, name="unpackbits", local=np.unpackbits)


def _arguments(name: str, x: Any, axis: Any, order: Any, kinds: str) -> tuple[Any, int]:
    check_distributed(name, x)
    if x.dtype.kind not in kinds or (kinds == "u" and x.dtype != _BYTE):
        taken = "uint8" if kinds == "u" else "integers and booleans"
        raise DTypeError(f"{name} of {x.dtype}: it takes {taken}; convert with astype")
    if not isinstance(order, str) or order not in _ORDERS:
        raise ArgumentError(f"{name} got bitorder={describe(order)}; 'big' or 'little'")
    if axis is None or not x.ndim:
        x = reshape(x, (-1,))
    return x, normalize_axis(0 if axis is None else axis, x.ndim)


@register
def packbits(x: Any, /, axis: int | None = None, bitorder: str = "big") -> Any:
    """Return the truth of items as bits, eight of an axis in each byte.

    Parameters
    ----------
    x : DistArray
        Integers or booleans.
    axis : int, optional
        Default: all items in flat order.
    bitorder : {"big", "little"}
        Whether the first of eight is the highest bit or the lowest.

    Returns
    -------
    DistArray
        Of uint8; the last byte of an axis is filled up with zeros.

    Raises
    ------
    DTypeError
        If the items are of another kind.
    ArgumentError
        If there is no such bit order.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: along a cut axis up to seven items a line move to the block before.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.packbits(da.asarray([1, 0, 0, 0, 0, 0, 1, 1, 1])))
    [131 128]
    """
    x, along = _arguments("packbits", x, axis, bitorder, "biu")
    return run_one(_packed, x, (along, -(-x.shape[along] // 8), bitorder))


@register
def unpackbits(
    x: Any, /, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Any:
    """Return the bits of bytes as items, eight of an axis for each byte.

    Parameters
    ----------
    x : DistArray
        Of uint8.
    axis : int, optional
        Default: all items in flat order.
    count : int, optional
        How many items to return: of fewer the rest is left out, more are zeros; a negative one says
        how many to leave out at the end.
    bitorder : {"big", "little"}
        Whether the first of eight is the highest bit or the lowest.

    Returns
    -------
    DistArray
        Of uint8, cut where `x` is.

    Raises
    ------
    DTypeError
        If the items are no bytes.
    ArgumentError
        If there is no such bit order, or more are left out than there are.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: nothing is sent.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.unpackbits(da.asarray([131], dtype="uint8")))
    [1 0 0 0 0 0 1 1]
    """
    x, along = _arguments("unpackbits", x, axis, bitorder, "u")
    length = 8 * x.shape[along]
    if count is not None:
        wanted = check_integer("unpackbits", "count", count)
        if wanted < -length:
            raise ArgumentError(f"unpackbits got count={wanted} of {length} bits")
        length = wanted if wanted >= 0 else length + wanted
    return run_one(_unpacked, x, (along, length, bitorder))
