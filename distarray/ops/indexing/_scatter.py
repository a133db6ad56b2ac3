"""Writing items by index arrays: their owners write what others send them, in the index's order.

The index is cut as for reading, by the mesh axes that cut the indexed axes alone: where the array
is replicated, all copies change alike. Values go to the owners of their rows with the numbers of
these, or, where both are few, to all ranks. Owners write in rank order; where that is not C order
of the index, places travel as well, and put them in order. So the last of repeated indices wins, as
in NumPy, and what adds up (in `ufunc.at`) does so in NumPy's order, to the last bit. Values that
are the same for all rows are not sent; nothing is where every rank has the index and the values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from distarray.comm import Communicator, Parcels, _backend, group_numbers, push_rows, take_rows
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    caller,
    copy_block,
    run,
)
from distarray.layout import Layout, Shard
from distarray.layout import box as boxes
from distarray.ops.indexing._gather import (
    IndexBlocks,
    Indexing,
    align,
    bring,
    checked_shape,
    cutting_axes,
    index_layout,
    index_operands,
    known_layout,
    rows_of,
    selected_layout,
)
from distarray.ops.indexing._keys import AdvancedKey
from distarray.ops.indexing._values import check_broadcasts
from distarray.typing import Buffer


def write_by_arrays(
    view: BaseArray, key: AdvancedKey, arrays: Sequence[Any], value: Any, ufunc: Any = None
) -> None:
    """Write a value into the items of a view that index arrays select.

    Parameters
    ----------
    view : DistArray
        Looks at the memory that changes.
    key, arrays
        As `parse` gives them.
    value : DistArray or array
        Of the dtype of the view, unless there is a `ufunc`.
    ufunc : ufunc, optional
        Applied to each item and its value, as its method `at` does; `value` is None for one of one
        operand.

    Raises
    ------
    IndexingError
        If an index is out of range; nothing is written then.
    ShapeError
        If the value does not broadcast to the selected shape.
    """
    axes, indices = index_operands(view, key, arrays)
    static = (axes, key.place, key.own_places, ufunc)
    if value is None:
        run(_write, (view, *indices), static)
        return
    if isinstance(value, BaseArray):
        value = bring(view, value)
    run(_write, (view, *indices, value), static)


FEW_ITEMS = 512
"""So many indices and values all ranks get: in a node that takes 4 us, and 40 to send them to the
owners of the items; between nodes it is one message instead of two."""


def _spec(_: Op, call: Call) -> Layouts:
    axes, place, _, _ = call.static
    layout, *own = call.layouts
    values = own[len(axes) :]
    own = own[: len(axes)]
    shape = checked_shape(layout, own, axes)
    cutting = cutting_axes(layout, axes)
    is_cut = any(layout.mesh.shape[m] > 1 for m in cutting)
    few = is_cut and sum([one.size for one in (*own, *values)]) <= FEW_ITEMS
    everywhere = few or all(one.is_replicated for one in (*own, *values))
    allowed = () if few else cutting
    index = index_layout(layout, own, shape, allowed, () if everywhere else cutting)
    selected = selected_layout(layout, index, axes, place)
    moved = [known_layout(one, align(index, one.shape)) for one in own]
    for one in values:
        check_broadcasts(one.shape, selected.shape)
        moved.append(align(selected, one.shape))
    sends: tuple[tuple[Layout, Layout, bool], ...] = ()
    if not everywhere and is_cut:
        sends = ((layout, selected, False),)
    plan = Indexing(index, selected, cutting)
    return Layouts((layout, *moved), layout, sends, plan=plan)


class _Value:
    """Brings blocks of a value into rows: one for each item of this rank's part of the index."""

    def __init__(self, layout: Layout, found: Indexing, place: int) -> None:
        self._shape = boxes.shape(found.selected.own_box)
        s = found.indices.ndim
        of_index = range(place, place + s)
        first = found.selected.ndim - layout.ndim
        self.varies = any(
            axis - first in range(layout.ndim) and layout.shape[axis - first] != 1
            for axis in of_index
        )
        """Whether rows differ; else one stands for all."""
        self._count = prod(self._shape[axis] for axis in of_index)
        self._others = [axis for axis in range(len(self._shape)) if axis not in of_index]
        self._order = [*of_index, *self._others]

    def rows(self, block: Buffer) -> Buffer:
        """Return the rows, or the one that stands for all, which broadcasts to each."""
        block = block[(None,) * (len(self._shape) - block.ndim)]
        if not self.varies:
            return block.reshape([block.shape[axis] for axis in self._others])
        wide = block
        if block.shape != self._shape:
            wide = _backend.namespace_of(block).broadcast_to(block, self._shape)
        return wide.transpose(self._order).reshape(
            self._count, *(self._shape[axis] for axis in self._others)
        )


