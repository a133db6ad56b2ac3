"""Advanced keys: lists, index arrays, masks and booleans among slices, integers, `...` and None.

Such a key is taken apart into a basic key, which selects a view that has all indexed axes, and
index arrays on axes of this view. NumPy's rules decide where the axes of the index arrays come in
the result: in place of the indexed axes where these stand side by side in the key, and first of
all where a slice, `...` or None is between them. Next to an index array an integer counts as one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.core import BaseArray, plain_buffer
from distarray.errors import ArgumentError, IndexingError
from distarray.ops.families._selection import WHOLE_AXIS, Item, Key, expand, normalize_key
from distarray.typing import Buffer, Shape

_PYTHON_ITEMS = 32
"""Items of which Python finds the least and the greatest sooner than NumPy."""


_INDICES_AT_MOST: Final = 63
"""Of NumPy's iterators, which have one operand more: blocks are written into by it."""


class Index(NamedTuple):
    """One advanced index: an array of integers, a mask, a boolean, or an integer beside them."""

    axis: int
    """The first axis of the view that it selects from."""
    ndim: int
    """How many axes it selects from: 1, of a mask as many as it has, of a boolean none."""
    operand: int | None
    """Which of the arrays it is; None: an integer, whose axis of the view has one item."""
    is_mask: bool
    is_place: bool = False
    """Whether it has for each item its place along the axis: the array has but the shape."""


class _KeyFields(NamedTuple):
    basic: Key
    """Slices (as tuples of three) and None, one for each axis of the view."""
    view: Shape
    """The view's shape."""
    indices: tuple[Index, ...]
    """In order; none in a key that is basic as a whole."""
    place: int
    """How many of the result's axes come before those of the index arrays."""


class AdvancedKey(_KeyFields):
    """What a key says apart from the items of its arrays; hashable."""

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """The view's axes that no index selects from; they are the result's other axes."""
        indexed = {index.axis + k for index in self.indices for k in range(index.ndim)}
        return tuple(axis for axis in range(len(self.view)) if axis not in indexed)

    @functools.cached_property
    def is_whole(self) -> bool:
        """Whether the view is the array itself."""
        return all(entry == WHOLE_AXIS for entry in self.basic)

    @functools.cached_property
    def has_masks(self) -> bool:
        """Whether an index is a mask with axes."""
        return any(index.is_mask and index.ndim for index in self.indices)

    @functools.cached_property
    def has_arrays(self) -> bool:
        """Whether there are arrays of integers, or several masks, which count as such."""
        arrays = [one for one in self.indices if one.operand is not None and one.ndim]
        return len(arrays) > 1 or not all(one.is_mask for one in arrays)

    @functools.cached_property
    def own_places(self) -> tuple[bool, ...]:
        """Of each index whether it has for each item its place along the axis."""
        return tuple([index.is_place for index in self.indices])

    def result_shape(self, shape: Shape) -> Shape:
        """Return the result's shape, given that of the index arrays broadcast together."""
        kept = tuple(self.view[axis] for axis in self.kept)
        return kept[: self.place] + shape + kept[self.place :]


class Advanced(NamedTuple):
    """A key that has been taken apart."""

    key: AdvancedKey
    arrays: tuple[Any, ...]
    """Plain arrays and DistArrays of integers or booleans, as many as the indices tell."""


def parse(key: Any, shape: Shape) -> Advanced:
    """Return what a key says for arrays of a shape.

    Parameters
    ----------
    key
        As in `x[key]`.
    shape : tuple of int
        Of `x`.

    Raises
    ------
    IndexingError
        If the key is for more axes than there are, or for more than blocks index by arrays, has
        two `...`, an integer that is out of range, a mask that has another length than its axis, or
        an entry of another kind.
    ArgumentError
        If the rows of a list have different lengths.

    Examples
    --------
    >>> found = parse((slice(1, 3), [0, 2], 1), (4, 5, 6))
    >>> found.key.basic
    ((1, 3, 1), (None, None, None), (1, 2, 1))
    >>> found.key.place, found.key.result_shape((2,))
    (1, (2, 2))
    """
    arrays: list[Any] = []
    entries: list[Any] = []
    for entry in key if type(key) is tuple else (key,):
        array = array_of(entry)
        if array is None:
            entries += normalize_key((entry,))
        else:
            entries.append((array.dtype.kind == "b", array.ndim))
            arrays.append(array)
    found = _key_of(tuple(entries), shape)
    for index in found.indices:
        if index.is_mask and index.operand is not None:
            first = index.axis - found.basic[: index.axis].count(None)
            mask = arrays[index.operand]
            _check_mask(mask.shape, shape, first)
            if not mask.size:
                arrays[index.operand] = _empty_mask(mask, shape[first : first + mask.ndim])
    return Advanced(found, tuple(arrays))


