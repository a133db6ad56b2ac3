"""ScaLAPACK: Fortran's routines on blocks that are dealt out to a grid of processes in turn.

It is called through its C and Fortran symbols, from the library that the variable
SCALAPACK_LIBRARY names, or from `libscalapack-mpich`. Its MPI must be the one that mpi4py runs.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.measure import Work

NAME = "ScaLAPACK"

WIDTH = 128
"""Rows and columns of a block: of 32, 64 and 128 the quickest on two ranks of a Zen 4, but for
`solve`, which takes as long with each."""


@functools.cache
def _library() -> ctypes.CDLL:
    name = os.environ.get("SCALAPACK_LIBRARY") or ctypes.util.find_library("scalapack-mpich")
    if name is None:
        raise OSError("no libscalapack-mpich, nor SCALAPACK_LIBRARY")
    return ctypes.CDLL(name)


def start() -> str | None:
    """Get ready; say why not, if not."""
    try:
        library = _library()
    except OSError as error:
        return str(error)
    flag = c_int(0)
    library.MPI_Initialized(byref(flag))
    return None if flag.value else "its MPI is another one than mpi4py's"


class _Matrix:
    """A matrix in blocks on a grid: this process's items in Fortran's order, and a description."""

    def __init__(self, x: np.ndarray, start: int, shape: tuple[int, int], tall: bool) -> None:
        """Take what this process has of `x`, which are rows of a matrix from `start` on."""
        size, library = MPI.COMM_WORLD.size, _library()
        self.context, self.shape = c_int(0), shape
        library.Cblacs_get(0, 0, byref(self.context))
        columns = (
            1 if tall else max(n for n in range(1, size + 1) if size % n == 0 and n * n <= size)
        )
        grid = size // columns, columns
        library.Cblacs_gridinit(byref(self.context), b"R", *grid)
        at = divmod(MPI.COMM_WORLD.rank, columns)
        height = -(-shape[0] // size) if tall else WIDTH
        self.block = height, min(WIDTH, shape[1])
        mine = [
            np.flatnonzero(np.arange(n) // width % count == place)
            for n, width, count, place in zip(shape, self.block, grid, at, strict=True)
        ]
        self.places = mine
        self.items = np.asfortranarray(x[np.ix_(mine[0] - start, mine[1])])
        self.describe = (c_int * 9)(
            1, self.context.value, *shape, *self.block, 0, 0, max(1, self.items.shape[0])
        )

    def __call__(self, items: np.ndarray) -> tuple[Any, ...]:
        """Return the arguments that stand for all of a matrix of such items."""
        one = c_int(1)
        return items.ctypes, byref(one), byref(one), self.describe


def _run(name: str, *arguments: Any) -> None:
    """Call a routine of Fortran; integers become references."""
    info = c_int(0)
    given = [byref(c_int(one)) if isinstance(one, int) else one for one in arguments]
    getattr(_library(), name)(*given, byref(info))
    if info.value:
        raise ValueError(f"{name}: info {info.value}")


def _with_room(name: str, *arguments: Any) -> None:
    """Call a routine that asks for room first."""
    room = np.zeros(1)
    _run(name, *arguments, room.ctypes, -1)
    room = np.empty(int(room[0]))
    _run(name, *arguments, room.ctypes, room.size)


def factorization(name: str, x: Any, right: Any) -> tuple[Work, Callable[[Any], float]] | None:
    """Factorize a matrix whose rows are cut, or solve with it; see `by_distarray`."""
    if name == "svd":  # it makes a tall matrix bidiagonal as it is
        return None
    rows, columns = shape = x.shape
    tall = rows > columns
    start = x.layout.local_box()[0][0] if tall else 0
    matrix = _Matrix(x.to_local() if tall else x.full_array(), start, shape, tall)
    side = _Matrix(right.full_array()[:, None], 0, (rows, 1), tall=False)
    side.describe[1] = matrix.context.value

    def cholesky() -> np.ndarray:
        items = matrix.items.copy(order="F")
        _run("pdpotrf_", c_char_p(b"L"), rows, *matrix(items))
        return items

    def solve() -> np.ndarray:
        items, found = matrix.items.copy(order="F"), side.items.copy(order="F")
        pivots = np.empty(rows + WIDTH, np.int32)
        _run("pdgesv_", rows, 1, *matrix(items), pivots.ctypes, *side(found))
        return found

    def qr() -> tuple[np.ndarray, np.ndarray]:
        q = matrix.items.copy(order="F")
        scales = np.empty(max(1, q.shape[1] + WIDTH))
        _with_room("pdgeqrf_", rows, columns, *matrix(q), scales.ctypes)
        r = q[:columns].copy() if tall else q.copy(order="F")
        _with_room("pdorgqr_", rows, columns, columns, *matrix(q), scales.ctypes)
        return q, r

    def told(result: Any) -> float:
        if name == "solve":
            own = result
        else:
            r = result if name == "cholesky" else result[1]
            i, j = matrix.places[0][: len(r), None], matrix.places[1]
            own = np.where(i >= j if name == "cholesky" else i <= j, r, 0)
        return MPI.COMM_WORLD.allreduce(float(abs(own).sum()))

    return {"cholesky": cholesky, "solve": solve}.get(name, qr), told