def _bind(step: Step) -> Callable[..., Buffer]:
    axes, place, own_places, ufunc = step.call.static
    found: Indexing = step.plan
    n = len(axes)
    depth = sum(axis is not None for axis in axes)
    index = IndexBlocks(step, step.sources[1 : 1 + n], axes, own_places)
    value = None if len(step.sources) == 1 + n else _Value(step.sources[-1], found, place)
    varies = value is not None and value.varies
    everywhere = not any(type(p) is Shard for p in found.indices.placements)
    places = None if _lies_in_order(found.indices, found.cutting) else _places(found.indices)
    comm = index.communicator
    call = caller(ufunc, step.call.dtypes[-1:])
    # Owners write such rows from where they lie; but kernels of GPUs would in any order.
    at_once = varies and ufunc is None and depth == 1 and places is None

    def write(block: Buffer, *blocks: Buffer) -> Buffer:
        rows = None if value is None else value.rows(blocks[-1])
        target = rows_of(block, axes)
        if comm is not None and not everywhere:
            if at_once and _backend.is_numpy(target) and target.flags.c_contiguous:
                # Others read the values while this rank writes.
                rows = copy_block(rows) if np.may_share_memory(target, rows) else rows
                send(comm, blocks[:n], rows, target)
                return block
            number, rows = send(comm, blocks[:n], rows)
        else:
            indices, _ = index.read(blocks[:n])
            owner, number = index.locate(indices)
            if comm is not None:
                mine = np.flatnonzero(owner == comm.rank)
                number = number[mine]
                rows = _taken(rows, mine) if varies else rows
        apply = functools.partial(_apply, target, depth, number, rows, varies, ufunc)
        if ufunc is None:
            apply()
        else:
            call(step.output.mesh, step.op.name, apply)
        return block

    def send(
        comm: Communicator, blocks: Sequence[Buffer], rows: Any, into: Buffer | None = None
    ) -> tuple[np.ndarray, Any]:
        """Send the numbers of rows, and rows that vary, to their owners; return what comes."""
        indices, error = index.read(blocks)
        (offsets, own), order = group_numbers(index.rows, index.number(indices))
        parcels = Parcels(offsets, order)
        del indices, order
        sent = [own] if places is None else [own, places]
        if varies:
            sent = [_backend.asarray(one, _backend.device_of(rows)) for one in sent] + [rows]
        received, _ = push_rows(comm, sent, parcels, index.token, step, error, packed=1, into=into)
        del sent, parcels, own
        if varies and into is None:
            rows = received.pop()
        number, *given = map(_backend.to_host, received)
        if given:
            first = np.argsort(given[0], kind="stable")
            return number[first], _taken(rows, first) if varies else rows
        return number, rows

    return write


def _lies_in_order(index: Layout, cutting: Sequence[int]) -> bool:
    """Tell whether the parts of the index, in the order of ranks, follow each other in C order."""
    cut = [axis for axis in range(index.ndim) if index.sharding_axes(axis)]
    if not cut:
        return True
    before = prod(index.shape[: cut[0]])
    return before <= 1 and len(cut) == 1 and index.sharding_axes(cut[0]) == tuple(cutting)


def _places(index: Layout) -> np.ndarray:
    """Return the places of this rank's part of an index in C order of the whole."""
    places = np.zeros((), np.int64)
    for (start, stop), size in zip(index.local_box() or (), index.shape, strict=True):
        places = np.add.outer(places * size, np.arange(start, stop))
    return places.reshape(-1)


def _taken(rows: Buffer, which: np.ndarray) -> Buffer:
    return rows[_backend.asarray(which, _backend.device_of(rows))]


def _apply(
    rows: Buffer, depth: int, number: np.ndarray, value: Any, varies: bool, ufunc: Any
) -> None:
    """Write into rows, numbered along their first `depth` axes; the last of equal numbers wins."""
    if not number.size:
        return
    on_host = _backend.is_numpy(rows)
    if ufunc is not None:
        target = _backend.to_host(rows)
        _apply_at(ufunc, target, depth, number, None if value is None else _backend.to_host(value))
        if not on_host:
            rows[...] = _backend.asarray(target, _backend.device_of(rows))
        return
    where: Any = (number,) if depth == 1 else np.unravel_index(number, rows.shape[:depth])
    if not on_host:
        if varies:  # kernels write in any order
            _, last = np.unique(number[::-1], return_index=True)
            last = number.size - 1 - last
            where, value = tuple(one[last] for one in where), _taken(value, last)
        rows[tuple(_backend.asarray(one, _backend.device_of(rows)) for one in where)] = value
        return
    shares = np.may_share_memory(rows, value) or np.may_share_memory(rows, number)
    if depth == 1 and varies and rows.flags.c_contiguous and not shares:
        take_rows(value, slice(None), rows, number)
    else:
        rows[where] = value


_COLUMNS = 16
"""Rows of at most so many items are changed column by column; columns far apart miss the cache."""


def _apply_at(ufunc: Any, rows: np.ndarray, depth: int, number: np.ndarray, value: Any) -> None:
    """Call a ufunc's `at` with rows in host memory, numbered along their first `depth` axes.

    NumPy has a fast loop for items along one axis and values of the dtype that it computes with;
    all else takes it 10 to 50 times as long an item.
    """
    count, rest = prod(rows.shape[:depth]), rows.shape[depth:]
    where: Any = number
    if rows.flags.c_contiguous:
        rows = rows.reshape(count, *rest)
    elif depth > 1:
        where = np.unravel_index(number, rows.shape[:depth])
    values = []
    if value is not None:
        value = value.astype(_loop_dtype(ufunc, rows.dtype, value.dtype), copy=False)
        values = [np.broadcast_to(value, number.shape + rest)]
    if where is number and rest and prod(rest) <= min(_COLUMNS, number.size):
        for column in np.ndindex(rest):
            ufunc.at(rows[:, *column], number, *[one[:, *column] for one in values])
    else:
        ufunc.at(rows, where, *values)


def _loop_dtype(ufunc: Any, target: np.dtype, given: np.dtype) -> np.dtype:
    """Return what `at` converts values to first, where it computes in the dtype of the target."""
    if target == given or not {target.kind, given.kind} <= {*"biufc"}:
        return given
    try:
        first, second, result = ufunc.resolve_dtypes((target, given, None))
    except TypeError:
        return given
    return second if first == target == result else given


_write = Op("assignment by arrays", np.put, _spec, bind=_bind)
