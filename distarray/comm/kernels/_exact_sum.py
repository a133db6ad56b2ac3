"""Numba kernel that adds up lines of float64 exactly, into digits of fixed-point numbers.

A tile at a time, which stays in the nearest cache: the largest exponent first, then two levels of
integers in one loop, which the processor's vectors take. What is left of items far smaller than
the largest, and tiles with huge items or such that are not finite, go into the digits one item
after the other.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from distarray.comm.kernels._intrinsics import bits_of, double_of
from distarray.comm.kernels._jit import Source

_ITEMS: Final = 2048
"""Of a tile: 16 KiB, half of a first-level cache."""

_BITS: Final = 50
"""Of the integers of the first level; 2048 of them add up to 2**61."""

_DIGIT: Final = 24
_MASK: Final = (1 << _DIGIT) - 1
_LEAST: Final = -1074
_HUGE: Final = 960
_DIGITS: Final = 92
_WORDS: Final = _DIGITS + 3
"""These and `_WORDS` are as in `core/families/_exact_sums`, which gives the words."""

_EXPONENT: Final = 0x7FF << 52
_MANTISSA: Final = (1 << 52) - 1
_MAGNITUDE: Final = (1 << 63) - 1

# Loops are functions of their own: Numba vectorises them as they stand.
_loop = numba.njit(nogil=True, error_model="numpy")


@_loop
def _largest(x: Any, start: int, stop: int) -> Any:
    """Return the bits of the largest magnitude; those of NaN and infinity are larger than all."""
    largest = np.int64(0)
    for i in range(start, stop):
        largest = max(largest, bits_of(x[i]) & _MAGNITUDE)
    return largest


@_loop
def _add_levels(x: Any, start: int, stop: int, first: float, second: float) -> Any:
    """Return the sums of the bits of both levels, and whether anything is left of any item."""
    high = low = left = np.int64(0)
    for i in range(start, stop):
        above = x[i] + first
        high += bits_of(above)
        rest = x[i] - (above - first)
        above = rest + second
        low += bits_of(above)
        left |= bits_of(rest - (above - second))
    return high, low, left


@_loop
def _add_integer(words: Any, place: int, total: int) -> None:
    words[place] += total & _MASK
    words[place + 1] += (total >> _DIGIT) & _MASK
    words[place + 2] += total >> (2 * _DIGIT)


@_loop
def _add_item(words: Any, base: int, item: float) -> None:
    """Add one item, whatever it is, to the words from a base on."""
    bits = bits_of(item)
    field = (bits >> 52) & 0x7FF
    mantissa = bits & _MANTISSA
    if field == 0x7FF:
        if mantissa:
            words[base + _DIGITS + 2] += 1
        elif bits < 0:
            words[base + _DIGITS + 1] += 1
        else:
            words[base + _DIGITS] += 1
        return
    if field:
        mantissa |= 1 << 52
        field -= 1
    if bits < 0:
        mantissa = -mantissa
    place = field // _DIGIT
    by = field - place * _DIGIT
    _add_integer(words, base + place, (mantissa & _MASK) << by)
    _add_integer(words, base + place + 1, (mantissa >> _DIGIT) << by)


@_loop
def _sigma(place: int) -> float:
    """Return 1.5 * 2**52 units of a digit."""
    return double_of(((52 + _LEAST + _DIGIT * place + 1023) << 52) | (1 << 51))


@_loop
def _add_line(x: Any, first: int, n: int, words: Any, base: int) -> None:
    for start in range(first, first + n, _ITEMS):
        stop = min(start + _ITEMS, first + n)
        exponent = (_largest(x, start, stop) >> 52) - 1022
        if exponent > _HUGE:
            for i in range(start, stop):
                _add_item(words, base, x[i])
            continue
        place = max(0, (exponent - _BITS - _LEAST + _DIGIT - 1) // _DIGIT)
        below = max(0, place - 2)
        upper, lower = _sigma(place), _sigma(below)
        high, low, left = _add_levels(x, start, stop, upper, lower)
        count = np.int64(stop - start)
        _add_integer(words, base + place, high - count * bits_of(upper))
        _add_integer(words, base + below, low - count * bits_of(lower))
        if left:
            for i in range(start, stop):
                rest = x[i] - ((x[i] + upper) - upper)
                rest -= (rest + lower) - lower
                if rest:
                    _add_item(words, base, rest)


def add_lines() -> Source:
    """Return the kernel. The arguments: the items, how many lines of how many, and their words."""

    def add(x: Any, lines: int, n: int, words: Any) -> None:
        for line in range(lines):
            _add_line(x, line * n, n, words, line * _WORDS)

    return Source(add, "void(CPointer(float64), int64, int64, CPointer(int64))")
