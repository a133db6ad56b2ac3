"""Vectors of an iterative solver: blocks of one layout, combined tile by tile, and their products.

All updates of a step are done in one pass over tiles that stay in the cache of a core, and the
products that follow from them in the same pass, so that each block is read once and written once.
The sums over all processes of as many products as a step needs travel in one reduction, which gives
every process the same bits: whatever is decided from them is decided alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import BaseArray, common_mesh, copy_block, describe, lift, move, new_array
from distarray.errors import ArgumentTypeError, DTypeError, MeshError, ShapeError
from distarray.layout import Layout, Shard
from distarray.typing import Buffer

_PASS_BYTES: Final = 1 << 20
"""Of the tiles of one pass together, as in fused functions."""

_PIECE: Final = 8192
"""Items of a product. OpenBLAS shares more than 10,000 among threads, which meet at each tile: on
cores that are busy that took 50 times as long."""

ORDINARY_VECTOR: Final = 8
"""A vector is ordinary whose size has no exponent above a part of the largest one, and below its
negative; and so is """
ORDINARY_IMAGE: Final = 4
"""what an operator makes of that. Solvers multiply two of both, and square what comes of it."""

Term = tuple[Any, Buffer]
Update = tuple[Buffer, Any, Sequence[Term]]
"""(y, a, [(b, x), ...]): y becomes a y + b x + ..."""


class Space:
    """The vectors of a solver: flat blocks of one layout without `Partial`, and one dtype.

    Parameters
    ----------
    name : str
        Of the solver.
    layout : Layout
        Of the vectors, which may have any number of axes.
    dtype : dtype
        float32, float64, complex64 or complex128.
    """

    def __init__(self, name: str, layout: Layout, dtype: Any) -> None:
        self.name, self.layout, self.dtype = name, layout, np.dtype(dtype)
        mesh: Any = layout.mesh
        self.mesh = mesh
        if mesh.coordinate is None:
            raise MeshError(
                f"{name}: this process is not in {mesh} and would not know when to stop; call "
                "it only where mesh.coordinate is not None"
            )
        self.size = layout.size
        self.local_shape = layout.local_shape()
        self.length = math.prod(self.local_shape)
        self.eps = float(np.finfo(self.dtype).eps)
        self._communicator = mesh.communicator()
        # Of processes with the same block the first counts.
        copied = [i for i, one in enumerate(layout.placements) if not isinstance(one, Shard)]
        self._counts = not any(mesh.coordinate[axis] for axis in copied)
        self._copies = mesh.communicator(copied) if copied else None
        self.wide = np.complex128 if self.dtype.kind == "c" else np.float64

    # --- vectors ---------------------------------------------------------------------------------

    def empty(self, *count: int) -> Buffer:
        """Return the uninitialised block of a vector, or of `count` ones, a row for each."""
        return _memory.empty((*count, self.length), self.dtype, self.mesh.device)

    def zeros(self) -> Buffer:
        """Return the block of a vector of zeros."""
        block = self.empty()
        block[...] = 0
        return block

    def array(self, block: Buffer) -> Any:
        """Return the distributed array that looks at a block."""
        return new_array(block.reshape(self.local_shape), self.layout)

    def unite(self, block: Buffer) -> Buffer:
        """Return the block with the values of the process that counts, of those with copies of it.

        Where others round otherwise, what they have made of their copies may be no solution: sums
        are of products of the first's vectors.
        """
        if self._copies is not None:
            self._copies.broadcast(block)
        return block

    def read(self, x: Any, what: str) -> Buffer:
        """Return the block of an array as one of these vectors, copied only where it has to be.

        Raises
        ------
        ArgumentTypeError
            If it is not distributed.
        ShapeError, DTypeError, MeshError
            If it is no vector of this space.
        """
        if not isinstance(x, BaseArray):
            raise ArgumentTypeError(
                f"{self.name}: {what} is {describe(x)}; it must be a DistArray: of this process's "
                "block y of it DistArray.from_local(y, x.mesh, x.placements), of a whole y that "
                "every process has distarray.asarray(y)"
            )
        if x.shape != self.layout.shape:
            raise ShapeError(
                f"{self.name}: {what} has shape {x.shape}, and vectors {self.layout.shape}"
            )
        if x.dtype.kind not in ("biufc" if self.dtype.kind == "c" else "biuf"):
            raise DTypeError(
                f"{self.name}: {what} is of {x.dtype}, and vectors are of {self.dtype}; convert "
                "the right-hand side, or the vector to begin with, by astype(complex)"
            )
        block = x._local
        if x._layout is not self.layout:
            if common_mesh(self.name, [self.mesh, x._layout.mesh]) is not self.mesh:
                raise MeshError(f"{self.name}: {what} lies on {x._layout.mesh}, not {self.mesh}")
            block = move(self.name, block, lift(x._layout, self.mesh), self.layout)
        return block.astype(self.dtype, copy=False).reshape(-1)

    def copy(self, block: Buffer) -> Buffer:
        """Return a copy of a block."""
        return copy_block(block)

    def normalize(self, block: Buffer, square: float) -> tuple[Buffer, int, float]:
        """Return a vector times a power of two that makes it neither large nor small.

        Its product with itself must be known; it tells at once of ordinary vectors. Returned are
        the block, the exponent of the power, and the product of the result.
        """
        limit = 4.0 ** (np.finfo(self.dtype).maxexp // ORDINARY_VECTOR)
        if 1 / limit <= square <= limit:
            return block, 0, square
        exponent = exponent_of(self.largest(block), self.dtype, ORDINARY_VECTOR)
        if exponent:
            block = times_power(block, exponent)
            square = self.multiply((block, block))[0].real
        return block, exponent, square

    # --- arithmetic ------------------------------------------------------------------------------

    def tiles(self, count: int) -> Iterator[slice]:
        """Yield the tiles of `count` vectors that are passed over together."""
        step = max(1, _PASS_BYTES // (count * self.dtype.itemsize))
        for start in range(0, self.length, step):
            yield slice(start, min(start + step, self.length))

    def combine(
        self, updates: Sequence[Update], products: Sequence[tuple[Buffer, Buffer]] = ()
    ) -> list[Any]:
        """Update vectors in this order, and return this process's part of products after that.

        A vector that is multiplied by 0 need not have been initialised. `products` are pairs, of
        which the first is conjugated.
        """
        used = {id(x): x for y, _, terms in updates for x in (y, *(x for _, x in terms))}
        used.update((id(x), x) for pair in products for x in pair)
        found: list[Any] = [0.0] * len(products)
        scratch: Any = None
        with np.errstate(all="ignore"):  # sums tell all processes
            for tile in self.tiles(len(used) + 1):
                if scratch is None:
                    scratch = _memory.empty((tile.stop,), self.dtype, self.mesh.device)
                _update(updates, tile, scratch[: tile.stop - tile.start])
                if self._counts:
                    for i, (x, y) in enumerate(products):
                        found[i] += _multiply(x[tile], y[tile])
        return found

    def add_up(self, numbers: Sequence[Any]) -> list[Any]:
        """Return the sums of all processes' numbers, bitwise the same on all (one reduction)."""
        mine = np.array(numbers, self.wide)
        if self._communicator.size > 1:
            mine = self._communicator.all_reduce(mine)
        found: list[Any] = mine.tolist()
        return found

    def multiply(self, *pairs: tuple[Buffer, Buffer]) -> list[Any]:
        """Return the inner products of pairs of vectors, the first conjugated (one reduction)."""
        return self.add_up(self.combine((), pairs))

    def largest(self, x: Buffer) -> float:
        """Return the largest absolute value of items, or of their two parts (one reduction)."""
        parts = (x.real, x.imag) if self.dtype.kind == "c" else (x,)
        ends = [(part.max(), -part.min()) for part in parts] if self.length else [(0.0, 0.0)]
        mine = np.array(
            [[float(one) for one in pair] for pair in ends]
        )  # and no copy of the vector, as absolute values are
        return float(self._communicator.all_reduce(mine.max(keepdims=True), "max").max())

    def share(self, *values: np.ndarray) -> list[np.ndarray]:
        """Return the first process's arrays, where processors might round theirs differently."""
        if self._communicator.size == 1:
            return [*values]
        sent = np.concatenate([np.ravel(one).astype(self.wide) for one in values])
        self._communicator.broadcast(sent)
        cuts = np.cumsum([one.size for one in values])[:-1]
        parts = zip(np.split(sent, cuts), values, strict=True)
        return [
            (part if one.dtype.kind == "c" else part.real).reshape(one.shape) for part, one in parts
        ]

    def project(self, basis: Buffer, x: Buffer) -> Any:
        """Return this process's part of the products of a few rows, conjugated, and a vector."""
        if not self._counts or not self.length:
            return np.zeros(len(basis), self.wide)
        found = basis @ x if self.dtype.kind == "f" else (basis @ x.conj()).conj()
        return _backend.to_host(found).astype(self.wide)

    def multiply_rows(self, rows: Buffer, others: Buffer) -> np.ndarray:
        """Return this process's part of the products of rows, conjugated, and others."""
        found = np.zeros((len(rows), len(others)), self.wide)
        if self._counts:
            with np.errstate(all="ignore"):  # sums tell all processes
                for tile in self.tiles(len(rows) + len(others)):
                    found += _backend.to_host(rows[:, tile].conj() @ others[:, tile].T)
        return found


