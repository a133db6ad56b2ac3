"""The kernel that copies boxes of raw memory on a GPU: any number of them in one launch.

A table in device memory holds the boxes, each cut into tiles; a block of threads finds the box of
its tile by bisection and goes on with a later tile until none is left. ``_device_copies`` makes
tables. All entries are int64:

- the number of the first tile of each box, then the number of all tiles, padded to 16 bytes;
- a record of ``RECORD`` entries for each box.

===============  ===================================================================
kind of box      what a thread does
===============  ===================================================================
``WORDS``        moves four words of 1, 2, 4, 8 or 16 bytes, along the destination
``SHIFTED``      makes four words of 8 bytes, aligned in the destination, each of two
                 words of a source that lies otherwise: rows at odd addresses
``TRANSPOSED``   moves items through a tile in shared memory, so that reads follow the
                 source and writes the destination
===============  ===================================================================

Indices within a box fit in 31 bits, so that division by an extent is a multiplication and a shift;
addresses and strides have 64 bits.
"""

from __future__ import annotations

from typing import Any, Final

from numba import cuda

from distarray.comm._intrinsics_cuda import (
    device,
    entry,
    kernel,
    load1,
    load2,
    load4,
    load8,
    load16,
    low,
    store1,
    store2,
    store4,
    store8,
    store16,
)

WORDS: Final = 0
SHIFTED: Final = 1
TRANSPOSED: Final = 2

AXES: Final = 6
"""Most axes of a box."""

# Entries of a record.
KIND: Final = 0
SIZE: Final = 1
"""Bytes of a word; of a row, for shifted boxes."""
VOLUME: Final = 2
"""Words of the box; of the windows of 8 bytes, for shifted boxes."""
RANK: Final = 3
DST: Final = 4
SRC: Final = 5
"""Address of the source; 0 for a box to be filled with the pattern."""
PATTERN: Final = 6
"""Two entries, repeated through a box to be filled; of a transposed box the tile instead: the
binary logarithms of its extents along the destination's axis and along the source's."""
FIRST_AXIS: Final = 8
"""Five entries each, innermost first: extent, the multiplier and the shift that divide by it,
stride in the destination, stride in the source; strides in bytes. A transposed box begins with
the axis that is contiguous in the destination, then the one that is in the source; for these
two the multiplier and the shift divide by the number of tiles."""
AXIS: Final = 5
RECORD: Final = FIRST_AXIS + AXES * AXIS

TILE: Final = 1024
"""Items of a tile in shared memory."""
_ROOM: Final = TILE + TILE // 4
"""Items of a tile with one more in every row, of four items at least."""


@device
def find(table: int, boxes: int, tile: int) -> int:
    """Return the last box whose first tile is not after ``tile``."""
    low = 0
    high = boxes
    while high - low > 1:
        middle = (low + high) >> 1
        if entry(table + 8 * middle) <= tile:
            low = middle
        else:
            high = middle
    return low


@device
def _move(dst: int, src: int, size: int) -> None:
    if size == 16:
        low, high = load16(src)
        store16(dst, low, high)
    elif size == 8:
        store8(dst, load8(src))
    elif size == 4:
        store4(dst, load4(src))
    elif size == 2:
        store2(dst, load2(src))
    else:
        store1(dst, load1(src))


