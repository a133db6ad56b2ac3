"""Selections: which part of each block a basic index takes, and the layout it has there.

Slices never move items: each process keeps those of its block that are selected, and the result
has the explicit `boundaries` that this gives. Two things do need an exchange: an integer on a cut
axis, whose item only its owner has, and a negative step along a cut axis, which reverses the
order of the blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distarray.comm import Purpose
from distarray.core import (
    BaseArray,
    Layouts,
    Op,
    Resolutions,
    Step,
    cache,
    copy_block,
    empty_block,
    remember,
    steps,
    unshare,
)
from distarray.errors import ArgumentError, ArgumentTypeError, IndexingError
from distarray.layout import OFFSET_BYTES, Layout, Shard, carry_cuts, keep_recent, recall
from distarray.ops.families._relabel import uncut_axes
from distarray.ops.families._windows import mirror, mirror_layout, run_exchange
from distarray.redistribute import fetching, redistribute_local
from distarray.typing import Buffer, Shape

SPREAD_ITEMS = 8 * 1024 * 1024
"""A selected item of a cut axis with more items than this is cut along another axis instead of
being copied to every process (64 MiB of float64). Chosen, not measured: a copy of a tenth of a
second."""


Item: TypeAlias = "int | range | None"
"""What becomes of an axis: one item, some items, or (None) a new axis."""

Key: TypeAlias = tuple[Any, ...]
"""Integers, slices as tuples of three, `...` and None."""

_TOKENS = 2**62 - 1
"""The bits of a token."""

WHOLE_AXIS, REVERSED_AXIS = (None, None, None), (None, None, -1)
"""Slices, as entries of a `Key`."""


# --- the family ----------------------------------------------------------------------------------


def selection(name: str) -> Op:
    """Return an operation that selects items.

    A step of it is for all keys that take as much from the same blocks, and make copies: its static
    argument is what `_locate` tells of them, and its local step gets which items they are before
    the block.
    """
    return Op(name, np.take, lambda _, call: _layouts_of(call.layouts[0], call.static), bind=_bind)


class Outcome(NamedTuple):
    """What selections of a layout have in common that take as much from the same blocks."""

    output: Layout
    """Of the result."""
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
    values: dict[Shape, Layout]
    """What `value_layout` has found."""

    def value_layout(self, shape: Shape) -> Layout:
        """Return the layout of a value whose blocks broadcast to those of the view.

        `shape` has the last axes of `kept`, each of its length or of length 1.
        """
        found = self.values.get(shape)
        if found is None:
            shift = self.kept.ndim - len(shape)
            same = [a for a, size in enumerate(shape) if size == self.kept.shape[a + shift]]
            found = carry_cuts(self.kept, shape, {axis + shift: axis for axis in same})
            self.values[shape] = found
        return found


class Parts(NamedTuple):
    """What a key takes of each block of a layout: how many items, not which."""

    shape: Shape
    """Of all that is selected, in a view."""
    axes: tuple[tuple[int, int], ...]
    """Axes that the view has as well, and which of its axes they are."""
    offsets: tuple[tuple[int, tuple[int, ...]], ...]
    """Axes of the view whose boundaries are new, and these."""
    taken: tuple[tuple[int, int, int], ...]
    """Axes of the view that an integer on a cut axis leaves, which block has the item, of how many
    blocks."""
    flipped: tuple[int, ...]
    """Axes of the view that have yet to be reversed across processes."""
    is_item: bool
    """Integers alone: a number in NumPy."""

    def in_view(self, layout: Layout) -> Layout:
        """Return the layout of what processes take of their blocks."""
        offsets = dict(self.offsets)
        for axis, owner, count in self.taken:
            offsets[axis] = (0,) * (owner + 1) + (1,) * (count - owner)
        stays = len(self.axes) == len(self.shape) == layout.ndim  # they are in order
        return carry_cuts(layout, self.shape, None if stays else dict(self.axes), offsets)


class Selection:
    """One key for arrays of one layout on this process.

    Attributes
    ----------
    kept
        Layout of what a process takes of its block, a view.
    key
        Applied to the local block, gives that view.
    step
        None where the view is the result: nothing is sent, and nothing made that other keys share.
    """

    def __init__(self, op: Op, entries: Key, source: Layout, dtype: Any) -> None:
        self._source = source
        items = self._items = expand(entries, source.shape)
        self.key, parts = _locate(source, items, Ellipsis not in entries)
        self._parts, self.step, self._outcome, self._purpose = parts, None, None, None
        if parts.taken or parts.flipped or parts.is_item:
            step = self.step = steps[op, parts, source, dtype]
            outcome: Outcome = step.plan
            self._outcome, self.kept = outcome, outcome.kept
            if not outcome.is_local:
                # Ranks must agree on it: other items of one block leave layouts that are the same.
                self._purpose = Purpose(_number(items), self.text)
        else:
            self.kept = parts.in_view(source)

    @property
    def text(self) -> object:
        """The key as users write it, once it is made a string."""
        return _KeyText(self._items)

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes, with its key and boundaries."""
        return _ENTRY_BYTES + OFFSET_BYTES * self.kept.mesh.size

    @property
    def outcome(self) -> Outcome:
        """What keys like this leave."""
        if self._outcome is None:
            self._outcome = _layouts_of(self._source, self._parts).plan
        return self._outcome

    def take(self, x: BaseArray) -> Any:
        """Return what is selected from an array of this layout and dtype."""
        step, block, kept = self.step, x._local, self.kept
        if step is None:
            inside = kept.mesh.coordinate is not None
            return x._new(block[self.key] if inside else empty_block(kept, block.dtype), kept)
        if not step.still:
            step.ask()
        return x._new(step.run(self.key, self._purpose, block), step.output)


