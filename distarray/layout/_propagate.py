"""Layouts through shape operations: what one needs of the input, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import lcm, prod
from typing import NamedTuple

from distarray.layout._dimmap import (
    AxisSource,
    DimMap,
    Flatten,
    Group,
    InputAxis,
    Singleton,
    Split,
)
from distarray.layout._layout import Layout
from distarray.layout._partition import Partition, chunk
from distarray.layout._placements import Placement, Replicate, Shard
from distarray.typing import Shape


class _Axis(NamedTuple):
    """How an array axis of a layout in the making is cut; `offsets` None means torch.chunk's."""

    cuts: tuple[int, ...] = ()
    offsets: tuple[int, ...] | None = None


def propagate(dimmap: DimMap, layout: Layout) -> tuple[Layout, Layout]:
    """Return the layout that the input must have, and that of the result.

    With the input in the first layout, the operation on every local block alone gives the local
    block of the result in the second. Where no data has to move the first is `layout` itself.
    Pending reductions stay pending: shape operations commute with them.

    Parameters
    ----------
    dimmap : DimMap
    layout : Layout
        Of the input; its shape is `dimmap.in_shape`.

    Returns
    -------
    required, result : Layout
        Of the shapes `dimmap.in_shape` and `dimmap.out_shape`. Data moves as little as the two
        shapes allow: first by shifting the boundaries of the blocks, then by sharding another
        axis, and only where nothing else splits the work by replication.
    """
    if 0 in layout.shape and any(isinstance(s, (Flatten, Split)) for s in dimmap.axes):
        return layout, _empty_result(dimmap, layout)
    work = _Propagation(dimmap, layout)
    for group in dimmap.groups:
        work.pass_group(group)
    work.drop_vanished_axes()
    return work.required(), work.result()


def stages(dimmap: DimMap, layout: Layout) -> tuple[tuple[Layout, Layout], ...]:
    """Return the rounds in which a shape operation is done with the least memory per rank.

    Each round is a pair as from `propagate`: bring the input to the first layout, then reshape
    every local block to its shape in the second. Mostly there is one round. Two are needed where
    blocks that suit the old shape cannot suit the new one: the array is flattened, its blocks are
    cut anew, and then it takes its new shape.
    """
    direct = propagate(dimmap, layout)
    if direct[0] is layout:
        return (direct,)
    halves = _through_flat(dimmap)
    if halves is None:
        return (direct,)
    first = propagate(halves[0], layout)
    second = propagate(halves[1], first[1])
    peaks = [max(one.largest_block for one in way) for way in ((*first, *second), direct)]
    if peaks[0] < peaks[1]:
        return first, second
    return (direct,)


def _through_flat(dimmap: DimMap) -> tuple[DimMap, DimMap] | None:
    """Return a reshape as one that only flattens and one that only splits; None if it is simple."""
    if not any(isinstance(s, Split) and isinstance(s.source, Flatten) for s in dimmap.axes):
        return None
    to_flat: list[AxisSource] = []
    from_flat: list[AxisSource] = [Singleton()] * len(dimmap.axes)
    for group in dimmap.groups:
        middle = InputAxis(len(to_flat))
        one = len(group.inputs) == 1
        to_flat.append(InputAxis(group.inputs[0]) if one else Flatten(group.inputs))
        pieces = tuple(dimmap.out_shape[out] for out in group.outputs)
        for part, out in enumerate(group.outputs):
            from_flat[out] = Split(middle, pieces, part) if len(pieces) > 1 else middle
    flat = DimMap(dimmap.in_shape, tuple(to_flat))
    return flat, DimMap(flat.out_shape, tuple(from_flat))


def _empty_result(dimmap: DimMap, layout: Layout) -> Layout:
    """Return a layout for the reshape of an array without elements: every block of it is empty."""
    shape = dimmap.out_shape
    empty = shape.index(0)
    placements = [Shard(empty) if type(p) is Shard else p for p in layout.placements]
    return Layout(layout.mesh, placements, shape)


