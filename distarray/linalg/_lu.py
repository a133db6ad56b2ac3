"""Triangles of matrices with their rows interchanged, kept for many right-hand sides.

Those of a matrix in tiles are what its elimination leaves (`_elimination`); its rows are brought to
the order of the pivots afterwards.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.core import (
    BaseArray,
    check_distributed,
    check_flag,
    describe,
    normalize_operands,
    register,
    run,
)
from distarray.errors import ArgumentError
from distarray.layout import Replicate, Shard
from distarray.linalg import _tiles
from distarray.linalg._blocks import cut_as
from distarray.linalg._elimination import (
    check_right_hand_side,
    interchanges,
    tile_factor,
    tile_lu,
    warn_of_singular,
)
from distarray.linalg._kernels import eliminate_panel, order_of
from distarray.linalg._tiles import is_large, takes_tiles
from distarray.linalg._triangles import read_trans, solve_triangles, solve_triangular
from distarray.ops import (
    Axes,
    arange,
    argsort,
    astype,
    concat,
    equal,
    fill_diagonal,
    give_values,
    less,
    minimum,
    searchsorted,
    take,
    tril,
    triu,
    where,
    whole_axes,
)


def _factor(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eliminate batches of matrices in one process."""
    probe = np.linalg.inv(np.empty((0, *block.shape[-2:]), block.dtype))  # knows dtypes and shapes
    lu, pivots = np.array(block, probe.dtype), np.empty(block.shape[:-1], np.int32)
    with np.errstate(all="ignore"):  # as in LAPACK
        for at in np.ndindex(lu.shape[:-2]):
            lu[at], order = eliminate_panel(lu[at])
            pivots[at] = interchanges(order)
    if not lu.diagonal(axis1=-2, axis2=-1).all():
        warn_of_singular()
    return lu, pivots


def _order(pivots: np.ndarray) -> np.ndarray:
    """Return in which order interchanges bring rows, for batches."""
    size = pivots.shape[-1]
    if not ((pivots >= 0) & (pivots < size)).all():
        raise np.linalg.LinAlgError("pivots are no rows of the matrix")
    found = np.empty(pivots.shape, np.int64)
    for at in np.ndindex(pivots.shape[:-1]):
        found[at] = order_of(pivots[at])
    return found


def _solve(lu: np.ndarray, pivots: np.ndarray, b: np.ndarray, *, trans: int) -> np.ndarray:
    """Solve for batches of matrices in one process."""
    rows = lu.shape[-2], pivots.shape[-1], b.shape[-2]
    if len({*rows}) > 1:
        raise ValueError(f"matrices, pivots and right-hand sides are of {rows} rows, not as many")
    order = _order(pivots)
    batch = np.broadcast_shapes(lu.shape[:-2], order.shape[:-1], b.shape[:-2])
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    if trans:
        lu, order = np.matrix_transpose(lu.conj() if trans == 2 else lu), order.argsort(axis=-1)
    order = np.broadcast_to(order, (*batch, order.shape[-1]))[..., None]
    x = b if trans else np.take_along_axis(b, order, -2)
    x = solve_triangles(lu, x, lower=True, unit_diagonal=not trans)
    x = solve_triangles(lu, x, lower=False, unit_diagonal=bool(trans))
    return np.take_along_axis(x, order, -2) if trans else x


def _decompose(block: np.ndarray, *, form: str) -> tuple[np.ndarray, ...]:
    """Return triangles of batches of matrices, and what brings their rows back, in one process."""
    rows, columns = block.shape[-2:]
    dtype = np.linalg.inv(np.empty((0, 1, 1), block.dtype)).dtype
    packed, order = np.array(block, dtype), np.empty(block.shape[:-1], np.int64)
    with np.errstate(all="ignore"):  # as in LAPACK
        for at in np.ndindex(packed.shape[:-2]):
            packed[at], order[at] = eliminate_panel(packed[at])
    size = min(rows, columns)
    places = order.argsort(axis=-1)
    lower, upper = np.tril(packed[..., :size], -1), np.triu(packed[..., :size, :])
    lower[..., range(size), range(size)] = 1
    if form == "permute_l":
        return np.take_along_axis(lower, places[..., None], -2), upper
    if form == "p_indices":
        return places.astype(np.int32), lower, upper
    return (places[..., None] == np.arange(rows)).astype(upper.real.dtype), lower, upper


_FORMS: Final = {"p": "ij->il,ik,kj", "p_indices": "ij->i,ik,kj", "permute_l": "ij->ik,kj"}
"""What `lu` returns: axes, by what its arguments ask for."""

_decompose_whole = whole_axes("lu", _decompose)
_factor_whole = whole_axes("lu_factor", _factor)
_order_whole = whole_axes("lu_solve", _order, fails=True)
_solve_whole = whole_axes("lu_solve", _solve, fails=True)


