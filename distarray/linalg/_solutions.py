"""Inverses, solutions of linear equations and determinants."""

from __future__ import annotations

import builtins
import functools
import math
from math import prod
from typing import Any, NamedTuple

import numpy as np

from distarray.core import (
    BaseArray,
    broadcast_shape,
    check_distributed,
    check_flag,
    check_integer,
    describe,
    normalize_operands,
    refusal_error,
    register,
    run,
)
from distarray.errors import ArgumentError, ShapeError
from distarray.layout import Replicate, read_axes
from distarray.linalg import _tiles
from distarray.linalg._blocks import adjoint, cut_as, multiply
from distarray.linalg._elimination import check_right_hand_side, tile_inv, tile_slogdet, tile_solve
from distarray.linalg._factorizations import svd
from distarray.linalg._kernels import check_finite
from distarray.linalg._tall import is_tall
from distarray.linalg._tiles import is_large, takes_tiles
from distarray.ops import (
    Axes,
    LinAlgError,
    abs,
    asarray,
    astype,
    exp,
    give_values,
    matmul,
    matrix_transpose,
    max,
    permute_dims,
    reciprocal,
    reshape,
    sum,
    where,
    whole_axes,
    zeros,
)


def _pinv_of_finite(block: Any, *cutoff: Any, **options: Any) -> Any:
    if not options["hermitian"]:
        check_finite(block)
    return np.linalg.pinv(block, *cutoff, **options)


class SlogdetResult(NamedTuple):
    """Signs of determinants, and logarithms of their absolute values."""

    sign: Any
    logabsdet: Any


_inv = whole_axes("inv", np.linalg.inv, fails=True)
_pinv = whole_axes("pinv", _pinv_of_finite, fails=True)
_solve = whole_axes("solve", np.linalg.solve, fails=True)
_det = whole_axes("det", np.linalg.det)
_slogdet = whole_axes("slogdet", lambda block: tuple(np.linalg.slogdet(block)))


def inv(x: Any, /) -> Any:
    """Return the inverses of square matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).

    Returns
    -------
    DistArray
        Of the shape of `x`, cut as `x` is, or along a batch axis where that had to be.

    Raises
    ------
    LinAlgError
        If a matrix is not square or singular; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: nothing is sent where no matrix is cut; else one all-to-all that cuts a batch axis
    instead, or, of a single matrix up to 8 MiB, an all-gather. Processes with the same matrices
    compare checksums of the results. Peak memory: twice what a process then has. A single matrix
    that is larger is eliminated as by `solve`, beside the identity: on p processes each receives
    about 7 n^2 / (2 sqrt(p)) items. Peak memory: six blocks.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.inv(da.eye(2) * 4))
    [[0.25 0.  ]
     [0.   0.25]]
    """
    if takes_tiles(x):
        return run(tile_inv, (x,), _tiles.tile_width(x))
    return run(_inv, (x,), Axes("ij->ij"))


