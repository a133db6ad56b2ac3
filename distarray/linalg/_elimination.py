"""Gaussian elimination of a matrix in tiles, with pivots that a tournament finds (CALU).

A panel is eliminated strip by strip. Every process of a column of the grid offers rows, those that
partial pivoting takes of its own; partial pivoting among these finds the pivots of a strip: one
round of the tournament of Grigori, Demmel and Xiang, "CALU: a communication optimal LU
factorization algorithm" (2011). Rows stay with the processes that have them. Pivots are told to all
of their column of the grid, which needs them anyway, and a process keeps the rows that are left
below those that have been pivots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory, gather_parts
from distarray.core import Call, Layouts, Op, Step, dtypes_of, warn
from distarray.errors import ShapeError
from distarray.layout import Layout, Replicate, Shard, chunk
from distarray.linalg._kernels import (
    eliminate_panel,
    scales_of_tiny,
    solve_triangle,
    subtract_product,
)
from distarray.linalg._tiles import Grid
from distarray.ops import LinAlgError
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

STRIP: Final = 64
"""Columns of a panel whose pivots are chosen at a time, by one process while others wait, at a
fraction of the speed of products. Measured on two ranks of Zen 4, float64 of 4096 rows: with 256,
128, 64 and 32 `solve` takes 0.70, 0.67, 0.67 and 0.69 s."""


class _Pivots(NamedTuple):
    """What all processes know of the rows that a panel has chosen."""

    triangles: np.ndarray
    """Their parts of the upper triangle, and of the lower one, whose diagonal is 1."""
    rows: np.ndarray
    """Their numbers in the matrix, in the order in which they were taken."""
    by_row: list[np.ndarray]
    """For each row of the grid, which of the pivots its processes have."""
    starts: np.ndarray
    """For each row of the grid, how many of its rows had been pivots before."""


class Elimination:
    """An elimination of a matrix, and of right-hand sides beside it.

    Parameters
    ----------
    grid
    tiles
        Of the matrix, as `Grid.deal` gives them: overwritten by those of the upper triangle, whose
        rows are in the order in which this process's were pivots.
    right
        Of the right-hand sides, or of none: overwritten as well.
    number, what
        What the ranks must agree on, as in `Communicator.views`.
    keeps
        Whether to keep the lower triangle as well, and to go on past pivots of 0, as LAPACK does.
    columns
        Tiles along a row; by default as many as along the rows.
    """

    def __init__(
        self,
        grid: Grid,
        tiles: np.ndarray,
        right: np.ndarray,
        number: int,
        what: object,
        keeps: bool = False,
        columns: int | None = None,
    ) -> None:
        self._grid, self._tiles, self._right = grid, tiles, right
        self._number, self._what, self._keeps = number, what, keeps
        self._columns = grid.count if columns is None else columns
        self._steps: list[_Pivots] = []
        height = len(tiles)
        turn, at = np.divmod(np.arange(height), grid.width)
        self._rows = (turn * grid.rows + grid.row) * grid.width + at
        self._places = np.arange(height)
        self._used = np.zeros(grid.rows, np.int64)

    def run(self) -> bool:
        """Eliminate all columns; false, on all processes, where a pivot is 0."""
        is_regular = True
        for k in range(self._columns):
            is_regular &= self._eliminate(k)
            if not (is_regular or self._keeps):
                break
        return is_regular

    def triangles(self) -> np.ndarray:
        """Return the tiles of both triangles, with rows where those of the matrix were."""
        return self._tiles[self._places]

    def order(self) -> np.ndarray:
        """Return the rows of the matrix in the order in which they were pivots."""
        return np.concatenate([step.rows for step in self._steps])

    def determinant(self) -> tuple[Any, Any]:
        """Return the sign of the determinant and the logarithm of its absolute value."""
        diagonal = np.concatenate([step.triangles.diagonal() for step in self._steps])
        sign = np.prod(np.sign(diagonal * scales_of_tiny(diagonal)))
        sign *= _parity(self.order())
        return sign.astype(diagonal.dtype), np.log(abs(diagonal)).sum()

    def substitute(self) -> np.ndarray:
        """Return the tiles of the solutions: from the last step to the first, what it has found."""
        grid = self._grid
        solution = _memory.empty(self._right.shape, self._right.dtype)
        right, found = (self._cut(one) for one in (self._right, solution))
        for k in reversed(range(grid.count)):
            step = self._steps[k]
            start = int(step.starts[grid.row])
            solved = self._solve(right, step, False, grid.count + k)
            above = grid.share(grid.panel(self._tiles, k)[:start], k)
            at = grid.rows_before(k)
            for rest, own, values in zip(right, found, solved, strict=True):
                if grid.row == k % grid.rows:
                    own[at : at + grid.width] = values
                subtract_product(rest[:start], above, values)
        return solution

    def _eliminate(self, k: int) -> bool:
        grid = self._grid
        step, panel = self._choose_pivots(k)
        self._steps.append(step)
        if not self._goes_on(step.triangles):
            return False
        mine, used = step.by_row[grid.row], int(step.starts[grid.row])
        left = used + len(mine)
        if self._keeps and grid.column == k % grid.columns:
            own = grid.panel(self._tiles, k)
            own[used:left], own[left:] = step.triangles[mine], panel[left:]
        rest = self._cut(self._tiles[:, grid.columns_before(k + 1) :]), self._cut(self._right)
        others = [part for both in zip(*rest, strict=True) for part in both]
        top = self._solve(others, step, True, k)
        below = grid.share(panel[left:], k)
        for part, values in zip(others, top, strict=True):
            part[used:left] = values[mine]
            subtract_product(part[left:], below, values)
        return bool(step.triangles.diagonal().all())

    def _goes_on(self, triangles: np.ndarray) -> bool:
        """Tell whether pivots let an elimination go on."""
        return self._keeps or bool(triangles.diagonal().all())

    def _cut(self, x: np.ndarray) -> list[np.ndarray]:
        """Return a part of the columns for each row of the grid."""
        return np.array_split(x, self._grid.rows, axis=1)

    def _choose_pivots(self, k: int) -> tuple[_Pivots, np.ndarray]:
        """Bring the pivots of a panel forward, and return it eliminated, strip by strip.

        It is a copy: rows that are cut out of a matrix often lie in the same sets of caches.
        """
        grid, width = self._grid, self._grid.width
        told, rows = np.zeros((width, width), self._tiles.dtype), np.zeros(width, np.int64)
        starts, used = self._used.copy(), int(self._used[grid.row])
        parts = [self._tiles[:, grid.columns_before(k + 1) :], self._right]
        if self._keeps:
            parts.append(self._tiles[:, : grid.columns_before(k)])
        strips = [slice(at, min(at + STRIP, width)) for at in range(0, width, STRIP)]
        has_panel = grid.column == k % grid.columns
        panel = grid.panel(self._tiles, k)
        if has_panel:
            whole, panel = panel, _memory.empty(panel.shape, panel.dtype)
            panel[used:] = whole[used:]
            for strip in strips:
                self._choose_rows(panel, strip, k % grid.rows, told, rows)
                if not self._goes_on(told[strip, strip]):
                    break
                self._bring_forward(rows[strip], panel, *parts)
                self._eliminate_strip(panel, strip, told)
        grid.across.broadcast(told, k % grid.columns)
        grid.across.broadcast(rows, k % grid.columns)
        if not has_panel and self._goes_on(told):
            for strip in strips:
                self._bring_forward(rows[strip], *parts)
        owners = rows // width % grid.rows
        by_row = [np.flatnonzero(owners == row) for row in range(grid.rows)]
        return _Pivots(told, rows, by_row, starts), panel

    def _choose_rows(
        self, panel: np.ndarray, strip: slice, root: int, told: np.ndarray, rows: np.ndarray
    ) -> None:
        """Put a strip's pivots, which one process finds among those that all offer, in `told`."""
        grid, width = self._grid, strip.stop - strip.start
        used = int(self._used[grid.row])
        chosen = eliminate_panel(panel[used:, strip])[1][:width]
        offers = np.minimum(len(panel) - self._used, width)
        is_root = grid.row == root
        values = np.empty((offers.sum(), len(told)), told.dtype) if is_root else None
        names = np.empty(offers.sum(), np.int64) if is_root else None
        grid.down.gather(panel[used:][chosen], values, [*(offers * len(told))], root)
        grid.down.gather(self._rows[used:][chosen], names, [*offers], root)
        if values is not None and names is not None:
            if self._keeps:  # rows that fill up the last turn are no pivots of other columns
                last = np.argsort(names >= grid.length, kind="stable")
                values, names = values[last], names[last]
            triangles, order = eliminate_panel(values[:, strip])
            told[strip], rows[strip] = values[order[:width]], names[order[:width]]
            told[strip, strip] = triangles[:width]
            solve_triangle(triangles[:width], told[strip, strip.stop :], lower=True, unit=True)
        grid.down.broadcast(told[strip], root)
        grid.down.broadcast(rows[strip], root)

    def _eliminate_strip(self, panel: np.ndarray, strip: slice, told: np.ndarray) -> None:
        """Eliminate a strip of the rows that are left, and update the rest of their panel."""
        left = panel[self._used[self._grid.row] :]
        below, corner = left[:, strip], told[strip, strip]
        is_zero = corner.diagonal() == 0
        if is_zero.any():  # with nothing below, but for rounding
            corner, below[:, is_zero] = np.where(is_zero, np.diag(is_zero), corner), 0
        solve_triangle(corner.T, below.T, lower=True)
        rest = slice(strip.stop, None)
        subtract_product(left[:, rest], below, told[strip, rest])

    def _bring_forward(self, rows: np.ndarray, *parts: np.ndarray) -> None:
        """Exchange rows of this process, so that pivots follow those that have been ones."""
        grid, width = self._grid, self._grid.width
        owners = rows // width % grid.rows
        rows, used = rows[owners == grid.row], int(self._used[grid.row])
        self._used += np.bincount(owners, minlength=grid.rows)
        sources = self._places[rows // (width * grid.rows) * width + rows % width]
        targets, stays = np.arange(used, used + len(rows)), sources < used + len(rows)
        is_out = np.ones(len(rows), bool)
        is_out[sources[stays] - used] = False
        out = targets[is_out]
        targets = np.concatenate([targets, sources[~stays]])
        sources = np.concatenate([sources, out])
        self._rows[targets] = names = self._rows[sources]
        self._places[names // (width * grid.rows) * width + names % width] = targets
        for part in parts:
            part[targets] = part[sources]

    def _solve(
        self, parts: Sequence[np.ndarray], step: _Pivots, lower: bool, salt: int
    ) -> list[np.ndarray]:
        """Return what a triangle makes of the pivots' rows of parts of the columns.

        Each process of a column of the grid solves for some of the parts, of which it gets the
        rows, and tells the others.
        """
        grid, number = self._grid, self._number + salt
        widths = [part.shape[1] for part in parts]
        offsets = chunk(len(parts), (grid.rows,)).offsets
        shares = [sum(widths[start:stop]) for start, stop in pairwise(offsets)]
        start, heights = int(step.starts[grid.row]), [len(one) for one in step.by_row]
        height = heights[grid.row]
        sent = _memory.empty((height * sum(widths),), self._tiles.dtype)
        for block, part in zip(_blocks(sent, height, widths), parts, strict=True):
            block[...] = part[start : start + height]
        told = _memory.empty((grid.width * shares[grid.row],), self._tiles.dtype)
        solved = _memory.empty(told.shape, told.dtype)
        grid.down.all_to_all(
            sent,
            told,
            [height * share for share in shares],
            [one * shares[grid.row] for one in heights],
            token=number,
            what=self._what,
        )
        own = widths[offsets[grid.row] : offsets[grid.row + 1]]
        mine, at = _blocks(solved, grid.width, own), 0
        for rows in step.by_row:
            for block, part in zip(mine, _blocks(told[at:], len(rows), own), strict=True):
                block[rows] = part
            at += len(rows) * shares[grid.row]
        for block in mine:
            solve_triangle(step.triangles, block, lower, unit=lower)
        counts = [grid.width * share for share in shares]
        return _blocks(
            gather_parts(grid.down, solved, counts, number, self._what), grid.width, widths
        )


def _blocks(flat: np.ndarray, height: int, widths: Sequence[int]) -> list[np.ndarray]:
    """Return matrices of some rows that lie one after the other."""
    ends = [height * end for end in accumulate(widths, initial=0)]
    cuts = zip(pairwise(ends), widths, strict=True)
    return [flat[start:stop].reshape(height, width) for (start, stop), width in cuts]


def _parity(order: np.ndarray) -> int:
    """Return the sign of a permutation: each cycle of even length turns it."""
    parity, following = 1, order.tolist()
    for start in range(len(following)):
        while following[start] != start:
            at = following[start]
            following[start], following[at] = following[at], at
            parity = -parity
    return parity


def interchanges(order: np.ndarray) -> np.ndarray:
    """Return with which row each is interchanged, one after another, for rows to be in an order."""
    rows = [*range(len(order))]
    places, found = rows.copy(), rows.copy()
    for k, row in enumerate(order.tolist()):
        found[k], other = places[row], rows[k]
        rows[places[row]], places[other] = other, places[row]
    return np.array(found, np.int32)


def warn_of_singular() -> None:
    """Say that factors are of no use to solve with."""
    warn("lu_factor: a pivot is exactly 0; the matrix is singular", RuntimeWarning)


# --- operations ----------------------------------------------------------------------------------


def _spec(op: Op, call: Call) -> Layouts:
    source, width = call.layouts[0].without_partial(), call.static
    grid, count = _grid_of(source, width)
    columns = count * width
    sends, inputs = [*grid.sent(columns, width)], [grid.row_layout(source)]
    if op in _KEEPING:
        return Layouts((*inputs,), source, (*sends, (inputs[0], source, True)))
    if op is tile_slogdet:
        whole = Layout(source.mesh, [Replicate()] * source.mesh.ndim, ())
        return Layouts((*inputs,), whole, (*sends,))
    output = source
    if op is tile_solve:
        right = call.layouts[1].without_partial()
        inputs.append(grid.row_layout(right))
        output = solution_layout(source, right)
        columns = right.shape[1]
    sends += grid.sent(columns, right_width(grid, columns))
    return Layouts((*inputs,), output, (*sends, (inputs[-1], output, True)))


def _grid_of(layout: Layout, width: int) -> tuple[Grid, int]:
    """Return the grid for a matrix, and how many tiles are along a row."""
    rows, columns = layout.shape
    grid = Grid(layout, width, is_tall=rows > columns)
    return grid, -(-columns // width) if rows > columns else grid.count


def solution_layout(matrix: Layout, right: Layout) -> Layout:
    """Return the layout of solutions: cut as rows of the matrix, or as the right-hand sides."""
    pairs = zip(matrix.placements, right.placements, strict=True)
    placements = [a if a == Shard(0) else b for a, b in pairs]
    found = right.replace(placements=placements, boundaries=None, shard_order=None)
    boundaries: dict[int, tuple[int, ...]] = {}
    for axis, givers in ((0, (matrix, right)), (1, (right,))):
        for giver in givers:
            own = (giver.boundaries or {}).get(axis)
            if own and giver.sharding_axes(axis) == found.sharding_axes(axis):
                boundaries.setdefault(axis, own)
    return found.replace(boundaries=boundaries or None)


def check_right_hand_side(name: str, b: Any, matrices: Any = None) -> None:
    """Refuse a right-hand side without axes, or of other rows than square matrices.

    Raises
    ------
    ShapeError
        See above.
    """
    if not getattr(b, "ndim", 0):
        raise ShapeError(
            f"{name} got a right-hand side of shape (); it must be (m,), or (..., m, k) for k of "
            "them"
        )
    rows = b.shape[-2:][0]
    square = getattr(matrices, "ndim", 0) > 1 and len({*matrices.shape[-2:]}) == 1
    if square and matrices.shape[-1] != rows:
        raise ShapeError(
            f"{name} got shapes {matrices.shape} and {b.shape}: matrices of {matrices.shape[-1]} "
            f"rows and right-hand sides of {rows}; they must be equal"
        )


def right_width(grid: Grid, columns: int) -> int:
    """Return the columns of tiles of right-hand sides."""
    return max(min(grid.width, -(-columns // grid.columns)), 1)


@dtypes_of
def _dtypes(op: Op, call: Call) -> Any:
    return op.local(*(np.empty((0, 1, 1), dtype) for dtype in call.dtypes))


def _bind(step: Step) -> Callable[..., Any]:
    rows, output, width = step.sources[-1], step.output, step.call.static
    grid, count = _grid_of(step.sources[0], width)
    square = count * width
    number = step.token()
    dtype = step.result[0] if isinstance(step.result, tuple) else step.result

    def function(block: Buffer, *others: Buffer) -> Any:
        device = _backend.device_of(block)
        tiles = grid.deal(_backend.to_host(block), square, width, dtype)
        grid.set_diagonal(tiles, grid.length)
        if step.op in (tile_slogdet, *_KEEPING):
            right, each = tiles[:, :0], width
        elif step.op is tile_inv:
            right, each = grid.identity(square, dtype), width
        else:
            columns = rows.shape[1]
            each = right_width(grid, columns)
            right = grid.deal(_backend.to_host(others[0]), columns, each, dtype)
        keeps = step.op in _KEEPING
        elimination = Elimination(grid, tiles, right, number, step, keeps, count)
        with np.errstate(all="ignore"):  # as in LAPACK
            is_regular = elimination.run()
            if step.op is tile_slogdet:
                found = elimination.determinant() if is_regular else (0, -np.inf)
                pairs = zip(found, step.result, strict=True)
                return tuple(_backend.asarray(np.asarray(*pair), device) for pair in pairs)
            if step.op is tile_factor and not is_regular:
                warn_of_singular()
            elif not (keeps or is_regular):
                raise LinAlgError(f"{step.op.name}: Singular matrix")
            order = elimination.order() if keeps else None
            solutions = [elimination.triangles() if keeps else elimination.substitute()]
            del elimination, tiles, right  # before room is made for blocks
            solution = grid.collect(solutions.pop(), each, rows)
        moved = redistribute_local(_backend.asarray(solution, device), rows, output)
        if order is None:
            return moved
        order = order[order < grid.length]  # NaN lets rows that fill up the last turn go before
        if step.op is tile_factor:
            return moved, *[_backend.asarray(one, device) for one in (order, interchanges(order))]
        columns = output.shape[1]
        if len(order) < columns:
            order = np.append(order, np.setdiff1d(np.arange(2 * columns), order))
        return moved, _backend.asarray(order[:columns], device)

    return function


def _outputs(step: Step) -> tuple[Layout, ...]:
    return step.partial, step.partial


def _outputs_of_factors(step: Step) -> tuple[Layout, ...]:
    mesh = step.output.mesh
    whole = Layout(mesh, [Replicate()] * mesh.ndim, step.output.shape[1:])
    return step.output, *[whole] * (2 if step.op is tile_factor else 1)


def _rows_and_orders(block: np.ndarray) -> tuple[Any, ...]:
    return np.linalg.inv(block), np.empty(0, np.int64), np.empty(0, np.int32)  # as for dtypes


def _sign_and_logarithm(block: np.ndarray) -> tuple[Any, ...]:
    return (*np.linalg.slogdet(block),)


tile_solve = Op("solve", np.linalg.solve, _spec, dtypes=_dtypes, bind=_bind)
tile_inv = Op("inv", np.linalg.inv, _spec, dtypes=_dtypes, bind=_bind)
tile_slogdet = Op(
    "slogdet", _sign_and_logarithm, _spec, dtypes=_dtypes, bind=_bind, outputs=_outputs
)
tile_factor = Op(
    "lu_factor", _rows_and_orders, _spec, dtypes=_dtypes, bind=_bind, outputs=_outputs_of_factors
)
tile_lu = replace(tile_factor, name="lu", local=lambda block: _rows_and_orders(block)[:2])
_KEEPING = tile_factor, tile_lu
"""Their static argument is the width of a tile; matrices have the same rows, and are square.

Of `tile_factor` rows are where those of the matrix were, beside the order of the pivots and the
interchanges that lead to it. Of `tile_lu` they are as well, beside the pivots, one for each column:
there may be fewer of these than rows."""
