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
_BIAS, _LN2, _ONE, _HALF, _ZERO = map(np.array, (_formulas.BIAS, _formulas.LN2, 1.0, 0.5, 0.0))
_LOG: Final = [*map(np.array, _formulas.LOG[::-1])]
_TO_RADIUS: Final = -2.0
"""By what the logarithm is to be multiplied: its coefficients are, which rounds nothing."""
_TO_RADIUS_OF_TWO: Final = np.array(_TO_RADIUS * _LN2)
"""By what its exponent is, so that it is one of base 2."""
_ALL: Final = np.array(
    [(*(_TO_RADIUS * c for c in _formulas.LOG), 0.0), _formulas.COS, _formulas.SIN]
).T[::-1]
"""Coefficients by steps: of the logarithm, cosine and sine."""
_SHORT_ITEMS: Final = 1024
"""Items of arrays for which coefficients are repeated, as calls take longer than work then."""
_SPACES: Final = 4
"""So many memories of few items stay, of different sizes."""


class _Pairs:
    """Temporaries of some pairs of normal numbers. What lies side by side one call takes.

    That is quicker than two only where nothing is to be broadcast: a call of 100 items takes
    0.25 us, and 0.7 where something is.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.e, self.s, self.turns, self.less, self.more = rows[:5]
        self.rest, self.square, self.square_again = self.z = rows[5:8]
        self.factor = rows[8]
        _, self.cosine, self.sine = self.t = rows[9:]
        self.e_and_s, self.factors, self.both = rows[:2], rows[8:10], rows[3:5]
        self.s_and_turns, self.squares = rows[1:3], rows[5:7]


class Memory:
    """Memory for the temporaries of some items, which is used again.

    The C library returns what is freed to the system where it is much, and each page costs again.
    """

    def __init__(self, count: int) -> None:
        self.flat = np.empty(6 * (count + 2))
        self._count = -1

    def of_pairs(self, count: int) -> _Pairs:
        """Return the temporaries of so many pairs."""
        if count != self._count:
            self._pairs = _Pairs(self.flat[: 12 * count].reshape(12, count))
            self._count = count
        return self._pairs


_free: dict[int, Memory] = {}
"""Of few items, by their number: to make the arrays takes as long as to fill some of them."""


def memory_for(count: int) -> Memory:
    """Return memory for so many items, and two more, that nobody else has; see `give_back`."""
    return _free.pop(count, None) or Memory(count)


def give_back(count: int, memory: Memory) -> None:
    """Let others have memory that `memory_for` gave."""
    if count <= _SHORT_ITEMS:
        if len(_free) >= _SPACES:
            _free.clear()
        _free[count] = memory


def room_in(memory: Memory) -> int:
    """Return for how many items there is memory, an even number."""
    return memory.flat.size // 12 * 2


def make_normal(u: np.ndarray, memory: Memory) -> None:
    """Make an even number of uniform doubles normal ones, pair by pair, as `normal_pair` does."""
    u0, u1 = u[::2], u[1::2]
    count = u0.size
    at = memory.of_pairs(count)
    turns, sine, cosine = at.turns, at.sine, at.cosine
    np.subtract(u1, _HALF, turns)
    _split(np.subtract(_ONE, u0, at.rest), at.e, at.s, at.less, at.more)
    np.multiply(at.s_and_turns, at.s_and_turns, at.squares)
    at.square_again[:] = at.square
    _polynomials(at.z, _steps(count if count <= _SHORT_ITEMS else 1), at.t)
    at.factor[:] = _TO_RADIUS_OF_TWO  # each time: others write into this memory as well
    np.multiply(at.e_and_s, at.factors, at.both)
    radius = np.add(at.less, at.more, at.less)
    np.sqrt(radius, radius)
    np.multiply(sine, turns, sine)
    twice = np.add(sine, sine, turns)
    np.multiply(twice, cosine, cosine)
    np.multiply(twice, sine, sine)
    np.subtract(_ONE, sine, sine)
    np.multiply(radius, sine, u0)
    np.multiply(radius, cosine, u1)


def make_exponential(u: np.ndarray, memory: Memory) -> None:
    """Make uniform doubles standard exponential ones, as `exponential` does."""
    rest, e, s, z, t = memory.flat[: 5 * u.size].reshape(5, u.size)
    _split(np.subtract(_ONE, u, rest), e, s, z, t)
    _polynomials(np.multiply(s, s, z), _LOG, t)
    np.multiply(e, _LN2, e)
    np.multiply(s, t, s)
    np.subtract(_ZERO, np.add(e, s, e), u)


def scaled(x: np.ndarray, among: int, memory: Memory) -> tuple[np.ndarray, np.ndarray | None]:
    """Return what `_formulas.scaled` does; no lower bits where these are never below the bound."""
    if among & (among - 1) == 0:
        shift = 65 - among.bit_length()
        return (x >> np.uint64(shift) if among > 1 else np.zeros_like(x)), None
    count = np.array(among, np.uint64)
    if among >> 32:
        return _formulas.scaled(x, count[()])
    low, upper = memory.flat[: 2 * x.size].view(np.uint64).reshape(2, x.size)
    np.multiply(np.bitwise_and(x, _LOW, low), count, low)
    np.right_shift(low, _S32, low)
    np.multiply(np.right_shift(x, _S32, upper), count, upper)
    np.add(upper, low, upper)
    return np.right_shift(upper, _S32, upper), np.multiply(x, count, low)


def _split(u: np.ndarray, e: np.ndarray, s: np.ndarray, less: np.ndarray, more: np.ndarray) -> None:
    """Find the exponents of numbers, and s of what is left; the numbers are gone then."""
    bits, exponents = u.view(np.uint64), e.view(np.uint64)
    np.add(bits, _TO_ROOT_HALF, bits)
    np.right_shift(bits, _S52, exponents)
    np.bitwise_or(exponents, _INTEGER, exponents)
    np.subtract(e, _BIAS, e)
    np.bitwise_and(bits, _MANTISSA, bits)
    np.add(bits, _ROOT_HALF, bits)
    np.divide(np.subtract(u, _ONE, less), np.add(u, _ONE, more), s)


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
