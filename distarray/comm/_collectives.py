"""Collectives: which buffers and counts fit together, and which messages make them.

The checks are local to a rank: they run before a transport is asked to move anything. As pairwise
exchanges go buffers that a collective of the library's does not take: those on GPUs, and those with
more elements than it counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from distarray.comm import _backend
from distarray.errors import ArgumentError, DeviceError, DTypeError
from distarray.typing import Buffer

Counts = Sequence[int]

OWN_TAG: Final = 32767
"""Of the library's own messages: the largest tag that every MPI has, and the one below."""


def offsets(counts: Counts) -> list[int]:
    """Return where each rank's part starts, and the end of the last."""
    return [0, *accumulate(counts)]


def split_parts(array: np.ndarray, counts: Counts) -> list[np.ndarray]:
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
    if not 0 <= tag < OWN_TAG - 1:
        raise ArgumentError(f"tag={tag} is not from 0 to {OWN_TAG - 2}; choose a smaller one")


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
    return _backend.to_host(buffer.reshape(-1))


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


# --- collectives as pairwise exchanges -----------------------------------------------------------

Ranges = dict[int, tuple[int, int]]
"""By rank: from which element of a buffer to which it gets, or gives."""


class PairwiseCollectives(ABC):
    """Collectives made of messages between two ranks; arguments are checked.

    A call returns when this rank's part is complete.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def all_gather(self, send: Buffer, recv: Buffer, counts: Counts) -> None:
        """Put every rank's ``send`` into every rank's ``recv``."""
        self._exchange(send, self._all_of(send), recv, ranges(counts))

    def all_to_all(
        self, send: Buffer, recv: Buffer, send_counts: Counts, recv_counts: Counts
    ) -> None:
        """Exchange a part with every rank."""
        self._exchange(send, ranges(send_counts), recv, ranges(recv_counts))

    def scatter(self, send: Buffer | None, recv: Buffer, counts: Counts, root: int) -> None:
        """Put part ``rank`` of the root's ``send`` into ``recv``."""
        sends = {} if send is None else ranges(counts)
        self._exchange(recv if send is None else send, sends, recv, {root: (0, recv.size)})

    def gather(self, send: Buffer, recv: Buffer | None, counts: Counts, root: int) -> None:
        """Put every rank's ``send`` into the root's ``recv``."""
        receives = {} if recv is None else ranges(counts)
        self._exchange(send, {root: (0, send.size)}, send if recv is None else recv, receives)

    def _all_of(self, buffer: Buffer) -> Ranges:
        """Return that every rank gets all of a buffer."""
        return dict.fromkeys(range(self._size), (0, buffer.size))

    def _exchange(self, send: Buffer, sends: Ranges, recv: Buffer, receives: Ranges) -> None:
        """Send ranges of a buffer to ranks, and receive ranges of another, or of the same.

        What this rank sends to itself is copied.
        """
        rank, n = self._rank, self._size
        (start, stop), (first, last) = sends.get(rank, (0, 0)), receives.get(rank, (0, 0))
        send, recv, is_one = send.reshape(-1), recv.reshape(-1), send is recv
        if first < last and not is_one:
            _backend.assign(recv[first:last], send[start:stop])
        # In step s rank r sends to rank r + s: an order of all messages that all ranks follow.
        after = [(rank + step) % n for step in range(1, n)]
        self._move(send, _drop_empty(sends, after), recv, _drop_empty(receives, after[::-1]))

    @abstractmethod
    def _move(self, send: Buffer, sends: Ranges, recv: Buffer, receives: Ranges) -> None:
        """Send and receive ranges of flat buffers, in the order in which they are given.

        None of them is empty, or for this rank.
        """


def ranges(counts: Counts) -> Ranges:
    """Return the ranges of a buffer that consists of a part for each rank."""
    return dict(enumerate(pairwise(offsets(counts))))


def _drop_empty(ranges: Ranges, peers: list[int]) -> Ranges:
    """Return the ranges of some ranks that are not empty, in the order of the ranks."""
    found = {peer: ranges[peer] for peer in peers if peer in ranges}
    return {peer: (start, stop) for peer, (start, stop) in found.items() if start < stop}
