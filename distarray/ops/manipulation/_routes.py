"""Ways from one shape to another: what is exchanged, in which order, and the most a process holds.

A route is a list of redistributions, of exchanges in the flat order of some axes, and of
relabellings of blocks in place. It is found from layouts alone; nothing is sent before `bind`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from distarray.core import empty_block
from distarray.layout import DimMap, Layout, chunk, dimmap, propagate, stages
from distarray.ops.families._relabel import Offsets, replace_axes
from distarray.ops.families._windows import from_flat, run_exchange, to_flat
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

TOLERATED = 1.25
"""Largest block, in even parts, that passes as even. Chosen, not measured: a quarter more work on
one rank against another exchange."""

Step = Callable[[Buffer], Buffer]


class Route:
    """Steps from one layout towards another."""

    def __init__(self, layout: Layout) -> None:
        self.reached = layout
        self.moves: list[tuple[Layout, Layout, bool]] = []
        """Layouts before and after each exchange, and whether the engine plans it."""
        self.peak = 0
        """Items of the largest block after any step."""
        self._steps: list[Callable[[], Step]] = []

    def bind(self) -> list[Step]:
        """Return the steps as functions of this process's block, which is in the mesh."""
        return [make() for make in self._steps]

    def relabel(self, after: Layout) -> None:
        """See every block, as it is, in the shape that it has in another layout."""
        shape = after.local_shape()
        self._steps.append(lambda: lambda block: block.reshape(shape))
        self._arrive(after)

    def redistribute(self, after: Layout) -> None:
        """Move items between blocks of one global shape."""
        before = self.reached
        if before is not after:
            self.moves.append((before, after, True))
            self._steps.append(lambda: lambda block: redistribute_local(block, before, after))
            self._arrive(after)

    def exchange(self, after: Layout, axes: range, flatten: bool) -> None:
        """Move items from boxes of `axes` to stretches of their flat order, or the other way."""
        before = self.reached
        what = f"reshape {before.abstract!r} to {after.abstract!r}"
        self.moves.append((before, after, False))

        def bound() -> Step:
            if flatten:
                found = to_flat(before, axes, after, what)
            else:
                found = from_flat(before, after, axes, what)
            assert found is not None  # only processes in the mesh bind
            return lambda block: run_exchange(found, block, empty_block(after, block.dtype))

        self._steps.append(bound)
        self._arrive(after)

    def _arrive(self, layout: Layout) -> None:
        self.reached = layout
        self.peak = max(self.peak, layout.largest_block)

    def finish(self, shape: Shape) -> Route:
        """Add what `propagate` needs for the rest of the way to `shape`."""
        required, result = propagate(dimmap.reshape(self.reached.shape, shape), self.reached)
        self.redistribute(required)
        self.relabel(result)
        return self

    def turn(self, axes: range, sizes: Shape) -> None:
        """Turn consecutive axes into axes of `sizes`, cut as evenly as those allow.

        Blocks that are stretches of the flat order already only shift their ends; others take an
        exchange into even stretches. Where the new axis to cut is not the first, one more follows.
        """
        layout = self.reached
        mesh_axes = cutting_axes(layout, axes)
        counts = tuple(layout.mesh.shape[m] for m in mesh_axes)
        place = axis_to_cut(sizes, counts)
        inner = prod(sizes[place + 1 :])
        rows = chunk(sizes[place], counts).offsets
        flat = flatten_axes(layout, axes)
        if flat is not None:
            self.relabel(flat)
            if place == 0:
                mesh_axes = flat.sharding_axes(axes.start)
                rows = round_to_units(flat.partition(axes.start).offsets, inner)
                self.redistribute(_line(layout, axes, mesh_axes, _times(rows, inner)))
        elif place == 0:
            self.exchange(_line(layout, axes, mesh_axes, _times(rows, inner)), axes, True)
        else:
            even = chunk(prod(sizes), counts).offsets
            self.exchange(_line(layout, axes, mesh_axes, even), axes, True)
        after = replace_axes(layout, axes, sizes, place, mesh_axes, rows)
        if place == 0:
            self.relabel(after)
        else:
            self.exchange(after, range(axes.start, axes.start + len(sizes)), False)


