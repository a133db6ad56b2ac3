"""Collectives of buffers on GPUs: which messages, which way, and reductions by our own kernels.

MPI never reduces device memory: values are exchanged, and reduced on the device in the order of
the ranks. An all-reduce is an exchange of parts, of which every rank reduces one, and an all-gather
of the results: so all ranks have the same bits. Whether MPI takes addresses of device memory is
found out (`_awareness`) in the first collective of some ranks; messages between two ranks alone
are staged until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm._block_reduction import reduce_into
from distarray.comm._collectives import OWN_TAG, Counts, offsets, parts
from distarray.comm._requests import DONE, Completed, Pending, Request
from distarray.comm.device_messages._awareness import verdict
from distarray.comm.device_messages._exchange import Message, Plan, exchange_direct, exchange_staged
from distarray.layout import chunk
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.comm._communicator import Communicator

ON_HOST_BYTES: Final = 64 << 10
"""Up to this size collectives take the way of host memory, all at once: to be measured."""


class DeviceCollectives:
    """The collectives of a communicator, of buffers on GPUs; there are several ranks.

    Arguments are checked. What a call returns is complete when this rank's part is.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._rank = communicator.rank
        self._size = communicator.size
        self._direct: bool | None = None

    # --- moving ----------------------------------------------------------------------------------

    def all_gather(self, send: Buffer, recv: Buffer, counts: Counts, blocking: bool) -> Request:
        """Put every rank's ``send`` into every rank's ``recv``."""
        self._keep(send, recv, [0, send.size], offsets(counts))
        plan = _plan_all_gather(self._rank, send, recv, counts)
        return self._exchange(plan, blocking)

    def all_to_all(
        self,
        send: Buffer,
        recv: Buffer,
        send_counts: Counts,
        recv_counts: Counts,
        blocking: bool,
    ) -> Request:
        """Exchange a part with every rank."""
        mine = offsets(send_counts)[self._rank : self._rank + 2]
        self._keep(send, recv, mine, offsets(recv_counts))
        plan = _plan_all_to_all(self._rank, send, recv, send_counts, recv_counts)
        return self._exchange(plan, blocking)

    def scatter(
        self, send: Buffer | None, recv: Buffer, counts: Counts, root: int, blocking: bool
    ) -> Request:
        """Put part ``rank`` of the root's ``send`` into ``recv``."""
        if send is not None:
            start, stop = offsets(counts)[root : root + 2]
            _backend.assign(recv.reshape(-1), send.reshape(-1)[start:stop])
        plan = _plan_scatter(self._rank, send, recv, counts, root)
        return self._exchange(plan, blocking)

    def gather(
        self, send: Buffer, recv: Buffer | None, counts: Counts, root: int, blocking: bool
    ) -> Request:
        """Put every rank's ``send`` into the root's ``recv``."""
        if recv is not None:
            self._keep(send, recv, [0, send.size], offsets(counts))
        plan = _plan_gather(self._rank, send, recv, counts, root)
        return self._exchange(plan, blocking)

    def broadcast(self, array: Buffer, root: int, blocking: bool) -> Request:
        """Put the root's values into every rank's ``array``.

        A blocking call takes two exchanges, so that the root sends everything twice at most and
        not once for every rank (van de Geijn's scatter and all-gather).
        """
        if not blocking or self._size == 2:
            return self._exchange(_plan_broadcast(self._rank, array, root, self._size), blocking)
        counts = _even(array.size, self._size)
        starts = offsets(counts)
        mine = array.reshape(-1)[starts[self._rank] : starts[self._rank + 1]]
        source = array if self._rank == root else None
        self._exchange(_plan_scatter(self._rank, source, mine, counts, root), True)
        return self._exchange(_plan_spread(self._rank, array, counts, root), True)

    def send(self, array: Buffer, dest: int, tag: int, blocking: bool) -> Request:
        """Send values to one rank."""
        plan = _plan_point_to_point(array, dest, sends=True)
        return self._between_two(plan, tag, blocking)

    def recv(self, array: Buffer, source: int, tag: int, blocking: bool) -> Request:
        """Fill an array with the values that one rank sends."""
        plan = _plan_point_to_point(array, source, sends=False)
        return self._between_two(plan, tag, blocking)

    # --- reducing --------------------------------------------------------------------------------

    def all_reduce(self, array: Buffer, out: Buffer, op: str, bfloat16: bool) -> None:
        """Put the reduction of every rank's array into ``out``, which may be ``array``."""
        counts = _even(array.size, self._size)
        starts = offsets(counts)
        target = out.reshape(-1)
        mine = target[starts[self._rank] : starts[self._rank + 1]]
        self.reduce_scatter(array, mine, counts, op, bfloat16, True, in_place=array is out)
        self._exchange(_plan_all_gather(self._rank, mine, target, counts), True)

    def reduce_scatter(
        self,
        send: Buffer,
        recv: Buffer,
        counts: Counts,
        op: str,
        bfloat16: bool,
        blocking: bool,
        *,
        in_place: bool = False,
    ) -> Request:
        """Reduce every rank's ``send``, and put part ``rank`` of it into ``recv``.

        ``recv`` may lie in ``send``, where its own part is, if ``in_place`` says so.
        """
        flat = send.reshape(-1)
        n, rank = counts[self._rank], self._rank
        own = parts(flat, counts)[rank]
        device = _backend.device_of(send)
        if in_place:
            copy = _memory.empty((n,), flat.dtype, device)
            _backend.assign(copy, own)
            own = copy
        received = [n] * self._size
        received[rank] = 0
        others = _memory.empty((n * (self._size - 1),), flat.dtype, device)
        plan = _plan_all_to_all(rank, flat, others, counts, received)
        sources = parts(others, received)
        sources[rank] = own

        def reduce() -> None:
            if n:
                reduce_into(recv.reshape(-1), sources, op, bfloat16=bfloat16)

        request = self._exchange(plan, blocking)
        if isinstance(request, Completed):
            reduce()
            return DONE
        return Pending(request, (), reduce)

    # --- which way -------------------------------------------------------------------------------

    def _keep(self, send: Buffer, recv: Buffer, mine: Counts, starts: Counts) -> None:
        """Copy what this rank sends to itself, on the current stream."""
        if mine[0] < mine[1]:
            start, stop = starts[self._rank], starts[self._rank + 1]
            _backend.assign(recv.reshape(-1)[start:stop], send.reshape(-1)[mine[0] : mine[1]])

    def _exchange(self, plan: Plan, blocking: bool) -> Request:
        if self._direct is None:
            self._direct = verdict(self._communicator).direct
        way = exchange_direct if self._direct else exchange_staged
        return way(self._communicator, plan, OWN_TAG, blocking)

    def _between_two(self, plan: Plan, tag: int, blocking: bool) -> Request:
        if self._direct:
            return exchange_direct(self._communicator, plan, tag, blocking, in_chunks=True)
        return exchange_staged(self._communicator, plan, tag, blocking)