def lu_factor(a: Any) -> tuple[Any, Any]:
    """Return what `lu_solve` takes: triangles of square matrices with their rows interchanged.

    Parameters
    ----------
    a : DistArray
        Of shape (..., m, m).

    Returns
    -------
    lu : DistArray
        Of the shape of `a`, cut as `a` is: the upper triangle, and below it the lower one, whose
        diagonal is 1.
    piv : DistArray
        Of shape (..., m), int32: row i was interchanged with row `piv[i]`, one after another.

    Warns
    -----
    RuntimeWarning
        If a pivot is 0, so that `lu_solve` will raise.

    Raises
    ------
    LinAlgError
        If a matrix is not square; on all processes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, without the identity. A single matrix of more than 8 MiB that is cut
    is eliminated as by `solve` (CALU: Grigori, Demmel, Xiang 2011): on p processes each receives
    about n^2 / sqrt(p) items of panels, its tiles twice, and its rows once more, in the order of
    the pivots. Peak memory: four blocks, and two panels of 256 columns. Pivots may differ from
    LAPACK's: those of a tournament may let items grow a little more.

    Examples
    --------
    >>> import distarray as da
    >>> lu, piv = da.linalg.lu_factor(da.asarray([[1.0, 2.0], [4.0, 4.0]]))
    >>> print(lu)
    [[4.   4.  ]
     [0.25 1.  ]]
    >>> print(piv)
    [1 1]
    """
    check_distributed("lu_factor", a)
    if not takes_tiles(a):
        lu, pivots = run(_factor_whole, (a,), Axes("ij->ij,i"))
        return lu, pivots
    rows, order, pivots = run(tile_factor, (a,), _tiles.tile_width(a))
    return take(rows, order, axis=0), pivots


def lu(a: Any, permute_l: bool = False, *, p_indices: bool = False) -> tuple[Any, ...]:
    """Return matrices as products `p @ l @ u` of a permutation and two triangles.

    Parameters
    ----------
    a : DistArray
        Of shape (..., m, n); k = min(m, n).
    permute_l : bool
        Return `p @ l` instead of `p` and `l`.
    p_indices : bool
        Return `p` as indices, with `a = l[p] @ u`.

    Returns
    -------
    p : DistArray
        Of shape (..., m, m), or (..., m), int32; not with `permute_l`.
    l : DistArray
        Of shape (..., m, k), a lower triangle whose diagonal is 1, or that with rows in the order
        of those of `a`. Cut as the rows of `a` are, where it is large as `a` is.
    u : DistArray
        Of shape (..., k, n), an upper triangle. Cut as the columns of `a` are, where it is large as
        `a` is.

    Raises
    ------
    LinAlgError
        If `a` has less than two axes.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: that of `lu_factor`, and twice the rows of `l` with `permute_l`. Of a matrix of
    more columns than rows the others are multiplied as by `solve_triangular`. One of more rows is
    eliminated by processes that each have rows of all columns, and receive n^2 / 2 items of panels;
    `u` of more than 8 MiB is cut as rows are. Peak memory: five to six blocks, and two panels of
    256 columns. Pivots may differ from LAPACK's.

    Examples
    --------
    >>> import distarray as da
    >>> p, l, u = da.linalg.lu(da.asarray([[1.0, 2.0], [4.0, 4.0]]))
    >>> print(l)
    [[1.   0.  ]
     [0.25 1.  ]]
    >>> print(u)
    [[4. 4.]
     [0. 1.]]
    >>> print(p)
    [[0. 1.]
     [1. 0.]]
    """
    permute_l = check_flag("lu", "permute_l", permute_l)
    p_indices = check_flag("lu", "p_indices", p_indices)
    check_distributed("lu", a)
    form = "permute_l" if permute_l else "p_indices" if p_indices else "p"
    if not is_large(a, _tiles.WHOLE_BYTES):
        return tuple(run(_decompose_whole, (a,), Axes(_FORMS[form], (("form", form),))))
    rows, columns = a.shape
    lines, across = (
        [Shard(0) if one == Shard(axis) else Replicate() for one in a.placements] for axis in (0, 1)
    )
    if rows < columns:
        places, lower, first = lu(a[:, :rows], p_indices=True)
        rest = take(a[:, rows:], argsort(places), axis=0)
        rest = solve_triangular(lower, rest, lower=True, unit_diagonal=True)
        upper = cut_as(concat([first, rest], axis=1), a)
    else:
        width = _tiles.tall_width(a) if rows > columns else _tiles.tile_width(a)
        found, pivots = run(tile_lu, (a,), width)
        order, places = _orders(pivots, arange(rows, mesh=a.mesh, placements=lines))
        if rows > columns:
            upper = triu(take(found, pivots, axis=0))
            if not is_large(upper, _tiles.WHOLE_BYTES):
                as_columns = [one if one == Shard(1) else Replicate() for one in a.placements]
                upper = upper.redistribute(as_columns)
        found = take(found, order, axis=0)
        lower = tril(found, -1)
        fill_diagonal(lower, 1)
        upper = triu(found) if rows == columns else upper
        del found, order  # makes room
    if permute_l:
        return take(lower, places, axis=0), upper
    if p_indices:
        return astype(places, np.int32), lower, upper
    numbers = arange(rows, mesh=a.mesh, placements=across)
    is_place = equal(places.redistribute(lines)[:, None], numbers)
    return astype(is_place, upper.real.dtype), lower, upper


