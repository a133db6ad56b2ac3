"""Numba kernel that multiplies matrices to the exact sums of rounded products, rounded once.

Two rows of the left matrix are multiplied by all columns of a panel of the right one. Each of these
is a lane, as in `_exact_sum`, whose exponent follows from the largest items of row and column: so
one loop multiplies and adds up both levels. Nothing is left by them where the items of a row, and
of a column, do not differ too much: the kernel tells by how much they do.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.comm.kernels._exact_digits import MAGNITUDE, loop
from distarray.comm.kernels._exact_sum import (
    CHUNK,
    EXPONENT,
    FIRST,
    HIGH,
    LOW,
    MOST_ITEMS,
    SECOND,
    WIDEST,
    round_lanes,
    split,
)
from distarray.comm.kernels._intrinsics import bits_of, double_of
from distarray.comm.kernels._jit import Source

_UNROLLED: Final = 8
"""Terms whose sums stay in registers. Measured on Zen 5: with two rows at a time 256 rows take
0.067 ns a term, and 512 0.074; with one 0.078 and 0.094."""

# Where the scratch memory has what: the lanes of the next row, and of columns the largest and
# least magnitudes.
_NEXT: Final = CHUNK
_TOPS: Final = 2 * CHUNK
_LEASTS: Final = _TOPS + WIDEST


@loop
def _range_of(x: Any, at: int, count: int) -> Any:
    """Return bits of the largest magnitude, and of the least but zero less one."""
    largest, least = np.int64(0), np.int64(MAGNITUDE)
    for i in range(count):
        bits = bits_of(x[at + i]) & MAGNITUDE
        largest = max(largest, bits)
        least = min(least, (bits - 1) & MAGNITUDE)  # of zero the most
    return largest, least


@loop
def _find_ranges(x: Any, at: int, rows: int, step: int, columns: int, scratch: Any) -> None:
    """Find the same of columns."""
    for j in range(columns):
        scratch[_TOPS + j] = 0
        scratch[_LEASTS + j] = MAGNITUDE
    for row in range(rows):
        first = at + row * step
        for j in range(columns):
            bits = bits_of(x[first + j]) & MAGNITUDE
            scratch[_TOPS + j] = max(scratch[_TOPS + j], bits)
            scratch[_LEASTS + j] = min(scratch[_LEASTS + j], (bits - 1) & MAGNITUDE)


@loop
def _note(largest: int, least: int, facts: Any, at: int) -> None:
    """Take in the range of a row or column: its width in powers of two, and how far it goes."""
    if largest:
        top, bottom = largest >> 52, (least + 1) >> 52
        facts[at] = max(facts[at], top - bottom)
        facts[2] = max(facts[2], top - 1023, 1023 - bottom)


def _adding(terms: int) -> Any:
    """Return the loop that adds so many terms of each lane of two rows."""

    @loop
    def add(
        x: Any, at: int, next_row: int, y: Any, other: int, step: int, columns: int, scratch: Any
    ) -> None:
        for j in range(columns):
            first = double_of(scratch[EXPONENT + j] + FIRST)
            second = double_of(scratch[EXPONENT + j] + SECOND)
            high, low = scratch[HIGH + j], scratch[LOW + j]
            first_next = double_of(scratch[_NEXT + EXPONENT + j] + FIRST)
            second_next = double_of(scratch[_NEXT + EXPONENT + j] + SECOND)
            high_next, low_next = scratch[_NEXT + HIGH + j], scratch[_NEXT + LOW + j]
            for i in range(terms):
                right = y[other + i * step + j]
                above, below, _ = split(x[at + i] * right, first, second)
                high += above
                low += below
                above, below, _ = split(x[at + next_row + i] * right, first_next, second_next)
                high_next += above
                low_next += below
            scratch[HIGH + j], scratch[LOW + j] = high, low
            scratch[_NEXT + HIGH + j], scratch[_NEXT + LOW + j] = high_next, low_next

    return add


_add_terms, _add_term = _adding(_UNROLLED), _adding(1)


@loop
def _begin_row(
    x: Any, at: int, k: int, above: int, lanes: int, scratch: Any, row: int, facts: Any
) -> None:
    largest, least = _range_of(x, at, k)
    _note(largest, least, facts, 0)
    for j in range(lanes):
        exponent = (largest >> 52) + (scratch[_TOPS + j] >> 52) - above
        # Where all terms are zero, or the kernel is told to be wrong, anything may be.
        exponent = max(64, min(1984, exponent)) << 52
        scratch[row + EXPONENT + j] = exponent
        scratch[row + HIGH + j] = -k * (exponent + FIRST)
        scratch[row + LOW + j] = -k * (exponent + SECOND)


@loop
def _multiply(
    x: Any, start: int, m: int, s: int, y: Any, other: int, n: int, t: int, k: int,
    scratch: Any, out: Any, to: int, to_odd: int, facts: Any,
) -> None:  # fmt: skip
    above = 1022
    while k > MOST_ITEMS << (1022 - above):  # so that sums of integers fit 63 bits
        above -= 1
    last = k - k % _UNROLLED
    for c in range(0, n, WIDEST):
        columns = min(WIDEST, n - c)
        lanes = (columns + 7) // 8 * 8  # vectors of the processor are full
        _find_ranges(y, other + c, k, t, lanes, scratch)
        for j in range(columns):
            _note(scratch[_TOPS + j], scratch[_LEASTS + j], facts, 1)
        for i in range(0, m, 2):
            at = start + i * s
            next_row = s if i + 1 < m else 0  # of the last one it is the same
            _begin_row(x, at, k, above, lanes, scratch, 0, facts)
            _begin_row(x, at + next_row, k, above, lanes, scratch, _NEXT, facts)
            item = other + c
            for first in range(0, last, _UNROLLED):
                _add_terms(x, at + first, next_row, y, item, t, lanes, scratch)
                item += _UNROLLED * t
            for first in range(last, k):
                _add_term(x, at + first, next_row, y, item, t, lanes, scratch)
                item += t
            for row in range(min(2, m - i)):
                place = to + (i + row) * n + c
                round_lanes(scratch, row * _NEXT, columns, to_odd, out, place)


def multiply() -> Source:
    """Return the kernel that multiplies stacks of matrices of float64, whose rows lie side by side.

    The arguments: how many products; the left matrices, their rows, the strides between matrices
    and between rows, in items; the same of the right ones, with their columns, whose rows go on
    with zeros up to a multiple of eight items; the terms; scratch memory; where the bits of the
    results go, and whether they are rounded to odd; and three numbers that become the most powers
    of two between items of a row, and of a column, and of an item from 1, if they were less.
    """

    def run(
        count: int, x: Any, m: int, step: int, s: int, y: Any, n: int, other: int, t: int, k: int,
        scratch: Any, out: Any, to_odd: int, facts: Any,
    ) -> None:  # fmt: skip
        for i in range(count):
            _multiply(
                x, i * step, m, s, y, i * other, n, t, k, scratch, out, i * m * n, to_odd, facts
            )

    matrices = "CPointer(float64), int64, int64, int64"
    where = "CPointer(int64), CPointer(int64), int64, CPointer(int64)"
    return Source(run, f"void(int64, {matrices}, {matrices}, int64, {where})")
