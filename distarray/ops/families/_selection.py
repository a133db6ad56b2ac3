"""Selections: which part of each block a basic index takes, and the layout it has there.

Slices never move items: each process keeps those of its block that are selected, and the result
has the explicit `boundaries` that this gives. Two things do need an exchange: an integer on a cut
axis, whose item only its owner has, and a negative step along a cut axis, which reverses the
order of the blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distarray.comm import Purpose
from distarray.core import (
    BaseArray,
    Layouts,
    Op,
    Step,
    cache,
    copy_block,
    empty_block,
    remember,
    steps,
    unshare,
)
from distarray.errors import IndexingError
from distarray.layout import Layout, Shard
from distarray.ops.families._relabel import carry_cuts, uncut_axes
from distarray.ops.families._windows import mirror, mirror_layout, run
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

SPREAD_ITEMS = 8 * 1024 * 1024
"""A selected item of a cut axis with more items than this is cut along another axis instead of
being copied to every process (64 MiB of float64). Chosen, not measured: a copy of a tenth of a
second."""


Item: TypeAlias = "int | range | None"
"""What becomes of an axis: one item, some items, or (None) a new axis."""

Key: TypeAlias = tuple[Any, ...]
"""Integers, slices as tuples of three, `...` and None."""

WHOLE_AXIS, REVERSED_AXIS = (None, None, None), (None, None, -1)
"""Slices, as entries of a `Key`."""


# --- the family ----------------------------------------------------------------------------------


def selection(name: str) -> Op:
    """Return an operation that selects items.

    A step of it is for all keys that take as much from the same blocks: its static argument is what
    `_locate` tells of them, and its local step gets which items they are before the block.
    """
    return Op(name, _local_step, lambda _, call: _outcome(call.layouts[0], call.static), bind=_bind)


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome(Layouts):
    """What selections of a layout have in common that take as much from the same blocks."""

    kept: Layout
    """Layout of what a process takes of its block, a view."""
    taken: tuple[int, ...]
    """Axes of `kept`, of length 1, that an integer on a cut axis leaves."""
    flipped: tuple[int, ...]
    """Axes of `kept` that have yet to be reversed across processes."""
    cut: Layout
    """Layout of the view once the taken axes are no longer cut."""
    is_item: bool
    """Integers alone: a number in NumPy, and no view."""
    is_local: bool
    """Nothing is sent: no other process has items of the taken axes."""
    _values: dict[Shape, Layout] = field(default_factory=dict)

    def value_layout(self, shape: Shape) -> Layout:
        """Return the layout of a value whose blocks broadcast to those of the view.

        `shape` has the last axes of `kept`, each of its length or of length 1.
        """
        found = self._values.get(shape)
        if found is None:
            shift = self.kept.ndim - len(shape)
            same = [a for a, size in enumerate(shape) if size == self.kept.shape[a + shift]]
            found = carry_cuts(self.kept, shape, {axis + shift: axis for axis in same})
            self._values[shape] = found
        return found


class Selection(NamedTuple):
    """One key for arrays of one layout on this process."""

    step: Step
    key: tuple[Any, ...]
    """Applied to the local block, gives a view with the layout `outcome.kept`."""
    purpose: Purpose
    """What ranks must agree on: other items of one block leave layouts that are the same."""

    @property
    def outcome(self) -> Outcome:
        """What keys like this leave."""
        found: Any = self.step.spec
        return found

    def take(self, x: BaseArray) -> Any:
        """Return what is selected from an array of this layout and dtype."""
        step, block = self.step, x._local
        if not step.still:
            (block,) = step.move((block,))
        return x._new(step.run(self.key, self.purpose, block), step.output)


_selections = cache()
_ENTRY_BYTES = 1 << 10
"""Of a key and a selection whose step is kept for others, too: 640 to 950 by tracemalloc."""


def select(op: Op, x: BaseArray, entries: Key) -> Selection:
    """Return what a key selects from an array; `op` is one of `selection`.

    Raises
    ------
    IndexingError
        If it is out of range or too long.
    """
    known = (op, entries, x._layout, x._local.dtype)
    found: Selection | None = _selections[known]
    if found is None:
        key, parts, text = _locate(x._layout, entries)
        step = steps[op, parts, x._layout, x._local.dtype]
        found = Selection(step, key, Purpose.of(text))
        remember(_selections, known, found, _ENTRY_BYTES)
    return found


def selected_layout(layout: Layout, entries: Key) -> Layout:
    """Return the layout of what a key selects where it lies."""
    return _outcome(layout, _locate(layout, entries)[1]).kept


_WHOLE, _GONE, _TAKEN, _CUT, _REVERSED, _ITEM = "whole", "gone", "taken", "cut", "reversed", "item"


def _locate(layout: Layout, entries: Key) -> tuple[Key, Key, str]:
    """Return a key for this process's block, what becomes of each axis, and the key as text.

    What becomes of the axes tells not which items are taken, but how many of each block.
    """
    items = expand(entries, layout.shape)
    box = layout.local_box()
    key: list[Any] = []
    parts: list[Any] = []
    axis = -1
    for item in items:
        if item is None:
            key.append(None)
            parts.append(None)
            continue
        axis += 1
        cut = layout.sharding_axes(axis)
        if type(item) is int:
            if not cut:
                key.append(item)
                parts.append(_GONE)
                continue
            start, stop = (0, 0) if box is None else box[axis]
            place = item - start
            key.append(slice(place, place + 1) if start <= item < stop else slice(0, 0))
            parts.append((_TAKEN, layout.partition(axis).owner(item)))
            continue
        assert type(item) is range
        if item == range(layout.shape[axis]):
            key.append(slice(None))
            parts.append(_WHOLE)
        elif not cut:
            key.append(_slice(item))
            parts.append(len(item))
        else:
            how = _CUT
            if item.step < 0:
                how, item = _REVERSED, item[::-1]
            parts.append((how, _bounds(item, layout.partition(axis).offsets)))
            start, stop = (0, 0) if box is None else box[axis]
            own = item[_count_before(item, start) : _count_before(item, stop)]
            key.append(slice(own[0] - start, own.stop - start, own.step) if own else slice(0, 0))
    text = f"x[{', '.join(map(_describe, items))}]"
    if all(part is _GONE for part in parts):
        key.append(Ellipsis)  # so that the block is an array, not a scalar
    if Ellipsis not in entries:
        parts.append(_ITEM)
    return tuple(key), tuple(parts), text


def _outcome(layout: Layout, parts: Sequence[Any]) -> Outcome:
    """Return the layouts of a selection, given what becomes of each axis."""
    is_item = parts[-1:] == (_ITEM,)
    shape: list[int] = []
    axes: dict[int, int] = {}
    offsets: dict[int, tuple[int, ...]] = {}
    taken: list[int] = []
    flipped: list[int] = []
    axis = -1
    for part in parts[:-1] if is_item else parts:
        if part is None:
            shape.append(1)
            continue
        axis += 1
        if part is _GONE:
            continue
        place = axes[axis] = len(shape)
        if part is _WHOLE:
            shape.append(layout.shape[axis])
        elif type(part) is int:
            shape.append(part)
        elif part[0] is _TAKEN:
            taken.append(place)
            shape.append(1)
            owner = part[1]
            offsets[place] = (0,) * (owner + 1) + (1,) * (layout.partition(axis).count - owner)
        else:
            if part[0] is _REVERSED:
                flipped.append(place)
            offsets[place] = part[1]
            shape.append(part[1][-1])
    kept = carry_cuts(layout, tuple(shape), axes, offsets)
    freed = output = kept  # layouts of new boundaries take most of the time of a new key
    if taken:
        freed = _free_axes(kept, taken)
        output = _drop_axes(freed, taken)
    if flipped:
        output = mirror_layout(output, _renumber(flipped, taken))
    is_local = not flipped and _count_blocks(kept, taken) == 1
    sends = []
    if taken and not is_local:
        sends.append((kept, freed, True))
    if flipped:
        sends.append((kept, output, False))
    is_item = is_item and not output.shape
    return Outcome(
        (layout,),
        output,
        tuple(sends),
        copies_view=bool(taken or flipped or is_item),
        kept=kept,
        taken=tuple(taken),
        flipped=tuple(flipped),
        cut=freed,
        is_item=is_item,
        is_local=is_local,
    )


def _local_step(key: Key, purpose: Purpose, block: Buffer) -> Buffer:
    """Return the selected items of this process's block, where they are all that there are."""
    del purpose
    selected: Buffer = block[key]
    return selected


