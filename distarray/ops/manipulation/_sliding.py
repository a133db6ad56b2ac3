"""Sliding windows: views of a block with the items that follow it, in which each item repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    as_integers,
    check_distributed,
    describe,
    functions,
    register,
    run,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import normalize_axis
from distarray.ops.families._neighbours import fetch, own_block, sent
from distarray.ops.families._relabel import resize_axis
from distarray.typing import Buffer


def _spec(_: Op, call: Call) -> Layouts:
    (layout,), (axis, width) = call.layouts, call.static
    whole, length = layout.without_partial(), layout.shape[axis] - width + 1
    offsets, sends = None, sent(whole, axis, width - 1)
    if whole.sharding_axes(axis):
        offsets = tuple(min(i, length) for i in whole.partition(axis).offsets)
    resized = resize_axis(whole, axis, length, offsets)
    return Layouts((whole,), resized.replace(shape=(*resized.shape, width)), sends)


def _bind(step: Step) -> Callable[[Buffer], Buffer]:
    (source,), (axis, width), output = step.sources, step.call.static, step.output
    after = output.partition(axis)

    def reach(index: int) -> tuple[int, int]:
        start, stop = after.bounds(index)
        return (start, stop + width - 1) if start < stop else (0, 0)

    get = fetch(source, axis, reach, f"windows of {width} along axis {axis} of {source!r}")
    start, stop = after.bounds(own_block(output, axis))
    shape = output.local_shape()

    def windows(block: Buffer) -> Buffer:
        items = get(block)
        namespace = _backend.namespace_of(items)
        if start == stop:
            return namespace.empty(shape, items.dtype)
        return namespace.lib.stride_tricks.sliding_window_view(items, width, axis)

    return windows


_windows = Op("sliding_window_view", np.lib.stride_tricks.sliding_window_view, _spec, bind=_bind)


@register
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    """Return the windows of an array, along new axes behind its own.

    NumPy's `np.lib.stride_tricks.sliding_window_view`, which calls this for distributed arrays.

    Parameters
    ----------
    x : DistArray
    window_shape : int or tuple of int
        The length of the windows along each of the axes.
    axis : int or tuple of int, optional
        Default: all, in order.
    subok, writeable : bool
        False: windows overlap, and lie on several processes.

    Returns
    -------
    DistArray
        Of `window_shape` behind the shape of `x`, in which each of the axes is shorter by the
        window but for one item. Read-only; where `x` is cut its windows are cut at the same items.

    Raises
    ------
    ShapeError
        If a window is longer than the axis, or there is another number of windows than of axes.
    ArgumentError
        If a window has no items, or `writeable` is true.

    Notes
    -----
    Distribution: along a cut axis each block fetches as many items a line from the next as a window
    has, but for one. Memory: a copy of the block with these, which all windows look at; where the
    axis is not cut they look at the block itself. On GPUs windows are copies.

    Examples
    --------
    >>> import distarray as da
    >>> da.sliding_window_view(da.arange(5), 3).mean(axis=-1).tolist()
    [1.0, 2.0, 3.0]
    """
    name = "sliding_window_view"
    layout = check_distributed(name, x)._layout
    if writeable or subok:
        raise ArgumentError(
            f"{name}(writeable={writeable}, subok={subok}): windows cannot be written into; write "
            "into x, or work on a copy of them"
        )
    widths = _integers(name, "window_shape", window_shape)
    given = range(layout.ndim) if axis is None else _integers(name, "axis", axis)
    axes = [normalize_axis(one, layout.ndim) for one in given]
    if len(widths) != len(axes):
        raise ShapeError(
            f"{name} got {len(widths)} lengths of windows for {len(axes)} axes of shape "
            f"{layout.shape}; pass one for each, and axis= where these are not all"
        )
    lengths = list(layout.shape)
    for place, width in zip(axes, widths, strict=True):
        if width < 1:
            raise ArgumentError(f"{name} got windows of length {width}; pass 1 or more")
        lengths[place] -= width - 1
        if lengths[place] < 1:
            raise ShapeError(
                f"{name} got windows of shape {tuple(widths)} along axes {tuple(axes)} of shape "
                f"{layout.shape}, which they do not fit into"
            )
    for place, width in zip(axes, widths, strict=True):
        x = run(_windows, (x,), (place, width))
        x = x._new(_backend.make_read_only(x._local), x._layout)
    return x


functions[np.lib.stride_tricks.sliding_window_view] = sliding_window_view


def _integers(name: str, key: str, value: Any) -> list[int]:
    try:
        return [*as_integers(value)]
    except TypeError:
        raise ArgumentTypeError(
            f"{name} got {key}={describe(value)}; pass an integer, or several"
        ) from None
