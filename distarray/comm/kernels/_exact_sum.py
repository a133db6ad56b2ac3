"""Numba kernels that add up items exactly, and round such sums once.

Every sum has a lane of two integers, the levels of `core/families/_exact_sums`: multiples of units
2**50 and 2**101 below a power of two that no item so far exceeds. Items come in chunks, rows of
items of different sums that stay in a cache: the largest magnitude of each lane first, then both
levels in one loop, which the processor's vectors take. Where an item exceeds all before, what the
lane has goes into the digits of a fixed-point number; so does what both levels leave of items far
smaller than the largest, and all of a chunk, one item after the other, where some are huge or not
finite. Where there are no digits the integers are rounded at once.

A chunk is copied to scratch memory first, so that one loop serves items that lie in any way; of few
sums several rows are one, whose lanes are merged at the end. Where the items of one sum lie side by
side, or products of such are added up, another kernel takes one sum after the other.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.comm.kernels._exact_digits import (
    FIELD,
    MAGNITUDE,
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

_LEVEL: Final = 51
"""Bits from a level to the next. An integer of the first is 2**50 at most, as its unit is 2**50
below a power of two that no item exceeds; of the second as well, since half a unit is left."""
_MOST_ITEMS: Final = 4096
"""Items of a sum whose integers are added up. Of 2**50 each they come to 2**62."""
_LOWEST: Final = 49 << 52
"""Least exponent of a lane, so that units of its second level are not below that of the digits."""
_HUGE: Final = 2000 << 52
"""Items with larger exponents could make a level, or a sum of a lane, too large for float64."""
_EXPONENT_MARGIN: Final = 4 << 52
"""By how much exponents of lanes are above what the items need, as larger ones may follow."""
_FIRST: Final = (3 << 52) | (1 << 51)
_SECOND: Final = _FIRST - (_LEVEL << 52)
"""What makes bits of 1.5 * 2**52 units of each level from an exponent."""

_WIDEST: Final = 256
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
_STRIDE: Final = _WIDEST + 8
_LARGEST: Final = 0
_EXPONENT: Final = _STRIDE
_HIGH: Final = 2 * _STRIDE
_LOW: Final = 3 * _STRIDE
_LEFT: Final = 4 * _STRIDE
_CHUNK: Final = 5 * _STRIDE
_SUMS: Final = _CHUNK + _ITEMS + 4 * _WIDEST
SCRATCH: Final = _SUMS + _WIDEST * WORDS
"""Words of scratch memory."""


@loop
def _round_lanes(scratch: Any, columns: int, to_odd: int, sums: Any, at: int) -> None:
    """Round the sums of lanes that have all of them.

    The integers make one, of which two parts are exact in float64: so their sum is rounded once.
    """
    for c in range(columns):
        low = scratch[_LOW + c]
        high = scratch[_HIGH + c] + (low >> _LEVEL)
        low &= (1 << _LEVEL) - 1
        # Few enough bits and all of them count; else all below the last one are as good as half.
        is_short = -(1 << 55) < high < 1 << 55
        cut = high & (3 if is_short else 1023)
        above = float(high - cut)
        below = float((cut << _LEVEL) + low) * power(-_LEVEL)
        rough = float(cut) + (0.5 if low else 0.0)
        below = below if is_short else rough
        total = above + below
        if to_odd:
            total = cut_to_odd(total, below - (total - above))
        # The unit of the first level is 2**-49 of what has this exponent; both steps are exact.
        sums[at + c] = bits_of(total * power(-49) * double_of(scratch[_EXPONENT + c]))


# --- chunks --------------------------------------------------------------------------------------


@loop
def _copy_run(x: Any, at: int, step: int, scratch: Any, to: int, pitch: int, count: int) -> None:
    """Bring items at equal distances to scratch memory."""
    for i in range(count):
        scratch[to + i * pitch] = bits_of(float(x[at + i * step]))


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
    x: Any, at: int, first: int, rows: int, n1: int, s0: int, s1: int, outer: int, t0: int,
    inner: int, t1: int, scratch: Any,
) -> None:  # fmt: skip
    """Bring `rows` items, from number `first` on, of `outer * inner` sums to scratch memory."""
    columns = outer * inner
    done, to = 0, _CHUNK
    while done < rows:
        i0 = (first + done) // n1
        i1 = first + done - i0 * n1
        run = min(n1 - i1, rows - done)
        start = at + i0 * s0 + i1 * s1
        done += run
        pitch, few = columns, inner
        if t1 == 1 and s1 == columns == inner:  # a run is one row
            run, pitch, few = 1, run * inner, run * inner
        for _ in range(outer):
            c = 0
            if t1 <= s1:
                for i in range(run):
                    if i + _PREFETCH_ROWS < n1 - i1:
                        item = start + (i + _PREFETCH_ROWS) * s1
                        for j in range(item, item + few * t1, 8):
                            prefetch_item(x, j)
                    if t1 == 1:
                        _copy_run(x, start + i * s1, 1, scratch, to + i * pitch, 1, few)
                    else:
                        _copy_run(x, start + i * s1, t1, scratch, to + i * pitch, 1, few)
                c = few
            while c + 8 <= few:
                _turn_eight(x, start + c * t1, t1, s1, scratch, to + c, pitch, run)
                c += 8
            while c < few:
                _copy_run(x, start + c * t1, s1, scratch, to + c, pitch, run)
                c += 1
            start += t0
            to += few
        to += (run - 1) * pitch


@loop
def _find_largest(scratch: Any, rows: int, lanes: int) -> None:
    """Find the bits of the largest magnitude in each lane."""
    for lane in range(lanes):
        scratch[_LARGEST + lane] = 0
    for at in range(_CHUNK, _CHUNK + rows * lanes, 4 * lanes):
        for lane in range(lanes):
            largest = scratch[_LARGEST + lane]
            for i in range(4):
                largest = max(largest, scratch[at + i * lanes + lane] & MAGNITUDE)
            scratch[_LARGEST + lane] = largest


@loop
def _add_high(scratch: Any, rows: int, lanes: int) -> None:
    """Add up the first level of each lane, and see what is left."""
    for lane in range(lanes):
        scratch[_HIGH + lane] -= rows * (scratch[_EXPONENT + lane] + _FIRST)
        scratch[_LEFT + lane] = 0
    for at in range(_CHUNK, _CHUNK + rows * lanes, 4 * lanes):
        for lane in range(lanes):
            first = double_of(scratch[_EXPONENT + lane] + _FIRST)
            high, left = scratch[_HIGH + lane], scratch[_LEFT + lane]
            for i in range(4):
                item = double_of(scratch[at + i * lanes + lane])
                above = item + first
                high += bits_of(above)
                left |= bits_of(item - (above - first))
            scratch[_HIGH + lane], scratch[_LEFT + lane] = high, left


@loop
def _add_low(scratch: Any, rows: int, lanes: int, mask: int) -> None:
    """Add up the second level of each lane, the first one with a mask of -1, and see what is left.

    The mask is 0 where the first level has been added up before.
    """
    for lane in range(lanes):
        exponent = scratch[_EXPONENT + lane]
        scratch[_HIGH + lane] -= rows * (exponent + _FIRST) & mask
        scratch[_LOW + lane] -= rows * (exponent + _SECOND)
        scratch[_LEFT + lane] = 0
    for at in range(_CHUNK, _CHUNK + rows * lanes, 4 * lanes):
        for lane in range(lanes):
            first = double_of(scratch[_EXPONENT + lane] + _FIRST)
            second = double_of(scratch[_EXPONENT + lane] + _SECOND)
            high = np.int64(0)
            low, left = scratch[_LOW + lane], scratch[_LEFT + lane]
            for i in range(4):
                item = double_of(scratch[at + i * lanes + lane])
                above = item + first
                high += bits_of(above)
                item -= above - first
                above = item + second
                low += bits_of(above)
                left |= bits_of(item - (above - second))
            scratch[_HIGH + lane] += high & mask
            scratch[_LOW + lane], scratch[_LEFT + lane] = low, left


@loop
def _add_lane(scratch: Any, lane: int, words: Any, base: int) -> None:
    """Move the integers of a lane to words."""
    place = (scratch[_EXPONENT + lane] >> 52) + 2
    add_shifted(words, base, place, scratch[_HIGH + lane])
    add_shifted(words, base, place - _LEVEL, scratch[_LOW + lane])
    scratch[_HIGH + lane] = scratch[_LOW + lane] = 0


@loop
def _add_rest(
    scratch: Any, at: int, pitch: int, rows: int, exponent: int, words: Any, base: int
) -> None:
    """Add what both levels leave of each item to words; all of it where there is no exponent."""
    first, second = double_of(exponent + _FIRST), double_of(exponent + _SECOND)
    for row in range(rows):
        item = double_of(scratch[_CHUNK + at + row * pitch])
        if exponent:
            item -= (item + first) - first
            item -= (item + second) - second
        if item != 0.0:
            add_item(words, base, bits_of(item))


@loop
def _left_of(scratch: Any, lanes: int) -> Any:
    left = np.int64(0)
    for lane in range(lanes):
        left |= scratch[_LEFT + lane]
    return left & MAGNITUDE


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
        has = scratch[_HIGH + lane] | scratch[_LOW + lane]
        grows |= has if scratch[_LARGEST + lane] > scratch[_EXPONENT + lane] else 0
    return largest, grows != 0


@loop
def _add_chunk(
    scratch: Any, rows: int, columns: int, lanes: int, is_narrow: int, words: Any, base: int,
    is_clear: int, count: int,
) -> int:  # fmt: skip
    """Add rows of items to their lanes; return whether no words were needed so far, and clear."""
    _find_largest(scratch, rows, lanes)
    largest, grows = _find_exponents(scratch, columns, lanes)
    is_huge = largest > _HUGE
    left = np.int64(0)
    if grows or is_huge or count > _MOST_ITEMS:
        if is_clear:
            clear(words, base, columns)
            is_clear = 0
        for lane in range(lanes):
            _add_lane(scratch, lane, words, base + lane % columns * WORDS)
    if not is_huge:
        for lane in range(lanes):
            exponent, largest = scratch[_EXPONENT + lane], scratch[_LARGEST + lane]
            scratch[_EXPONENT + lane] = (
                largest + _EXPONENT_MARGIN if largest > exponent else exponent
            )
        if is_narrow:
            _add_high(scratch, rows, lanes)
            left = _left_of(scratch, lanes)
        if left or not is_narrow:
            _add_low(scratch, rows, lanes, 0 if is_narrow else -1)
            left = _left_of(scratch, lanes)
    if left or is_huge:
        if is_clear:
            clear(words, base, columns)
            is_clear = 0
        for lane in range(lanes):
            if is_huge or scratch[_LEFT + lane] & MAGNITUDE:
                exponent = 0 if is_huge else scratch[_EXPONENT + lane]
                to = base + lane % columns * WORDS
                _add_rest(scratch, lane, lanes, rows, exponent, words, to)
    return is_clear


@loop
def _add_columns(
    x: Any, k0: int, t0: int, k1: int, t1: int, n0: int, s0: int, n1: int, s1: int,
    is_narrow: int, scratch: Any, out: Any, wanted: int,
) -> Any:  # fmt: skip
    """Add up items of several sums at a time."""
    n = n0 * n1
    # Of what lies side by side a chunk has as much as may be.
    width = _WIDEST if t1 <= s1 else min(_WIDEST, max(_NARROWEST, _ITEMS // n))
    inner = min(k1, width)
    outer = 1 if s1 == k1 * t1 and n1 >= LONG else min(k0, width // inner)
    words = scratch if wanted else out
    told = np.int64(0)
    for g in range(0, k0, outer):
        some = min(outer, k0 - g)
        for c in range(0, k1, inner):
            few = min(inner, k1 - c)
            columns, to, at = some * few, g * k1 + c, g * t0 + c * t1
            base = _SUMS if wanted else to * WORDS
            depth = min(n, _ITEMS // columns)
            folds = 1
            while columns * folds < _NARROWEST and folds < depth:
                folds *= 2
            lanes = columns * folds
            for lane in range(lanes):
                scratch[_EXPONENT + lane] = _LOWEST
                scratch[_HIGH + lane] = scratch[_LOW + lane] = 0
            is_clear = 1 if wanted else 0
            count = 0
            for first in range(0, n, depth):
                rows = min(depth, n - first)
                _load(x, at, first, rows, n1, s0, s1, some, t0, few, t1, scratch)
                deep = (rows + 4 * folds - 1) // (4 * folds) * 4
                for i in range(_CHUNK + rows * columns, _CHUNK + deep * lanes):
                    scratch[i] = 0
                count += rows
                is_clear = _add_chunk(
                    scratch, deep, columns, lanes, is_narrow, words, base, is_clear, count
                )
                count = rows if count > _MOST_ITEMS else count
            if is_clear:
                half = lanes // 2
                while half >= columns:
                    for i in range(half):
                        scratch[_HIGH + i] += scratch[_HIGH + half + i]
                        scratch[_LOW + i] += scratch[_LOW + half + i]
                    half //= 2
                _round_lanes(scratch, columns, wanted - 1, out, to)
            else:
                for lane in range(lanes):
                    _add_lane(scratch, lane, words, base + lane % columns * WORDS)
                if wanted:
                    told |= round_all(scratch, _SUMS, columns, wanted - 1, out, to)
    return told


# --- lines ---------------------------------------------------------------------------------------


@loop
def _fetch(x: Any, at: int, scratch: Any, count: int) -> Any:
    """Bring items that lie side by side to scratch memory; return the largest magnitude's bits."""
    largest = np.int64(0)
    for i in range(count):
        bits = bits_of(float(x[at + i]))
        scratch[_CHUNK + i] = bits
        largest = max(largest, bits & MAGNITUDE)
    return largest


