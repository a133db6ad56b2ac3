"""Rounding, limiting, parts of complex numbers, choosing between arrays, conversion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    LINEAR,
    POINTWISE,
    BaseArray,
    cast,
    check_casting,
    check_device_name,
    check_flag,
    check_integer,
    check_order,
    copied_row,
    copy_array,
    device_of,
    elementwise,
    in_pieces,
    normalize_dtype,
    plain_buffer,
    register,
    run_into,
    run_row,
    unary,
    with_length,
)
from distarray.errors import ArgumentTypeError, DTypeError
from distarray.ops.elementwise._arithmetic import positive

ceil = unary("ceil", POINTWISE, np.ceil, "Round up.")
floor = unary("floor", POINTWISE, np.floor, "Round down.")
trunc = unary("trunc", POINTWISE, np.trunc, "Round towards zero.")
rint = unary("rint", POINTWISE, np.rint, "Round to the nearest integer, half to even.")
conj = unary("conj", LINEAR, np.conjugate, "Return complex conjugates.")
conjugate = conj

# Functions with arguments of their own, as rows that public functions run.
real_part = elementwise("real", np.real, 1, LINEAR, defer=None)
imag_part = elementwise("imag", np.imag, 1, LINEAR, defer=None)
_rounded = elementwise("round", np.round, 1)
_clipped = elementwise("clip", np.clip, 3)
_lowered = elementwise("clip", np.minimum, 2)
_raised = elementwise("clip", np.maximum, 2)


def _converts_bytes(operands: Sequence[Any], _: Any) -> bool:
    """Tell whether bytes become text, which those that are not ASCII do not."""
    return {getattr(x, "dtype", np.dtype(type(x))).kind for x in operands[1:]} == {"S", "U"}


# Public with one operand, too: ops/_searching.py.
where = elementwise("where", np.where, 3, check=_converts_bytes)
_angle = elementwise("angle", np.angle, 1)
_filled = elementwise("nan_to_num", np.nan_to_num, 1)
_close = elementwise("isclose", in_pieces(np.isclose), 2)
_close_by_item = elementwise("isclose", in_pieces(np.isclose), 4)


@register
def round(x: Any, /, decimals: int = 0, out: Any = None) -> Any:
    """Round to a number of decimals, half to even; see NumPy's `round`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.round(da.asarray([1.25, 2.5, -1.5])), da.round(da.asarray([1.26]), 1))
    [ 1.  2. -2.] [1.3]
    """
    places = check_integer("round", "decimals", decimals)
    options: dict[str, Any] = {"decimals": places} if places else {}
    if out is None:
        return run_row(_rounded, (x,), **options)
    return run_into(_rounded, (out,), (x,), **options)


around = round


@register
def fix(x: Any, /) -> Any:
    """Round towards zero.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.fix(da.asarray([1.7, -1.7])))
    [ 1. -1.]
    """
    return trunc(x)


@register
def clip(
    x: Any,
    /,
    min: Any = None,
    max: Any = None,
    out: Any = None,
    *,
    a_min: Any = None,
    a_max: Any = None,
    casting: Any = "same_kind",
) -> Any:
    """Limit items to `min` and `max`, each an array, a number or None.

    `a_min` and `a_max` are NumPy's other names of them; `casting` is how items become those of
    `out`.

    Returns
    -------
    DistArray
        Of the broadcast shape; NaN stays.

    Raises
    ------
    ArgumentTypeError
        If a limit is given under both names.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.clip(da.arange(6), 1, 4))
    [1 1 2 3 4 4]
    """
    if (a_min is not None and min is not None) or (a_max is not None and max is not None):
        raise ArgumentTypeError("clip() takes each limit once: by position, or as min=, max=")
    low = a_min if min is None else min
    high = a_max if max is None else max
    dtype = getattr(x, "dtype", None)
    if dtype is not None and dtype.kind in "iu":  # which may not hold a limit beyond all its items
        info = np.iinfo(dtype)
        low = None if type(low) is int and low <= info.min else low
        high = None if type(high) is int and high >= info.max else high
    if low is None and high is None:
        return positive(x, out=out)
    if low is None:
        row, operands = _lowered, [x, high]
    elif high is None:
        row, operands = _raised, [x, low]
    else:
        row, operands = _clipped, [x, low, high]
    casting = check_casting("clip", casting)
    return row(*operands) if out is None else run_into(row, (out,), operands, casting=casting)


@register
def angle(x: Any, /, deg: bool = False) -> Any:
    """Return the angle of complex numbers, in radians or degrees.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.angle(da.asarray([1, 1j, -1]), deg=True))
    [  0.  90. 180.]
    """
    return run_row(_angle, (x,), deg=check_flag("angle", "deg", deg))


@register
def nan_to_num(
    x: Any, /, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """Replace NaN by `nan` and infinities by the given or the largest finite numbers.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.nan_to_num(da.asarray([da.nan, da.inf, 1.0]), posinf=9))
    [0. 9. 1.]
    """
    copy = check_flag("nan_to_num", "copy", copy)
    result = run_row(_filled, (x,), nan=nan, posinf=posinf, neginf=neginf)
    if copy or not isinstance(x, BaseArray):
        return result
    return assign_or_return(x, result)


@register
def isclose(
    x1: Any, x2: Any, /, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Any:
    """Tell where items agree within `atol + rtol * abs(x2)`; both may be arrays.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.isclose(da.asarray([1.0, 2.0]), [1.0 + 1e-9, 2.1]))
    [ True False]
    """
    equal_nan = check_flag("isclose", "equal_nan", equal_nan)
    several = (BaseArray, np.ndarray, list, tuple)
    if isinstance(rtol, several) or isinstance(atol, several):
        return run_row(_close_by_item, (x1, x2, rtol, atol), equal_nan=equal_nan)
    return run_row(_close, (x1, x2), rtol=rtol, atol=atol, equal_nan=equal_nan)


@register
def real(x: Any, /) -> Any:
    """Return real parts: a view, but a read-only copy where `x` must be reduced first.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.real(da.asarray([1 + 2j, 3])))
    [1. 3.]
    """
    return _part(real_part, x)


@register
def imag(x: Any, /) -> Any:
    """Return imaginary parts; see `real`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.imag(da.asarray([1 + 2j, 3])))
    [2. 0.]
    """
    return _part(imag_part, x)


def _part(row: Any, x: Any) -> Any:
    result = row(x)
    if isinstance(x, BaseArray) and result._layout is not x._layout:  # reduced: no view of `x`
        return result._new(_backend.make_read_only(result._local), result._layout)
    return result


@register
def copy(x: Any, /, order: str = "K", subok: bool = True) -> Any:  # noqa: ARG001 (NumPy's)
    """Return an array of the same layout and values in memory of its own.

    Examples
    --------
    >>> import distarray as da
    >>> x = da.arange(3)
    >>> y = da.copy(x)
    >>> y[0] = 7
    >>> print(x, y)
    [0 1 2] [7 1 2]
    """
    check_order("copy", order, "CFAK")
    if not isinstance(x, BaseArray):
        return np.array(plain_buffer(x, "copy", objects=True), copy=True)
    return copy_array(x, order)


@register
def astype(
    x: Any,
    dtype: Any,
    /,
    *,
    copy: bool = True,
    device: Any = None,
    casting: Any = "unsafe",
) -> Any:
    """Convert to another dtype; placements stay.

    Parameters
    ----------
    x : DistArray
    dtype : dtype
    copy : bool
        Also copy where the dtype is the same already.
    device : str, optional
        As for `x.to_device`; default: the array's own.
    casting : str
        As in NumPy.

    Notes
    -----
    A Partial array is reduced before it is converted.

    Raises
    ------
    ArgumentError
        If text is not that of a value of `dtype`.
    DTypeError
        If `casting` forbids the conversion, or `dtype` holds Python objects.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.astype(da.asarray([1.7, -1.7]), int))
    [ 1 -1]
    """
    target = normalize_dtype(dtype)
    check_casting("astype", casting)
    copy = check_flag("astype", "copy", copy)
    if not isinstance(x, BaseArray):
        block = x if _backend.is_buffer(x) else np.asarray(x)
        return block.astype(
            target, **({} if _backend.is_cupy(x) else {"casting": casting}), copy=copy
        )
    if target == x.dtype and device is None:
        return copy_array(x, "K") if copy else x
    target = with_length(target, x.dtype)
    if not np.can_cast(x.dtype, target, casting):
        raise DTypeError(
            f"astype from {x.dtype} to {target} with casting={casting!r} is not allowed; choose "
            "another dtype, or casting='unsafe'"
        )
    if check_device_name(device) is not None and device != device_of(x._layout):
        there: Any = x
        x, copy = there.to_device(device), False
    if target == x.dtype:
        return copy_array(x, "K") if copy else x
    return cast("astype", x, target)


def assign_or_return(out: Any, result: Any) -> Any:
    """Copy `result` into `out` where there is one; return what holds the result."""
    if out is None:
        return result
    return run_into(copied_row, (out,), (result,))
