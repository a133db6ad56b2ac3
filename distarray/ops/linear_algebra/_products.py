"""Further products of vectors and matrices, and diagonals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from distarray.core import (
    REFUSALS,
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    check_distributed,
    check_integer,
    describe,
    normalize_arrays,
    normalize_operands,
    register,
    run,
    run_one,
)
from distarray.errors import ArgumentError, ArgumentTypeError, AxisError, ShapeError
from distarray.layout import normalize_axes, normalize_axis
from distarray.ops.elementwise._arithmetic import multiply
from distarray.ops.elementwise._rounding import conj
from distarray.ops.families._relabel import carry_cuts, recut
from distarray.ops.linear_algebra._contraction import matmul, tensordot, vecdot
from distarray.ops.linear_algebra._whole_axes import Axes, whole_axes
from distarray.ops.manipulation._reshape import change_shape, reshape
from distarray.ops.manipulation._shape import moveaxis
from distarray.ops.statistical._reductions import sum
from distarray.typing import Buffer

_cross = whole_axes("cross", np.cross, agreed=False)


@register
def cross(
    x1: Any, x2: Any, /, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """Return the cross products of vectors of three items.

    Parameters
    ----------
    x1, x2 : DistArray or array
        Their other axes broadcast.
    axisa, axisb, axisc : int
        The axes of vectors of `x1`, `x2` and the result, of length 3.
    axis : int, optional
        All three.

    Returns
    -------
    DistArray
        Cut as the operands are, or, where vectors were cut, along another axis longer than 1.

    Raises
    ------
    ShapeError
        If the vectors have another length, or the other axes do not broadcast.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: nothing is sent where vectors are not cut, else one all-to-all.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.cross(da.asarray([1, 0, 0]), da.asarray([0, 1, 0])))
    [0 0 1]
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    lines = []
    pairs = [
        (x, normalize_axis(check_integer("cross", "axis", place), getattr(x, "ndim", 0)))
        for x, place in zip(normalize_operands("cross", (x1, x2)), (axisa, axisb), strict=True)
    ]
    for x, at in pairs:
        if x.shape[at] != 3:
            raise ShapeError(
                f"cross got vectors of {x.shape[at]} items, along axis {at} of shape {x.shape}; "
                "they have three"
            )
        lines.append(moveaxis(x, at, -1) if isinstance(x, BaseArray) else np.moveaxis(x, at, -1))
    found = run(_cross, lines, Axes("i,i->i"))
    return moveaxis(found, -1, check_integer("cross", "axisc", axisc))


# --- diagonals -----------------------------------------------------------------------------------


def _diagonal_spec(_: Op, call: Call) -> Layouts:
    """Cut the diagonal where the blocks of the matrix cut it: first by rows, then by columns."""
    (layout,), (offset, rows, columns) = call.layouts, call.static
    below, right = max(-offset, 0), max(offset, 0)
    length = max(0, min(layout.shape[rows] - below, layout.shape[columns] - right))
    others = [axis for axis in range(layout.ndim) if axis not in (rows, columns)]
    last = len(others)
    places = {axis: place for place, axis in enumerate(others)}
    shape = (*(layout.shape[axis] for axis in others), length)
    free = carry_cuts(layout, shape, places)
    cutting = (*layout.sharding_axes(rows), *layout.sharding_axes(columns))
    if not cutting:
        return Layouts((layout,), free, copies_view=True)
    tops = [min(max(at - below, 0), length) for at in layout.partition(rows).offsets]
    lefts = [min(max(at - right, 0), length) for at in layout.partition(columns).offsets]
    offsets = [0]
    for start, stop in pairwise(tops):
        offsets += [min(max(left, start), stop) for left in lefts[1:]]
    output = recut(free, {last: cutting}, {last: offsets})
    return Layouts((layout,), output, copies_view=True)


