"""Kernels of `numba.cuda` that copy boxes of device memory and reduce those of several ranks.

One launch serves any number of boxes, of any blocks: to a kernel all memory is one array of words,
or of the items that it reduces, and a table of int64 tells where in it the boxes lie:

- the number of the first tile of each box, and the number of all tiles;
- a record for each box (see `VOLUME` and below). It has three axes, the innermost first.

A block of threads finds the box of its tile by bisection, and goes on with a later tile until none
is left. A thread has four items on their way at once. Indices in a box fit in 32 bits, in which
division is quicker.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from distarray.comm.cuda._numba import bits_of_single, cuda, device, single_of

AXES: Final = 3
"""Axes of a box, all of them given; those that are not needed have one item."""

EACH: Final = 4
"""Items of a tile for each thread; not measured."""

SIDE: Final = 32
"""Items along both sides of a tile of a transposed box: as many as threads of a warp."""

_PITCH: Final = SIDE + 1  # so that a column lies in all banks of shared memory

# Entries of a record.
VOLUME: Final = 0
KIND: Final = 1
"""Of a copy, whether it is transposed; of a reduction, the number of sources."""
EXTENTS: Final = 2
DST: Final = EXTENTS + AXES
"""Where the destination begins, and its strides: in words, or items; the sources follow."""
ARRAY: Final = 1 + AXES
SRC: Final = DST + ARRAY
COPY: Final = SRC + ARRAY
"""Entries of a copy."""


@device
def _box_of(table: Any, boxes: int, tile: int) -> int:
    """Return the last box whose first tile is not after ``tile``."""
    low = 0
    high = boxes
    while high - low > 1:
        middle = (low + high) >> 1
        if table[middle] <= tile:
            low = middle
        else:
            high = middle
    return low


@device
def _place(table: Any, record: int, i: int) -> Any:
    """Return the indices along the three axes of item ``i``."""
    columns, rows = table[record + EXTENTS], table[record + EXTENTS + 1]
    row = np.int64(np.uint32(i) // np.uint32(columns))
    plane = np.int64(np.uint32(row) // np.uint32(rows))
    return i - row * columns, row - plane * rows, plane


@device
def _offset(table: Any, at: int, x: int, y: int, z: int) -> int:
    """Return where an item of an array is, of which the table tells at ``at``."""
    return table[at] + x * table[at + 1] + y * table[at + 2] + z * table[at + 3]


@device
def _clamp(i: int, last: int) -> int:
    return i if i < last else last


@device
def _transpose(memory: Any, table: Any, record: int, part: int) -> None:
    """Copy a tile: rows of the source into shared memory, its columns into the destination."""
    tile = cuda.shared.array((SIDE, _PITCH), memory.dtype)
    columns, rows = table[record + EXTENTS], table[record + EXTENTS + 1]
    across, down = (columns + SIDE - 1) // SIDE, (rows + SIDE - 1) // SIDE
    plane = part // (across * down)
    first_row = part // across % down * SIDE
    first_column = part % across * SIDE
    dst = _offset(table, record + DST, first_column, first_row, plane)
    src = _offset(table, record + SRC, first_column, first_row, plane)
    columns -= first_column
    rows -= first_row
    for i in range(cuda.threadIdx.x, SIDE * SIDE, cuda.blockDim.x):
        row, column = i % SIDE, i // SIDE
        if row < rows and column < columns:
            tile[column, row] = memory[src + column * table[record + SRC + 1] + row]
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, SIDE * SIDE, cuda.blockDim.x):
        column, row = i % SIDE, i // SIDE
        if row < rows and column < columns:
            memory[dst + column + row * table[record + DST + 2]] = tile[column, row]
    cuda.syncthreads()


@cuda.jit  # type: ignore[untyped-decorator]
def copy_boxes(memory: Any, table: Any, boxes: int, tiles: int) -> None:
    """Copy all boxes of a table; ``memory`` is an array of words."""
    words = cuda.local.array(EACH, memory.dtype)
    targets = cuda.local.array(EACH, np.int64)
    threads = cuda.blockDim.x
    tile = np.int64(cuda.blockIdx.x)
    while tile < tiles:
        box = _box_of(table, boxes, tile)
        record = boxes + 1 + COPY * box
        part = tile - table[box]
        if table[record + KIND]:
            _transpose(memory, table, record, part)
        else:
            last = table[record + VOLUME] - 1
            first = part * EACH * threads + cuda.threadIdx.x
            for k in range(EACH):
                x, y, z = _place(table, record, _clamp(first + k * threads, last))
                words[k] = memory[_offset(table, record + SRC, x, y, z)]
                targets[k] = _offset(table, record + DST, x, y, z)
            for k in range(EACH):
                if first + k * threads <= last:
                    memory[targets[k]] = words[k]
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


@functools.cache
def reducing(kind: str, op: str) -> Any:
    """Return the kernel for one operation and kind of item: f2, bf16, f4, f8, or i1 to u8.

    Items are reduced from one source after the other, in their order, with the rounding of the
    host's kernels and of NumPy (but for the bits of a NaN that arithmetic makes). Arguments of the
    kernel: memory as an array of results, and of sources; the table, the number of its boxes and
    tiles, and the entries of a record.
    """
    dtype, read, write = _accumulator(kind, op)
    combine, is_average = _COMBINE[op], op == "avg"

    @cuda.jit  # type: ignore[untyped-decorator]
    def reduce_boxes(
        out: Any, sources: Any, table: Any, boxes: int, tiles: int, length: int
    ) -> None:
        total = cuda.local.array(EACH, dtype)
        place = cuda.local.array((EACH, AXES), np.int64)
        threads = cuda.blockDim.x
        tile = np.int64(cuda.blockIdx.x)
        while tile < tiles:
            box = _box_of(table, boxes, tile)
            record = boxes + 1 + length * box
            last = table[record + VOLUME] - 1
            count = table[record + KIND]
            first = (tile - table[box]) * EACH * threads + cuda.threadIdx.x
            at = record + SRC
            for k in range(EACH):
                x, y, z = _place(table, record, _clamp(first + k * threads, last))
                place[k, 0], place[k, 1], place[k, 2] = x, y, z
                total[k] = read(sources[_offset(table, at, x, y, z)])
            for _ in range(count - 1):
                at += ARRAY
                for k in range(EACH):
                    where = _offset(table, at, place[k, 0], place[k, 1], place[k, 2])
                    total[k] = combine(total[k], read(sources[where]))
            for k in range(EACH):
                if first + k * threads <= last:
                    value = total[k]
                    if is_average:
                        value = value / dtype(count)
                    where = _offset(table, record + DST, place[k, 0], place[k, 1], place[k, 2])
                    out[where] = write(value)
            tile += cuda.gridDim.x

    return reduce_boxes
