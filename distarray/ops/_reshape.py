"""Reshape: in place where blocks stay whole, else one exchange of the axes that do not.

What a reshape needs of a layout is said by `layout.propagate`: a sharded axis stays in place where
it leads the axes that it merges with, or is divided where blocks end. Otherwise blocks must be cut
anew. Where cuts that suit the old and the new axes alike leave some process with much more than
its share, the axes concerned take an exchange in their flat order instead, in which each process
gets an even stretch; where the new axes cannot be cut so, a second one. No process ever holds the
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from distarray.comm import _backend, _memory
from distarray.core._dispatch import remember
from distarray.core._policy import permit, permit_exchange
from distarray.errors import ArgumentError
from distarray.layout import DimMap, Layout, chunk, dimmap, propagate, stages
from distarray.ops._relabel import Offsets, recut, transposed
from distarray.ops._windows import from_flat, run, to_flat
from distarray.redistribute._execute import redistribute_local
from distarray.typing import Buffer, Shape

TOLERATED = 1.25
"""Largest block, in even shares, for which cuts that suit both shapes are good enough."""

_programs: dict[Any, Program] = {}


class Program:
    """How arrays of one layout become arrays of one shape: moves and relabellings."""

    __slots__ = ("moves", "output", "steps")

    def __init__(self, layout: Layout, shape: Shape) -> None:
        self.moves: list[tuple[Layout, Layout, bool]] = []
        """Layouts before and after each exchange, and whether the engine can plan it."""
        self.steps: list[Callable[[Buffer], Buffer]] = []
        change = dimmap.reshape(layout.shape, shape)
        required, self.output = propagate(change, layout)
        if required is layout:
            return
        rounds = stages(change, layout)
        share = max(largest_block(layout), layout.size // _ways(layout))
        if max(largest_block(half) for pair in rounds for half in pair) > TOLERATED * share:
            layout = self._even_out(layout, change)
            rounds = (propagate(dimmap.reshape(layout.shape, shape), layout),)
        for before, after in rounds:
            self._redistribute(layout, before)
            self._reshape(after)
            layout = after
        self.output = layout

    def run(self, block: Buffer, like: Layout) -> Buffer:
        """Return the new block of an array of layout `like`."""
        for src, dst, planned in self.moves:
            (permit if planned else permit_exchange)("reshape", src, dst, block.dtype)
        if like.mesh.coordinate is None:
            return _memory.empty(self.output.local_shape(), block.dtype, like.mesh.device)
        for step in self.steps:
            block = step(block)
        return block.reshape(self.output.local_shape())

    def _even_out(self, layout: Layout, change: DimMap) -> Layout:
        """Add the exchanges of the groups of axes that cannot stay in place; return the layout."""
        shift = 0
        for group in change.groups:
            sizes = tuple(change.out_shape[axis] for axis in group.outputs)
            first, last = group.inputs[0] + shift, group.inputs[-1] + shift
            axes = range(first, last + 1)  # any axes between them have length 1
            if len(group.inputs) == len(sizes) == 1 or not cutting_axes(layout, axes):
                continue
            flat = flattened(layout, axes)
            if flat is None or not divides(flat, first, sizes):
                layout = self._move(layout, axes, sizes, flat)
                self._reshape(layout)
                shift += len(sizes) - len(axes)
        return layout

    def _move(self, layout: Layout, axes: range, sizes: Shape, flat: Layout | None) -> Layout:
        """Add the exchanges that turn consecutive axes into axes of `sizes`; return the layout.

        `flat` is the layout with those axes as one, if every block is a stretch of it.
        """
        mesh_axes = cutting_axes(layout, axes)
        counts = tuple(layout.mesh.shape[m] for m in mesh_axes)
        place = axis_to_cut(sizes, prod(counts))
        rows = chunk(sizes[place], counts).offsets
        inner = prod(sizes[place + 1 :])
        if place == 0 and flat is not None:
            self._reshape(flat)
            rows = rounded(flat.partition(axes.start).offsets, inner)
            mesh_axes = flat.sharding_axes(axes.start)
            line = _line(layout, axes, mesh_axes, tuple(row * inner for row in rows))
            self._redistribute(flat, line)
            return recut(layout, axes, sizes, place, mesh_axes, rows)
        after = recut(layout, axes, sizes, place, mesh_axes, rows)
        if place == 0:
            line = _line(layout, axes, mesh_axes, tuple(row * inner for row in rows))
            self._exchange(layout, line, to_flat(layout, axes, line, _what(layout, line)))
            return after
        if flat is None:
            flat = _line(layout, axes, mesh_axes, chunk(prod(sizes), counts).offsets)
            self._exchange(layout, flat, to_flat(layout, axes, flat, _what(layout, flat)))
        else:
            self._reshape(flat)
        places = range(axes.start, axes.start + len(sizes))
        self._exchange(flat, after, from_flat(flat, after, places, _what(flat, after)))
        return after

    def _reshape(self, after: Layout) -> None:
        shape = after.local_shape()
        self.steps.append(lambda block: block.reshape(shape))

    def _redistribute(self, before: Layout, after: Layout) -> None:
        if before is not after:
            self.moves.append((before, after, True))
            self.steps.append(lambda block: redistribute_local(block, before, after))

    def _exchange(self, before: Layout, after: Layout, exchange: Any) -> None:
        self.moves.append((before, after, False))
        shape, device = after.local_shape(), after.mesh.device
        self.steps.append(
            lambda block: run(exchange, block, _memory.empty(shape, block.dtype, device))
        )


def _what(before: Layout, after: Layout) -> str:
    return f"reshape {before.abstract!r} to {after.abstract!r}"


def largest_block(layout: Layout) -> int:
    """Return the number of items of the largest block."""
    return prod(layout.partition(axis).largest for axis in range(layout.ndim))


def _ways(layout: Layout) -> int:
    """Return into how many blocks the array is cut."""
    return prod(layout.partition(axis).count for axis in range(layout.ndim))


def cutting_axes(layout: Layout, axes: range) -> tuple[int, ...]:
    """Return the mesh axes that cut some array axes."""
    return tuple(m for axis in axes for m in layout.sharding_axes(axis))


def flattened(layout: Layout, axes: range) -> Layout | None:
    """Return the layout with some axes as one, in place; None where blocks are no stretches."""
    sources: list[Any] = [dimmap.InputAxis(axis) for axis in range(layout.ndim)]
    if len(axes) == 1:
        return layout
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


def axis_to_cut(sizes: Sequence[int], ways: int) -> int:
    """Return which of the new axes to cut: the first that has enough items, else the longest."""
    enough = min(ways, max(sizes))
    return next(axis for axis, size in enumerate(sizes) if size >= enough)


def rounded(offsets: Offsets, unit: int) -> Offsets:
    """Return the offsets in units, each rounded to the nearest."""
    return tuple((offset + unit // 2) // unit for offset in offsets)


def _line(layout: Layout, axes: range, mesh_axes: tuple[int, ...], offsets: Offsets) -> Layout:
    """Return the layout with consecutive axes as one, cut at `offsets` of the flat order."""
    return recut(layout, axes, (offsets[-1],), 0, mesh_axes, offsets)


def reshape(
    x: Any, /, shape: int | Sequence[int], order: str = "C", *, copy: bool | None = None
) -> Any:
    """Return the same items in the same (row-major) order under another shape.

    Parameters
    ----------
    x : DistArray
    shape : int or sequence of int
        The new shape; one size may be -1 and follows from the others.
    order : {"C", "F"}
        Row-major or column-major order of the items.
    copy : bool, optional
        True: the result never shares memory with `x`. False: it must (an error where that takes a
        copy or an exchange). Default: it shares where it can.

    Raises
    ------
    ShapeError
        If the sizes do not have the number of items.
    ArgumentError
        If `copy=False` cannot be had.

    Notes
    -----
    A sharded axis stays in place where it is the first of the axes that it merges with, or is
    divided at block boundaries; `Partial` stays as it is. Otherwise the axes concerned take one
    exchange, in which each process receives its part of the flat order.
    """
    if order not in ("C", "F"):
        raise ArgumentError(f'reshape got order={order!r}; it takes "C" and "F"')
    asked = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    sizes = dimmap.reshape(x.shape, asked).out_shape
    if order == "F":
        backwards = tuple(reversed(range(x.ndim)))
        turned = x._new(x._local.transpose(), transposed(x._layout, backwards))
        result = reshape(turned, sizes[::-1], copy=copy)
        backwards = tuple(reversed(range(len(sizes))))
        return result._new(result._local.transpose(), transposed(result._layout, backwards))
    key = (x._layout, sizes)
    program = _programs.get(key)
    if program is None:
        program = Program(x._layout, sizes)
        remember(_programs, key, program)
    if copy is False and program.steps:
        raise ArgumentError(
            f"reshape of {x._layout} to {sizes} with copy=False: items must move to other "
            "processes; leave copy out, or redistribute first"
        )
    block = program.run(x._local, x._layout)
    if copy is not None and copy is _shares(x._local, block):
        if not copy:
            raise ArgumentError(
                f"reshape of {x._layout} to {sizes} with copy=False needs a copy of the block, "
                f"whose strides are {x._local.strides}; leave copy out"
            )
        block = copied(block)
    return x._new(block, program.output)


def copied(block: Buffer) -> Buffer:
    """Return a C-contiguous copy of a block, in memory of its own."""
    out = _memory.empty(block.shape, block.dtype, _backend.device_of(block))
    out[...] = block
    return out


def _shares(block: Buffer, result: Buffer) -> bool:
    if not block.size:
        return True
    return bool(_backend.namespace_of(block).may_share_memory(block, result))
