"""Messages of an exchange: what is packed, sent by one all-to-all(v) a round, and unpacked.

`Messages` are those of a step, `exchange_views` those of any views of blocks, of joins and windows.

The token that ranks compare travels with the messages, or while they are packed. Between nodes
what lies in long runs is not packed: MPI takes it from where it lies, and puts it where it belongs.
Of large blocks the rest goes in rounds, a slab of every box at a time: packed at once it would take
another block or two, and leave the caches. Of a block that may be overwritten messages lie where
others have left it, or where nothing has come yet in the new one, as far as there is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import (
    Communicator,
    _backend,
    _memory,
    copy_boxes,
    goes_as_it_lies,
    packed_at_a_time,
    reduce_boxes,
    split_parts,
)
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute._schedule import WHOLE, slab, slabs
from distarray.redistribute._small_blocks import largest_block
from distarray.redistribute._steps import AllGatherStep, ExchangeStep
from distarray.typing import Box, Buffer


def region(box: Box) -> tuple[Any, ...]:
    """Return the index that selects a box as a view, also the one box of a 0-d block."""
    return boxes.slices(box) or (Ellipsis,)


_SAMPLED_RANKS = 2
"""Of so many ranks it is found out what they send, which takes 70 us for each message."""


Region = tuple[Any, ...]
"""An index that selects a box of a block as a view."""


class _Take(NamedTuple):
    """One box of the new block that is reduced: its contributions by rank, and its place."""

    peers: tuple[int, ...]
    offsets: tuple[int | None, ...]
    """Offset in the received values; None where the peer's block is read in place."""
    source: Region
    extents: tuple[int, ...]
    target: Region


class _Round(NamedTuple):
    """Which boxes of the old block go to which rank, and which of the new one come from which.

    What is reduced has ``takes`` instead of the latter, and ``counts`` of values from each rank.
    """

    leaving: list[tuple[int, Region]]
    arriving: list[tuple[int, Region]]
    takes: list[_Take]
    counts: list[int] | None


def _count_rounds_of_step(step: ExchangeStep, communicator: Communicator) -> int:
    """Return in how many rounds a step goes for which the caller has not asked for any.

    The same on all ranks: it is told of the layouts, as if all blocks lay in C order.
    """
    nbytes = sum([largest_block(layout, step.dtype) for layout in (step.src, step.dst)])
    rounds = step.in_rounds(packed_at_a_time(nbytes, communicator.size)).rounds
    if rounds > 1 and communicator.sends_parts and _packs_nothing(step, communicator.ranks):
        return 1
    return rounds


def _packs_nothing(step: ExchangeStep, ranks: Sequence[int]) -> bool:
    """Tell whether all that ranks send each other goes as it lies; of many some are asked."""
    if step.reduce is not None:
        return False
    for rank in ranks[:: -(-len(ranks) // _SAMPLED_RANKS)]:
        src, dst = (_empty_view(layout, step.dtype, rank) for layout in (step.src, step.dst))
        ends = [(src, one.src_box, one.peers) for one in step.sends(rank)]
        ends += [(dst, one.dst_box, one.peers) for one in step.receives(rank)]
        if not all(
            goes_as_it_lies(block[region(box)]) for block, box, peers in ends if peers != (rank,)
        ):
            return False
    return True


def _empty_view(layout: Layout, dtype: np.dtype[Any], rank: int) -> np.ndarray:
    """Return an array with the shape and strides of a rank's block, without memory."""
    coordinate = layout.mesh.coordinate_of(rank)
    shape = (0,) if coordinate is None else layout.local_shape(coordinate)
    strides = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)


# --- room for messages ------------------------------------------------------------------------

Span = tuple[int, int]
"""The first of some items of a block, in C order, and what follows the last."""

Room = tuple[int, Span]
"""Which block, the one before or the one after, and where in it."""

Rooms = list[Room | None]
"""Of what a round sends and receives; None where there is none."""


def span_of(view: np.ndarray, block: np.ndarray) -> Span:
    """Return where a view lies in a block in C order, with all in between."""
    if not view.size:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True)]
    start = stop = view.ctypes.data - block.ctypes.data
    start += sum([step for step in steps if step < 0])
    stop += sum([step for step in steps if step > 0]) + view.itemsize
    return start // view.itemsize, stop // view.itemsize