class _Selections(Resolutions):
    """Selections by (operation, key, layout, dtype).

    Most keys of loops never come back, and what is kept of them pushes all else out of the caches
    of a core. So a selection is kept once its key, noted by its hash among the last ones, is asked
    for again; of counted layouts it goes into the short memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, tuple[Any, ...]] = {}

    def __missing__(self, key: tuple[Any, ...]) -> Selection:
        found: Selection | None
        if key[2].is_counted:
            found = recall(self, key)
            if found is None:
                found = Selection(*key)
                keep_recent(self, key, found, found.nbytes)
            return found
        found = Selection(*key)
        place = hash(key) % (_LAST_BYTES // found.nbytes + 1)
        if self._last.get(place) == key:
            remember(self, key, found, found.nbytes)
        else:
            self._last[place] = key
        return found

    def clear(self) -> None:
        """Forget the last keys, too."""
        super().clear()
        self._last.clear()


_LAST_BYTES = 1 << 19
"""Most bytes of selections whose keys are known to have been there: some 500 on few ranks. Of keys
of explicit layouts, which may have as many boundaries as selections, that is a bound."""
_selections = cache(_Selections)
_ENTRY_BYTES = 1 << 10
"""Of a key and a selection whose step is kept for others, too: 640 to 950 by tracemalloc."""


def select(op: Op, x: BaseArray, entries: Key) -> Selection:
    """Return what a key selects from an array; `op` is one of `selection`.

    Raises
    ------
    IndexingError
        If it is out of range or too long.
    """
    found: Selection = _selections[op, entries, x._layout, x._local.dtype]
    return found


def selected_layout(layout: Layout, entries: Key) -> Layout:
    """Return the layout of what a key selects where it lies."""
    return _locate(layout, expand(entries, layout.shape), False)[1].in_view(layout)


def _locate(layout: Layout, items: Sequence[Item], complete: bool) -> tuple[Key, Parts]:
    """Return a key for this process's block, and what it takes of all blocks.

    Integers alone are an item where they are `complete`, without an ellipsis.
    """
    box = layout.local_box()
    key: list[Any] = []
    shape: list[int] = []
    axes: list[tuple[int, int]] = []
    offsets: list[tuple[int, tuple[int, ...]]] = []
    taken: list[tuple[int, int, int]] = []
    flipped: list[int] = []
    cuts, partitions = layout.frame.cuts, layout._partitions
    axis = -1
    for item in items:
        if item is None:
            key.append(None)
            shape.append(1)
            continue
        axis += 1
        size = layout.shape[axis]
        cut = cuts[axis]
        if type(item) is int:
            if not cut:
                key.append(item)
                continue
            start, stop = (0, 0) if box is None else box[axis]
            place = item - start
            key.append(slice(place, place + 1) if start <= item < stop else slice(0, 0))
            split = partitions[axis]
            taken.append((len(shape), split.owner(item), split.count))
            axes.append((axis, len(shape)))
            shape.append(1)
            continue
        assert type(item) is range
        axes.append((axis, len(shape)))
        count = len(item)
        if count == size and item.step == 1:
            key.append(slice(None))
        elif not cut:
            key.append(_slice(item))
        else:
            if item.step < 0:
                item = item[::-1]
                flipped.append(len(shape))
            bounds = partitions[axis].offsets
            found = _bounds(item, bounds)
            offsets.append((len(shape), found))
            start, stop = (0, 0) if box is None else box[axis]
            first, last = found[bounds.index(start)], found[bounds.index(stop)]
            if first < last:
                step = item.step
                start = item.start + first * step - start
                key.append(slice(start, start + (last - first - 1) * step + 1, step))
            else:
                key.append(slice(0, 0))
        shape.append(count)
    if not shape:
        key.append(Ellipsis)  # so that the block is an array, not a scalar
    is_item = complete and len(shape) == len(taken)
    parts = Parts(tuple(shape), tuple(axes), tuple(offsets), tuple(taken), tuple(flipped), is_item)
    return tuple(key), parts


def _layouts_of(layout: Layout, parts: Parts) -> Layouts:
    """Return the layouts of a selection, given what it takes of the blocks."""
    flipped = parts.flipped
    taken = tuple([place for place, _, _ in parts.taken])
    freed = output = kept = parts.in_view(layout)
    if taken:
        freed = _free_axes(kept, taken)
        left = [axis for axis in range(freed.ndim) if axis not in taken]
        sizes = tuple([freed.shape[axis] for axis in left])
        output = carry_cuts(freed, sizes, {axis: i for i, axis in enumerate(left)})
    if flipped:
        output = mirror_layout(output, _renumber(flipped, taken))
    is_local = not flipped and all(kept.partition(axis).count == 1 for axis in taken)
    sends = []
    if taken and not is_local:
        sends.append((kept, freed, True))
    if flipped:
        sends.append((kept, output, False))
    outcome = Outcome(output, kept, taken, flipped, freed, parts.is_item, is_local, {})
    is_copy = bool(taken or flipped or parts.is_item)
    return Layouts((layout,), output, tuple(sends), copies_view=is_copy, plan=outcome)


def _bind(step: Step) -> Callable[..., Buffer]:
    """Return the function that takes the selected items of this process's block."""
    found: Outcome = step.plan
    output = found.output
    shape = output.local_shape()
    if found.is_local:
        return lambda key, _, block: copy_block(block[key].reshape(shape))
    axes = _renumber(found.flipped, found.taken)
    before = mirror_layout(output, axes)
    shape, exchange, fetch = before.local_shape(), None, None
    if axes:
        exchange = mirror(before, axes, f"reverse axes {axes} of {before!r}")
    else:
        fetch = fetching(found.kept, found.cut, step.call.dtypes[0])

    def take_and_move(key: Key, purpose: Purpose, source: Buffer) -> Buffer:
        block = source[key]
        if fetch is not None and block.__class__ is np.ndarray:
            brought = fetch(block, shape, purpose)
            if brought is not None:
                return brought
        if found.taken:
            block = redistribute_local(block, found.kept, found.cut, purpose=purpose)
            block = block.reshape(shape)
        if exchange is not None:
            return run_exchange(exchange, block, empty_block(output, block.dtype))
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
    found = basic_key(key)
    if found is None:
        entries = key if type(key) is tuple else (key,)
        array = next(entry for entry in entries if _entry(entry) is _ARRAY)
        raise IndexingError(
            "an index holds an array, list or boolean "
            f"({getattr(array, 'dtype', type(array).__name__)}); here only integers, slices, ... "
            "and None select items"
        )
    return found


