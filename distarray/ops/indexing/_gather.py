"""Reading items by index arrays: each process takes the rows that its part of the index names.

Index arrays are brought together: items of one axis or of several, broadcast to one shape. Where an
array is cut along an axis that they select from, the index is cut by the same mesh axes, as it is
or else along its longest axis, so that no large result is replicated. Each process then finds who
owns its rows, and takes them: in a node from where they lie, between nodes each one once. Along
other mesh axes the array stays as it is, and the index is gathered to all of them, 8 bytes an item.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import (
    Blocks,
    _backend,
    _memory,
    default_placements,
    gather_words,
    pull_rows,
    recording,
    take_rows,
)
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    common_mesh,
    move,
    replicated_layout,
    run,
    several_ranks,
)
from distarray.errors import IndexingError, MeshError
from distarray.layout import Layout, Replicate, Shard
from distarray.layout import box as boxes
from distarray.ops.families._relabel import carry_cuts, recut
from distarray.ops.indexing._keys import AdvancedKey, broadcast_indices, wrap_index
from distarray.typing import Box, Buffer, Shape

IndexedAxes = tuple[int | None, ...]
"""The axis that each index array selects from; None: one that only broadcasts with the others."""

_KNOWN: Final = 1 << 12
"""So many places that all ranks know each looks through for those of its own rows.

For 16 ranks of Zen 5 that takes 50 us; to be asked for rows takes two exchanges more."""


def select_by_arrays(view: BaseArray, key: AdvancedKey, arrays: Sequence[Any]) -> Any:
    """Return the items of a view that index arrays select; see `getitem`."""
    axes, indices = index_operands(view, key, arrays)
    return run(_gather, (view, *indices), (axes, key.place, key.own_places))


def select_along(x: BaseArray, axis: int, index: Any) -> Any:
    """Return the items at some places along an axis: an array of integers, distributed or plain."""
    if isinstance(index, BaseArray):
        index = bring(x, index)
    else:
        index = _backend.asarray(index, _backend.device_of(x._local))
    return run(_gather, (x, index), ((axis,), axis, (False,)))


def index_operands(
    view: BaseArray, key: AdvancedKey, arrays: Sequence[Any]
) -> tuple[IndexedAxes, list[Any]]:
    """Return index arrays as operands of the engine, and the axes that they select from."""
    axes: list[int | None] = []
    indices: list[Any] = []
    for index in key.indices:
        if index.operand is None:
            axes.append(index.axis)
            indices.append(np.zeros((), np.int64))
            continue
        array = arrays[index.operand]
        if index.ndim == 0:  # True is an array of one item, False of none
            axes.append(None)
            array = np.zeros(int(bool(array)), np.int64)
        else:
            axes.append(index.axis)
        indices.append(bring(view, array) if isinstance(array, BaseArray) else array)
    device = _backend.device_of(view._local)
    return tuple(axes), [
        one if isinstance(one, BaseArray) else _backend.asarray(one, device) for one in indices
    ]


def bring(x: BaseArray, other: BaseArray) -> BaseArray:
    """Return an array on a mesh that it has in common with another one."""
    mesh: Any = x._layout.mesh
    try:
        common_mesh("indexing", (mesh, other._layout.mesh))
    except MeshError:
        shape = other._layout.shape
        there = Layout(mesh, default_placements(mesh, len(shape)), shape)
        return other._new(move("indexing", other._local, other._layout, there), there)
    return other


# --- layouts -------------------------------------------------------------------------------------


class Indexing(NamedTuple):
    """The layouts of index arrays together, and of the items that they select."""

    indices: Layout
    """Of the index arrays, broadcast to one shape."""
    selected: Layout
    """Of the selected items: `place` axes of the array's others, those of the index, the rest."""
    cutting: tuple[int, ...]
    """The mesh axes that cut the indexed axes, so that ranks are numbered as blocks are."""


def index_layout(
    layout: Layout, own: Sequence[Layout], shape: Shape, allowed: Sequence[int], cut: Sequence[int]
) -> Layout:
    """Return how index arrays of the layouts `own`, broadcast to `shape`, are cut together.

    As the largest of those that are cut is, where `allowed` mesh axes do so; of the mesh axes `cut`
    those that are left cut the longest axis.
    """
    mesh = layout.mesh
    found = Layout(mesh, (Replicate(),) * mesh.ndim, shape)
    for one in sorted(own, key=lambda one: one.size, reverse=True):
        kept = [m for m in allowed if type(one.placements[m]) is Shard]
        if kept:
            found = _broadcast(one, shape, kept)
            break
    left = [m for m in cut if type(found.placements[m]) is not Shard]
    if not left or not shape:
        return found
    longest = max(range(len(shape)), key=shape.__getitem__)
    return recut(found, {longest: (*found.sharding_axes(longest), *left)})


