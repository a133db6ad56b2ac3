"""Interpolation between points that every rank has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import LARGE, BaseArray, Call, Op, Spec, Step, check_number, register, run
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.typing import Buffer

_interp: Any = np.interp


def _spec(_: Op, call: Call) -> Spec:
    x, xp, fp = call.shapes
    if len(xp) != 1 or xp != fp:
        raise ShapeError(
            f"interp takes points of one axis and as many values, not of shapes {xp} and {fp}"
        )
    if xp == (0,):
        raise ArgumentError("interp between no points")
    letters = tuple(range(len(x)))
    points = (len(x),)  # which no result has, so that it may not be cut
    return Spec((letters, points, points), letters)


def _dtypes(_: Op, call: Call) -> tuple[Any, Any]:
    try:
        dtype = _interp(*(np.zeros(1, dtype) for dtype in call.dtypes)).dtype
    except (TypeError, ValueError) as error:
        shown = ", ".join(map(str, call.dtypes))
        raise DTypeError(f"interp of {shown}: {error}; convert with astype") from error
    return dtype, dtype


def _bind(step: Step) -> Callable[..., Any]:
    left, right, period = step.call.static[:3]

    def interpolate(x: Buffer, xp: Any, fp: Any) -> Any:
        blocks = [_backend.to_host(one) for one in (x, xp, fp)]
        result = _interp(*blocks, left, right, period)
        return _backend.asarray(result, _backend.device_of(x))

    return interpolate


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
        If many points are cut into blocks: the lines are looked up on each process by itself.

    Notes
    -----
    Distribution: nothing is sent, but for up to 64 KiB of points that are cut. Partial operands are
    reduced first. On GPUs NumPy computes it on the host.

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
    for name, points in (("xp", xp), ("fp", fp)):
        if not isinstance(points, BaseArray) or points._layout.is_replicated:
            continue
        if points.nbytes > LARGE:
            raise ArgumentTypeError(
                f"interp({name}=) in blocks, {points._layout}: every process looks up all points; "
                f"where they fit on each, pass {name}.full_array()"
            )
    options = (left, right, period)
    return run(_row, [x, xp, fp], (*options, repr(options)))  # which tells 0.0 from -0.0
