"""Mean and sum of squared deviations of a block in one pass over cache-sized pieces.

NumPy's variance reads the data three times and writes two temporaries of its size. Here the block
is cut into tiles that stay in cache; the moments of each are exact to rounding (mean first, then
deviations from it), and tiles are merged in pairs, as rounding grows with the logarithm of their
number only. The update is that of T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances", Stanford STAN-CS-79-773 (1979). Means are
rounded, and where items are far from 0 their differences consist of that; so a state keeps what the
deviations from its mean add up to, as their corrected two-pass algorithm does.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.core.engine._tiles import reduce_tiles, tile_shape
from distarray.core.families._folding import fold_block, sum_piece
from distarray.typing import Buffer, Shape

PIECE_BYTES = 256 * 1024
"""Of a piece of one axis: it and its deviations fit into the second-level cache together."""
TILE_BYTES = 512 * 1024
"""Of a tile with kept axes: deeper, because merging costs a pass over the kept items."""
_DEPTH = 16
"""Least reduced items per kept item in a tile, where there are so many. Over axis 0 of
64 x 1024 x 512 float64: 293, 130, 92, 130 and 136 ms with 1, 4, 16, 64 and 256."""
_DOT_ITEMS = 4096
"""Items of one dot product, in single precision an eighth of them: so rounding errors grow as in
NumPy's sums. 2**22 float64 take 7.6 ms in pieces of 256 and 3.6 ms in those of 1,024 or more, on
one core of an AMD EPYC."""


class Moments(NamedTuple):
    """State of a set of items: how many, about their mean, and sums of their deviations from it."""

    count: Any
    mean: Any
    m2: Any
    """Sum of the squared deviations."""
    rest: Any
    """Sum of the deviations: 0 but for the rounding of the mean."""

    def around(self, mean: Any) -> Moments:
        """Return the moments about another mean."""
        shift = self.mean - mean
        moved = self.count * shift
        m2 = self.m2 + _product(shift, moved + self.rest + self.rest)
        return Moments(self.count, mean, m2, self.rest + moved)


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of the union of two disjoint sets."""
    if a.count == 0 or b.count == 0:
        return b if a.count == 0 else a
    count = a.count + b.count
    mean = a.mean + (b.mean - a.mean) * (b.count / count)
    a, b = a.around(mean), b.around(mean)
    return Moments(count, mean, a.m2 + b.m2, a.rest + b.rest)


def merge_all(count: Any, state: Moments) -> Moments:
    """Return the moments of the union of sets, whose moments lie along the first axis."""
    mean = np.add.reduce(state.mean * (state.count / count)).astype(state.mean.dtype)
    _, _, m2, rest = state.around(mean)
    m2, rest = np.add.reduce(m2), np.add.reduce(rest)
    return Moments(count, mean, m2.astype(state.m2.dtype), rest.astype(mean.dtype))


def _square(x: Any) -> Any:
    return _product(x, x)


def _product(x: Any, y: Any) -> Any:
    return x.real * y.real + x.imag * y.imag if x.dtype.kind == "c" else x * y


def state_dtype(dtype: Any) -> Any:
    """Return the dtype of the mean: float64 for integers, at least float32, in native order."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype.char == "e":
        return np.dtype(np.float32)
    return dtype if dtype.isnative else dtype.newbyteorder("=")  # which makes another object


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
        Their arrays keep the reduced axes with size 1.
    """
    dtype = state_dtype(block.dtype)
    if not _backend.is_numpy(block):
        return _on_device(block, axes, dtype)
    if len(axes) == block.ndim:
        return _reshape(_line(_flat(block), dtype), (1,) * block.ndim)
    fold = fold_block(block, axes)
    if fold is None and block.nbytes <= TILE_BYTES:
        return _tile(block, axes, dtype)
    kept_shape = tuple(1 if i in axes else size for i, size in enumerate(block.shape))
    if fold is not None:
        return _narrow(*fold, kept_shape)
    count = prod([block.shape[axis] for axis in axes])
    budget = TILE_BYTES // int(dtype.itemsize)
    steps = tile_shape(block.shape, block.strides, axes, budget, _DEPTH)
    scratch = np.empty(prod(steps), dtype)
    dtypes = None, dtype, scratch.real.dtype, dtype
    parts = reduce_tiles(
        block, axes, steps, lambda tile: _tile(tile, axes, dtype, scratch), merge, dtypes
    )
    return Moments(count, *parts[1:])


