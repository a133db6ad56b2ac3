"""Questions about whole arrays: shapes and dtypes (never communicated), equality, range."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    PLAIN_SCALARS,
    REFUSALS,
    BaseArray,
    broadcast_shape,
    check_casting,
    check_distributed,
    check_flag,
    copied_row,
    count_reduced,
    describe,
    normalize_shape,
    plain_buffer,
    refusal_error,
    register,
    run_into,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.layout import normalize_axes
from distarray.ops.creation._asarray import asanyarray
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise._arithmetic import absolute
from distarray.ops.elementwise._rounding import imag, isclose, real
from distarray.ops.statistical import _reductions as reductions


@register
def shape(x: Any, /) -> tuple[int, ...]:
    """Return the global shape.

    Examples
    --------
    >>> import distarray as da
    >>> da.shape(da.zeros((2, 3)))
    (2, 3)
    """
    return x.shape if isinstance(x, BaseArray) else np.shape(x)


@register
def ndim(x: Any, /) -> int:
    """Return the number of axes.

    Examples
    --------
    >>> import distarray as da
    >>> da.ndim(da.zeros((2, 3)))
    2
    """
    return len(shape(x))


@register
def size(x: Any, /, axis: Any = None) -> int:
    """Return the number of items, of the whole or along axes.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.zeros((2, 3))
    >>> da.size(x), da.size(x, axis=1)
    (6, 3)
    """
    if axis is None:
        return int(np.prod(shape(x), dtype=np.int64))
    axes = normalize_axes(axis, ndim(x))
    return count_reduced(shape(x), axes)


@register
def iscomplexobj(x: Any, /) -> bool:
    """Tell whether the dtype is complex.

    Examples
    --------
    >>> import distarray as da
    >>> da.iscomplexobj(da.asarray([1 + 0j])), da.iscomplexobj(da.asarray([1.0]))
    (True, False)
    """
    return bool(x.dtype.kind == "c") if isinstance(x, BaseArray) else np.iscomplexobj(x)


@register
def isrealobj(x: Any, /) -> bool:
    """Tell whether the dtype is not complex.

    Examples
    --------
    >>> import distarray as da
    >>> da.isrealobj(da.asarray([1 + 0j])), da.isrealobj(da.asarray([1.0]))
    (False, True)
    """
    return not iscomplexobj(x)


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape that shapes broadcast to; nothing is communicated.

    Parameters
    ----------
    *shapes : int or tuple of int

    Raises
    ------
    ShapeError
        If they do not fit together.

    Examples
    --------
    >>> import distarray as da
    >>> da.broadcast_shapes((4, 1), (6,))
    (4, 6)
    """
    return broadcast_shape("broadcast_shapes", [normalize_shape(shape) for shape in shapes])


@register
def min_scalar_type(x: Any, /) -> Any:
    """Return the smallest dtype that holds a number; of an array with axes its own.

    The value of a `DistArray` without axes is read, which reduces it where it is `Partial`.

    Examples
    --------
    >>> import distarray as da
    >>> da.min_scalar_type(7)
    dtype('uint8')
    """
    if isinstance(x, BaseArray) and x.ndim:
        return x.dtype
    return np.min_scalar_type(np.asarray(x))


@register
def may_share_memory(x1: Any, x2: Any, /, max_work: Any = None) -> bool:
    """Tell whether this process's blocks may share memory, by their bounds.

    Nothing is communicated: a process without items says False.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.ones(3)
    >>> da.may_share_memory(x, x)
    True
    """
    return _compare_memory("may_share_memory", x1, x2, max_work)


@register
def shares_memory(x1: Any, x2: Any, /, max_work: Any = None) -> bool:
    """Tell whether this process's blocks share memory; see `may_share_memory`.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.ones(3)
    >>> da.shares_memory(x, x.copy())
    False
    """
    return _compare_memory("shares_memory", x1, x2, max_work)


def _compare_memory(name: str, x1: Any, x2: Any, max_work: Any) -> bool:
    left, right = (x._local if isinstance(x, BaseArray) else x for x in (x1, x2))
    if not _backend.is_cupy(left) and not _backend.is_cupy(right):
        return bool(getattr(np, name)(left, right, max_work=max_work))
    if type(left) is not type(right) or not left.size or not right.size:
        return False
    return bool(getattr(_backend.namespace_of(left), name)(left, right))