def _multiply(x: Buffer, y: Buffer) -> Any:
    """Return the inner product of two tiles, in pieces for which BLAS wakes no threads."""
    rows = len(x) // _PIECE if _backend.is_numpy(x) else 0
    if len(x) <= _PIECE or not rows:
        return np.vdot(x, y).item()
    cut = rows * _PIECE
    pieces = np.vecdot(x[:cut].reshape(rows, -1), y[:cut].reshape(rows, -1))
    return pieces.sum().item() + np.vdot(x[cut:], y[cut:]).item()


def _update(updates: Sequence[Update], tile: slice, scratch: Buffer) -> None:
    """Update a tile of each vector."""
    for y, factor, terms in updates:
        target, rest = y[tile], [*terms]
        if factor == 0:
            factor, x = rest.pop(0)
            np.multiply(x[tile], factor, out=target)
        elif factor != 1:
            target *= factor
        for factor, x in rest:
            if factor == 1:
                target += x[tile]
            else:
                np.multiply(x[tile], factor, out=scratch)
                target += scratch


def exponent_of(largest: float, dtype: Any, part: int) -> int:
    """Return the exponent of the power of two that makes a number about 1.

    It is 0 of numbers whose own exponent is at most a `part` of the largest one of a dtype, of 0,
    and of what is not finite.
    """
    if not 0 < largest < math.inf:
        return 0
    exponent = -math.frexp(largest)[1]
    return exponent if abs(exponent) > np.finfo(dtype).maxexp // part else 0


def times_power(x: Any, exponent: int) -> Any:
    """Return a number or an array times a power of two, exactly where it has room for that."""
    most = np.finfo(getattr(x, "dtype", np.float64)).maxexp - 2
    with np.errstate(all="ignore"):
        while exponent:  # by powers that are numbers
            step = min(max(exponent, -most), most)
            x = x * 2.0**step
            exponent -= step
    return x


def size_of(square: Any) -> float:
    """Return the length of a vector from its product with itself; NaN where it has none."""
    real = square.real
    return math.sqrt(real) if real >= 0 else math.nan


def square_of(number: Any) -> float:
    """Return the square of the absolute value of a number."""
    return float(number.real * number.real + number.imag * number.imag)


def is_finite(*numbers: Any) -> bool:
    """Tell whether none of some numbers is infinite or NaN."""
    return all(math.isfinite(one.real) and math.isfinite(one.imag) for one in numbers)
