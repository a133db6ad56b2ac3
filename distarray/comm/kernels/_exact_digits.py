"""Digits of fixed-point numbers that hold exact sums: loops that add to them and round them."""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

from distarray.comm.kernels._intrinsics import bits_of, double_of

DIGIT: Final = 24
_MASK: Final = (1 << DIGIT) - 1
_PAIR: Final = (1 << 2 * DIGIT) - 1
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
FALLS_SHORT: Final = 4
"""What a kernel tells: some sum has infinities of both signs; some is too large for float64; some
does not fit a short state."""

# A short state is two integers: the first level of a sum, and the second one before twelve bits
# that say what its unit is: a field as of a lane, FIELDS for what is not finite, or MISFIT.
LEVEL: Final = 51
"""Bits from a level to the next."""
LOWEST: Final = 49
"""Least field of a lane, so that units of its second level are not below that of the digits."""
HIGHEST: Final = 2000
"""Items with larger fields could make a level, or a sum of a lane, too large for float64."""
FIELDS: Final = 2047
MISFIT: Final = 2048
FIELD_BITS: Final = 12

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
def _carry(words: Any, base: int) -> Any:
    """Write digits anew, from -2**23 to 2**23 - 1; return the places of the first and last one."""
    first: Any = np.int64(-1)
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
                first = first if first >= 0 else top
        else:
            words[base + i] = carry = 0
    return first, top


@loop
def _pair(words: Any, base: int, i: int, top: int) -> int:
    digit = words[base + i] if i <= top else 0
    return digit + (words[base + i + 1] << DIGIT if i < top else 0)


@loop
def _shorten(words: Any, base: int, out: Any, at: int) -> Any:
    """Write a sum as a short state; return what it tells.

    The integer of the first level is 2**61 at most.
    """
    out[at] = 0
    for i in range(3):
        out[at] |= (1 << i) if words[base + DIGITS + i] else 0
    out[at + 1] = FIELDS if out[at] else 0
    if out[at]:
        return np.int64(0)
    first, top = _carry(words, base)
    if top < 0:
        return np.int64(0)
    least = words[base + first]
    zeros = np.int64(0)
    while not (least >> zeros) & 1:
        zeros += 1
    field = LOWEST + DIGIT * first + zeros
    below = _pair(words, base, first, top)
    between = _pair(words, base, first + 2, top) + (below >> 2 * DIGIT)
    above = _pair(words, base, first + 4, top) + (between >> 2 * DIGIT)
    below &= _PAIR
    between &= _PAIR
    by = zeros + LEVEL - 2 * DIGIT  # bits of those between that are of the second level
    beyond = 2 * DIGIT - by
    if top > first + 5 or field > HIGHEST or above << beyond + 2 >> beyond + 2 != above:
        out[at + 1] = MISFIT
        return np.int64(FALLS_SHORT)
    low = ((between & (1 << by) - 1) << (LEVEL - by)) | below >> zeros
    out[at] = (above << beyond) + (between >> by)
    out[at + 1] = low << FIELD_BITS | field
    return np.int64(0)


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
    _, top = _carry(words, base)
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
def round_all(words: Any, base: int, columns: int, how: int, out: Any, to: int) -> Any:
    """Round sums to nearest, or, with `how` of 1, to odd; 2 gives short states instead."""
    told = np.int64(0)
    for c in range(columns):
        if how == 2:
            told |= _shorten(words, base + c * WORDS, out, 2 * (to + c))
        else:
            out[to + c], tells = _round(words, base + c * WORDS, how)
            told |= tells
    return told
