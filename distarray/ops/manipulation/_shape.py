"""Axes renamed, added, dropped, widened and reversed, and triangles of matrices.

A result that needed communication is a read-only copy, else a view. `Partial` arrays stay so where
no item changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    check_distributed,
    check_integer,
    copy_block,
    normalize_shape,
    register,
    run_one,
)
from distarray.errors import AxisError, ShapeError
from distarray.layout import DimMap, Layout, dimmap, normalize_axes, normalize_axis, read_axes
from distarray.ops.families._selection import flip_axes
from distarray.ops.families._shape_function import Local, relabel, shape_function
from distarray.typing import Axes, Buffer, Shape


def _as_key(axes: Any) -> Any:
    """Return an argument that names axes (None, one or several) as a part of a key."""
    return axes if axes is None or type(axes) is int else read_axes(axes)


# --- the order of the axes -----------------------------------------------------------------------


def _reorder(change: DimMap) -> tuple[DimMap, Any]:
    axes = tuple(source.axis for source in change.axes if isinstance(source, dimmap.InputAxis))
    return change, lambda _: lambda block: block.transpose(axes)


def _swap(shape: Shape, pair: tuple[int, int]) -> tuple[DimMap, Any]:
    a, b = (normalize_axis(axis, len(shape)) for axis in pair)
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    return _reorder(dimmap.transpose(shape, order))


_transpose = shape_function(
    "transpose", lambda shape, axes: _reorder(dimmap.transpose(shape, axes))
)
_moveaxis = shape_function("moveaxis", lambda shape, pair: _reorder(dimmap.moveaxis(shape, *pair)))
_swapaxes = shape_function("swapaxes", _swap)


@register
def permute_dims(x: Any, /, axes: Sequence[int]) -> Any:
    """Return the array with axis `axes[i]` as its axis i.

    Raises
    ------
    AxisError
        If `axes` is not a permutation of the axes.

    Examples
    --------
    >>> import distarray as da
    >>> da.permute_dims(da.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    return run_one(_transpose, check_distributed("transpose", x), _as_key(axes))


@register
def transpose(x: Any, /, axes: Sequence[int] | None = None) -> Any:
    """Return the array with its axes in another order; default: reversed.

    Raises
    ------
    AxisError
        If `axes` is not a permutation of the axes.

    Examples
    --------
    >>> import distarray as da
    >>> da.transpose(da.zeros((2, 3, 4))).shape
    (4, 3, 2)
    """
    return run_one(_transpose, check_distributed("transpose", x), _as_key(axes))


@register
def matrix_transpose(x: Any, /) -> Any:
    """Return the array with its last two axes exchanged.

    Raises
    ------
    AxisError
        If it has fewer than two axes.

    Examples
    --------
    >>> import distarray as da
    >>> da.matrix_transpose(da.zeros((2, 3, 4))).shape
    (2, 4, 3)
    """
    if check_distributed("matrix_transpose", x)._layout.ndim < 2:
        raise AxisError(
            f"matrix_transpose got an array of shape {x.shape}; it needs at least two axes"
        )
    return run_one(_swapaxes, check_distributed("swapaxes", x), (-1, -2))


@register
def swapaxes(x: Any, /, axis1: int, axis2: int) -> Any:
    """Return the array with two axes exchanged.

    Raises
    ------
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> da.swapaxes(da.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    return run_one(_swapaxes, check_distributed("swapaxes", x), (_as_key(axis1), _as_key(axis2)))


@register
def moveaxis(x: Any, /, source: Axes, destination: Axes) -> Any:
    """Return the array with axes `source` at places `destination`, the others in order.

    Raises
    ------
    AxisError
        If an axis does not exist, is named twice, or the two do not name equally many.

    Examples
    --------
    >>> import distarray as da
    >>> da.moveaxis(da.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    return run_one(
        _moveaxis, check_distributed("moveaxis", x), (_as_key(source), _as_key(destination))
    )


@register
def rollaxis(x: Any, /, axis: int, start: int = 0) -> Any:
    """Return the array with an axis before another one; `moveaxis` says it more simply.

    Parameters
    ----------
    x : DistArray
    axis : int
        The axis that moves.
    start : int
        Before which axis, up to the number of axes.

    Raises
    ------
    AxisError
        If there is no such axis or place.

    Examples
    --------
    >>> import distarray as da
    >>> da.rollaxis(da.ones((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    ndim = check_distributed("rollaxis", x)._layout.ndim
    source = normalize_axis(axis, ndim)
    start = check_integer("rollaxis", "start", start)
    place = ndim if start == ndim else normalize_axis(start, ndim)
    return moveaxis(x, source, place - (source < place))


# --- axes of length 1 ----------------------------------------------------------------------------


_squeeze = shape_function("squeeze", lambda shape, axes: relabel(dimmap.squeeze(shape, axes)))
_expand_dims = shape_function(
    "expand_dims", lambda shape, axes: relabel(dimmap.expand_dims(shape, axes))
)


@register
def squeeze(x: Any, /, axis: Axes = None) -> Any:
    """Return the array without axes of length 1: those named, by default all.

    Raises
    ------
    ShapeError
        If a named axis has another length.
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> da.squeeze(da.zeros((1, 3, 1))).shape
    (3,)
    """
    return run_one(_squeeze, check_distributed("squeeze", x), _as_key(axis))


@register
def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Any:
    """Return the array with new axes of length 1 at the places `axis` of the result.

    Raises
    ------
    AxisError
        If the result has no such place.

    Examples
    --------
    >>> import distarray as da
    >>> da.expand_dims(da.zeros((2, 3)), axis=1).shape
    (2, 1, 3)
    """
    return run_one(_expand_dims, check_distributed("expand_dims", x), _as_key(axis))


# --- broadcasting --------------------------------------------------------------------------------


def _widen(before: Shape, after: Shape) -> tuple[DimMap, Any]:
    def local(layout: Layout) -> Local:
        shape = layout.local_shape()

        def widen(block: Buffer) -> Buffer:
            wide = np.broadcast_to(block, shape)
            # Nothing protects a view in CuPy from being written to, all its items at once.
            return wide if _backend.is_numpy(wide) else copy_block(wide)

        return widen

    return dimmap.broadcast_to(before, after), local


_broadcast_to = shape_function("broadcast_to", _widen)


@register
def broadcast_to(x: Any, /, shape: int | Sequence[int]) -> Any:
    """Return the array repeated to `shape` along new axes and those of length 1.

    The blocks of the result are read-only views; on GPUs, whose memory nothing protects, copies.

    Raises
    ------
    ShapeError
        If the array does not broadcast to `shape`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.broadcast_to(da.arange(3), (2, 3)))
    [[0 1 2]
     [0 1 2]]
    """
    result = run_one(_broadcast_to, check_distributed("broadcast_to", x), normalize_shape(shape))
    return result._new(_backend.make_read_only(result._local), result._layout)


@register
def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Return the arrays, each broadcast to the shape that they have together.

    Raises
    ------
    ShapeError
        If their shapes do not fit together.

    Examples
    --------
    >>> import distarray as da
    >>> x, y = da.broadcast_arrays(da.arange(3), da.ones((2, 1)))
    >>> x.shape, y.shape
    ((2, 3), (2, 3))
    """
    shapes = [check_distributed("broadcast_arrays", x)._layout.shape for x in arrays]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(
            f"broadcast_arrays got shapes {shapes}; counted from the last axis, sizes must be "
            "equal or 1"
        ) from None
    return tuple(broadcast_to(x, shape) for x in arrays)


# --- the order of the items ----------------------------------------------------------------------


@register
def flip(x: Any, /, axis: Axes = None) -> Any:
    """Return the array with the order of its items reversed along some axes, by default all.

    Along an uncut axis the result looks at the memory of `x`. Along a cut axis blocks and their
    mirror images are exchanged: the result is a read-only copy, whose boundaries are the mirror
    image of those of `x`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.flip(da.arange(4)))
    [3 2 1 0]
    """
    layout = check_distributed("flip", x)._layout
    axes = normalize_axes(axis, layout.ndim)
    return flip_axes(x, axes) if layout.ndim else x[()]


@register
def fliplr(x: Any, /) -> Any:
    """Return the array with its columns, along axis 1, in reversed order; see `flip`.

    Raises
    ------
    AxisError
        If it has fewer than two axes.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.fliplr(da.arange(4).reshape(2, 2)))
    [[1 0]
     [3 2]]
    """
    return flip(x, 1)


@register
def flipud(x: Any, /) -> Any:
    """Return the array with its rows, along axis 0, in reversed order; see `flip`.

    Raises
    ------
    AxisError
        If it has no axes.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.flipud(da.arange(3)))
    [2 1 0]
    """
    return flip(x, 0)


@register
def rot90(x: Any, /, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """Return the array turned by right angles, from the first to the second of two axes.

    Parameters
    ----------
    x : DistArray
    k : int
        How often.
    axes : two ints
        The plane.

    Returns
    -------
    DistArray
        Its axes are cut as those of `x` that they were; see `flip` for what is sent.

    Raises
    ------
    AxisError
        If there are no such two axes.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.rot90(da.arange(4).reshape(2, 2)))
    [[1 3]
     [0 2]]
    """
    plane = normalize_axes(axes, check_distributed("rot90", x)._layout.ndim)
    if len(plane) != 2:
        raise AxisError(f"rot90 got axes={axes!r}; it turns in the plane of two")
    first, second = plane
    match check_integer("rot90", "k", k) % 4:
        case 0:
            return flip_axes(x, ())
        case 1:
            return swapaxes(flip(x, second), first, second)
        case 2:
            return flip(x, plane)
        case _:
            return flip(swapaxes(x, first, second), second)


@register
def tril(x: Any, /, k: int = 0) -> Any:
    """Return the last two axes' items on and below diagonal `k`, zeros elsewhere.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.tril(da.ones((3, 3), int)))
    [[1 0 0]
     [1 1 0]
     [1 1 1]]
    """
    return _triangle(_lower, x, k)


@register
def triu(x: Any, /, k: int = 0) -> Any:
    """Return the last two axes' items on and above diagonal `k`, zeros elsewhere.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.triu(da.ones((3, 3), int)))
    [[1 1 1]
     [0 1 1]
     [0 0 1]]
    """
    return _triangle(_upper, x, k)


def _triangle(op: Op, x: Any, k: int) -> Any:
    name, layout = op.name, check_distributed(op.name, x)._layout
    if layout.ndim < 2:
        raise AxisError(f"{name} got an array of shape {layout.shape}; it needs at least two axes")
    rows, columns = layout.shape[-2:]
    return run_one(op, x, min(max(check_integer(name, "k", k), -rows), columns))


def _triangle_spec(_: Op, call: Call) -> Layouts:
    whole = reduce_unless_sum(call.layouts[0])
    return Layouts((whole,), whole)


def _triangle_bind(step: Step) -> Callable[[Buffer], Buffer]:
    box = step.output.own_box
    local, shift = step.op.local, step.call.static + box[-2][0] - box[-1][0]

    def triangle(block: Buffer) -> Buffer:
        kept = local(block, shift)
        return copy_block(block) if kept is block else kept

    return triangle


_lower = Op("tril", np.tril, _triangle_spec, bind=_triangle_bind)
_upper = Op("triu", np.triu, _triangle_spec, bind=_triangle_bind)


def reduce_unless_sum(layout: Layout) -> Layout:
    """Return the layout in which zeros may be put: sums stay `Partial`, other kinds are reduced."""
    if all(
        p.is_partial("sum") or p.is_partial("avg") or not p.is_partial() for p in layout.placements
    ):
        return layout
    return layout.without_partial()
