"""Keys with index arrays: their slices select a view, and the arrays select rows of that."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.core import BaseArray, cast, check_writable, move
from distarray.ops.families._selection import select, selection
from distarray.ops.indexing._gather import select_by_arrays
from distarray.ops.indexing._keys import Advanced, Index, broadcast_indices
from distarray.ops.indexing._scatter import write_by_arrays
from distarray.ops.indexing._values import check_device, check_kinds, on_device, read_value

_view = selection("indexing by arrays")


def _with_places(found: Advanced) -> Advanced:
    """Return a key with the places of true items for its masks: an index array for each axis."""
    if not found.key.has_masks:
        return found
    indices: list[Index] = []
    arrays: list[Any] = []
    for index in found.key.indices:
        if index.operand is None:
            indices.append(index)
            continue
        array = found.arrays[index.operand]
        if index.is_mask and index.ndim:
            places = np.nonzero(array)
            indices += [Index(index.axis + k, 1, len(arrays) + k, False) for k in range(index.ndim)]
            arrays += places
        else:
            indices.append(index._replace(operand=len(arrays)))
            arrays.append(array)
    return Advanced(found.key._replace(indices=tuple(indices)), tuple(arrays))


def get_by_arrays(x: BaseArray, found: Advanced) -> Any:
    """Return what a key with index arrays selects; see `getitem`."""
    found = _with_places(found)
    key = found.key
    if not key.is_whole:
        x = select(_view, x, key.basic).take(x)
    return select_by_arrays(x, key, found.arrays)


def set_by_arrays(x: BaseArray, found: Advanced, value: Any) -> None:
    """Write a value into what a key with index arrays selects; see `setitem`."""
    check_writable("assignment", x)
    dtype = x._local.dtype
    if isinstance(value, BaseArray):
        check_device("assignment", x, value)
        check_kinds(x, value)
        value = cast("assignment", value, dtype)
    else:
        value = read_value(x, value)
        value = on_device(value if value.dtype == dtype else value.astype(dtype), x._local)
    _write(x, found, value)


def apply_by_arrays(x: BaseArray, found: Advanced, ufunc: np.ufunc, value: Any) -> None:
    """Apply a ufunc to what a key with index arrays selects, once for each index.

    Of `Partial` arrays the reduced values change, and are split again.
    """
    layout = x._layout
    if not layout.has_partial:
        _write(x, found, value, ufunc)
        return
    whole = layout.without_partial()
    reduced = x._new(move(f"{ufunc.__name__}.at", x._local, layout, whole), whole)
    _write(reduced, found, value, ufunc)
    x._local[...] = move(f"{ufunc.__name__}.at", reduced._local, whole, layout)


def _write(x: BaseArray, found: Advanced, value: Any, ufunc: np.ufunc | None = None) -> None:
    """Write a value, or apply a ufunc with it, where a key selects items."""
    found = _with_places(found)
    key = found.key
    view = x
    flipped: tuple[int, ...] = ()
    if not key.is_whole:
        found_view = select(_view, x, key.basic)
        kept, flipped = found_view.outcome.kept, found_view.outcome.flipped
        inside = kept.mesh.coordinate is not None  # type: ignore[attr-defined]
        view = x._new(x._local[found_view.key] if inside else x._local, kept)
    if value is not None and (value.ndim > 1 or flipped):
        index = broadcast_indices([array.shape for array in found.arrays])
        ndim = len(key.kept) + len(index)
        extra = max(value.ndim - ndim, 0)
        if value.shape[:extra] == (1,) * extra:
            value = value[(0,) * extra] if extra else value
        # Of an axis that a slice reverses across processes the view is not reversed.
        places = [key.kept.index(axis) for axis in flipped]
        axes = [i if i < key.place else i + len(index) for i in places]
        value = _reversed(value, [axis - ndim + value.ndim for axis in axes])
    write_by_arrays(view, key, found.arrays, value, ufunc)


def _reversed(value: Any, axes: list[int]) -> Any:
    """Return a value with its items reversed along those of some axes that it has."""
    axes = [axis for axis in axes if axis >= 0 and value.shape[axis] > 1]
    return np.flip(value, tuple(axes)) if axes else value