@loop
def _fetch_products(x: Any, y: Any, at: int, scratch: Any, count: int) -> Any:
    largest = np.int64(0)
    for i in range(count):
        bits = bits_of(np.float64(x[at + i]) * np.float64(y[at + i]))
        scratch[_CHUNK + i] = bits
        largest = max(largest, bits & MAGNITUDE)
    return largest


@loop
def _fetch_apart(x: Any, at: int, step: int, scratch: Any, count: int) -> Any:
    largest = np.int64(0)
    for i in range(count):
        bits = bits_of(float(x[at + i * step]))
        scratch[_CHUNK + i] = bits
        largest = max(largest, bits & MAGNITUDE)
    return largest


@loop
def _add_high_of(scratch: Any, count: int, first: float) -> Any:
    high = left = np.int64(0)
    for i in range(count):
        item = double_of(scratch[_CHUNK + i])
        above = item + first
        high += bits_of(above)
        left |= bits_of(item - (above - first))
    return high, left


@loop
def _add_levels_of(scratch: Any, count: int, first: float, second: float) -> Any:
    high = low = left = np.int64(0)
    for i in range(count):
        item = double_of(scratch[_CHUNK + i])
        above = item + first
        high += bits_of(above)
        item -= above - first
        above = item + second
        low += bits_of(above)
        left |= bits_of(item - (above - second))
    return high, low, left


