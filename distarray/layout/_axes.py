"""Axes of arrays as arguments name them: one integer or several, which may count from the last."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from distarray.errors import ArgumentTypeError, AxisError


def read_axes(axes: Any) -> int | tuple[int, ...]:
    """Return one axis as an integer and several as a tuple, counted as they were.

    Raises
    ------
    ArgumentTypeError
        If one is no integer; booleans are none.
    """
    if isinstance(axes, bytes):  # whose items are integers
        return _integer(axes)
    if type(axes) is tuple or (isinstance(axes, Iterable) and getattr(axes, "ndim", 1) != 0):
        return tuple([one if type(one) is int else _integer(one) for one in axes])
    return _integer(axes)


def _integer(axis: Any) -> int:
    if not isinstance(axis, bool):
        try:
            return operator.index(axis)
        except TypeError:
            pass
    shown = repr(axis) if isinstance(axis, (bool, float, str)) else f"of {type(axis).__name__}"
    raise ArgumentTypeError(f"axis {shown}: axes are integers, one or a tuple of several")


def normalize_axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the first, in the order given; None names all.

    Raises
    ------
    AxisError
        If one is out of range or named twice.
    ArgumentTypeError
        If one is no integer.
    """
    if axes is None:
        return tuple(range(ndim))
    if type(axes) is int and -ndim <= axes < ndim:
        return (axes % ndim,)
    read = read_axes(axes)
    listed = read if isinstance(read, tuple) else (read,)
    found: list[int] = []
    for axis in listed:
        if not -ndim <= axis < ndim:
            limits = f"use {-ndim} to {ndim - 1}" if ndim else "it has none"
            text = f"axis {axis} of an array with {ndim} axes is out of range; {limits}"
            raise AxisError(text, axis, ndim)
        if axis % ndim in found:
            raise AxisError(f"axes {listed} name axis {axis % ndim} twice (of {ndim} axes)")
        found.append(axis % ndim)
    return tuple(found)


def normalize_axis(axis: Any, ndim: int) -> int:
    """Return one axis counted from the first; see `normalize_axes`.

    Raises
    ------
    ArgumentTypeError
        If several are named, or none.
    """
    if type(axis) is int and -ndim <= axis < ndim:
        return axis % ndim
    read = () if axis is None else read_axes(axis)
    if isinstance(read, tuple):
        raise ArgumentTypeError(
            f"axis={read or None}: takes one axis, an integer; for all items reshape to (-1,) first"
        )
    return normalize_axes(read, ndim)[0]