def pinv(x: Any, /, rcond: Any = None, hermitian: bool = False, *, rtol: Any = np._NoValue) -> Any:
    """Return the Moore-Penrose inverses of matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    rcond, rtol : number or array, optional
        Singular values below this times the largest count as 0; an array has one of each matrix.
        One of the two; default: 1e-15, and with `rtol=None` max(m, n) times the precision.
    hermitian : bool
        Whether the matrices are hermitian, for which there is a quicker way.

    Returns
    -------
    DistArray
        Of shape (..., n, m), cut as the axes of `x` are, or along a batch axis instead.

    Raises
    ------
    ArgumentError
        If both `rcond` and `rtol` are given.
    LinAlgError
        If the decomposition does not converge; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: of a matrix with many more rows than columns that is cut along its rows (or the
    other way round), and of a single one of more than 128 MiB, as for `svd`; else as for `inv`,
    where a single matrix is collected.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.pinv(da.ones((2, 1))))
    [[0.5 0.5]]
    """
    options: dict[str, Any] = {"hermitian": check_flag("pinv", "hermitian", hermitian)}
    if rcond is not None and rtol is not np._NoValue:
        raise ArgumentError("pinv() takes one of rcond= and rtol=")
    cutoff = rtol if rcond is None else rcond
    if isinstance(cutoff, (BaseArray, np.ndarray, list, tuple)):
        (cutoff,) = normalize_operands("pinv", (cutoff,))
        batch = check_distributed("pinv", x).shape[:-2]
        if broadcast_shape("pinv", [batch, cutoff.shape]) != batch:
            raise ShapeError(f"pinv got cutoffs of shape {cutoff.shape} for matrices of {batch}")
        return run(_pinv, (x, cutoff), Axes("ij,->ji", tuple(options.items())))
    if cutoff is not np._NoValue:
        options["rtol"] = None if cutoff is None else _number("pinv", cutoff)
    several = not options["hermitian"] and isinstance(x, BaseArray) and x.ndim > 1
    large = is_large(x, _tiles.COLLECTED_BYTES)
    if large or (several and any(is_tall(one.layout) for one in (x, matrix_transpose(x)))):
        u, s, vh = svd(x, full_matrices=False)
        least = options.get("rtol", 1e-15)
        if least is None:
            least = builtins.max(x.shape[-2:]) * float(np.finfo(s.dtype).eps)
        kept = s > least * max(s, axis=-1, keepdims=True)
        inverse = where(kept, reciprocal(where(kept, s, 1.0)), 0.0)
        first, second = adjoint(vh) * inverse[..., None, :], adjoint(u)
        return (
            cut_as(multiply(first, second), matrix_transpose(x)) if large else matmul(first, second)
        )
    return run(_pinv, (x,), Axes("ij->ji", tuple(options.items())))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} got {describe(value)}; it must be a number") from None


def solve(x1: Any, x2: Any, /) -> Any:
    """Return the solutions x of `x1 @ x = x2`.

    Parameters
    ----------
    x1 : DistArray or array
        Of shape (..., m, m).
    x2 : DistArray or array
        Of shape (..., m, k), whose other axes broadcast with those of `x1`, or (m,). One of the two
        is distributed; a plain array is the same on every process.

    Returns
    -------
    DistArray
        Of the shape of `x2`, with the broadcast batch axes. Cut as the rows are of `x1` or else
        `x2`, and as the columns of `x2`; along a batch axis where that had to be.

    Raises
    ------
    LinAlgError
        If a matrix is not square or singular; on all processes.
    ShapeError
        If the shapes do not fit together.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, of both arrays. A single matrix of more than 8 MiB that is cut is
    eliminated where it is distributed, in tiles of a block-cyclic distribution, with pivots that a
    tournament finds (CALU: Grigori, Demmel, Xiang 2011), which may grow a little more than those of
    partial pivoting. On p processes each receives about 3 n^2 / (2 sqrt(p)) items of panels, of
    right-hand sides twice n / sqrt(p) for each, and its tiles twice. Peak memory: five and a half
    blocks, of the larger operand, and two panels of 256 columns; where processes cannot share the
    rows in tiles evenly up to half as much again.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.solve(da.eye(2) * 4, da.ones(2)))
    [0.25 0.25]
    """
    x1, x2 = normalize_operands("solve", (x1, x2))
    check_right_hand_side("solve", x2, x1)
    if x2.ndim == 1:
        return solve(x1, x2[:, None])[..., 0]
    if takes_tiles(x1) and x2.ndim == 2 and len(x1) == len(x2):
        return run(tile_solve, (x1, x2), _tiles.tile_width(x1))
    return run(_solve, (x1, x2), Axes("ij,ik->ik"))


def det(x: Any, /) -> Any:
    """Return the determinants of square matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).

    Returns
    -------
    DistArray
        Of shape (...); of a single matrix a number that every process has.

    Raises
    ------
    LinAlgError
        If a matrix is not square.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, without the identity: of a single matrix that is larger each of p
    processes receives about n^2 / sqrt(p) items. Peak memory: three blocks.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.det(da.eye(2)))
    1.0
    """
    if takes_tiles(x):
        sign, logarithm = slogdet(x)
        return sign * exp(logarithm)
    return run(_det, (x,), Axes("ij->"))


