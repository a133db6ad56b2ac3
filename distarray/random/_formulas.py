"""Formulas of random numbers, in integer and IEEE arithmetic that every platform has alike.

The functions are written once and run twice: by NumPy on arrays, or on scalars of its own, and
compiled by Numba for one element at a time (``_kernels``). They use nothing but integer operations,
the four operations of arithmetic and square roots, all of which IEEE 754 rounds in one way;
logarithm, sine and cosine are series of our own. So both give the same bits, on every processor,
whatever its libraries.

Philox 4x32-10 is the generator of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC'11: ten rounds of multiplications turn a counter of four
words of 32 bits, under a key of two, into four random words.

===========  ==================================================================
key          64 bits made of the seed
word 0, 1    block number: half the element's linear index in the global array
word 2       number of the call (its lower 32 bits)
word 3       upper 16 bits of that number, and above them the attempt
===========  ==================================================================

Each block gives 64 bits to the element of even index, and 64 bits to the next.
"""

from __future__ import annotations

import math
import struct
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import numpy as np

_u64 = np.uint64

ROUNDS: Final = 10
_M0, _M1 = _u64(0xD2511F53), _u64(0xCD9E8D57)
_W0, _W1 = _u64(0x9E3779B9), _u64(0xBB67AE85)
_LOW: Final = _u64(0xFFFFFFFF)
_S32: Final = _u64(32)


def philox(block: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any]:
    """Return the four words of Philox 4x32-10 as two numbers of 64 bits, the first word lowest.

    Parameters
    ----------
    block
        Words 0 and 1 of the counter, the first lowest; uint64.
    c2, c3, k0, k1
        The other words of the counter and those of the key; uint64 below 2**32.
    """
    c0, c1 = block & _LOW, block >> _S32
    for _ in range(ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _S32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _S32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0 | (c1 << _S32), c2 | (c3 << _S32)


# --- uniform -------------------------------------------------------------------------------------

_S11, _S40 = _u64(11), _u64(40)


def unit_double(x: Any) -> Any:
    """Return a multiple of 2**-53 in [0, 1), of 64 random bits."""
    return (x >> _S11) * 2.0**-53


def unit_single(x: Any) -> Any:
    """Return a multiple of 2**-24 in [0, 1), which float32 holds exactly."""
    return (x >> _S40) * 2.0**-24


# --- normal --------------------------------------------------------------------------------------

_ONE, _TWO, _S51, _S52 = _u64(1), _u64(2), _u64(51), _u64(52)
_EIGHTH_TURN: Final = _u64(1 << 50)
_ANGLE: Final = 2 * math.pi * 2.0**-53  # one of the 2**53 steps of a turn

_MANTISSA: Final = _u64((1 << 52) - 1)
_ROOT_HALF: Final = _u64(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
_TO_ROOT_HALF: Final = _u64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)  # from it to those of 1

# ln 2 in two parts: the first is cut after 32 bits, so that its multiples by exponents are exact.
_LN2_HIGH: Final = math.floor(math.log(2) * 2.0**32) * 2.0**-32
_LN2_LOW: Final = 1.9082149292705877e-10

_SIN: Final = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(9))
_COS: Final = tuple((-1) ** k / math.factorial(2 * k) for k in range(9))


def bits_of(doubles: Any) -> Any:
    """Return the bits of doubles, as uint64."""
    return doubles.view(np.uint64)


def double_of(bits: Any) -> Any:
    """Return the doubles that bits stand for."""
    return bits.view(np.float64)