def _broadcast(one: Layout, shape: Shape, kept: Sequence[int]) -> Layout:
    """Return the layout of an array broadcast to a shape, cut by the mesh axes `kept` alone."""
    cuts = {
        axis: [m for m in one.sharding_axes(axis) if m in kept]
        for axis in range(one.ndim)
        if not {*kept}.issuperset(one.sharding_axes(axis))
    }
    one = recut(one.without_partial(), cuts)
    shift = len(shape) - one.ndim
    same = {
        axis: axis + shift for axis, size in enumerate(one.shape) if size == shape[axis + shift]
    }
    return carry_cuts(one, shape, same)


def align(layout: Layout, shape: Shape) -> Layout:
    """Return the layout of an array that broadcasts to one of a layout, block by block."""
    shift = layout.ndim - len(shape)
    same = {
        axis + shift: axis
        for axis, size in enumerate(shape)
        if size == layout.shape[axis + shift] and size != 1
    }
    return carry_cuts(layout, shape, same)


def selected_layout(layout: Layout, index: Layout, axes: IndexedAxes, place: int) -> Layout:
    """Return the layout of the items that an index selects from axes of an array."""
    kept = [axis for axis in range(layout.ndim) if axis not in axes]
    places = {axis: i if i < place else i + index.ndim for i, axis in enumerate(kept)}
    sizes = [layout.shape[axis] for axis in kept]
    shape = (*sizes[:place], *index.shape, *sizes[place:])
    free = carry_cuts(layout, shape, places)
    return recut(
        free,
        {place + axis: index.sharding_axes(axis) for axis in range(index.ndim)},
        {place + axis: own for axis, own in (index.boundaries or {}).items()},
    )


def cutting_axes(layout: Layout, axes: IndexedAxes) -> tuple[int, ...]:
    """Return the mesh axes that cut the indexed axes, in the order of these."""
    return tuple(m for axis in axes if axis is not None for m in layout.sharding_axes(axis))


def checked_shape(layout: Layout, own: Sequence[Layout], axes: IndexedAxes) -> Shape:
    """Return the shape of index arrays together.

    Raises
    ------
    IndexingError
        If they do not broadcast, or select from an axis without items.
    """
    shape = broadcast_indices([one.shape for one in own])
    empty = [axis for axis in axes if axis is not None and not layout.shape[axis]]
    if empty and 0 not in shape:
        raise IndexingError(
            f"an index array selects from axis {empty[0]} of an array of shape {layout.shape}, "
            "which has no items"
        )
    return shape


def known_layout(have: Layout, want: Layout) -> Layout:
    """Return how an index array goes into the local step: as it is where every rank has it all.

    Then every rank looks whether it is in range by itself, and takes its part.
    """
    return have if have.is_replicated else want


def _gather_spec(_: Op, call: Call) -> Layouts:
    axes, place, _ = call.static
    layout, *own = call.layouts
    shape = checked_shape(layout, own, axes)
    cutting = cutting_axes(layout, axes)
    index = index_layout(layout, own, shape, (*cutting, *layout.replicated_axes), cutting)
    selected = selected_layout(layout, index, axes, place)
    moved = [known_layout(one, align(index, one.shape)) for one in own]
    sends: tuple[tuple[Layout, Layout, bool], ...] = ()
    if any(layout.mesh.shape[m] > 1 for m in cutting):
        sends = ((layout, selected, False),)
        if layout.size < selected.largest_block:
            # A row comes once, however often it is asked for.
            sends = ((layout, replicated_layout(layout.mesh, layout.shape), True),)
    plan = Indexing(index, selected, cutting)
    return Layouts((layout, *moved), selected, sends, plan=plan)


# --- the local step ------------------------------------------------------------------------------