@device
def _words(record: int, part: int, thread: int, threads: int) -> None:
    """Move words ``thread``, ``thread + threads``, ... of the tile number ``part``."""
    size = entry(record + 8 * SIZE)
    i0 = low(part * 4 * threads + thread)
    i1 = low(i0 + threads)
    i2 = low(i1 + threads)
    i3 = low(i2 + threads)
    left = entry(record + 8 * VOLUME) - i0
    if left <= 0:
        return
    d0 = entry(record + 8 * DST)
    s0 = entry(record + 8 * SRC)
    if s0 == 0:
        s0 = record + 8 * PATTERN
    d1 = d0
    d2 = d0
    d3 = d0
    s1 = s0
    s2 = s0
    s3 = s0
    at = record + 8 * FIRST_AXIS
    for _ in range(entry(record + 8 * RANK) - 1):
        n = entry(at)
        multiplier = low(entry(at + 8))
        shift = entry(at + 16)
        d = entry(at + 24)
        s = entry(at + 32)
        q = low((i0 * multiplier) >> shift)
        r = low(i0 - q * n)
        d0 += r * d
        s0 += r * s
        i0 = q
        q = low((i1 * multiplier) >> shift)
        r = low(i1 - q * n)
        d1 += r * d
        s1 += r * s
        i1 = q
        q = low((i2 * multiplier) >> shift)
        r = low(i2 - q * n)
        d2 += r * d
        s2 += r * s
        i2 = q
        q = low((i3 * multiplier) >> shift)
        r = low(i3 - q * n)
        d3 += r * d
        s3 += r * s
        i3 = q
        at += 8 * AXIS
    d = entry(at + 24)
    s = entry(at + 32)
    d0 += i0 * d
    s0 += i0 * s
    d1 += i1 * d
    s1 += i1 * s
    d2 += i2 * d
    s2 += i2 * s
    d3 += i3 * d
    s3 += i3 * s
    if left > 3 * threads:
        _move_four(d0, d1, d2, d3, s0, s1, s2, s3, size)
        return
    _move(d0, s0, size)
    if left > threads:
        _move(d1, s1, size)
    if left > 2 * threads:
        _move(d2, s2, size)


@device
def _move_four(
    d0: int, d1: int, d2: int, d3: int, s0: int, s1: int, s2: int, s3: int, size: int
) -> None:
    """Move four words, all of them on their way at once."""
    if size == 16:
        a, b = load16(s0)
        c, d = load16(s1)
        e, f = load16(s2)
        g, h = load16(s3)
        store16(d0, a, b)
        store16(d1, c, d)
        store16(d2, e, f)
        store16(d3, g, h)
    elif size == 8:
        w0 = load8(s0)
        w1 = load8(s1)
        w2 = load8(s2)
        w3 = load8(s3)
        store8(d0, w0)
        store8(d1, w1)
        store8(d2, w2)
        store8(d3, w3)
    elif size == 4:
        w0 = load4(s0)
        w1 = load4(s1)
        w2 = load4(s2)
        w3 = load4(s3)
        store4(d0, w0)
        store4(d1, w1)
        store4(d2, w2)
        store4(d3, w3)
    elif size == 2:
        w0 = load2(s0)
        w1 = load2(s1)
        w2 = load2(s2)
        w3 = load2(s3)
        store2(d0, w0)
        store2(d1, w1)
        store2(d2, w2)
        store2(d3, w3)
    else:
        w0 = load1(s0)
        w1 = load1(s1)
        w2 = load1(s2)
        w3 = load1(s3)
        store1(d0, w0)
        store1(d1, w1)
        store1(d2, w2)
        store1(d3, w3)


@device
def _shifted(record: int, part: int, thread: int, threads: int) -> None:
    """Write windows of 8 bytes, aligned in the destination, of rows at any address."""
    run = entry(record + 8 * SIZE)
    volume = entry(record + 8 * VOLUME)
    for turn in range(4):
        i = low((part * 4 + turn) * threads + thread)
        if i >= volume:
            return
        dst = entry(record + 8 * DST)
        src = entry(record + 8 * SRC)
        at = record + 8 * FIRST_AXIS
        q = low((i * low(entry(at + 8))) >> entry(at + 16))
        window = low(i - q * entry(at))
        i = q
        for _ in range(entry(record + 8 * RANK) - 1):
            at += 8 * AXIS
            q = low((i * low(entry(at + 8))) >> entry(at + 16))
            r = low(i - q * entry(at))
            dst += r * entry(at + 24)
            src += r * entry(at + 32)
            i = q
        first = (dst & -8) + 8 * window
        source = src + (first - dst)
        if first >= dst and first + 8 <= dst + run:
            shift = (source & 7) * 8
            word = load8(source & -8)
            if shift:
                word = (word >> shift) | (load8((source & -8) + 8) << (64 - shift))
            store8(first, word)
        else:
            for byte in range(8):
                if first + byte >= dst and first + byte < dst + run:
                    store1(first + byte, load1(source + byte))


