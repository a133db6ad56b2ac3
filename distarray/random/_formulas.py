"""Formulas of random numbers, in integer and IEEE arithmetic that every platform has alike.

The functions are written once and run twice: by NumPy on arrays, or on scalars of its own, and
compiled by Numba for one element at a time (``_kernels``). They use nothing but integer operations,
the four operations of arithmetic and square roots, all of which IEEE 754 rounds in one way;
logarithm, sine and cosine are polynomials of our own. So both give the same bits, on every
processor, whatever its libraries.

Philox 4x64-10 is the generator of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel
random numbers: as easy as 1, 2, 3", SC'11: ten rounds of multiplications turn a counter of four
words of 64 bits, under a key of two, into four random words, and no two counters into the same.

===========  ==================================================================
key          128 bits made of the seed
word 0       block number: a quarter of the item's linear index, and 1
word 1       number of the call
word 2       turn, or attempt, of the item in that call
word 3       0
===========  ==================================================================

So each counter belongs to four consecutive items of one call and one turn, and no two streams
overlap: indices are below 2**63, calls and turns below 2**64. The items of a turn are what
``numpy.random.Philox(key=key, counter=[0, call, turn, 0])`` draws one after the other, as it adds 1
to the counter before each block.
"""

from __future__ import annotations

import math
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import numpy as np

_u64 = np.uint64

ROUNDS: Final = 10
_M0, _M1 = _u64(0xD2E7470EE14C6C93), _u64(0xCA5A826395121157)
WEYL_0, WEYL_1 = _u64(0x9E3779B97F4A7C15), _u64(0xBB67AE8584CAA73B)
"""What is added to the words of the key after each round, modulo 2**64."""
LOW: Final = _u64(0xFFFFFFFF)
S32: Final = _u64(32)
_ZERO, _ONE = _u64(0), _u64(1)


# --- integers ------------------------------------------------------------------------------------


def scaled(x: Any, count: Any) -> tuple[Any, Any]:
    """Return the upper and lower 64 bits of the product of two uint64.

    The upper ones are uniform among 0 ... count - 1 once those ``x`` are redrawn whose lower bits
    are below 2**64 modulo ``count``: D. Lemire, "Fast random integer generation in an interval",
    ACM Trans. Model. Comput. Simul. 29 (2019).

    The lower bits are put together of halves, which vectors of 64-bit words multiply at once: where
    they are the wrapped product, the compiler finds a product of 128 bits, and makes one by one.
    """
    x0, x1 = x & LOW, x >> S32
    n0, n1 = count & LOW, count >> S32
    low = x0 * n0
    middle = x1 * n0 + (low >> S32)
    cross = x0 * n1 + (middle & LOW)
    upper = x1 * n1 + (middle >> S32) + (cross >> S32)
    return upper, (cross << S32) | (low & LOW)


# --- bits ----------------------------------------------------------------------------------------