def _diagonal_bind(step: Step) -> Callable[[Buffer], Buffer]:
    offset, rows, columns = step.call.static
    box = step.sources[0].own_box
    shift = offset + box[rows][0] - box[columns][0]
    return operator.methodcaller("diagonal", shift, rows, columns)


_diagonal = Op("diagonal", np.diagonal, _diagonal_spec, bind=_diagonal_bind)


@register
def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the diagonals of matrices.

    Parameters
    ----------
    x : DistArray
    offset : int
        Which diagonal: above the main one if positive.
    axis1, axis2 : int
        The axes of rows and columns, which the result lacks.

    Returns
    -------
    DistArray
        A view with the diagonals along its last axis, read-only. That is cut where rows or columns
        are cut, with the items of each process; `x.rebalance()` makes it even.

    Raises
    ------
    AxisError
        If there is no such axis, or it is named twice.

    Notes
    -----
    Distribution: nothing is sent. `Partial` arrays stay so.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.diagonal(da.reshape(da.arange(6), (2, 3)), 1))
    [1 5]
    """
    layout = check_distributed("diagonal", x)._layout
    offset = check_integer("diagonal", "offset", offset)
    if layout.ndim < 2:
        raise AxisError(f"diagonal got an array of shape {layout.shape}; it needs two axes")
    axes = normalize_axes((axis1, axis2), layout.ndim)
    size = max(layout.shape)
    return run_one(_diagonal, x, (min(max(offset, -size), size), *axes))


@register
def trace(
    x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None
) -> Any:
    """Return the sums of the diagonals of matrices.

    Parameters
    ----------
    x : DistArray
    offset : int
        Which diagonal: above the main one if positive.
    axis1, axis2 : int
        The axes of rows and columns, which the result lacks.
    dtype : data type, optional
        Of the result and its sums.
    out : DistArray, optional
        Where the result goes; it keeps its layout and dtype.

    Returns
    -------
    DistArray
        `Partial("sum")` where rows or columns are cut.

    Raises
    ------
    AxisError
        If there is no such axis, or it is named twice.

    Notes
    -----
    Distribution: those of `diagonal` and `sum`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.trace(da.eye(3)))
    3.0
    """
    return sum(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype, out=out)


# --- products ------------------------------------------------------------------------------------


@register
def kron(x1: Any, x2: Any, /) -> Any:
    """Return the Kronecker product: the second array times each item of the first.

    Parameters
    ----------
    x1, x2 : DistArray or array
        The one with fewer axes gets axes of length 1 in front.

    Returns
    -------
    DistArray
        Whose lengths are the products of those of the operands.

    Notes
    -----
    Distribution: that of the product of all items, for which the cheaper operand is collected where
    both are cut, and of `reshape`; an `x1` cut along its first axis stays so, and nothing more is
    sent.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.kron(da.asarray([1, 10]), da.asarray([1, 2])))
    [ 1  2 10 20]
    """
    x1, x2 = normalize_arrays("kron", (x1, x2))
    ndims = [x.ndim for x in (x1, x2)]
    if 0 in ndims:
        return multiply(x1, x2)
    ndim = max(ndims)
    every = slice(None)
    left = (None,) * (2 * (ndim - ndims[0])) + (every, None) * ndims[0]
    right = (None,) * (2 * (ndim - ndims[1])) + (None, every) * ndims[1]
    product = multiply(x1[left], x2[right])
    pairs = zip(product.shape[::2], product.shape[1::2], strict=True)
    return reshape(product, tuple(m * n for m, n in pairs))


@register
def vdot(x1: Any, x2: Any, /, *, reproducible: bool = False) -> Any:
    """Return the sum of `conj(x1) * x2` over all items, both taken as flat.

    Parameters
    ----------
    x1, x2 : DistArray or array
        With equally many items.
    reproducible : bool
        As for `vecdot`.

    Returns
    -------
    DistArray
        Of no axes; `Partial("sum")` where the operands are cut.

    Raises
    ------
    ShapeError
        If they have different numbers of items.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.vdot(da.asarray([1j, 2.0]), da.asarray([1j, 1.0])))
    (3+0j)
    """
    x1, x2 = normalize_operands("vdot", (x1, x2))
    both = isinstance(x1, BaseArray) and isinstance(x2, BaseArray)
    if both and x1.ndim > 1 and x1.shape == x2.shape and not reproducible:
        moves = any(x1._layout.sharding_axes(axis) for axis in range(1, x1.ndim))
        if moves and x1.dtype.kind in "biuf":  # items stay where they lie, in whatever order
            return tensordot(x1, x2, x1.ndim)
    left, right = [
        change_shape(x, (-1,)) if isinstance(x, BaseArray) else np.reshape(x, (-1,))
        for x in (x1, x2)
    ]
    return vecdot(left, right, reproducible=reproducible)


@register
def matvec(x1: Any, x2: Any, /) -> Any:
    """Return the products of matrices and vectors.

    Parameters
    ----------
    x1 : DistArray or array
        Of shape (..., m, n).
    x2 : DistArray or array
        Of shape (..., n); the other axes broadcast.

    Returns
    -------
    DistArray
        Of shape (..., m). Its distribution is that of `matmul`.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.matvec(da.ones((2, 3)), da.ones(3)))
    [3. 3.]
    """
    x1, x2 = _with_axes("matvec", x1, x2, (2, 1))
    return matmul(x1, x2[..., None])[..., 0]


@register
def vecmat(x1: Any, x2: Any, /) -> Any:
    """Return the products of conjugated vectors and matrices.

    Parameters
    ----------
    x1 : DistArray or array
        Of shape (..., m).
    x2 : DistArray or array
        Of shape (..., m, n); the other axes broadcast.

    Returns
    -------
    DistArray
        Of shape (..., n). Its distribution is that of `matmul`.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.vecmat(da.ones(2), da.ones((2, 3))))
    [2. 2. 2.]
    """
    x1, x2 = _with_axes("vecmat", x1, x2, (1, 2))
    row = conj(x1) if x1.dtype.kind == "c" else x1  # of booleans NumPy's are integers
    return matmul(row[..., None, :], x2)[..., 0, :]


def _with_axes(name: str, x1: Any, x2: Any, least: tuple[int, int]) -> list[Any]:
    operands = normalize_operands(name, (x1, x2))
    shapes = [getattr(x, "shape", ()) for x in operands]
    if any(len(shape) < count for shape, count in zip(shapes, least, strict=True)):
        raise ShapeError(
            f"{name} got shapes {shapes[0]} and {shapes[1]}; they need at least {least[0]} and "
            f"{least[1]} axes"
        )
    return operands


@register
def einsum_path(subscripts: Any, *operands: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """Return an order of contraction of low cost for `einsum`, as NumPy finds it.

    Parameters
    ----------
    subscripts : str
        As for `einsum`.
    *operands : DistArray or array
        Their shapes alone are looked at.
    optimize : optional
        As in NumPy.

    Returns
    -------
    path : list
        For `np.einsum`; ours finds its own.
    description : str

    Examples
    --------
    >>> import distarray as da
    >>> da.einsum_path("ij,jk", da.eye(2), da.eye(2))[0]
    ['einsum_path', (0, 1)]
    """
    if not isinstance(subscripts, str):
        raise ArgumentTypeError(
            f"einsum_path got {describe(subscripts)} first; it takes a string of subscripts"
        )
    stand_ins = [
        np.broadcast_to(np.empty((), x.dtype), x.shape) if isinstance(x, BaseArray) else x
        for x in operands
    ]
    try:
        return np.einsum_path(subscripts, *stand_ins, optimize=optimize)
    except (*REFUSALS, LookupError, AttributeError) as error:
        raise ArgumentError(f"einsum_path of {describe(subscripts)}: {error}") from None
