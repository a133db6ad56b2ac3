"""Differences of neighbours in use: of all items in flat order, areas under curves, phases."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.core import (
    BaseArray,
    check_integer,
    check_number,
    elementwise,
    in_pieces,
    register,
    run_row,
)
from distarray.errors import DTypeError, ShapeError
from distarray.layout import normalize_axis
from distarray.ops.elementwise._arithmetic import multiply, subtract
from distarray.ops.elementwise._rounding import astype
from distarray.ops.indexing._items import setitem
from distarray.ops.manipulation._joining import concat
from distarray.ops.statistical._reductions import sum as sum_of
from distarray.ops.statistical._reductions import without_partial
from distarray.ops.statistical._scans import cumsum, diff


@register
def ediff1d(x: Any, /, to_end: Any = None, to_begin: Any = None) -> Any:
    """Return the differences of neighbours, in flat order.

    Parameters
    ----------
    x : array
    to_end, to_begin : array or number, optional
        What comes after and before the differences, of a dtype that casts to that of `x`.

    Returns
    -------
    DistArray
        Of one axis.

    Raises
    ------
    DTypeError
        If `to_end` or `to_begin` does not fit the dtype, or items cannot be subtracted.

    Notes
    -----
    Distribution: each block gets its neighbour's first item; several axes are reshaped to one
    before. With `to_begin` the items move to where the result has them.

    Examples
    --------
    >>> da.ediff1d(da.asarray(np.array([1, 2, 4, 7])), to_begin=0).tolist()
    [0, 1, 2, 3]
    """
    is_plain = not any(isinstance(one, BaseArray) for one in (x, to_end, to_begin))
    x = without_partial("ediff1d", x)
    if is_plain:
        return np.ediff1d(x, to_end, to_begin)
    flat = x.reshape(-1)
    parts = [subtract(flat[1:], flat[:-1])]
    for name, given in (("to_begin", to_begin), ("to_end", to_end)):
        if given is None:
            continue
        part = without_partial("ediff1d", given)
        if not np.can_cast(part.dtype, flat.dtype, "same_kind"):
            raise DTypeError(f"ediff1d({name}=) of {part.dtype} does not fit items of {flat.dtype}")
        part = part.astype(flat.dtype).reshape(-1)
        parts = [part, *parts] if name == "to_begin" else [*parts, part]
    return concat(parts, dtype=flat.dtype) if len(parts) > 1 else parts[0]


@register
def trapezoid(y: Any, /, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Return the area under a curve along an axis, by the trapezoidal rule.

    Parameters
    ----------
    y : array
        Heights.
    x : array, optional
        Where they are: of one axis, or of a shape that broadcasts to that of `y`.
    dx : number
        Their distance, where there is no `x`.
    axis : int

    Returns
    -------
    DistArray
        Of the remaining axes.

    Raises
    ------
    AxisError
        If there is no such axis.
    ShapeError
        If `x` does not fit `y`.

    Notes
    -----
    Distribution: along a cut axis each block gets its neighbour's first item, and the sums of all
    blocks are the result's Partial("sum").

    Examples
    --------
    >>> float(da.trapezoid(da.asarray(np.array([1.0, 2.0, 3.0])), dx=2))
    8.0
    """
    is_plain = not isinstance(y, BaseArray) and not isinstance(x, BaseArray)
    y = without_partial("trapezoid", y)
    along = normalize_axis(check_integer("trapezoid", "axis", axis), y.ndim)
    if is_plain:
        return np.trapezoid(y, x, dx, along)
    before = (slice(None),) * along
    width = dx
    if x is not None:
        x = without_partial("trapezoid", x)
        if not x.ndim:
            raise ShapeError("trapezoid takes x= of one axis at least; pass a distance as dx=")
        if x.dtype.kind not in "biufcmM":
            raise DTypeError(f"trapezoid with x= of {x.dtype}; it takes numbers and times")
        width = diff(x, axis=-1 if x.ndim == 1 else along)
        if x.ndim == 1:
            width = width[(None,) * along + (slice(None),) + (None,) * (y.ndim - along - 1)]
        if width.ndim != y.ndim or width.shape[along] not in (1, max(y.shape[along] - 1, 0)):
            raise ShapeError(f"trapezoid of shape {y.shape} with x of shape {x.shape}")
    heights = y[(*before, slice(1, None))] + y[(*before, slice(None, -1))]
    return sum_of(multiply(width, heights) / 2.0, axis=along)


@register
def unwrap(
    p: Any, /, discont: float | None = None, axis: int = -1, *, period: float = 6.283185307179586
) -> Any:
    """Return phases without jumps: each differs from the one before by half a period at most.

    Parameters
    ----------
    p : array
    discont : float, optional
        Jumps less than this stay; default: half a period, which is the least.
    axis : int
    period : float

    Returns
    -------
    DistArray
        Cut as `p` is.

    Raises
    ------
    AxisError
        If there is no such axis.
    DTypeError
        If items are no real numbers.

    Notes
    -----
    Distribution: along a cut axis each block gets its neighbour's first item, and sends its total,
    one item a line.

    Examples
    --------
    >>> da.unwrap(da.asarray(np.array([0, 1, 2, -1, 0])), period=4).tolist()
    [0, 1, 2, 3, 4]
    """
    is_plain = not isinstance(p, BaseArray)
    p, period = without_partial("unwrap", p), check_number("unwrap", "period", period)
    discont = None if discont is None else check_number("unwrap", "discont", discont)
    if is_plain:
        return np.unwrap(p, discont, axis, period=period)
    step = diff(p, axis=axis)
    following = (*(slice(None),) * normalize_axis(axis, p.ndim), slice(1, None))
    dtype = np.result_type(step.dtype, period)
    if dtype.kind in "iu":
        high, rest = divmod(period, 2)
        is_ambiguous = rest == 0
    else:
        high, is_ambiguous = period / 2, True
    least = high if discont is None else discont
    jumps = run_row(
        _jump, (step,), period=period, high=high, is_ambiguous=is_ambiguous, least=least
    )
    del step
    jumps = cumsum(jumps, axis=axis)
    jumps = p[following] + jumps
    result = astype(p, dtype)
    setitem(result, following, jumps)
    return result


def _jump_of(step: Any, *, period: Any, high: Any, is_ambiguous: bool, least: Any) -> Any:
    """Return what is added to a step so that it is half a period at most."""
    low = -high
    folded = (step - low) % period + low
    if is_ambiguous:  # a jump of half a period keeps its direction
        folded[(folded == low) & (step > 0)] = high
    folded -= step
    folded[abs(step) < least] = 0
    return folded


_jump = elementwise("unwrap", in_pieces(_jump_of), 1)
