"""Cholesky's factorization of a matrix in tiles that are dealt out to all processes.

Right-looking: the tile of the diagonal is factorized where it is and told to all, the processes of
its column of the grid solve for the panel below, each gets of that panel the tiles of its rows and
of its columns, and subtracts their products from its own tiles (Choi, Dongarra, Ostrouchov,
Petitet, Walker, Whaley, "Design and implementation of the ScaLAPACK LU, QR, and Cholesky
factorization routines", 1996).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory, gather_parts
from distarray.core import Call, Layouts, Op, Step, dtypes_of
from distarray.linalg._kernels import solve_triangle, subtract_product
from distarray.linalg._tiles import Grid
from distarray.ops import LinAlgError
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer


def _spec(_op: Op, call: Call) -> Layouts:
    source, width = call.layouts[0].without_partial(), call.static
    grid = Grid(source, width)
    rows = grid.row_layout(source)
    sends = (*grid.sent(grid.count * width, width), (rows, source, True))
    return Layouts((rows,), source, sends)


@dtypes_of
def _dtypes(_op: Op, call: Call) -> Any:
    return np.linalg.cholesky(np.empty((0, 1, 1), call.dtypes[0]))


def _bind(step: Step) -> Callable[[Buffer], Buffer]:
    rows, output, width = step.sources[0], step.output, step.call.static
    grid = Grid(rows, width)
    number = step.token()

    def function(block: Buffer) -> Buffer:
        tiles = [grid.deal(_backend.to_host(block), grid.count * width, width, step.result)]
        grid.set_diagonal(tiles[0], grid.length)
        _factorize(grid, tiles[0], number, step)
        found = grid.collect(tiles.pop(), width, rows)
        return redistribute_local(_backend.asarray(found, _backend.device_of(block)), rows, output)

    return function


def _factorize(grid: Grid, tiles: np.ndarray, number: int, step: Step) -> None:
    """Put the factor in the place of the matrix, and zeros above it."""
    width = grid.width
    told = np.empty((width + 1, width), tiles.dtype)
    for k in range(grid.count):
        low = grid.rows_before(k + 1)
        is_owner = grid.row == k % grid.rows and grid.column == k % grid.columns
        panel = grid.panel(tiles, k)
        if is_owner:
            _factorize_tile(panel[low - width : low], told)
        grid.everyone.broadcast(told, grid.owner(k))
        if told[width, 0]:
            raise LinAlgError(f"{step.op.name}: Matrix is not positive definite")
        if is_owner:
            panel[low - width : low] = told[:width]
        if grid.column == k % grid.columns:
            solve_triangle(told[:width].conj(), panel[low:].T, lower=True)
        below = grid.share(panel[low:], k)
        right = _gather_columns(grid, below, k, number, step)
        for j, tile in right:
            start, column = grid.rows_before(j), grid.columns_before(j)
            rest = tiles[start:, column : column + width]
            subtract_product(rest, below[start - low :], tile.conj().T)
    for j in range(grid.column, grid.count, grid.columns):
        column = grid.columns_before(j)
        tiles[: grid.rows_before(j), column : column + width] = 0


def _factorize_tile(tile: np.ndarray, told: np.ndarray) -> None:
    """Put the factor of a tile into `told`, or in its last row that there is none."""
    told[-1] = 0
    try:
        told[:-1] = np.linalg.cholesky(tile)
    except np.linalg.LinAlgError:
        told[-1] = 1


def _gather_columns(
    grid: Grid, below: np.ndarray, k: int, number: int, step: Step
) -> list[tuple[int, np.ndarray]]:
    """Return, with their numbers, the tiles of a panel in the rows that are this process's columns.

    Of each row it has some of them itself, or gets them from the processes of its column.
    """
    width, low = grid.width, grid.rows_before(k + 1)
    wanted = range(k + 1 + (grid.column - k - 1) % grid.columns, grid.count, grid.columns)
    by_row = [[i for i in wanted if i % grid.rows == row] for row in range(grid.rows)]
    own = by_row[grid.row]
    part = below
    if len(own) * width < len(below):
        part = _memory.empty((len(own) * width, width), below.dtype)
        for at, i in enumerate(own):
            start = grid.rows_before(i) - low
            part[at * width : (at + 1) * width] = below[start : start + width]
    counts = [len(tiles) * width * width for tiles in by_row]
    gathered = gather_parts(grid.down, part.reshape(-1), counts, number + k, step)
    order = [i for tiles in by_row for i in tiles]
    return [*zip(order, gathered.reshape(-1, width, width), strict=True)]


blocked_cholesky = Op("cholesky", np.linalg.cholesky, _spec, dtypes=_dtypes, bind=_bind)
"""Its static argument is the width of a tile."""
