"""Extraction: items that a condition selects from an array or its flattened order, and their like.

All are composites of masks (`indexing/_masks.py`) and of changes of shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    BaseArray,
    check_fits,
    check_out,
    check_target,
    common_mesh,
    describe,
    move,
    plain_buffer,
    register,
    replicated_layout,
    write_out,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, IndexingError, ShapeError
from distarray.layout import normalize_axes, normalize_axis
from distarray.ops._inspection import copyto
from distarray.ops.creation._asarray import asarray
from distarray.ops.indexing._items import getitem, setitem
from distarray.ops.indexing._masks import assign_by_mask, select_by_mask
from distarray.ops.indexing._places import flatnonzero, truths
from distarray.ops.indexing._values import check_device, check_kinds, on_device, read_value
from distarray.ops.manipulation._joining import tile
from distarray.ops.manipulation._reshape import ravel, reshape
from distarray.ops.statistical import _reductions as reductions

FEW_BYTES = 1 << 20
"""Up to so many bytes of distributed values that are repeated come to every process."""


@register
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return the slices of an array along an axis where a condition is true.

    Parameters
    ----------
    condition : array of one axis
        What is not zero is true. Of a length of its own; beyond the axis nothing may be true.
    a : array
        One of the two is distributed.
    axis : int, optional
        Default: of the flattened array.
    out : DistArray, optional
        Of the result's shape.

    Returns
    -------
    DistArray
        Cut along the axis as `a` is, with the boundaries that the condition gives.

    Raises
    ------
    ShapeError
        If the condition has not one axis.
    AxisError
        If there is no such axis.
    IndexingError
        If the condition is true beyond the end of the axis.

    Notes
    -----
    Distribution: as of `a[mask]`: no item moves, unless `a` has to be flattened and cannot be in
    place. See `reshape`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([[1, 2], [3, 4], [5, 6]])
    >>> print(da.compress([False, True], x, axis=0))
    [[3 4]]
    """
    condition = truths(condition, "compress")
    a = a if isinstance(a, BaseArray) else plain_buffer(a, "compress")
    check_out("compress", a, out)
    if condition.ndim != 1:
        raise ShapeError(f"compress takes a condition of one axis, not of shape {condition.shape}")
    if axis is None:
        a, axis = a.ravel(), 0
    axis = normalize_axis(axis, a.ndim)
    length = a.shape[axis]
    if len(condition) > length:
        beyond = condition[length:]
        if reductions.any(beyond) if isinstance(beyond, BaseArray) else beyond.any():
            raise IndexingError(
                f"compress: the condition has {len(condition)} items, and is true beyond the "
                f"{length} of axis {axis}"
            )
    condition = condition[:length]
    a = a[(*(slice(None),) * axis, slice(len(condition)))]
    if not isinstance(condition, BaseArray) and not isinstance(a, BaseArray):
        return np.compress(condition, a, axis)
    result = select_by_mask(a, condition, axis)
    if out is not None:
        check_fits("compress", out, result.shape, result.dtype)
    return write_out("compress", out, result)


@register
def extract(condition: Any, arr: Any) -> Any:
    """Return the items of a flattened array where a condition, flattened, is true.

    Parameters
    ----------
    condition, arr : array
        One of the two is distributed. Where they have one shape, nothing has to be flattened.

    Returns
    -------
    DistArray
        Of one axis, cut as the first of `arr`, with the boundaries that the condition gives.

    Raises
    ------
    IndexingError
        If the condition is true beyond the last item.

    Notes
    -----
    Distribution: as of `arr[mask]`; see `getitem` and `compress`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([[1, 2], [3, 4]])
    >>> print(da.extract(x % 2 == 0, x))
    [2 4]
    """
    condition = truths(condition, "extract")
    arr = arr if isinstance(arr, BaseArray) else plain_buffer(arr, "extract")
    if isinstance(arr, BaseArray) and condition.ndim and condition.shape == arr.shape:
        return select_by_mask(arr, condition, 0)
    return compress(condition.ravel(), arr.ravel(), 0)


@register
def place(arr: Any, mask: Any, vals: Any) -> None:
    """Write values, one after another and again from the first, where a mask is true.

    Parameters
    ----------
    arr : DistArray
        Changed in place.
    mask : array
        Of as many items as `arr`; what is not zero is true.
    vals : array
        Read in C order. Distributed ones of more than `FEW_BYTES` stay so.

    Raises
    ------
    ShapeError
        If the mask has another number of items.
    ArgumentError
        If there are no values, and items for them.
    DTypeError
        If `vals` is an array of a dtype that cannot be converted safely.
    ReadOnlyError
        If `arr` is read-only.

    Notes
    -----
    Distribution: as of `arr[mask] = vals`; see `setitem`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(6)
    >>> da.place(x, x > 2, [44, 55])
    >>> print(x)
    [ 0  1  2 44 55 44]
    """
    mask = _mask_for("place", arr, mask)
    _check_safe("place", arr, vals)
    vals = _values_for("place", arr, vals)
    if vals.size > 1 and arr._layout.has_partial and not isinstance(vals, BaseArray):
        vals = asarray(vals, mesh=arr._layout.mesh)  # written as blocks that reduce to them
    if not vals.size:
        if reductions.any(mask) if isinstance(mask, BaseArray) else mask.any():
            raise ArgumentError("place got no values, and a mask that is true somewhere")
    elif isinstance(vals, BaseArray):
        count = int(reductions.count_nonzero(mask))
        setitem(arr, mask, getitem(_repeat(vals, count), slice(count)))
    elif vals.size == 1 or not arr.ndim:
        setitem(arr, mask, vals[0])
    else:
        assign_by_mask(arr, mask, 0, vals, repeats=True)


