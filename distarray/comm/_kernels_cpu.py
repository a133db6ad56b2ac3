"""Numba kernels that copy boxes of raw memory; ``_packing`` says when they pay.

Every argument is an int64: an address, a number of elements or a stride in bytes, so that one
compilation serves all data types. Rows are taken four at a time, because four streams of reads
and writes keep more of the memory busy than one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numba

from distarray.comm import _intrinsics
from distarray.comm._intrinsics import copy_bytes, fence, move, transpose_tile
from distarray.comm._jit import Kernel

_inline = numba.njit(nogil=True)

CHUNK: Final = 64 * 1024
"""Bytes that a stream goes on for before the next four chunks of a long row are taken."""

TILE_ROWS: Final = 64
TILE_COLUMNS: Final = 512
"""Items of a tile of the transposing copy: rows of its source, and of its destination."""


@_inline
def _stream_rest(dst: int, src: int, done: int, end: int) -> None:
    """Copy bytes ``done`` to ``end`` to an address aligned to a line."""
    while done + 64 <= end:
        move(dst + done, src + done, 64, 1)
        done += 64
    copy_bytes(dst + done, src + done, end - done)


@_inline
def _stream_four(dst: int, src: int, run: int, dst_stride: int, src_stride: int) -> None:
    """Copy four rows of ``run`` bytes, line by line in turn."""
    d1 = dst + dst_stride
    d2 = d1 + dst_stride
    d3 = d2 + dst_stride
    s1 = src + src_stride
    s2 = s1 + src_stride
    s3 = s2 + src_stride
    h0, h1 = min(-dst & 63, run), min(-d1 & 63, run)
    h2, h3 = min(-d2 & 63, run), min(-d3 & 63, run)
    copy_bytes(dst, src, h0)
    copy_bytes(d1, s1, h1)
    copy_bytes(d2, s2, h2)
    copy_bytes(d3, s3, h3)
    d0, s0 = dst + h0, src + h0
    d1, s1 = d1 + h1, s1 + h1
    d2, s2 = d2 + h2, s2 + h2
    d3, s3 = d3 + h3, s3 + h3
    common = (run - max(h0, h1, h2, h3)) & -64
    for i in range(0, common, 64):
        move(d0 + i, s0 + i, 64, 1)
        move(d1 + i, s1 + i, 64, 1)
        move(d2 + i, s2 + i, 64, 1)
        move(d3 + i, s3 + i, 64, 1)
    _stream_rest(d0, s0, common, run - h0)
    _stream_rest(d1, s1, common, run - h1)
    _stream_rest(d2, s2, common, run - h2)
    _stream_rest(d3, s3, common, run - h3)


@_inline
def _stream_row(dst: int, src: int, run: int) -> None:
    """Copy ``run`` bytes, in four streams while there are enough."""
    chunk = min(CHUNK, (run >> 2) & -4096)
    done = 0
    if chunk > 0:
        while done + 4 * chunk <= run:
            _stream_four(dst + done, src + done, chunk, chunk, chunk)
            done += 4 * chunk
    head = min(-(dst + done) & 63, run - done)
    copy_bytes(dst + done, src + done, head)
    _stream_rest(dst, src, done + head, run)


def _stream_rows(
    dst: int, src: int, run: int,
    n0: int, d0: int, s0: int,
    n1: int, d1: int, s1: int,
    n2: int, d2: int, s2: int,
) -> None:  # fmt: skip
    """Copy rows of ``run`` contiguous bytes past the caches."""
    for i2 in range(n2):
        for i1 in range(n1):
            d, s = dst + i2 * d2 + i1 * d1, src + i2 * s2 + i1 * s1
            rest = n0 if run >= 8 * CHUNK else n0 & 3
            for _ in range(0, n0 - rest, 4):
                _stream_four(d, s, run, d0, s0)
                d += 4 * d0
                s += 4 * s0
            for _ in range(rest):
                _stream_row(d, s, run)
                d += d0
                s += s0
    fence()


stream_rows = Kernel(_stream_rows, f"void({', '.join(['int64'] * 12)})", _intrinsics)


def _stream_fill(dst: int, line: int, nbytes: int) -> None:
    """Write the line at ``line`` again and again, past the caches; ``dst`` is aligned to a line."""
    for i in range(0, nbytes, 64):
        move(dst + i, line, 64, 1)
    fence()


stream_fill = Kernel(_stream_fill, "void(int64, int64, int64)", _intrinsics)


def _copy_short(
    dst: int, src: int, run: int,
    n0: int, d0: int, s0: int,
    n1: int, d1: int, s1: int,
    n2: int, d2: int, s2: int,
) -> None:  # fmt: skip
    """Copy rows of 8 to 128 contiguous bytes, each by two moves that may overlap."""
    for i2 in range(n2):
        for i1 in range(n1):
            d, s = dst + i2 * d2 + i1 * d1, src + i2 * s2 + i1 * s1
            if run <= 16:
                end = run - 8
                for _ in range(n0):
                    move(d, s, 8, 0)
                    move(d + end, s + end, 8, 0)
                    d += d0
                    s += s0
            elif run <= 32:
                end = run - 16
                for _ in range(n0):
                    move(d, s, 16, 0)
                    move(d + end, s + end, 16, 0)
                    d += d0
                    s += s0
            elif run <= 64:
                end = run - 32
                for _ in range(n0):
                    move(d, s, 32, 0)
                    move(d + end, s + end, 32, 0)
                    d += d0
                    s += s0
            else:
                end = run - 64
                for _ in range(n0):
                    move(d, s, 64, 0)
                    move(d + end, s + end, 64, 0)
                    d += d0
                    s += s0


copy_short = Kernel(_copy_short, f"void({', '.join(['int64'] * 12)})", _intrinsics)


def _transposing(itemsize: int, width: int, streaming: int) -> Kernel:
    """Return the kernel for one size of item, with tiles of ``width`` bytes."""
    n = width // itemsize

    def transpose(
        dst: int, src: int, columns: int, rows: int, dst_stride: int, src_stride: int
    ) -> None:
        """Set item (i, j) of ``dst`` to item (j, i) of ``src``; ``dst`` is rows x columns.

        With streaming, ``dst`` and its stride are aligned to a line.
        """
        full_columns, full_rows = columns // n * n, rows // n * n
        for j0 in range(0, full_rows, TILE_COLUMNS):
            for i0 in range(0, full_columns, TILE_ROWS):
                for i in range(i0, min(full_columns, i0 + TILE_ROWS), n):
                    d, s = dst + i * itemsize, src + i * src_stride
                    for j in range(j0, min(full_rows, j0 + TILE_COLUMNS), n):
                        transpose_tile(
                            d + j * dst_stride,
                            s + j * itemsize,
                            dst_stride,
                            src_stride,
                            itemsize,
                            width,
                            streaming,
                        )
        for j in range(rows):
            first = full_columns if j < full_rows else 0
            for i in range(first, columns):
                move(
                    dst + j * dst_stride + i * itemsize,
                    src + i * src_stride + j * itemsize,
                    itemsize,
                    0,
                )
        if streaming:
            fence()

    return Kernel(transpose, f"void({', '.join(['int64'] * 6)})", _intrinsics)


TRANSPOSE: Final[dict[int, Kernel]] = {
    1: _transposing(1, 16, 0),
    2: _transposing(2, 32, 0),
    4: _transposing(4, 64, 0),
    8: _transposing(8, 64, 0),
    16: _transposing(16, 64, 0),
}
"""Transposing copies by size of item."""

TRANSPOSE_STREAMING: Final[dict[int, Kernel]] = {
    itemsize: _transposing(itemsize, 64, 1) for itemsize in (4, 8, 16)
}
"""The same past the caches, for aligned destinations."""


def _memory_fence() -> None:
    """Order this process's memory accesses."""
    fence()


memory_fence: Callable[[], None] = Kernel(_memory_fence, "void()", _intrinsics)
