"""Kernels of `numba.cuda` that copy boxes of device memory and reduce those of several ranks.

One launch serves any number of boxes, of any blocks: to a kernel all memory is one array of words,
or of the items that it reduces, and a table of int64 tells where in it the boxes lie:

- the number of the first tile of each box, and the number of all tiles;
- a record for each box (see `VOLUME` and below). It has three axes, the innermost first.

A block of threads finds the box of its tile by bisection, and goes on with a later tile until none
is left. A thread has several items on their way at once. What finds an item is short, as it takes
longer than its way to memory and back: nothing is divided but by multiplying (see `divisor`), and
boxes without gaps have kernels of their own.

Long rows are copied by words of 16 bytes, as they lie in the destination, whatever lies in them: a
thread reads the words of 8 bytes around what belongs into such a word, and shifts. Measured on an
H100, as shares of a device copy: 84 to 97 %, of any items; one item a thread 10 to 82 %.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from distarray.comm.cuda._launch import threads
from distarray.comm.cuda._numba import (
    bits_of_single,
    cuda,
    device,
    load_word,
    single_of,
    store,
    store_two,
)

AXES: Final = 3
"""Axes of a box, all of them given; those that are not needed have one item."""

EACH: Final = 4
"""Items of a tile for each thread."""

EACH_FLAT: Final = 8
"""The same of boxes without gaps, where fewer registers find an item.

