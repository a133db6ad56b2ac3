"""Numba kernels that copy boxes of raw memory; ``_packing`` says when they pay.

Every argument is an int64: an address, a number of elements or a stride in bytes, so that one
compilation serves all data types. Rows are taken two at a time, two lines of each, and lines are
stored when all of them were loaded: AMD's Zen 3 lets a load wait that follows a store to the same
offset of another page, so that four rows in turn, each line stored before the next was loaded,
took seven times as long there. Of one or two rows and one to eight lines, this is within a tenth
of the best on Zen 5 too, for rows of 512 bytes to 1 MiB.
"""

from __future__ import annotations

from typing import Final

import numba

from distarray.comm.kernels._intrinsics import copy_bytes, fence, move, move_lines, transpose_tile
from distarray.comm.kernels._jit import Source

# Only kernels call these: wrappers for the interpreter would be a tenth of compiling.
_inline = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

_LINE: Final = 64  # bytes of a cache line
TILE_ROWS: Final = 64  # of a transpose: a cache line of each row, 4 KiB, stays in the first level
TILE_COLUMNS: Final = 512
"""Items of a tile of the transposing copy: rows of its source, and of its destination.

A tile of 8 bytes an item is 256 KiB, which the second cache of a core holds; not measured further.
"""


@_inline
def _stream_rest(dst: int, src: int, done: int, end: int) -> None:
    """Copy bytes ``done`` to ``end`` to an address aligned to a line."""
    while done + 64 <= end:
        move(dst + done, src + done, 64, 1)
        done += 64
    copy_bytes(dst + done, src + done, end - done)


@_inline
def _stream_row(dst: int, src: int, run: int) -> None:
    """Copy ``run`` bytes, four lines at a time."""
    head = min(-dst & 63, run)
    copy_bytes(dst, src, head)
    common = (run - head) & -256
    for i in range(head, head + common, 256):
        move_lines(dst + i, src + i, 128, 128)
    _stream_rest(dst, src, head + common, run)


@_inline
def _stream_two(dst: int, src: int, run: int, dst_stride: int, src_stride: int) -> None:
    """Copy two rows of ``run`` bytes, two lines of each in turn."""
    head, other = min(-dst & 63, run), min(-(dst + dst_stride) & 63, run)
    copy_bytes(dst, src, head)
    copy_bytes(dst + dst_stride, src + src_stride, other)
    d, s = dst + head, src + head
    d_stride, s_stride = dst_stride + other - head, src_stride + other - head
    common = (run - max(head, other)) & -128
    for i in range(0, common, 128):
        move_lines(d + i, s + i, d_stride, s_stride)
    _stream_rest(d, s, common, run - head)
    _stream_rest(d + d_stride, s + s_stride, common, run - other)


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
            for _ in range(n0 >> 1):
                _stream_two(d, s, run, d0, s0)
                d += 2 * d0
                s += 2 * s0
            if n0 & 1:
                _stream_row(d, s, run)
    fence()


def stream_rows() -> Source:
    """Return the kernel for long rows."""
    return Source(_stream_rows, f"void({', '.join(['int64'] * 12)})")


def _stream_fill(dst: int, line: int, nbytes: int) -> None:
    """Write the line at ``line`` again and again, past the caches; ``dst`` is aligned to a line."""
    for i in range(0, nbytes, 64):
        move(dst + i, line, 64, 1)
    fence()


def stream_fill() -> Source:
    """Return the kernel that fills."""
    return Source(_stream_fill, "void(int64, int64, int64)")


def copy_short(width: int) -> Source:
    """Return the kernel for rows of ``width`` to ``2 * width`` bytes: 8, 16, 32 or 64."""

    def copy_rows(
        dst: int, src: int, run: int,
        n0: int, d0: int, s0: int,
        n1: int, d1: int, s1: int,
        n2: int, d2: int, s2: int,
    ) -> None:  # fmt: skip
        """Copy rows, each by two moves that may overlap."""
        end = run - width
        for i2 in range(n2):
            for i1 in range(n1):
                d, s = dst + i2 * d2 + i1 * d1, src + i2 * s2 + i1 * s1
                for _ in range(n0):
                    move(d, s, width, 0)
                    move(d + end, s + end, width, 0)
                    d += d0
                    s += s0

    return Source(copy_rows, f"void({', '.join(['int64'] * 12)})")


def transpose(itemsize: int, streaming: int) -> Source:
    """Return the kernel that transposes items of 1, 2, 4, 8 or 16 bytes; past the caches from 4 on.

    Its tiles are square, of rows of 16 items, but of no more than a line.
    """
    width = min(_LINE, 16 * itemsize)
    n = width // itemsize

    def copy_transposed(
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

    return Source(copy_transposed, f"void({', '.join(['int64'] * 6)})")


def _memory_fence() -> None:
    fence()


def memory_fence() -> Source:
    """Return the kernel that orders this process's memory accesses."""
    return Source(_memory_fence, "void()")