def mix(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Return the words of a counter after one round of Philox, under the key of the round."""
    upper_0, lower_0 = scaled(c0, _M0)
    upper_1, lower_1 = scaled(c2, _M1)
    return upper_1 ^ c1 ^ k0, lower_1, upper_0 ^ c3 ^ k1, lower_0


def philox(block: Any, call: Any, turn: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four random words of a block of items; all are uint64.

    Scalars of NumPy's warn of sums that wrap around.
    """
    c0, c1, c2, c3 = block + _ONE, call, turn, _ZERO
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = mix(c0, c1, c2, c3, k0, k1)
        k0, k1 = k0 + WEYL_0, k1 + WEYL_1
    return c0, c1, c2, c3


# --- uniform -------------------------------------------------------------------------------------

_S11, _S40 = _u64(11), _u64(40)


def unit_double(x: Any) -> Any:
    """Return a multiple of 2**-53 in [0, 1), of 64 random bits."""
    return (x >> _S11) * 2.0**-53


def unit_single(x: Any) -> Any:
    """Return a multiple of 2**-24 in [0, 1), which float32 holds exactly."""
    return (x >> _S40) * 2.0**-24


# --- normal --------------------------------------------------------------------------------------

# The polynomials interpolate at the Chebyshev points, in 50 digits, and have been rounded then:
# their errors are below those of rounding.
LOG: Final = (
    2.0, 0.6666666666666765, 0.3999999999930234, 0.2857142876064168,
    0.22222197056726048, 0.18183631680229329, 0.1531252814836419, 0.14809710360655276,
)  # fmt: skip
"""2 artanh(s) / s, of s**2 up to that of m = sqrt(2), see `logarithm`."""
SIN: Final = (
    3.141592653589793, -5.167712780049969, 2.5501640398773007,
    -0.5992645293189447, 0.0821458865731029, -0.007370430505916944,
    0.0004662998161898394, -2.1903497074626018e-05, 7.697826768224191e-07,
)  # fmt: skip
"""sin(r pi) / r, of r**2 up to a quarter."""
COS: Final = (
    1.0, -4.934802200544676, 4.058712126416497,
    -1.335262768843447, 0.23533063012953284, -0.025806888737002202,
    0.0019295562724817132, -0.00010456655338748738, 4.149564353942586e-06,
)  # fmt: skip
"""cos(r pi), of r**2 up to a quarter."""

S52: Final = _u64(52)
MANTISSA: Final = _u64((1 << 52) - 1)
ROOT_HALF: Final = _u64(0x3FE6A09E667F3BCD)
"""The bits of sqrt(1/2)."""
TO_ROOT_HALF: Final = _u64(0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
"""From it to those of 1."""
INTEGER: Final = _u64(0x4330000000000000)
"""The bits of 2.0**52: in place of its lowest ones stand those of a number that is added."""
BIAS: Final = 2.0**52 + 1023.0
LN2: Final = math.log(2)


def bits_of(doubles: Any) -> Any:
    """Return the bits of doubles, as uint64."""
    return doubles.view(np.uint64)


def double_of(bits: Any) -> Any:
    """Return the doubles that bits stand for."""
    return bits.view(np.float64)


def split_double(u: Any) -> tuple[Any, Any]:
    """Return m, between sqrt(1/2) and sqrt(2), and e, a double as well, where u = 2**e * m."""
    bits = bits_of(u) + TO_ROOT_HALF
    e = double_of((bits >> S52) | INTEGER) - BIAS
    return double_of((bits & MANTISSA) + ROOT_HALF), e


def logarithm(u: Any) -> Any:
    """Return the natural logarithm of doubles in [2**-53, 1], to 2.5 units in the last place.

    With u = 2**e * m, m between sqrt(1/2) and sqrt(2), ln m = 2 artanh(s) where s = (m - 1) /
    (m + 1).
    """
    m, e = split_double(u)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    t = LOG[7] * z + LOG[6]
    t = t * z + LOG[5]
    t = t * z + LOG[4]
    t = t * z + LOG[3]
    t = t * z + LOG[2]
    t = t * z + LOG[1]
    t = t * z + LOG[0]
    return e * LN2 + s * t


def cosine_and_sine(turns: Any) -> tuple[Any, Any]:
    """Return the cosine and sine of -1/2 to 1/2 turns, to 2e-15.

    Those of half the angle are doubled: no case is told from another.
    """
    z = turns * turns
    c = COS[8] * z + COS[7]
    c = c * z + COS[6]
    c = c * z + COS[5]
    c = c * z + COS[4]
    c = c * z + COS[3]
    c = c * z + COS[2]
    c = c * z + COS[1]
    c = c * z + COS[0]
    s = SIN[8] * z + SIN[7]
    s = s * z + SIN[6]
    s = s * z + SIN[5]
    s = s * z + SIN[4]
    s = s * z + SIN[3]
    s = s * z + SIN[2]
    s = s * z + SIN[1]
    s = s * z + SIN[0]
    s = s * turns
    twice = s + s
    return 1.0 - twice * s, twice * c


def normal_pair(u0: Any, u1: Any) -> tuple[Any, Any]:
    """Return two independent standard normal doubles, of two uniform ones in [0, 1).

    By G. E. P. Box and M. E. Muller, "A note on the generation of random normal deviates", Ann.
    Math. Statist. 29 (1958). The logarithm is that of a number in (0, 1], in steps of 2**-53, so
    that values reach 8.57 in magnitude.
    """
    radius = np.sqrt(-2.0 * logarithm(1.0 - u0))
    cosine, sine = cosine_and_sine(u1 - 0.5)
    return radius * cosine, radius * sine


# --- exponential ---------------------------------------------------------------------------------


def exponential(u: Any) -> Any:
    """Return standard exponential doubles, of uniform ones in [0, 1): -ln(1 - u).

    1 - u has steps of 2**-53, so that values reach 36.7.
    """
    return 0.0 - logarithm(1.0 - u)


# --- of Python's numbers -------------------------------------------------------------------------


def _of_numbers() -> SimpleNamespace:
    """Return the formulas of one element's numbers as functions of Python's own.

    Their arithmetic is that of IEEE 754 as well, and takes less time than that of NumPy's scalars;
    integers do not wrap around, which none of these do.
    """
    scope: dict[str, Any] = dict(globals())
    root_half = float(double_of(ROOT_HALF))

    def split_number(u: float) -> tuple[float, float]:
        m, e = math.frexp(u)
        return (m, e) if m >= root_half else (m + m, e - 1)

    scope["np"] = math  # for square roots
    scope["split_double"] = split_number
    formulas = (logarithm, cosine_and_sine, normal_pair, exponential)
    made = {one.__name__: FunctionType(one.__code__, scope) for one in formulas}
    scope.update(made)
    return SimpleNamespace(**made)


of_numbers: Final = _of_numbers()