def moments_beside_nan(block: Buffer, dtype: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield the moments of the items of each piece of a block that are not NaN.

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
        rest = np.add.reduce(items)
        yield count, mean, sum_of_squares(items), rest


def _on_device(block: Buffer, axes: tuple[int, ...], dtype: Any) -> Moments:
    """Return the moments of a CuPy block by whole-array functions: no cache to fit tiles into."""
    mean = block.mean(axis=axes, dtype=dtype, keepdims=True)
    deviation = block.astype(dtype, copy=False) - mean
    rest = deviation.sum(axis=axes, keepdims=True)
    m2 = _square(deviation).sum(axis=axes, keepdims=True)
    return Moments(block.size // max(mean.size, 1), mean, m2, rest)


def _narrow(wide: Buffer, copies: int, rest: Buffer | None, kept_shape: Shape) -> Moments:
    """Return the moments of a folded block: of its wide rows first, then of their copies."""
    state = moments(wide, (0,))
    state = _reshape(state, (copies, -1))
    while copies > 1:
        copies //= 2
        halves = (
            Moments(state.count, state.mean[part], state.m2[part], state.rest[part])
            for part in (slice(copies), slice(copies, None))
        )
        state = merge(*halves)
    if rest is not None:
        state = merge(state, moments(rest, (0,)))
    return _reshape(state, kept_shape)


def _reshape(state: Moments, shape: Shape) -> Moments:
    count, mean, m2, rest = state
    return Moments(count, mean.reshape(shape), m2.reshape(shape), rest.reshape(shape))


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
    shape = len(pieces), 1
    counts = np.reshape([piece.size for piece in pieces], shape)
    means, squares = np.empty(shape, dtype), np.empty(shape, scratch.real.dtype)
    rests = np.empty(shape, dtype)
    for i, piece in enumerate(pieces):
        means[i], squares[i], rests[i] = _piece(piece, dtype, scratch[: piece.size])
    return merge_all(flat.size, Moments(counts, means, squares, rests))


def _piece(piece: Buffer, dtype: Any, scratch: Buffer) -> tuple[Any, Any, Any]:
    """Return mean, squared deviations and their sum of a line that stays in the cache."""
    total = sum_piece(piece) if piece.dtype == dtype else np.add.reduce(piece, dtype=dtype)
    mean = dtype.type(total / piece.size)
    deviation = np.subtract(piece, mean, out=scratch, dtype=dtype)
    rest = sum_piece(deviation)
    return mean, sum_of_squares(deviation), rest


def _tile(
    tile: Buffer, axes: tuple[int, ...], dtype: Any, scratch: Buffer | None = None
) -> Moments:
    """Return the moments of a piece small enough for the cache: mean first, then deviations."""
    count = 1
    for axis in axes:
        count *= tile.shape[axis]
    mean = np.add.reduce(tile, axis=axes, dtype=dtype, keepdims=True)
    mean /= dtype.type(count)
    out = None if scratch is None else scratch[: tile.size].reshape(tile.shape)
    deviation = np.subtract(tile, mean, out=out, dtype=dtype)
    rest = np.add.reduce(deviation, axis=axes, keepdims=True)
    if dtype.kind == "c":
        squares = _square(deviation)
    else:
        squares = np.multiply(deviation, deviation, out=deviation)
    return Moments(count, mean, np.add.reduce(squares, axis=axes, keepdims=True), rest)


def sum_of_squares(line: Buffer) -> Any:
    """Return the sum of squares of a contiguous line; of complex numbers, of both parts.

    Dot products add up in a few lanes: quick, and accurate enough in rows this short. Longer ones
    would be given to the threads of the BLAS, which the other ranks of the node do not leave free.
    """
    if line.dtype.kind == "c":
        line = line.view(line.real.dtype)
    length = _DOT_ITEMS if line.itemsize >= 8 else _DOT_ITEMS // 8
    if line.size < length:
        return np.vdot(line, line)
    whole = line.size // length * length
    rows = line[:whole].reshape(-1, length)
    total = np.add.reduce(np.vecdot(rows, rows))
    rest = line[whole:]
    return total + np.vdot(rest, rest) if rest.size else total
