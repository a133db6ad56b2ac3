"""Collectives of buffers on GPUs: which messages, which way, and reductions by our own kernels.

MPI never reduces device memory: values are exchanged, and reduced on the device in the order of
the ranks. An all-reduce is an exchange of parts, of which every rank reduces one, and an all-gather
of the results: so all ranks have the same bits. Whether MPI takes addresses of device memory is
found out (`_awareness`) in the first collective of some ranks; messages between two ranks alone
are staged until then.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from distarray.comm import _backend, _memory
from distarray.comm._block_reduction import reduce_into
from distarray.comm._collectives import (
    OWN_TAG,
    Counts,
    PairwiseCollectives,
    Ranges,
    ranges,
    split_parts,
)
from distarray.comm._requests import DONE, Completed, Pending, Request
from distarray.comm.device_messages._awareness import verdict
from distarray.comm.device_messages._exchange import (
    Message,
    Plan,
    exchange_direct,
    exchange_staged,
)
from distarray.layout import chunk
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.comm._communicator import Communicator


class DeviceCollectives(PairwiseCollectives):
    """The collectives of a communicator, of buffers on GPUs; there are several ranks."""

    def __init__(self, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._communicator = communicator
        self._direct: bool | None = None

    # --- moving ----------------------------------------------------------------------------------

    def broadcast(self, array: Buffer, root: int, blocking: bool) -> Request:
        """Put the root's values into every rank's ``array``.

        A blocking call takes two exchanges, so that the root sends everything twice at most and
        not once for every rank (van de Geijn's scatter and all-gather).
        """
        is_root = self._rank == root
        sends: Ranges = {}
        if not blocking or self._size == 2:
            sends = self._all_of(array) if is_root else {}
            receives = {} if is_root else {root: (0, array.size)}
            return self._exchange(array, sends, array, receives, blocking)
        each = ranges(_even(array.size, self._size))
        mine = each[self._rank]
        sends, receives = (each, {}) if is_root else ({}, {root: mine})
        self._exchange(array, sends, array, receives, True)
        sends = dict.fromkeys(range(self._size), mine)
        del sends[root]
        return self._exchange(array, sends, array, {} if is_root else each, True)

    def send(self, array: Buffer, dest: int, tag: int, blocking: bool) -> Request:
        """Send values to one rank."""
        plan = Plan(_messages(array, _whole(array, dest)), [])
        return self._between_two(plan, tag, blocking)

    def recv(self, array: Buffer, source: int, tag: int, blocking: bool) -> Request:
        """Fill an array with the values that one rank sends."""
        plan = Plan([], _messages(array, _whole(array, source)))
        return self._between_two(plan, tag, blocking)

    # --- reducing --------------------------------------------------------------------------------

    def all_reduce(self, array: Buffer, out: Buffer, op: str, blocking: bool) -> Request:
        """Put the reduction of every rank's array into ``out``, which may be ``array``."""
        assert blocking  # the parts are gathered when they are reduced
        counts = _even(array.size, self._size)
        target, each = out.reshape(-1), ranges(counts)
        mine = each[self._rank]
        part = target[slice(*mine)]
        self.reduce_scatter(array, part, counts, op, True, in_place=array is out)
        sends = dict.fromkeys(range(self._size), mine)
        return self._exchange(target, sends, target, each, True)

    def reduce_scatter(
        self,
        send: Buffer,
        recv: Buffer,
        counts: Counts,
        op: str,
        blocking: bool,
        *,
        in_place: bool = False,
    ) -> Request:
        """Reduce every rank's ``send``, and put part ``rank`` of it into ``recv``.

        ``recv`` may lie in ``send``, where its own part is, if ``in_place`` says so.
        """
        flat = send.reshape(-1)
        n, rank = counts[self._rank], self._rank
        own = split_parts(flat, counts)[rank]
        device = _backend.device_of(send)
        if in_place:
            copy = _memory.empty((n,), flat.dtype, device)
            _backend.assign(copy, own)
            own = copy
        received = [n] * self._size
        received[rank] = 0
        others = _memory.empty((n * (self._size - 1),), flat.dtype, device)
        sources = split_parts(others, received)
        sources[rank] = own

        def reduce() -> None:
            if n:
                reduce_into(recv.reshape(-1), sources, op)

        request = self._exchange(flat, ranges(counts), others, ranges(received), blocking)
        if isinstance(request, Completed):
            reduce()
            return DONE
        return Pending(request, (), reduce)

    # --- which way -------------------------------------------------------------------------------

    def _move(
        self, send: Buffer, sends: Ranges, recv: Buffer, receives: Ranges, blocking: bool
    ) -> Request:
        if self._direct is None:
            self._direct = verdict(self._communicator).direct
        way = exchange_direct if self._direct else exchange_staged
        plan = Plan(_messages(send, sends), _messages(recv, receives))
        return way(self._communicator, plan, OWN_TAG, blocking)

    def _between_two(self, plan: Plan, tag: int, blocking: bool) -> Request:
        if self._direct:
            return exchange_direct(self._communicator, plan, tag, blocking, in_chunks=True)
        return exchange_staged(self._communicator, plan, tag, blocking)


def _even(size: int, n: int) -> list[int]:
    """Return how many elements each of n ranks takes of ``size``."""
    return [stop - start for start, stop in pairwise(chunk(size, (n,)).offsets)]


def _whole(array: Buffer, peer: int) -> Ranges:
    return {peer: (0, array.size)} if array.size else {}


def _messages(buffer: Buffer, ranges: Ranges) -> list[Message]:
    """Return the messages of ranges of a buffer; a range that several ranks get is one message."""
    if not ranges:
        return []
    flat, item = buffer.reshape(-1).view("u1"), buffer.itemsize
    found: dict[tuple[int, int], list[int]] = {}
    for peer, (start, stop) in ranges.items():
        found.setdefault((start * item, stop * item), []).append(peer)
    return [Message(flat, start, stop, tuple(peers)) for (start, stop), peers in found.items()]
