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

from distarray.comm.cuda._intrinsics import (
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
def split(i: int, axis: int) -> tuple[int, int]:
    """Return the index along an axis, and what is left of the index beyond it."""
    quotient = low((i * low(entry(axis + 8))) >> entry(axis + 16))
    return low(i - quotient * entry(axis)), quotient


@device
def _four(part: int, thread: int, threads: int) -> tuple[int, int, int, int]:
    """Return the numbers of a thread's four items of a tile."""
    i0 = low(part * 4 * threads + thread)
    i1 = low(i0 + threads)
    i2 = low(i1 + threads)
    return i0, i1, i2, low(i2 + threads)


@device
def _places(
    at: int, axes: int, dst: int, src: int, i0: int, i1: int, i2: int, i3: int
) -> tuple[int, int, int, int, int, int, int, int]:
    """Return where four items are in the destination, and where in the source.

    The axes are described one after another at an address, innermost first.
    """
    d0 = d1 = d2 = d3 = dst
    s0 = s1 = s2 = s3 = src
    for _ in range(axes - 1):
        r0, i0 = split(i0, at)
        r1, i1 = split(i1, at)
        r2, i2 = split(i2, at)
        r3, i3 = split(i3, at)
        d = entry(at + 24)
        s = entry(at + 32)
        d0 += r0 * d
        s0 += r0 * s
        d1 += r1 * d
        s1 += r1 * s
        d2 += r2 * d
        s2 += r2 * s
        d3 += r3 * d
        s3 += r3 * s
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
    return d0, d1, d2, d3, s0, s1, s2, s3


@device
def _words(record: int, part: int, thread: int, threads: int) -> None:
    """Move words ``thread``, ``thread + threads``, ... of the tile number ``part``."""
    size = entry(record + 8 * SIZE)
    i0, i1, i2, i3 = _four(part, thread, threads)
    left = entry(record + 8 * VOLUME) - i0
    if left <= 0:
        return
    dst = entry(record + 8 * DST)
    src = entry(record + 8 * SRC)
    if src == 0:
        src = record + 8 * PATTERN
    at = record + 8 * FIRST_AXIS
    axes = entry(record + 8 * RANK)
    d0, d1, d2, d3, s0, s1, s2, s3 = _places(at, axes, dst, src, i0, i1, i2, i3)
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
    i0, i1, i2, i3 = _four(part, thread, threads)
    left = entry(record + 8 * VOLUME) - i0
    if left <= 0:
        return
    at = record + 8 * FIRST_AXIS
    w0, i0 = split(i0, at)
    w1, i1 = split(i1, at)
    w2, i2 = split(i2, at)
    w3, i3 = split(i3, at)
    # Rows first, then what of them a window covers.
    dst = entry(record + 8 * DST)
    src = entry(record + 8 * SRC)
    outer = entry(record + 8 * RANK) - 1
    d0, d1, d2, d3, s0, s1, s2, s3 = _places(at + 8 * AXIS, outer, dst, src, i0, i1, i2, i3)
    f0 = (d0 & -8) + 8 * w0
    f1 = (d1 & -8) + 8 * w1
    f2 = (d2 & -8) + 8 * w2
    f3 = (d3 & -8) + 8 * w3
    s0 += f0 - d0
    s1 += f1 - d1
    s2 += f2 - d2
    s3 += f3 - d3
    if (
        left > 3 * threads
        and _inside(f0, d0, run)
        and _inside(f1, d1, run)
        and _inside(f2, d2, run)
        and _inside(f3, d3, run)
    ):
        # All of them are on their way at once.
        a0 = load8(s0 & -8)
        a1 = load8(s1 & -8)
        a2 = load8(s2 & -8)
        a3 = load8(s3 & -8)
        b0 = load8((s0 + 7) & -8)
        b1 = load8((s1 + 7) & -8)
        b2 = load8((s2 + 7) & -8)
        b3 = load8((s3 + 7) & -8)
        store8(f0, _joined(a0, b0, s0))
        store8(f1, _joined(a1, b1, s1))
        store8(f2, _joined(a2, b2, s2))
        store8(f3, _joined(a3, b3, s3))
        return
    _window(f0, s0, d0, run)
    if left > threads:
        _window(f1, s1, d1, run)
    if left > 2 * threads:
        _window(f2, s2, d2, run)
    if left > 3 * threads:
        _window(f3, s3, d3, run)


@device
def _inside(first: int, row: int, run: int) -> bool:
    """Tell whether a window of 8 bytes is in a row, which has others on both sides."""
    return first >= row and first + 8 <= row + run


@device
def _joined(a: Any, b: Any, source: int) -> Any:
    """Return the 8 bytes at an address, of the words that hold the first and the last of them."""
    shift = (source & 7) * 8
    return (a >> shift) | ((b << 1) << (63 - shift))


@device
def _window(first: int, source: int, row: int, run: int) -> None:
    """Write what of a window is in a row."""
    if _inside(first, row, run):
        store8(first, _joined(load8(source & -8), load8((source + 7) & -8), source))
        return
    for byte in range(8):
        if first + byte >= row and first + byte < row + run:
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
        at += 8 * AXIS
        r, rest = split(rest, at)
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