def find_rooms(
    blocks: Sequence[np.ndarray],
    rounds: Sequence[tuple[Sequence[Span], Sequence[Span]]],
    near: tuple[Sequence[Span], Sequence[Span]],
    last: int,
    counts: Sequence[tuple[int, int]],
) -> list[Rooms]:
    """Return where what each round sends, and what it receives, can lie: in which block, and where.

    What has been sent leaves room in the block before an exchange, and what has not come yet in the
    one after it. Slabs of one of the two mostly lie one after another, so that in every round one
    of both has room enough.

    Parameters
    ----------
    blocks
        Before and after, in C order; the one before may be overwritten.
    rounds
        What each sends of the block before, and fills of the one after.
    near
        What is read of the block before, and filled of the one after, without messages.
    last
        After which round that is done.
    counts
        Items that each round sends, and receives.
    """
    found: list[Rooms] = []
    for k, needed in enumerate(counts):
        kept = [span for leaving, _ in rounds[k:] for span in leaving]
        come = [span for _, arriving in rounds[: k + 1] for span in arriving]
        if k <= last:
            kept += near[0]
        else:
            come += near[1]
        found.append([])
        for count in needed:
            room: Room | None = None
            for side, taken in enumerate((kept, come)):
                # The block before empties from its beginning on, and the other fills.
                start = _gap(blocks[side].size, taken, count, side == 0)
                if start is not None:
                    room = side, (start, start + count)
                    taken.append(room[1])
                    break
            found[-1].append(room)
    return found


def _gap(size: int, taken: Iterable[Span], count: int, first: bool) -> int | None:
    """Return where so many items of a block lie in none of some spans, first or last."""
    at, found = 0, None
    for start, stop in [*sorted(taken), (size, size)]:
        if start - at >= count:
            if first:
                return at
            found = start - count
        at = max(at, stop)
    return found


def buffers(blocks: Sequence[np.ndarray], rooms: Rooms) -> list[np.ndarray | None]:
    """Return the stretches of blocks that rooms are, as arrays of one axis."""
    return [
        None if room is None else blocks[room[0]].reshape(-1)[slice(*room[1])] for room in rooms
    ]


# --- exchanges -----------------------------------------------------------------------------------

View = tuple[int, Buffer]
"""A rank of a communicator, and a part of a block that goes there, or what comes from there fills.

Two ranks list what passes between them in one order.
"""

_End = tuple[Sequence[View], Sequence[View]]
"""What a round sends, and what it fills."""


