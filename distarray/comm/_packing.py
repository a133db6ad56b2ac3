"""Copies of boxes of local blocks, of any number of axes, strides and data type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.comm.kernels._loop_nest import STREAMING_BYTES, copy_by_kernel
from distarray.comm.kernels._threads import run_on_parts, thread_count
from distarray.typing import Buffer

_KERNEL_BYTES: Final = 256 * 1024
"""Below this size NumPy copies everything.

Measured on Zen 5, of strided blocks that are in no cache: kernels take twice NumPy's time at half
of it, as long here or less, and half of it at double the size.
"""


LONG_RUN_BYTES: Final = 64 * 1024
"""Stretches from this size on are sent as they lie.

Measured on Zen 1 over MPICH 5, of 1 to 64 MiB from two ranks to each other: by MPI's datatypes such
stretches take half of the time of packing, sending and unpacking, those of 512 bytes twice of it.
"""


STRIDED_BYTES: Final = 2**31 - 1
"""Larger parts are sent as they lie only in one stretch: these go in pieces of so many items, where
by a datatype of MPI's they would be one message, and one end may have the stretch alone."""


INLINE_BYTES: Final = 64 * 1024
"""Parts up to this size are packed into the message that tells of them, where they have to be.

Measured on two ranks of Zen 5 over MPICH 5: from 8 to 64 KiB that takes a microsecond less than
messages which follow, at double the size as long."""


_ROUND_BYTES: Final = 16 << 20
"""Up to so many bytes of messages are packed at once.

Measured on two cores of Zen 5 over MPICH 5: of blocks of 16 MiB, which the caches hold, rounds of
less take up to two fifths more time."""

_ROUNDS: Final = 12
"""Of larger blocks messages go in so many rounds.

Measured there on two ranks, of blocks of 128 MiB: where the receiver unpacks them that takes a
twentieth less time than one round, where the sender packs them a third more, in four rounds hardly
less; transforms take a fiftieth more. Three ranks on two cores wait for each other: a quarter more
where the receiver unpacks, up to four fifths more where the sender packs."""


def packed_at_a_time(nbytes: int, ranks: int) -> int:
    """Return how many bytes of messages, sent and received, a rank packs before they leave.

    ``nbytes`` are those of the blocks before and after an exchange among so many ranks; of many,
    each still gets a long run.
    """
    return max(_ROUND_BYTES, nbytes // _ROUNDS, 2 * ranks * LONG_RUN_BYTES)


def copy_box(dst: Buffer, src: Buffer, *, total: int = 0) -> None:
    """Copy ``src`` into ``dst``: the same shape, any strides, no shared memory.

    ``total`` is the bytes of the block that this copy is a part of, where that is more than
    ``dst``: the parts of a block that does not fit the caches are written past them.
    """
    nbytes = dst.nbytes
    if nbytes < _KERNEL_BYTES or not _plain(dst, src):
        if isinstance(dst, np.ndarray):
            dst[...] = src
        elif not _launch_copies([(dst, src)]):
            _backend.assign(dst, src)
        return
    streaming = max(total, nbytes) >= STREAMING_BYTES
    lie_alike = dst.flags.c_contiguous and src.flags.c_contiguous
    if lie_alike and not streaming and thread_count(nbytes) == 1:
        np.copyto(dst, src)  # no kernel is quicker, and to find that takes 3 us
        return

    def copy(part: Any) -> None:
        if not copy_by_kernel(dst[part], src[part], streaming):
            np.copyto(dst[part], src[part])

    run_on_parts(copy, dst.shape, nbytes)


def copy_boxes(pairs: Sequence[tuple[Buffer, Buffer]], *, total: int = 0) -> None:
    """Copy the second array of each pair into the first, as ``copy_box`` would, in any order.

    In device memory this is one launch for all pairs, of any sources. No two destinations share
    memory.
    """
    if pairs and not isinstance(pairs[0][0], np.ndarray) and _launch_copies(pairs):
        return
    for dst, src in pairs:
        copy_box(dst, src, total=total)


def _launch_copies(pairs: Sequence[tuple[Buffer, Buffer]]) -> bool:
    from distarray.comm.cuda._boxes import launch_copies

    return launch_copies(pairs)


def _plain(dst: Buffer, src: Buffer) -> bool:
    """Tell whether this is a copy of bytes between NumPy arrays."""
    return (
        isinstance(dst, np.ndarray)
        and isinstance(src, np.ndarray)
        and dst.dtype == src.dtype
        and dst.shape == src.shape
        and not dst.dtype.hasobject
    )


def run_of(array: Buffer) -> tuple[int, int]:
    """Return the bytes of the stretches that an array lies in, and the axis that ends between two.

    These are the trailing axes that lie in C order; the number of the first of them.
    """
    run, axis = array.itemsize, array.ndim
    while axis and (array.shape[axis - 1] == 1 or array.strides[axis - 1] == run):
        axis -= 1
        run *= array.shape[axis]
    return run, axis


def goes_as_it_lies(array: Buffer) -> bool:
    """Tell whether an array in host memory is sent as it lies, without being packed before."""
    if array.flags.c_contiguous or array.nbytes <= INLINE_BYTES:
        return True
    return run_of(array)[0] >= min(LONG_RUN_BYTES, array.nbytes) and array.nbytes <= STRIDED_BYTES
