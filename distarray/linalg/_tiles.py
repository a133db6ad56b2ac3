"""Square tiles of a matrix, dealt out to a grid of processes in turn: a block-cyclic distribution.

Tile (i, j) belongs to the process in row `i % rows` and column `j % columns` of the grid, so that
all have work until the last tiles are factorized (Dongarra, van de Geijn, Walker, "Scalability
issues affecting the design of a dense linear algebra library", 1994). It needs no placement of its
own: where blocks hold whole turns of rows, filled up at the end, they are blocks of an array of
axes (turn of rows, row of the grid, row in a tile, turn of columns, column of the grid, column in a
tile), and two axes of that are cut instead of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod
from typing import Any, Final

import numpy as np

from distarray.comm import _memory
from distarray.core import BaseArray
from distarray.layout import Layout, Replicate, Shard, chunk
from distarray.ops import REPLICATED_BYTES
from distarray.redistribute import redistribute_local

WHOLE_BYTES: Final = 8 << 20
"""A matrix up to this size is factorized on every process. Measured on two ranks of Zen 4, float64:
of 896 rows, tiles take `solve`, `qr`, `cholesky` and `inv` 1.2, 1.2, 1.0 and 0.7 times as long; of
1024 rows, which is this size, 0.8, 0.7, 0.6 and 0.6 times."""

COLLECTED_BYTES: Final = REPLICATED_BYTES
"""A matrix up to this size is collected for its eigenvalues or singular values: one process finds
them in a fraction of the operations that it takes to divide the matrix first."""

WIDTH: Final = 256
"""Rows and columns of a tile at most. Measured on two ranks of Zen 4, float64 of 4096 rows: with
256 and 128 `cholesky` takes 0.41 and 0.43 s, `solve` 0.68 and 0.67 s, for twice the messages."""

EVEN_WIDTH: Final = 160
"""Rows of a tile from which on each process gets as many turns of rows as the others, for narrower
tiles. Measured on two ranks of Zen 5, float64 of 1500 rows: with four turns of 188 instead of three
of 256 `cholesky` takes 30 ms instead of 36, `qr`, `solve` and `inv` 2 to 5 % longer."""

EACH: Final = 8
"""Of what number widths are multiples: rows of tiles in double precision begin with cache lines."""

PACKED_BYTES: Final = 32 << 20
"""Bytes of tiles that are sent between nodes at a time, so that messages take less than a block."""

Sent = tuple[Layout, Layout, bool]


def takes_tiles(x: Any, nbytes: int | None = None) -> bool:
    """Tell whether an operand is one square matrix, large, and not whole on every process."""
    return is_large(x, WHOLE_BYTES if nbytes is None else nbytes) and x.shape[0] == x.shape[1]


def is_large(x: Any, nbytes: int) -> bool:
    """Tell whether an operand is one matrix of more bytes, and not whole on every process."""
    if not isinstance(x, BaseArray) or x.ndim != 2:
        return False
    layout = x.layout
    mesh_shape = layout.mesh.shape
    kept = all(
        type(placement) is Replicate or count == 1
        for placement, count in zip(layout.placements, mesh_shape, strict=True)
    )
    return not kept and layout.size * x.dtype.itemsize > nbytes


def grid_shape(size: int) -> tuple[int, int]:
    """Return the rows and columns of a grid of processes, as square as their number lets it be."""
    rows = min(n for n in range(1, size + 1) if size % n == 0 and n * n >= size)
    return rows, size // rows


def tile_width(x: Any) -> int:
    """Return the columns of a tile of a matrix: few rows of zeros fill up the last turn."""
    size = x.layout.mesh.size
    return _width(len(x), lcm(*grid_shape(size)), size)


def tall_width(x: Any) -> int:
    """Return the same for tiles of a grid of one column: few columns of zeros fill up the last."""
    columns, size = x.shape[1], x.layout.mesh.size
    return -(-columns // -(-columns // _width(len(x), size, size)))


def _width(rows: int, turn: int, size: int) -> int:
    turns = -(-rows // (WIDTH * turn))
    even = -(-turns // size) * size  # as many turns of rows for each process
    if rows >= even * turn * EVEN_WIDTH:
        turns = even
    return min(-(-rows // (turns * turn * EACH)) * EACH, WIDTH)


class Grid:
    """The processes of a mesh in a grid, and which tiles of matrices of some rows each has.

    It is as square as it can be, or of one column where it `is_tall`.

    Attributes
    ----------
    mesh
        The grid, of axes "rows" and "columns", with blocks in host memory.
    rows, columns, row, column
        Its shape, and this process's place in it.
    width
        Rows and columns of a tile.
    count
        Tiles along the rows, with those that fill up the last turn.
    down, across, everyone
        Communicators of this process's column and row, and of all.
    """

    def __init__(self, layout: Layout, width: int, is_tall: bool = False) -> None:
        mesh: Any = layout.mesh
        size = mesh.size
        self.rows: int
        self.columns: int
        self.rows, self.columns = (size, 1) if is_tall else grid_shape(size)
        self.mesh = mesh.on("cpu").regrid((self.rows, self.columns), ("rows", "columns"))
        self.width, self.length = width, layout.shape[0]
        turn = lcm(self.rows, self.columns)
        self.count = -(-self.length // (width * turn)) * turn
        self._turns = self.count // self.rows
        self._offsets = chunk(self._turns, (size,)).offsets
        if mesh.coordinate is None:
            return
        self.row, self.column = self.mesh.coordinate
        self.down, self.across = (self.mesh.communicator((axis,)) for axis in (0, 1))
        self.everyone = self.mesh.communicator((0, 1))

    def row_layout(self, layout: Layout) -> Layout:
        """Return the layout, on the mesh of `layout`, of which blocks have whole turns of rows."""
        each = self.rows * self.width
        offsets = tuple(min(turn * each, layout.shape[0]) for turn in self._offsets)
        placements = [Shard(0)] * layout.mesh.ndim
        return layout.replace(placements=placements, boundaries={0: offsets}, shard_order=None)

    def tile_layouts(self, columns: int, width: int) -> tuple[Layout, Layout]:
        """Return the layouts of all tiles before and after they are dealt out.

        `columns` are those of the matrix, of which a tile has `width`.
        """
        turns = -(-columns // (width * self.columns))
        shape = self._turns, self.rows, self.width, turns, self.columns, width
        before = Layout(self.mesh, [Shard(0)] * 2, shape, boundaries={0: self._offsets})
        return before, Layout(self.mesh, [Shard(1), Shard(4)], shape)

    def sent(self, columns: int, width: int) -> tuple[Sent, Sent]:
        """Return what is sent of tiles, and what all panels together come to at most."""
        before, after = self.tile_layouts(columns, width)
        panels = after.replace(placements=[Replicate(), Shard(4)])
        return (before, after, True), (after, panels, True)

    def deal(self, block: np.ndarray, columns: int, width: int, dtype: Any) -> np.ndarray:
        """Return this process's tiles, given its block of rows.

        They are a matrix, of the rows and columns of all its tiles, filled up with zeros.
        """
        before, after = self.tile_layouts(columns, width)
        filled = _memory.empty(before.local_shape(), dtype)
        tiles, (rows, kept) = _as_matrix(filled), block.shape
        tiles[:rows, :kept] = block
        tiles[rows:], tiles[:rows, kept:] = 0, 0
        return _as_matrix(redistribute_local(filled, before, after, max_bytes=PACKED_BYTES))

    def identity(self, columns: int, dtype: Any) -> np.ndarray:
        """Return this process's tiles of as many columns of the identity."""
        shape = self.tile_layouts(columns, self.width)[1].local_shape()
        tiles = _as_matrix(_memory.zeros(shape, dtype))
        self.set_diagonal(tiles, 0)
        return tiles

    def collect(self, tiles: np.ndarray, width: int, layout: Layout) -> np.ndarray:
        """Return this process's block of rows, given its tiles: their memory is free meanwhile.

        `width` are the columns of a tile, `layout` is that of whole turns of rows, which may be
        fewer than the tiles have.
        """
        length, columns = layout.shape
        before, after = self.tile_layouts(tiles.shape[1] * self.columns, width)
        own = tiles.reshape(after.local_shape())
        dealt = redistribute_local(own, after, before, max_bytes=PACKED_BYTES)
        del tiles, own  # of which the caller keeps none
        first, last = (at * self.rows * self.width for at in before.own_box[0])
        block = _memory.empty((min(last, length) - min(first, length), columns), dealt.dtype)
        block[...] = _as_matrix(dealt)[: len(block), :columns]
        return block

    def panel(self, tiles: np.ndarray, k: int) -> np.ndarray:
        """Return the k-th column of tiles, in a process that has it, or one of the same shape."""
        start = k // self.columns * self.width
        return tiles[:, start : start + self.width]

    def share(self, panel: np.ndarray, k: int) -> np.ndarray:
        """Return rows of the k-th column of tiles, which its process tells its row of the grid."""
        if self.columns > 1:
            is_root = self.column == k % self.columns
            found = _memory.make_contiguous(panel) if is_root else None
            panel = _memory.empty(panel.shape, panel.dtype) if found is None else found
            self.across.broadcast(panel, k % self.columns)
        return panel

    def diagonal(self, tiles: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the tiles on the diagonal that this process has, and the first row of each."""
        for turn in range(self._turns):
            i = turn * self.rows + self.row
            column = i // self.columns * self.width
            if i % self.columns == self.column and column < tiles.shape[1]:
                rows = tiles[turn * self.width : (turn + 1) * self.width]
                yield i * self.width, rows[:, column : column + self.width]

    def set_diagonal(self, tiles: np.ndarray, start: int) -> None:
        """Put ones on the diagonal of a matrix from a row on."""
        for first, tile in self.diagonal(tiles):
            kept = max(start - first, 0)
            if kept < self.width:
                np.fill_diagonal(tile[kept:, kept:], 1)

    def rows_before(self, k: int) -> int:
        """Return how many rows of this process lie above the k-th row of tiles."""
        return self.width * max(0, -(-(k - self.row) // self.rows))

    def columns_before(self, k: int) -> int:
        """Return how many columns of this process lie before the k-th column of tiles."""
        return self.width * max(0, -(-(k - self.column) // self.columns))

    def owner(self, k: int) -> int:
        """Return which of all processes has the k-th tile of the diagonal."""
        return k % self.rows * self.columns + k % self.columns


def _as_matrix(tiles: np.ndarray) -> np.ndarray:
    """Return the rows and columns of all tiles as those of one matrix."""
    return tiles.reshape(prod(tiles.shape[:3]), prod(tiles.shape[3:]))