class Messages:
    """What this rank packs, sends, receives and unpacks when a step runs between nodes.

    The communicator is that of all ranks that take part. Blocks of some can be read in place, and
    the others' pieces travel. ``kind`` is the device's, "cpu" or "cuda".
    """

    def __init__(self, step: ExchangeStep, communicator: Communicator, kind: str) -> None:
        self._step = step
        self._communicator = communicator
        index = {rank: i for i, rank in enumerate(communicator.ranks)}
        reached = communicator.reached(kind)
        self._reaches_some = communicator.reaches_some(kind)
        rounds = max(step.rounds, _count_rounds_of_step(step, communicator) if kind == "cpu" else 1)
        self._rounds = [self._plan((k, rounds), index, reached) for k in range(rounds)]
        self._takes: list[tuple[int, Region, Region]] = []
        """Where boxes that are not reduced lie in whose block, and in the new one."""
        if step.reduce is None:
            self._takes = [
                (index[one.peers[0]], region(one.src_box), region(one.dst_box))
                for one in step.receives(communicator.ranks[communicator.rank])
            ]
        self._near = [take for take in self._takes if reached[take[0]]]
        """What of them is read in place, of several rounds in one."""
        nowhere: list[Rooms] = [[None, None]] * rounds
        self._nowhere = 0 if step.reduce is None else rounds - 1, nowhere
        self._rooms: tuple[int, list[Rooms]] | None = None
        """After which round to read in place, and where messages lie if the block is free."""
        # Everybody sends its whole block to everybody: nothing to pack.
        self._gathers = (
            isinstance(step, AllGatherStep)
            and step.reduce is None  # along an axis of one rank, besides
            and rounds == 1
            and not self._reaches_some
            and not (kind == "cpu" and communicator.sends_parts)
        )

    def _plan(self, part: tuple[int, int], index: dict[int, int], reached: list[bool]) -> _Round:
        step = self._step
        rank = self._communicator.ranks[self._communicator.rank]
        # Rounds that a caller has asked for are of equal parts, which its bound counts with.
        cuts = step.rounds == 1
        whole = WHOLE if cuts else part
        given, takes = step.sends(rank, whole), step.receives(rank, whole)
        if cuts:
            given, takes = slabs(given, part), slabs(takes, part)
        leaving = [(index[one.peers[0]], region(one.src_box)) for one in given]
        leaving = [(peer, box) for peer, box in leaving if not reached[peer]]
        if step.reduce is None:
            arriving = [(index[one.peers[0]], region(one.dst_box)) for one in takes]
            return _Round(leaving, [one for one in arriving if not reached[one[0]]], [], None)
        counts = [0] * len(reached)
        for one in takes:
            for peer in (index[r] for r in one.peers):
                counts[peer] += 0 if reached[peer] else one.size
        at = [sum(counts[:peer]) for peer in range(len(reached))]  # each rank's next values
        found = []
        for one in takes:
            peers = tuple(index[r] for r in one.peers)
            offsets = tuple(None if reached[peer] else at[peer] for peer in peers)
            for peer in peers:
                at[peer] += 0 if reached[peer] else one.size
            extents = boxes.shape(one.src_box)
            found.append(_Take(peers, offsets, region(one.src_box), extents, region(one.dst_box)))
        return _Round(leaving, [], found, counts)

    def exchange(
        self, local: Buffer, out: Buffer, token: int, what: object, is_free: bool = False
    ) -> None:
        """Fill ``out`` from the blocks that are read in place and from what the others send.

        ``token`` and ``what`` are as in ``Communicator.views``. ``local`` may be overwritten if it
        is free.
        """
        communicator = self._communicator
        if self._gathers:
            self._gather(local, out, token, what)
            return
        blocks: list[Any] = [None] * communicator.size
        blocks[communicator.rank] = local
        last, rooms = self._find_rooms(local, out) if is_free else self._nowhere
        with ExitStack() as views:
            for i, current in enumerate(self._rounds):
                room = buffers((local, out), rooms[i])
                ends = _views_of(current, local, out)
                recv = _exchange(
                    communicator, *ends, local, token, what, room, out.nbytes, current.counts
                )
                if not i and self._reaches_some:
                    near = communicator.views(local, token, what, agreed=True)
                    blocks = views.enter_context(near)
                if recv is not None:
                    self._reduce(current.takes, recv, blocks, out)
                del recv  # the next round may have its memory
                if i == last:  # what has come may lie where this belongs
                    found = [(out[target], blocks[peer][box]) for peer, box, target in self._near]
                    copy_boxes(found, total=out.nbytes)
                    views.close()

    def _find_rooms(self, local: Buffer, out: Buffer) -> tuple[int, list[Rooms]]:
        """Return after which round to read in place, and where the messages of each round lie.

        That is in the blocks, where these are in host memory and in C order.
        """
        step, communicator = self._step, self._communicator
        if not _backend.is_numpy(local) or not local.flags.c_contiguous or step.reduce is not None:
            return self._nowhere
        if self._rooms is None:
            pairs = zip(communicator.ranks, communicator.reached(), strict=True)
            reached = {rank for rank, is_near in pairs if is_near}
            given = step.sends(communicator.ranks[communicator.rank])
            near = (
                [local[region(one.src_box)] for one in given if one.peers[0] in reached],
                [out[target] for _, _, target in self._near],
            )
            ends = [_views_of(each, local, out) for each in self._rounds]
            # Ranks that read each other's blocks do so at one time; others choose.
            lasts = (0,) if self._reaches_some else (0, len(ends) - 1)
            found = [(k, _rooms_of((local, out), ends, near, k)) for k in lasts]
            self._rooms = min(found, key=lambda one: sum(rooms.count(None) for rooms in one[1]))
        return self._rooms

    def _reduce(
        self, takes: list[_Take], recv: Buffer, blocks: Sequence[Buffer], out: Buffer
    ) -> None:
        """Reduce what has come and what is read in place."""
        found: list[tuple[Buffer, list[Buffer]]] = []
        for peers, offsets, source, extents, target in takes:
            size = prod(extents)
            pieces = [
                blocks[peer][source] if at is None else recv[at : at + size].reshape(extents)
                for peer, at in zip(peers, offsets, strict=True)
            ]
            found.append((out[target], pieces))
        op = self._step.reduce
        assert op is not None  # asked before
        reduce_boxes(found, op, total=out.nbytes)

    def _gather(self, local: Buffer, out: Buffer, token: int, what: object) -> None:
        """Gather whole blocks, straight into the result where they lie there one after another."""
        places = [(peer, out[target]) for peer, _, target in self._takes]
        counts = _counts(places, self._communicator.size)
        order = [peer for peer, _ in places]
        rows = all(place.shape[1:] == out.shape[1:] for _, place in places)
        direct = rows and order == sorted(order) and out.ndim > 0
        device = _backend.device_of(local)
        recv = out.reshape(-1) if direct else _memory.empty((sum(counts),), local.dtype, device)
        send = _memory.make_contiguous(local).reshape(-1)
        self._communicator.all_gather(send, recv, counts, token=token, what=what)
        if not direct:
            copy_boxes([(place, part) for part, place in _parts(recv, places, counts)])


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
    free: tuple[Buffer, Sequence[Buffer]] | None = None,
) -> None:
    """Send parts of blocks to their ranks, and fill others with what comes (collective).

    ``block`` tells the device and the dtype of all, and of how many bytes they are parts. ``token``
    and ``what`` are as in ``Communicator.views``, ``rounds`` the same on all ranks. Of a block that
    may be overwritten ``free`` is the one that is filled, all of it, and what of the old one is
    needed later.
    """
    ends = [(_slabs(leaving, k, rounds), _slabs(arriving, k, rounds)) for k in range(rounds)]
    rooms: list[list[Buffer | None]] = [[None, None]] * rounds
    if free is not None and _backend.is_numpy(block) and block.flags.c_contiguous:
        out, kept = free
        found = _rooms_of((block, out), ends, (kept, []), rounds)
        rooms = [buffers((block, out), one) for one in found]
    for both, room in zip(ends, rooms, strict=True):
        _exchange(communicator, *both, block, token, what, room, block.nbytes)


