"""Exact sums of floating-point items, rounded once.

A tile of a block is split by error-free transformations: with `sigma`, 1.5 * 2**52 units `g`, the
bits of `x + sigma` less those of `sigma` are the integer nearest to `x / g`, and what is left of
`x` is at most half a unit (S. M. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation part
I", SIAM J. Sci. Comput. 31, 2008). The integers are added up as integers, which is exact in any
order, and go into a fixed-point number that holds every float64 and any count of them; levels
follow until nothing is left, two of them where all items of a tile are within 2**20 of the largest.

Binned sums (J. Demmel, H. D. Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. 64,
2015; P. Ahrens, J. Demmel, H. D. Nguyen, "Algorithms for efficient reproducible floating point
summation", ACM Trans. Math. Softw. 46, 2020) keep a few levels of the same kind at fixed places,
and so depend on how many. As here nothing is dropped, the levels may lie where each tile needs
them, and the result is the sum itself, rounded to nearest.
"""

from __future__ import annotations

from math import frexp, ldexp, prod
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm.kernels import address_of, kernel, run_faster
from distarray.core.engine._tiles import tile_shape, tiles
from distarray.typing import Buffer

DIGIT_BITS: Final = 24
"""A digit is an integer of 64 bits; 2**39 additions of 24 bits to it do not overflow."""
LEAST: Final = -1074
"""The exponent of the first digit's unit, the least subnormal number."""
DIGITS: Final = 92
"""Up to 2**1134: more than 2**63 items of 2**1024."""
PLUS, MINUS, MISSING = DIGITS, DIGITS + 1, DIGITS + 2
"""Words after the digits: how many items are infinity, its negative, NaN."""
WORDS: Final = DIGITS + 3

_TILE: Final = 1 << 15
"""Items of a tile: its scratch memory and a few more calls of NumPy fit the second-level cache.
With 2**12, 2**14 and 2**15 items an operation of NumPy takes 0.8, 0.45 and 0.35 ns an item on Zen
1."""
_MOST_BITS: Final = 50
"""Of the integers of a level: `x + sigma` stays in the binade of `sigma` up to 2**51 units."""
_HUGE_EXPONENT: Final = 960
"""Of items from here on `sigma` could overflow, and they are scaled by so many digits first."""
_SHIFT: Final = 4

_KERNELS: Final = "distarray.comm.kernels._exact_sum"
_DEAR: Final = 6
"""So many times as long as for a plain copy NumPy takes, as measured on Zen 1."""
_SMALL: Final = 1 << 12
"""Items of a line below which NumPy serves; a choice by the clock costs more."""


def add_up(block: Buffer, axes: tuple[int, ...]) -> Buffer:
    """Return the exact sums of a block over axes, as words.

    Parameters
    ----------
    block : array
        Of real floating-point items, float64 at most.
    axes : tuple of int
        Ascending.

    Returns
    -------
    array of int64
        Of shape (WORDS, ...), then the block's with reduced axes of length 1. The words of several
        blocks add up.
    """
    if block.ndim == 0:
        return add_up(block.reshape(1), (0,)).reshape(WORDS)
    shape = tuple(1 if i in axes else size for i, size in enumerate(block.shape))
    words = _memory.zeros((WORDS, *shape), np.int64, _backend.device_of(block))
    if block.size == 0:
        return words
    if not _backend.is_numpy(block):
        _split(words, block.astype(np.float64), axes, None)
        return words
    lines = _lines(block, axes)
    if lines is None:
        _add_tiles(words, block, axes)
    else:
        words += _add_lines(lines).T.reshape(words.shape)
    return words


def _lines(block: Buffer, axes: tuple[int, ...]) -> Buffer | None:
    """Return the items of each sum as a row, where they are float64, many, and lie in order."""
    if block.dtype != np.float64 or not block.dtype.isnative or not block.flags.aligned:
        return None
    if len(axes) == block.ndim and block.flags.f_contiguous:
        return block.T.reshape(1, -1)
    kept = block.ndim - len(axes)
    if axes != tuple(range(kept, block.ndim)) or not block.flags.c_contiguous:
        return None
    lines = block.reshape(prod(block.shape[:kept]), -1)
    return lines if len(lines) == 1 or lines.shape[1] >= _SMALL else None


