"""One block of which each part is what a redistribution of some block, or of its part, brings.

Small blocks travel in one round, each once, and every part is copied straight from where it has
arrived to where it belongs. Parts of larger ones are copied from where they lie, and between nodes
what a rank needs of all operands comes in one exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import (
    Communicator,
    _backend,
    _memory,
    copy_box,
    copy_boxes,
    pause_logs,
    token,
)
from distarray.layout import Layout
from distarray.redistribute._execute import (
    BoundStep,
    _Exchange,
    _Local,
    bound_steps,
    is_mostly_read,
    record_steps,
    redistribute_local,
    redistribute_together,
)
from distarray.redistribute._messages import count_rounds, exchange_views
from distarray.redistribute._small_blocks import SmallBlocks, are_small, largest_block
from distarray.typing import Buffer

Region = tuple[slice, ...]


class Part(NamedTuple):
    """What becomes part of a block: a stretch of an operand along the axis of the join."""

    operand: int
    start: int
    """Where it begins there."""
    src: Layout
    """Of the stretch where it lies in the operand."""
    dst: Layout
    """Of the stretch where it lies in the result; all parts, in order, are the result."""


class _Round(NamedTuple):
    """What is read of the blocks of one operand, along the same mesh axes."""

    operand: int
    communicator: Communicator
    steps: list[_Exchange]
    copies: list[tuple[int, Region, Region]]
    """Rank of whose block a part is taken, where it is there and in the result."""
    gives: list[tuple[int, Region]]
    """Rank that takes a part of the own block, and where it is there, between nodes."""
    is_last: bool
    """Whether no other round of the communicator follows."""
    lends: bool
    """Whether others read most of the own block."""


class Joined:
    """How blocks become the block of a join, given layouts on one mesh that this process is in.

    Parameters
    ----------
    name
        Of the operation.
    operands
        Their layouts.
    axis
        Along which parts lie side by side in the result.
    parts
        In order. Where one is Partial it is so before and after.
    output
        Layout of the result.
    dtype
        Of all of them.
    """

    def __init__(
        self,
        name: str,
        operands: Sequence[Layout],
        axis: int,
        parts: Sequence[Part],
        output: Layout,
        dtype: np.dtype[Any],
    ) -> None:
        self._name, self._parts, self._shape = name, parts, output.local_shape()
        self._is_pooled = prod(self._shape) * dtype.itemsize >= _memory.POOLED_BYTES
        before = (slice(None),) * axis
        lengths = [part.dst.local_shape()[axis] for part in parts]
        ends = accumulate(lengths, initial=0)
        self._places: list[Region] = [(*before, slice(a, b)) for a, b in pairwise(ends)]
        coordinate = output.mesh.coordinate
        assert coordinate is not None  # only processes of the mesh join blocks
        self._views: list[Region] = []
        for part in parts:
            start = _offset(part, operands, axis, coordinate)
            self._views.append((*before, slice(start, start + part.src.local_shape()[axis])))
        steps = [() if p.src is p.dst else bound_steps(p.src, p.dst, dtype) for p in parts]
        self._token = token(
            "join",
            name,
            axis,
            output.fingerprint,
            dtype.str,
            *[x for p in parts for x in (p.operand, p.start, p.src.fingerprint)],
        )
        self._small: SmallBlocks | None = None
        self._own: list[tuple[int, Region, Region]] | None = None
        """Operand of whose own block a part is taken, where it is there and in the result."""
        self._rounds: list[_Round] = []
        """What is read of others."""
        self._steps: list[_Exchange] = []
        """Of all rounds."""
        self._wire: dict[Communicator, int] = {}
        """Of those that reach not all blocks, in how many rounds the others' parts travel."""
        if not any(p.src.has_partial for p in parts):
            self._find_rounds(operands, axis, steps, output, dtype)

    def _find_rounds(
        self,
        operands: Sequence[Layout],
        axis: int,
        steps: Sequence[Sequence[BoundStep]],
        output: Layout,
        dtype: np.dtype[Any],
    ) -> None:
        """Find out how parts are copied from where they lie, or travel whole; alike everywhere."""
        mesh: Any = operands[0].mesh
        exchanges = [one for bound in steps for one in bound if isinstance(one, _Exchange)]
        communicators = {one.communicator: None for one in exchanges}  # a set in order
        if mesh.device != "cpu" or any(len(bound) > 1 for bound in steps):
            return
        if None in communicators:
            return
        own = []
        rounds: dict[tuple[int, Communicator], _Round] = {}
        for part, bound, place in zip(self._parts, steps, self._places, strict=True):
            (step,) = bound or (None,)
            ranks: tuple[int, ...] = (mesh.rank,)
            me, takes = 0, None
            if isinstance(step, _Exchange):
                communicator = step.communicator
                assert communicator is not None  # asked before
                ranks, me = communicator.ranks, communicator.rank
                key = part.operand, communicator
                takes = rounds.setdefault(
                    key, _Round(part.operand, communicator, [], [], [], False, False)
                )
                takes.steps.append(step)
                if not communicator.reaches_all():
                    offset = _offset(part, operands, axis, mesh.coordinate)
                    takes.gives.extend(
                        [(peer, _shift(source, axis, offset)) for peer, source in step.gives]
                    )
            for peer, source, target in _takes(step, part, me):
                coordinate = mesh.coordinate_of(ranks[peer])
                source = _shift(source, axis, _offset(part, operands, axis, coordinate))
                target = _shift(target, axis, place[axis].start)
                if takes is None or peer == me:
                    own.append((part.operand, source, target))
                else:
                    takes.copies.append((peer, source, target))
        last = {communicator: operand for operand, communicator in rounds}
        for (operand, communicator), one in rounds.items():
            sent = sum(step.bytes_sent(mesh.rank) for step in one.steps)
            held = prod(operands[operand].local_shape()) * dtype.itemsize
            is_last = last[communicator] == operand
            self._rounds.append(one._replace(is_last=is_last, lends=is_mostly_read(sent, held)))
        self._steps = [step for one in self._rounds for step in one.steps]
        sources = [(operands[one.operand], dtype) for one in self._rounds]
        if len(communicators) == 1 and are_small(sources, self._rounds[0].communicator):
            wanted = [{peer for peer, *_ in one.copies} for one in self._rounds]
            self._small = SmallBlocks(sources, self._rounds[0].communicator, wanted)
        nbytes = sum(largest_block(*source) for source in [*sources, (output, dtype)])
        for communicator in communicators:
            assert communicator is not None  # asked before
            if not communicator.reaches_all():
                self._wire[communicator] = count_rounds(nbytes, communicator.size)
        self._own = own

    def __str__(self) -> str:
        return f"{self._name} of {', '.join(f'{p.src} -> {p.dst}' for p in self._parts)}"

    def __call__(self, *blocks: Buffer) -> Buffer:
        """Return the block of the result, of the blocks of the operands."""
        if self._own is not None and {np.ndarray}.issuperset(map(type, blocks)):
            return self._join_in_place(blocks, self._own)
        moved = self._move(blocks)
        out = _memory.empty(self._shape, blocks[0].dtype, _backend.device_of(blocks[0]))
        for place, block in zip(self._places, moved, strict=True):
            out[place] = block
        return out

    def _join_in_place(
        self, blocks: Sequence[np.ndarray], own: Sequence[tuple[int, Region, Region]]
    ) -> np.ndarray:
        """Return the block of the result, whose parts are copied once each."""
        found = None if self._small is None else self._exchange(self._small, blocks)
        out: np.ndarray
        if self._is_pooled:
            out = _memory.empty(self._shape, blocks[0].dtype)
        else:
            out = np.empty(self._shape, blocks[0].dtype)
        if found is not None:
            for one, views in zip(self._rounds, found, strict=True):
                for peer, source, target in one.copies:
                    out[target] = views[peer][source]
        else:
            self._small = None
            for communicator, rounds in self._wire.items():
                self._send(communicator, rounds, blocks, out)
            for i, one in enumerate(self._rounds):
                if one.communicator not in self._wire or one.communicator.reaches_some():
                    self._read(one, blocks[one.operand], out, self._token + i)
        for operand, source, target in own:
            copy_box(out[target], blocks[operand][source], total=out.nbytes)
        return out

    def _exchange(
        self, small: SmallBlocks, blocks: Sequence[np.ndarray]
    ) -> list[dict[int, np.ndarray]] | None:
        """Return the blocks of the peers by round and rank; None where that needs another way."""
        started = perf_counter()
        rounds = self._rounds
        found = small.exchange([blocks[one.operand] for one in rounds], self._token, self)
        if found is not None:
            record_steps(self._steps, rounds[0].communicator, started)
        return found

    def _send(
        self, communicator: Communicator, rounds: int, blocks: Sequence[np.ndarray], out: np.ndarray
    ) -> None:
        """Exchange what ranks need that cannot read it where it lies, of all operands."""
        started = perf_counter()
        near = communicator.reached()
        here = [one for one in self._rounds if one.communicator is communicator]
        leaving = [
            (peer, blocks[one.operand][source])
            for one in here
            for peer, source in one.gives
            if not near[peer]
        ]
        arriving = [
            (peer, out[target]) for one in here for peer, _, target in one.copies if not near[peer]
        ]
        with pause_logs():
            exchange_views(communicator, leaving, arriving, out, self._token, self, rounds)
        record_steps([step for one in here for step in one.steps], communicator, started)

    def _read(self, one: _Round, block: np.ndarray, out: np.ndarray, number: int) -> None:
        """Copy into the result what others have of an operand.

        The copies of a round are made before the next: what travels in a slot is there till then.
        """
        started = perf_counter()
        agreed = one.communicator in self._wire
        with one.communicator.views(
            block, number, self, closing=one.is_last, agreed=agreed
        ) as views:
            pairs = [
                (out[target], views[peer][source])
                for peer, source, target in one.copies
                if views[peer] is not None
            ]
            copy_boxes(pairs, total=out.nbytes)
        if one.lends:
            _memory.lend(block)
        if not agreed:
            record_steps(one.steps, one.communicator, started)

    def _move(self, blocks: Sequence[Buffer]) -> list[Buffer]:
        """Return the blocks of the parts in the result."""
        found = [blocks[p.operand][v] for p, v in zip(self._parts, self._views, strict=True)]
        moves = [(part.src, part.dst) for part in self._parts]
        if any(src.has_partial for src, _ in moves):
            return [redistribute_local(b, *m) for b, m in zip(found, moves, strict=True)]
        return redistribute_together(found, moves)


def _offset(part: Part, operands: Sequence[Layout], axis: int, coordinate: Any) -> int:
    """Return where a part begins in the block of its operand at a mesh coordinate."""
    own, whole = part.src.local_box(coordinate), operands[part.operand].local_box(coordinate)
    assert own is not None  # all coordinates are in the mesh
    assert whole is not None
    return part.start + own[axis][0] - whole[axis][0] if own[axis][0] < own[axis][1] else 0


def _takes(step: BoundStep | None, part: Part, me: int) -> Iterator[tuple[int, Region, Region]]:
    """Yield from which rank's block a part is taken, where it is there and in its own new block."""
    if isinstance(step, _Exchange):
        for peers, source, target in step.takes:
            yield peers[0], source, target
        return
    if isinstance(step, _Local):
        regions = step.regions
        if regions is not None:
            yield me, *regions
        return
    whole = tuple([slice(0, n) for n in part.src.local_shape()])
    yield me, whole, whole


def _shift(region: Region, axis: int, by: int) -> Region:
    """Return a region further on along an axis."""
    along = region[axis]
    return (*region[:axis], slice(along.start + by, along.stop + by), *region[axis + 1 :])