@loop
def _add_lines(
    x: Any, y: Any, k0: int, t0: int, k1: int, t1: int, n0: int, s0: int, n: int, s1: int,
    multiplies: int, is_narrow: int, scratch: Any, out: Any, wanted: int,
) -> Any:  # fmt: skip
    """Add up items of one sum after the other."""
    words = scratch if wanted else out
    ahead = _EXPONENT_MARGIN if n0 > 1 or n > _LINE else 0
    told = np.int64(0)
    lane = 0  # of this sum; those below have all of theirs
    for to in range(k0 * k1):
        at = to // k1 * t0 + to % k1 * t1
        base = _SUMS if wanted else to * WORDS
        is_clear = 1 if wanted else 0
        exponent = np.int64(_LOWEST)
        scratch[_EXPONENT + lane] = exponent
        scratch[_HIGH + lane] = scratch[_LOW + lane] = 0
        total = 0
        for j in range(n0):
            for first in range(0, n, _LINE):
                count = min(_LINE, n - first)
                item = at + j * s0 + first * s1
                if multiplies:
                    largest = _fetch_products(x, y, item, scratch, count)
                elif s1 == 1:
                    largest = _fetch(x, item, scratch, count)
                else:
                    largest = _fetch_apart(x, item, s1, scratch, count)
                largest &= FIELD
                total += count
                is_huge = largest > _HUGE
                if total > count and (largest > exponent or total > _MOST_ITEMS):
                    if is_clear:
                        clear(words, base, 1)
                        is_clear = 0
                    _add_lane(scratch, lane, words, base)
                    total = count
                left = np.int64(1)
                if not is_huge:
                    if largest > exponent:
                        exponent = largest + ahead
                        scratch[_EXPONENT + lane] = exponent
                    one, two = exponent + _FIRST, exponent + _SECOND
                    if is_narrow:
                        high, left = _add_high_of(scratch, count, double_of(one))
                        left &= MAGNITUDE
                        low = count * two
                    if left:
                        high, low, left = _add_levels_of(
                            scratch, count, double_of(one), double_of(two)
                        )
                        left &= MAGNITUDE
                    scratch[_HIGH + lane] += high - count * one
                    scratch[_LOW + lane] += low - count * two
                if left:
                    if is_clear:
                        clear(words, base, 1)
                        is_clear = 0
                    _add_rest(scratch, 0, 1, count, 0 if is_huge else exponent, words, base)
        if not is_clear:
            _add_lane(scratch, lane, words, base)
            if wanted:
                told |= round_all(scratch, _SUMS, 1, wanted - 1, out, to)
        lane += is_clear
        if lane == _WIDEST or (wanted and (not is_clear or to == k0 * k1 - 1)):
            _round_lanes(scratch, lane, wanted - 1, out, to + is_clear - lane)
            lane = 0
    return told


