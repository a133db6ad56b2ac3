"""Arrays whose values follow from the index: arange, linspace, logspace, eye, triangles.

A process computes its own block from the global index, with the same operations in the same order
as NumPy, so that the values are bitwise NumPy's for every split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import date, timedelta
from typing import Any

import numpy as np

from distarray.comm import _memory
from distarray.core import (
    BaseArray,
    check_integer,
    describe,
    normalize_dtype,
    plain_buffer,
    with_length,
)
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Placement
from distarray.layout import box as boxes
from distarray.ops.creation._filled import build, target_layout
from distarray.ops.elementwise._arithmetic import power
from distarray.ops.elementwise._rounding import astype
from distarray.ops.families._values import ErrorsOfNumPy
from distarray.typing import Box, Buffer, Shape

PIECE = 32 * 1024
"""Items computed at a time, so that what lies between index and value stays in the cache."""

_INTEGER = np.dtype(np.int_)
_WIDE = 1 << (8 * _INTEGER.itemsize - 1)
_NUMPY_ITEMS = _memory.POOLED_BYTES // _INTEGER.itemsize
"""Fewer items NumPy counts by itself, in memory of its own, where their block would be as well."""
_DATES = (np.datetime64, date)
_DURATIONS = (np.timedelta64, timedelta)
_REAL = (int, float, np.integer, np.floating, np.bool_)
_WHOLE = (int, np.integer)
_PLAIN = frozenset((int, float, type(None)))


def _item(function: str, name: str, value: Any) -> Any:
    """Return the item of an array of one, and anything else as it is."""
    if not isinstance(value, (BaseArray, np.ndarray)):
        return value
    if value.ndim:
        raise ArgumentTypeError(
            f"{function} got {name} with shape {tuple(value.shape)}; it must be one number"
        )
    if isinstance(value, np.ndarray):
        value = plain_buffer(value, function)
    return np.asarray(value)[()]


def _number(function: str, name: str, value: Any) -> Any:
    if value.__class__ is int or value.__class__ is float:
        return value
    value = _item(function, name, value)
    if not isinstance(value, _REAL) or isinstance(value, np.timedelta64):
        raise ArgumentTypeError(
            f"{function} got {name}={value!r} of type {type(value).__name__}; it must be a real "
            "number"
        )
    return value


def arange(
    start: Any,
    /,
    stop: Any = None,
    step: Any = 1,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return evenly spaced values in the half-open interval [start, stop).

    Parameters
    ----------
    start : number, date or duration
        First value; the end if `stop` is left out, and the first is then 0.
    stop : number, date or duration, optional
        End of the interval, not included. After a date a number or duration is the distance to it.
    step : number or duration
        Distance of neighbours; not 0.
    dtype : data type, optional
        Default: NumPy's for these numbers. Of dates it lets text stand for them.
    device, mesh, placements
        As for `empty`.

    Returns
    -------
    DistArray
        Of shape `(ceil((stop - start) / step),)`; bitwise `numpy.arange`'s values.

    Raises
    ------
    ArgumentError
        If `step` is 0, or the length is not finite.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.arange(5), da.arange(1, 8, 3))
    [0 1 2 3 4] [1 4 7]
    >>> print(da.arange("2024-02-28", "2024-03-02", dtype="datetime64[D]"))
    ['2024-02-28' '2024-02-29' '2024-03-01']
    """
    if dtype is not None or not _PLAIN.issuperset(map(type, (start, stop, step))):
        start = _item("arange", "start", start)
        stop = _item("arange", "stop", stop)
        step = _item("arange", "step", step)
        timed = _time_dtype(start, stop, step, dtype)
        if timed is not None:
            kind, times = _times(timed, start, stop, step)
            line = np.asarray(times[:2], np.int64)
            layout = target_layout((len(times),), mesh, placements, device)
            return build(
                layout, kind, lambda box: _count_from(line, *box[0]).astype(kind, copy=False)
            )
    if stop is None:
        start, stop = 0, start
    first = _number("arange", "start", start)
    last = _number("arange", "stop", stop)
    by = _number("arange", "step", step)
    kind = normalize_dtype(dtype, _range_dtype(first, last, by))
    if isinstance(first, _WHOLE) and isinstance(last, _WHOLE) and isinstance(by, _WHOLE):
        first, last, by = int(first), int(last), int(by)  # whose differences have no range
    if kind.kind not in "iufc" and not (kind.kind == "b" and _length(first, last, by) <= 2):
        raise DTypeError(f"arange cannot count in dtype {kind}; use an integer or floating dtype")
    length = _length(first, last, by)
    head = np.empty(min(2, length), kind)
    try:
        for i, value in enumerate((first, first + by)[:length]):
            head[i] = value
    except (OverflowError, ValueError) as error:
        raise ArgumentError(
            f"arange({first}, {last}, {by}) does not fit dtype {kind} ({error}); use a wider one"
        ) from None
    layout = target_layout((length,), mesh, placements, device)
    return build(layout, kind, lambda box: _count_from(head, *box[0]))


