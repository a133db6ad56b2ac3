"""Differences of neighbours, and their use: in flat order, areas under curves, phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    ABSENT,
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    caller,
    check_integer,
    check_number,
    dtypes_of,
    elementwise,
    empty_block,
    in_pieces,
    join_arrays,
    normalize_operand,
    register,
    run_one,
    run_row,
)
from distarray.errors import ArgumentError, AxisError, DTypeError, ShapeError
from distarray.layout import normalize_axis
from distarray.ops.elementwise._arithmetic import multiply
from distarray.ops.elementwise._rounding import astype, copy
from distarray.ops.families._neighbours import fetch, own_block, sent
from distarray.ops.families._relabel import resize_axis
from distarray.ops.families._values import ErrorsOfNumPy
from distarray.ops.indexing._items import setitem
from distarray.ops.manipulation._joining import concat_as
from distarray.ops.manipulation._shape import broadcast_to
from distarray.ops.statistical._reductions import sum as sum_of
from distarray.ops.statistical._reductions import without_partial
from distarray.ops.statistical._scans import cumsum
from distarray.typing import Buffer


def _spec(_: Op, call: Call) -> Layouts:
    (layout,), (axis, n) = call.layouts, call.static
    whole = layout.without_partial()
    length = max(layout.shape[axis] - n, 0)
    if not whole.sharding_axes(axis):
        return Layouts((whole,), resize_axis(whole, axis, length))
    offsets = tuple(min(i, length) for i in whole.partition(axis).offsets)
    return Layouts((whole,), resize_axis(whole, axis, length, offsets), sent(whole, axis, n))


@dtypes_of
def _dtypes(_: Op, call: Call) -> Any:
    (dtype,), (_axis, n) = call.dtypes, call.static
    return np.diff(np.zeros(3, dtype), min(n, 2))  # of dates durations, then the same


def _bind(step: Step) -> Callable[[Buffer], Buffer]:
    """Compute what the block's own items suffice for, then the rest, of which these are few."""
    (source,), (axis, n), output = step.sources, step.call.static, step.output
    before, after = source.partition(axis), output.partition(axis)
    lead = (slice(None),) * axis

    def rest(index: int) -> tuple[int, int]:
        """Return which differences need items of the next blocks."""
        start, stop = after.bounds(index)
        return min(max(before.bounds(index)[1] - n, start), stop), stop

    def reach(index: int) -> tuple[int, int]:
        start, stop = rest(index)
        return (start, stop + n) if start < stop else (0, 0)

    get = fetch(source, axis, reach, f"differences along axis {axis} of {source!r}, {n} times")
    index = own_block(output, axis)
    own = rest(index)[0] - after.bounds(index)[0]
    near = (*lead, slice(own + n if own else 0)), (*lead, slice(own))
    far = (*lead, slice(own, None))
    call = caller(np.subtract, step.call.dtypes)

    def differences(block: Buffer) -> Buffer:
        ends = get(block)
        return call(output.mesh, "diff", lambda: subtracted(block, ends))

    def subtracted(block: Buffer, ends: Buffer) -> Buffer:
        out = empty_block(output, step.result)
        _subtract(block[near[0]], out[near[1]], axis, n)
        _subtract(ends, out[far], axis, n)
        return out

    return differences


def _subtract(items: Any, out: Any, axis: int, n: int) -> None:
    """Put differences of the n-th order into an array of their shape."""
    function = np.not_equal if items.dtype.kind == "b" else np.subtract
    lead = (slice(None),) * axis
    for order in range(n if out.size else 0):
        pair = items[(*lead, slice(1, None))], items[(*lead, slice(-1))]
        if order == n - 1:
            function(*pair, out=out)
        else:
            items = _memory.empty(pair[0].shape, out.dtype, _backend.device_of(out))
            function(*pair, out=items)


_diff = Op("diff", np.diff, _spec, dtypes=_dtypes, bind=_bind)


@register
def diff(x: Any, /, n: int = 1, axis: int = -1, prepend: Any = ABSENT, append: Any = ABSENT) -> Any:
    """Return the differences of neighbours along an axis, `n` times.

    Parameters
    ----------
    x : array
    n : int
        How often; 0 gives a copy.
    axis : int
    prepend, append : array or number, optional
        Joined to `x` first; a number, or an array without this axis' length, is one item.

    Raises
    ------
    AxisError
        If there is no such axis.
    ArgumentError
        If `n` is negative.
    DTypeError
        If items of the dtype cannot be subtracted.

    Notes
    -----
    Distribution: along a cut axis each block gets the `n` items after its last one, in an exchange.
    `Partial` arrays are reduced first.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.diff(da.asarray([1, 4, 9, 16])), da.diff(da.asarray([1, 4, 9, 16]), n=2))
    [3 5 7] [2 2]
    """
    x = join_arrays(x)
    is_distributed = isinstance(x, BaseArray)
    if not (is_distributed or isinstance(prepend, BaseArray) or isinstance(append, BaseArray)):
        given = {"prepend": prepend, "append": append}
        return np.diff(x, n, axis, **{k: v for k, v in given.items() if v is not ABSENT})
    x = x if is_distributed else np.asarray(normalize_operand("diff", x))
    n, axis = check_integer("diff", "n", n), check_integer("diff", "axis", axis)
    if n < 0:
        raise ArgumentError(f"diff got n={n}; it must be 0 or more")
    if not x.ndim:
        raise AxisError("diff of a 0-d array: there is no axis, and there are no neighbours")
    along = normalize_axis(axis, x.ndim)
    if n == 0:
        return copy(x)
    if not (prepend is append is ABSENT):
        one = (*x.shape[:along], 1, *x.shape[along + 1 :])
        joined = [_as_part(part, one) for part in (prepend, x, append) if part is not ABSENT]
        x = concat_as("diff", joined, along)
    return run_one(_diff, x, (along, n))


def _as_part(part: Any, one: tuple[int, ...]) -> Any:
    if isinstance(part, BaseArray):
        return part if part.ndim else broadcast_to(part, one)
    array = np.asarray(normalize_operand("diff", part))
    return array if array.ndim else np.broadcast_to(array, one)


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
    if flat.dtype.kind == "b":
        raise DTypeError("ediff1d of bool; NumPy subtracts no truth values: convert with astype")
    parts = [diff(flat)]
    for name, given in (("to_begin", to_begin), ("to_end", to_end)):
        if given is None:
            continue
        part = without_partial("ediff1d", given)
        if not np.can_cast(part.dtype, flat.dtype, "same_kind"):
            raise DTypeError(f"ediff1d({name}=) of {part.dtype} does not fit items of {flat.dtype}")
        part = part.astype(flat.dtype).reshape(-1)
        parts = [part, *parts] if name == "to_begin" else [*parts, part]
    return concat_as("ediff1d", parts, 0, dtype=flat.dtype) if len(parts) > 1 else parts[0]


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
    areas = multiply(width, heights)
    del heights, width  # makes room
    areas = areas / 2.0
    return sum_of(areas, axis=along)


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
    with ErrorsOfNumPy("unwrap"):
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
