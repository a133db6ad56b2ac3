"""Householder's factorization of a matrix in tiles that are dealt out to all processes.

The processes of a column of the grid factorize a panel by their triangles (TSQR), and their
orthonormal columns Q become a block reflector. With the singular value decomposition U C V' of the
rows of Q on the diagonal, and Z those rows of all processes times V / sqrt(1 + C), but U sqrt(1 +
C) on the diagonal, `1 - Z Z'` takes Q to the rows -U V' there and to zeros elsewhere: a basis that
is built of an angle for each column and loses nothing (Schreiber, Parlett, "Block reflectors:
theory and computation", 1988). Other columns are reflected by two products; so is the identity,
from the last panel to the first, which gives Q (Ballard, Demmel, Grigori, Jacquelin, Knight,
Nguyen, "Reconstructing Householder vectors from tall-skinny QR", 2014, with triangles in the place
of the decomposition).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory, gather_parts
from distarray.core import Call, Layouts, Op, Step, dtypes_of, numeric
from distarray.layout import Layout
from distarray.linalg._kernels import decompose_finite, subtract_product
from distarray.linalg._tiles import Grid, tile_width
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer

PANEL: Final = 128
"""Columns of a panel at most. Measured on two ranks of Zen 4, float64 of 2048 and 4096 rows: `qr`
takes 0.64 and 2.9 s with 256, 0.46 and 2.6 s with 128, 0.42 and 2.6 s with 64, for twice the
messages."""


def panel_width(x: Any) -> int:
    """Return the columns of a panel of a matrix, and of its tiles."""
    return min(tile_width(x), PANEL, x.shape[1])


class Reflections:
    """Block reflectors that take a matrix of no fewer rows than columns to its triangle.

    Parameters
    ----------
    grid
    tiles
        Of the matrix, as `Grid.deal` gives them: overwritten by reflectors on and below the
        diagonal, and by rows of the triangle above it.
    columns
        Of the matrix.
    number, what
        What the ranks must agree on, as in `Communicator.views`.
    """

    def __init__(
        self, grid: Grid, tiles: np.ndarray, columns: int, number: int, what: object
    ) -> None:
        self._grid, self._tiles, self._columns = grid, tiles, columns
        self._number, self._what = number, what
        self._height = self._rows_of(grid.row)
        self._turns: dict[int, np.ndarray] = {}
        self._triangles: dict[int, np.ndarray] = {}

    def run(self) -> None:
        """Reflect all columns."""
        for k in range(self._steps):
            reflector = self._share(k, self._reflect_panel(k) if self._has(k) else None)
            self._reflect(self._tiles, k, reflector, self._turns.get(k), forward=True)

    def apply(self, tiles: np.ndarray) -> None:
        """Put into the tiles of the identity those of the orthonormal columns."""
        for k in reversed(range(self._steps)):
            own = self._reflector_of(k).copy() if self._has(k) else None
            self._reflect(tiles, k, self._share(k, own), self._turns.get(k), forward=False)

    def triangle(self) -> np.ndarray:
        """Return the tiles of the triangle, in the place of the reflectors."""
        grid = self._grid
        turns = self._tiles.shape[1] // grid.width
        for k in range(grid.column, turns * grid.columns, grid.columns):
            low, column = grid.rows_before(k), grid.columns_before(k)
            tile = self._tiles[low:, column : column + grid.width]
            tile[...] = 0
            found = self._triangles.get(k)
            if found is not None and grid.row == k % grid.rows:
                tile[: len(found), : len(found)] = found
        return self._tiles

    @property
    def _steps(self) -> int:
        return -(-self._columns // self._grid.width)

    def _has(self, k: int) -> bool:
        """Tell whether this process has rows of a panel's columns."""
        return self._grid.column == k % self._grid.columns

    def _count(self, k: int) -> int:
        """Return the columns of a panel."""
        return min(self._grid.width, self._columns - k * self._grid.width)

    def _rows_of(self, row: int, k: int = 0) -> int:
        """Return the rows, from the k-th row of tiles on, of processes in a row of the grid."""
        grid = self._grid
        full, rest = divmod(grid.length, grid.width)
        rows = grid.width * max(0, -(-(full - row) // grid.rows))
        rows += rest if full % grid.rows == row else 0
        return max(0, rows - grid.width * max(0, -(-(k - row) // grid.rows)))

    def _reflector_of(self, k: int) -> np.ndarray:
        """Return the rows of a reflector that this process has kept."""
        grid = self._grid
        rows = self._tiles[grid.rows_before(k) : self._height]
        return rows[:, grid.columns_before(k) :][:, : self._count(k)]

    def _reflect_panel(self, k: int) -> np.ndarray:
        """Return this process's rows of the reflector of a panel, and keep them."""
        grid, count = self._grid, self._count(k)
        panel, is_top = self._reflector_of(k), grid.row == k % grid.rows
        q, r = np.linalg.qr(panel)
        heights = [min(self._rows_of(row, k), count) for row in range(grid.rows)]
        sizes = [height * count for height in heights]
        stack = gather_parts(grid.down, r.reshape(-1), sizes, self._number + k, self._what)
        start = sum(heights[: grid.row])
        own = slice(start, start + len(r))
        # One process factorizes for all: rounded otherwise, columns may be others. Then V / sqrt(1
        # + C), and the turn -U V'.
        told = np.empty((sum(heights) + 2 * count, count), panel.dtype)
        inner, scaled, turn = np.split(told, (-2 * count, -count))
        if is_top:
            inner[...], self._triangles[k] = np.linalg.qr(stack.reshape(-1, count))
            u, cosines, vh = _decompose(q[:count] @ inner[own])
            scales = np.sqrt(1 + cosines)
            scaled[...], turn[...] = vh.conj().T / scales, -u @ vh
        grid.down.broadcast(told, k % grid.rows)
        reflector = q @ inner[own] @ scaled
        if is_top:
            self._turns[k] = turn.copy()
            reflector[:count] = u * scales
        panel[...] = reflector
        return reflector

    def _share(self, k: int, reflector: np.ndarray | None) -> np.ndarray:
        """Return a reflector, and keep its turn, which its process tells its row of the grid."""
        grid, count = self._grid, self._count(k)
        if reflector is None:
            reflector = _memory.empty((self._rows_of(grid.row, k), count), self._tiles.dtype)
        grid.across.broadcast(reflector, k % grid.columns)
        if grid.row == k % grid.rows:
            turn = self._turns.setdefault(k, np.empty((count, count), self._tiles.dtype))
            grid.across.broadcast(turn, k % grid.columns)
        return reflector

    def _reflect(
        self,
        tiles: np.ndarray,
        k: int,
        reflector: np.ndarray,
        turn: np.ndarray | None,
        forward: bool,
    ) -> None:
        """Reflect columns: those after the panel, or from it on of what was the identity."""
        grid, count = self._grid, self._count(k)
        rest = tiles[grid.rows_before(k) : self._height, grid.columns_before(k + forward) :]
        if turn is not None and not forward:
            rest[:count] = turn @ rest[:count]
        products = _memory.empty((count, rest.shape[1]), tiles.dtype)
        np.matmul(reflector.conj().T, rest, out=products)
        grid.down.all_reduce(products, out=products)
        subtract_product(rest, reflector, products)
        if turn is not None and forward:
            rest[:count] = turn.conj().T @ rest[:count]


def _decompose(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a singular value decomposition, or NaN of NaN, which only one process sees."""
    try:
        u, s, vh = decompose_finite(x)
    except np.linalg.LinAlgError:
        u, s, vh = (np.full(shape, np.nan, x.dtype) for shape in (x.shape, len(x), x.shape))
    return u, s, vh


# --- operation -----------------------------------------------------------------------------------


def _spec(_op: Op, call: Call) -> Layouts:
    source, (mode, width) = call.layouts[0].without_partial(), call.static
    grid = Grid(source, width)
    sends = [*grid.sent(source.shape[1], width)]
    for result in _results(source, mode):
        sends += [*grid.sent(result.shape[1], width), (grid.row_layout(result), result, True)]
    return Layouts((grid.row_layout(source),), source, (*sends,))


def _results(source: Layout, mode: str) -> tuple[Layout, ...]:
    """Return the layouts of the results: both are cut as the matrix is."""
    rows, columns = source.shape
    inner = rows if mode == "complete" else columns
    r = _of_shape(source, (inner, columns))
    return (r,) if mode == "r" else (_of_shape(source, (rows, inner)), r)


def _of_shape(layout: Layout, shape: tuple[int, int]) -> Layout:
    """Return a layout of another shape, with the boundaries of axes that are as long as before."""
    boundaries = {
        axis: own for axis, own in (layout.boundaries or {}).items() if own[-1] == shape[axis]
    }
    return layout.replace(shape=shape, boundaries=boundaries or None)


def _outputs(step: Step) -> tuple[Layout, ...]:
    return _results(step.call.layouts[0].without_partial(), step.call.static[0])


@dtypes_of
def _dtypes(_op: Op, call: Call) -> Any:
    return np.linalg.qr(np.empty((0, 1, 1), call.dtypes[0]), call.static[0])


def _bind(step: Step) -> Callable[[Buffer], Any]:
    source, (_, width) = step.sources[0], step.call.static
    grid, columns = Grid(source, width), source.shape[1]
    *q_layouts, r_layout = step.outputs
    number = step.token()
    dtype = step.result[0] if isinstance(step.result, tuple) else step.result

    def function(block: Buffer) -> Any:
        device = _backend.device_of(block)

        def collect(tiles: list[np.ndarray], output: Layout) -> Buffer:
            rows = grid.row_layout(output)
            found = _backend.asarray(grid.collect(tiles.pop(), width, rows), device)
            return redistribute_local(found, rows, output)

        tiles = [grid.deal(_backend.to_host(block), columns, width, dtype)]
        reflections = Reflections(grid, tiles.pop(), columns, number, step)
        reflections.run()
        results = []
        for output in q_layouts:
            tiles = [grid.identity(output.shape[1], dtype)]
            reflections.apply(tiles[0])
            results.append(collect(tiles, output))
        tiles = [reflections.triangle()]
        del reflections
        r = collect(tiles, r_layout)
        return (*results, r) if results else r

    return function


blocked_qr = Op(
    "qr", np.linalg.qr, _spec, kinds=numeric, dtypes=_dtypes, bind=_bind, outputs=_outputs
)
"""Its static argument is "reduced", "complete" or "r", and the width of a tile."""
