"""Padding: items put before and after those of an array along its axes.

What comes before an axis lies in its first block, what comes after it in the last one, so that the
array's own items stay with their processes. Constants, edges and images are what a halo has there,
along all axes at once. Other modes make arrays of slices of the array and join them to it, axis by
axis; they alone are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    call_on_all,
    check_distributed,
    copy_array,
    describe,
    reduce_partial,
    register,
    run,
)
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout
from distarray.ops.elementwise._arithmetic import divide, multiply, subtract
from distarray.ops.elementwise._logic import equal
from distarray.ops.elementwise._rounding import astype, floor, round
from distarray.ops.families._halos import check_counts, read_pairs, read_widths
from distarray.ops.families._lines import make_whole
from distarray.ops.families._neighbours import Constants, Reach, Reaches, crosses, surround
from distarray.ops.families._relabel import resize_axis
from distarray.ops.indexing._items import getitem
from distarray.ops.indexing._values import read_value
from distarray.ops.manipulation._joining import join, repeat
from distarray.ops.manipulation._shape import broadcast_to
from distarray.ops.statistical._moments import mean
from distarray.ops.statistical._quantiles import median
from distarray.ops.statistical._reductions import any as any_of
from distarray.ops.statistical._reductions import max as max_of
from distarray.ops.statistical._reductions import min as min_of
from distarray.typing import Buffer

Widths = tuple[int, int]
Maker = Callable[[Any, int, Widths, Any], tuple[Any, Any]]
"""`make(x, axis, widths, argument)` gives what comes before and after `x` along an axis."""


# --- what a halo has at the ends of the array ----------------------------------------------------


def _target(layout: Layout, axis: int, widths: Widths) -> Layout:
    """Return the layout in which the first and the last block along an axis are longer."""
    before, after = widths
    size = before + layout.shape[axis] + after
    if not layout.sharding_axes(axis):
        return resize_axis(layout, axis, size)
    _, *inner, _ = layout.partition(axis).offsets
    return resize_axis(layout, axis, size, (0, *(i + before for i in inner), size))


def _reach(layout: Layout, axis: int, widths: Widths) -> Reach:
    partition = layout.partition(axis)

    def reach(index: int) -> tuple[int, int]:
        start, stop = partition.bounds(index)
        before = widths[0] if index == 0 else 0
        return start - before, stop + (widths[1] if index == partition.count - 1 else 0)

    return reach


def _reaches(layout: Layout, widths: Sequence[Widths], mode: str) -> Reaches:
    return {
        axis: (_reach(layout, axis, pair), mode) for axis, pair in enumerate(widths) if any(pair)
    }


def _spec(_: Op, call: Call) -> Layouts:
    (layout,), (widths, mode) = call.layouts, call.static
    output, sends = layout, []
    reaches = _reaches(layout, widths, mode)
    for axis in reaches:
        output = _target(output, axis, widths[axis])
        if crosses(layout, axis, reaches):
            sends.append((layout, resize_axis(layout, axis, sum(widths[axis])), False))
    return Layouts((layout,), output, tuple(sends))


def _bind(step: Step) -> Callable[[Constants, Buffer], Buffer]:
    (layout,), (widths, mode) = step.sources, step.call.static
    text = f"pad of {step.call.dtypes[0]} in {layout!r} by {widths} with {mode}"
    found = surround(layout, _reaches(layout, widths, mode), text)
    return lambda constants, block: found.around(block, constants)


_pad = Op("pad", np.pad, _spec, bind=_bind)


def _extend_by(x: Any, widths: Sequence[Widths], mode: str, constants: Constants = ()) -> Any:
    return run(_pad, [x], (tuple(widths), mode), constants)


# --- what is made of slices ----------------------------------------------------------------------

_join = join("pad")


def _surround(x: Any, axis: int, before: Any, after: Any) -> Any:
    """Return `x` between two arrays along an axis, either of which may be None."""
    left, right = (0 if part is None else part.shape[axis] for part in (before, after))
    parts = [
        part if part is x else astype(part, x.dtype, copy=False)
        for part in (before, x, after)
        if part is not None
    ]
    return run(_join, parts, (axis, _target(x._layout, axis, (left, right)), None))


def _slice(x: Any, axis: int, start: int, stop: int) -> Any:
    return getitem(x, (*(slice(None),) * axis, slice(start, stop)))


def _reversed_along(axis: int) -> Any:
    return (*(slice(None),) * axis, slice(None, None, -1))


def _edges(x: Any, axis: int) -> tuple[Any, Any]:
    return _slice(x, axis, 0, 1), _slice(x, axis, x.shape[axis] - 1, x.shape[axis])


def _linear_ramp(x: Any, axis: int, widths: Widths, ends: Any) -> tuple[Any, Any]:
    left, right = (
        _ramp(edge, axis, width, end) if width else None
        for edge, width, end in zip(_edges(x, axis), widths, ends, strict=True)
    )
    return left, None if right is None else getitem(right, _reversed_along(axis))


def _ramp(edge: Any, axis: int, width: int, end: Any) -> Any:
    """Return what NumPy's `linspace` gives from a number to an edge, which it leaves out."""
    dtype = np.linspace(end, np.zeros(1, edge.dtype), 2).dtype.newbyteorder("=")
    index = np.arange(width).astype(dtype).reshape(-1, *(1,) * (edge.ndim - axis - 1))
    distance = subtract(edge, end, dtype=dtype)
    step = divide(distance, width)
    outside = edge._layout.mesh.coordinate is None  # where it makes no difference
    if outside or bool(any_of(equal(step, 0))):  # some step has vanished: divided first
        line = multiply(repeat(distance, width, axis), index / width)
    else:
        line = multiply(repeat(step, width, axis), index)
    line += end
    return floor(line) if edge.dtype.kind in "iu" else line


