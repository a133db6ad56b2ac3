"""Collectives as pairwise exchanges: which range of a buffer each rank gives to each other one.

For buffers that a collective of the library's does not take: those on GPUs, and those with more
elements than it counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

from distarray.comm import _backend
from distarray.comm._collectives import Counts, offsets
from distarray.comm._requests import Request
from distarray.typing import Buffer

Ranges = dict[int, tuple[int, int]]
"""By rank: from which element of a buffer to which it gets, or gives."""


class PairwiseCollectives(ABC):
    """Collectives made of messages between two ranks; arguments are checked.

    What a call returns is complete when this rank's part is.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def all_gather(self, send: Buffer, recv: Buffer, counts: Counts, blocking: bool) -> Request:
        """Put every rank's ``send`` into every rank's ``recv``."""
        return self._exchange(send, self._all_of(send), recv, ranges(counts), blocking)

    def all_to_all(
        self,
        send: Buffer,
        recv: Buffer,
        send_counts: Counts,
        recv_counts: Counts,
        blocking: bool,
    ) -> Request:
        """Exchange a part with every rank."""
        return self._exchange(send, ranges(send_counts), recv, ranges(recv_counts), blocking)

    def scatter(
        self, send: Buffer | None, recv: Buffer, counts: Counts, root: int, blocking: bool
    ) -> Request:
        """Put part ``rank`` of the root's ``send`` into ``recv``."""
        if send is None:
            return self._exchange(recv, {}, recv, {root: (0, recv.size)}, blocking)
        return self._exchange(send, ranges(counts), recv, {root: (0, recv.size)}, blocking)

    def gather(
        self, send: Buffer, recv: Buffer | None, counts: Counts, root: int, blocking: bool
    ) -> Request:
        """Put every rank's ``send`` into the root's ``recv``."""
        if recv is None:
            return self._exchange(send, {root: (0, send.size)}, send, {}, blocking)
        return self._exchange(send, {root: (0, send.size)}, recv, ranges(counts), blocking)

    def _all_of(self, buffer: Buffer) -> Ranges:
        """Return that every rank gets all of a buffer."""
        return dict.fromkeys(range(self._size), (0, buffer.size))

    def _exchange(
        self, send: Buffer, sends: Ranges, recv: Buffer, receives: Ranges, blocking: bool
    ) -> Request:
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
        return self._move(
            send, _filled(sends, after), recv, _filled(receives, after[::-1]), blocking
        )

    @abstractmethod
    def _move(
        self, send: Buffer, sends: Ranges, recv: Buffer, receives: Ranges, blocking: bool
    ) -> Request:
        """Send and receive ranges of flat buffers, in the order in which they are given.

        None of them is empty, or for this rank.
        """


def ranges(counts: Counts) -> Ranges:
    """Return the ranges of a buffer that consists of a part for each rank."""
    return dict(enumerate(pairwise(offsets(counts))))


def _filled(ranges: Ranges, peers: list[int]) -> Ranges:
    """Return the ranges of some ranks that are not empty, in the order of the ranks."""
    found = {peer: ranges[peer] for peer in peers if peer in ranges}
    return {peer: (start, stop) for peer, (start, stop) in found.items() if start < stop}
