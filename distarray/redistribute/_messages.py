"""Messages of an exchange: what is packed, sent by one all-to-all(v) a round, and unpacked.

`Messages` are those of a step, `exchange_views` those of any views of blocks, of joins and windows.

The token that ranks compare travels with the messages, or while they are packed. Between nodes
what lies in long runs is not packed: MPI takes it from where it lies, and puts it where it belongs.
Of large blocks the rest goes in rounds, a slab of every box at a time: packed at once it would take
another block or two, and leave the caches. Of a block that may be overwritten messages lie where
others have left it, or where nothing has come yet in the new one, as far as there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    pack,
    packed_at_a_time,
    reduce_boxes,
    split_parts,
)
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute._schedule import WHOLE, Transfer, slab, slabs
from distarray.redistribute._small_blocks import largest_block
from distarray.redistribute._steps import AllGatherStep, ExchangeStep
from distarray.typing import Box, Buffer


def region(box: Box) -> tuple[Any, ...]:
    """Return the index that selects a box as a view, also the one box of a 0-d block."""
    return boxes.slices(box) or (Ellipsis,)


_SAMPLED_RANKS = 2
"""Of so many ranks it is found out what they send, which takes 70 us for each message."""


class _Take(NamedTuple):
    """One box of the new block: its contributions by rank, where they were received, its place."""

    peers: tuple[int, ...]
    offsets: tuple[int | None, ...]
    """Offset in the received values; None where the peer's block is read in place."""
    source: tuple[Any, ...]
    extents: tuple[int, ...]
    target: tuple[Any, ...]


_Regions = list[tuple[Any, ...] | None]
"""The one box of a block that goes to each rank, or comes from each, as an index; None for none."""


class _Round(NamedTuple):
    packed: list[Box]
    leaving: _Regions | None
    arriving: _Regions | None
    send_counts: list[int]
    recv_counts: list[int]
    takes: list[_Take]


def _regions(by_rank: Sequence[Sequence[Box]]) -> _Regions | None:
    """Return the box of each rank as an index; None where one has several."""
    if max(map(len, by_rank)) > 1:
        return None
    return [region(mine[0]) if mine else None for mine in by_rank]


def _contiguous_parts(block: Buffer, regions: _Regions | None) -> list[Buffer] | None:
    """Return a view of a block for each rank, where none of them has to be packed."""
    if regions is None:
        return None
    nothing = np.empty(0, block.dtype)
    found = [nothing if index is None else block[index] for index in regions]
    return found if all(map(goes_as_it_lies, found)) else None


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

_End = tuple[Sequence[Buffer] | None, Sequence[int]]
"""What goes to each rank, or what its part fills, as it lies; or None, and how many packed values
are each one's."""


def _exchange(
    communicator: Communicator,
    block: Buffer,
    sent: _End,
    received: _End,
    pack_into: Callable[[Buffer], object],
    token: int,
    what: object,
    rooms: Sequence[Buffer | None] = (None, None),
) -> Buffer | None:
    """Send each rank its part, and return what comes packed; None where it is in its place.

    ``pack_into(send)`` packs parts, before a token is compared or meanwhile. ``block`` tells the
    device and the dtype of all. ``rooms`` are where packed values are to lie, sent and received.
    """
    (parts, send_counts), (into, recv_counts) = sent, received
    device = _backend.device_of(block)
    send = recv = fill = None
    if parts is None:
        send = rooms[0]
        if send is None:
            send = _memory.empty((sum(send_counts),), block.dtype, device)
        fill = partial(pack_into, send)
    if into is None:
        recv = rooms[1]
        if recv is None:
            recv = _memory.empty((sum(recv_counts),), block.dtype, device)
    if send is not None and recv is not None:
        communicator.all_to_all(
            send, recv, send_counts, recv_counts, token=token, what=what, fill=fill
        )
        return recv
    if send is not None:
        parts = split_parts(send, send_counts)
    if recv is not None:
        into = split_parts(recv, recv_counts)
    assert parts is not None  # one way or the other
    assert into is not None
    communicator.all_to_all_parts(parts, into, token, what, fill)
    return recv


