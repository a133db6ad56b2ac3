"""Numba kernels that add up items exactly, and round such sums once.

Every sum has a lane of two integers, the levels of `core/families/_exact_sums`: multiples of units
2**50 and 2**101 below a power of two that no item so far exceeds. Items come in chunks, rows of
items of different sums that stay in a cache: the largest magnitude of each lane first, then both
levels in one loop, which the processor's vectors take. Where an item exceeds all before, what the
lane has goes into the digits of a fixed-point number; so do items, one after the other, that are
huge or not finite. What both levels leave of items far smaller than the largest goes to as many
further pairs of levels as it needs, as to add an item to digits takes as long as ten pairs. Where
there are no digits the integers are rounded at once. Mostly no item needs other levels than those
before it: so it is tried first whether these leave nothing, with items where they lie. Short states
have two levels: where these leave something the kernel stops and says so.

A chunk is copied to scratch memory first, so that one loop serves items that lie in any way; of few
sums several rows are one, whose lanes are merged at the end. Where the items of one sum lie side by
side another kernel takes one sum after the other. Both multiply as well, whatever lies where.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.comm.kernels._exact_digits import (
    DIGITS,
    FALLS_SHORT,
    FIELD,
    FIELD_BITS,
    FIELDS,
    HIGHEST,
    LEVEL,
    LOWEST,
    MAGNITUDE,
    MISFIT,
    WORDS,
    add_item,
    add_shifted,
    clear,
    cut_to_odd,
    loop,
    power,
    round_all,
)
from distarray.comm.kernels._intrinsics import bits_of, double_of, prefetch_item
from distarray.comm.kernels._jit import Source

MOST_ITEMS: Final = 4096
"""Items of a sum whose integers are added up: to 2**62. An integer of the first level is 2**50 at
most, as its unit is 2**50 below a power of two that no item exceeds; of the second as well, since
half a unit is left."""
_LOWEST: Final = LOWEST << 52
_HUGE: Final = HIGHEST << 52
_EXPONENT_MARGIN: Final = 4 << 52
_WIDE_MARGIN: Final = 24 << 52
"""By how much exponents of lanes are above what the items need, as larger ones may follow; the
latter where items differ so much that lanes have further levels."""
FIRST: Final = (3 << 52) | (1 << 51)
SECOND: Final = FIRST - (LEVEL << 52)
"""What makes bits of 1.5 * 2**52 units of each level from an exponent."""

_MOST_BITS: Final = 61
_FARTHEST: Final = 39
"""Bits of the sum of first integers of states, which are less than 2**63 with what second ones add;
and by how many these may be apart, so that they add less than 2**61 of 2**21 blocks."""

WIDEST: Final = 256
_NARROWEST: Final = 32
"""Most lanes, and least where there are as many items: four vectors of 64 bytes. Measured on Zen 4:
with 512 lanes or chunks of 16 or 64 KiB sums over rows of 8 to 8192 items took up to 1.3 times as
long."""
_ITEMS: Final = 4096
"""Of a chunk in scratch memory: 32 KiB."""
_PREFETCH_ROWS: Final = 4
"""So many rows ahead are asked for, as each begins in another page."""
LONG: Final = 64
"""Items side by side that are a line; of fewer several sums become lanes."""
_LINE: Final = 2048
"""Items of a line in scratch memory: with what they come from they fit a first-level cache."""

# Where the scratch memory has what, in words of 8 bytes. Lines of arrays do not share cache sets.
_STRIDE: Final = WIDEST + 8
_LARGEST: Final = 0
EXPONENT: Final = _STRIDE
HIGH: Final = 2 * _STRIDE
LOW: Final = 3 * _STRIDE
_PAIRS: Final = (HIGHEST - LOWEST) // (2 * LEVEL) + 2
"""Of levels, down to the least number from any item that is not huge."""
_LEFT: Final = HIGH + 2 * _PAIRS * _STRIDE
_DEPTH: Final = _LEFT + WIDEST
"""Where it lies how many pairs of levels lanes have."""
_NEW_EXPONENT: Final = _LEFT + _STRIDE
_NEW: Final = _LEFT + 2 * _STRIDE
CHUNK: Final = _LEFT + 6 * _STRIDE
_TURNED: Final = CHUNK + _LINE
_SUMS: Final = CHUNK + _ITEMS + 4 * WIDEST
SCRATCH: Final = _SUMS + WIDEST * WORDS
"""Words of scratch memory."""


@loop
def split(item: float, first: float, second: float) -> Any:
    """Return what an item adds to both levels, as bits with those of 1.5 * 2**52, and is left."""
    above = item + first
    rest = item - (above - first)
    below = rest + second
    return bits_of(above), bits_of(below), bits_of(rest - (below - second))


@loop
def round_lanes(scratch: Any, base: int, columns: int, to_odd: int, sums: Any, at: int) -> None:
    """Round the sums of lanes, from a base on, that have all of them.

    The integers make one, of which two parts are exact in float64: so their sum is rounded once.
    """
    for c in range(columns):
        low = scratch[base + LOW + c]
        high = scratch[base + HIGH + c] + (low >> LEVEL)
        low &= (1 << LEVEL) - 1
        # Few enough bits and all of them count; else all below the last one are as good as half.
        is_short = -(1 << 55) < high < 1 << 55
        cut = high & (3 if is_short else 1023)
        above = float(high - cut)
        below = float((cut << LEVEL) + low) * power(-LEVEL)
        rough = float(cut) + (0.5 if low else 0.0)
        below = below if is_short else rough
        total = above + below
        if to_odd:
            total = cut_to_odd(total, below - (total - above))
        # The unit of the first level is 2**-49 of what has this exponent; both steps are exact.
        sums[at + c] = bits_of(total * power(-49) * double_of(scratch[base + EXPONENT + c]))


@loop
def _finish_lanes(scratch: Any, columns: int, how: int, out: Any, at: int) -> None:
    """Round the sums of lanes, or write them as short states; see `round_all`."""
    if how < 2:
        round_lanes(scratch, 0, columns, how, out, at)
        return
    for c in range(columns):
        low = scratch[LOW + c]
        out[2 * (at + c)] = scratch[HIGH + c] + (low >> LEVEL)
        low = (low & (1 << LEVEL) - 1) << FIELD_BITS
        out[2 * (at + c) + 1] = low | scratch[EXPONENT + c] >> 52


# --- short states --------------------------------------------------------------------------------


@loop
def _add_states(
    states: Any, pitch: int, blocks: int, first: int, columns: int, scratch: Any
) -> Any:
    """Add up states of several blocks as lanes of one, and mark those for which that fails.

    It returns whether some state is none.
    """
    for c in range(columns):
        scratch[EXPONENT + c] = FIELDS - 1  # of zeros any
        scratch[HIGH + c] = scratch[LOW + c] = 0
        scratch[_LEFT + c] = blocks // (MOST_ITEMS + 1)  # second integers would overflow
    misfits = np.int64(0)
    for at in range(2 * first, 2 * first + blocks * pitch, pitch):
        for c in range(columns):
            high, unit = states[at + 2 * c], states[at + 2 * c + 1]
            misfits |= unit & MISFIT
            field = unit & FIELDS if high | unit >> FIELD_BITS else FIELDS - 1
            scratch[EXPONENT + c] = min(scratch[EXPONENT + c], field)
    room = np.int64(_MOST_BITS)
    while blocks > 1 << _MOST_BITS - room:
        room -= 1
    for at in range(2 * first, 2 * first + blocks * pitch, pitch):
        for c in range(columns):
            high, unit = states[at + 2 * c], states[at + 2 * c + 1]
            field, low = unit & FIELDS, unit >> FIELD_BITS
            by = min(field - scratch[EXPONENT + c] if high | low else 0, _FARTHEST + 1)
            left = (field + 1) >> 11 | by - 1 - _FARTHEST >> 63 ^ -1
            left |= high >> room - by ^ high >> 63
            scratch[HIGH + c] += (high << by) + (low >> LEVEL - by)
            scratch[LOW + c] += low << by & (1 << LEVEL) - 1
            scratch[_LEFT + c] |= left
    for c in range(columns):
        scratch[EXPONENT + c] <<= 52
    return misfits


@loop
def _add_digits(states: Any, pitch: int, blocks: int, at: int, words: Any, base: int) -> None:
    """Add up states of several blocks as words."""
    clear(words, base, 1)
    for i in range(at, at + blocks * pitch, pitch):
        high, low = states[i], states[i + 1]
        place = (low & FIELDS) - LOWEST
        low >>= FIELD_BITS
        if place == FIELDS - LOWEST:
            for j in range(3):
                words[base + DIGITS + j] += high >> j & 1
        elif high | low:
            add_shifted(words, base, place, low)
            add_shifted(words, base, place + LEVEL, high)


def _round_states(
    states: Any, pitch: int, blocks: int, count: int, scratch: Any, out: Any, to_odd: int
) -> Any:
    told = np.int64(0)
    for first in range(0, count, WIDEST):
        columns = min(WIDEST, count - first)
        if _add_states(states, pitch, blocks, first, columns, scratch):
            return np.int64(FALLS_SHORT)
        round_lanes(scratch, 0, columns, to_odd, out, first)
        for c in range(columns):
            if scratch[_LEFT + c]:
                _add_digits(states, pitch, blocks, 2 * (first + c), scratch, _SUMS)
                told |= round_all(scratch, _SUMS, 1, to_odd, out, first + c)
    return told


# --- chunks --------------------------------------------------------------------------------------


@loop
def _bits_of(x: Any, at: int, y: Any, by: int, sign: int) -> Any:
    """Return the bits of an item, or of a product, which the sign bit negates."""
    if y is None:
        return bits_of(double_of(x[at]))
    return bits_of(double_of(x[at]) * double_of(y[by])) ^ sign


def _fetching(step: int) -> Any:
    """Return the loop that brings items so far apart to scratch memory, or products of such.

    It returns the bits of the largest magnitude.
    """

    @loop
    def fetch(
        x: Any, at: int, y: Any, by: int, sign: int, scratch: Any, to: int, count: int
    ) -> Any:
        largest = np.int64(0)
        for i in range(count):
            bits = _bits_of(x, at + i * step, y, by + i * step, sign)
            scratch[to + i] = bits
            largest = max(largest, bits & MAGNITUDE)
        return largest

    return fetch


_fetch, _fetch_parts = _fetching(1), _fetching(2)


@loop
def _fetch_apart(
    x: Any, at: int, step: int, y: Any, by: int, stride: int, sign: int, scratch: Any, to: int,
    pitch: int, count: int,
) -> Any:  # fmt: skip
    """Do the same with items at any distances, also in scratch memory."""
    largest = np.int64(0)
    for i in range(count):
        bits = _bits_of(x, at + i * step, y, by + i * stride, sign)
        scratch[to + i * pitch] = bits
        largest = max(largest, bits & MAGNITUDE)
    return largest


@loop
def _turn_eight(
    x: Any, at: int, apart: int, step: int, scratch: Any, to: int, pitch: int, count: int
) -> None:
    """Bring items of eight lines to scratch memory, as a column each."""
    for i in range(count):
        for j in range(8):
            scratch[to + i * pitch + j] = bits_of(float(x[at + i * step + j * apart]))


@loop
def _load(
    x: Any, at: int, y: Any, by: int, negates: int, first: int, rows: int, n1: int, s0: int,
    v0: int, s1: int, v1: int, outer: int, t0: int, u0: int, inner: int, t1: int, u1: int,
    scratch: Any,
) -> None:  # fmt: skip
    """Bring `rows` items, from number `first` on, of `outer * inner` sums to scratch memory."""
    columns = outer * inner
    done, to = 0, CHUNK
    while done < rows:
        i0 = (first + done) // n1
        i1 = first + done - i0 * n1
        run = min(n1 - i1, rows - done)
        start, other = at + i0 * s0 + i1 * s1, by + i0 * v0 + i1 * v1
        sign = (i0 & negates) << 63
        done += run
        pitch, few = columns, inner
        if t1 == u1 == 1 and s1 == v1 == columns == inner:  # a run is one row
            run, pitch, few = 1, run * inner, run * inner
        for _ in range(outer):
            c = 0
            if t1 <= s1:
                for i in range(run):
                    if i + _PREFETCH_ROWS < n1 - i1:
                        item = start + (i + _PREFETCH_ROWS) * s1
                        for j in range(item, item + few * t1, 8):
                            prefetch_item(x, j)
                    begin, beside, row = start + i * s1, other + i * v1, to + i * pitch
                    if t1 == u1 == 1:
                        _fetch(x, begin, y, beside, sign, scratch, row, few)
                    elif t1 == u1 == 2:
                        _fetch_parts(x, begin, y, beside, sign, scratch, row, few)
                    else:
                        _fetch_apart(x, begin, t1, y, beside, u1, sign, scratch, row, 1, few)
                c = few
            while y is None and c + 8 <= few:
                _turn_eight(x, start + c * t1, t1, s1, scratch, to + c, pitch, run)
                c += 8
            while c < few:
                begin, beside = start + c * t1, other + c * u1
                _fetch_apart(x, begin, s1, y, beside, v1, sign, scratch, to + c, pitch, run)
                c += 1
            start += t0
            other += u0
            to += few
        to += (run - 1) * pitch


@loop
def _find_largest(scratch: Any, rows: int, lanes: int) -> None:
    """Find the bits of the largest magnitude in each lane."""
    for lane in range(lanes):
        scratch[_LARGEST + lane] = 0
    for at in range(CHUNK, CHUNK + rows * lanes, 4 * lanes):
        for lane in range(lanes):
            largest = scratch[_LARGEST + lane]
            for i in range(4):
                largest = max(largest, scratch[at + i * lanes + lane] & MAGNITUDE)
            scratch[_LARGEST + lane] = largest


@loop
def _below(exponent: int, pair: int) -> Any:
    """Return the exponent of a pair of levels of a lane that has one."""
    return max(exponent - pair * (2 * LEVEL << 52), _LOWEST)


@loop
def _add_levels(scratch: Any, rows: int, lanes: int) -> None:
    """Add up both levels of each lane, and see what is left."""
    for lane in range(lanes):
        scratch[HIGH + lane] -= rows * (scratch[EXPONENT + lane] + FIRST)
        scratch[LOW + lane] -= rows * (scratch[EXPONENT + lane] + SECOND)
        scratch[_LEFT + lane] = 0
    for at in range(CHUNK, CHUNK + rows * lanes, 4 * lanes):
        for lane in range(lanes):
            first = double_of(scratch[EXPONENT + lane] + FIRST)
            second = double_of(scratch[EXPONENT + lane] + SECOND)
            high, low = scratch[HIGH + lane], scratch[LOW + lane]
            left = scratch[_LEFT + lane]
            for i in range(4):
                item = double_of(scratch[at + i * lanes + lane])
                above, below, rest = split(item, first, second)
                high += above
                low += below
                left |= rest
            scratch[HIGH + lane], scratch[LOW + lane] = high, low
            scratch[_LEFT + lane] = left


@loop
def _take_levels(scratch: Any, rows: int, lanes: int, pair: int) -> None:
    """Add up a pair of levels of each lane, and leave the rest of each item in its place.

    The first pair has been added up before.
    """
    for lane in range(lanes):
        exponent = _below(scratch[EXPONENT + lane], pair)
        scratch[_NEW_EXPONENT + lane] = exponent
        scratch[_NEW + lane] = -rows * (exponent + FIRST)
        scratch[_NEW + _STRIDE + lane] = -rows * (exponent + SECOND)
        scratch[_LEFT + lane] = 0
    for at in range(CHUNK, CHUNK + rows * lanes, lanes):  # one row, as LLVM compares few places
        for lane in range(lanes):
            exponent = scratch[_NEW_EXPONENT + lane]
            first, second = double_of(exponent + FIRST), double_of(exponent + SECOND)
            above, below, rest = split(double_of(scratch[at + lane]), first, second)
            scratch[at + lane] = rest
            scratch[_NEW + lane] += above
            scratch[_NEW + _STRIDE + lane] += below
            scratch[_LEFT + lane] |= rest
    to = HIGH + 2 * pair * _STRIDE
    if pair:
        for lane in range(lanes):
            scratch[to + lane] += scratch[_NEW + lane]
            scratch[to + _STRIDE + lane] += scratch[_NEW + _STRIDE + lane]


@loop
def _left_of(scratch: Any, lanes: int) -> Any:
    left = np.int64(0)
    for lane in range(lanes):
        left |= scratch[_LEFT + lane]
    return left & MAGNITUDE


@loop
def _add_further_levels(scratch: Any, rows: int, lanes: int) -> None:
    """Add up what both levels leave, by as many pairs of levels as leave nothing."""
    pair = 0
    while _left_of(scratch, lanes):
        if pair == scratch[_DEPTH]:
            scratch[_DEPTH] += 1
            for at in range(HIGH + 2 * pair * _STRIDE, HIGH + 2 * (pair + 1) * _STRIDE):
                scratch[at] = 0
        beyond = np.int64(pair == _PAIRS - 1)
        for lane in range(lanes):
            below = _below(scratch[EXPONENT + lane], pair + 1)
            beyond |= np.int64(scratch[_LARGEST + lane] > below)
        if beyond:  # else the next pair holds all of it
            _take_levels(scratch, rows, lanes, pair)
        pair += 1


@loop
def _add_lane(scratch: Any, lane: int, words: Any, base: int) -> None:
    """Move the integers of a lane to words."""
    for pair in range(scratch[_DEPTH]):
        place = (_below(scratch[EXPONENT + lane], pair) >> 52) + 2
        for at in range(HIGH + 2 * pair * _STRIDE, HIGH + 2 * (pair + 1) * _STRIDE, _STRIDE):
            add_shifted(words, base, place, scratch[at + lane])
            scratch[at + lane] = 0
            place -= LEVEL


@loop
def _take_huge(scratch: Any, count: int, lanes: int, columns: int, words: Any, base: int) -> None:
    """Move items that no lane may have to words."""
    for i in range(count):
        bits = scratch[CHUNK + i]
        if bits & FIELD > _HUGE:
            add_item(words, base + i % lanes % columns * WORDS, bits)
            scratch[CHUNK + i] = 0


@loop
def _find_exponents(scratch: Any, columns: int, lanes: int) -> Any:
    """Find the exponents that a chunk needs.

    Returns the largest, and whether lanes that have something need a larger one than they have.
    """
    half = lanes // 2
    while half >= columns:
        for c in range(half):
            scratch[_LARGEST + c] = max(scratch[_LARGEST + c], scratch[_LARGEST + half + c])
        half //= 2
    largest = np.int64(0)
    for c in range(columns):
        exponent = scratch[_LARGEST + c] & FIELD
        largest = max(largest, exponent)
        scratch[_LARGEST + c] = exponent
    half = columns
    while half < lanes:
        for c in range(half):
            scratch[_LARGEST + half + c] = scratch[_LARGEST + c]
        half *= 2
    grows = np.int64(0)
    for lane in range(lanes):
        has = scratch[HIGH + lane] | scratch[LOW + lane] | (scratch[_DEPTH] - 1)
        grows |= has if scratch[_LARGEST + lane] > scratch[EXPONENT + lane] else 0
    return largest, grows != 0


@loop
def _add_chunk(
    scratch: Any, rows: int, columns: int, lanes: int, words: Any, base: int, is_clear: int,
    count: int,
) -> int:  # fmt: skip
    """Add rows of items to their lanes; return whether no words were needed so far, and clear."""
    _find_largest(scratch, rows, lanes)
    largest, grows = _find_exponents(scratch, columns, lanes)
    is_huge = largest > _HUGE
    if grows or is_huge or count > MOST_ITEMS:
        if is_clear:
            clear(words, base, columns)
            is_clear = 0
        for lane in range(lanes):
            if scratch[_LARGEST + lane] > scratch[EXPONENT + lane] or count > MOST_ITEMS:
                _add_lane(scratch, lane, words, base + lane % columns * WORDS)
    if is_huge:
        _take_huge(scratch, rows * lanes, lanes, columns, words, base)
        _find_largest(scratch, rows, lanes)
        _find_exponents(scratch, columns, lanes)
    depth = scratch[_DEPTH]
    margin = _EXPONENT_MARGIN if depth == 1 else _WIDE_MARGIN
    for lane in range(lanes):
        exponent, largest = scratch[EXPONENT + lane], scratch[_LARGEST + lane]
        scratch[EXPONENT + lane] = largest + margin if largest > exponent else exponent
    _add_levels(scratch, rows, lanes)
    _add_further_levels(scratch, rows, lanes)
    if scratch[_DEPTH] > depth == 1:
        if is_clear:
            clear(words, base, columns)
        for lane in range(lanes):
            _add_lane(scratch, lane, words, base + lane % columns * WORDS)
            scratch[EXPONENT + lane] += _WIDE_MARGIN
        is_clear = 0
    return is_clear


def _adding(step: int, pairs: int) -> Any:
    """Return the loop that adds rows of items so far apart, or of products, where they lie."""
    levels = 2 * pairs

    @loop
    def add(
        x: Any, at: int, s1: int, y: Any, by: int, v1: int, sign: int, rows: int, lanes: int,
        scratch: Any,
    ) -> Any:  # fmt: skip
        for lane in range(lanes):
            for pair in range(pairs):
                exponent = _below(scratch[EXPONENT + lane], pair)
                scratch[_NEW + 2 * pair * _STRIDE + lane] = -rows * (exponent + FIRST)
                scratch[_NEW + (2 * pair + 1) * _STRIDE + lane] = -rows * (exponent + SECOND)
            scratch[_LARGEST + lane] = scratch[_LEFT + lane] = 0
        for row in range(0, rows, 4):
            start, other = at + row * s1, by + row * v1
            for lane in range(lanes):
                exponent = scratch[EXPONENT + lane]
                below_it = _below(exponent, 1)
                high, low = scratch[_NEW + lane], scratch[_NEW + _STRIDE + lane]
                if pairs > 1:
                    third = scratch[_NEW + 2 * _STRIDE + lane]
                    fourth = scratch[_NEW + 3 * _STRIDE + lane]
                largest, left = scratch[_LARGEST + lane], scratch[_LEFT + lane]
                for i in range(4):
                    item, place = start + i * s1 + lane * step, other + i * v1 + lane * step
                    bits = _bits_of(x, item, y, place, sign)
                    largest = max(largest, bits & MAGNITUDE)
                    above, below, rest = split(
                        double_of(bits), double_of(exponent + FIRST), double_of(exponent + SECOND)
                    )
                    high += above
                    low += below
                    if pairs > 1:
                        above, below, rest = split(
                            double_of(rest),
                            double_of(below_it + FIRST),
                            double_of(below_it + SECOND),
                        )
                        third += above
                        fourth += below
                    left |= rest
                scratch[_NEW + lane], scratch[_NEW + _STRIDE + lane] = high, low
                if pairs > 1:
                    scratch[_NEW + 2 * _STRIDE + lane] = third
                    scratch[_NEW + 3 * _STRIDE + lane] = fourth
                scratch[_LARGEST + lane], scratch[_LEFT + lane] = largest, left
        fails = np.int64(0)
        for lane in range(lanes):
            fails |= scratch[_LEFT + lane] & MAGNITUDE
            fails |= (scratch[_LARGEST + lane] & FIELD) > scratch[EXPONENT + lane]
        if fails:
            return 0
        for level in range(levels):
            for lane in range(lanes):
                scratch[HIGH + level * _STRIDE + lane] += scratch[_NEW + level * _STRIDE + lane]
        return 1

    return add


_add_rows, _add_wide_rows, _add_rows_of_parts = _adding(1, 1), _adding(1, 2), _adding(2, 1)


@loop
def _fall_short(out: Any, count: int) -> Any:
    """Write short states that hold nothing."""
    for i in range(count):
        out[2 * i], out[2 * i + 1] = 0, MISFIT
    return np.int64(FALLS_SHORT)


@loop
def _add_columns(
    x: Any, y: Any, negates: int, k0: int, t0: int, u0: int, k1: int, t1: int, u1: int,
    n0: int, s0: int, v0: int, n1: int, s1: int, v1: int, scratch: Any, out: Any, wanted: int,
) -> Any:  # fmt: skip
    """Add up items of several sums at a time."""
    n = n0 * n1
    # Of what lies side by side a chunk has as much as may be.
    width = WIDEST if t1 <= s1 else min(WIDEST, max(_NARROWEST, _ITEMS // n))
    inner = min(k1, width)
    outer = 1 if s1 == k1 * t1 and n1 >= LONG else min(k0, width // inner)
    words = scratch if wanted else out
    told = np.int64(0)
    for g in range(0, k0, outer):
        some = min(outer, k0 - g)
        for c in range(0, k1, inner):
            few = min(inner, k1 - c)
            columns, to = some * few, g * k1 + c
            at, by = g * t0 + c * t1, g * u0 + c * u1
            base = _SUMS if wanted else to * WORDS
            depth = min(n, _ITEMS // columns)
            folds = 1
            while columns * folds < _NARROWEST and folds < depth:
                folds *= 2
            lanes = columns * folds
            is_near = some == folds == 1 and (t1 == u1 == 1 or t1 == u1 == 2)
            for lane in range(lanes):
                scratch[EXPONENT + lane] = _LOWEST
                scratch[HIGH + lane] = scratch[LOW + lane] = 0
            scratch[_DEPTH] = 1
            is_clear = 1 if wanted else 0
            count = 0
            # Both parts of complex numbers are taken while they are in a cache.
            halves = 2 if n0 == 2 and n1 >= depth else 1
            whole = n // halves
            for i in range((whole + depth - 1) // depth * halves):
                begin = i // halves * depth
                rows = min(depth, whole - begin)
                first = i % halves * n1 + begin
                i0 = first // n1
                i1 = first - i0 * n1
                if (
                    is_near and i and rows % 4 == 0 and i1 + rows <= n1
                    and count + rows <= MOST_ITEMS and scratch[_DEPTH] < 3
                ):  # fmt: skip
                    # Mostly levels are where they were, so that no largest items are needed.
                    item, other = at + i0 * s0 + i1 * s1, by + i0 * v0 + i1 * v1
                    sign = (i0 & negates) << 63
                    added = 0
                    if t1 == 1 and scratch[_DEPTH] == 2:
                        added = _add_wide_rows(
                            x, item, s1, y, other, v1, sign, rows, columns, scratch
                        )
                    elif t1 == 1:
                        added = _add_rows(x, item, s1, y, other, v1, sign, rows, columns, scratch)
                    elif scratch[_DEPTH] == 1:
                        added = _add_rows_of_parts(
                            x, item, s1, y, other, v1, sign, rows, columns, scratch
                        )
                    if added:
                        count += rows
                        continue
                _load(
                    x, at, y, by, negates, first, rows, n1, s0, v0, s1, v1, some, t0, u0, few, t1,
                    u1, scratch,
                )  # fmt: skip
                deep = (rows + 4 * folds - 1) // (4 * folds) * 4
                for j in range(CHUNK + rows * columns, CHUNK + deep * lanes):
                    scratch[j] = 0
                count += rows
                is_clear = _add_chunk(scratch, deep, columns, lanes, words, base, is_clear, count)
                count = rows if count > MOST_ITEMS else count
                if wanted == 3 and scratch[_DEPTH] > 1:
                    return _fall_short(out, k0 * k1)
            if is_clear:
                half = lanes // 2
                while half >= columns:
                    for i in range(half):
                        scratch[HIGH + i] += scratch[HIGH + half + i]
                        scratch[LOW + i] += scratch[LOW + half + i]
                    half //= 2
                _finish_lanes(scratch, columns, wanted - 1, out, to)
            else:
                for lane in range(lanes):
                    _add_lane(scratch, lane, words, base + lane % columns * WORDS)
                if wanted:
                    told |= round_all(scratch, _SUMS, columns, wanted - 1, out, to)
    return told


# --- lines ---------------------------------------------------------------------------------------


@loop
def _add_levels_of(scratch: Any, count: int, first: float, second: float) -> Any:
    high = low = left = np.int64(0)
    for i in range(count):
        above, below, rest = split(double_of(scratch[CHUNK + i]), first, second)
        scratch[CHUNK + i] = rest
        high += above
        low += below
        left |= rest
    return high, low, left & MAGNITUDE


@loop
def _add_directly(
    x: Any, at: int, y: Any, by: int, sign: int, count: int, first: float, second: float
) -> Any:
    """Add up both levels of items side by side, or products; return the largest magnitude also."""
    high = low = left = largest = np.int64(0)
    for i in range(count):
        bits = _bits_of(x, at + i, y, by + i, sign)
        largest = max(largest, bits & MAGNITUDE)
        above, below, rest = split(double_of(bits), first, second)
        high += above
        low += below
        left |= rest
    return high, low, left & MAGNITUDE, largest & FIELD


def _bringing(turn: int) -> Any:
    """Return the loop that brings parts by which others are multiplied, the second ones negated.

    With `turn` of 1 those of each number change places.
    """

    @loop
    def bring(y: Any, by: int, sign: int, scratch: Any, count: int) -> None:
        for i in range(0, count, 2):
            scratch[_TURNED + i] = bits_of(double_of(y[by + i + turn]))
            scratch[_TURNED + i + 1] = bits_of(double_of(y[by + i + 1 - turn])) ^ sign

    return bring


_bring, _bring_turned = _bringing(0), _bringing(1)


@loop
def _move_lane(scratch: Any, lane: int, words: Any, base: int, is_clear: int) -> int:
    """Move the integers of a lane to words, which are cleared first; return that they are not."""
    if is_clear:
        clear(words, base, 1)
    _add_lane(scratch, lane, words, base)
    return 0


@loop
def _add_lines(
    x: Any, y: Any, negates: int, k0: int, t0: int, u0: int, k1: int, t1: int, u1: int,
    n0: int, s0: int, v0: int, n: int, s1: int, v1: int, scratch: Any, out: Any, wanted: int,
) -> Any:  # fmt: skip
    """Add up items of one sum after the other."""
    words = scratch if wanted else out
    ahead = _EXPONENT_MARGIN if n0 > 1 or n > _LINE else 0
    told = np.int64(0)
    are_parts = y is not None and n0 == 2 and s0 == 1 and abs(v0) == 1 and s1 == v1 == 2
    start = 0
    if are_parts:  # both at once
        n0, n, s1, v1, start = 1, 2 * n, 1, 1, min(v0, 0)
    guess = np.int64(_LOWEST)
    beyond = np.int64(0)  # what two levels have left last
    scratch[_DEPTH] = 1
    lane = 0  # of this sum; those below have all of theirs
    for to in range(k0 * k1):
        at, by = to // k1 * t0 + to % k1 * t1, start + to // k1 * u0 + to % k1 * u1
        base = _SUMS if wanted else to * WORDS
        is_clear = 1 if wanted else 0
        exponent = np.int64(_LOWEST)
        scratch[EXPONENT + lane] = exponent
        scratch[HIGH + lane] = scratch[LOW + lane] = 0
        total = 0
        for j in range(n0):
            sign = ((j | are_parts) & negates) << 63
            for first in range(0, n, _LINE):
                count = min(_LINE, n - first)
                item, other = at + j * s0 + first * s1, by + j * v0 + first * v1
                total += count
                if total > max(count, MOST_ITEMS):
                    is_clear = _move_lane(scratch, lane, words, base, is_clear)
                    total = count
                # Mostly levels are where those before were, so that no largest item is needed.
                level = guess if total == count else exponent
                left, largest = np.int64(1), np.int64(0)
                one, two = level + FIRST, level + SECOND
                if y is not None and are_parts and (to == 0 or u0 | u1 or n > _LINE):
                    if v0 > 0:
                        _bring(y, other, sign, scratch, count)
                    else:
                        _bring_turned(y, other, sign, scratch, count)
                if level > _LOWEST and not beyond and s1 == v1 == 1:
                    if y is not None and are_parts:
                        high, low, left, largest = _add_directly(
                            x, item, scratch, _TURNED, 0, count, double_of(one), double_of(two)
                        )
                    else:
                        high, low, left, largest = _add_directly(
                            x, item, y, other, sign, count, double_of(one), double_of(two)
                        )
                if not left and largest <= level:
                    exponent = level
                    scratch[EXPONENT + lane] = exponent
                    scratch[HIGH + lane] += high - count * one
                    scratch[LOW + lane] += low - count * two
                    continue
                if y is not None and are_parts:
                    largest = _fetch(x, item, scratch, _TURNED, 0, scratch, CHUNK, count)
                elif s1 == v1 == 1:
                    largest = _fetch(x, item, y, other, sign, scratch, CHUNK, count)
                else:
                    largest = _fetch_apart(
                        x, item, s1, y, other, v1, sign, scratch, CHUNK, 1, count
                    )
                largest &= FIELD
                if total > count and largest > exponent:
                    is_clear = _move_lane(scratch, lane, words, base, is_clear)
                    total = count
                if largest > _HUGE:
                    is_clear = _move_lane(scratch, lane, words, base, is_clear)
                    _take_huge(scratch, count, 1, 1, words, base)
                    largest = np.int64(0)
                    for i in range(count):
                        largest = max(largest, scratch[CHUNK + i] & FIELD)
                if largest > exponent:
                    exponent = largest + ahead
                    scratch[EXPONENT + lane] = exponent
                    guess = exponent + _EXPONENT_MARGIN
                one, two = exponent + FIRST, exponent + SECOND
                high, low, left = _add_levels_of(scratch, count, double_of(one), double_of(two))
                scratch[HIGH + lane] += high - count * one
                scratch[LOW + lane] += low - count * two
                beyond = left
                if left and wanted == 3:
                    return _fall_short(out, k0 * k1)
                if left and is_clear:
                    clear(words, base, 1)
                    is_clear = 0
                level = exponent
                while left:
                    level = _below(level, 1)
                    if level > _LOWEST and largest <= _below(level, 1):
                        continue
                    one, two = level + FIRST, level + SECOND
                    high, low, left = _add_levels_of(scratch, count, double_of(one), double_of(two))
                    add_shifted(words, base, (level >> 52) + 2, high - count * one)
                    add_shifted(words, base, (level >> 52) + 2 - LEVEL, low - count * two)
        if not is_clear:
            _add_lane(scratch, lane, words, base)
            if wanted:
                told |= round_all(scratch, _SUMS, 1, wanted - 1, out, to)
        lane += is_clear
        if lane == WIDEST or (wanted and (not is_clear or to == k0 * k1 - 1)):
            _finish_lanes(scratch, lane, wanted - 1, out, to + is_clear - lane)
            lane = 0
    return told


# --- kernels -------------------------------------------------------------------------------------

_ITEM: Final = {"f4": "CPointer(float32)", "f8": "CPointer(float64)"}
_NEST: Final = ", ".join(["int64"] * 13)
_RESULT: Final = "CPointer(int64), CPointer(int64), int64"


def _source(add: Any, kind: str, multiplies: bool) -> Source:
    def run(
        x: Any, y: Any, negates: int, k0: int, t0: int, u0: int, k1: int, t1: int, u1: int,
        n0: int, s0: int, v0: int, n1: int, s1: int, v1: int, scratch: Any, out: Any, wanted: int,
    ) -> int:  # fmt: skip
        told: int = add(
            x, y if multiplies else None, negates, k0, t0, u0, k1, t1, u1, n0, s0, v0, n1, s1, v1,
            scratch, out, wanted,
        )  # fmt: skip
        return told

    return Source(run, f"int64({_ITEM[kind]}, {_ITEM[kind]}, {_NEST}, {_RESULT})")


def add_columns(kind: str, multiplies: bool) -> Source:
    """Return the kernel that adds up items of a kind, "f4" or "f8", of several sums at a time.

    Or products of two, each of which it rounds to float64. The arguments: the items; other ones;
    whether every second product is negated, as the first axis goes; how many sums there are, in two
    axes, and how many items a sum has, as well, the smaller stride last of each: each length with
    the strides of both items, in items; scratch memory; the results, and which: 0 adds to words, 1
    stores bits of rounded sums, 2 of sums rounded to odd, 3 short states. It returns what it has to
    tell.
    """
    return _source(_add_columns, kind, multiplies)


def add_lines(kind: str, multiplies: bool) -> Source:
    """Return the kernel that adds up items, or products, of one sum after the other.

    It is a kernel of its own, as to compile one takes seconds, and takes what `add_columns` does.
    """
    return _source(_add_lines, kind, multiplies)


def round_words() -> Source:
    """Return the kernel that rounds sums, whose words it changes.

    The arguments: the words, how many sums, where their bits go, and whether they are rounded to
    odd; with 2 instead of 1 they become short states. It returns what it has to tell.
    """

    def round_them(words: Any, count: int, sums: Any, how: int) -> int:
        return round_all(words, 0, count, how, sums, 0)

    return Source(round_them, "int64(CPointer(int64), int64, CPointer(int64), int64)")


def round_states() -> Source:
    """Return the kernel that adds up short states of several blocks and rounds the sums.

    The arguments: the states, the words from one block's to the next one's, how many blocks and
    sums there are, scratch memory, where the bits go, and whether they are rounded to odd. It
    returns what it has to tell; nothing else where some state is none.
    """
    return Source(
        _round_states,
        "int64(CPointer(int64), int64, int64, int64, CPointer(int64), CPointer(int64), int64)",
    )