# --- kernels -------------------------------------------------------------------------------------

_ITEM: Final = {"f4": "CPointer(float32)", "f8": "CPointer(float64)"}
_NEST: Final = ", ".join(["int64"] * 8)
_RESULT: Final = "CPointer(int64), CPointer(int64), int64"


def add_columns(kind: str) -> Source:
    """Return the kernel that adds up items of a kind, "f4" or "f8", of several sums at a time.

    The arguments: the items; how many sums there are, in two axes, and the strides between their
    items, in items; how many items a sum has, and their strides, as well, the smaller stride last
    of each; scratch memory; the results, and which: 0 adds to words, 1 stores bits of rounded sums,
    2 of sums rounded to odd. It returns what it has to tell.
    """
    # One level is enough for float32, but where items differ by 2**26.
    is_narrow = 1 if kind == "f4" else 0

    def add(
        x: Any, k0: int, t0: int, k1: int, t1: int, n0: int, s0: int, n1: int, s1: int,
        scratch: Any, out: Any, wanted: int,
    ) -> int:  # fmt: skip
        told: int = _add_columns(x, k0, t0, k1, t1, n0, s0, n1, s1, is_narrow, scratch, out, wanted)
        return told

    return Source(add, f"int64({_ITEM[kind]}, {_NEST}, {_RESULT})")


