"""Neighbours: what blocks need beyond their own items, of other blocks and past the array's ends.

A block is surrounded along any number of axes by one exchange. Along each axis an item past the end
stands for one of the array, as in `numpy.pad`: "wrap", "reflect" and "symmetric" repeat it forwards
or backwards. The axes are independent of each other, so that corners are products of stretches, of
whichever processes have them. What "edge" repeats and "constant" puts there each process fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from distarray.comm import _backend, _memory
from distarray.layout import Layout
from distarray.ops.families._relabel import resize_axis
from distarray.ops.families._windows import WHOLE, Exchange, Pair, Window, run_exchange
from distarray.typing import Buffer, Shape

Reach = Callable[[int], tuple[int, int]]
"""`reach(index)` is the stretch of an axis that the block of this index needs.

Stretches may overlap, be anywhere, and be empty. Past the ends of the array there is a mode.
"""
Reaches = Mapping[int, tuple[Reach, str | None]]
"""By axis: the reach, and what lies past the ends of the array (None where no block needs that)."""


Constants = Sequence[tuple[Any, Any]]
"""What "constant" puts before and after the array, for each axis."""


class Fill(NamedTuple):
    """A stretch of a surrounded block past one end of the array, which this process fills in."""

    axis: int
    end: int
    """0 before the array, 1 after it."""
    target: slice
    source: slice | None
    """Where in the block the item lies that is repeated; None for a constant."""


class Surroundings(NamedTuple):
    """How this process's block is surrounded."""

    exchange: Exchange
    shape: Shape
    fills: tuple[Fill, ...]

    def around(self, block: Buffer, constants: Constants = ()) -> Buffer:
        """Return the block surrounded (collective over the mesh axes that cut)."""
        out = _memory.empty(self.shape, block.dtype, _backend.device_of(block))
        run_exchange(self.exchange, block, out)
        fill_in(fill_views(self.fills, out, constants))
        return out


def fill_views(fills: tuple[Fill, ...], block: Any, constants: Constants) -> list[tuple[Any, Any]]:
    """Return what is to be filled in of this process's block, and with what, in this order."""
    found = []
    for axis, end, target, source in fills:
        key = (WHOLE,) * axis
        value = constants[axis][end] if source is None else block[(*key, source)]
        found.append((block[(*key, target)], value))
    return found


def fill_in(views: list[tuple[Any, Any]]) -> None:
    """Repeat edges, and put constants past the ends of the array."""
    for target, value in views:
        target[...] = value


class _Part(NamedTuple):
    """What a block along one axis gives, and where in a surrounded block it goes."""

    block: int
    source: slice
    target: slice


Needs = Sequence[Sequence[_Part]]
"""What each block along an axis needs, of which blocks."""


def surround(layout: Layout, reaches: Reaches, what: str, *, inside: bool = False) -> Surroundings:
    """Return how the block of this process, which is in the mesh, is surrounded.

    Parameters
    ----------
    layout : Layout
        Of the blocks, without `Partial`.
    reaches : mapping
        What blocks need along some axes.
    what : str
        The same on all processes: said where they disagree.
    inside : bool
        The blocks lie in surrounded blocks already, and what surrounds them is renewed.
    """
    mesh: Any = layout.mesh
    own = [own_block(layout, axis) for axis in reaches]
    needs = [_needs(layout, axis, reaches, inside) for axis in reaches]
    crossed = [axis for axis, each in zip(reaches, needs, strict=True) if _crosses(each)]
    cutting = tuple(sorted({m for axis in crossed for m in layout.sharding_axes(axis)}))
    communicator = mesh.communicator(cutting)
    strides = {m: prod(mesh.shape[n] for n in cutting if n > m) for m in cutting}

    def position(blocks: Iterable[int]) -> int:
        """Return which process of the communicator has these blocks along the axes of `reaches`."""
        found = 0
        for axis, block in zip(reaches, blocks, strict=True):
            for m in reversed(layout.sharding_axes(axis)):
                block, digit = divmod(block, mesh.shape[m])
                found += digit * strides.get(m, 0)
        return found

    def pair(peer: int, parts: tuple[_Part, ...]) -> Pair:
        keys = [[WHOLE] * layout.ndim, [WHOLE] * layout.ndim]
        for axis, part in zip(reaches, parts, strict=True):
            keys[0][axis], keys[1][axis] = part.source, part.target
        return Pair(peer, *(Window(0, WHOLE, None, tuple(key) or (...,)) for key in keys))

    receives, sends = [], []
    for parts in product(*(each[block] for each, block in zip(needs, own, strict=True))):
        peer = position(part.block for part in parts)
        if not inside or peer != communicator.rank or any(p.source != p.target for p in parts):
            receives.append(pair(peer, parts))
    for found in product(*(_parts_by(each, block) for each, block in zip(needs, own, strict=True))):
        peer = position(block for block, _ in found)
        sends.append(pair(peer, tuple(part for _, part in found)))
    shape, fills = list(layout.local_shape()), list[Fill]()
    for (axis, (reach, mode)), block in zip(reaches.items(), own, strict=True):
        low, high = reach(block)
        shape[axis] = high - low
        fills += _fills(axis, low, high, layout.shape[axis], mode)
    source = None if inside else layout
    exchange = Exchange(communicator, receives, sends, what, source)
    return Surroundings(exchange, tuple(shape), tuple(fills))


def crosses(layout: Layout, axis: int, reaches: Reaches) -> bool:
    """Tell whether some block needs items of another one along an axis."""
    return _crosses(_needs(layout, axis, reaches, False))