class IndexBlocks:
    """Reads blocks of index arrays: where the rows are that they name."""

    def __init__(
        self, step: Step, own: Sequence[Layout], axes: IndexedAxes, own_places: Sequence[bool]
    ) -> None:
        """`own` are the layouts of the index arrays, as they come."""
        found: Indexing = step.plan
        layout = step.sources[0]
        mesh = found.indices.mesh
        box = found.indices.own_box
        self.shape = boxes.shape(box)
        self.most = prod(found.indices.partition(a).largest for a in range(found.indices.ndim))
        """How many rows a rank names at most."""
        self._box, self._step, self._own, self._axes = box, step, own, axes
        self._indices = found.indices
        self._own_places = own_places
        self._sizes = [0 if axis is None else layout.shape[axis] for axis in axes]
        self._blocks = [Blocks(layout.partition(a).offsets) for a in axes if a is not None]
        self._is_empty = 0 in found.indices.shape
        self.communicator = several_ranks(mesh, found.cutting)
        """Of the ranks that have the rows, where there are several."""
        telling = sorted(
            {m for one in own for m, p in enumerate(one.placements) if type(p) is Shard}
        )
        self._telling = several_ranks(mesh, telling)
        self._tell_later = self.communicator is not None and {*telling} <= {*found.cutting}
        self.known: tuple[tuple[slice, ...], int, int] | None = None
        """Of one index that every rank has: this rank's part, the length of the axis, the axis."""
        if len(own) == 1 and own[0].is_replicated and not (self._is_empty or any(own_places)):
            (one,) = axes
            if one is not None:
                self.known = self._part(own[0].shape), self._sizes[0], one
        self.token = step.token()

    def read(self, blocks: Sequence[Buffer]) -> tuple[list[np.ndarray], IndexingError | None]:
        """Return the indices of this rank's part of the index, which broadcast to its shape.

        One array for each axis, and the error for one out of range, if there is one that the
        exchange of rows has to tell.

        Raises
        ------
        IndexingError
            On every rank, if one is out of range.
        """
        if self.known is not None:
            return [self.read_known(blocks[0])[self.known[0]]], None
        found: list[np.ndarray] = []
        error: IndexingError | None = None
        operands = zip(blocks, self._own, self._axes, self._sizes, self._own_places, strict=True)
        for block, own, axis, size, is_place in operands:
            if axis is None:
                continue
            if is_place:
                found.append(self._places(own.shape))
                continue
            index = _backend.to_host(block)
            try:
                if self._is_empty:  # where nobody looks at what the index has
                    index = index.astype(np.int64, copy=False)
                else:
                    index = wrap_index(index, size, axis)
            except IndexingError as raised:
                if own.is_replicated:
                    raise
                error, index = raised, np.zeros((1,) * index.ndim, np.int64)
            if own.is_replicated:
                index = index[self._part(own.shape)]
            found.append(index)
        if self._telling is None:
            if error is not None:
                raise error
        elif not self._tell_later:
            gather_words(self._telling, (), self.token, self._step, error)
        return found, error

    def read_known(self, block: Buffer) -> np.ndarray:
        """Return all of an index that every rank has; an IndexingError as for `read`."""
        assert self.known is not None  # the caller has asked
        _, length, along = self.known
        return wrap_index(_backend.to_host(block), length, along)

    def _part(self, shape: Shape, box: Box | None = None) -> tuple[slice, ...]:
        """Return the part of an index array that a rank has whose box of the index this is.

        By default that is this rank.
        """
        box = (self._box if box is None else box)[len(self._box) - len(shape) :]
        return tuple(
            slice(0, 1) if size == 1 else slice(*bounds)
            for size, bounds in zip(shape, box, strict=True)
        )

    def _places(self, shape: Shape) -> np.ndarray:
        """Return the places of this rank's part of the index along the one axis of a length."""
        box = self._box[len(self._box) - len(shape) :]
        long = [bounds for size, bounds in zip(shape, box, strict=True) if size != 1]
        return np.arange(*long[0] if long else (1,)).reshape([-1 if n != 1 else 1 for n in shape])

    def numbers_of(self, known: np.ndarray, rank: int) -> np.ndarray:
        """Return the rows that a rank of the communicator names, of an index that all have."""
        box = self._boxes[rank]
        part, shape = known[self._part(known.shape, box)], boxes.shape(box)
        return (part if part.shape == shape else np.broadcast_to(part, shape)).reshape(-1)

    @functools.cached_property
    def _boxes(self) -> list[Box]:
        """The parts of the index that ranks of the communicator have."""
        indices = self._indices
        mesh: Any = indices.mesh
        ranks = () if self.communicator is None else self.communicator.ranks
        found = [indices.local_box(mesh.coordinate_of(rank)) for rank in ranks]
        return [box for box in found if box is not None]  # all are in the mesh

    def locate(self, indices: Sequence[np.ndarray]) -> tuple[Any, np.ndarray]:
        """Return, flat, which rank of the communicator has each row, and its number in the block.

        Rows of several axes are numbered in C order. Without a communicator there is no rank.
        """
        owner: Any = None
        number: Any = None
        for index, blocks in zip(indices, self._blocks, strict=True):
            if blocks.count == 1:
                number = index if number is None else number * blocks.size + index
                continue
            block, place = blocks.divide(index)
            owner = block if owner is None else owner * blocks.count + block
            number = place if number is None else number * blocks.lengths[block] + place
        return None if owner is None else self._flat(owner), self._flat(number)

    def _flat(self, words: np.ndarray) -> np.ndarray:
        if words.shape != self.shape:
            words = np.broadcast_to(words, self.shape)
        return words.reshape(-1)

    @functools.cached_property
    def rows(self) -> Blocks:
        """The rows of each rank."""
        lengths = np.ones((), np.int64)
        for blocks in self._blocks:
            lengths = np.multiply.outer(lengths, blocks.lengths)
        return Blocks([0, *np.cumsum(lengths)])

    def number(self, indices: Sequence[np.ndarray]) -> np.ndarray:
        """Return the number of each row in the blocks of all ranks, one after another."""
        if len(indices) == 1:
            return np.ascontiguousarray(self._flat(indices[0]))
        owner, number = self.locate(indices)
        if owner is None:
            return number
        first = self.rows.offsets[owner]
        return np.add(first, number, out=first)


