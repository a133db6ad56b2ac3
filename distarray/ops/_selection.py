"""What a basic index selects: which part of each block, and the layout it has there.

Slices never move items: each process keeps those of its block that are selected, and the result
has the explicit `boundaries` that this gives. Two things do need an exchange: an integer on a cut
axis, whose item only its owner has, and a negative step along a cut axis, which reverses the
order of the blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from distarray.comm import Purpose
from distarray.core._base import BaseArray
from distarray.core._cache import cache, remember
from distarray.errors import IndexingError
from distarray.layout import Layout, Replicate, Shard
from distarray.ops._relabel import carry
from distarray.ops._windows import mirrored
from distarray.typing import Shape

SPREAD_ITEMS = 8 * 1024 * 1024
"""A selected item of a cut axis with more items than this is cut along another axis instead of
being copied to every process (64 MiB of float64)."""


class Steps(NamedTuple):
    """A slice of an axis, as the first item, the distance of items and their number."""

    start: int
    step: int
    number: int


Item: TypeAlias = "int | Steps | None"
"""What becomes of an axis: one item, some items, or (None) a new axis."""

_selections: dict[Any, Selection] = cache()


class Selection:
    """The outcome of applying one basic index to arrays of one layout on this process."""

    __slots__ = (
        "_values",
        "alone",
        "cut",
        "flipped",
        "is_item",
        "kept",
        "key",
        "output",
        "purpose",
        "shape",
        "still",
        "taken",
    )

    def __init__(self, layout: Layout, key: Any) -> None:
        items = expand(key, layout.shape)
        box = layout.local_box()
        self.key: tuple[Any, ...] = ()
        """Applied to the local block, gives a view with the layout `kept`."""
        self.taken: tuple[int, ...] = ()
        """Axes of `kept`, of length 1, that an integer on a cut axis leaves."""
        self.flipped: tuple[int, ...] = ()
        """Axes of `kept` that have yet to be reversed across processes."""
        self._keep(layout, items, box)
        self.cut = _whole_along(self.kept, self.taken) if self.taken else self.kept
        """Layout of the view once the taken axes are no longer cut."""
        result = _without(self.cut, self.taken)
        self.output = result
        if self.flipped:
            self.output = mirrored(result, self.result_axes(self.flipped))
        self.shape = self.output.shape
        self.still = not self.taken and not self.flipped
        """The view itself is the result."""
        self.alone = not self.flipped and _ways(self.kept, self.taken) == 1
        """No other process has items of the taken axes: there is nothing to send, or to tell."""
        given = key if isinstance(key, tuple) else (key,)
        self.is_item = not self.shape and all(part is not Ellipsis for part in given)
        """Integers alone: a number in NumPy, and no view."""
        self.purpose = Purpose.of(f"x[{', '.join(map(_told, items))}]")
        """What ranks must agree on: other items of one block leave layouts that are the same."""
        self._values: dict[Shape, Layout] = {}

    def _keep(self, layout: Layout, items: Sequence[Item], box: Any) -> None:
        key: list[Any] = []
        shape: list[int] = []
        axes: dict[int, int] = {}
        offsets: dict[int, tuple[int, ...]] = {}
        axis = -1
        for item in items:
            if item is None:
                key.append(None)
                shape.append(1)
                continue
            axis += 1
            size = layout.shape[axis]
            cut = bool(layout.sharding_axes(axis))
            if not cut and type(item) is int:
                key.append(item)
                continue
            if type(item) is int:
                self.taken = (*self.taken, len(shape))
                item = Steps(item, 1, 1)
            assert type(item) is Steps
            axes[axis] = len(shape)
            if item == (0, 1, size):
                key.append(slice(None))
            elif not cut:
                key.append(as_slice(item))
            else:
                if item.step < 0:
                    self.flipped = (*self.flipped, len(shape))
                    item = Steps(
                        item.start + (item.number - 1) * item.step, -item.step, item.number
                    )
                offsets[len(shape)] = tuple(
                    _before(item, bound) for bound in layout.partition(axis).offsets
                )
                key.append(slice(0, 0) if box is None else _local(item, *box[axis]))
            shape.append(item.number)
        if not shape:
            key.append(Ellipsis)  # so that the block is an array, not a scalar
        self.key = tuple(key)
        self.kept = carry(layout, tuple(shape), axes, offsets)

    def value_layout(self, shape: Shape) -> Layout:
        """Return the layout of a value whose blocks broadcast to those of the view.

        `shape` has the last axes of `kept`, each of its length or of length 1.
        """
        found = self._values.get(shape)
        if found is None:
            shift = self.kept.ndim - len(shape)
            same = [a for a, size in enumerate(shape) if size == self.kept.shape[a + shift]]
            found = carry(self.kept, shape, {axis + shift: axis for axis in same})
            self._values[shape] = found
        return found

    def result_axes(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of the result that some axes of `kept` become."""
        return tuple(axis - sum(t < axis for t in self.taken) for axis in axes)


