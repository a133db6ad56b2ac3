"""Views of blocks on their way: one exchange of them between ranks that share no memory.

What lies in long runs MPI takes from where it lies, and puts where it belongs; the rest is packed,
in rounds where it is much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from distarray.comm import (
    Communicator,
    _backend,
    _memory,
    copy_boxes,
    goes_as_it_lies,
    packed_at_a_time,
    split_parts,
)
from distarray.layout import box as boxes
from distarray.redistribute._schedule import slab
from distarray.typing import Buffer

View = tuple[int, Buffer]
"""A rank of a communicator, and a part of a block that goes there, or what comes from there fills.

Two ranks list what passes between them in one order.
"""


End = tuple[Sequence[Buffer] | None, Buffer | None, Sequence[int]]
"""What goes to each rank, or what its part fills: arrays as they lie, or else the packed values of
all, and how many are each one's."""


def count_rounds(nbytes: int, ranks: int) -> int:
    """Return in how many rounds blocks of so many bytes, before and after, are packed and sent."""
    return -(-nbytes // packed_at_a_time(nbytes, ranks)) or 1


def exchange_views(
    communicator: Communicator,
    leaving: Sequence[View],
    arriving: Sequence[View],
    block: Buffer,
    token: int,
    what: object,
    rounds: int = 1,
) -> None:
    """Send parts of blocks to their ranks, and fill others with what comes (collective).

    ``block`` tells the device and the dtype of all, and of how many bytes they are parts. ``token``
    and ``what`` are as in ``Communicator.views``, ``rounds`` the same on all ranks.
    """
    for k in range(rounds):
        ends = _slabs(leaving, k, rounds), _slabs(arriving, k, rounds)
        _exchange_round(communicator, *ends, block, token, what)


def _slabs(views: Sequence[View], k: int, rounds: int) -> Sequence[View]:
    """Return the k-th part of every view."""
    if rounds == 1:
        return views
    return [
        (peer, view[(*boxes.slices(box), ...)])
        for peer, view in views
        for box in slab(boxes.whole(view.shape), (k, rounds))
    ]


def _exchange_round(
    communicator: Communicator,
    leaving: Sequence[View],
    arriving: Sequence[View],
    block: Buffer,
    token: int,
    what: object,
) -> None:
    size, nbytes, device = communicator.size, block.nbytes, _backend.device_of(block)
    parts = into = send = recv = None
    if communicator.sends_parts and _backend.is_numpy(block):
        parts = _as_they_lie(leaving, size, block)
        into = _as_they_lie(arriving, size, block)
    send_counts: Sequence[int] = ()
    recv_counts: Sequence[int] = ()
    if parts is None:
        send_counts = _counts(leaving, size)
        send = _memory.empty((sum(send_counts),), block.dtype, device)
    if into is None:
        recv_counts = _counts(arriving, size)
        recv = _memory.empty((sum(recv_counts),), block.dtype, device)

    def fill() -> None:
        if send is not None:
            copy_boxes(list(_parts(send, leaving, send_counts)), total=nbytes)

    exchange_parts(
        communicator, (parts, send, send_counts), (into, recv, recv_counts), token, what, fill
    )
    if recv is not None:
        packed = _parts(recv, arriving, recv_counts)
        copy_boxes([(view, part) for part, view in packed], total=nbytes)


def exchange_parts(
    communicator: Communicator,
    sent: End,
    received: End,
    token: int,
    what: object,
    fill: Callable[[], object],
) -> None:
    """Send each rank its part, which ``fill()`` packs while the ranks compare a token."""
    parts, send, send_counts = sent
    into, recv, recv_counts = received
    if send is not None and recv is not None:
        communicator.all_to_all(
            send, recv, send_counts, recv_counts, token=token, what=what, fill=fill
        )
        return
    if send is not None:
        parts = split_parts(send, send_counts)
    if recv is not None:
        into = split_parts(recv, recv_counts)
    assert parts is not None  # one way or the other
    assert into is not None
    communicator.all_to_all_parts(parts, into, token, what, fill)


def _as_they_lie(views: Sequence[View], size: int, block: Buffer) -> list[Buffer] | None:
    """Return a view for each rank, where there is one at most and none has to be packed."""
    nothing = np.empty(0, block.dtype)
    found = [nothing] * size
    for peer, view in views:
        if found[peer] is not nothing or not goes_as_it_lies(view):
            return None
        found[peer] = view
    return found


def _counts(views: Sequence[View], size: int) -> list[int]:
    counts = [0] * size
    for peer, view in views:
        counts[peer] += view.size
    return counts


def _parts(
    buffer: Buffer, views: Sequence[View], counts: Sequence[int]
) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield (part of the packed buffer, view) with the ranks' parts one after another."""
    at = [sum(counts[:peer]) for peer in range(len(counts))]
    for peer, view in views:
        yield buffer[at[peer] : at[peer] + view.size].reshape(view.shape), view
        at[peer] += view.size