def _take(
    transfer: Transfer, index: dict[int, int], reached: Sequence[bool], at: list[int]
) -> _Take:
    """Return what a transfer is to the receiver; ``at`` are where each rank's next values come."""
    peers = tuple(index[rank] for rank in transfer.peers)
    offsets = tuple(None if reached[peer] else at[peer] for peer in peers)
    for peer in peers:
        at[peer] += 0 if reached[peer] else transfer.size
    extents = boxes.shape(transfer.src_box)
    return _Take(peers, offsets, region(transfer.src_box), extents, region(transfer.dst_box))


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
        self._sends_parts = kind == "cpu" and communicator.sends_parts
        self._near: list[_Take] = []
        """What is read in place, and not reduced, of several rounds in one."""
        if rounds > 1 and step.reduce is None:
            takes = step.receives(communicator.ranks[communicator.rank])
            near = [one for one in takes if reached[index[one.peers[0]]]]
            self._near = [_take(one, index, reached, [0] * len(reached)) for one in near]
        nowhere: list[Rooms] = [[None, None]] * rounds
        self._nowhere = 0 if step.reduce is None else rounds - 1, nowhere
        self._rooms: tuple[int, list[Rooms]] | None = None
        """After which round to read in place, and where messages lie if the block is free."""
        # Everybody sends its whole block to everybody: nothing to pack.
        self._gathers = (
            isinstance(step, AllGatherStep)
            and rounds == 1
            and not self._reaches_some
            and not self._sends_parts
        )

    def _plan(self, part: tuple[int, int], index: dict[int, int], reached: list[bool]) -> _Round:
        step = self._step
        rank = self._communicator.ranks[self._communicator.rank]
        leaving: list[list[Box]] = [[] for _ in reached]
        arriving: list[list[Box]] = [[] for _ in reached]
        # Rounds that a caller has asked for are of equal parts, which its bound counts with.
        cuts = step.rounds == 1
        whole = WHOLE if cuts else part
        given, takes = step.sends(rank, whole), step.receives(rank, whole)
        if cuts:
            given, takes = slabs(given, part), slabs(takes, part)
        if part != WHOLE and step.reduce is None:
            takes = tuple([one for one in takes if not reached[index[one.peers[0]]]])
        for transfer in given:
            peer = index[transfer.peers[0]]
            if not reached[peer]:
                leaving[peer].append(transfer.src_box)
        recv_counts = [0] * len(reached)
        for transfer in takes:
            for peer in (index[r] for r in transfer.peers):
                if not reached[peer]:
                    recv_counts[peer] += transfer.size
                    arriving[peer].append(transfer.dst_box)
        at = [sum(recv_counts[:peer]) for peer in range(len(reached))]
        found = [_take(one, index, reached, at) for one in takes]
        send_counts = [sum(map(boxes.volume, mine)) for mine in leaving]
        packed = [box for mine in leaving for box in mine]
        into = None if step.reduce is not None else _regions(arriving)
        return _Round(packed, _regions(leaving), into, send_counts, recv_counts, found)

    def exchange(
        self, local: Buffer, out: Buffer, token: int, what: object, is_free: bool = False
    ) -> None:
        """Fill ``out`` from the blocks that are read in place and from what the others send.

        ``token`` and ``what`` are as in ``Communicator.views``. ``local`` may be overwritten if it
        is free.
        """
        if self._gathers:
            self._gather(local, out, token, what)
            return
        blocks: list[Any] = [None] * self._communicator.size
        blocks[self._communicator.rank] = local
        last, rooms = self._find_rooms(local, out) if is_free else self._nowhere
        with ExitStack() as views:
            for i, current in enumerate(self._rounds):
                received = self._send(local, out, current, token, what, rooms[i])
                if not i and self._reaches_some:
                    near = self._communicator.views(local, token, what, agreed=True)
                    blocks = views.enter_context(near)
                self._unpack(current.takes, received, blocks, out)
                del received  # the next round may have its memory
                if i == last:
                    self._unpack(self._near, None, blocks, out)
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
            rank = communicator.ranks[communicator.rank]
            ends = step.sends(rank), step.receives(rank)
            given, taken = [[one for one in end if one.peers[0] in reached] for end in ends]
            near = (
                [span_of(local[region(one.src_box)], local) for one in given],
                [span_of(out[region(one.dst_box)], out) for one in taken],
            )
            rounds = [
                (
                    [span_of(local[region(box)], local) for box in each.packed],
                    [span_of(out[one.target], out) for one in each.takes if one.offsets != (None,)],
                )
                for each in self._rounds
            ]
            counts = [(sum(each.send_counts), sum(each.recv_counts)) for each in self._rounds]
            # Ranks that read each other's blocks do so at one time; others choose.
            lasts = (0,) if self._reaches_some else (0, len(rounds) - 1)
            found = [(k, find_rooms((local, out), rounds, near, k, counts)) for k in lasts]
            self._rooms = min(found, key=lambda one: sum(rooms.count(None) for rooms in one[1]))
        return self._rooms

    def _send(
        self,
        local: Buffer,
        out: Buffer,
        current: _Round,
        token: int,
        what: object,
        rooms: Rooms,
    ) -> Buffer | None:
        """Send the messages of a round, and return what comes; None where it is in its place."""
        packed, leaving, arriving, send_counts, recv_counts, _ = current
        parts = into = None
        if self._sends_parts:
            parts = _contiguous_parts(local, leaving)
            into = _contiguous_parts(out, arriving)
        return _exchange(
            self._communicator,
            local,
            (parts, send_counts),
            (into, recv_counts),
            lambda send: pack(local, packed, send, total=local.nbytes),
            token,
            what,
            buffers((local, out), rooms),
        )

    def _unpack(
        self, takes: list[_Take], recv: Buffer | None, blocks: Sequence[Buffer], out: Buffer
    ) -> None:
        op = self._step.reduce
        come: list[tuple[Buffer, list[Buffer]]] = []
        read: list[tuple[Buffer, list[Buffer]]] = []
        for peers, offsets, source, extents, target in takes:
            if recv is None and offsets[0] is not None:
                continue
            size = prod(extents)
            pieces = [
                blocks[peer][source]
                if at is None or recv is None
                else recv[at : at + size].reshape(extents)
                for peer, at in zip(peers, offsets, strict=True)
            ]
            (read if offsets[0] is None else come).append((out[target], pieces))
        if op is not None:
            reduce_boxes([*come, *read], op, total=out.nbytes)
            return
        for found in come, read:  # what has come may lie where the rest belongs
            copy_boxes([(dst, pieces[0]) for dst, pieces in found], total=out.nbytes)

    def _gather(self, local: Buffer, out: Buffer, token: int, what: object) -> None:
        """Gather whole blocks, straight into the result where they lie there one after another."""
        takes = self._rounds[0].takes
        counts = [0] * self._communicator.size
        for take in takes:
            counts[take.peers[0]] = prod(take.extents)
        order = [take.peers[0] for take in takes]
        rows = all(take.extents[1:] == out.shape[1:] for take in takes)
        direct = rows and order == sorted(order) and out.ndim > 0
        device = _backend.device_of(local)
        recv = out.reshape(-1) if direct else _memory.empty((sum(counts),), local.dtype, device)
        send = _memory.make_contiguous(local).reshape(-1)
        self._communicator.all_gather(send, recv, counts, token=token, what=what)
        if direct:
            return
        pieces = []
        for take in takes:
            at = sum(counts[: take.peers[0]])
            piece = recv[at : at + prod(take.extents)].reshape(take.extents)
            pieces.append((out[take.target], piece))
        copy_boxes(pieces)