def _bind(step: Step) -> Callable[[Key, Purpose, Buffer], Buffer]:
    """Return the function that takes the selected items of this process's block."""
    found: Any = step.spec
    output = found.output
    if not found.copies_view:
        return _local_step
    shape = output.local_shape()
    if found.is_local:
        return lambda key, _, block: copy_block(block[key].reshape(shape))
    axes = _renumber(found.flipped, found.taken)
    before = mirror_layout(output, axes)
    shape, exchange = before.local_shape(), None
    if axes:
        exchange = mirror(before, axes, f"reverse axes {axes} of {before!r}")

    def take_and_move(key: Key, purpose: Purpose, source: Buffer) -> Buffer:
        block = source[key]
        if found.taken:
            block = redistribute_local(block, found.kept, found.cut, purpose=purpose)
            block = block.reshape(shape)
        if exchange is not None:
            block = run(exchange, block, empty_block(output, block.dtype))
        return unshare(block, source)

    return take_and_move


_flip = selection("flip")


def flip_axes(x: Any, axes: Collection[int]) -> Any:
    """Return an array with the order of its items reversed along some axes."""
    key = [REVERSED_AXIS if axis in axes else WHOLE_AXIS for axis in range(x.ndim)]
    return select(_flip, x, (*key, Ellipsis)).take(x)


