"""Loop nests: how arrays lie in memory together, and which kernel copies between or fills them.

When a kernel serves, and what it gains over NumPy, measured with float64 on one core of a server
processor (2 MB of level-2 cache a core; the speed of one core in memory is what limits):

=========================================  =========================================
rows of at least 512 bytes, 16 MB or more  past the caches, 2 rows at a time: 1.3 to 1.9
   the same below 16 MB                    NumPy: what stays in a cache is read again
rows of 9 to 128 bytes                     two overlapping moves a row: 1.1 to 3
transposed, items of 1 to 16 bytes         tiles in registers: 3 to 14
filling, 16 MB or more                     past the caches: 2.2
any other strides or sizes of item         NumPy
=========================================  =========================================

What goes past the caches gains on some processors and loses on others (the first figure was taken
on an Intel Xeon, with four rows at a time); `_choice` finds out where the program runs.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from distarray.comm.kernels import _threads
from distarray.comm.kernels._choice import is_chosen, run_faster
from distarray.comm.kernels._jit import kernel

STREAMING_BYTES: Final = 16 * 1024 * 1024
"""Destinations of at least this size are written past the caches.

Not measured: more than the caches of a core hold, and less than the last one that cores share.
"""

_LINE = 64  # bytes of a cache line
_LONG_RUN = 512  # bytes of rows whose cut lines, at both ends, hardly count; not measured
_SHORT_RUN = range(9, 129)  # bytes of rows, up to two lines, that a kernel moves as they are
_TRANSPOSED = (1, 2, 4, 8, 16)
_TRANSPOSED_STREAMING = (4, 8, 16)
"""Bytes of items that a kernel transposes, and that it does past the caches."""
_TRANSPOSE_COST = 6
"""So many times as long as for a plain copy NumPy takes for one transposed, or of short rows."""
_BYTES_PER_CALL = 32 * 1024
"""Least work of one call of a kernel, which costs about 2 microseconds."""

_SHARED_WRITE_COST = 8
"""So many times as long as for a plain copy an ordinary write takes of memory that other cores have
read, at the least: on two cores of Zen 4 that share no cache 19 times up to 4 MiB, 8 times of 8."""

Axis: TypeAlias = tuple[int, ...]
"""Number of elements, then the stride in bytes of each array."""


def copy_by_kernel(dst: np.ndarray, src: np.ndarray, streaming: bool) -> bool:
    """Copy ``src`` into ``dst`` if a kernel is faster than NumPy here, and tell whether it was.

    They have the same shape and dtype, without objects, and share no memory. ``streaming`` says
    that ``dst`` belongs to a block that is too large for the caches.
    """
    itemsize = dst.itemsize
    (d, s), axes = joint_axes(dst, src)
    if not axes or axes[-1][1] != itemsize:
        return False
    outer = axes[:-1]
    if axes[-1][2] == itemsize:
        run = axes[-1][0] * itemsize
        if len(outer) > 3 and run * math.prod(axis[0] for axis in outer[-3:]) < _BYTES_PER_CALL:
            return False
        whole_lines = (d | run) % _LINE == 0 and all(axis[1] % _LINE == 0 for axis in outer)
        if streaming and (run >= _LONG_RUN or whole_lines):
            job, by = f"copy rows {run.bit_length()}", _kernel("stream_rows")
        elif run in _SHORT_RUN:
            width = 1 << (run - 1).bit_length() - 1  # a move that reaches half of the row, or more
            job, by = f"copy short {width}", _kernel("copy_short", width)
        else:
            return False
        run_faster(
            job,
            dst.nbytes,
            by,
            lambda by: _copy_rows(by, d, s, run, outer),
            lambda: np.copyto(dst, src),
        )
        return True
    return _copy_transposed(dst, src, d, s, axes, streaming)


def fill(dst: Any, value: Any) -> None:
    """Set every element of a NumPy or CuPy array to a scalar, as an assignment would."""
    if not (
        dst.nbytes >= STREAMING_BYTES
        and isinstance(dst, np.ndarray)
        and dst.flags.c_contiguous
        and _LINE % dst.itemsize == 0
        and not dst.dtype.hasobject
    ):
        dst[...] = value
        return
    line = np.empty(_LINE // dst.itemsize, dst.dtype)
    line[...] = value
    flat = dst.reshape(-1)
    address = address_of(dst)
    if address % dst.itemsize:
        flat[...] = line[0]
        return
    head = -address % _LINE // dst.itemsize
    whole = (flat.size - head) * dst.itemsize // _LINE * _LINE
    flat[:head] = line[0]
    flat[head + whole // dst.itemsize :] = line[0]
    lines = flat[head : head + whole // dst.itemsize].reshape(-1, line.size)
    source = address_of(line)

    def fill_part(part: Any) -> None:
        some = lines[part]
        run_faster(
            "fill",
            some.nbytes,
            _kernel("stream_fill"),
            lambda by: by(address_of(some), source, some.nbytes),
            lambda: some.fill(line[0]),
        )

    _threads.run_on_parts(fill_part, lines.shape[:1], whole)  # of whole lines


def write_lent(dst: np.ndarray, write: Callable[[], object]) -> None:
    """Call ``write``, which sets a contiguous array whose memory other cores have read before.

    They may still have it in their caches, and an ordinary store waits until they have given up its
    line: measured on Zen 4, cores that share no cache, 27 ns a line, where it takes 1.4 otherwise.
    Streaming stores do not wait for one another. So zeros are written past the caches first (1.5 ns
    a line, and 1 ns more for the write), where that takes less time in all.
    """
    if dst.nbytes < _BYTES_PER_CALL:
        write()
        return

    def sweep_and_write(by: Callable[..., Any]) -> None:
        _sweep(by, dst)
        write()

    run_faster(
        "renew", dst.nbytes, _kernel("stream_fill"), sweep_and_write, write, _SHARED_WRITE_COST
    )


def renew(dst: np.ndarray) -> None:
    """Write zeros past the caches to what other cores have read, if `write_lent` has chosen to."""
    by = is_chosen("renew", dst.nbytes, _kernel("stream_fill"), _SHARED_WRITE_COST)
    if by is not None:
        _sweep(by, dst)


def _sweep(by: Callable[..., Any], dst: np.ndarray) -> None:
    address = address_of(dst)
    head = -address % _LINE
    by(address + head, address_of(_ZEROS), max(dst.nbytes - head, 0) // _LINE * _LINE)


_ZEROS: Final = np.zeros(_LINE, np.uint8)


def address_of(array: Any) -> int:
    """Return where the first element of a NumPy or CuPy array lies."""
    if isinstance(array, np.ndarray):
        buffer: Any = array
        try:  # which takes a fifth of the time
            return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        except (TypeError, ValueError):  # it is read-only, empty or not contiguous
            return int(array.__array_interface__["data"][0])
    return int(array.data.ptr)


def joint_axes(*arrays: Any) -> tuple[list[int], list[Axis]]:
    """Return the addresses of arrays of one shape, and the fewest axes that reach all elements.

    The arrays are NumPy's or CuPy's. Axes of one element are left out, axes along which the first
    array runs backwards are turned round in all, and axes that follow each other without a gap in
    every array become one. They are ordered by the first array's strides, largest first.
    """
    addresses = [address_of(array) for array in arrays]
    axes = []
    for axis in zip(arrays[0].shape, *(array.strides for array in arrays), strict=True):
        n = axis[0]
        if n == 1:
            continue
        if axis[1] < 0:
            addresses = [
                a + (n - 1) * stride for a, stride in zip(addresses, axis[1:], strict=True)
            ]
            axis = (n, *(-stride for stride in axis[1:]))
        axes.append(axis)
    axes.sort(key=lambda axis: -axis[1])
    joined: list[Axis] = []
    for axis in axes:
        n = axis[0]
        if joined and all(a == n * b for a, b in zip(joined[-1][1:], axis[1:], strict=True)):
            joined[-1] = (joined[-1][0] * n, *axis[1:])
        else:
            joined.append(axis)
    return addresses, joined


def offsets(axes: Sequence[Axis], arrays: int) -> Iterator[tuple[int, ...]]:
    """Yield the offset in bytes into each array, for every index along ``axes``, in C order."""
    steps = [[tuple(i * stride for stride in axis[1:]) for i in range(axis[0])] for axis in axes]
    start = (0,) * arrays
    for chosen in itertools.product([start], *steps):
        yield tuple(map(sum, zip(*chosen, strict=True)))


def _copy_rows(by: Any, d: int, s: int, run: int, outer: Sequence[Axis]) -> None:
    """Copy rows by a kernel that takes three outer axes, the longest first."""
    inner = sorted(outer[-3:], key=lambda axis: -axis[0])
    inner += [(1, 0, 0)] * (3 - len(inner))
    for e, t in offsets(outer[:-3], 2):
        by(d + e, s + t, run, *inner[0], *inner[1], *inner[2])


def _copy_transposed(
    dst: np.ndarray, src: np.ndarray, d: int, s: int, axes: Sequence[Axis], streaming: bool
) -> bool:
    """Copy planes of which one axis has unit stride in ``dst`` and the other in ``src``."""
    itemsize = dst.itemsize
    columns, _, src_stride = axes[-1]
    across = next((i for i, axis in enumerate(axes[:-1]) if axis[2] == itemsize), None)
    if across is None or itemsize not in _TRANSPOSED:
        return False
    rows, dst_stride, _ = axes[across]
    beyond = [axis for i, axis in enumerate(axes[:-1]) if i != across]
    least = _LINE // itemsize
    if min(rows, columns) < least or (beyond and rows * columns * itemsize < _BYTES_PER_CALL):
        return False

    def copy_planes(by: Any) -> None:
        for e, t in offsets(beyond, 2):
            by(d + e, s + t, columns, rows, dst_stride, src_stride)

    def through_caches() -> None:
        run_faster(
            f"transpose {itemsize}",
            dst.nbytes,
            _kernel("transpose", itemsize, 0),
            copy_planes,
            lambda: np.copyto(dst, src),
            _TRANSPOSE_COST,
        )

    aligned = (d | dst_stride) % _LINE == 0 and all(axis[1] % _LINE == 0 for axis in beyond)
    if streaming and aligned and itemsize in _TRANSPOSED_STREAMING:
        by = _kernel("transpose", itemsize, 1)
        job = f"transpose streaming {itemsize}"
        run_faster(job, dst.nbytes, by, copy_planes, through_caches, _TRANSPOSE_COST)
    else:
        through_caches()
    return True


_kernel = partial(kernel, "distarray.comm.kernels._copy")
