"""Mean and sum of squared deviations of a block in one pass over cache-sized pieces.

NumPy's variance reads the data three times and writes two temporaries of its size. Here the block
is cut into tiles that stay in cache; the moments of each are exact to rounding (mean first, then
deviations from it), and tiles are merged in pairs, as rounding grows with the logarithm of their
number only. The update is that of T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances", Stanford STAN-CS-79-773 (1979).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core.engine._tiles import merge_pairwise, tile_shape, tiles
from distarray.core.families._folding import fold_block
from distarray.typing import Buffer, Shape

PIECE_BYTES = 256 * 1024
"""Of a piece of one axis: it and its deviations fit into the second-level cache together."""
TILE_BYTES = 512 * 1024
"""Of a tile with kept axes: deeper, because merging costs a pass over the kept items."""
_DOTTED = 4096
"""Items of one dot product. 2**22 float64 take 7.6 ms in pieces of 256 and 3.6 ms in those of 1,024
or more, on one core of an AMD EPYC; longer ones only add rounding errors."""


@dataclass(frozen=True, slots=True)
class Moments:
    """State of a set of items: how many, their mean, their sum of squared deviations from it."""

    count: int
    mean: Any
    m2: Any


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of the union of two disjoint sets."""
    if a.count == 0 or b.count == 0:
        return b if a.count == 0 else a
    count = a.count + b.count
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.count / count)
    m2 = a.m2 + b.m2 + _square(delta) * (a.count * (b.count / count))
    return Moments(count, mean, m2)


def _square(x: Any) -> Any:
    return x.real * x.real + x.imag * x.imag if x.dtype.kind == "c" else x * x