# --- keys ----------------------------------------------------------------------------------------


def normalize_key(key: Any) -> Key:
    """Return a key such that what means the same is equal.

    Raises
    ------
    IndexingError
        If it is not made of integers, slices, `...` and None.
    """
    return tuple([_entry(entry) for entry in (key if type(key) is tuple else (key,))])


def _describe(item: Item) -> str:
    if not isinstance(item, range):
        return str(item)
    shown = item.stop if item.stop >= 0 else ""  # which would count from the end
    return f"{item.start}:{shown}" + ("" if item.step == 1 else f":{item.step}")


def _entry(key: Any) -> Any:
    kind = type(key)
    if kind is int or key is None or key is Ellipsis:
        return key
    if kind is slice:
        start, stop, step = key.start, key.stop, key.step
        return (
            start if start is None or type(start) is int else _index(start),
            stop if stop is None or type(stop) is int else _index(stop),
            step if step is None or type(step) is int else _index(step),
        )
    return _integer(key)


def _index(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise IndexingError(
            f"a slice has the bound {value!r} of type {type(value).__name__}; bounds and steps are "
            "integers or None"
        ) from None


def _integer(key: Any) -> int:
    """Return one entry of a key as an int, or refuse what is not one."""
    if not isinstance(key, (bool, np.bool_)) and getattr(key, "ndim", 0) == 0:
        try:
            return operator.index(key)
        except TypeError:
            pass
    if isinstance(key, (list, tuple, np.ndarray, BaseArray, bool, np.bool_)):
        what = getattr(key, "dtype", type(key).__name__)
        raise IndexingError(
            f"an index holds an array, list or boolean ({what}); here only integers, slices, ... "
            "and None select items"
        )
    raise IndexingError(
        f"an index holds a value of type {type(key).__name__}; only integers, slices, ... and None "
        "select items"
    )


def expand(key: Key, shape: Shape) -> list[Item]:
    """Return what becomes of every axis, in order, new axes included.

    Raises
    ------
    IndexingError
        If there are too many indices, more than one `...`, or an integer out of range.
    """
    entries = list(key)
    dots = entries.count(Ellipsis)
    if dots > 1:
        raise IndexingError(f"the index {_show(key)} has {dots} ellipses; use one at most")
    used = len(entries) - dots - entries.count(None)
    if used > len(shape):
        raise IndexingError(
            f"the index {_show(key)} is for {used} axes, but the array has {len(shape)}, shape "
            f"{shape}"
        )
    place = entries.index(Ellipsis) if dots else len(entries)
    entries[place : place + 1] = [WHOLE_AXIS] * (len(shape) - used)
    items: list[Item] = []
    axis = 0
    for entry in entries:
        if entry is None:
            items.append(None)
            continue
        items.append(_item(entry, axis, shape[axis]))
        axis += 1
    return items


def _item(entry: Any, axis: int, size: int) -> Item:
    if type(entry) is int:
        if not -size <= entry < size:
            raise IndexingError(
                f"index {entry} is out of range for axis {axis} of length {size}; it must be from "
                f"{-size} to {size - 1}"
            )
        return entry % size
    if entry[2] == 0:
        raise IndexingError(f"a slice of axis {axis} has step 0; steps are positive or negative")
    chosen = range(*slice(*entry).indices(size))
    start, count = chosen.start, len(chosen)
    if count <= 1:  # where nothing is skipped or reversed, the step says nothing
        return range(start, start + 1) if count else range(0)
    return range(start, start + count * chosen.step, chosen.step)


def _show(key: Key) -> str:
    shown = [slice(*x) if type(x) is tuple else "..." if x is Ellipsis else x for x in key]
    return f"[{', '.join(map(str, shown))}]"


def _slice(item: range) -> slice:
    """Return the slice that selects these items."""
    return slice(item.start, item.stop if item.stop >= 0 else None, item.step)


def _bounds(item: range, offsets: Sequence[int]) -> tuple[int, ...]:
    """Return how many of the items (with a positive step) lie before each boundary."""
    return tuple([_count_before(item, bound) for bound in offsets])


def _count_before(item: range, bound: int) -> int:
    """Return how many of the items (with a positive step) lie before a global index."""
    return len(range(item.start, min(bound, item.stop), item.step))


def _free_axes(layout: Layout, taken: Sequence[int]) -> Layout:
    """Return the layout in which the taken axes, of length 1, are not cut.

    The mesh axes that cut them replicate the rest; where that is large they cut its longest axis
    instead.
    """
    free = uncut_axes(layout, taken)
    uncut = [axis for axis in range(layout.ndim) if not layout.sharding_axes(axis)]
    longest = max(uncut, key=lambda axis: layout.shape[axis], default=None)
    if layout.size <= SPREAD_ITEMS or longest is None:
        return free
    if layout.shape[longest] < _count_blocks(layout, taken):
        return free
    placements = list(free.placements)
    for axis in taken:
        for mesh_axis in layout.sharding_axes(axis):
            placements[mesh_axis] = Shard(longest)
    return free.replace(placements=placements)


def _count_blocks(layout: Layout, axes: Sequence[int]) -> int:
    """Return into how many blocks some axes are cut."""
    return prod(layout.mesh.shape[m] for axis in axes for m in layout.sharding_axes(axis))


def _drop_axes(layout: Layout, taken: Sequence[int]) -> Layout:
    """Return the layout without some axes of length 1."""
    left = [axis for axis in range(layout.ndim) if axis not in taken]
    axes = {axis: i for i, axis in enumerate(left)}
    return carry_cuts(layout, tuple(layout.shape[axis] for axis in left), axes)


def _renumber(axes: Sequence[int], taken: Sequence[int]) -> tuple[int, ...]:
    """Return what some axes are called once the taken ones are gone."""
    return tuple(axis - sum(t < axis for t in taken) for axis in axes)