def select(layout: Layout, key: Any) -> Selection:
    """Return what `key` selects from arrays of `layout`, remembered for the next time.

    Raises
    ------
    IndexingError
        If the key is out of range, too long, or not made of integers, slices, `...` and None.
    """
    entries = key if type(key) is tuple else (key,)
    signature = (layout, tuple([_atom(entry) for entry in entries]))
    found = _selections.get(signature)
    if found is None:
        found = Selection(layout, key)
        remember(_selections, signature, found)
    return found


def _told(item: Item) -> str:
    if isinstance(item, Steps):
        stop = item.start + item.number * item.step
        shown = stop if stop >= 0 else ""  # which would count from the end
        return f"{item.start}:{shown}" + ("" if item.step == 1 else f":{item.step}")
    return str(item)


def _atom(key: Any) -> Any:
    """Return a hashable for one entry of a key, equal for entries that mean the same."""
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
            "and None select items; for a mask write da.where(mask, x, other), for single rows "
            "join slices with da.concat, or index the plain array x.full_array()"
        )
    raise IndexingError(
        f"an index holds a value of type {type(key).__name__}; only integers, slices, ... and None "
        "select items"
    )


def expand(key: Any, shape: Shape) -> list[Item]:
    """Return what becomes of every axis, in order, new axes included.

    Raises
    ------
    IndexingError
        If there are too many indices, more than one `...`, or an integer out of range.
    """
    entries = list(key) if type(key) is tuple else [key]
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise IndexingError(f"the index {_shown(key)} has {len(dots)} ellipses; use one at most")
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        raise IndexingError(
            f"the index {_shown(key)} is for {used} axes, but the array has {len(shape)}, shape "
            f"{shape}"
        )
    rest = [slice(None)] * (len(shape) - used)
    if dots:
        entries[dots[0] : dots[0] + 1] = rest
    else:
        entries += rest
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
    if type(entry) is not slice:
        index = _integer(entry)
        if not -size <= index < size:
            raise IndexingError(
                f"index {index} is out of range for axis {axis} of length {size}; it must be from "
                f"{-size} to {size - 1}"
            )
        return index % size
    atom = _atom(entry)
    if atom[2] == 0:
        raise IndexingError(f"a slice of axis {axis} has step 0; steps are positive or negative")
    chosen = range(*slice(*atom).indices(size))
    count = len(chosen)
    if count <= 1:  # where nothing is skipped or reversed, the step says nothing
        return Steps(chosen.start if count else 0, 1, count)
    return Steps(chosen.start, chosen.step, count)


def _shown(key: Any) -> str:
    entries = key if type(key) is tuple else (key,)
    return "[" + ", ".join("..." if entry is Ellipsis else repr(entry) for entry in entries) + "]"


def as_slice(item: Steps) -> slice:
    """Return the slice that selects these items."""
    stop = item.start + item.number * item.step
    return slice(item.start, stop if stop >= 0 else None, item.step)


def _before(item: Steps, bound: int) -> int:
    """Return how many of the items (with a positive step) lie before a global index."""
    return min(max(-(-(bound - item.start) // item.step), 0), item.number)


def _local(item: Steps, start: int, stop: int) -> slice:
    """Return the slice of a block (start, stop) that holds those of the items that it has."""
    first, last = _before(item, start), _before(item, stop)
    if first == last:
        return slice(0, 0)
    begin = item.start + first * item.step - start
    return slice(begin, begin + (last - first - 1) * item.step + 1, item.step)


def _whole_along(layout: Layout, taken: Sequence[int]) -> Layout:
    """Return the layout in which the taken axes, of length 1, are not cut.

    The mesh axes that cut them replicate the rest; where that is large they cut its longest axis
    instead.
    """
    freed = [m for axis in taken for m in layout.sharding_axes(axis)]
    placements = list(layout.placements)
    for mesh_axis in freed:
        placements[mesh_axis] = Replicate()
    boundaries = {a: o for a, o in (layout.boundaries or {}).items() if a not in taken}
    if layout.size > SPREAD_ITEMS:
        whole = [axis for axis in range(layout.ndim) if not layout.sharding_axes(axis)]
        longest = max(whole, key=lambda axis: layout.shape[axis], default=None)
        ways = 1
        for mesh_axis in freed:
            ways *= layout.mesh.shape[mesh_axis]
        if longest is not None and layout.shape[longest] >= ways:
            for mesh_axis in freed:
                placements[mesh_axis] = Shard(longest)
    return layout.replace(placements=placements, boundaries=boundaries or None)


def _ways(layout: Layout, axes: Sequence[int]) -> int:
    """Return into how many blocks some axes are cut."""
    return prod(layout.mesh.shape[m] for axis in axes for m in layout.sharding_axes(axis))


def _without(layout: Layout, taken: Sequence[int]) -> Layout:
    """Return the layout without some axes of length 1."""
    if not taken:
        return layout
    left = [axis for axis in range(layout.ndim) if axis not in taken]
    axes = {axis: i for i, axis in enumerate(left)}
    return carry(layout, tuple(layout.shape[axis] for axis in left), axes)