# --- views of blocks ------------------------------------------------------------------------------

View = tuple[int, Buffer]
"""A rank of a communicator, and a part of a block that goes there, or what comes from there fills.

Two ranks list what passes between them in one order.
"""


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
        spans = [
            ([span_of(view, block) for _, view in sent], [span_of(view, out) for _, view in filled])
            for sent, filled in ends
        ]
        counts = [(sum(v.size for _, v in a), sum(v.size for _, v in b)) for a, b in ends]
        near = [span_of(view, block) for view in kept]
        found = find_rooms((block, out), spans, (near, []), rounds, counts)
        rooms = [buffers((block, out), one) for one in found]
    for both, room in zip(ends, rooms, strict=True):
        _exchange_round(communicator, *both, block, token, what, room)


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
    rooms: Sequence[Buffer | None],
) -> None:
    size = communicator.size
    parts = into = None
    if communicator.sends_parts and _backend.is_numpy(block):
        parts = _views_as_they_lie(leaving, size, block)
        into = _views_as_they_lie(arriving, size, block)
        if parts is not None and into is not None:
            communicator.all_to_all_parts(parts, into, token, what)
            return
    send_counts, recv_counts = _counts(leaving, size), _counts(arriving, size)

    def pack_into(send: Buffer) -> None:
        copy_boxes(list(_parts(send, leaving, send_counts)), total=block.nbytes)

    ends = (parts, send_counts), (into, recv_counts)
    recv = _exchange(communicator, block, *ends, pack_into, token, what, rooms)
    if recv is not None:
        packed = _parts(recv, arriving, recv_counts)
        copy_boxes([(view, part) for part, view in packed], total=block.nbytes)


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