class _Propagation:
    """The two layouts in the making, axis by axis."""

    def __init__(self, dimmap: DimMap, layout: Layout) -> None:
        self.layout = layout
        self.out_shape = dimmap.out_shape
        self.counts = layout.mesh.shape
        self.same = [g for g in dimmap.groups if len(g.inputs) == len(g.outputs) == 1]
        own = layout.boundaries or {}
        self.ins = [_Axis(layout.sharding_axes(i), own.get(i)) for i in range(layout.ndim)]
        self.outs = [_Axis() for _ in self.out_shape]
        self.passed: set[int] = set()
        self.moved = False

    def pass_group(self, group: Group) -> None:
        """Carry the sharding of a group's input axes over to its output axes."""
        self.passed.update(group.inputs)
        if len(group.inputs) == len(group.outputs) == 1:
            # A relocation may have cut the pair already; then this changes nothing.
            before = self.ins[group.inputs[0]]
            self.outs[group.outputs[0]] = _Axis(before.cuts, before.offsets)
            return
        mesh_axes = tuple(m for i in group.inputs for m in self.ins[i].cuts)
        if not mesh_axes:
            return
        sizes = tuple(self.out_shape[out] for out in group.outputs)
        offsets = _flat_offsets([self.layout.partition(i) for i in group.inputs])
        found = offsets and _assign(offsets, mesh_axes, self.counts, sizes)
        if found:
            for out, axis in zip(group.outputs, found, strict=True):
                self.outs[out] = axis
        else:
            self._recut(group, mesh_axes, sizes)

    def drop_vanished_axes(self) -> None:
        """See to axes of length 1 that vanish or are repeated: nothing may shard them."""
        for axis in range(self.layout.ndim):
            if axis not in self.passed and self.layout.partition(axis).count > 1:
                self._relocate((axis,), self.ins[axis].cuts)

    def required(self) -> Layout:
        """Return the layout that the input must have."""
        return self._assemble(self.ins, self.layout.shape) if self.moved else self.layout

    def result(self) -> Layout:
        """Return the layout of the result."""
        return self._assemble(self.outs, self.out_shape)

    def _recut(self, group: Group, mesh_axes: tuple[int, ...], sizes: Shape) -> None:
        """Cut a group anew, in flat runs that suit its input axes and its output axes."""
        in_sizes = tuple(self.layout.shape[i] for i in group.inputs)
        lead_in, inner_in = _lead(in_sizes)
        lead_out, inner_out = _lead(sizes)
        unit = lcm(inner_in, inner_out)
        runs = chunk(prod(in_sizes) // unit, self._counts_of(mesh_axes))
        if self._relocate(group.inputs, mesh_axes, better_than=runs.largest / runs.size):
            return
        flat = [offset * unit for offset in runs.offsets]
        for i in group.inputs:
            self.ins[i] = _Axis()
        self.ins[group.inputs[lead_in]] = _Axis(mesh_axes, tuple(o // inner_in for o in flat))
        out = _Axis(mesh_axes, tuple(o // inner_out for o in flat))
        self.outs[group.outputs[lead_out]] = out
        self.moved = True

    def _relocate(
        self, sources: Sequence[int], mesh_axes: tuple[int, ...], better_than: float = 1.0
    ) -> bool:
        """Take mesh axes off some input axes and put them on one that passes unchanged.

        They go to the axis that they cut into the smallest blocks, and replicate where no cut
        gets below the whole.

        Returns
        -------
        bool
            False, with nothing done, where no such axis has smaller blocks than the fraction
            `better_than` and that fraction is below 1.
        """
        counts = self._counts_of(mesh_axes)
        best, target = better_than, None
        for group in self.same:
            i, o = group.inputs[0], group.outputs[0]
            if i in sources or self.ins[i].cuts or self.outs[o].cuts:
                continue
            split = chunk(self.layout.shape[i], counts)
            fraction = split.largest / max(split.size, 1)
            if fraction < best:
                best, target = fraction, (i, o)
        if target is None and better_than < 1.0:
            return False
        for i in sources:
            self.ins[i] = _Axis()
        if target is not None:
            self.ins[target[0]] = _Axis(mesh_axes)
            self.outs[target[1]] = _Axis(mesh_axes)
        self.moved = True
        return True

    def _counts_of(self, mesh_axes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of mesh axes."""
        return tuple(self.counts[m] for m in mesh_axes)

    def _assemble(self, axes: list[_Axis], shape: Shape) -> Layout:
        """Return the layout whose array axes are cut as described."""
        placements: list[Placement] = [
            Replicate() if type(p) is Shard else p for p in self.layout.placements
        ]
        for i, axis in enumerate(axes):
            for mesh_axis in axis.cuts:
                placements[mesh_axis] = Shard(i)
        order = [mesh_axis for axis in axes for mesh_axis in axis.cuts]
        boundaries = {i: axis.offsets for i, axis in enumerate(axes) if axis.offsets is not None}
        return self.layout.replace(
            placements=placements,
            shape=shape,
            shard_order=order if order != sorted(order) else None,
            boundaries=boundaries or None,
        )


def _lead(sizes: Shape) -> tuple[int, int]:
    """Return the first axis longer than 1 and how many elements one index of it holds."""
    lead = next((k for k, size in enumerate(sizes) if size > 1), len(sizes) - 1)
    return lead, prod(sizes[lead + 1 :])


def _flat_offsets(partitions: Sequence[Partition]) -> tuple[int, ...] | None:
    """Return the blocks of some axes as offsets of runs in row-major order.

    None where a block is no single run: an axis after which another one is sharded must not have
    more than one index in any block.
    """
    last = max((k for k, p in enumerate(partitions) if p.count > 1), default=-1)
    if any(p.largest > 1 for p in partitions[: max(last, 0)]):
        return None
    offsets, inner = _runs(partitions[: last + 1]), prod(p.size for p in partitions[last + 1 :])
    return tuple(offset * inner for offset in offsets)


def _runs(partitions: Sequence[Partition]) -> tuple[int, ...]:
    """Return the offsets of nested blocks of at most one index each, but for the last axis."""
    if not partitions:
        return (0, 1)
    inside = _runs(partitions[1:])
    inner = inside[-1]
    if len(partitions) == 1:
        return partitions[0].offsets
    found: list[int] = []
    for start, stop in pairwise(partitions[0].offsets):
        steps = inside[:-1] if start < stop else (0,) * (len(inside) - 1)
        found.extend(start * inner + step for step in steps)
    return (*found, partitions[0].size * inner)


def _assign(
    offsets: tuple[int, ...],
    mesh_axes: tuple[int, ...],
    mesh_shape: Shape,
    sizes: Shape,
) -> list[_Axis] | None:
    """Return how row-major runs cut the axes of lengths `sizes`, or None where they cut none.

    Parameters
    ----------
    offsets : tuple of int
        Of the runs, within ``range(prod(sizes))``.
    mesh_axes : tuple of int
        Those that cut, first cut first.
    mesh_shape, sizes : tuple of int
        Lengths of all mesh axes; of the axes to cut.
    """
    if not sizes:
        return None if mesh_axes else []
    inner = prod(sizes[1:])
    whole = [_Axis() for _ in sizes]
    if not mesh_axes:
        return whole
    if all(offset % inner == 0 for offset in offsets):
        whole[0] = _Axis(mesh_axes, tuple(offset // inner for offset in offsets))
        return whole
    for used in range(len(mesh_axes) - 1, -1, -1):
        below = prod(mesh_shape[m] for m in mesh_axes[used:])
        outer = offsets[::below]
        inside = _inside(offsets, below, inner)
        if inside is None:
            continue
        rest = _assign(inside, mesh_axes[used:], mesh_shape, sizes[1:])
        if rest is not None:
            first = _Axis(mesh_axes[:used], tuple(offset // inner for offset in outer))
            return [first if used else _Axis(), *rest]
    return None


def _inside(offsets: tuple[int, ...], below: int, inner: int) -> tuple[int, ...] | None:
    """Return the offsets within each run of `inner` elements, if they are the same in all.

    None where some `below` neighbouring runs together are neither empty nor one such run. All runs
    together have no gaps, so that the empty ones lie where such a run starts or ends.
    """
    found: tuple[int, ...] | None = None
    for first in range(0, len(offsets) - 1, below):
        start, stop = offsets[first], offsets[first + below]
        if start == stop:
            continue
        steps = tuple(offset - start for offset in offsets[first : first + below + 1])
        if start % inner or stop - start != inner or steps != (found or steps):
            return None
        found = steps
    return found
