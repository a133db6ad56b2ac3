"""What moves between GPUs in a collective, as messages between pairs of ranks.

Both ways of carrying them (`_direct`, `_staging`) carry any set of messages, and between two ranks
they stay in order. The order in which a rank goes through its messages is part of one order of all
messages of the collective: so a rank that has only a few under way at a time never waits for one
that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from distarray.comm._collectives import Counts, offsets
from distarray.typing import Buffer


class Message(NamedTuple):
    """Bytes ``start`` to ``stop`` of a flat buffer of bytes, to or from other ranks.

    What is received has one peer; what is sent goes to each of them.
    """

    buffer: Buffer
    start: int
    stop: int
    peers: tuple[int, ...]


class Plan(NamedTuple):
    """The messages of one rank, in the order in which it goes through them.

    Attributes
    ----------
    sends, receives
        None of them empty.
    by_turns
        Whether the first chunk of every message goes before the second of any; else one message
        goes after the other.
    """

    sends: Sequence[Message]
    receives: Sequence[Message]
    by_turns: bool = False


def as_bytes(buffer: Buffer) -> Buffer:
    """Return a contiguous buffer as flat bytes, in place."""
    return buffer.reshape(-1).view(np.uint8)


def all_gather(rank: int, send: Buffer, recv: Buffer, counts: Counts) -> Plan:
    """Return the messages that put every rank's ``send`` into its part of ``recv``."""
    others = tuple(after(rank, len(counts)))
    return Plan(
        _parts(send, [(0, send.size, others)]),
        _parts(recv, _of_peers(counts, before(rank, len(counts)))),
        by_turns=True,
    )


def all_to_all(
    rank: int, send: Buffer, recv: Buffer, send_counts: Counts, recv_counts: Counts
) -> Plan:
    """Return the messages that exchange a part with every other rank."""
    n = len(send_counts)
    return Plan(
        _parts(send, _of_peers(send_counts, after(rank, n))),
        _parts(recv, _of_peers(recv_counts, before(rank, n))),
    )


def scatter(rank: int, send: Buffer | None, recv: Buffer, counts: Counts, root: int) -> Plan:
    """Return the messages that put part ``i`` of the root's ``send`` into rank ``i``'s ``recv``."""
    if send is None:
        return Plan([], _parts(recv, [(0, recv.size, (root,))]), by_turns=True)
    return Plan(_parts(send, _of_peers(counts, after(rank, len(counts)))), [], by_turns=True)


def gather(rank: int, send: Buffer, recv: Buffer | None, counts: Counts, root: int) -> Plan:
    """Return the messages that put every rank's ``send`` into its part of the root's ``recv``."""
    if recv is None:
        return Plan(_parts(send, [(0, send.size, (root,))]), [], by_turns=True)
    return Plan([], _parts(recv, _of_peers(counts, before(rank, len(counts)))), by_turns=True)


def broadcast(rank: int, array: Buffer, root: int, n: int) -> Plan:
    """Return the messages of a broadcast in which the root sends everything to everybody."""
    if rank == root:
        return Plan(_parts(array, [(0, array.size, tuple(after(rank, n)))]), [])
    return Plan([], _parts(array, [(0, array.size, (root,))]))


def spread(rank: int, array: Buffer, counts: Counts, root: int) -> Plan:
    """Return the messages that follow a scatter of ``array`` in place: all parts to all others."""
    n = len(counts)
    starts = offsets(counts)
    others = tuple(peer for peer in after(rank, n) if peer != root)
    sends = _parts(array, [(starts[rank], starts[rank + 1], others)] if others else [])
    if rank == root:
        return Plan(sends, [], by_turns=True)
    return Plan(sends, _parts(array, _of_peers(counts, before(rank, n))), by_turns=True)


def point_to_point(array: Buffer, peer: int, *, sends: bool) -> Plan:
    """Return the one message of a send, or of a receive."""
    message = _parts(array, [(0, array.size, (peer,))])
    return Plan(message, []) if sends else Plan([], message)


def after(rank: int, n: int) -> Iterator[int]:
    """Yield the other ranks, beginning with the next: in step ``s`` rank ``r`` sends to r + s."""
    return ((rank + step) % n for step in range(1, n))


def before(rank: int, n: int) -> Iterator[int]:
    """Yield the other ranks, beginning with the last: from whom ``after`` has them send."""
    return ((rank - step) % n for step in range(1, n))


def _of_peers(counts: Counts, peers: Iterator[int]) -> list[tuple[int, int, tuple[int, ...]]]:
    starts = offsets(counts)
    return [(starts[peer], starts[peer + 1], (peer,)) for peer in peers]


def _parts(buffer: Buffer, parts: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[Message]:
    """Return messages of parts in elements, without the empty ones."""
    if not buffer.size:
        return []
    flat, item = as_bytes(buffer), buffer.itemsize
    return [
        Message(flat, start * item, stop * item, peers)
        for start, stop, peers in parts
        if start < stop and peers
    ]
