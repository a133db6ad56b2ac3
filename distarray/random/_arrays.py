"""The formulas for arrays of NumPy's, in as few calls as they get.

The operations of each item are those of `_formulas`, in the same order, so that the bits are the
same. What differs is how they are called: in place, and a step of several polynomials at once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from distarray.random import _formulas

# Arrays without axes: to make these of numbers would take half of the time of a short call.
_LOW, _S32, _S52, _MANTISSA, _ROOT_HALF, _TO_ROOT_HALF, _INTEGER = (
    np.array(getattr(_formulas, name))
    for name in ("LOW", "S32", "S52", "MANTISSA", "ROOT_HALF", "TO_ROOT_HALF", "INTEGER")
)
_BIAS, _LN2, _ONE, _HALF, _ZERO, _MINUS_TWO = map(
    np.array, (_formulas.BIAS, _formulas.LN2, 1.0, 0.5, 0.0, -2.0)
)
_LOG: Final = [*map(np.array, _formulas.LOG[::-1])]
_ALL: Final = np.array([(*_formulas.LOG, 0.0), _formulas.COS, _formulas.SIN]).T[::-1]
"""Coefficients by steps: of the logarithm, cosine and sine."""
_SHORT: Final = 1024
"""Items of arrays for which coefficients are repeated, as calls take longer than work then."""


def memory_for(count: int) -> np.ndarray:
    """Return memory for the temporaries of so many items, and two more, which is used again.

    The C library returns what is freed to the system where it is much, and each page costs again.
    """
    return np.empty(5 * (count + 2))


def room_in(memory: np.ndarray) -> int:
    """Return for how many items there is memory, an even number."""
    return memory.size // 10 * 2


def make_normal(u: np.ndarray, memory: np.ndarray) -> None:
    """Make an even number of uniform doubles normal ones, pair by pair, as `normal_pair` does."""
    u0, u1 = u[::2], u[1::2]
    count = u0.size
    rows = memory[: 10 * count].reshape(10, count)
    z, t, (rest, e, turns, twice) = rows[:3], rows[3:6], rows[6:]
    s = _split(np.subtract(_ONE, u0, rest), e, twice)
    np.subtract(u1, _HALF, turns)
    np.multiply(s, s, z[0])
    z[1:] = np.multiply(turns, turns, rest)
    logarithm, cosine, sine = _polynomials(z, _steps(count if count <= _SHORT else 1), t)
    radius = _join(e, s, logarithm)
    np.multiply(radius, _MINUS_TWO, radius)
    np.sqrt(radius, radius)
    np.multiply(sine, turns, sine)
    np.add(sine, sine, twice)
    np.multiply(sine, twice, sine)
    np.subtract(_ONE, sine, sine)
    np.multiply(radius, sine, u0)
    np.multiply(twice, cosine, twice)
    np.multiply(radius, twice, u1)


def make_exponential(u: np.ndarray, memory: np.ndarray) -> None:
    """Make uniform doubles standard exponential ones, as `exponential` does."""
    rest, e, s, z, t = memory[: 5 * u.size].reshape(5, u.size)
    _split(np.subtract(_ONE, u, rest), e, s)
    _polynomials(np.multiply(s, s, z), _LOG, t)
    np.subtract(_ZERO, _join(e, s, t), u)


def scaled(x: np.ndarray, among: int, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return what `_formulas.scaled` does; no lower bits where these are never below the bound."""
    if among & (among - 1) == 0:
        shift = 65 - among.bit_length()
        return (x >> np.uint64(shift) if among > 1 else np.zeros_like(x)), None
    count = np.array(among, np.uint64)
    if among >> 32:
        return _formulas.scaled(x, count[()])
    low, upper = memory[: 2 * x.size].view(np.uint64).reshape(2, x.size)
    np.multiply(np.bitwise_and(x, _LOW, low), count, low)
    np.right_shift(low, _S32, low)
    np.multiply(np.right_shift(x, _S32, upper), count, upper)
    np.add(upper, low, upper)
    return np.right_shift(upper, _S32, upper), np.multiply(x, count, low)


def _split(u: np.ndarray, e: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Find the exponents of numbers, and return s of what is left; the numbers are gone then."""
    bits, exponents = u.view(np.uint64), e.view(np.uint64)
    np.add(bits, _TO_ROOT_HALF, bits)
    np.right_shift(bits, _S52, exponents)
    np.bitwise_or(exponents, _INTEGER, exponents)
    np.subtract(e, _BIAS, e)
    np.bitwise_and(bits, _MANTISSA, bits)
    np.add(bits, _ROOT_HALF, bits)
    np.subtract(u, _ONE, s)
    np.add(u, _ONE, u)
    return np.divide(s, u, s)


@functools.lru_cache(maxsize=4)
def _steps(count: int) -> Sequence[np.ndarray]:
    """Return the coefficients of all polynomials, one by one or repeated for so many items."""
    return [*np.repeat(_ALL[:, :, None], count, axis=-1)]


def _polynomials(z: np.ndarray, steps: Sequence[Any], t: np.ndarray) -> np.ndarray:
    """Return polynomials by their coefficients, the highest power first."""
    np.multiply(z, steps[0], t)
    np.add(t, steps[1], t)
    for coefficient in steps[2:]:
        np.multiply(t, z, t)
        np.add(t, coefficient, t)
    return t


def _join(e: np.ndarray, s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return logarithms from what `_split` gave and the polynomial."""
    np.multiply(e, _LN2, e)
    np.multiply(s, t, s)
    return np.add(e, s, e)
