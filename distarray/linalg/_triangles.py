"""Equations whose matrix is a triangle, and those whose matrix has a Cholesky factor.

Of a triangle in tiles that are dealt out to all processes, those that have rows of the diagonal's
tile solve for these rows of the right-hand sides, each for its columns. They tell their columns of
the grid, and what that comes to is subtracted from the rows that are left (Choi, Dongarra,
Ostrouchov, Petitet, Walker, Whaley, "Design and implementation of the ScaLAPACK LU, QR, and
Cholesky factorization routines", 1996).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    check_flag,
    describe,
    dtypes_of,
    normalize_operands,
    register,
    run,
)
from distarray.errors import ArgumentError
from distarray.linalg import _tiles
from distarray.linalg._elimination import check_right_hand_side, right_width, solution_layout
from distarray.linalg._factorizations import cholesky
from distarray.linalg._kernels import solve_triangle, subtract_product
from distarray.linalg._tiles import Grid, takes_tiles
from distarray.ops import Axes, LinAlgError, conj, matrix_transpose, whole_axes
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

_TRANSPOSED: Final = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
"""What SciPy takes for `trans`."""


def solve_triangles(
    a: np.ndarray, b: np.ndarray, *, lower: bool, unit_diagonal: bool
) -> np.ndarray:
    """Solve for batches of triangles in one process."""
    probe = np.linalg.solve(*(np.empty((0, *one.shape[-2:]), one.dtype) for one in (a, b)))
    dtype = probe.dtype  # of shapes that fit
    if not (unit_diagonal or a.diagonal(axis1=-2, axis2=-1).all()):
        raise np.linalg.LinAlgError("Singular matrix")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    x = np.array(np.broadcast_to(b, (*batch, *b.shape[-2:])), dtype)
    triangles = np.broadcast_to(a.astype(dtype, copy=False), (*batch, *a.shape[-2:]))
    with np.errstate(all="ignore"):  # as in LAPACK
        for at in np.ndindex(batch):
            solve_triangle(triangles[at], x[at], lower, unit_diagonal)
    return x


_solve_whole = whole_axes("solve_triangular", solve_triangles, fails=True)


class _Tiled(NamedTuple):
    """The static argument of the operation in tiles."""

    lower: bool
    unit_diagonal: bool
    width: int


def _spec(_op: Op, call: Call) -> Layouts:
    matrix, right = (layout.without_partial() for layout in call.layouts)
    width, columns = call.static.width, right.shape[1]
    grid = Grid(matrix, width)
    rows, output = grid.row_layout(right), solution_layout(matrix, right)
    sends = *grid.sent(grid.count * width, width), *grid.sent(columns, right_width(grid, columns))
    return Layouts((grid.row_layout(matrix), rows), output, (*sends, (rows, output, True)))


@dtypes_of
def _dtypes(op: Op, call: Call) -> Any:
    return op.local(*(np.empty((0, 1, 1), dtype) for dtype in call.dtypes))


def _bind(step: Step) -> Callable[..., Buffer]:
    (matrix, rows), output, static = step.sources, step.output, step.call.static
    grid, columns = Grid(matrix, static.width), rows.shape[1]
    each = right_width(grid, columns)
    number = step.token()

    def function(block: Buffer, other: Buffer) -> Buffer:
        device = _backend.device_of(other)
        host, right = _backend.to_host(block), _backend.to_host(other)
        tiles = grid.deal(host, grid.count * static.width, static.width, step.result)
        grid.set_diagonal(tiles, 0 if static.unit_diagonal else grid.length)
        right = grid.deal(right, columns, each, step.result)
        is_regular = all(tile.diagonal().all() for _, tile in grid.diagonal(tiles))
        grid.everyone.agree(number, step)
        if not grid.everyone.all_reduce(np.array([is_regular]), "all")[0]:
            raise LinAlgError(f"{step.op.name}: Singular matrix")
        with np.errstate(all="ignore"):  # as in LAPACK
            _substitute(grid, tiles, right, static.lower)
        del tiles  # before room is made for blocks
        solution = _backend.asarray(grid.collect(right, each, rows), device)
        return redistribute_local(solution, rows, output)

    return function


def _substitute(grid: Grid, tiles: np.ndarray, right: np.ndarray, lower: bool) -> None:
    """Put the tiles of the solutions into the place of those of the right-hand sides."""
    for k in range(grid.count) if lower else reversed(range(grid.count)):
        start, stop = grid.rows_before(k), grid.rows_before(k + 1)
        panel = grid.panel(tiles, k)
        panel = grid.share(panel[start:] if lower else panel[:stop], k)
        solved = _memory.empty((grid.width, right.shape[1]), right.dtype)
        if start < stop:
            solved[...] = right[start:stop]
            corner = panel[: stop - start] if lower else panel[start:]
            solve_triangle(corner, solved, lower)
            right[start:stop] = solved
        grid.down.broadcast(solved, k % grid.rows)
        rest, panel = (
            (right[stop:], panel[stop - start :]) if lower else (right[:start], panel[:start])
        )
        subtract_product(rest, panel, solved)


_solve_in_tiles = Op("solve_triangular", np.linalg.solve, _spec, dtypes=_dtypes, bind=_bind)


def solve_triangular(
    a: Any, b: Any, *, lower: bool = False, trans: Any = 0, unit_diagonal: bool = False
) -> Any:
    """Return the solutions x of `a @ x = b`, where `a` are triangles, as SciPy's function does.

    Parameters
    ----------
    a : DistArray or array
        Of shape (..., m, m). Of each matrix one triangle is looked at.
    b : DistArray or array
        Of shape (..., m, k), whose other axes broadcast with those of `a`, or (m,). One of the two
        is distributed; a plain array is the same on every process.
    lower : bool
        Look at the lower triangle, else at the upper one.
    trans : {0, 1, 2, "N", "T", "C"}
        Solve for `a`, for its transpose, or for its conjugate transpose.
    unit_diagonal : bool
        Take the diagonal as ones, whatever it is.

    Returns
    -------
    DistArray
        Of the shape of `b`, with the broadcast batch axes. Cut as the rows are of `a` or else `b`,
        and as the columns of `b`; along a batch axis where that had to be.

    Raises
    ------
    LinAlgError
        If a matrix is not square, or has a 0 on its diagonal; on all processes.
    ShapeError
        If the shapes do not fit together.
    ArgumentError
        If there is no such `trans`.
    ImplicitCommunicationError
        If one of several matrices that are cut is larger than 128 MiB.

    Notes
    -----
    Distribution: as for `inv`, of both arrays. A single matrix of more than 8 MiB that is cut stays
    distributed, in tiles of a block-cyclic distribution (Choi, Dongarra et al. 1996). On p
    processes each receives about n^2 / (2 sqrt(p)) items of panels, n / sqrt(p) for each right-hand
    side, and its tiles. Peak memory: five blocks, of the larger operand, and two panels of 256
    columns; where processes cannot share the rows in tiles evenly up to half as much again.

    Examples
    --------
    >>> import distarray as da
    >>> a = da.asarray([[2.0, 0.0], [1.0, 4.0]])
    >>> print(da.linalg.solve_triangular(a, da.ones(2), lower=True))
    [0.5   0.125]
    """
    lower = check_flag("solve_triangular", "lower", lower)
    is_unit = check_flag("solve_triangular", "unit_diagonal", unit_diagonal)
    how = read_trans("solve_triangular", trans)
    a, b = normalize_operands("solve_triangular", (a, b))
    check_right_hand_side("solve_triangular", b, a)
    if b.ndim == 1:
        b = b[:, None]
        return solve_triangular(a, b, lower=lower, trans=how, unit_diagonal=is_unit)[..., 0]
    if how and getattr(a, "ndim", 0) > 1:
        a = matrix_transpose(a) if isinstance(a, BaseArray) else np.matrix_transpose(a)
        a, lower = conj(a) if how == 2 and a.dtype.kind == "c" else a, not lower
    if takes_tiles(a) and b.ndim == 2 and len(a) == len(b):
        return run(_solve_in_tiles, (a, b), _Tiled(lower, is_unit, _tiles.tile_width(a)))
    options = ("lower", lower), ("unit_diagonal", is_unit)
    return run(_solve_whole, (a, b), Axes("ij,ik->ik", options))


def read_trans(name: str, trans: Any) -> int:
    """Return 0, 1 or 2 for what SciPy takes for `trans`."""
    try:
        return _TRANSPOSED[trans]
    except (KeyError, TypeError):
        raise ArgumentError(
            f"{name} got trans={describe(trans)}; it is one of 0, 1, 2, 'N', 'T', 'C'"
        ) from None


def cho_factor(a: Any, lower: bool = False) -> tuple[Any, bool]:
    """Return what `cho_solve` takes: the Cholesky factors of positive definite matrices.

    Parameters
    ----------
    a : DistArray
        Of shape (..., m, m). Of each matrix the lower triangle is looked at, or the upper one.
    lower : bool
        Whether it is the lower triangle.

    Returns
    -------
    c : DistArray
        Of the shape of `a`: a triangle, beside zeros where SciPy leaves what it finds.
    lower : bool
        Which of the two it is.

    Raises
    ------
    LinAlgError
        If a matrix is not square or not positive definite; on all processes.

    Notes
    -----
    Distribution: as for `cholesky`.

    Examples
    --------
    >>> import distarray as da
    >>> factor, lower = da.linalg.cho_factor(da.eye(2) * 4)
    >>> print(factor)
    [[2. 0.]
     [0. 2.]]
    """
    lower = check_flag("cho_factor", "lower", lower)
    return cholesky(a, upper=not lower), lower


def cho_solve(c_and_lower: tuple[Any, Any], b: Any) -> Any:
    """Return the solutions x of `a @ x = b`, given what `cho_factor` makes of `a`.

    Parameters
    ----------
    c_and_lower : (DistArray, bool)
        Triangles of shape (..., m, m), and whether they are lower ones.
    b : DistArray or array
        Of shape (..., m, k) or (m,).

    Returns
    -------
    DistArray
        As of `solve_triangular`.

    Raises
    ------
    LinAlgError
        If a triangle has a 0 on its diagonal; on all processes.
    ArgumentError
        If the first argument is no pair.
    ShapeError
        If the shapes do not fit together.

    Notes
    -----
    Distribution: as for `solve_triangular`, twice.

    Examples
    --------
    >>> import distarray as da
    >>> factor = da.linalg.cho_factor(da.eye(2) * 4)
    >>> print(da.linalg.cho_solve(factor, da.ones(2)))
    [0.25 0.25]
    """
    try:
        c, lower = c_and_lower
    except (TypeError, ValueError):
        raise ArgumentError(
            f"cho_solve got {describe(c_and_lower)}; it is what cho_factor returns, (c, lower)"
        ) from None
    lower = check_flag("cho_solve", "lower", lower)
    first = solve_triangular(c, b, lower=lower, trans=0 if lower else 2)
    return solve_triangular(c, first, lower=lower, trans=2 if lower else 0)


for _function in (solve_triangular, cho_factor, cho_solve):
    register(_function, room="linalg")
