"""Gradients: differences of each item's neighbours, which blocks have of their own or fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    PLAIN_SCALARS,
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    caller,
    check_distributed,
    check_integer,
    describe,
    dtypes_of,
    empty_block,
    plain_buffer,
    reduce_partial,
    register,
    run,
)
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.layout import Layout, carry_cuts, normalize_axes
from distarray.ops.families._neighbours import Reach, fetch, own_block, sent
from distarray.ops.families._values import read_values
from distarray.typing import Buffer


def _reach(layout: Layout, axis: int, least: int) -> Reach:
    """Return which items the differences of a block need: its own, one more at each end, `least`.

    At the ends of the axis NumPy's formulas need `least` items; a block has fewer where it is
    short.
    """
    partition, size = layout.partition(axis), layout.shape[axis]

    def reach(index: int) -> tuple[int, int]:
        start, stop = partition.bounds(index)
        if start == stop:
            return start, start
        low, high = max(start - 1, 0), min(stop + 1, size)
        return (low, max(high, low + least)) if low == 0 else (min(low, high - least), high)

    return reach


def _spec(_: Op, call: Call) -> Layouts:
    """Keep the layout of the array, and cut coordinates as it is cut along the axis."""
    (layout, *others), (axis, edge_order, _) = call.layouts, call.static
    size = layout.shape[axis]
    if size < edge_order + 1:
        raise ShapeError(
            f"gradient along axis {axis} of shape {layout.shape} with edge_order={edge_order} "
            f"needs at least {edge_order + 1} items"
        )
    line = carry_cuts(layout, (size,), {axis: 0})
    return Layouts((layout, *(line for _ in others)), layout, sent(layout, axis, 2))


def _bind(step: Step) -> Callable[..., Buffer]:
    axis, edge_order, _ = step.call.static
    layout = step.output
    reach = _reach(layout, axis, edge_order + 1)
    index = own_block(layout, axis)
    start, stop = layout.partition(axis).bounds(index)
    low, _ = reach(index)
    part = (*(slice(None),) * axis, slice(start - low, stop - low))
    places = (axis, *(0 for _ in step.sources[1:]))
    fetches = [
        fetch(source, place, reach, f"gradient along axis {axis} of {layout!r}")
        for source, place in zip(step.sources, places, strict=True)
    ]

    call = caller(np.subtract, step.call.dtypes)

    def differences(spacing: Any, *blocks: Buffer) -> Buffer:
        wide, *line = (get(block) for get, block in zip(fetches, blocks, strict=True))
        return call(layout.mesh, "gradient", lambda: quotients(spacing, wide, *line))

    def quotients(spacing: Any, wide: Buffer, *line: Buffer) -> Buffer:
        if not wide.size:
            return empty_block(layout, step.result)
        by = line[0] if line else spacing
        return np.gradient(wide, by, axis=axis, edge_order=edge_order)[part]

    return differences


def _of_few(_: Op, call: Call) -> Any:
    """Return the gradient of items of the dtypes: coordinates, or a distance, divide them."""
    dtype, *others = call.dtypes
    spacing = np.array([0, 1, 3]).astype(others[0]) if others else call.static[2].type(1)
    return np.gradient(np.zeros(3, dtype), spacing)


_gradient = Op(
    "gradient",
    np.gradient,
    _spec,
    dtypes=dtypes_of(_of_few),
    bind=_bind,
)


@register
def gradient(x: Any, /, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return the gradient: central differences, and differences to one side at the ends.

    Parameters
    ----------
    x : DistArray
    *varargs : number or array, optional
        Distances of neighbours: one number for all axes, or for each axis a number or the
        coordinates of its items, plain or distributed. Default: 1.
    axis : int or tuple of int, optional
        Default: all.
    edge_order : {1, 2}
        Order of the differences at the ends of an axis.

    Returns
    -------
    DistArray or tuple of DistArray
        For each axis an array placed as `x`; for one axis that array. Integers give float64.

    Raises
    ------
    ArgumentTypeError
        If there is another number of distances than of axes.
    ArgumentError
        If `edge_order` is another one, or coordinates are as many as do not fit.
    ShapeError
        If an axis has fewer items than `edge_order + 1`.
    DTypeError
        If items of the dtype cannot be subtracted.

    Notes
    -----
    Distribution: along a cut axis each block fetches one item a line from each neighbour, in one
    exchange, and nothing else is sent. Beyond the result there are a copy of the block with these
    items and NumPy's own temporaries of that size. `Partial` arrays are reduced first.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.gradient(da.asarray([1.0, 2, 4, 7])))
    [1.  1.5 2.5 3. ]
    """
    layout = check_distributed("gradient", x)._layout
    axes = normalize_axes(axis, layout.ndim)
    edge_order = check_integer("gradient", "edge_order", edge_order)
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient got edge_order={edge_order}; it must be 1 or 2")
    steps = [_spacing(one) for one in varargs] or [1.0]
    if len(steps) == 1 and not getattr(steps[0], "ndim", 0):
        steps *= len(axes)
    if len(steps) != len(axes):
        raise ArgumentTypeError(
            f"gradient got {len(varargs)} distances for {len(axes)} axes; pass one for each axis, "
            "or one number"
        )
    for step, along in zip(steps, axes, strict=True):
        if getattr(step, "ndim", 0) and step.shape != (layout.shape[along],):
            raise ArgumentError(
                f"gradient got coordinates of shape {tuple(step.shape)} for axis {along} of length "
                f"{layout.shape[along]}; pass as many, in one axis"
            )
    source = reduce_partial("gradient", x) if layout.has_partial else x
    found = []
    for step, along in zip(steps, axes, strict=True):
        coordinates = [step] if getattr(step, "ndim", 0) else []
        distance = None if coordinates else np.asarray(step).dtype
        found.append(run(_gradient, [source, *coordinates], (along, edge_order, distance), step))
    return found[0] if len(found) == 1 else tuple(found)


def _spacing(value: Any) -> Any:
    """Return a distance as a number, or coordinates as an array."""
    if isinstance(value, BaseArray):
        if not value.ndim:
            return read_values("gradient", value)[()]
        return reduce_partial("gradient", value) if value._layout.has_partial else value
    array = plain_buffer(value, "gradient")
    if array.dtype.kind not in "biufcmM":
        raise ArgumentTypeError(f"gradient got {describe(value)}; distances are numbers or times")
    if isinstance(value, PLAIN_SCALARS):  # whose dtype gives way to that of the array
        return value
    return array if array.ndim else _backend.to_host(array)[()]