def slogdet(x: Any, /) -> SlogdetResult:
    """Return signs, and logarithms of the absolute values, of determinants.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, m).

    Returns
    -------
    SlogdetResult
        With `sign` and `logabsdet`, both of shape (...).

    Raises
    ------
    LinAlgError
        If a matrix is not square.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, without the identity: of a single matrix that is larger each of p
    processes receives about n^2 / sqrt(p) items. Peak memory: three blocks.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.slogdet(da.eye(3)).logabsdet)
    0.0
    """
    if takes_tiles(x):
        return SlogdetResult(*run(tile_slogdet, (x,), _tiles.tile_width(x)))
    return SlogdetResult(*run(_slogdet, (x,), Axes("ij->,")))


def lstsq(a: Any, b: Any, rcond: float | None = None) -> tuple[Any, Any, int, Any]:
    """Return the least-squares solution of `a @ x = b`, of smallest norm where there are many.

    Parameters
    ----------
    a : DistArray or array
        Of shape (m, n).
    b : DistArray or array
        Of shape (m,) or (m, k). One of both is distributed; a plain one is the same everywhere.
    rcond : float, optional
        Singular values of `a` up to this times the largest count as 0. Default: max(m, n) times the
        precision of float64; that alone if it is negative.

    Returns
    -------
    x : DistArray
        Of shape (n,) or (n, k).
    residuals : DistArray
        Sums of squares of `b - a @ x` of each column; of no items where `a` has not rank n, or
        m <= n.
    rank : int
        Of `a`.
    s : DistArray
        The singular values of `a`.

    Raises
    ------
    LinAlgError
        If the shapes do not fit together, or the decomposition does not converge.

    Notes
    -----
    Distribution: the decomposition is that of `svd`; products with `b` stay distributed. Peak
    memory: of tall matrices two blocks like `a` or like `b`, in double precision; else that of
    `svd`.

    Examples
    --------
    >>> import distarray as da
    >>> x, residuals, rank, s = da.linalg.lstsq(da.asarray([[1.0], [1.0]]), da.asarray([1.0, 3.0]))
    >>> print(x, rank)
    [2.] 1
    """
    if isinstance(b, BaseArray) and not isinstance(a, BaseArray):
        mesh = b._layout.mesh
        a = asarray(a, mesh=mesh, placements=[Replicate()] * mesh.ndim)
    a, b = normalize_operands("lstsq", (check_distributed("lstsq", a), b))
    shapes: Any = a.shape, getattr(b, "shape", ())
    if len(shapes[0]) != 2 or len(shapes[1]) not in (1, 2) or shapes[0][0] != shapes[1][0]:
        raise LinAlgError(
            f"lstsq got shapes {shapes[0]} and {shapes[1]}; they must be (m, n) and (m,) or (m, k)"
        )
    try:
        kind = _solution_dtype(a.dtype, b.dtype)
    except TypeError as error:
        raise refusal_error("lstsq", error, (a.dtype, b.dtype)) from error
    wide = np.result_type(kind, np.float64)  # as NumPy computes
    a, b = astype(a, wide, copy=False), b.astype(wide, copy=False)
    rows, columns = shapes[0]
    u, s, vh = svd(a, full_matrices=False)
    precision = float(np.finfo(np.float64).eps)
    if rcond is None:
        cutoff = precision * builtins.max(shapes[0])
    else:
        given = _number("lstsq", rcond)
        cutoff = given if given >= 0 else precision
    told = np.asarray(s)
    largest = float(told.max(initial=0))
    if math.isnan(largest):  # as infinities leave without an error
        raise LinAlgError("lstsq: SVD did not converge; NaN or infinities are among the items")
    if math.isinf(largest):  # of both, scaled alike, the solution is the same
        unit = 2.0**-512
        x, residuals, rank, s = lstsq(a * unit, b * unit, rcond)
        return x, residuals / unit / unit, rank, s / unit
    kept = told > cutoff * largest
    rank = int(np.count_nonzero(kept))
    right = b if b.ndim == 2 else b[:, None]
    unit = 2.0 ** builtins.min(-math.frexp(largest)[1], 1000)  # so that no reciprocal overflows
    inverse = give_values(s, np.divide(1, told * unit, where=kept, out=np.zeros(told.shape)))
    x = unit * matmul(adjoint(vh), inverse[:, None] * matmul(adjoint(u), right))
    del u  # a block like `a`
    small = np.empty(0, kind).real.dtype
    if rank == columns and rows > columns:
        residuals = astype(sum(abs(right - matmul(a, x)) ** 2, axis=0), small)
    else:
        residuals = zeros(0, small, mesh=a.layout.mesh)
    return astype(x if b.ndim == 2 else x[:, 0], kind), residuals, rank, astype(s, small)