Measured on an H100, as shares of a device copy: 81 to 102 %, where the other way takes 24 to 61 %.
"""

WORD: Final = 16
"""Bytes of a word of a row, which a thread stores at once."""

WORDS: Final = 4
"""Words of a tile for each thread; measured on an H100: fewer or more differ by 3 % at most."""

_THREADS: Final = threads()

SIDE: Final = min(64, _THREADS)
"""Items along both sides of a tile of a transposed box."""

_PITCH: Final = SIDE + 1  # so that a column lies in all banks of shared memory
_STEP: Final = _THREADS // SIDE  # lines of a tile at once
_LINES: Final = SIDE // _STEP  # of a thread, whose items are on their way together

# Entries of a record.
VOLUME: Final = 0
KIND: Final = 1
"""Of a copy, whether it is transposed; of rows, their bytes; of a reduction, how many sources."""
EXTENTS: Final = 2
"""Items along the innermost axis and the next, each with its `divisor`."""
DST: Final = EXTENTS + 6
"""Where the destination begins, and its strides: in bytes of rows, else items; sources follow."""
ARRAY: Final = 1 + AXES
SRC: Final = DST + ARRAY
COPY: Final = SRC + ARRAY
"""Entries of a copy."""

_u64 = np.uint64
_ZERO, _ONE = _u64(0), _u64(1)


def divisor(n: int) -> tuple[int, int]:
    """Return a factor and a shift: ``i // n == (2 * i * factor >> 32) >> shift``, i below 2**31.

    After T. Granlund and P. L. Montgomery, "Division by invariant integers using multiplication",
    PLDI '94; twice i and the factor have 32 bits.
    """
    shift = (n - 1).bit_length()
    return -(-(1 << (31 + shift)) // n), shift


@device
def _entry(table: Any, i: int) -> Any:
    """Return an entry of a table; Numba looks whether a signed index counts from the end."""
    return table[_u64(i)]


@device
def _box_of(table: Any, boxes: int, tile: int) -> int:
    """Return the last box whose first tile is not after ``tile``."""
    low = 0
    high = boxes
    while high - low > 1:
        middle = (low + high) >> 1
        if _entry(table, middle) <= tile:
            low = middle
        else:
            high = middle
    return low


@device
def _short(i: int) -> Any:
    """Return a number of 32 bits, so that the compiler knows: it multiplies such in one step."""
    return _u64(np.uint32(i))


@device
def _quotient(i: Any, table: Any, at: int) -> Any:
    """Divide by a number of the table (see `divisor`)."""
    return (_short(i + i) * _short(_entry(table, at + 1)) >> _u64(32)) >> _short(
        _entry(table, at + 2)
    )


@device
def _place(table: Any, record: int, i: Any) -> Any:
    """Return the indices along the three axes of item ``i``."""
    at = record + EXTENTS
    row = _quotient(i, table, at)
    plane = _quotient(row, table, at + 3)
    return i - row * _short(_entry(table, at)), row - plane * _short(_entry(table, at + 3)), plane


@device
def _offset(table: Any, at: int, x: Any, y: Any, z: Any) -> Any:
    """Return where an item of an array is, of which the table tells at ``at``.

    It is unsigned, like an index into a table (see `_entry`): strides below 0 are right as well.
    """
    return (
        _u64(_entry(table, at))
        + x * _u64(_entry(table, at + 1))
        + y * _u64(_entry(table, at + 2))
        + z * _u64(_entry(table, at + 3))
    )


@device
def _clamp(i: Any, last: Any) -> Any:
    return i if i < last else last


@device
def _at_least(i: Any, first: Any) -> Any:
    return i if i > first else first


@device
def _divide(a: int, b: int) -> Any:
    """Divide in 32 bits, which is quicker."""
    return np.int64(np.uint32(a) // np.uint32(b))


@device
def _transpose(memory: Any, table: Any, record: int, part: int) -> None:
    """Copy a tile: rows of the source into shared memory, its columns into the destination."""
    tile = cuda.shared.array((SIDE, _PITCH), memory.dtype)
    held = cuda.local.array(_LINES, memory.dtype)
    columns, rows = _entry(table, record + EXTENTS), _entry(table, record + EXTENTS + 3)
    across, down = (columns + SIDE - 1) // SIDE, (rows + SIDE - 1) // SIDE
    plane = _divide(part, across * down)
    part -= plane * across * down
    row = _divide(part, across)
    first_column, first_row = (part - row * across) * SIDE, row * SIDE
    dst = _offset(table, record + DST, _u64(first_column), _u64(first_row), _u64(plane))
    src = _offset(table, record + SRC, _u64(first_column), _u64(first_row), _u64(plane))
    from_row, to_row = _u64(_entry(table, record + SRC + 1)), _u64(_entry(table, record + DST + 2))
    columns, rows = columns - first_column, rows - first_row
    # What a thread has of a tile differs by constants in shared memory, by one sum in the arrays.
    thread = _short(cuda.threadIdx.x)
    line, along = thread // _u64(SIDE), thread % _u64(SIDE)
    src += along + line * from_row
    dst += along + line * to_row
    inside = columns - np.int64(line) if np.int64(along) < rows else np.int64(0)
    for k in range(_LINES):
        if k * _STEP < inside:
            held[k] = memory[src]
        src += _u64(_STEP) * from_row
    for k in range(_LINES):
        tile[line + _u64(k * _STEP), along] = held[k]
    cuda.syncthreads()
    inside = rows - np.int64(line) if np.int64(along) < columns else np.int64(0)
    for k in range(_LINES):
        if k * _STEP < inside:
            memory[dst] = tile[along, line + _u64(k * _STEP)]
        dst += _u64(_STEP) * to_row
    cuda.syncthreads()


@cuda.jit  # type: ignore[untyped-decorator]
def copy_boxes(memory: Any, table: Any, boxes: int, tiles: int) -> None:
    """Copy all boxes of a table; ``memory`` is an array of words."""
    words = cuda.local.array(EACH, memory.dtype)
    targets = cuda.local.array(EACH, np.uint64)
    threads = _short(cuda.blockDim.x)
    tile = np.int64(cuda.blockIdx.x)
    while tile < tiles:
        box = _box_of(table, boxes, tile)
        record = boxes + 1 + COPY * box
        part = tile - _entry(table, box)
        if _entry(table, record + KIND):
            _transpose(memory, table, record, part)
        else:
            last = _short(_entry(table, record + VOLUME) - 1)
            first = _short(part * EACH) * threads + _short(cuda.threadIdx.x)
            for k in range(EACH):
                x, y, z = _place(table, record, _clamp(_short(first + _u64(k) * threads), last))
                words[k] = memory[_offset(table, record + SRC, x, y, z)]
                targets[k] = _offset(table, record + DST, x, y, z)
            for k in range(EACH):
                if first + _u64(k) * threads <= last:
                    memory[targets[k]] = words[k]
        tile += cuda.gridDim.x


@device
def _join(low: Any, high: Any, bits: Any) -> Any:
    """Return the 64 bits that begin ``bits`` after those of the first of two words."""
    return (low >> bits) | ((high << _ONE) << (_u64(63) - bits))


@device
def _between(i: int, last: Any) -> Any:
    """Return the byte of word ``i``, or of the nearest from 0 to ``last``, of 32 bits."""
    return _u64(_clamp(_at_least(np.int32(i), np.int32(0)), last)) << _u64(3)


@device
def _part(low: Any, high: Any, i: Any) -> Any:
    """Return what begins with byte ``i`` of two words, as far as one of them goes."""
    return (low if i < _u64(8) else high) >> ((i & _u64(7)) << _u64(3))


@device
def _store_part(target: Any, low: Any, high: Any, first: Any, stop: Any) -> None:
    """Store some bytes of a word of a row: words that get larger, then smaller ones."""
    i = _u64(first)
    stop = _u64(stop)
    if i & _u64(1) and i + _u64(1) <= stop:
        store(target + i, np.uint8(_part(low, high, i)))
        i += _u64(1)
    if i & _u64(2) and i + _u64(2) <= stop:
        store(target + i, np.uint16(_part(low, high, i)))
        i += _u64(2)
    if i & _u64(4) and i + _u64(4) <= stop:
        store(target + i, np.uint32(_part(low, high, i)))
        i += _u64(4)
    if i + _u64(8) <= stop:
        store(target + i, _part(low, high, i))
        i += _u64(8)
    if i + _u64(4) <= stop:
        store(target + i, np.uint32(_part(low, high, i)))
        i += _u64(4)
    if i + _u64(2) <= stop:
        store(target + i, np.uint16(_part(low, high, i)))
        i += _u64(2)
    if i < stop:
        store(target + i, np.uint8(_part(low, high, i)))


@cuda.jit  # type: ignore[untyped-decorator]
def copy_rows(table: Any, boxes: int, tiles: int) -> None:
    """Copy boxes whose rows have no gaps, of any items: all places are addresses.

    The innermost axis is that of the words of a row, as many as it touches wherever it begins.
    """
    low = cuda.local.array(WORDS, np.uint64)
    high = cuda.local.array(WORDS, np.uint64)
    targets = cuda.local.array(WORDS, np.uint64)
    starts = cuda.local.array(WORDS, np.int32)
    threads = _short(cuda.blockDim.x)
    tile = np.int64(cuda.blockIdx.x)
    while tile < tiles:
        box = _box_of(table, boxes, tile)
        record = boxes + 1 + COPY * box
        last = _short(_entry(table, record + VOLUME) - 1)
        nbytes = np.int32(_entry(table, record + KIND))
        first = _short((tile - _entry(table, box)) * WORDS) * threads + _short(cuda.threadIdx.x)
        for k in range(WORDS):
            x, y, z = _place(table, record, _clamp(_short(first + _u64(k) * threads), last))
            dst = _offset(table, record + DST, _ZERO, y, z)
            src = _offset(table, record + SRC, _ZERO, y, z)
            # Of the word in the row, below 0 where the row begins in it.
            start = np.int32(np.int64(x) * WORD - np.int64(dst & _u64(WORD - 1)))
            shift = np.int32(src & _u64(7))
            at = np.int32(start + shift)
            end = np.int32((shift + nbytes - 1) >> 3)
            bits = _u64((at & 7) << 3)
            src -= _u64(shift)
            middle = load_word(src + _between((at + 8) >> 3, end))
            low[k] = _join(load_word(src + _between(at >> 3, end)), middle, bits)
            high[k] = _join(middle, load_word(src + _between((at + 15) >> 3, end)), bits)
            targets[k] = dst + _u64(np.int64(start))
            starts[k] = start
        for k in range(WORDS):
            if first + _u64(k) * threads <= last:
                start = starts[k]
                if start >= 0 and start + WORD <= nbytes:
                    store_two(targets[k], low[k], high[k])
                elif start < nbytes:
                    stop = _clamp(WORD, nbytes - start)
                    _store_part(targets[k], low[k], high[k], _at_least(-start, 0), stop)
        tile += cuda.gridDim.x


# --- reductions ----------------------------------------------------------------------------------


@device
def _add(a: Any, b: Any) -> Any:
    return a + b


@device
def _multiply(a: Any, b: Any) -> Any:
    return a * b


@device
def _least(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


@device
def _most(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


@device
def _and(a: Any, b: Any) -> Any:
    return a & b


@device
def _or(a: Any, b: Any) -> Any:
    return a | b


@device
def _xor(a: Any, b: Any) -> Any:
    return a ^ b


_COMBINE: Final = {
    "sum": _add,
    "avg": _add,
    "prod": _multiply,
    "min": _least,
    "max": _most,
    "band": _and,
    "bor": _or,
    "bxor": _xor,
}


@device
def _identity(value: Any) -> Any:
    return value


@device
def _single_of_bfloat16(bits: Any) -> Any:
    return single_of(np.uint32(bits) << np.uint32(16))


@device
def _bfloat16_of(value: Any) -> Any:
    """Round to nearest, ties to even, and keep what is not a number."""
    bits = np.int64(bits_of_single(value))
    upper = bits >> 16
    rounded = (bits + 0x7FFF + (upper & 1)) >> 16
    return (upper | 0x40) if value != value else rounded


@device
def _half_of(value: Any) -> Any:
    return np.float16(value)


@device
def _single_of(value: Any) -> Any:
    return np.float32(value)


@device
def _double_of(value: Any) -> Any:
    return np.float64(value)


def _accumulator(kind: str, op: str) -> tuple[Any, Any, Any]:
    """Return the dtype in which values are reduced, and how they come there and back."""
    if kind == "bf16":
        return np.float32, _single_of_bfloat16, _bfloat16_of
    if kind == "f2":
        return np.float32, _single_of, _half_of
    if op == "avg" and kind[0] in "iu":
        return np.float64, _double_of, _identity
    return np.dtype(kind).type, _identity, _identity


@device
def _where_flat(table: Any, at: int, place: Any, k: int) -> Any:
    return _u64(_entry(table, at)) + place[k, 0]


@device
def _where(table: Any, at: int, place: Any, k: int) -> Any:
    return _offset(table, at, place[k, 0], place[k, 1], place[k, 2])


@functools.cache
def reducing(kind: str, op: str, flat: bool) -> Any:
    """Return the kernel for one operation and kind of item: f2, bf16, f4, f8, or i1 to u8.

    ``flat`` says that all boxes have one axis, without gaps in any array.

    Items are reduced from one source after the other, in their order, with the rounding of the
    host's kernels and of NumPy (but for the bits of a NaN that arithmetic makes). Arguments of the
    kernel: memory as an array of results, and of sources; the table, the number of its boxes and
    tiles, and the entries of a record.
    """
    dtype, read, write = _accumulator(kind, op)
    combine, is_average = _COMBINE[op], op == "avg"
    each, where = (EACH_FLAT, _where_flat) if flat else (EACH, _where)

    @cuda.jit  # type: ignore[untyped-decorator]
    def reduce_boxes(
        out: Any, sources: Any, table: Any, boxes: int, tiles: int, length: int
    ) -> None:
        total = cuda.local.array(each, dtype)
        place = cuda.local.array((each, AXES), np.uint64)
        threads = _short(cuda.blockDim.x)
        tile = np.int64(cuda.blockIdx.x)
        while tile < tiles:
            box = _box_of(table, boxes, tile)
            record = boxes + 1 + length * box
            last = _short(_entry(table, record + VOLUME) - 1)
            count = _entry(table, record + KIND)
            first = _short((tile - _entry(table, box)) * each) * threads + _short(cuda.threadIdx.x)
            at = record + SRC
            for k in range(each):
                i = _clamp(_short(first + _u64(k) * threads), last)
                if flat:
                    place[k, 0] = i
                else:
                    place[k, 0], place[k, 1], place[k, 2] = _place(table, record, i)
                total[k] = read(sources[where(table, at, place, k)])
            for _ in range(count - 1):
                at += ARRAY
                for k in range(each):
                    total[k] = combine(total[k], read(sources[where(table, at, place, k)]))
            for k in range(each):  # all that is read of the table comes before what is stored
                place[k, 0] = where(table, record + DST, place, k)
            for k in range(each):
                if _short(first + _u64(k) * threads) <= last:
                    value = total[k]
                    if is_average:
                        value = value / dtype(count)
                    out[place[k, 0]] = write(value)
            tile += cuda.gridDim.x

    return reduce_boxes