@register
def putmask(a: Any, mask: Any, values: Any) -> None:
    """Write, where a mask is true, the values at the same place of the flattened arrays.

    Parameters
    ----------
    a : DistArray
        Changed in place.
    mask : array
        Of as many items as `a`; what is not zero is true.
    values : array
        Where they have another shape than `a`, they are repeated in C order. Distributed ones of
        more than `FEW_BYTES` stay so.

    Raises
    ------
    ShapeError
        If the mask has another number of items.
    DTypeError
        If `values` is an array of a dtype that cannot be converted safely.
    ReadOnlyError
        If `a` is read-only.

    Notes
    -----
    Distribution: mask and values are brought to the layout of `a`, where they have another.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(6)
    >>> da.putmask(x, x > 2, [44, 55])
    >>> print(x)
    [ 0  1  2 55 44 55]
    """
    mask = _mask_for("putmask", a, mask)
    _check_safe("putmask", a, values)
    if not isinstance(values, BaseArray):
        values = plain_buffer(values, "putmask", dtype=a.dtype)
    if values.shape != a.shape:
        values = _values_for("putmask", a, values)
        if not values.size:
            return
        if isinstance(values, BaseArray):
            values = reshape(getitem(_repeat(values, a.size), slice(a.size)), a.shape)
        else:
            values = values[0] if values.size == 1 else _repeated_by_place(values, a)
    copyto(a, values, "unsafe", mask)


@register
def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """Return an array without the zeros before the first and after the last other item.

    Parameters
    ----------
    filt : DistArray
    trim : {"fb", "f", "b"}
        Whether to leave them out at the front, the back, or both.
    axis : int or tuple of int, optional
        Along which; by default along all.

    Returns
    -------
    DistArray
        Looks at the memory of `filt`, as a slice does.

    Raises
    ------
    ArgumentError
        If `trim` is another text.

    Notes
    -----
    Distribution: for each axis the truth values of what lies across it are reduced, and two indices
    come to every process.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.trim_zeros(da.asarray([0, 0, 1, 0, 2, 0])))
    [1 0 2]
    """
    if not isinstance(filt, BaseArray):
        return np.trim_zeros(filt, trim, axis)  # type: ignore[arg-type]
    if not isinstance(trim, str):
        raise ArgumentTypeError(f"trim_zeros(trim={describe(trim)}): one of 'fb', 'f', 'b'")
    if trim.lower() not in ("fb", "bf", "f", "b"):
        raise ArgumentError(f"trim_zeros(trim={trim!r}): one of 'fb', 'f', 'b'")
    x: Any = filt
    filled = truths(x, "trim_zeros")
    key = [slice(None)] * x.ndim
    for one in normalize_axes(axis, x.ndim):
        others = tuple(other for other in range(x.ndim) if other != one)
        found = flatnonzero(reductions.any(filled, axis=others))
        if not found.size:
            key[one] = slice(0)
            continue
        start, stop = int(found[0]), int(found[-1]) + 1
        key[one] = slice(
            start if "f" in trim.lower() else None, stop if "b" in trim.lower() else None
        )
    return getitem(x, tuple(key))


def _mask_for(name: str, x: Any, mask: Any) -> Any:
    """Return booleans of the shape of an array that is to be changed."""
    check_target(name, x)
    mask = truths(mask, name)
    if mask.size != x.size:
        raise ShapeError(
            f"{name}: a mask of shape {mask.shape} has {mask.size} items, and the array of shape "
            f"{x.shape} has {x.size}; it needs as many"
        )
    return mask if mask.shape == x.shape else mask.reshape(x.shape)


def _check_safe(name: str, x: Any, values: Any) -> None:
    """Refuse arrays of values that the array does not hold, as NumPy does for these functions."""
    dtype = getattr(values, "dtype", x.dtype)
    if not np.can_cast(dtype, x.dtype, "safe"):
        raise DTypeError(
            f"{name} does not convert values of {dtype} to {x.dtype}, which may not hold them; use "
            f"values.astype({str(x.dtype)!r}), or x[mask] = values"
        )


def _values_for(name: str, x: Any, values: Any) -> Any:
    """Return values that are to be repeated, flattened; few of them as a plain array."""
    if not isinstance(values, BaseArray):
        return read_value(x, plain_buffer(values, name, dtype=x.dtype)).reshape(-1)
    check_device(name, x, values)
    check_kinds(x, values)
    common_mesh(name, (x._layout.mesh, values._layout.mesh))  # others would find no values
    values = ravel(values)
    if values.nbytes > FEW_BYTES:
        return values
    layout = values._layout
    whole = move(name, values._local, layout, replicated_layout(layout.mesh, layout.shape))
    return read_value(x, whole)


def _repeat(values: Any, count: int) -> Any:
    """Return a distributed array of one axis, repeated until it has at least so many items."""
    return tile(values, -(-count // values.size)) if values.size < count else values


def _repeated_by_place(values: Any, like: Any) -> Any:
    """Return an array in the layout of another, with plain values repeated in C order."""
    layout = like._layout.without_partial()
    box = layout.local_box()
    places: Any = np.zeros(layout.local_shape(), np.int64)
    stride = 1
    for axis in reversed(range(layout.ndim) if box is not None else ()):
        shape = [-1 if other == axis else 1 for other in range(layout.ndim)]
        along = np.arange(*box[axis]) % values.size * (stride % values.size)
        places += (along % values.size).reshape(shape)  # `take` wraps by repeated subtraction
        stride *= layout.shape[axis]
    block = np.take(_backend.to_host(values), places, mode="wrap")
    return like._new(on_device(block, like._local), layout)