@device
def _load(address: int, size: int) -> Any:
    if size == 8:
        return load8(address)
    if size == 4:
        return load4(address)
    if size == 2:
        return load2(address)
    return load1(address)


@device
def _store(address: int, word: Any, size: int) -> None:
    if size == 8:
        store8(address, word)
    elif size == 4:
        store4(address, word)
    elif size == 2:
        store2(address, word)
    else:
        store1(address, word)


@device
def _transposed(record: int, part: int, thread: int, threads: int) -> None:
    """Move one tile: rows of the source into shared memory, its columns into the destination."""
    words = cuda.shared.array(_ROOM, "uint64")
    upper = cuda.shared.array(_ROOM, "uint64")
    size = entry(record + 8 * SIZE)
    wide = entry(record + 8 * PATTERN)
    high = entry(record + 8 * (PATTERN + 1))
    dst = entry(record + 8 * DST)
    src = entry(record + 8 * SRC)
    at = record + 8 * FIRST_AXIS
    columns = entry(at)
    src_stride = entry(at + 32)
    rows = entry(at + 8 * AXIS)
    dst_stride = entry(at + 8 * AXIS + 24)
    part = low(part)
    rest = low((part * low(entry(at + 8))) >> entry(at + 16))
    first_column = low(part - rest * (((columns - 1) >> wide) + 1)) << wide
    part = rest
    at += 8 * AXIS
    rest = low((part * low(entry(at + 8))) >> entry(at + 16))
    first_row = low(part - rest * (((rows - 1) >> high) + 1)) << high
    for _ in range(entry(record + 8 * RANK) - 2):
        part = rest
        at += 8 * AXIS
        rest = low((part * low(entry(at + 8))) >> entry(at + 16))
        r = low(part - rest * entry(at))
        dst += r * entry(at + 24)
        src += r * entry(at + 32)
    dst += first_column * size + first_row * dst_stride
    src += first_column * src_stride + first_row * size
    columns -= first_column
    rows -= first_row
    items = 1 << (wide + high)
    pitch = (1 << wide) + 1
    i = thread
    while i < items:
        row = i & ((1 << high) - 1)
        column = i >> high
        if row < rows and column < columns:
            at = src + column * src_stride + row * size
            if size == 16:
                words[row * pitch + column], upper[row * pitch + column] = load16(at)
            else:
                words[row * pitch + column] = _load(at, size)
        i += threads
    cuda.syncthreads()
    i = thread
    while i < items:
        column = i & ((1 << wide) - 1)
        row = i >> wide
        if row < rows and column < columns:
            at = dst + column * size + row * dst_stride
            if size == 16:
                store16(at, words[row * pitch + column], upper[row * pitch + column])
            else:
                _store(at, words[row * pitch + column], size)
        i += threads
    cuda.syncthreads()


def _copy_boxes(table: int, boxes: int, tiles: int) -> None:
    """Copy all boxes of a table."""
    thread = cuda.threadIdx.x
    threads = cuda.blockDim.x
    records = table + 16 * ((boxes + 2) >> 1)
    tile = table * 0 + cuda.blockIdx.x  # 64 bits
    while tile < tiles:
        box = find(table, boxes, tile)
        record = records + 8 * RECORD * box
        part = tile - entry(table + 8 * box)
        kind = entry(record)
        if kind == WORDS:
            _words(record, part, thread, threads)
        elif kind == TRANSPOSED:
            _transposed(record, part, thread, threads)
        else:
            _shifted(record, part, thread, threads)
        tile += cuda.gridDim.x


copy_boxes: Final = kernel(_copy_boxes)
