"""One block of which each part is what a redistribution of some block, or of its part, brings.

Small blocks of a node travel in one round, each once, and every part is copied straight from where
it has arrived to where it belongs. Parts of larger ones are copied from where they lie.
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
    record,
    recording,
    token,
)
from distarray.layout import Layout
from distarray.redistribute._execute import (
    BoundStep,
    _Exchange,
    _Local,
    bound_steps,
    redistribute_local,
    redistribute_together,
)
from distarray.redistribute._small_blocks import SmallBlocks, are_small
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
        self._communicator: Communicator | None = None
        self._small: SmallBlocks | None = None
        self._me = 0
        self._moving: list[int] = []
        """Operands whose small blocks travel."""
        self._steps: list[_Exchange] = []
        self._copies: list[tuple[int, int, Region, Region]] | None = None
        """Operand and rank of whose block a part is taken, where it is there and in the result."""
        self._reads: list[BoundStep | None] | None = None
        """What brings each part, where all that move can be read where they lie."""
        if not any(p.src.has_partial for p in parts):
            self._find_reads(operands[0].mesh, steps)
            self._find_copies(operands, axis, steps, dtype)

    def _find_reads(self, mesh: Any, steps: Sequence[Sequence[BoundStep]]) -> None:
        """Find out whether all parts can be copied from where they lie; alike on all ranks."""
        if mesh.device != "cpu" or any(len(bound) > 1 for bound in steps):
            return
        reads = [bound[0] if bound else None for bound in steps]
        communicators = {one.communicator for one in reads if isinstance(one, _Exchange)}
        if all(c is not None and c.reaches_all() for c in communicators):
            self._reads = reads

    def _find_copies(
        self,
        operands: Sequence[Layout],
        axis: int,
        steps: Sequence[Sequence[BoundStep]],
        dtype: np.dtype[Any],
    ) -> None:
        """Find out what is to be copied where all blocks that travel are small."""
        exchanges = [one for bound in steps for one in bound if isinstance(one, _Exchange)]
        moving = {
            part.operand: operands[part.operand]
            for part, bound in zip(self._parts, steps, strict=True)
            if any(isinstance(one, _Exchange) for one in bound)
        }
        sources = [(layout, dtype) for layout in moving.values()]
        if any(len(bound) > 1 for bound in steps) or not are_small(sources):
            return
        communicators = {one.communicator for one in exchanges}
        if len(communicators) > 1 or any(c is None or not c.reaches_all() for c in communicators):
            return
        communicator = next(iter(communicators), None)
        mesh: Any = operands[0].mesh
        ranks = (mesh.rank,) if communicator is None else communicator.ranks
        me = 0 if communicator is None else communicator.rank
        copies = []
        wanted: dict[int, set[int]] = {operand: set() for operand in moving}
        for part, bound, place in zip(self._parts, steps, self._places, strict=True):
            for peer, source, target in _takes(bound, part, me):
                coordinate = mesh.coordinate_of(ranks[peer])
                source = _moved(source, axis, _offset(part, operands, axis, coordinate))
                target = _moved(target, axis, place[axis].start)
                copies.append((part.operand, peer, source, target))
                if part.operand in wanted:
                    wanted[part.operand].add(peer)
        self._copies, self._me, self._steps = copies, me, exchanges
        self._communicator, self._moving = communicator, [*moving]
        if communicator is not None:
            self._small = SmallBlocks(sources, communicator, [*wanted.values()])

    def __str__(self) -> str:
        return f"{self._name} of {', '.join(f'{p.src} -> {p.dst}' for p in self._parts)}"

    def __call__(self, *blocks: Buffer) -> Buffer:
        """Return the block of the result, of the blocks of the operands."""
        if self._copies is not None and {np.ndarray}.issuperset(map(type, blocks)):
            found = self._join_small(blocks)
            if found is not None:
                return found
        if self._reads is not None:
            return self._join_in_place(blocks, self._reads)
        moved = self._move(blocks)
        out = _memory.empty(self._shape, blocks[0].dtype, _backend.device_of(blocks[0]))
        for place, block in zip(self._places, moved, strict=True):
            out[place] = block
        return out

    def _join_in_place(self, blocks: Sequence[Buffer], reads: Sequence[BoundStep | None]) -> Buffer:
        """Return the block of the result, whose parts are copied once each."""
        out: np.ndarray = _memory.empty(self._shape, blocks[0].dtype)
        for part, view, step, place in zip(
            self._parts, self._views, reads, self._places, strict=True
        ):
            block, target = blocks[part.operand][view], out[place]
            if isinstance(step, _Exchange) and not _is_private(block):
                step.copy_into(target, block, total=out.nbytes)
                continue
            if isinstance(step, _Local):
                block = step.view(block)
            elif step is not None:
                block = step(block)
            copy_box(target, block, total=out.nbytes)
        return out

    def _join_small(self, blocks: Sequence[np.ndarray]) -> np.ndarray | None:
        views: dict[int, dict[int, np.ndarray]] | None = None
        if self._small is not None:
            views = self._exchange(self._small, blocks)
            if views is None:
                self._copies = None
                return None
        if self._is_pooled:
            out: np.ndarray = _memory.empty(self._shape, blocks[0].dtype)
        else:
            out = np.empty(self._shape, blocks[0].dtype)
        me = self._me
        assert self._copies is not None  # asked before
        for operand, peer, source, target in self._copies:
            if peer == me:
                out[target] = blocks[operand][source]
            else:
                assert views is not None  # else all are this rank's own
                out[target] = views[operand][peer][source]
        return out

    def _exchange(
        self, small: SmallBlocks, blocks: Sequence[np.ndarray]
    ) -> dict[int, dict[int, np.ndarray]] | None:
        """Return the blocks of the peers by operand and rank; None where that needs another way."""
        logs = recording()
        started = perf_counter() if logs else 0.0
        moving = self._moving
        if len(moving) == 1:
            one = small.exchange_one(blocks[moving[0]], self._token, self)
            found = None if one is None else {moving[0]: one}
        else:
            told = small.exchange([blocks[i] for i in moving], self._token, self)
            found = None if told is None else dict(zip(moving, told, strict=True))
        communicator = self._communicator
        if logs and found is not None and communicator is not None:
            rank = communicator.ranks[communicator.rank]
            names = {step.name for step in self._steps}
            name = names.pop() if len(names) == 1 else "exchange"
            nbytes = sum(step.bytes_received(rank) for step in self._steps)
            record(name, communicator.name, nbytes, perf_counter() - started)
        return found

    def _move(self, blocks: Sequence[Buffer]) -> list[Buffer]:
        """Return the blocks of the parts in the result."""
        found = [blocks[p.operand][v] for p, v in zip(self._parts, self._views, strict=True)]
        moves = [(part.src, part.dst) for part in self._parts]
        if any(src.has_partial for src, _ in moves):
            return [redistribute_local(b, *m) for b, m in zip(found, moves, strict=True)]
        return redistribute_together(found, moves)


def _is_private(block: Buffer) -> bool:
    """Tell whether others cannot read a block that is too large to be copied for them again."""
    return bool(block.nbytes >= _memory.POOLED_BYTES and not _memory.is_shared(block))


def _offset(part: Part, operands: Sequence[Layout], axis: int, coordinate: Any) -> int:
    """Return where a part begins in the block of its operand at a mesh coordinate."""
    own, whole = part.src.local_box(coordinate), operands[part.operand].local_box(coordinate)
    assert own is not None  # all coordinates are in the mesh
    assert whole is not None
    return part.start + own[axis][0] - whole[axis][0] if own[axis][0] < own[axis][1] else 0


def _takes(steps: Sequence[BoundStep], part: Part, me: int) -> Iterator[tuple[int, Region, Region]]:
    """Yield from which rank's block a part is taken, where it is there and in its own new block."""
    (step,) = steps or (None,)
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


def _moved(region: Region, axis: int, by: int) -> Region:
    """Return a region further on along an axis."""
    along = region[axis]
    return (*region[:axis], slice(along.start + by, along.stop + by), *region[axis + 1 :])
