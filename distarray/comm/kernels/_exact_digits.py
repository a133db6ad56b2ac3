"""Digits of fixed-point numbers that hold exact sums: loops that add to them and round them."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from distarray.comm.kernels._intrinsics import bits_of, double_of

DIGIT: Final = 24
_MASK: Final = (1 << DIGIT) - 1
LEAST: Final = -1074
DIGITS: Final = 92
_PLUS: Final = DIGITS
_MINUS: Final = DIGITS + 1
_MISSING: Final = DIGITS + 2
WORDS: Final = DIGITS + 3
"""These are as in `core/families/_exact_sums`, which gives the words."""

FIELD: Final = 0x7FF << 52
_MANTISSA: Final = (1 << 52) - 1
MAGNITUDE: Final = (1 << 63) - 1
_MISSING_BITS: Final = 0x7FF8 << 48
"""Of float64: exponents, mantissas, all but the sign, and the NaN that is the result."""

INVALID: Final = 1
OVERFLOW: Final = 2
"""What a kernel tells: some sum has infinities of both signs; some is too large for float64."""

# Loops are functions of their own: Numba vectorises them as they stand. Only kernels call
# them: wrappers for the interpreter would be a tenth of compiling.
loop = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


@loop
def _add_integer(words: Any, place: int, total: int) -> None:
    words[place] += total & _MASK
    words[place + 1] += (total >> DIGIT) & _MASK
    words[place + 2] += total >> (2 * DIGIT)


@loop
def add_shifted(words: Any, base: int, exponent: int, total: int) -> None:
    """Add an integer times a power of two, counted from the unit of the digits."""
    place = exponent // DIGIT
    by = exponent - place * DIGIT
    _add_integer(words, base + place, (total & _MASK) << by)
    _add_integer(words, base + place + 1, (total >> DIGIT) << by)


@loop
def add_item(words: Any, base: int, bits: int) -> None:
    """Add one item, whatever it is, to the words from a base on."""
    field = (bits >> 52) & 0x7FF
    mantissa = bits & _MANTISSA
    if field == 0x7FF:
        word = _MISSING if mantissa else _MINUS if bits < 0 else _PLUS
        words[base + word] += 1
        return
    if field:
        mantissa |= 1 << 52
        field -= 1
    add_shifted(words, base, field, -mantissa if bits < 0 else mantissa)


@loop
def power(exponent: int) -> float:
    return double_of((exponent + 1023) << 52)


@loop
def cut_to_odd(total: float, rest: float) -> float:
    """Return a rounded sum, of which `rest` was left, as if cut off and with a last bit of 1."""
    bits = bits_of(total)
    away = (bits_of(rest) ^ bits) >> 63  # -1 where it is beyond the sum, else 0
    return double_of(bits + (1 | away) if rest != 0.0 and not bits & 1 else bits)


@loop
def _round(words: Any, base: int, to_odd: int) -> Any:
    """Return the bits of a sum, and what it tells; its digits are written anew.

    As `round_sums` in `core/families/_exact_sums` does, which has the reasons.
    """
    plus, minus = words[base + _PLUS], words[base + _MINUS]
    if plus and minus:
        return np.int64(_MISSING_BITS), np.int64(INVALID)
    if words[base + _MISSING]:
        return np.int64(_MISSING_BITS), np.int64(0)
    if plus:
        return np.int64(FIELD), np.int64(0)
    if minus:
        return bits_of(-np.inf), np.int64(0)
    top: Any = np.int64(-1)
    carry: Any = np.int64(0)
    for i in range(DIGITS):
        digit = words[base + i] + carry
        if digit:
            carry = (digit + (1 << (DIGIT - 1))) >> DIGIT
            digit -= carry << DIGIT
            words[base + i] = digit
            if digit:
                top = i
        else:
            words[base + i] = carry = 0
    if top < 0:
        return np.int64(0), np.int64(0)
    high = words[base + top] << DIGIT
    low = np.int64(0)
    if top > 0:
        high += words[base + top - 1]
    if top > 1:
        low += words[base + top - 2] << DIGIT
    if top > 2:
        low += words[base + top - 3]
    low <<= 1
    for i in range(top - 4, -1, -1):
        digit = words[base + i]
        if digit:
            low += 1 if digit > 0 else -1
            break
    above, below = float(high) * power(2 * DIGIT + 1), float(low)
    total = above + below
    if to_odd:
        total = cut_to_odd(total, below - (total - above))
    exponent = DIGIT * (top - 3) + LEAST - 1
    half = exponent // 2
    total = total * power(half) * power(exponent - half)
    bits = bits_of(total)
    return bits, np.int64(OVERFLOW if bits & MAGNITUDE == FIELD else 0)


@loop
def clear(words: Any, base: int, columns: int) -> None:
    for i in range(base, base + columns * WORDS):
        words[i] = 0


@loop
def round_all(words: Any, base: int, columns: int, to_odd: int, sums: Any, to: int) -> Any:
    told = np.int64(0)
    for c in range(columns):
        sums[to + c], tells = _round(words, base + c * WORDS, to_odd)
        told |= tells
    return told