def _even(size: int, n: int) -> list[int]:
    """Return how many elements each of n ranks takes of ``size``."""
    return [stop - start for start, stop in pairwise(chunk(size, (n,)).offsets)]


# --- messages ------------------------------------------------------------------------------------


def _plan_all_gather(rank: int, send: Buffer, recv: Buffer, counts: Counts) -> Plan:
    """Return the messages that put every rank's ``send`` into its part of ``recv``."""
    others = tuple(_ranks_after(rank, len(counts)))
    return Plan(
        _parts(send, [(0, send.size, others)]),
        _parts(recv, _of_peers(counts, _ranks_before(rank, len(counts)))),
        by_turns=True,
    )


def _plan_all_to_all(
    rank: int, send: Buffer, recv: Buffer, send_counts: Counts, recv_counts: Counts
) -> Plan:
    """Return the messages that exchange a part with every other rank."""
    n = len(send_counts)
    return Plan(
        _parts(send, _of_peers(send_counts, _ranks_after(rank, n))),
        _parts(recv, _of_peers(recv_counts, _ranks_before(rank, n))),
    )


def _plan_scatter(rank: int, send: Buffer | None, recv: Buffer, counts: Counts, root: int) -> Plan:
    """Return the messages that put part ``i`` of the root's ``send`` into rank ``i``'s ``recv``."""
    if send is None:
        return Plan([], _parts(recv, [(0, recv.size, (root,))]), by_turns=True)
    return Plan(_parts(send, _of_peers(counts, _ranks_after(rank, len(counts)))), [], by_turns=True)


def _plan_gather(rank: int, send: Buffer, recv: Buffer | None, counts: Counts, root: int) -> Plan:
    """Return the messages that put every rank's ``send`` into its part of the root's ``recv``."""
    if recv is None:
        return Plan(_parts(send, [(0, send.size, (root,))]), [], by_turns=True)
    return Plan(
        [], _parts(recv, _of_peers(counts, _ranks_before(rank, len(counts)))), by_turns=True
    )


def _plan_broadcast(rank: int, array: Buffer, root: int, n: int) -> Plan:
    """Return the messages of a broadcast in which the root sends everything to everybody."""
    if rank == root:
        return Plan(_parts(array, [(0, array.size, tuple(_ranks_after(rank, n)))]), [])
    return Plan([], _parts(array, [(0, array.size, (root,))]))


def _plan_spread(rank: int, array: Buffer, counts: Counts, root: int) -> Plan:
    """Return the messages that follow a scatter of ``array`` in place: all parts to all others."""
    n = len(counts)
    starts = offsets(counts)
    others = tuple(peer for peer in _ranks_after(rank, n) if peer != root)
    sends = _parts(array, [(starts[rank], starts[rank + 1], others)] if others else [])
    if rank == root:
        return Plan(sends, [], by_turns=True)
    return Plan(sends, _parts(array, _of_peers(counts, _ranks_before(rank, n))), by_turns=True)


def _plan_point_to_point(array: Buffer, peer: int, *, sends: bool) -> Plan:
    """Return the one message of a send, or of a receive."""
    message = _parts(array, [(0, array.size, (peer,))])
    return Plan(message, []) if sends else Plan([], message)


def _ranks_after(rank: int, n: int) -> Iterator[int]:
    """Yield the other ranks, beginning with the next: in step ``s`` rank ``r`` sends to r + s."""
    return ((rank + step) % n for step in range(1, n))


def _ranks_before(rank: int, n: int) -> Iterator[int]:
    """Yield the other ranks, beginning with the last: from whom ``_ranks_after`` has them send."""
    return ((rank - step) % n for step in range(1, n))


def _of_peers(counts: Counts, peers: Iterator[int]) -> list[tuple[int, int, tuple[int, ...]]]:
    starts = offsets(counts)
    return [(starts[peer], starts[peer + 1], (peer,)) for peer in peers]


def _parts(buffer: Buffer, parts: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[Message]:
    """Return messages of parts in elements, without the empty ones."""
    if not buffer.size:
        return []
    flat, item = buffer.reshape(-1).view(np.uint8), buffer.itemsize
    return [
        Message(flat, start * item, stop * item, peers)
        for start, stop, peers in parts
        if start < stop and peers
    ]
