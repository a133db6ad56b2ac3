"""Norms of vectors and matrices, and what singular values tell of matrices."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import (
    LARGE,
    Call,
    Op,
    as_block,
    check_distributed,
    check_flag,
    describe,
    dtypes_of,
    normalize_operands,
    reduce_block,
    reduction,
    register,
    run,
    run_one,
    sum_of_squares,
)
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import normalize_axes
from distarray.linalg import _tiles
from distarray.linalg._factorizations import svd
from distarray.linalg._solutions import inv
from distarray.linalg._tiles import is_large, takes_tiles
from distarray.ops import (
    Axes,
    LinAlgError,
    abs,
    astype,
    by_tiles,
    count_nonzero,
    expand_dims,
    full_like,
    isnan,
    logical_not,
    max,
    min,
    moveaxis,
    not_equal,
    power,
    sum,
    where,
    whole_axes,
)
from distarray.ops import any as any_of
from distarray.typing import Axes as SomeAxes
from distarray.typing import Buffer


def norm(x: Any, /, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return norms of vectors or matrices, as NumPy's `norm` does.

    Parameters
    ----------
    x : DistArray
    ord : number, "fro" or "nuc", optional
        Of one axis: the power whose sums are taken; inf and -inf for the largest and the smallest
        item, 0 for how many are not 0. Of two: 1, -1, inf and -inf for the largest and the smallest
        sum of columns and rows, 2 and -2 for singular values, "nuc" for their sum, "fro" for the
        root of the sum of squares. Default: that root, over all axes that `axis` names.
    axis : int or two of them, optional
        Default: all.
    keepdims : bool
        Keep the axes with length 1.

    Returns
    -------
    DistArray

    Raises
    ------
    ArgumentError
        If there is no such norm, or there are more axes than two.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: that of the reductions `sum`, `max` and `min`; with singular values that of
    `svdvals`. A `Partial` array is reduced first.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.norm(da.asarray([3.0, 4.0])))
    5.0
    """
    ndim = check_distributed("norm", x)._layout.ndim
    keepdims, ord = check_flag("norm", "keepdims", keepdims), _check_order("norm", ord)
    axes = normalize_axes(axis, ndim)
    if axis is None and (ord is None or (ndim == 2 and ord == "f") or (ord, ndim) == (2, 1)):
        return _vector(x, 2, axes, keepdims)
    if len(axes) == 1:
        return _vector(x, ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix(x, ord, axes, keepdims)
    raise ArgumentError(
        f"norm got ord={ord!r} over {len(axes)} axes; it takes one or two, and vector_norm any"
    )


def vector_norm(x: Any, /, *, axis: SomeAxes = None, keepdims: bool = False, ord: float = 2) -> Any:
    """Return norms over axes, whose items count as those of one vector.

    Parameters
    ----------
    x : DistArray
    axis : int or tuple of int, optional
        Default: all.
    keepdims : bool
        Keep the axes with length 1.
    ord : number
        The power whose sums are taken; inf and -inf for the largest and the smallest item, 0 for
        how many are not 0.

    Returns
    -------
    DistArray
        Of the remaining axes; real.

    Raises
    ------
    AxisError
        If there is no such axis.
    ArgumentTypeError
        If `ord` is no number.

    Notes
    -----
    Distribution: that of the reductions `sum`, `max` and `min`. A `Partial` array is reduced first.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.vector_norm(da.ones((2, 2)), ord=1))
    4.0
    """
    ndim = check_distributed("vector_norm", x)._layout.ndim
    keepdims = check_flag("vector_norm", "keepdims", keepdims)
    return _vector(x, _check_order("vector_norm", ord), normalize_axes(axis, ndim), keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return norms of the matrices of the last two axes.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n).
    keepdims : bool
        Keep the two axes with length 1.
    ord : {"fro", "nuc", 1, -1, 2, -2, inf, -inf}
        As for `norm`.

    Returns
    -------
    DistArray
        Of shape (...); real.

    Raises
    ------
    ArgumentError
        If there is no such norm.
    AxisError
        If `x` has less than two axes.

    Notes
    -----
    Distribution: that of the reductions `sum`, `max` and `min`; with singular values (2, -2, "nuc")
    that of `svdvals`. A `Partial` array is reduced first.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.matrix_norm(da.ones((2, 2)), ord="nuc"))
    2.0
    """
    ndim = check_distributed("matrix_norm", x)._layout.ndim
    keepdims = check_flag("matrix_norm", "keepdims", keepdims)
    return _matrix(x, _check_order("matrix_norm", ord), normalize_axes((-2, -1), ndim), keepdims)


def _check_order(name: str, ord: Any) -> Any:
    if ord is None or isinstance(ord, (str, int, float, np.integer, np.floating)):
        return ord
    raise ArgumentTypeError(f"{name}(ord={describe(ord)}): must be a number, 'fro' or 'nuc'")


def _inexact(x: Any) -> Any:
    return x if x.dtype.kind in "fc" else astype(x, np.float64)


def _vector(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    x = _inexact(x)
    if isinstance(ord, str):
        raise ArgumentError(f"a norm of vectors got ord={ord!r}; it is a number, inf or -inf")
    reduced: Any = {"axis": axes, "keepdims": keepdims}
    if ord == 0:
        return sum(astype(not_equal(x, 0), _real(x)), **reduced)
    if ord is None or ord == 2:
        return _root_of_squares(x, axes, keepdims)
    sizes = abs(x)
    if ord == np.inf:
        return max(sizes, **reduced, initial=0)
    if ord == -np.inf:
        return min(sizes, **reduced)
    if ord == 1:
        return sum(sizes, **reduced)
    return power(sum(power(sizes, ord), **reduced), _real(x).type(1) / _real(x).type(ord))


def _root_of_squares(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return run_one(_root, x, (tuple(sorted(axes)), None, keepdims, True))


def _sum_of_squares(block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool) -> Buffer:
    is_line = len(axes) == block.ndim and (block.flags.c_contiguous or block.flags.f_contiguous)
    is_wide = block.real.itemsize >= 4 and block.dtype.isnative
    if is_line and is_wide and block.nbytes >= LARGE and _backend.is_numpy(block):
        # Squares of a complex number's parts: its product with itself is NaN where one is infinite.
        parts = block.ravel(order="K").view(block.real.dtype)
        total = np.asarray(sum_of_squares(parts), dtype)
        return total.reshape((1,) * block.ndim if keepdims else ())

    def reduced(part: Buffer, keepdims: bool) -> Any:
        first, *rest = (part.real, part.imag) if part.dtype.kind == "c" else (part,)
        squares = np.square(first)
        for one in rest:
            squares += np.square(one)
        return reduce_block(np.add, as_block(squares), axes, dtype, keepdims)

    if block.nbytes < LARGE or not _backend.is_numpy(block):
        return reduced(block, keepdims)
    made = block.real.dtype.newbyteorder("=") if dtype is None else dtype
    (total,) = by_tiles(
        block, axes, lambda tile: (reduced(tile, True),), lambda a, b: (a[0] + b[0],), [made]
    )
    return total if keepdims else total.squeeze(axes)


@dtypes_of
def _real_dtypes(_: Op, call: Call) -> Any:
    return np.empty(0, call.dtypes[0].newbyteorder("=")).real


_root = reduction(
    "norm",
    "Return the root of the sum of squares over axes.",
    _sum_of_squares,
    "sum",
    (),
    answers_name=False,
    rules=(),
    dtypes=_real_dtypes,
    finish=lambda _: np.sqrt,
)


def _real(x: Any) -> Any:
    return np.empty(0, x.dtype).real.dtype


def _matrix(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    x = _inexact(x)
    rows, columns = axes
    if ord in (None, "fro", "f"):
        return _root_of_squares(x, axes, keepdims)
    if ord in (1, -1, np.inf, -np.inf):
        first, second = (rows, columns) if ord in (1, -1) else (columns, rows)
        sums = sum(abs(x), axis=first, keepdims=True)
        largest = max(sums, axis=second, keepdims=True, initial=0) if ord > 0 else None
        found = min(sums, axis=second, keepdims=True) if largest is None else largest
    elif ord in (2, -2, "nuc"):
        values = svd(moveaxis(x, axes, (-2, -1)), compute_uv=False)
        if ord == "nuc":
            found = sum(values, axis=-1)
        else:
            found = max(values, axis=-1, initial=0) if ord == 2 else min(values, axis=-1)
        found = expand_dims(found, tuple(sorted(axes)))
    else:
        raise ArgumentError(
            f"a norm of matrices got ord={ord!r}; it is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        )
    return (
        found if keepdims else found[tuple(0 if i in axes else slice(None) for i in range(x.ndim))]
    )


_cond = whole_axes("cond", np.linalg.cond, fails=True)


def cond(x: Any, /, p: Any = None) -> Any:
    """Return the condition numbers of matrices.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n); square with a `p` that is not 2 or -2.
    p : {None, 1, -1, 2, -2, inf, -inf, "fro", "nuc"}
        The norm; None is 2.

    Returns
    -------
    DistArray
        Of shape (...). It is inf of singular matrices.

    Raises
    ------
    LinAlgError
        If matrices have no items, or are not square and must be.
    ArgumentError
        If there is no such norm.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, where a single matrix is collected; if it is larger than 128 MiB, as
    for `svdvals`, and with other norms than 2 and -2 as for `inv`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.cond(da.eye(2)))
    1.0
    """
    p = _check_order("cond", p)
    if 0 in check_distributed("cond", x).shape[-2:]:
        raise LinAlgError(f"cond got shape {x.shape}; matrices need items")
    if is_large(x, _tiles.COLLECTED_BYTES) and p in (None, 2, -2):
        s = svd(x, compute_uv=False)
        with np.errstate(all="ignore"):
            found = s[-1] / s[0] if p == -2 else s[0] / s[-1]
        return where(isnan(found), np.inf, found)  # 0 / 0: of what is not finite `svd` raises
    if takes_tiles(x, _tiles.COLLECTED_BYTES):
        size = norm(x, p)
        try:
            return size * norm(inv(x), p)
        except LinAlgError:  # singular
            return full_like(size, np.inf)
    return run(_cond, (x,), Axes("ij->", (("p", p),)))


def matrix_rank(x: Any, /, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """Return the ranks of matrices: how many singular values are not near 0.

    Parameters
    ----------
    x : DistArray
        Of shape (..., m, n). Of less than two axes, the rank is 1 unless all items are 0.
    tol : number or array, optional
        Singular values up to it count as 0; an array has one of each matrix.
    hermitian : bool
        Whether the matrices are hermitian, for which there is a quicker way.
    rtol : number or array, optional
        The same, times the largest singular value; default: max(m, n) times the precision.

    Returns
    -------
    DistArray
        Of shape (...), of integers.

    Raises
    ------
    ArgumentError
        If both `tol` and `rtol` are given.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: that of `svdvals`.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.linalg.matrix_rank(da.ones((3, 3))))
    1
    """
    if tol is not None and rtol is not None:
        raise ArgumentError("matrix_rank() takes one of tol= and rtol=")
    if check_distributed("matrix_rank", x).ndim < 2:
        return astype(any_of(logical_not(x == 0)), np.int64)
    hermitian = check_flag("matrix_rank", "hermitian", hermitian)
    values = svd(x, compute_uv=False, hermitian=hermitian)
    if tol is None:
        tol = max(values, axis=-1, keepdims=True, initial=0) * (
            builtins.max(x.shape[-2:]) * np.finfo(values.dtype).eps if rtol is None else _each(rtol)
        )
    else:
        tol = _each(tol)
    return count_nonzero(values > tol, axis=-1)


def _each(tolerance: Any) -> Any:
    """Return tolerances of matrices as ones of their singular values."""
    (tolerance,) = normalize_operands("matrix_rank", (tolerance,))
    return tolerance if np.isscalar(tolerance) else tolerance[..., None]


for _function in (norm, vector_norm, matrix_norm, cond, matrix_rank):
    register(_function, room="linalg")
