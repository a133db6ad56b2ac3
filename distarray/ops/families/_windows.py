"""One exchange of windows: stretches and boxes of blocks that are no boxes of one array shape.

The redistribution engine moves boxes of one index space. A reshape whose items change process
relates boxes of one shape to stretches of the flat order, and a reversal relates a block to its
mirror image. Both are pairs of windows: what a peer's block is read through, and where it goes. So
is what a block needs of its neighbours' items (`_neighbours`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory, copy_boxes, pause_logs, recording, token
from distarray.comm.kernels import address_of
from distarray.errors import MismatchError
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute import (
    SmallBlocks,
    are_small,
    count_rounds,
    exchange_views,
    largest_block,
)
from distarray.typing import Box, Buffer, Coordinate, Shape

WHOLE = slice(None)

_SHORT_BYTES: Final = 4096
"""Between nodes a block goes whole up to this size, of which others need a halo: more would take
longer than a few bytes (measured on two ranks of Zen 5 over MPICH 5: 8 KiB 4 us longer)."""


class Window(NamedTuple):
    """A view of a block: a stretch of one axis, seen as several axes, then slices."""

    axis: int
    stretch: slice
    sizes: Shape | None
    """Axes that the stretch is seen as; None leaves it one axis."""
    key: tuple[Any, ...]

    def of(self, block: Buffer) -> Buffer:
        """Return the view of `block`; it never copies, because one axis is only split."""
        if self.sizes is not None:
            part = block[(*(WHOLE,) * self.axis, self.stretch)]
            after = part.shape[self.axis + 1 :]
            block = part.reshape(*part.shape[: self.axis], *self.sizes, *after)
        return block[self.key]


class Pair(NamedTuple):
    """One window of a sender's block and the window of the receiver's block that it fills."""

    peer: int
    """Position in the communicator of the other process."""
    source: Window
    target: Window


class Exchange:
    """What one process receives and sends; both in the same order on both sides."""

    def __init__(
        self,
        communicator: Any,
        receives: Iterable[Pair],
        sends: Iterable[Pair],
        what: str,
        source: Layout | None = None,
        moves_blocks: bool = False,
    ) -> None:
        """Of the blocks that are sent `source` is the layout, where they have one.

        `moves_blocks` says that windows may hold most of a block.
        """
        self.communicator, self.what, self.source = communicator, what, source
        self.receives, self.sends, self.token = tuple(receives), tuple(sends), token(what)
        self.moves_blocks = moves_blocks
        self._small: dict[Any, SmallBlocks | None] = {}
        self._far: dict[str, set[int] | None] = {}

    def small(self, dtype: Any) -> SmallBlocks | None:
        """Return how blocks travel that are small and in host memory; None of others."""
        if self.source is None:
            return None
        try:
            return self._small[dtype]
        except KeyError:
            found, sources = None, [(self.source, dtype)]
            thin = not self.moves_blocks and not self.communicator.reaches_all()
            is_short = largest_block(*sources[0]) <= _SHORT_BYTES
            if are_small(sources, self.communicator) and (is_short or not thin):
                peers = {pair.peer for pair in self.receives}
                found = SmallBlocks(sources, self.communicator, [peers])
            self._small[dtype] = found
            return found

    def far(self, kind: str) -> set[int] | None:
        """Return whose blocks this process cannot read in place; None where each can read all."""
        try:
            return self._far[kind]
        except KeyError:
            found = None
            if not self.communicator.reaches_all(kind):
                near = self.communicator.reached(kind)
                found = {peer for peer, is_near in enumerate(near) if not is_near}
            self._far[kind] = found
            return found

    def count_rounds(self, block: Buffer) -> int:
        """Return in how many rounds a block is packed and sent; the same on all ranks."""
        if not self.moves_blocks or self.source is None or not _backend.is_numpy(block):
            return 1
        nbytes = 2 * largest_block(self.source, block.dtype)
        return count_rounds(nbytes, self.communicator.size)


def run_exchange(
    exchange: Exchange,
    block: Buffer,
    out: Buffer,
    targets: Sequence[Buffer] | None = None,
    is_free: bool = False,
) -> Buffer:
    """Fill `out` from the blocks of all processes and return it (collective).

    `targets` are its windows of what is received, where they are known. A `block` that is free may
    be overwritten, and all of `out` is filled.
    """
    if targets is None:
        targets = target_views(exchange, out)
    communicator = exchange.communicator
    if communicator.size == 1:
        _copy(exchange.receives, targets, [block], out)
        return out
    if not recording():
        _carry(exchange, block, out, targets, is_free)
        return out
    started = perf_counter()
    with pause_logs():
        _carry(exchange, block, out, targets, is_free)
    own = communicator.rank
    pairs = zip(exchange.receives, targets, strict=True)
    nbytes = sum(target.nbytes for pair, target in pairs if pair.peer != own)
    communicator.record("exchange", nbytes, started)
    return out


def refuse_exchange(exchange: Exchange, reason: str) -> None:
    """Join an exchange only to say that this process cannot take part: the others raise."""
    if exchange.communicator.size > 1:
        with contextlib.suppress(MismatchError):
            exchange.communicator.agree(token("refused", reason), f"refused: {reason}")


def target_views(exchange: Exchange, out: Buffer) -> list[Buffer]:
    """Return the windows of a block that what is received goes into."""
    return [pair.target.of(out) for pair in exchange.receives]


def _carry(
    exchange: Exchange, block: Buffer, out: Buffer, targets: Sequence[Buffer], is_free: bool
) -> None:
    small = exchange.small(block.dtype) if block.__class__ is np.ndarray else None
    if small is not None:
        told = small.exchange_one(block, exchange.token, exchange.what)
        if told is not None:
            for pair, target in zip(exchange.receives, targets, strict=True):
                target[...] = pair.source.of(told[pair.peer])
            return
        exchange._small[block.dtype] = None
    communicator = exchange.communicator
    kind = _backend.kind_of(_backend.device_of(block))
    far = exchange.far(kind)
    if far is not None:
        _through_the_wire(exchange, far, block, targets, out if is_free else None)
        if not communicator.reaches_some(kind):
            blocks = [None] * communicator.size
            blocks[communicator.rank] = block
            _copy(exchange.receives, targets, blocks, out)
            return
    agreed = far is not None
    receives, offered = exchange.receives, block
    place = _place_of_own(exchange, block, out, targets)
    if place is not None:
        offered = targets[place]
        copy_boxes([(offered, block)], total=out.nbytes)
        receives = receives[:place] + receives[place + 1 :]
        targets = [*targets[:place], *targets[place + 1 :]]
    with communicator.views(offered, exchange.token, exchange.what, agreed=agreed) as views:
        _copy(receives, targets, views, out)


def _place_of_own(
    exchange: Exchange, block: Buffer, out: Buffer, targets: Sequence[Buffer]
) -> int | None:
    """Return the window that gets this process's whole block, if others can read only that.

    They are lent that then, and what lies outside of the memory that they map is not copied twice.
    """
    if block.nbytes < _memory.POOLED_BYTES or _memory.is_shared(block):
        return None
    for i, (pair, target) in enumerate(zip(exchange.receives, targets, strict=True)):
        if pair.peer == exchange.communicator.rank and target.shape == block.shape:
            part = pair.source.of(block)
            if part.strides == block.strides and address_of(part) == address_of(block):
                return i if _memory.is_shared(out) else None
    return None


def _copy(
    pairs: Sequence[Pair], targets: Sequence[Buffer], blocks: Sequence[Any], out: Buffer
) -> None:
    """Copy what lies in blocks that can be read in place; None stands for others."""
    copies = [
        (target, pair.source.of(blocks[pair.peer]))
        for pair, target in zip(pairs, targets, strict=True)
        if blocks[pair.peer] is not None
    ]
    copy_boxes(copies, total=out.nbytes)


def _through_the_wire(
    exchange: Exchange, far: set[int], block: Buffer, targets: Sequence[Buffer], out: Buffer | None
) -> None:
    """Exchange the windows of processes whose blocks cannot be read in place, packed.

    Where messages may lie in the block, and in the one that is filled, that is `out`.
    """
    leaving = [(pair.peer, pair.source.of(block)) for pair in exchange.sends if pair.peer in far]
    arriving = [
        (pair.peer, target)
        for pair, target in zip(exchange.receives, targets, strict=True)
        if pair.peer in far
    ]
    kept = [pair.source.of(block) for pair in exchange.sends if pair.peer not in far]
    exchange_views(
        exchange.communicator,
        leaving,
        arriving,
        block,
        exchange.token,
        exchange.what,
        exchange.count_rounds(block),
        None if out is None else (out, kept),
    )


Parts = Sequence[tuple[Box, Box]]
"""Boxes that a block consists of, along some axes, and where it would begin for each of them."""


def overlaps(
    box: Box, sizes: Shape, start: int, stop: int, axis: int, origin: Box | None = None
) -> Iterator[tuple[Window, Window]]:
    """Yield (window of a block that holds `box`, window of a block that holds a flat stretch).

    Both blocks have `axis` axes before those in question, and any number after them. The first one
    begins at `origin`, or where its box does.
    """
    before = (WHOLE,) * axis
    end = 0
    for piece in boxes.runs(sizes, start, stop):
        at, end = end, end + boxes.volume(piece)
        common = boxes.intersect(piece, box)
        if common is not None:
            place = boxes.shift(common, origin or box)
            boxed = Window(axis, WHOLE, None, (*before, *boxes.slices(place)))
            flat = Window(
                axis,
                slice(at, end),
                boxes.shape(piece),
                (*before, *boxes.slices(boxes.shift(common, piece))),
            )
            yield boxed, flat


def to_flat(
    layout: Layout,
    axes: range,
    flat: Layout,
    what: str,
    parts_of: Callable[[Coordinate], Parts] | None = None,
) -> Exchange | None:
    """Return the exchange that turns the consecutive `axes` into one cut axis of `flat`.

    None on a process that is not in the mesh.

    Parameters
    ----------
    layout : Layout
        Before: boxes.
    axes : range
        The axes that become one, cut by the mesh axes that cut them now.
    flat : Layout
        After: the same axes elsewhere, and axis `axes.start` in flat order.
    parts_of : callable, optional
        Of a coordinate: what its block holds along `axes`, where that is not its box of `layout`.
    """
    return _boxes_and_stretches(layout, axes, flat, True, what, parts_of)


def from_flat(
    flat: Layout,
    layout: Layout,
    axes: range,
    what: str,
    parts_of: Callable[[Coordinate], Parts] | None = None,
) -> Exchange | None:
    """Return the exchange that turns axis `axes.start` of `flat` into `axes` of `layout`."""
    return _boxes_and_stretches(layout, axes, flat, False, what, parts_of)


def _boxes_and_stretches(
    layout: Layout,
    axes: range,
    flat: Layout,
    gather: bool,
    what: str,
    parts_of: Callable[[Coordinate], Parts] | None,
) -> Exchange | None:
    mesh: Any = layout.mesh
    mine = mesh.coordinate
    if mine is None:
        return None
    sizes = tuple(layout.shape[axis] for axis in axes)
    cutting = sorted(
        {m for axis in axes for m in layout.sharding_axes(axis)}
        | set(flat.sharding_axes(axes.start))
    )
    communicator = mesh.communicator(tuple(cutting))

    def pairs(here: Any, there: Any, peer: int, boxes_here: bool) -> Iterator[Pair]:
        """Windows from the block at one coordinate into the block at another."""
        boxed_at = here if boxes_here else there
        line = flat.local_box(there if boxes_here else here)
        assert line is not None  # both processes are in the mesh
        if parts_of is not None:
            parts = parts_of(boxed_at)
        else:
            box = layout.local_box(boxed_at)
            assert box is not None
            parts = [(box[axes.start : axes.stop],) * 2]
        for part, origin in parts:
            for boxed, stretch in overlaps(part, sizes, *line[axes.start], axes.start, origin):
                yield Pair(peer, boxed, stretch) if boxes_here else Pair(peer, stretch, boxed)

    receives: list[Pair] = []
    sends: list[Pair] = []
    for peer, rank in enumerate(communicator.ranks):
        other = mesh.coordinate_of(rank)
        receives += pairs(other, mine, peer, gather)
        sends += pairs(mine, other, peer, gather)
    source = layout if gather else flat
    return Exchange(communicator, receives, sends, what, source, True)


# --- mirror images -------------------------------------------------------------------------------


def mirror_layout(layout: Layout, axes: Sequence[int]) -> Layout:
    """Return the layout in which the blocks along some axes are as long as their mirror images."""
    boundaries = layout.boundaries or {}
    for axis in axes:
        if layout.sharding_axes(axis):
            offsets = layout.partition(axis).offsets
            boundaries[axis] = tuple(layout.shape[axis] - offset for offset in reversed(offsets))
    return layout.replace(boundaries=boundaries or None)


def mirror(layout: Layout, axes: Sequence[int], what: str) -> Exchange:
    """Return the exchange that reverses the cut `axes` of `layout`, into `mirror_layout`."""
    mesh: Any = layout.mesh
    cutting = sorted({m for axis in axes for m in layout.sharding_axes(axis)})
    communicator = mesh.communicator(tuple(cutting))
    opposite = tuple(
        size - 1 - c if m in cutting else c
        for m, (c, size) in enumerate(zip(mesh.coordinate, mesh.shape, strict=True))
    )
    peer = communicator.ranks.index(mesh.rank_at(opposite))
    backwards = tuple(
        slice(None, None, -1) if axis in axes else WHOLE for axis in range(layout.ndim)
    )
    source = Window(0, WHOLE, None, backwards)
    target = Window(0, WHOLE, None, (WHOLE,) * layout.ndim)
    pair = Pair(peer, source, target)
    return Exchange(communicator, (pair,), (pair,), what, layout, True)
