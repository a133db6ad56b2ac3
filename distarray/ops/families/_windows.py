"""One exchange of windows: stretches and boxes of blocks that are no boxes of one array shape.

The redistribution engine moves boxes of one index space. A reshape whose items change process
relates boxes of one shape to stretches of the flat order, and a reversal relates a block to its
mirror image. Both are pairs of windows: what a peer's block is read through, and where it goes. So
is what a block needs of its neighbours' items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from distarray.comm import _backend, _memory, copy_box, pause_logs, record, recording, token
from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.typing import Box, Buffer, Shape

WHOLE = slice(None)


class Window(NamedTuple):
    """A view of a block: a stretch of one axis, seen as several axes, then slices."""

    axis: int
    stretch: slice
    sizes: Shape | None
    """Axes that the stretch is seen as; None leaves it one axis."""
    key: tuple[slice, ...]

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


class Exchange(NamedTuple):
    """What one process receives and sends; both in the same order on both sides."""

    communicator: Any
    receives: tuple[Pair, ...]
    sends: tuple[Pair, ...]
    what: str


def run(exchange: Exchange, block: Buffer, out: Buffer) -> Buffer:
    """Fill `out` from the blocks of all processes and return it (collective)."""
    communicator = exchange.communicator
    if communicator.size == 1:
        _copy(exchange.receives, [block], out)
        return out
    if not recording():
        _carry(exchange, block, out)
        return out
    started = perf_counter()
    with pause_logs():
        _carry(exchange, block, out)
    own = communicator.rank
    nbytes = sum(pair.target.of(out).nbytes for pair in exchange.receives if pair.peer != own)
    record("exchange", communicator.name, nbytes, perf_counter() - started)
    return out


def _carry(exchange: Exchange, block: Buffer, out: Buffer) -> None:
    communicator = exchange.communicator
    number, what = token(exchange.what), exchange.what
    kind = _backend.kind_of(_backend.device_of(block))
    far = {peer for peer, near in enumerate(communicator.reached(kind)) if not near}
    agreed = not communicator.reaches_all(kind)
    if agreed:
        _through_the_wire(exchange, far, block, out, number)
    with communicator.views(block, number, what, agreed=agreed) as blocks:
        _copy([pair for pair in exchange.receives if pair.peer not in far], blocks, out)


def _copy(pairs: Sequence[Pair], blocks: Sequence[Buffer], out: Buffer) -> None:
    for pair in pairs:
        copy_box(pair.target.of(out), pair.source.of(blocks[pair.peer]))


def _through_the_wire(
    exchange: Exchange, far: set[int], block: Buffer, out: Buffer, number: int
) -> None:
    """Exchange the windows of processes whose blocks cannot be read in place, packed."""
    communicator = exchange.communicator
    leaving = [(pair.peer, pair.source.of(block)) for pair in exchange.sends if pair.peer in far]
    arriving = [(pair.peer, pair.target.of(out)) for pair in exchange.receives if pair.peer in far]
    send_counts = _counts(leaving, communicator.size)
    recv_counts = _counts(arriving, communicator.size)
    device = _backend.device_of(block)
    send = _memory.empty((sum(send_counts),), block.dtype, device)
    recv = _memory.empty((sum(recv_counts),), block.dtype, device)
    for part, view in _parts(send, leaving, send_counts):
        copy_box(part, view)
    communicator.all_to_all(send, recv, send_counts, recv_counts, token=number, what=exchange.what)
    for part, view in _parts(recv, arriving, recv_counts):
        copy_box(view, part)


def _counts(views: Sequence[tuple[int, Buffer]], size: int) -> list[int]:
    counts = [0] * size
    for peer, view in views:
        counts[peer] += view.size
    return counts


def _parts(
    buffer: Buffer, views: Sequence[tuple[int, Buffer]], counts: Sequence[int]
) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield (part of the packed buffer, view) with the peers' parts one after another."""
    at = [sum(counts[:peer]) for peer in range(len(counts))]
    for peer, view in views:
        yield buffer[at[peer] : at[peer] + view.size].reshape(view.shape), view
        at[peer] += view.size


def overlaps(
    box: Box, sizes: Shape, start: int, stop: int, axis: int
) -> Iterator[tuple[Window, Window]]:
    """Yield (window of a block that holds `box`, window of a block that holds a flat stretch).

    Both blocks have `axis` axes before those in question, and any number after them.
    """
    before = (WHOLE,) * axis
    end = 0
    for piece in boxes.runs(sizes, start, stop):
        at, end = end, end + boxes.volume(piece)
        common = boxes.intersect(piece, box)
        if common is not None:
            boxed = Window(axis, WHOLE, None, (*before, *boxes.slices(boxes.shift(common, box))))
            flat = Window(
                axis,
                slice(at, end),
                boxes.shape(piece),
                (*before, *boxes.slices(boxes.shift(common, piece))),
            )
            yield boxed, flat