def add_lines(kind: str) -> Source:
    """Return the kernel that adds up items, or products of two, of one sum after the other.

    It is a kernel of its own, as to compile one takes seconds. The arguments: the items, other ones
    that lie as they do, whether to multiply them, in which case the smallest stride is 1, and what
    `add_columns` takes.
    """
    is_narrow = 1 if kind == "f4" else 0

    def add(
        x: Any, y: Any, multiplies: int, k0: int, t0: int, k1: int, t1: int,
        n0: int, s0: int, n1: int, s1: int, scratch: Any, out: Any, wanted: int,
    ) -> int:  # fmt: skip
        is_short = is_narrow if not multiplies else 0
        told: int = _add_lines(
            x, y, k0, t0, k1, t1, n0, s0, n1, s1, multiplies, is_short, scratch, out, wanted
        )
        return told

    return Source(add, f"int64({_ITEM[kind]}, {_ITEM[kind]}, int64, {_NEST}, {_RESULT})")


def round_words() -> Source:
    """Return the kernel that rounds sums, whose words it changes.

    The arguments: the words, how many sums, where their bits go, and whether they are rounded to
    odd. It returns what it has to tell.
    """

    def round_them(words: Any, count: int, sums: Any, to_odd: int) -> int:
        return round_all(words, 0, count, to_odd, sums, 0)

    return Source(round_them, "int64(CPointer(int64), int64, CPointer(int64), int64)")
