"""Products of matrices and vectors, and diagonals of matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from distarray.core import check_distributed, check_integer, normalize_operands, register
from distarray.errors import ArgumentError, ShapeError
from distarray.linalg._solutions import inv
from distarray.ops import (
    LinAlgError,
    broadcast_to,
    copy,
    copyto,
    eye,
    matmul,
    matrix_transpose,
    tensordot,
    vecdot,
)
from distarray.ops import cross as cross_of_axes
from distarray.ops import diagonal as diagonal_of_axes
from distarray.ops import outer as outer_of_flat
from distarray.ops import trace as trace_of_axes


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the cross products of vectors of three items.

    Parameters
    ----------
    x1, x2 : DistArray or array
        Of length 3 along the axis; the others broadcast.
    axis : int
        The axis of each operand.

    Returns
    -------
    DistArray
        Cut as the operands are, or, where vectors were cut, along another axis longer than 1.

    Raises
    ------
    ShapeError
        If the axis has another length, or the other axes do not broadcast.
    AxisError
        If an operand has no such axis.

    Notes
    -----
    Distribution: nothing is sent where vectors are not cut, else one all-to-all.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.cross(da.asarray([1, 0, 0]), da.asarray([0, 1, 0])))
    [0 0 1]
    """
    return cross_of_axes(x1, x2, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """Return the products of every item of a vector with every item of another.

    Parameters
    ----------
    x1, x2 : DistArray or array
        Of one axis each.

    Returns
    -------
    DistArray
        Of shape `(len(x1), len(x2))`, cut as the operands are. Nothing is sent where they are cut
        by different mesh axes; else the shorter one is collected.

    Raises
    ------
    ShapeError
        If an operand has more axes, or none.

    Examples
    --------
    >>> import distarray as da
    >>> da.linalg.outer(da.arange(2), da.arange(3)).shape
    (2, 3)
    """
    x1, x2 = normalize_operands("outer", (x1, x2))
    if getattr(x1, "ndim", 0) != 1 or getattr(x2, "ndim", 0) != 1:
        shapes = [getattr(x, "shape", ()) for x in (x1, x2)]
        raise ShapeError(
            f"linalg.outer got shapes {shapes[0]} and {shapes[1]}; both need one axis (da.outer "
            "takes all items of others)"
        )
    return outer_of_flat(x1, x2)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """Return the diagonals of the matrices of the last two axes.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    offset : int
        Which diagonal: above the main one if positive.

    Returns
    -------
    DistArray
        Of shape (..., length); read-only, as NumPy's. See `da.diagonal`.

    Raises
    ------
    AxisError
        If `x` has less than two axes.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.diagonal(da.eye(2)))
    [1. 1.]
    """
    return diagonal_of_axes(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """Return the sums of the diagonals of the matrices of the last two axes.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    offset : int
        Which diagonal: above the main one if positive.
    dtype : data type, optional
        Of the result and its sums.

    Returns
    -------
    DistArray
        Of shape (...); `Partial("sum")` where matrices are cut.

    Raises
    ------
    AxisError
        If `x` has less than two axes.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.trace(da.eye(2)))
    2.0
    """
    return trace_of_axes(x, offset, -2, -1, dtype)


def matrix_power(x: Any, n: int, /) -> Any:
    """Return a power of square matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).
    n : int
        If it is negative, a power of the inverses.

    Returns
    -------
    DistArray

    Raises
    ------
    LinAlgError
        If a matrix is not square, or must be inverted and is singular.
    ArgumentTypeError
        If `n` is no integer.

    Notes
    -----
    Distribution: about log2(n) calls of `matmul`; of negative powers that of `inv`, too.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.matrix_power(da.asarray([[1, 1], [0, 1]]), 5))
    [[1 5]
     [0 1]]
    """
    shape = check_distributed("matrix_power", x).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise LinAlgError(
            f"matrix_power got shape {shape}; the last two axes must be of one length"
        )
    n = check_integer("matrix_power", "n", n)
    if n == 0:
        one = eye(shape[-1], dtype=x.dtype, mesh=x.layout.mesh)
        return copy(broadcast_to(one, shape))
    base = inv(x) if n < 0 else copy(x)
    n = abs(n)
    result = None
    while True:  # by the bits of n, from the last
        n, bit = divmod(n, 2)
        if bit:
            result = base if result is None else matmul(result, base)
        if not n:
            return result
        base = matmul(base, base)


def multi_dot(arrays: Sequence[Any], *, out: Any = None) -> Any:
    """Return the product of several matrices, in the order that takes the fewest multiplications.

    Parameters
    ----------
    arrays : sequence of DistArray or array
        At least two; the first and the last may be vectors.
    out : DistArray, optional
        Where the result goes; it keeps its layout and dtype.

    Returns
    -------
    DistArray

    Raises
    ------
    ArgumentError
        If there are less than two.
    LinAlgError
        If others than the first and the last are not matrices.
    ShapeError
        If they do not fit together.

    Notes
    -----
    Distribution: that of `matmul`, for each product.

    Examples
    --------
    >>> import distarray as da
    >>> da.linalg.multi_dot([da.ones((2, 3)), da.ones((3, 4)), da.ones(4)]).shape
    (2,)
    """
    arrays = normalize_operands("multi_dot", [*arrays])
    if len(arrays) < 2:
        raise ArgumentError(f"multi_dot got {len(arrays)} arrays; it takes two or more")
    shapes: list[Any] = [getattr(x, "shape", ()) for x in arrays]
    if any(len(shape) != 2 for shape in shapes[1:-1]) or not {len(shapes[0]), len(shapes[-1])} <= {
        1,
        2,
    }:
        raise LinAlgError(
            f"multi_dot got shapes {', '.join(map(str, shapes))}; all must be matrices, and the "
            "first and the last may be vectors"
        )
    sizes = [1 if len(shapes[0]) == 1 else shapes[0][0]]
    sizes += [shape[0] for shape in shapes[1:]]
    sizes += [1 if len(shapes[-1]) == 1 else shapes[-1][1]]

    @functools.cache
    def best(first: int, last: int) -> tuple[int, int]:
        """Return the multiplications of a stretch of factors, and where it is divided."""
        if first == last:
            return 0, first
        return min(
            (
                best(first, i)[0]
                + best(i + 1, last)[0]
                + sizes[first] * sizes[i + 1] * sizes[last + 1],
                i,
            )
            for i in range(first, last)
        )

    def product(first: int, last: int) -> Any:
        if first == last:
            return arrays[first]
        at = best(first, last)[1]
        return matmul(product(first, at), product(at + 1, last))

    result = product(0, len(arrays) - 1)
    if out is None:
        return result
    copyto(out, result)
    return out


_functions: tuple[Callable[..., Any], ...] = (
    *(cross, outer, diagonal, trace, matrix_power, multi_dot),
    *(matmul, matrix_transpose, tensordot, vecdot),
)
for _function in _functions:
    register(_function, room="linalg")