def _statistic(function: Callable[..., Any]) -> Maker:
    """Return the maker of a statistic of the items next to the edge, or of all along an axis."""

    def make(x: Any, axis: int, widths: Widths, lengths: Any) -> tuple[Any, Any]:
        size = x.shape[axis]
        known: dict[tuple[int, int], Any] = {}
        found: list[Any] = [None, None]
        for side, (width, length) in enumerate(zip(widths, lengths, strict=True)):
            count = size if length is None else min(length, size)
            if not count and function not in (mean, median):
                raise ArgumentError("pad got stat_length=0, of which there is no extreme; pass 1")
            if not width:
                continue
            bounds = (size - count, size) if side else (0, count)
            if bounds not in known:
                row = function(_slice(x, axis, *bounds), axis=axis, keepdims=True)
                row = reduce_partial("pad", row) if row._layout.has_partial else row
                row = round(row) if x.dtype.kind in "iu" else row
                known[bounds] = astype(row, x.dtype, copy=False)
            row = known[bounds]
            shape = (*row.shape[:axis], width, *row.shape[axis + 1 :])
            found[side] = broadcast_to(row, shape)
        return found[0], found[1]

    return make


def _reflect_odd(x: Any, axis: int, widths: Widths, skipped: int) -> Any:
    """Pad with images mirrored at the outermost item, which they leave out if `skipped` is 1.

    Each step adds up to as many items as there are, as NumPy's, so that rounding is the same.
    """
    length = x.shape[axis] - skipped
    left, right = widths

    def image(start: int, width: int, edge: Any) -> Any:
        part = getitem(_slice(x, axis, start, start + width), _reversed_along(axis))
        return subtract(multiply(repeat(edge, width, axis), 2), part) if width else None

    while left or right:
        size = x.shape[axis]
        period = (size - skipped) // length * length
        before, after = min(left, period), min(right, period)
        first, last = _edges(x, axis)
        above = image(size - skipped - after, after, last)
        x = _surround(x, axis, image(skipped, before, first), above)
        left, right = left - before, right - after
    return x


# --- modes ---------------------------------------------------------------------------------------

_MAKERS: dict[str, tuple[Maker, str]] = {
    "linear_ramp": (_linear_ramp, "end_values"),
    "maximum": (_statistic(max_of), "stat_length"),
    "mean": (_statistic(mean), "stat_length"),
    "median": (_statistic(median), "stat_length"),
    "minimum": (_statistic(min_of), "stat_length"),
}
"""For each mode what makes the new items, and the argument that it takes."""
_ARGUMENTS = {
    **{mode: argument for mode, (_, argument) in _MAKERS.items()},
    "constant": "constant_values",
    "edge": None,
    "empty": None,
    "reflect": "reflect_type",
    "symmetric": "reflect_type",
    "wrap": None,
}
_IMAGES = ("even", "odd")
_REST = {"constant_values": 0, "end_values": 0, "stat_length": None, "reflect_type": "even"}