def basic_key(key: Any) -> Key | None:
    """Return what `normalize_key` does; None where an array, list or boolean is in the key.

    To raise takes 10 us.
    """
    found = tuple(map(_entry, key)) if type(key) is tuple else (_entry(key),)
    return None if _ARRAY in found else found


_ARRAY: Any = object()
"""What stands for an entry that is no basic one."""


class _KeyText:
    """What a key selects of each axis, as users write it: read where something is wrong."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def __str__(self) -> str:
        return f"x[{', '.join(map(_describe, self._items))}]"


def _number(items: Sequence[Item]) -> int:
    """Return the token of what a key selects: integers have one hash in all processes."""
    words = [(i.start, i.stop, i.step) if type(i) is range else (i or 0, i is None) for i in items]
    return hash(tuple(words)) & _TOKENS


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
        raise ArgumentTypeError(
            f"a slice has the bound {value!r} of type {type(value).__name__}; bounds and steps are "
            "integers or None"
        ) from None


def _integer(key: Any) -> Any:
    """Return one entry of a key as an int, or `_ARRAY`, or refuse what is neither."""
    if isinstance(key, (list, tuple, bool, np.bool_)):
        return _ARRAY
    if getattr(key, "ndim", 0) == 0:
        try:
            return operator.index(key)
        except TypeError:
            pass
    if isinstance(key, (np.ndarray, BaseArray)):
        return _ARRAY
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
    if len(key) == len(shape) and None not in key and Ellipsis not in key:
        return [*map(_item, key, range(len(shape)), shape)]
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
        raise ArgumentError(f"a slice of axis {axis} has step 0; steps are positive or negative")
    chosen = range(size)[slice(*entry)]
    start, count, step = chosen.start, len(chosen), chosen.step
    if count <= 1:  # where nothing is skipped or reversed, the step says nothing
        return range(start, start + 1) if count else range(0)
    return chosen if step == 1 else range(start, start + count * step, step)


def _show(key: Key) -> str:
    shown = [slice(*x) if type(x) is tuple else "..." if x is Ellipsis else x for x in key]
    return f"[{', '.join(map(str, shown))}]"


def _slice(item: range) -> slice:
    """Return the slice that selects these items."""
    return slice(item.start, item.stop if item.stop >= 0 else None, item.step)


def _bounds(item: range, offsets: Sequence[int]) -> tuple[int, ...]:
    """Return how many of the items (with a positive step) lie before each boundary."""
    start, stop, step, count = item.start, item.stop, item.step, len(item)
    found = [0]
    for bound in offsets[1:]:
        if bound <= start:
            found.append(0)
        else:
            found.append(count if bound >= stop else -((start - bound) // step))
    return tuple(found)


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
    if layout.shape[longest] < prod(layout.partition(axis).count for axis in taken):
        return free
    placements = list(free.placements)
    for axis in taken:
        for mesh_axis in layout.sharding_axes(axis):
            placements[mesh_axis] = Shard(longest)
    return free.replace(placements=placements)


def _renumber(axes: Sequence[int], taken: Sequence[int]) -> tuple[int, ...]:
    """Return what some axes are called once the taken ones are gone."""
    return tuple(axis - sum(t < axis for t in taken) for axis in axes)