@functools.lru_cache(maxsize=64)  # which takes NumPy 8 us to find
def _solution_dtype(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of NumPy's solution; a TypeError for those that it does not take."""
    return np.linalg.lstsq(np.zeros((1, 1), a), np.zeros(1, b))[0].dtype


def tensorinv(a: Any, ind: int = 2) -> Any:
    """Return the inverse of an array as a map of its last axes to its first `ind` axes.

    Parameters
    ----------
    a : DistArray
        Whose first `ind` axes have as many items as the others.
    ind : int
        How many.

    Returns
    -------
    DistArray
        Of shape `a.shape[ind:] + a.shape[:ind]`.

    Raises
    ------
    ArgumentError
        If `ind` is not positive.
    LinAlgError
        If the matrix is not square or singular.

    Notes
    -----
    Distribution: those of `reshape` and `inv`.

    Examples
    --------
    >>> import distarray as da
    >>> da.linalg.tensorinv(da.reshape(da.eye(6), (2, 3, 6))).shape
    (6, 2, 3)
    """
    shape = check_distributed("tensorinv", a).shape
    ind = check_integer("tensorinv", "ind", ind)
    if ind <= 0:
        raise ArgumentError(f"tensorinv got ind={ind}; it must be positive")
    inverse = inv(reshape(a, (prod(shape[:ind]), prod(shape[ind:]))))
    return reshape(inverse, (*shape[ind:], *shape[:ind]))


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Return the array x with `tensordot(a, x, x.ndim) = b`.

    Parameters
    ----------
    a : DistArray or array
        Of shape `b.shape + x.shape`, both with equally many items.
    b : DistArray or array
        One of the two is distributed.
    axes : sequence of int, optional
        Axes of `a` that are moved to its end first.

    Returns
    -------
    DistArray

    Raises
    ------
    LinAlgError
        If the shapes do not fit together, or the matrix is singular.

    Notes
    -----
    Distribution: those of `reshape` and `solve`.

    Examples
    --------
    >>> import distarray as da
    >>> da.linalg.tensorsolve(da.reshape(da.eye(6), (2, 3, 6)), da.ones((2, 3))).shape
    (6,)
    """
    a, b = normalize_operands("tensorsolve", (a, b))
    ndim = getattr(a, "ndim", 0)
    if axes is not None:
        read = read_axes(axes)
        last = read if isinstance(read, tuple) else (read,)
        order = [axis for axis in range(ndim) if axis not in last] + [*last]
        a = permute_dims(a, order) if isinstance(a, BaseArray) else np.transpose(a, order)
    shape = a.shape[getattr(b, "ndim", 0) :] if ndim else ()
    size = prod(shape)
    if not ndim or prod(a.shape) != size**2 or prod(getattr(b, "shape", ())) != size:
        raise LinAlgError(
            f"tensorsolve got shapes {getattr(a, 'shape', ())} and {getattr(b, 'shape', ())}; the "
            "first must be the second and as many items again"
        )
    flat = [
        reshape(x, to) if isinstance(x, BaseArray) else np.reshape(x, to)
        for x, to in ((a, (size, size)), (b, (size,)))
    ]
    return reshape(solve(*flat), shape)


for _function in (inv, pinv, solve, det, slogdet, lstsq, tensorinv, tensorsolve):
    register(_function, room="linalg")
