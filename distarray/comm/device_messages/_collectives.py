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
    PairwiseCollectives,
    Ranges,
    ranges,
    split_parts,
)
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

    def broadcast(self, array: Buffer, root: int) -> None:
        """Put the root's values into every rank's ``array``.

        It takes two exchanges, so that the root sends everything twice at most and not once for
        every rank (van de Geijn's scatter and all-gather).
        """
        is_root = self._rank == root
        sends: Ranges = {}
        if self._size == 2:
            sends = self._all_of(array) if is_root else {}
            receives = {} if is_root else {root: (0, array.size)}
            self._exchange(array, sends, array, receives)
            return
        each = ranges(_even(array.size, self._size))
        mine = each[self._rank]
        sends, receives = (each, {}) if is_root else ({}, {root: mine})
        self._exchange(array, sends, array, receives)
        sends = dict.fromkeys(range(self._size), mine)
        del sends[root]
        self._exchange(array, sends, array, {} if is_root else each)

    def send(self, array: Buffer, dest: int, tag: int) -> None:
        """Send values to one rank."""
        self._between_two(Plan(_messages(array, _whole(array, dest)), []), tag)

    def recv(self, array: Buffer, source: int, tag: int) -> None:
        """Fill an array with the values that one rank sends."""
        self._between_two(Plan([], _messages(array, _whole(array, source))), tag)

    # --- reducing --------------------------------------------------------------------------------

    def all_reduce(self, array: Buffer, out: Buffer, op: str) -> None:
        """Put the reduction of every rank's array into ``out``, which may be ``array``."""
        flat, target = array.reshape(-1), out.reshape(-1)
        counts, rank = _even(array.size, self._size), self._rank
        each = ranges(counts)
        n, mine, device = counts[rank], slice(*each[rank]), _backend.device_of(array)
        own = flat[mine]
        if array is out:  # where the result goes
            own = _memory.empty((n,), flat.dtype, device)
            _backend.assign(own, flat[mine])
        received = [n] * self._size
        received[rank] = 0
        others = _memory.empty((n * (self._size - 1),), flat.dtype, device)
        sources = split_parts(others, received)
        sources[rank] = own
        self._exchange(flat, each, others, ranges(received))
        if n:
            reduce_into(target[mine], sources, op)
        self._exchange(target, dict.fromkeys(range(self._size), each[rank]), target, each)

    # --- which way -------------------------------------------------------------------------------

    def _move(self, send: Buffer, sends: Ranges, recv: Buffer, receives: Ranges) -> None:
        if self._direct is None:
            self._direct = verdict(self._communicator).direct
        way = exchange_direct if self._direct else exchange_staged
        way(self._communicator, Plan(_messages(send, sends), _messages(recv, receives)), OWN_TAG)

    def _between_two(self, plan: Plan, tag: int) -> None:
        if self._direct:
            exchange_direct(self._communicator, plan, tag, in_chunks=True)
        else:
            exchange_staged(self._communicator, plan, tag)


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
