"""Array-level rules of the collectives: which buffers and counts fit together.

Everything here is local to a rank: it runs before a transport is asked to move anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from distarray.comm import _backend
from distarray.errors import ArgumentError, DeviceError, DTypeError
from distarray.typing import Buffer

Counts = Sequence[int]

OWN_TAG: Final = 32767
"""Of the library's own messages: the largest tag that every MPI has."""


def offsets(counts: Counts) -> list[int]:
    """Return where each rank's part starts, and the end of the last."""
    return [0, *accumulate(counts)]


def parts(array: np.ndarray, counts: Counts) -> list[np.ndarray]:
    """Return views of the parts of a flat array."""
    starts = offsets(counts)
    return [array[starts[i] : starts[i + 1]] for i in range(len(counts))]


def check_counts(
    counts: Counts | None, n: int, total: int | None, what: str, collective: str
) -> tuple[int, ...]:
    """Return counts as Python integers after checking that they fit a buffer of ``total``."""
    if counts is None:
        total = total or 0
        if total % n:
            raise ArgumentError(
                f"{collective} without counts needs a {what} buffer of a multiple of {n} elements, "
                f"one part per rank, not {total}; pass counts"
            )
        return (total // n,) * n
    result = tuple(int(count) for count in counts)
    if len(result) != n or min(result) < 0 or (total is not None and sum(result) != total):
        raise ArgumentError(
            f"{collective} got {what} counts {_short(result)} (sum {sum(result)}) for {n} ranks "
            f"and a buffer of {total} elements; pass one count per rank, none negative, that add "
            "up to the buffer"
        )
    return result


def check_size(buffer: Buffer, expected: int, what: str, collective: str) -> None:
    """Raise ArgumentError unless a buffer has the expected number of elements."""
    if buffer.size != expected:
        raise ArgumentError(
            f"{collective} needs a {what} buffer of {expected} elements on this rank, not "
            f"{buffer.size}"
        )


def check_rank(rank: int, n: int, what: str) -> int:
    """Return a rank as an integer; ArgumentError where there is no such rank."""
    if not 0 <= rank < n:
        raise ArgumentError(f"{what}={rank} is not a rank of a communicator of {n} ranks")
    return int(rank)


def check_tag(tag: int) -> None:
    """Raise ArgumentError for tags that not every MPI has, or that are ours."""
    if not 0 <= tag < OWN_TAG:
        raise ArgumentError(f"tag={tag} is not from 0 to {OWN_TAG - 1}; choose a smaller one")


def check_buffer(buffer: Buffer, what: str, collective: str) -> None:
    """Refuse buffers that cannot travel as they lie in memory."""
    if buffer.dtype.hasobject:
        raise DTypeError(
            f"{collective} cannot move dtype {buffer.dtype}: Python objects are not memory; "
            "convert the values to a numeric, string or structured dtype"
        )
    if not buffer.flags.c_contiguous:
        raise ArgumentError(
            f"{collective} needs a C-contiguous {what} buffer, not strides {buffer.strides} for "
            f"shape {buffer.shape}; pass numpy.ascontiguousarray(...)"
        )


def check_pair(send: Buffer, recv: Buffer, collective: str) -> None:
    """Check both buffers, and that they agree in dtype and in where they are."""
    check_buffer(send, "send", collective)
    check_buffer(recv, "receive", collective)
    if send.dtype != recv.dtype:
        raise DTypeError(
            f"{collective} would receive {send.dtype} values into a {recv.dtype} buffer; give both "
            "the same dtype"
        )
    if _backend.is_numpy(send) is not _backend.is_numpy(recv):
        raise DeviceError(
            f"{collective} would move values from {_backend.device_of(send)!r} memory to "
            f"{_backend.device_of(recv)!r} memory; give both buffers on one device"
        )


def on_host(buffer: Buffer) -> np.ndarray:
    """Return a buffer's values as a flat NumPy array: a view where they are in host memory."""
    flat = buffer.reshape(-1)
    host: np.ndarray = flat if _backend.is_numpy(flat) else flat.get()
    return host


def host_target(buffer: Buffer) -> np.ndarray:
    """Return flat host memory that takes what ``from_host`` then puts into a buffer."""
    if _backend.is_numpy(buffer):
        flat: np.ndarray = buffer.reshape(-1)
        return flat
    return np.empty(buffer.size, buffer.dtype)


def from_host(host: np.ndarray, buffer: Buffer) -> Buffer:
    """Return ``buffer`` with the values of ``host``, which may be a view of it already."""
    flat = buffer.reshape(-1)
    if not _backend.is_numpy(flat):
        flat.set(host)
    elif not np.may_share_memory(flat, host):
        flat[...] = host
    return buffer


def _short(counts: Counts) -> str:
    shown = ", ".join(map(str, counts[:8]))
    return f"({shown}, ... {len(counts)} in all)" if len(counts) > 8 else f"({shown})"