def rows_of(block: Buffer, axes: IndexedAxes) -> Buffer:
    """Return a block with its indexed axes first: a view."""
    front = [axis for axis in axes if axis is not None]
    others = [axis for axis in range(block.ndim) if axis not in front]
    return block.transpose([*front, *others])


def _bind(step: Step) -> Callable[..., Buffer]:
    axes, place, own_places = step.call.static
    indexed = [axis for axis in axes if axis is not None]
    index = IndexBlocks(step, step.sources[1:], axes, own_places)
    layout = step.sources[0]
    sizes = layout.local_shape()
    kept = [sizes[axis] for axis in range(layout.ndim) if axis not in indexed]
    shape = (*index.shape, *kept)
    s = len(index.shape)
    order = [*range(s, s + place), *range(s), *range(s + place, len(shape))]
    turns = order != [*range(len(shape))]
    comm = index.communicator

    def gather(block: Buffer, *blocks: Buffer) -> Buffer:
        tell, number_of_step = None, index.token
        if index.known is None:
            indices, error = index.read(blocks)
        else:
            known = index.read_known(blocks[0])
            indices, error = [known[index.known[0]]], None
            if known.size <= _KNOWN and comm is not None and not comm.reaches_all():
                tell = functools.partial(index.numbers_of, known)
                number_of_step ^= _checksum(known)  # what does not fit would not be told apart
        if comm is None and indexed == [place] and place and _is_plain(block):
            into = _memory.empty((*kept[:place], *index.shape, *kept[place:]), block.dtype)
            number = np.broadcast_to(indices[0], index.shape)
            return np.take(block, number, axis=place, out=into, mode="clip")
        number = index.number(indices)
        del indices
        rows = block if indexed == [0] else rows_of(block, axes)
        rows = rows.reshape(prod(rows.shape[: len(indexed)]), *kept)
        out = _memory.empty(shape, block.dtype, _backend.device_of(block))
        flat = out.reshape(prod(index.shape), *kept)
        if comm is None:
            take_rows(rows, number, flat)
        else:
            pull_rows(
                comm,
                rows,
                index.rows,
                number,
                number_of_step,
                step,
                out=flat,
                error=error,
                alike=index.known is not None,
                known=tell,
                most=index.most,
            )
        return out.transpose(order) if turns else out

    dtype = step.call.dtypes[0]
    if index.known is None or comm is None:
        return gather
    most = index.rows.longest * prod(kept) * dtype.itemsize
    if most > comm.short_bytes:
        return gather
    part, length, along = index.known

    def gather_small(block: Buffer, numbers: Buffer) -> Buffer:
        if block.__class__ is not np.ndarray:
            return gather(block, numbers)
        started = perf_counter()
        number = index.read_known(numbers)[part]
        if number.shape != index.shape:  # one item, of which this rank has none
            number = np.broadcast_to(number, index.shape)
        rows = np.moveaxis(block, along, 0) if along else block
        told = comm.exchange_small(rows.tobytes(), index.token, step, most)
        if told is None:
            return gather(block, numbers)
        if recording():
            others = np.count_nonzero(index.rows.divide(number)[0] != comm.rank)
            nbytes = int(others) * prod(kept) * dtype.itemsize
            comm.record("rows", nbytes, started)
        out = np.ndarray((length, *kept), dtype, b"".join(told)).take(number, 0)
        return out.transpose(order) if turns else out

    return gather_small


def _checksum(numbers: np.ndarray) -> int:
    """Return a number of 32 bits that tells arrays of numbers apart."""
    import zlib

    return zlib.crc32(np.ascontiguousarray(numbers).tobytes())


def _is_plain(block: Buffer) -> bool:
    """Tell whether NumPy takes items of a block along any axis without copying it."""
    return _backend.is_numpy(block) and block.flags.c_contiguous


_gather = Op("indexing by arrays", np.take, _gather_spec, bind=_bind)
