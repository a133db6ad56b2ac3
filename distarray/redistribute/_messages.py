"""Messages of an exchange: what is packed, sent by one all-to-all(v) a round, and unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from distarray.comm import (
    Communicator,
    _backend,
    _memory,
    copy_boxes,
    pack,
    reduce_boxes,
)
from distarray.layout import box as boxes
from distarray.redistribute._schedule import receives, sends
from distarray.redistribute._steps import AllGatherStep, ExchangeStep
from distarray.typing import Box, Buffer


def region(box: Box) -> tuple[Any, ...]:
    """Return the index that selects a box as a view, also the one box of a 0-d block."""
    return boxes.slices(box) or (Ellipsis,)


class _Take(NamedTuple):
    """One box of the new block: its contributions by rank, where they were received, its place."""

    peers: tuple[int, ...]
    offsets: tuple[int | None, ...]
    """Offset in the received values; None where the peer's block is read in place."""
    source: tuple[Any, ...]
    extents: tuple[int, ...]
    target: tuple[Any, ...]


class _Round(NamedTuple):
    packed: list[Box]
    send_counts: list[int]
    recv_counts: list[int]
    takes: list[_Take]


class Messages:
    """What this rank packs, sends, receives and unpacks when a step runs between nodes.

    The communicator is that of all ranks that take part; ``reached`` says for each of them whether
    its block can be read in place, and the others' pieces travel. ``kind`` is the device's, "cpu"
    or "cuda".
    """

    __slots__ = ("_communicator", "_gathers", "_rounds", "_step")

    def __init__(
        self, step: ExchangeStep, communicator: Communicator, reached: list[bool], kind: str
    ) -> None:
        self._step = step
        self._communicator = communicator
        index = {rank: i for i, rank in enumerate(communicator.ranks)}
        rounds = step.rounds
        self._rounds = [self._plan((k, rounds), index, reached) for k in range(rounds)]
        # Everybody sends its whole block to everybody: nothing to pack.
        every = not communicator.reaches_some(kind)
        self._gathers = isinstance(step, AllGatherStep) and rounds == 1 and every

    def _plan(self, part: tuple[int, int], index: dict[int, int], reached: list[bool]) -> _Round:
        step = self._step
        rank = self._communicator.ranks[self._communicator.rank]
        packed: list[list[Box]] = [[] for _ in reached]
        for transfer in sends(step.src, step.dst, rank, part):
            peer = index[transfer.peers[0]]
            if not reached[peer]:
                packed[peer].append(transfer.src_box)
        takes = receives(step.src, step.dst, rank, part)
        recv_counts = [0] * len(reached)
        for transfer in takes:
            for peer in (index[r] for r in transfer.peers):
                if not reached[peer]:
                    recv_counts[peer] += transfer.size
        at = [sum(recv_counts[:peer]) for peer in range(len(reached))]
        found = []
        for transfer in takes:
            peers = tuple(index[r] for r in transfer.peers)
            offsets: list[int | None] = []
            for peer in peers:
                offsets.append(None if reached[peer] else at[peer])
                at[peer] += transfer.size
            found.append(
                _Take(
                    peers,
                    tuple(offsets),
                    region(transfer.src_box),
                    boxes.shape(transfer.src_box),
                    region(transfer.dst_box),
                )
            )
        send_counts = [sum(boxes.volume(box) for box in mine) for mine in packed]
        return _Round([box for mine in packed for box in mine], send_counts, recv_counts, found)

    def exchange(self, local: Buffer, blocks: Sequence[Buffer], out: Buffer) -> None:
        """Fill ``out`` from the blocks that are read in place and from what the others send."""
        if self._gathers:
            self._gather(local, out)
            return
        for packed, send_counts, recv_counts, takes in self._rounds:
            device = _backend.device_of(local)
            send = _memory.empty((sum(send_counts),), local.dtype, device)
            recv = _memory.empty((sum(recv_counts),), local.dtype, device)
            pack(local, packed, send)
            self._communicator.all_to_all(send, recv, send_counts, recv_counts)
            self._unpack(takes, recv, blocks, out)

    def _unpack(
        self, takes: list[_Take], recv: Buffer, blocks: Sequence[Buffer], out: Buffer
    ) -> None:
        op = self._step.reduce
        found = []
        for peers, offsets, source, extents, target in takes:
            size = prod(extents)
            pieces = [
                blocks[peer][source] if at is None else recv[at : at + size].reshape(extents)
                for peer, at in zip(peers, offsets, strict=True)
            ]
            found.append((out[target], pieces))
        if op is None:
            copy_boxes([(dst, pieces[0]) for dst, pieces in found])
        else:
            reduce_boxes(found, op)

    def _gather(self, local: Buffer, out: Buffer) -> None:
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
        self._communicator.all_gather(_memory.make_contiguous(local).reshape(-1), recv, counts)
        if direct:
            return
        pieces = []
        for take in takes:
            at = sum(counts[: take.peers[0]])
            piece = recv[at : at + prod(take.extents)].reshape(take.extents)
            pieces.append((out[take.target], piece))
        copy_boxes(pieces)