def state_dtype(dtype: Any) -> Any:
    """Return the dtype of the mean: float64 for integers, at least float32, in native order."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.char == "e" else dtype.newbyteorder("=")


def moments(block: Buffer, axes: tuple[int, ...]) -> Moments:
    """Return the moments of `block` over `axes`.

    Parameters
    ----------
    block : array
        Not empty.
    axes : tuple of int
        Ascending; not empty.

    Returns
    -------
    Moments
        Mean and m2 keep the reduced axes with size 1.
    """
    dtype = state_dtype(block.dtype)
    if not _backend.is_numpy(block):
        return _on_device(block, axes, dtype)
    if len(axes) == block.ndim:
        return _reshape(_line(_flat(block), dtype), (1,) * block.ndim)
    fold = fold_block(block, axes)
    if fold is None and block.nbytes <= TILE_BYTES:
        return _tile(block, axes, dtype, np.empty(block.size, dtype))
    kept_shape = tuple(1 if i in axes else size for i, size in enumerate(block.shape))
    if fold is not None:
        return _narrow(*fold, kept_shape)
    count = prod([block.shape[axis] for axis in axes])
    mean = np.empty(kept_shape, dtype)
    m2 = np.empty(kept_shape, np.empty(0, dtype).real.dtype)
    steps = tile_shape(block.shape, block.strides, axes, TILE_BYTES // int(dtype.itemsize))
    scratch = np.empty(prod(steps), dtype)
    for kept in tiles(block.shape, steps, [i for i in range(block.ndim) if i not in axes]):
        column = block[kept]
        states = (
            _tile(column[box], axes, dtype, scratch)
            for box in tiles(column.shape, steps, list(axes))
        )
        found = merge_pairwise(states, merge)
        mean[kept], m2[kept] = found.mean, found.m2
    return Moments(count, mean, m2)


def moments_beside_nan(block: Buffer, dtype: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield how many items of each piece of a block are not NaN, their mean and squared deviations.

    The mean of no items is 0. `dtype` is that of the mean.
    """
    flat = _flat(block)
    length = min(PIECE_BYTES // dtype.itemsize, flat.size)
    scratch, mask = np.empty(length, dtype), np.empty(length, np.bool_)
    for start in range(0, flat.size, length):
        piece = flat[start : start + length]
        items, missing = scratch[: piece.size], mask[: piece.size]
        np.isnan(piece, out=missing)
        count = np.intp(piece.size - np.count_nonzero(missing))
        np.copyto(items, piece)
        np.copyto(items, 0, where=missing)
        mean = dtype.type(np.add.reduce(items) / max(count, 1))
        np.subtract(items, mean, out=items)
        np.copyto(items, 0, where=missing)
        yield count, mean, _sum_of_squares(items)


def _on_device(block: Buffer, axes: tuple[int, ...], dtype: Any) -> Moments:
    """Return the moments of a CuPy block by whole-array functions: no cache to fit tiles into."""
    mean = block.mean(axis=axes, dtype=dtype, keepdims=True)
    squares = _square(block.astype(dtype, copy=False) - mean)
    return Moments(block.size // max(mean.size, 1), mean, squares.sum(axis=axes, keepdims=True))


def _narrow(wide: Buffer, copies: int, rest: Buffer | None, kept_shape: Shape) -> Moments:
    """Return the moments of a folded block: of its wide rows first, then of their copies."""
    state = moments(wide, (0,))
    state = _reshape(state, (copies, -1))
    while copies > 1:
        copies //= 2
        halves = (
            Moments(state.count, state.mean[part], state.m2[part])
            for part in (slice(copies), slice(copies, None))
        )
        state = merge(*halves)
    if rest is not None:
        state = merge(state, moments(rest, (0,)))
    return _reshape(state, kept_shape)


def _reshape(state: Moments, shape: Shape) -> Moments:
    return Moments(state.count, state.mean.reshape(shape), state.m2.reshape(shape))


def _flat(block: Buffer) -> Buffer:
    """Return the items as one axis, in memory order where that needs no copy."""
    if block.flags.f_contiguous:
        return block.T.reshape(-1)
    return block.reshape(-1)


def _line(flat: Buffer, dtype: Any) -> Moments:
    """Return the moments of one axis: those of its pieces, merged all at once."""
    length = PIECE_BYTES // dtype.itemsize
    scratch = np.empty(min(length, flat.size), dtype)
    if flat.size <= length:
        return Moments(flat.size, *_piece(flat, dtype, scratch))
    pieces = [flat[start : start + length] for start in range(0, flat.size, length)]
    counts = np.array([piece.size for piece in pieces])
    means = np.empty(len(pieces), dtype)
    squares = np.empty(len(pieces), scratch.real.dtype)
    for i, piece in enumerate(pieces):
        means[i], squares[i] = _piece(piece, dtype, scratch[: piece.size])
    total = np.add.reduce(means * (counts / flat.size), keepdims=True).astype(dtype)
    between = np.add.reduce(_square(means - total) * counts, keepdims=True)
    within = np.add.reduce(squares, keepdims=True)
    return Moments(flat.size, total, (within + between).astype(squares.dtype))


def _piece(piece: Buffer, dtype: Any, scratch: Buffer) -> tuple[Any, Any]:
    """Return mean and squared deviations of a line that stays in the cache."""
    mean = dtype.type(np.add.reduce(piece, dtype=dtype) / piece.size)
    return mean, _sum_of_squares(np.subtract(piece, mean, out=scratch, dtype=dtype))


def _tile(tile: Buffer, axes: tuple[int, ...], dtype: Any, scratch: Buffer) -> Moments:
    """Return the moments of a piece small enough for the cache: mean first, then deviations."""
    count = 1
    for axis in axes:
        count *= tile.shape[axis]
    mean = np.add.reduce(tile, axis=axes, dtype=dtype, keepdims=True)
    mean /= dtype.type(count)
    deviation = scratch[: tile.size].reshape(tile.shape)
    np.subtract(tile, mean, out=deviation, dtype=dtype)
    if dtype.kind == "c":
        squares = _square(deviation)
    else:
        squares = np.multiply(deviation, deviation, out=deviation)
    return Moments(count, mean, np.add.reduce(squares, axis=axes, keepdims=True))


def _sum_of_squares(line: Buffer) -> Any:
    """Return the sum of squares of a line, which may be overwritten.

    Dot products add up in a few lanes: quick, and in double precision accurate enough in rows this
    short. Longer ones would be given to the threads of the BLAS, which the other ranks of the node
    do not leave free.
    """
    if line.real.itemsize < 8:
        squares = _square(line) if line.dtype.kind == "c" else np.multiply(line, line, out=line)
        return np.add.reduce(squares)
    if line.size < _DOTTED:
        return np.vdot(line, line).real
    whole = line.size // _DOTTED * _DOTTED
    rows = line[:whole].reshape(-1, _DOTTED)
    total = np.add.reduce(np.vecdot(rows, rows))
    rest = line[whole:]
    return (total + np.vdot(rest, rest) if rest.size else total).real