def _exchange(
    communicator: Communicator,
    leaving: Sequence[View],
    arriving: Sequence[View],
    block: Buffer,
    token: int,
    what: object,
    rooms: Sequence[Buffer | None],
    total: int,
    counts: Sequence[int] | None = None,
) -> Buffer | None:
    """Send parts of a block to their ranks, and fill others, of ``total`` bytes, with what comes.

    With ``counts``, of values from each rank, what comes is returned instead, packed. ``rooms`` are
    where packed values are to lie, sent and received.
    """
    size, device = communicator.size, _backend.device_of(block)
    parts = into = fill = None
    send: Any
    recv: Any
    send, recv = rooms
    if communicator.sends_parts and _backend.is_numpy(block):
        parts = _views_as_they_lie(leaving, size, block)
        into = None if counts is not None else _views_as_they_lie(arriving, size, block)
    send_counts, recv_counts = _counts(leaving, size), counts or _counts(arriving, size)
    if parts is None:
        if send is None:
            send = _memory.empty((sum(send_counts),), block.dtype, device)
        fill = partial(_pack, send, leaving, send_counts, block.nbytes)
    if into is None and recv is None:
        recv = _memory.empty((sum(recv_counts),), block.dtype, device)
    if parts is None and into is None:
        communicator.all_to_all(
            send, recv, send_counts, recv_counts, token=token, what=what, fill=fill
        )
    else:
        parts = split_parts(send, send_counts) if parts is None else parts
        into_parts = split_parts(recv, recv_counts) if into is None else into
        communicator.all_to_all_parts(parts, into_parts, token, what, fill)
    if counts is None and into is None:
        packed = _parts(recv, arriving, recv_counts)
        copy_boxes([(view, part) for part, view in packed], total=total)
    return recv if counts is not None else None


def _pack(send: Buffer, leaving: Sequence[View], counts: Sequence[int], total: int) -> None:
    copy_boxes(list(_parts(send, leaving, counts)), total=total)


def _views_of(current: _Round, local: Buffer, out: Buffer) -> _End:
    """Return what a round sends of a block, and what it fills of the new one."""
    return (
        [(peer, local[box]) for peer, box in current.leaving],
        [(peer, out[box]) for peer, box in current.arriving],
    )


def _rooms_of(
    blocks: tuple[np.ndarray, np.ndarray],
    ends: Sequence[_End],
    near: tuple[Sequence[Buffer], Sequence[Buffer]],
    last: int,
) -> list[Rooms]:
    """Return what `find_rooms` does, of views of the blocks before and after."""
    old, new = blocks
    rounds = [
        ([span_of(view, old) for _, view in sent], [span_of(view, new) for _, view in filled])
        for sent, filled in ends
    ]
    counts = [(sum(v.size for _, v in a), sum(v.size for _, v in b)) for a, b in ends]
    spans = [span_of(view, old) for view in near[0]], [span_of(view, new) for view in near[1]]
    return find_rooms(blocks, rounds, spans, last, counts)


def _slabs(views: Sequence[View], k: int, rounds: int) -> Sequence[View]:
    """Return the k-th part of every view."""
    if rounds == 1:
        return views
    return [
        (peer, view[(*boxes.slices(box), ...)])
        for peer, view in views
        for box in slab(boxes.whole(view.shape), (k, rounds))
    ]


def _views_as_they_lie(views: Sequence[View], size: int, block: Buffer) -> list[Buffer] | None:
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