@functools.lru_cache(maxsize=512)  # any number of this size does
def _key_of(entries: tuple[Any, ...], shape: Shape) -> AdvancedKey:
    """Return what a key says: entries as normalized, of arrays (it is a mask, number of axes)."""
    operands: list[int | None] = []
    basic: list[Any] = []
    for entry in entries:
        is_array = type(entry) is tuple and len(entry) == 2
        operands.append(len(operands) - operands.count(None) if is_array else None)
        basic += [WHOLE_AXIS] * _ndim_of(entry) if is_array else [entry]
    items = expand(tuple(basic), shape)
    dots = len(items) - len(basic) + 1  # axes that `...` stands for
    axis = 0
    indices: list[Index] = []
    places: list[int] = []  # of the indices, in the key
    for place, (entry, operand) in enumerate(zip(entries, operands, strict=True)):
        if operand is None and type(entry) is not int:
            axis += dots if entry is Ellipsis else 1
            continue
        ndim = 1 if operand is None else _ndim_of(entry)
        indices.append(Index(axis, ndim, operand, operand is not None and entry[0]))
        places.append(place)
        axis += ndim
    count = sum(index.ndim for index in indices)
    if count > _INDICES_AT_MOST:
        raise IndexingError(
            f"the key indexes {count} axes by arrays, and integers beside these, of which blocks "
            f"take {_INDICES_AT_MOST} at most; write slices for some, as 0:1"
        )
    view = tuple(len(item) if type(item) is range else 1 for item in items)
    together = bool(places) and places[-1] - places[0] == len(places) - 1
    place = indices[0].axis if together else 0
    return AdvancedKey(_slices(items, shape), view, tuple(indices), place)


def wrap_index(index: Buffer, size: int, axis: int) -> Buffer:
    """Return the items of an index array, counted from the start of the axis, as int64.

    NumPy looks at index arrays once they are broadcast together: where that leaves no item, what
    is out of range is not told.

    Raises
    ------
    IndexingError
        If one is out of range.
    """
    index = index.astype(np.int64, copy=False)
    if not index.size:
        return index
    if index.size <= _PYTHON_ITEMS:
        items = index.reshape(-1).tolist()
        low, high = min(items), max(items)
    else:
        low, high = int(index.min()), int(index.max())
    if low < -size or high >= size:
        wrong = index[(index < -size) | (index >= size)].flat[0]
        raise IndexingError(
            f"index {wrong} is out of range for axis {axis} of length {size}; it must be from "
            f"{-size} to {size - 1}"
        )
    return np.where(index < 0, index + size, index) if low < 0 else index


def broadcast_indices(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of index arrays together; masks are as long as they have True items.

    Raises
    ------
    IndexingError
        If the shapes do not broadcast.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise IndexingError(
            f"index arrays of the shapes {', '.join(map(str, shapes))} do not broadcast to one "
            "shape; a mask counts as an array of as many items as it has True ones"
        ) from None


def array_of(entry: Any) -> Any:
    """Return an entry of a key as an array of integers or booleans; None: it is a basic one."""
    if entry is None or entry is Ellipsis or type(entry) is slice or type(entry) is int:
        return None
    array: Any
    if isinstance(entry, BaseArray):
        array = entry
    elif _backend.is_buffer(entry):
        array = plain_buffer(entry, "indexing", objects=True)  # refuses masked arrays
    elif hasattr(entry, "__index__") and not isinstance(entry, (bool, np.bool_)):
        return None
    else:
        try:
            array = np.asarray(entry)
        except ValueError as error:
            raise ArgumentError(f"an index holds a list that is no array: {error}") from None
        if not array.size and isinstance(entry, (list, tuple)):
            array = array.astype(np.int64)
    kind = array.dtype.kind
    if kind == "b" or (kind in "iu" and array.ndim):
        return array
    if kind in "iu":
        return None
    what = f"an array of {array.dtype}" if array.ndim else f"a {type(entry).__name__}"
    raise IndexingError(
        f"an index holds {what}; integers, slices, ..., None and arrays of integers or booleans "
        "select items"
    )


def _ndim_of(array: tuple[bool, int]) -> int:
    """Return from how many axes an array selects: a mask from its own, integers from one."""
    is_mask, ndim = array
    return ndim if is_mask else 1


def _slices(items: Sequence[Item], shape: Shape) -> Key:
    """Return slices that select a view with an axis for each item."""
    sizes = iter(shape)
    slices: list[Any] = []
    for item in items:
        if item is None:
            slices.append(None)
            continue
        chosen = range(item, item + 1) if type(item) is int else item
        assert type(chosen) is range
        stop = chosen.stop if chosen.stop >= 0 else None  # which would count from the end
        whole = chosen == range(next(sizes))
        slices.append(WHOLE_AXIS if whole else (chosen.start, stop, chosen.step))
    return tuple(slices)


def _empty_mask(mask: Any, shape: Shape) -> Buffer:
    """Return a mask of a shape, in memory of one item, that selects what an empty mask does."""
    block = mask._local if isinstance(mask, BaseArray) else mask
    xp = _backend.namespace_of(block)
    return xp.broadcast_to(xp.zeros((), bool), shape)


def _check_mask(mask: Shape, shape: Shape, first: int) -> None:
    for axis, (size, items) in enumerate(zip(mask, shape[first:], strict=False), first):
        if size not in (items, 0):  # the standard, and NumPy, let an axis without items pass
            raise IndexingError(
                f"a mask of shape {mask} does not fit axes {first} to {first + len(mask) - 1} of "
                f"an array of shape {shape}: axis {axis} has {items} items, and {size} in the mask"
            )