def either(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a`` where the condition holds, and ``b`` elsewhere."""
    if np.ndim(condition):
        return np.where(condition, a, b)
    return a if condition else b


def logarithm(u: Any) -> Any:
    """Return the natural logarithm of doubles in [2**-53, 1], to about 2 units in the last place.

    With u = 2**e * m, m between sqrt(1/2) and sqrt(2), ln m = 2 artanh(s) where s = (m - 1) /
    (m + 1); the series of artanh has converged after twelve terms, as s**2 is at most 0.03.
    """
    bits = bits_of(u) + _TO_ROOT_HALF
    e = (bits >> _S52) * 1.0 - 1023.0
    m = double_of((bits & _MANTISSA) + _ROOT_HALF)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    t = 1.0 / 23.0
    t = t * z + 1.0 / 21.0
    t = t * z + 1.0 / 19.0
    t = t * z + 1.0 / 17.0
    t = t * z + 1.0 / 15.0
    t = t * z + 1.0 / 13.0
    t = t * z + 1.0 / 11.0
    t = t * z + 1.0 / 9.0
    t = t * z + 1.0 / 7.0
    t = t * z + 1.0 / 5.0
    t = t * z + 1.0 / 3.0
    s = s + s
    return e * _LN2_HIGH + (e * _LN2_LOW + (s + s * (z * t)))


def cosine_and_sine(turn: Any) -> tuple[Any, Any]:
    """Return the cosine and sine of ``turn * 2**-53`` turns; ``turn`` is a uint64 below 2**53.

    The nearest quarter turn is taken off exactly; Taylor's series have converged for what is left,
    at most an eighth of a turn.
    """
    quarter = (turn + _EIGHTH_TURN) >> _S51
    a = (turn * 1.0 - quarter * 2.0**51) * _ANGLE
    z = a * a
    s = _SIN[8] * z + _SIN[7]
    s = s * z + _SIN[6]
    s = s * z + _SIN[5]
    s = s * z + _SIN[4]
    s = s * z + _SIN[3]
    s = s * z + _SIN[2]
    s = s * z + _SIN[1]
    s = a + a * (z * s)
    c = _COS[8] * z + _COS[7]
    c = c * z + _COS[6]
    c = c * z + _COS[5]
    c = c * z + _COS[4]
    c = c * z + _COS[3]
    c = c * z + _COS[2]
    c = (1.0 - 0.5 * z) + z * (z * c)
    odd = (quarter & _ONE) == _ONE
    cosine = either(odd, s, c) * (1.0 - ((quarter + _ONE) & _TWO) * 1.0)
    sine = either(odd, c, s) * (1.0 - (quarter & _TWO) * 1.0)
    return cosine, sine


def normal_pair(x0: Any, x1: Any) -> tuple[Any, Any]:
    """Return two independent standard normal doubles, of two numbers of 64 random bits.

    By G. E. P. Box and M. E. Muller, "A note on the generation of random normal deviates", Ann.
    Math. Statist. 29 (1958). The first uniform number is in (0, 1], in steps of 2**-53, so that
    values reach 8.57 in magnitude.
    """
    u = ((x0 >> _S11) + _ONE) * 2.0**-53
    radius = np.sqrt(-2.0 * logarithm(u))
    cosine, sine = cosine_and_sine(x1 >> _S11)
    return radius * cosine, radius * sine


# --- exponential ---------------------------------------------------------------------------------


def exponential(x: Any) -> Any:
    """Return standard exponential doubles, of 64 random bits: -ln u with u in (0, 1].

    u has steps of 2**-53, so that values reach 36.7.
    """
    return 0.0 - logarithm(((x >> _S11) + _ONE) * 2.0**-53)


# --- integers ------------------------------------------------------------------------------------


def scaled(x: Any, count: Any) -> tuple[Any, Any]:
    """Return the upper and lower 64 bits of the product of two uint64.

    The upper ones are uniform among 0 ... count - 1 once those ``x`` are redrawn whose lower bits
    are below 2**64 modulo ``count``: D. Lemire, "Fast random integer generation in an interval",
    ACM Trans. Model. Comput. Simul. 29 (2019).
    """
    x0, x1 = x & _LOW, x >> _S32
    n0, n1 = count & _LOW, count >> _S32
    low, middle, cross = x0 * n0, x1 * n0, x0 * n1
    carry = ((low >> _S32) + (middle & _LOW) + (cross & _LOW)) >> _S32
    return x1 * n1 + (middle >> _S32) + (cross >> _S32) + carry, x * count


# --- of Python's numbers -------------------------------------------------------------------------


def _of_numbers() -> SimpleNamespace:
    """Return the formulas of one element's numbers as functions of Python's own.

    Their arithmetic is that of IEEE 754 as well, and takes less time than that of NumPy's scalars;
    integers do not wrap around, which none of these do.
    """
    scope: dict[str, Any] = {k: int(v) if type(v) is _u64 else v for k, v in globals().items()}
    pack, unpack = struct.Struct("=d"), struct.Struct("=Q")
    scope["np"] = math  # for square roots
    scope["bits_of"] = lambda double: unpack.unpack(pack.pack(double))[0]
    scope["double_of"] = lambda bits: pack.unpack(unpack.pack(bits))[0]
    scope["either"] = lambda condition, a, b: a if condition else b
    units, pairs = (unit_double, unit_single), (cosine_and_sine, normal_pair)
    formulas = (philox, *units, logarithm, *pairs, exponential)
    made = {one.__name__: FunctionType(one.__code__, scope) for one in formulas}
    scope.update(made)
    return SimpleNamespace(**made)


of_numbers: Final = _of_numbers()