@register
def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the dtype that NumPy promotes arrays, dtypes and Python numbers to.

    Examples
    --------
    >>> import distarray as da
    >>> da.result_type(da.arange(3), da.float32, 1.0)
    dtype('float64')
    """
    given = [x.dtype if isinstance(x, BaseArray) else x for x in arrays_and_dtypes]
    try:
        return np.result_type(*given)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"result_type of {', '.join(map(describe, given))}: {error}") from None


@register
def can_cast(from_: Any, to: Any, /, casting: Any = "safe") -> bool:
    """Tell whether a dtype, or that of an array, may be cast to another.

    Examples
    --------
    >>> import distarray as da
    >>> da.can_cast(da.arange(3), da.float64), da.can_cast(da.float64, da.int64)
    (True, False)
    """
    check_casting("can_cast", casting)
    return np.can_cast(from_.dtype if isinstance(from_, BaseArray) else from_, to, casting)


@register
def common_type(*arrays: Any) -> Any:
    """Return the inexact dtype that all arrays have in common.

    Examples
    --------
    >>> import distarray as da
    >>> da.common_type(da.arange(3), da.zeros(3, da.float32))
    <class 'numpy.float64'>
    """
    known = [x if hasattr(x, "dtype") else plain_buffer(x, "common_type") for x in arrays]
    try:
        return np.common_type(*(np.empty(0, x.dtype) for x in known))
    except TypeError as error:
        raise DTypeError(f"common_type of {[str(x.dtype) for x in known]}: {error}") from None


@register
def allclose(
    x1: Any, x2: Any, /, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> bool:
    """Tell whether all items agree within `atol + rtol * abs(x2)`; collective over the mesh.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.asarray([1.0, 2.0])
    >>> da.allclose(x, x + 1e-9), da.allclose(x, x + 0.1)
    (True, False)
    """
    return bool(reductions.all(isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=equal_nan)))


@register
def array_equal(x1: Any, x2: Any, /, equal_nan: bool = False) -> bool:
    """Tell whether shapes and all items are equal; collective over the mesh.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(3)
    >>> da.array_equal(x, [0, 1, 2]), da.array_equal(x, [0, 1])
    (True, False)
    """
    equal_nan = check_flag("array_equal", "equal_nan", equal_nan)
    try:
        if shape(x1) != shape(x2):
            return False
    except ValueError:  # of nested sequences of different lengths
        return False
    same = logic.equal_or_unlike(x1, x2)
    if equal_nan:
        same = logic.logical_or(same, logic.logical_and(logic.isnan(x1), logic.isnan(x2)))
    return bool(reductions.all(same))


@register
def array_equiv(x1: Any, x2: Any, /) -> bool:
    """Tell whether all items are equal after broadcasting; collective over the mesh.

    Examples
    --------
    >>> import distarray as da
    >>> da.array_equiv(da.ones((2, 3)), [1, 1, 1])
    True
    """
    try:
        np.broadcast_shapes(shape(x1), shape(x2))
    except ValueError:
        return False
    return bool(reductions.all(logic.equal_or_unlike(x1, x2)))


@register
def copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    """Copy values into an array, which keeps its layout and dtype.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(4)
    >>> da.copyto(x, 0, where=x > 1)
    >>> print(x)
    [0 1 0 0]
    """
    if isinstance(src, PLAIN_SCALARS) and isinstance(dst, BaseArray):
        item = np.zeros((), dst.dtype)
        try:
            np.copyto(item, src, check_casting("copyto", casting))
        except REFUSALS as error:
            raise refusal_error("copyto", error, (src,)) from error
        src = item
    elif isinstance(dst, BaseArray):
        more = max(len(shape(src)) - dst.ndim, 0)
        if more and shape(src)[:more] == (1,) * more:
            if not isinstance(src, BaseArray):
                src = plain_buffer(src, "copyto", objects=True)
            src = src[(0,) * more]
    if where is True:
        run_into(copied_row, (dst,), (src,), casting=casting)
    else:
        run_into(copied_row, (dst,), (src, where), masked=True, casting=casting)


@register
def real_if_close(x: Any, /, tol: float = 100) -> Any:
    """Return the real part of an array whose imaginary parts are all nearly 0; else the array.

    Parameters
    ----------
    x : DistArray
    tol : float
        How near: in units of the dtype's precision if above 1, else as such.

    Returns
    -------
    DistArray
        A view, or `x` itself.

    Notes
    -----
    Distribution: one reduction of a truth value, of which every process learns.

    Examples
    --------
    >>> import distarray as da
    >>> da.real_if_close(da.asarray([2 + 1e-15j])).dtype
    dtype('float64')
    """
    if check_distributed("real_if_close", x).dtype.kind != "c":
        return x
    try:
        limit = float(tol)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"real_if_close got tol={describe(tol)}; one number") from None
    limit *= float(np.finfo(x.dtype).eps) if limit > 1 else 1.0
    near = bool(reductions.all(logic.less(absolute(imag(x)), limit)))
    return real(x) if near else x


def asarray_chkfinite(
    obj: Any,
    /,
    dtype: Any = None,
    order: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Any = None,
) -> Any:
    """Return a value as a distributed array, after making sure that all items are finite.

    Parameters
    ----------
    obj : array_like or DistArray
    dtype, order, device, mesh, placements
        As for `asanyarray`.

    Raises
    ------
    ArgumentError
        If an item is infinite or NaN, on every process alike.

    Notes
    -----
    Distribution: one reduction of a truth value.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.asarray_chkfinite([1.0, 2.0]))
    [1. 2.]
    """
    where = {"device": device, "mesh": mesh, "placements": placements}
    x = asanyarray(obj, dtype, order, **where)
    known = x.dtype.kind in "fc" and x._layout.mesh.coordinate is not None
    if known and not bool(reductions.all(logic.isfinite(x))):
        raise ArgumentError("asarray_chkfinite got infinities or NaN; da.isfinite finds them")
    return x