def _add_lines(lines: Buffer) -> Buffer:
    """Return a row of words for each row of items."""
    words = np.zeros((len(lines), WORDS), np.int64)

    def by_numpy() -> None:
        for line, found in zip(lines, words, strict=True):
            counts = [0] * WORDS  # of Python's integers, as one of NumPy's takes as long as a tile
            _add_tiles(counts, line, (0,))
            found[:] = counts

    if lines.size < _SMALL:
        by_numpy()
        return words
    run_faster(
        "reduce exactly",
        lines.nbytes,
        kernel(_KERNELS, "add_lines"),
        lambda run: run(address_of(lines), *lines.shape, address_of(words)),
        by_numpy,
        _DEAR,
    )
    return words


def _add_tiles(words: Any, block: Buffer, axes: tuple[int, ...]) -> None:
    """Add the items of a block to words, a tile at a time."""
    steps = tile_shape(block.shape, block.strides, axes, _TILE)
    items = prod(steps)
    scratch = _memory.empty((2, items), np.float64)
    every = range(block.ndim)
    for kept in tiles(block.shape, steps, [axis for axis in every if axis not in axes]):
        column = block[kept]
        part = words if words.__class__ is list else words[(slice(None), *kept)]
        for box in tiles(column.shape, steps, axes):
            tile = column[box]
            pair = [line[: tile.size].reshape(tile.shape) for line in scratch]
            if tile.dtype != np.float64:
                np.copyto(pair[1], tile)
                tile = pair[1]
            _split(part, tile, axes, pair)