def _orders(pivots: Any, numbers: Any) -> tuple[Any, Any]:
    """Return the rows of a matrix, those of pivots first, and the places of all among these.

    Parameters
    ----------
    pivots : DistArray
        Rows of the matrix, which every process has.
    numbers : DistArray
        Of all rows.
    """
    count = len(pivots)
    if count == len(numbers):
        return pivots, argsort(pivots)
    turn = argsort(pivots)
    ascending = take(pivots, turn)
    before = searchsorted(ascending, numbers)  # so many pivots
    is_pivot = less(before, searchsorted(ascending, numbers, "right"))
    places = where(is_pivot, take(turn, minimum(before, count - 1)), count + numbers - before)
    rest = numbers - count
    steps = arange(count, mesh=numbers.mesh, placements=[Replicate()] * numbers.mesh.ndim)
    rest = rest + searchsorted(ascending - steps, rest, "right")
    return where(less(numbers, count), take(pivots, minimum(numbers, count - 1)), rest), places


def lu_solve(lu_and_piv: tuple[Any, Any], b: Any, trans: Any = 0) -> Any:
    """Return the solutions x of `a @ x = b`, given what `lu_factor` makes of `a`.

    Parameters
    ----------
    lu_and_piv : (DistArray, DistArray or array)
        Triangles of shape (..., m, m), and with which rows rows were interchanged.
    b : DistArray or array
        Of shape (..., m, k), whose other axes broadcast with those of `a`, or (m,).
    trans : {0, 1, 2, "N", "T", "C"}
        Solve for `a`, for its transpose, or for its conjugate transpose.

    Returns
    -------
    DistArray
        As of `solve_triangular`.

    Raises
    ------
    LinAlgError
        If a pivot is 0, or `piv` are no rows; on all processes.
    ArgumentError
        If the first argument is no such pair, the shapes do not fit together, or there is no such
        `trans`.

    Notes
    -----
    Distribution: as for `solve_triangular`, twice; rows of `b` are brought to the order of the
    pivots, or those of the result from it. Peak memory: seven blocks, of the
    larger operand.

    Examples
    --------
    >>> import distarray as da
    >>> factors = da.linalg.lu_factor(da.asarray([[1.0, 2.0], [4.0, 4.0]]))
    >>> print(da.linalg.lu_solve(factors, da.asarray([5.0, 12.0])))
    [1. 2.]
    """
    try:
        lu, pivots = lu_and_piv
    except (TypeError, ValueError):
        raise ArgumentError(
            f"lu_solve got {describe(lu_and_piv)}; it is what lu_factor returns, (lu, piv)"
        ) from None
    how = read_trans("lu_solve", trans)
    lu, pivots, b = normalize_operands("lu_solve", (lu, pivots, b))
    if getattr(pivots, "dtype", np.dtype(float)).kind not in "iu":
        raise ArgumentError("lu_solve got a piv that is no array of integers; lu_factor returns it")
    check_right_hand_side("lu_solve", b)
    if b.ndim == 1:
        return lu_solve((lu, pivots), b[:, None], how)[..., 0]
    is_one = b.ndim == 2 and pivots.ndim == 1
    if not (takes_tiles(lu) and is_one and len(lu) == len(b) == len(pivots)):
        return run(_solve_whole, (lu, pivots, b), Axes("ij,i,ik->ik", (("trans", how),)))
    if not isinstance(pivots, BaseArray):
        pivots = give_values(lu, pivots.astype(np.int64))
    order = run(_order_whole, (pivots,), Axes("i->i"))
    if how:
        x = solve_triangular(lu, b, trans=how)
        x = solve_triangular(lu, x, lower=True, unit_diagonal=True, trans=how)
        return take(x, argsort(order), axis=0)
    b = take(b, order, axis=0) if isinstance(b, BaseArray) else b[np.asarray(order)]
    return solve_triangular(lu, solve_triangular(lu, b, lower=True, unit_diagonal=True))


for _function in (lu, lu_factor, lu_solve):
    register(_function, room="linalg")