@register
def pad(x: Any, /, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """Return the array with items put before and after its own along its axes.

    Parameters
    ----------
    x : DistArray
    pad_width : int, sequence or dict
        How many: one number, a pair for before and after, a pair for each axis, or a dict of
        numbers and pairs by axis.
    mode : str or callable
        "constant", "edge", "empty", "linear_ramp", "maximum", "mean", "median", "minimum",
        "reflect", "symmetric" or "wrap", as in NumPy; or a function of a plain line, its pair of
        widths, the axis and a dict of the other arguments, which fills in the ends of the line.
    **kwargs
        `constant_values`, `end_values`, `stat_length`, `reflect_type`, as in NumPy.

    Returns
    -------
    DistArray
        Cut as `x` is, with longer first and last blocks (see `rebalance`).

    Raises
    ------
    ArgumentError
        If a width is negative, there is no such mode or argument of it, or an empty axis would
        have to be extended by its items.
    ArgumentTypeError
        If a width is no integer.

    Notes
    -----
    Distribution: the items of `x` stay where they are. "constant", "edge", "empty", and
    "reflect", "symmetric" and "wrap" of the even type, copy the block once, and send what the new
    items are made of, along all axes in one exchange, where it lies in other blocks: constants
    never, edges where the block at an end is empty. Other modes copy it for each axis, and
    statistics are reductions. `Partial` arrays are reduced first. A function needs whole lines, as
    that of `apply_along_axis`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.pad(da.arange(4), (1, 2), mode="reflect"))
    [1 0 1 2 3 2 1]
    """
    layout = check_distributed("pad", x)._layout
    widths = read_widths("pad", "pad_width", pad_width, layout.ndim)
    if not callable(mode) and (not isinstance(mode, str) or mode not in _ARGUMENTS):
        raise ArgumentError(
            f"pad got mode={describe(mode)}; one of {', '.join(sorted(_ARGUMENTS))}, or a function"
        )
    if layout.has_partial:
        x = reduce_partial("pad", x)
    if callable(mode):
        return _pad_by(mode, x, widths, kwargs)
    argument = _ARGUMENTS[mode]
    unknown = kwargs.keys() - {argument}
    if unknown:
        raise ArgumentTypeError(f"pad with mode={mode!r} takes no {', '.join(sorted(unknown))}")
    if not any(map(any, widths)):
        return copy_array(x)
    given = kwargs.get(argument, _REST.get(argument))  # type: ignore[arg-type]
    if argument == "reflect_type" and (not isinstance(given, str) or given not in _IMAGES):
        raise ArgumentError(f"pad got reflect_type={describe(given)}; 'even' or 'odd'")
    pairs: Any = ()
    if argument is not None and argument != "reflect_type":
        pairs = read_pairs("pad", argument, given, layout.ndim)
    if argument == "stat_length":
        check_counts("pad", "stat_length", given, pairs)
    if mode not in ("constant", "empty"):
        for axis, pair in enumerate(widths):
            if any(pair) and not layout.shape[axis]:
                raise ArgumentError(
                    f"pad with mode={mode!r} along axis {axis} of length 0: there are no items to "
                    "extend it by; use mode='constant'"
                )
        if not layout.size:
            mode = "empty"
    if mode == "empty":
        return _extend_by(x, widths, "constant", [(0, 0)] * layout.ndim)
    if mode == "constant":
        return _extend_by(x, widths, mode, _read_constants(x, widths, pairs))
    if mode not in _MAKERS and given != "odd":
        return _extend_by(x, widths, mode)
    for axis, pair in enumerate(widths):
        if not any(pair):
            continue
        if mode in _MAKERS:
            x = _surround(x, axis, *_MAKERS[mode][0](x, axis, pair, pairs[axis]))
        elif x.shape[axis] == 1:  # as NumPy: twice an item minus itself may overflow
            alone = [pair if i == axis else (0, 0) for i in range(layout.ndim)]
            x = _extend_by(x, alone, "edge")
        else:
            x = _reflect_odd(x, axis, pair, int(mode == "reflect"))
    return x


def _read_constants(x: Any, widths: Sequence[Widths], pairs: Sequence[Any]) -> Constants:
    """Return items of the dtype; of axes and ends without width nothing is read."""
    known: dict[int, Any] = {}  # of one object, which may be that of all ends

    def read(width: int, value: Any) -> Any:
        if width and id(value) not in known:
            known[id(value)] = read_value(x, value)[()]
        return known[id(value)] if width else None

    return [
        (read(left, before), read(right, after))
        for (left, right), (before, after) in zip(widths, pairs, strict=True)
    ]


def _pad_by(function: Callable[..., Any], x: Any, widths: Sequence[Widths], options: Any) -> Any:
    """Pad with zeros, and let a function fill in the ends of every line along every axis."""
    x = _extend_by(x, widths, "constant", [(0, 0)] * x.ndim)
    for axis, pair in enumerate(widths):
        x = make_whole("pad", x, axis)
        lines = np.moveaxis(x._local, axis, -1)

        def fill(lines: Any = lines, pair: Widths = pair, axis: int = axis) -> None:
            for place in np.ndindex(lines.shape[:-1]) if lines.size else ():
                function(lines[(*place, ...)], pair, axis, options)

        call_on_all(x._layout.mesh, "pad", fill)
    return x
