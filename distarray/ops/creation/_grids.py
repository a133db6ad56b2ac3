"""Grids: arrays of the places of their own items, and what functions make of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.comm import _memory
from distarray.core import check_flag, describe, normalize_dtype, normalize_shape
from distarray.errors import ArgumentTypeError
from distarray.layout import Layout, Placement
from distarray.layout import box as boxes
from distarray.ops.creation._filled import build, target_layout
from distarray.ops.families._relabel import carry_cuts
from distarray.typing import Box, Buffer


def _coordinate(layout: Layout, axis: int, dtype: np.dtype[Any]) -> Any:
    """Return an array of the places of items along an axis."""

    def make(box: Box) -> Buffer:
        block = _memory.empty(boxes.shape(box), dtype)
        block[...] = _places(box[axis], len(box) - axis - 1)
        return block

    return build(layout, dtype, make)


def _places(bounds: tuple[int, int], following: int) -> Buffer:
    return np.arange(*bounds).reshape(-1, *(1,) * following)


def indices(
    dimensions: Any,
    dtype: Any = int,
    sparse: bool = False,
    *,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
) -> Any:
    """Return the places of all items of a grid, axis by axis.

    Parameters
    ----------
    dimensions : int or sequence of int
        Shape of the grid.
    dtype : data type
    sparse : bool
        Return a tuple of arrays, each of the grid's length along its own axis and of length 1 along
        the others.
    device, mesh
        As for `empty`.
    placements : sequence of Placement, optional
        Of arrays of the grid's shape. The result is cut as these. Default: as for `empty`.

    Returns
    -------
    DistArray or tuple of DistArray
        Of shape `(len(dimensions), *dimensions)`, in which axis `a` of the grid is axis `a + 1`.

    Raises
    ------
    ShapeError
        If a size is negative.

    Notes
    -----
    Distribution: each process computes its block.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.indices((2, 3))[1])
    [[0 1 2]
     [0 1 2]]
    """
    sizes = normalize_shape(dimensions)
    kind = normalize_dtype(dtype)
    grid = target_layout(sizes, mesh, placements, device)
    if check_flag("indices", "sparse", sparse):
        return tuple(_coordinate(_open(grid, axis), axis, kind) for axis in range(len(sizes)))
    layout = carry_cuts(grid, (len(sizes), *sizes), {a: a + 1 for a in range(len(sizes))})

    def make(box: Box) -> Buffer:
        block = _memory.empty(boxes.shape(box), kind)
        for axis, bounds in enumerate(box[1:]):
            block[axis] = _places(bounds, len(sizes) - axis - 1)
        return block

    return build(layout, kind, make)


def _open(grid: Layout, axis: int) -> Layout:
    """Return the layout of an array of length 1 along all axes but one, cut as a grid is there."""
    shape = tuple(size if a == axis else 1 for a, size in enumerate(grid.shape))
    return carry_cuts(grid, shape, {axis: axis})


def fromfunction(
    function: Callable[..., Any],
    shape: Any,
    /,
    *,
    dtype: Any = float,
    device: Any = None,
    mesh: Any = None,
    placements: Sequence[Placement] | None = None,
    **kwargs: Any,
) -> Any:
    """Return what a function makes of the places of all items, which it gets axis by axis.

    Parameters
    ----------
    function : callable
        Takes as many DistArrays as there are axes, each of the whole shape.
    shape : int or sequence of int
    dtype : data type
        Of the arrays that the function gets.
    device, mesh, placements
        Of these arrays; as for `empty`.
    **kwargs
        Passed on.

    Returns
    -------
    object
        What the function returns, for most a DistArray.

    Raises
    ------
    ShapeError
        If a size is negative.
    ArgumentTypeError
        If `function` is none.

    Notes
    -----
    Distribution: each process computes its blocks of the places; the rest is the function's.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.fromfunction(lambda i, j: 10 * i + j, (2, 3), dtype=int))
    [[ 0  1  2]
     [10 11 12]]
    """
    if not callable(function):
        raise ArgumentTypeError(f"fromfunction got {describe(function)}; pass a function")
    sizes = normalize_shape(shape)
    kind = normalize_dtype(dtype)
    grid = target_layout(sizes, mesh, placements, device)
    places = [_coordinate(grid, axis, kind) for axis in range(len(sizes))]
    return function(*places, **kwargs)
