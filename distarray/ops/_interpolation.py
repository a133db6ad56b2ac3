"""Interpolation between points: on each process, or, where many are cut, by their owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.core import (
    LARGE,
    BaseArray,
    Call,
    Op,
    Spec,
    Step,
    check_number,
    dtypes_of,
    elementwise,
    in_pieces,
    real,
    register,
    run,
    run_row,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.ops._taking import take
from distarray.ops.creation._asarray import asarray
from distarray.ops.elementwise._arithmetic import minimum
from distarray.ops.elementwise._rounding import clip
from distarray.ops.families._values import on_host
from distarray.ops.searching._searchsorted import searchsorted
from distarray.ops.statistical._reductions import without_partial
from distarray.typing import Shape

_interp: Any = np.interp


def _check_points(xp: Shape, fp: Shape) -> None:
    if len(xp) != 1 or xp != fp:
        raise ShapeError(
            f"interp takes points of one axis and as many values, not of shapes {xp} and {fp}"
        )
    if xp == (0,):
        raise ArgumentError("interp between no points")


def _spec(_: Op, call: Call) -> Spec:
    x, xp, fp = call.shapes
    _check_points(xp, fp)
    letters = tuple(range(len(x)))
    points = (len(x),)  # which no result has, so that it may not be cut
    return Spec((letters, points, points), letters)


@dtypes_of
def _dtypes(_: Op, call: Call) -> Any:
    return _interp(*(np.zeros(1, dtype) for dtype in call.dtypes))


def _bind(step: Step) -> Callable[..., Any]:
    options = step.call.static[:3]
    return on_host(lambda *blocks: np.asarray(_interp(*blocks, *options)))


def _ask_owners(x: Any, xp: Any, fp: Any, left: Any, right: Any, period: Any) -> Any:
    """Return `interp` between points in blocks, as NumPy computes each line."""
    x, xp, fp = (without_partial("interp", one) for one in (x, xp, fp))
    _check_points(xp.shape, fp.shape)
    if period is not None or not {x.dtype.kind, xp.dtype.kind, fp.dtype.kind} <= {*real}:
        raise ArgumentTypeError(
            f"interp of {x.dtype} between points of {xp.dtype} and {fp.dtype} in blocks takes real "
            "numbers and no period=; sort the points of one period first, or gather those that "
            "every process can hold: xp.full_array()"
        )
    x, xp, fp = (one.astype(np.float64, copy=False) for one in (x, xp, fp))
    mesh = next(one for one in (xp, fp) if isinstance(one, BaseArray)).layout.mesh
    xp, fp = (one if isinstance(one, BaseArray) else asarray(one, mesh=mesh) for one in (xp, fp))
    last = xp.shape[0] - 1
    place = without_partial("interp", searchsorted(xp, x, side="right")) - 1
    low = clip(place, 0, max(last - 1, 0))
    x0, y0 = take(xp, low), take(fp, low)
    high = minimum(low + 1, last)
    del low
    x1, y1 = take(xp, high), take(fp, high)
    del high
    return run_row(_line, (x, place, x0, x1, y0, y1), last=last, left=left, right=right)


def _between(
    x: Any, place: Any, x0: Any, x1: Any, y0: Any, y1: Any, *, last: int, left: Any, right: Any
) -> Any:
    """Return the values at `x`, given the points beside it, and how many are not after it."""
    with np.errstate(all="ignore"):
        slope = (y1 - y0) / (x1 - x0)
        result = slope * (x - x0) + y0
        back = slope * (x - x1) + y1
        back = np.where(np.isnan(back) & (y0 == y1), y0, back)
        result = np.where(x == x0, y0, np.where(np.isnan(result), back, result))
    after = y1 if right is None else np.where(x > x1, right, y1)
    result = np.where(place == last, after, result)
    result = np.where(place < 0, y0 if left is None else left, result)
    return np.where(np.isnan(x), x, result)


_line = elementwise("interp", in_pieces(_between), 6)

_row = Op("interp", np.interp, _spec, dtypes=_dtypes, bind=_bind)


@register
def interp(
    x: Any,
    xp: Any,
    fp: Any,
    left: complex | None = None,
    right: complex | None = None,
    period: float | None = None,
) -> Any:
    """Return the values at `x` of the straight lines between points.

    Parameters
    ----------
    x : array
        Where to look.
    xp : array
        Where the points are, ascending unless there is a `period`.
    fp : array
        Values at the points, real or complex.
    left, right : number, optional
        Values before the first and after the last point; default: those at these points.
    period : float, optional
        After which everything comes again.

    Returns
    -------
    DistArray
        float64, or complex128 where `fp` is complex; cut as `x` is.

    Raises
    ------
    ShapeError
        If `xp` and `fp` have more than one axis, or other lengths.
    ArgumentError
        If there are no points, or `period` is zero.
    ArgumentTypeError
        If more than 64 KiB of points are cut into blocks, and complex or of a `period`.

    Notes
    -----
    Distribution: nothing is sent where every process has the points; up to 64 KiB of those that are
    cut are gathered. Of more, each item asks the owners for its place and the two points beside it
    (see `searchsorted` and `take`), which takes memory for eight arrays like `x`. Partial operands
    are reduced first. On GPUs NumPy looks up on the host.

    Examples
    --------
    >>> da.interp(da.asarray(np.array([0.5, 1.5])), [0, 1, 2], [0, 10, 30]).tolist()
    [5.0, 20.0]
    """
    left, right, period = (
        None if value is None else check_number("interp", key, value)
        for key, value in (("left", left), ("right", right), ("period", period))
    )
    if not any(isinstance(one, BaseArray) for one in (x, xp, fp)):
        return _interp(x, xp, fp, left, right, period)
    if period == 0:
        raise ArgumentError("interp(period=0): a period is not zero")
    if any(
        isinstance(one, BaseArray) and not one._layout.is_replicated and one.nbytes > LARGE
        for one in (xp, fp)
    ):
        return _ask_owners(x, xp, fp, left, right, period)
    options = (left, right, period)
    return run(_row, [x, xp, fp], (*options, repr(options)))  # which tells 0.0 from -0.0
