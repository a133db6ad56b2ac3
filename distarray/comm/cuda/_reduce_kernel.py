"""Kernels that reduce blocks of several ranks on a GPU, in one pass over memory.

Each thread makes four results, from one source after the other in their order, with the rounding of
the host's kernels and of NumPy (but for the bits of a NaN that arithmetic makes). Integers are
reduced as their bits, 64 at a time at most, of which the lowest are stored.

The table is laid out as that of copies (see ``_kernels_cuda``), with records of a length that
depends on the number of sources.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from numba import cuda

from distarray.comm.cuda._copy_kernel import find, split
from distarray.comm.cuda._intrinsics import device, entry, kernel, low
from distarray.comm.cuda._items import averaged, unchanged, ways

AXES: Final = 3
"""Axes of a box, all of them given; those that are not needed have one item."""

# Entries of a record.
VOLUME: Final = 0
COUNT: Final = 1
"""Number of sources."""
DST: Final = 2
FIRST_AXIS: Final = 4
"""Four entries each, innermost first: extent, the multiplier and the shift that divide by it,
stride in the destination."""
SOURCES: Final = FIRST_AXIS + 4 * AXES
"""Four entries each: address, and strides of the three axes."""


@device
def _offset(strides: int, x: int, y: int, z: int, step: int) -> int:
    """Return the offset of an item: strides lie at an address, one every ``step`` bytes."""
    return x * entry(strides) + y * entry(strides + step) + z * entry(strides + 2 * step)


@device
def _bounded(i: int, last: int) -> int:
    return low(i if i < last else last)


@functools.cache
def reducing(kind: str, op: str, lanes: int = 1) -> Any:
    """Return the kernel for one kind of item and one operation.

    Its arguments: address of the table, numbers of boxes and tiles, bytes of a record.

    Parameters
    ----------
    kind
        "f2", "bf16", "f4", "f8", "i1" to "u8", "c8" and "c16" (for prod, min and max); for band,
        bor and bxor "u" and the bytes of a word, up to 16.
    op
        sum, prod, min, max, avg; band, bor, bxor.
    lanes
        How many floating-point items beside each other are read at once, in 4 or 16 bytes.
    """
    read, combine, write = ways(kind, op, lanes)
    finish = averaged(kind, lanes) if op == "avg" else unchanged

    def reduce(table: int, boxes: int, tiles: int, length: int) -> None:
        threads = cuda.blockDim.x
        records = table + 16 * ((boxes + 2) >> 1)
        tile = table * 0 + cuda.blockIdx.x  # 64 bits
        while tile < tiles:
            box = find(table, boxes, tile)
            record = records + length * box
            last = entry(record + 8 * VOLUME) - 1
            first = (tile - entry(table + 8 * box)) * 4 * threads + cuda.threadIdx.x
            axis = record + 8 * FIRST_AXIS
            # Those beyond the last read it as well, and write nothing.
            x0, z0 = split(_bounded(first, last), axis)
            x1, z1 = split(_bounded(first + threads, last), axis)
            x2, z2 = split(_bounded(first + 2 * threads, last), axis)
            x3, z3 = split(_bounded(first + 3 * threads, last), axis)
            y0, z0 = split(z0, axis + 32)
            y1, z1 = split(z1, axis + 32)
            y2, z2 = split(z2, axis + 32)
            y3, z3 = split(z3, axis + 32)
            count = entry(record + 8 * COUNT)
            at = record + 8 * SOURCES
            base = entry(at)
            a0 = read(base + _offset(at + 8, x0, y0, z0, 8))
            a1 = read(base + _offset(at + 8, x1, y1, z1, 8))
            a2 = read(base + _offset(at + 8, x2, y2, z2, 8))
            a3 = read(base + _offset(at + 8, x3, y3, z3, 8))
            for _ in range(count - 1):
                at += 32
                base = entry(at)
                b0 = read(base + _offset(at + 8, x0, y0, z0, 8))
                b1 = read(base + _offset(at + 8, x1, y1, z1, 8))
                b2 = read(base + _offset(at + 8, x2, y2, z2, 8))
                b3 = read(base + _offset(at + 8, x3, y3, z3, 8))
                a0 = combine(a0, b0)
                a1 = combine(a1, b1)
                a2 = combine(a2, b2)
                a3 = combine(a3, b3)
            dst = entry(record + 8 * DST)
            if first <= last:
                write(dst + _offset(axis + 24, x0, y0, z0, 32), finish(a0, count))
            if first + threads <= last:
                write(dst + _offset(axis + 24, x1, y1, z1, 32), finish(a1, count))
            if first + 2 * threads <= last:
                write(dst + _offset(axis + 24, x2, y2, z2, 32), finish(a2, count))
            if first + 3 * threads <= last:
                write(dst + _offset(axis + 24, x3, y3, z3, 32), finish(a3, count))
            tile += cuda.gridDim.x

    return kernel(reduce)