def _crosses(needs: Needs) -> bool:
    return any(part.block != block for block, parts in enumerate(needs) for part in parts)


def _parts_by(needs: Needs, own: int) -> list[tuple[int, _Part]]:
    """Return what a block along an axis gives, each with the block that it gives it to."""
    return [
        (block, part) for block, parts in enumerate(needs) for part in parts if part.block == own
    ]


def _needs(layout: Layout, axis: int, reaches: Reaches, inside: bool) -> Needs:
    """Return what each block along an axis needs."""
    count = layout.partition(axis).count
    return [_parts(layout, axis, reaches, block, inside) for block in range(count)]


def _parts(layout: Layout, axis: int, reaches: Reaches, block: int, inside: bool) -> list[_Part]:
    """Return what a block needs along an axis, of which blocks."""
    reach, mode = reaches[axis]
    partition = layout.partition(axis)
    low, high = reach(block)
    found = []
    for at, first, step, length in _image_stretches(low, high, layout.shape[axis], mode):
        start = first if step > 0 else first - length + 1
        for owner in partition.owners(start, start + length):
            begin, end = partition.bounds(owner)
            here, there = max(begin, start), min(end, start + length)
            to = at - low + (here - first if step > 0 else first - there + 1)
            # What a block is read through begins where the block, or what it lies in, begins.
            zero = reach(owner)[0] if inside else begin
            source = slice(here - zero, there - zero)
            if step < 0:
                before = source.start - 1
                source = slice(source.stop - 1, None if before < 0 else before, -1)
            found.append(_Part(owner, source, slice(to, to + there - here)))
    return found


def _image_stretches(
    low: int, high: int, size: int, mode: str | None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield where in a stretch items of the array stand, the first item, the direction, the length.

    Of "edge" the one item that the stretch lacks, where it lacks it.
    """
    at = low
    while at < high:
        if 0 <= at < size:
            first, step, length = at, 1, size - at
        elif mode == "wrap":
            first = at % size
            step, length = 1, size - first
        elif mode == "symmetric" or (mode == "reflect" and size > 1):
            skipped = int(mode == "reflect")
            turn = at % (2 * (size - skipped))
            ascends = turn < size - skipped
            first = turn if ascends else 2 * size - 1 - skipped - turn
            step = 1 if ascends else -1
            length = size - first if ascends else first + 1
        else:  # "reflect" of one item is its edge
            stop = min(high, 0) if at < 0 else high
            if mode in ("edge", "reflect") and not (low < size and high > 0):
                yield at, 0 if at < 0 else size - 1, 1, 1
            at = stop
            continue
        length = min(length, high - at, -at if at < 0 else length)
        yield at, first, step, length
        at += length


def _fills(axis: int, low: int, high: int, size: int, mode: str | None) -> Iterator[Fill]:
    """Yield what lies past the ends of the array, where it is repeated or constant."""
    if mode not in ("edge", "constant") and not (mode == "reflect" and size == 1):
        return
    ends = (low, min(high, 0), 0), (max(low, size), high, size - 1)
    for end, (start, stop, item) in enumerate(ends):
        if start < stop:
            # The item itself, or where there is none of it the first of the stretch, which got it.
            at = item if low <= item < high else start
            source = None if mode == "constant" else slice(at - low, at - low + 1)
            yield Fill(axis, end, slice(start - low, stop - low), source)


def own_block(layout: Layout, axis: int) -> int:
    """Return which block along an axis this process has, which is in the mesh."""
    mesh: Any = layout.mesh
    return layout.block_index(axis, mesh.coordinate)


def fetch(layout: Layout, axis: int, reach: Reach, what: str) -> Callable[[Buffer], Buffer]:
    """Return the function of a block that gives the stretch of `axis` that this process needs.

    It is collective over the mesh axes that cut `axis`; where there is one block, it takes the
    stretch of that.
    """
    if layout.partition(axis).count == 1:
        key = (*(WHOLE,) * axis, slice(*reach(0)))
        return lambda block: block[key]
    return surround(layout, {axis: (reach, None)}, what).around


def fetch_halos(
    layout: Layout, reach: Reach, what: str
) -> Callable[[Buffer], tuple[Buffer, Buffer]]:
    """Return the function of a block that gives what lies before and behind it along axis 0.

    Stretches hold their blocks, which are not copied. It is collective as that of `fetch`.
    """
    found = surround(layout, {0: (reach, None)}, what)
    whole, own = found.exchange, own_block(layout, 0)
    start, stop = layout.partition(0).bounds(own)
    low, high = reach(own)

    def close_gap(pair: Pair) -> Pair:
        rows, *rest = pair.target.key
        if rows.start >= stop - low:
            rows = slice(rows.start - (stop - start), rows.stop - (stop - start))
        return pair._replace(target=pair.target._replace(key=(rows, *rest)))

    receives = (close_gap(pair) for pair in whole.receives if pair.peer != whole.communicator.rank)
    exchange = Exchange(whole.communicator, receives, whole.sends, whole.what, whole.source)
    shape = (high - low - (stop - start), *found.shape[1:])

    def get(block: Buffer) -> tuple[Buffer, Buffer]:
        out = _memory.empty(shape, block.dtype, _backend.device_of(block))
        run_exchange(exchange, block, out)
        return out[: start - low], out[start - low :]

    return get


def sent(layout: Layout, axis: int, width: int) -> tuple[tuple[Layout, Layout, bool], ...]:
    """Return what is sent, see `Layouts`, where blocks get `width` items of their neighbours."""
    count = layout.partition(axis).count
    return ((layout, resize_axis(layout, axis, width * count), False),) if count > 1 else ()