def _range_dtype(*values: Any) -> np.dtype[Any]:
    """Return the dtype of `numpy.arange(*values)`: at least the default integer."""
    if {*map(type, values)} == {int} and min(values) > -_WIDE and max(values) < _WIDE:
        return _INTEGER
    return np.result_type(np.int_, np.asarray(values).dtype)


def _time_dtype(start: Any, stop: Any, step: Any, dtype: Any) -> np.dtype[Any] | None:
    """Return the dtype of a range of dates or durations, maybe without a unit; None of numbers."""
    if dtype is not None:
        found = normalize_dtype(dtype)
        return found if found.kind in "mM" else None
    if isinstance(start, _DATES) or isinstance(stop, _DATES):
        return np.dtype("M8")
    return (
        np.dtype("m8") if any(isinstance(one, _DURATIONS) for one in (start, stop, step)) else None
    )


def _times(kind: np.dtype[Any], start: Any, stop: Any, step: Any) -> tuple[np.dtype[Any], range]:
    """Return the dtype of a range of dates or durations, with its unit, and the range in it."""
    if kind.kind == "M" and stop is None:
        raise ArgumentTypeError(f"arange({start}) of {kind}: dates have start and stop")
    if stop is None:
        start, stop = 0, start
    apart = kind.kind == "M" and (_is_whole(stop) or isinstance(stop, _DURATIONS))
    duration = np.dtype("m8")
    times = []
    with ErrorsOfNumPy("arange"):
        for one, own in (start, kind), (stop, duration if apart else kind), (step, duration):
            others = _DATES if own.kind == "m" else _DURATIONS
            if isinstance(one, (*others, float, np.floating)):
                raise ArgumentTypeError(
                    f"arange({start}, {stop}, {step}) of {kind} takes no {one!r}"
                )
            times.append(int(one) if own.kind == "m" and _is_whole(one) else np.asarray(one, own))
        arrays = [one for one in times if isinstance(one, np.ndarray)]
        if np.datetime_data(kind)[0] == "generic":
            kind = np.result_type(kind, *arrays)
        duration = np.dtype(kind.str.replace("M8", "m8"))
        for i, one in enumerate(times):
            if isinstance(one, np.ndarray):
                own = kind if one.dtype.kind == "M" else duration
                times[i] = int(one.astype(own, casting="same_kind").astype(np.int64))
    first, last, by = times
    if not by or any(map(np.isnat, arrays)):
        raise ArgumentError(
            f"arange({start}, {stop}, {step}) of {kind} has NaT, or step 0; pass others"
        )
    return kind, range(first, first + last if apart else last, by)


def _is_whole(value: Any) -> bool:
    """Tell whether something counts units; NumPy's durations are integers of its as well."""
    return isinstance(value, (int, np.integer, np.bool_)) and not isinstance(value, np.timedelta64)


def _length(start: Any, stop: Any, step: Any) -> int:
    if step == 0:
        raise ArgumentError(f"arange({start}, {stop}, {step}) has step 0; pass a step that is not")
    steps = (stop - start) / step
    if not math.isfinite(steps):
        raise ArgumentError(
            f"arange({start}, {stop}, {step}) has no finite length; all three must be finite"
        )
    if steps == 0 and start != stop:  # the quotient has vanished: one item, as in NumPy
        return int(math.copysign(1, steps) > 0)
    return max(0, math.ceil(steps))


def _count_from(head: Buffer, start: int, stop: int) -> Buffer:
    """Return items `start` to `stop` of the sequence that begins with `head`, as NumPy fills it.

    NumPy writes the first two items and goes on with `first + i * (second - first)` in the dtype's
    own arithmetic: in single precision for half floats, part by part for complex numbers.
    """
    if head.dtype.kind == "c":
        block = _memory.empty((stop - start,), head.dtype)
        block.real = _count_from(head.real.copy(), start, stop)
        block.imag = _count_from(head.imag.copy(), start, stop)
        return block
    if head.dtype == _INTEGER and len(head) > 1 and stop - start < _NUMPY_ITEMS:
        first, second = head.tolist()
        step = second - first
        low, high = first + start * step, first + stop * step
        if step and max(-low, -high, low, high) < _WIDE:  # else integers wrap around, or stay
            return np.arange(low, high, step)
    wide = head.astype(np.float32) if head.dtype == np.float16 else head
    block = _memory.empty((stop - start,), head.dtype)
    inexact = head.dtype.kind == "f"  # entering and leaving an errstate takes 4 us
    with np.errstate(over="ignore", invalid="ignore") if inexact else nullcontext():
        step = wide[1] - wide[0] if len(head) > 1 and head.dtype.kind != "b" else None
        for part, index in pieces(block, start):
            line = index.astype(wide.dtype, copy=False)  # made for this piece alone
            if step is None:
                part[...] = line
            else:
                line *= step
                np.add(line, wide[0], out=part, casting="unsafe")
    for i in range(start, min(stop, len(head))):
        block[i - start] = head[i]
    return block