def route(layout: Layout, shape: Shape) -> Route:
    """Return the way to `shape` on which every process holds about its share.

    In place if that can be; else by redistributions alone, if they are even enough; else with
    exchanges of the groups of axes concerned; else of all axes at once.
    """
    change = dimmap.reshape(layout.shape, shape)
    found = _plan(layout, change)
    share = max(layout.largest_block, layout.size // layout.block_count)
    if not found.moves or found.peak <= TOLERATED * share:
        return found
    for other in (_by_groups(layout, change, shape), _at_once(layout, shape)):
        if other.peak < found.peak:
            found = other
        if found.peak <= TOLERATED * share:
            break
    return found


def _plan(layout: Layout, change: DimMap) -> Route:
    """Return the way that takes redistributions alone."""
    found = Route(layout)
    for before, after in stages(change, layout):
        found.redistribute(before)
        found.relabel(after)
    return found


def _by_groups(layout: Layout, change: DimMap, shape: Shape) -> Route:
    """Return the way that turns each group of axes that cannot stay in place by itself."""
    found = Route(layout)
    shift = 0
    for group in change.groups:
        sizes = tuple(change.out_shape[axis] for axis in group.outputs)
        # Axes between those of a group have length 1.
        axes = range(group.inputs[0] + shift, group.inputs[-1] + 1 + shift)
        if len(group.inputs) == len(sizes) == 1 or not cutting_axes(found.reached, axes):
            continue
        flat = flatten_axes(found.reached, axes)
        if flat is None or not divides(flat, axes.start, sizes):
            found.turn(axes, sizes)
            shift += len(sizes) - len(axes)
    return found.finish(shape)


def _at_once(layout: Layout, shape: Shape) -> Route:
    """Return the way that turns all axes together."""
    found = Route(layout)
    found.turn(range(layout.ndim), tuple(size for size in shape if size != 1))
    return found.finish(shape)


def cutting_axes(layout: Layout, axes: range) -> tuple[int, ...]:
    """Return the mesh axes that cut some array axes."""
    return tuple(m for axis in axes for m in layout.sharding_axes(axis))


def flatten_axes(layout: Layout, axes: range) -> Layout | None:
    """Return the layout with some axes as one, in place; None where blocks are no stretches."""
    if len(axes) == 1:
        return layout
    sources: list[Any] = [dimmap.InputAxis(axis) for axis in range(layout.ndim)]
    sources[axes.start : axes.stop] = [dimmap.Flatten(tuple(axes))]
    required, flat = propagate(DimMap(layout.shape, tuple(sources)), layout)
    return flat if required is layout else None


def divides(layout: Layout, axis: int, sizes: Shape) -> bool:
    """Tell whether one axis splits into axes of `sizes` in place."""
    if len(sizes) == 1:
        return True
    sources: list[Any] = [dimmap.InputAxis(a) for a in range(layout.ndim)]
    one = dimmap.InputAxis(axis)
    sources[axis : axis + 1] = [dimmap.Split(one, sizes, part) for part in range(len(sizes))]
    return propagate(DimMap(layout.shape, tuple(sources)), layout)[0] is layout


def axis_to_cut(sizes: Sequence[int], counts: tuple[int, ...]) -> int:
    """Return which axis to cut: the first with blocks that are even enough, else the best."""
    shares = [chunk(size, counts).largest / size for size in sizes]
    enough = max(TOLERATED / prod(counts), min(shares))
    return next(axis for axis, share in enumerate(shares) if share <= enough)


def round_to_units(offsets: Offsets, unit: int) -> Offsets:
    """Return the offsets in units, each rounded to the nearest."""
    return tuple((offset + unit // 2) // unit for offset in offsets)


def _times(offsets: Offsets, unit: int) -> Offsets:
    return tuple(offset * unit for offset in offsets)


def _line(layout: Layout, axes: range, mesh_axes: tuple[int, ...], offsets: Offsets) -> Layout:
    """Return the layout with consecutive axes as one, cut at `offsets` of the flat order."""
    return replace_axes(layout, axes, (offsets[-1],), 0, mesh_axes, offsets)
