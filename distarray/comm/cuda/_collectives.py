"""Collectives of buffers on GPUs: which messages, which way, and reductions by our own kernels.

MPI never reduces device memory: values are exchanged, and reduced on the device in the order of
the ranks. An all-reduce is an exchange of parts, of which every rank reduces one, and an all-gather
of the results: so all ranks have the same bits. Whether MPI takes addresses of device memory is
found out (`_cuda_aware`) in the first collective of some ranks; messages between two ranks alone
are staged until then.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from distarray.comm import _backend, _memory
from distarray.comm._collectives import OWN_TAG, Counts, offsets, parts
from distarray.comm._requests import DONE, Completed, Request, Then
from distarray.comm.cuda import _direct, _messages, _staging
from distarray.comm.cuda._awareness import verdict
from distarray.comm.cuda._messages import Plan
from distarray.comm.kernels._blocks import reduce_into
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
        plan = _messages.all_gather(self._rank, send, recv, counts)
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
        plan = _messages.all_to_all(self._rank, send, recv, send_counts, recv_counts)
        return self._exchange(plan, blocking)

    def scatter(
        self, send: Buffer | None, recv: Buffer, counts: Counts, root: int, blocking: bool
    ) -> Request:
        """Put part ``rank`` of the root's ``send`` into ``recv``."""
        if send is not None:
            start, stop = offsets(counts)[root : root + 2]
            _backend.assign(recv.reshape(-1), send.reshape(-1)[start:stop])
        plan = _messages.scatter(self._rank, send, recv, counts, root)
        return self._exchange(plan, blocking)

    def gather(
        self, send: Buffer, recv: Buffer | None, counts: Counts, root: int, blocking: bool
    ) -> Request:
        """Put every rank's ``send`` into the root's ``recv``."""
        if recv is not None:
            self._keep(send, recv, [0, send.size], offsets(counts))
        plan = _messages.gather(self._rank, send, recv, counts, root)
        return self._exchange(plan, blocking)

    def broadcast(self, array: Buffer, root: int, blocking: bool) -> Request:
        """Put the root's values into every rank's ``array``.

        A blocking call takes two exchanges, so that the root sends everything twice at most and
        not once for every rank (van de Geijn's scatter and all-gather).
        """
        if not blocking or self._size == 2:
            return self._exchange(
                _messages.broadcast(self._rank, array, root, self._size), blocking
            )
        counts = _even(array.size, self._size)
        starts = offsets(counts)
        mine = array.reshape(-1)[starts[self._rank] : starts[self._rank + 1]]
        source = array if self._rank == root else None
        self._exchange(_messages.scatter(self._rank, source, mine, counts, root), True)
        return self._exchange(_messages.spread(self._rank, array, counts, root), True)

    def send(self, array: Buffer, dest: int, tag: int, blocking: bool) -> Request:
        """Send values to one rank."""
        plan = _messages.point_to_point(array, dest, sends=True)
        return self._between_two(plan, tag, blocking)

    def recv(self, array: Buffer, source: int, tag: int, blocking: bool) -> Request:
        """Fill an array with the values that one rank sends."""
        plan = _messages.point_to_point(array, source, sends=False)
        return self._between_two(plan, tag, blocking)

    # --- reducing --------------------------------------------------------------------------------

    def all_reduce(self, array: Buffer, out: Buffer, op: str, bfloat16: bool) -> None:
        """Put the reduction of every rank's array into ``out``, which may be ``array``."""
        counts = _even(array.size, self._size)
        starts = offsets(counts)
        target = out.reshape(-1)
        mine = target[starts[self._rank] : starts[self._rank + 1]]
        self.reduce_scatter(array, mine, counts, op, bfloat16, True, in_place=array is out)
        self._exchange(_messages.all_gather(self._rank, mine, target, counts), True)

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
        plan = _messages.all_to_all(rank, flat, others, counts, received)
        sources = parts(others, received)
        sources[rank] = own

        def reduce() -> None:
            if n:
                reduce_into(recv.reshape(-1), sources, op, bfloat16=bfloat16)

        request = self._exchange(plan, blocking)
        if isinstance(request, Completed):
            reduce()
            return DONE
        return Then(request, reduce)

    # --- which way -------------------------------------------------------------------------------

    def _keep(self, send: Buffer, recv: Buffer, mine: Counts, starts: Counts) -> None:
        """Copy what this rank sends to itself, on the current stream."""
        if mine[0] < mine[1]:
            start, stop = starts[self._rank], starts[self._rank + 1]
            _backend.assign(recv.reshape(-1)[start:stop], send.reshape(-1)[mine[0] : mine[1]])

    def _exchange(self, plan: Plan, blocking: bool) -> Request:
        if self._direct is None:
            self._direct = verdict(self._communicator).direct
        way = _direct.exchange if self._direct else _staging.exchange
        return way(self._communicator, plan, OWN_TAG, blocking)

    def _between_two(self, plan: Plan, tag: int, blocking: bool) -> Request:
        if self._direct:
            return _direct.exchange(self._communicator, plan, tag, blocking, in_chunks=True)
        return _staging.exchange(self._communicator, plan, tag, blocking)


def _even(size: int, n: int) -> list[int]:
    """Return how many elements each of n ranks takes of ``size``."""
    return [stop - start for start, stop in pairwise(chunk(size, (n,)).offsets)]