def _split(words: Any, tile: Buffer, axes: tuple[int, ...], pair: Any, shift: int = 0) -> None:
    """Add the items of a tile, times 2**(24 * shift), to words.

    These are an array, or, of one sum, a list of integers. `pair` is scratch memory of two arrays
    as the tile, which may be the second.
    """
    depth = prod(tile.shape[axis] for axis in axes)
    bits = min(_MOST_BITS, 62 - (depth - 1).bit_length())  # so that sums of integers fit 63
    largest = max(float(tile.max()), -float(tile.min()))
    if not largest < ldexp(1.0, _HUGE_EXPONENT):
        _split_extremes(words, tile, axes, pair)
        return
    above, rest = pair or (None, None)
    exponent = frexp(largest)[1]  # of a power of two that no item exceeds
    level = 0
    while largest:
        place = max(0, -(-(exponent - bits - LEAST) // DIGIT_BITS))
        unit = LEAST + DIGIT_BITS * place
        sigma = ldexp(1.5, 52 + unit)
        above = np.add(tile, sigma, out=above)
        # Sums of bits wrap, and what is left of them is exact.
        total = _sum_integers(words, above.view(np.int64), axes)
        total -= _wrap((1075 + unit << 52 | 1 << 51) * depth)
        if words.__class__ is list:
            total = _wrap(total)
        low = place + shift
        words[low] += total & _MASK
        words[low + 1] += total >> DIGIT_BITS & _MASK
        words[low + 2] += total >> 2 * DIGIT_BITS
        if place == 0:
            return
        above -= sigma
        tile = rest = np.subtract(tile, above, out=rest)
        exponent, level = unit - 1, level + 1
        if level > 1:
            if pair and not np.bitwise_or.reduce(tile.view(np.int64), axis=None):
                return
            largest = max(float(tile.max()), -float(tile.min()))
            exponent = frexp(largest)[1]


_MASK: Final = (1 << DIGIT_BITS) - 1


def _wrap(integer: int) -> int:
    """Return the integer of 64 bits that an integer overflows to."""
    return (integer + (1 << 63)) % (1 << 64) - (1 << 63)


def _sum_integers(words: Any, integers: Buffer, axes: tuple[int, ...]) -> Any:
    if words.__class__ is list:
        return int(np.add.reduce(integers, axis=None, dtype=np.int64))
    return integers.sum(axis=axes, dtype=np.int64, keepdims=True)


def _split_extremes(words: Buffer, tile: Buffer, axes: tuple[int, ...], pair: Any) -> None:
    """Count the items that are not finite, and add the others, of which some are huge."""
    library = _backend.namespace_of(tile)
    for word, found in (
        (PLUS, tile == np.inf),
        (MINUS, tile == -np.inf),
        (MISSING, np.isnan(tile)),
    ):
        words[word] += _sum_integers(words, found, axes)
    items = library.where(np.isfinite(tile), tile, 0.0)
    is_large = abs(items) >= 1.0
    scaled = items * ldexp(1.0, -DIGIT_BITS * _SHIFT)  # exact where it is large
    _split(words, library.where(is_large, scaled, 0.0), axes, pair, _SHIFT)
    _split(words, library.where(is_large, 0.0, items), axes, pair)


# --- rounding ------------------------------------------------------------------------------------


def round_sums(words: Buffer, dtype: Any) -> Buffer:
    """Return sums given as words, rounded once to the nearest number of a real floating dtype.

    Ties go to the even one, an exact zero is 0.0, and what is too large infinity.
    """
    digits = _carry(words[:DIGITS])
    least = np.zeros((4, *digits.shape[1:]), np.int64)
    digits = np.concatenate([least, digits])  # so that three digits are below any
    is_set = digits != 0
    top = DIGITS + 3 - np.argmax(is_set[::-1], axis=0)  # of zeros any
    top = np.maximum(top, 4)

    def digit(below: int) -> Any:
        return np.take_along_axis(digits, (top - below)[None], axis=0)[0]

    # The sign of what is below is that of its first digit, as none is more than half of the next.
    places = np.arange(len(digits)).reshape(-1, *(1,) * top.ndim)
    lower = np.where(places < top - 3, digits, 0)
    first = len(digits) - 1 - np.argmax(lower[::-1] != 0, axis=0)
    sticky = np.sign(np.take_along_axis(lower, first[None], axis=0)[0])
    high = (digit(0) << DIGIT_BITS) + digit(1)
    low = (((digit(2) << DIGIT_BITS) + digit(3)) << 1) + sticky
    # Both are exact, as is the product: so that there is one rounding, of at least 70 bits.
    high, low = high * ldexp(1.0, 2 * DIGIT_BITS + 1), low.astype(np.float64)
    sums = high + low
    if dtype != np.float64:
        sums = _round_to_odd(sums, low - (sums - high))
    exponents = (DIGIT_BITS * (top - 7) + LEAST - 1).astype(np.int32)
    sums = np.ldexp(sums, exponents) + 0.0
    sums = _with_extremes(sums, words[PLUS], words[MINUS], words[MISSING])
    return sums.astype(dtype, copy=False)


def _round_to_odd(sums: Buffer, errors: Buffer) -> Buffer:
    """Return inexact sums with a last bit of 1: as if cut off, so that rounding again is right.

    S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Trans. Comput. 57 (2008).
    """
    is_even = sums.view(np.int64) & 1 == 0
    towards = np.copysign(np.inf, errors)
    return np.where((errors != 0) & is_even, np.nextafter(sums, towards), sums)


def _with_extremes(sums: Buffer, plus: Buffer, minus: Buffer, missing: Buffer) -> Buffer:
    """Return sums beside items that are not finite."""
    if not (plus.any() or minus.any() or missing.any()):
        return sums
    infinite = np.where(plus > 0, np.inf, 0.0) - np.where(minus > 0, np.inf, 0.0)
    sums = np.where((plus > 0) | (minus > 0), infinite, sums)
    return np.where(missing > 0, np.nan, sums)


def _carry(words: Buffer) -> Buffer:
    """Return digits from -2**23 to 2**23 - 1 of the same numbers, which have these alone."""
    digits = words.copy()
    half = 1 << DIGIT_BITS - 1
    while True:
        carries = digits + half >> DIGIT_BITS
        if not carries.any():
            return digits
        digits -= carries << DIGIT_BITS
        digits[1:] += carries[:-1]