def to_flat(layout: Layout, axes: range, flat: Layout, what: str) -> Exchange | None:
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
    """
    return _boxes_and_stretches(layout, axes, flat, True, what)


def from_flat(flat: Layout, layout: Layout, axes: range, what: str) -> Exchange | None:
    """Return the exchange that turns axis `axes.start` of `flat` into `axes` of `layout`."""
    return _boxes_and_stretches(layout, axes, flat, False, what)


def _boxes_and_stretches(
    layout: Layout, axes: range, flat: Layout, gather: bool, what: str
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
        box = layout.local_box(here if boxes_here else there)
        line = flat.local_box(there if boxes_here else here)
        assert box is not None  # both processes are in the mesh
        assert line is not None
        box, (start, stop) = box[axes.start : axes.stop], line[axes.start]
        for boxed, stretch in overlaps(box, sizes, start, stop, axes.start):
            yield Pair(peer, boxed, stretch) if boxes_here else Pair(peer, stretch, boxed)

    receives: list[Pair] = []
    sends: list[Pair] = []
    for peer, rank in enumerate(communicator.ranks):
        other = mesh.coordinate_of(rank)
        receives += pairs(other, mine, peer, gather)
        sends += pairs(mine, other, peer, gather)
    return Exchange(communicator, tuple(receives), tuple(sends), what)


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
    return Exchange(communicator, (pair,), (pair,), what)


# --- neighbours ----------------------------------------------------------------------------------

Reach = Callable[[Sequence[int]], tuple[int, int]]
"""`reach(coordinate)` is the stretch of an axis that the process at a mesh coordinate needs."""


def from_neighbours(layout: Layout, axis: int, reach: Reach, what: str) -> Exchange:
    """Return the exchange that gives every process a stretch of the cut `axis` of `layout`.

    Stretches may overlap, reach into any number of blocks, and be empty.
    """
    mesh: Any = layout.mesh
    communicator = mesh.communicator(tuple(sorted(layout.sharding_axes(axis))))
    mine = mesh.coordinate

    def pairs(here: Any, there: Any, peer: int) -> Iterator[Pair]:
        """Yield the window of the block at one coordinate that another needs, if there is one."""
        box = layout.local_box(here)
        assert box is not None  # both processes are in the mesh
        (start, stop), (low, high) = box[axis], reach(there)
        first, last = max(start, low), min(stop, high)
        if first < last:
            keys = [(*(WHOLE,) * axis, slice(first - at, last - at)) for at in (start, low)]
            yield Pair(peer, *(Window(0, WHOLE, None, key) for key in keys))

    receives: list[Pair] = []
    sends: list[Pair] = []
    for peer, rank in enumerate(communicator.ranks):
        other = mesh.coordinate_of(rank)
        receives += pairs(other, mine, peer)
        sends += pairs(mine, other, peer)
    return Exchange(communicator, tuple(receives), tuple(sends), what)


def fetch(layout: Layout, axis: int, reach: Reach, what: str) -> Callable[[Buffer], Buffer]:
    """Return the function of a block that gives the stretch of `axis` that this process needs.

    It is collective over the mesh axes that cut `axis`; where none does, it takes the stretch.
    """
    mesh: Any = layout.mesh
    low, high = reach(mesh.coordinate)
    shape = list(layout.local_shape())
    if not layout.sharding_axes(axis):
        key = (*(WHOLE,) * axis, slice(low, high))
        return lambda block: block[key]
    shape[axis] = high - low
    exchange = from_neighbours(layout, axis, reach, what)

    def fetch_stretch(block: Buffer) -> Buffer:
        return run(exchange, block, _memory.empty(tuple(shape), block.dtype, mesh.device))

    return fetch_stretch


def borders(layout: Layout, axis: int, width: int) -> Layout:
    """Return a layout of as many items as blocks get from their neighbours, `width` a block."""
    blocks = len(layout.partition(axis).offsets) - 1
    shape = (*layout.shape[:axis], width * blocks, *layout.shape[axis + 1 :])
    boundaries = {a: o for a, o in (layout.boundaries or {}).items() if a != axis}
    return layout.replace(shape=shape, boundaries=boundaries or None)