def pieces(block: Buffer, start: int) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield pieces of a block that stay in the cache, and their items' global indices."""
    for begin in range(0, len(block), PIECE):
        part = block[begin : begin + PIECE]
        yield part, np.arange(start + begin, start + begin + len(part))


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return evenly spaced values over an interval.

    Parameters
    ----------
    start, stop : number
        Ends of the interval; may be complex.
    num : int
        How many values.
    dtype : data type, optional
        Default: NumPy's floating dtype for these numbers. Integers are rounded down.
    endpoint : bool
        Whether `stop` is the last value.
    retstep : bool
        Return `(values, step)`.
    device, mesh, placements
        As for `empty`.

    Returns
    -------
    DistArray
        Of shape `(num,)`; bitwise `numpy.linspace`'s values.

    Raises
    ------
    ArgumentError
        If `num` is negative.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linspace(0, 1, 5))
    [0.   0.25 0.5  0.75 1.  ]
    """
    ends, num = _check_ends("linspace", start, stop, num)
    divisions = num - 1 if endpoint else num
    # Two values at the same ends: NumPy's own choice of dtype, and checks of the arguments.
    own = np.linspace(ends[0], ends[1], 2).dtype
    kind = with_length(normalize_dtype(dtype, own), own)
    if own.kind == "c" and np.issubdtype(kind, np.integer):
        raise DTypeError(
            f"linspace({start}, {stop}) is complex and cannot be rounded down to {kind}; use a "
            "complex or floating dtype"
        )
    first, last = (np.asarray(end) for end in ends)
    delta = np.subtract(last, first, dtype=type(own))
    step = delta / divisions if divisions > 0 else np.nan
    layout = target_layout((num,), mesh, placements, device)

    def make(box: Box) -> Buffer:
        begin, end = box[0]
        block = _memory.empty((end - begin,), kind)
        for part, index in pieces(block, begin):
            values = index.astype(own)
            if divisions > 0 and step == 0:  # the interval is so short that the step underflows
                values /= divisions
                values *= delta
            else:
                values *= step if divisions > 0 else delta
            values += first
            if endpoint and index[-1] == num - 1 > 0:
                values[-1] = last
            part[...] = np.floor(values) if np.issubdtype(kind, np.integer) else values
        return block

    result = build(layout, kind, make)
    return (result, step) if retstep else result


def _check_ends(name: str, start: Any, stop: Any, num: Any) -> tuple[list[Any], int]:
    """Return the ends of a range, and how many values it has."""
    ends = [_end(name, "start", start), _end(name, "stop", stop)]
    num = check_integer(name, "num", num)
    if num < 0:
        raise ArgumentError(f"{name} got num={num}; it must be 0 or more")
    return ends, num


def _end(name: str, key: str, value: Any) -> Any:
    if isinstance(value, (complex, np.complexfloating)):
        return value
    if isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0:
        raise ArgumentTypeError(
            f"{name} got {key}={describe(value)}; it must be one number. Between the items of "
            "arrays: start + da.linspace(0, 1, num)[:, None] * (stop - start)"
        )
    return _number(name, key, value)


def logspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return powers of a base whose exponents are evenly spaced.

    Parameters
    ----------
    start, stop : number
        First and last exponent; may be complex.
    num : int
        How many values.
    endpoint : bool
        Whether `stop` is the last exponent.
    base : number
    dtype : data type, optional
        Default: NumPy's floating dtype for these numbers.
    device, mesh, placements
        As for `empty`.

    Returns
    -------
    DistArray
        Of shape `(num,)`.

    Raises
    ------
    ArgumentError
        If `num` is negative.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.logspace(0, 3, 4))
    [   1.   10.  100. 1000.]
    """
    base = base if isinstance(base, complex) else _number("logspace", "base", base)
    (start, stop), num = _check_ends("logspace", start, stop, num)
    exponents = linspace(
        start, stop, num, endpoint, device=device, mesh=mesh, placements=placements
    )
    values = power(base, exponents)
    return values if dtype is None else astype(values, dtype, copy=False)


def geomspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    endpoint: bool = True,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return values of which each is the same multiple of the one before.

    Parameters
    ----------
    start, stop : number
        First and last value, not 0; may be complex.
    num : int
        How many values.
    endpoint : bool
        Whether `stop` is the last value.
    dtype : data type, optional
        Default: NumPy's floating dtype for these numbers.
    device, mesh, placements
        As for `empty`.

    Returns
    -------
    DistArray
        Of shape `(num,)`.

    Raises
    ------
    ArgumentError
        If `num` is negative, or an end is 0.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.geomspace(1, 1000, 4))
    [   1.   10.  100. 1000.]
    """
    found, num = _check_ends("geomspace", start, stop, num)
    ends = [np.asarray(end) for end in found]
    if not all(ends):
        raise ArgumentError(
            f"geomspace({start}, {stop}) has an end that is 0; no multiple leads on"
        )
    wanted = None if dtype is None else normalize_dtype(dtype)
    own = np.result_type(*ends, 1.0, *([] if wanted is None else [np.zeros((), wanted)]))
    first, last = (end.astype(own) for end in ends)
    sign = np.sign(first)
    low, high = (np.log10(end / sign)[()] for end in (first, last))
    values = logspace(
        low, high, num, endpoint, dtype=own, device=device, mesh=mesh, placements=placements
    )
    size = values.shape[0]
    if size:
        values[0] = first / sign
    if size > 1 and endpoint:
        values[size - 1] = last / sign
    values *= sign[()]
    return astype(values, own if wanted is None else wanted, copy=False)


def identity(
    n: int,
    /,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return a square matrix with ones on its diagonal and zeros elsewhere; see `eye`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.identity(2))
    [[1. 0.]
     [0. 1.]]
    """
    return eye(n, dtype=dtype, device=device, mesh=mesh, placements=placements)


def tri(
    N: int,  # noqa: N803 (NumPy's name)
    M: int | None = None,  # noqa: N803 (NumPy's name)
    /,
    k: int = 0,
    dtype: Any = float,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return a matrix with ones on diagonal `k` and below, and zeros above.

    Parameters
    ----------
    N, M : int
        How many rows and columns; square if `M` is left out.
    k : int
        Which diagonal: above the main one if positive.
    dtype : data type
    device, mesh, placements
        As for `empty`.

    Raises
    ------
    ShapeError
        If a size is negative.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.tri(2, 3, dtype=int))
    [[1 0 0]
     [1 1 0]]
    """
    shape, diagonal = _read_diagonal("tri", {"N": N, "M": N if M is None else M}, k)
    kind = normalize_dtype(dtype)
    layout = target_layout(shape, mesh, placements, device)

    def make(box: Box) -> Buffer:
        height, width = boxes.shape(box)
        return np.tri(height, width, diagonal + box[0][0] - box[1][0], dtype=kind)

    return build(layout, kind, make)


def _read_diagonal(name: str, sizes: dict[str, Any], k: Any) -> tuple[Shape, int]:
    """Return the shape of a matrix, and which of its diagonals `k` is, or one just outside."""
    rows, columns = (check_integer(name, key, size) for key, size in sizes.items())
    diagonal = min(max(check_integer(name, "k", k), -rows), columns)
    if rows < 0 or columns < 0:
        raise ShapeError(f"{name}({rows}, {columns}) has a negative size; pass 0 or more")
    return (rows, columns), diagonal


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: Any = None,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return a matrix with ones on diagonal `k` and zeros elsewhere.

    Parameters
    ----------
    n_rows, n_cols : int
        Global shape; square if `n_cols` is left out.
    k : int
        Which diagonal: above the main one if positive.
    dtype : data type, optional
        Default: float64.
    device, mesh, placements
        As for `empty`.

    Raises
    ------
    ShapeError
        If a size is negative.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.eye(2, 3, 1))
    [[0. 1. 0.]
     [0. 0. 1.]]
    """
    sizes = {"n_rows": n_rows, "n_cols": n_rows if n_cols is None else n_cols}
    shape, diagonal = _read_diagonal("eye", sizes, k)
    kind = normalize_dtype(dtype)
    layout = target_layout(shape, mesh, placements, device)

    def make(box: Box) -> Buffer:
        block = _memory.zeros(boxes.shape(box), kind)
        (top, bottom), (left, right) = box
        i = np.arange(max(top, left - diagonal), min(bottom, right - diagonal))
        block[i - top, i + diagonal - left] = 1
        return block

    return build(layout, kind, make)
