"""Reading and writing the items that a basic index selects.

A result that needed no communication looks at the memory of its array, as in NumPy; one that did
(an integer on a cut axis, a negative step along one) is a read-only copy. Writing goes through the
layout of the selected part: the value is brought to that layout and each process writes its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

import numpy as np

from distarray.comm import _backend
from distarray.comm.kernels import address_of
from distarray.core import (
    ITEM,
    BaseArray,
    PendingWrite,
    cast,
    check_writable,
    convert_on_all,
    match_device,
    move,
    plain_buffer,
    replicated_layout,
    run_one,
    steps,
)
from distarray.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    FloatingError,
    IndexingError,
    ShapeError,
)
from distarray.layout import DimMap, dimmap
from distarray.layout import box as boxes
from distarray.ops.families._selection import Selection, flip_axes, normalize_key, selection
from distarray.ops.families._shape_function import relabel, shape_function
from distarray.ops.indexing._masks import as_mask, select_by_mask
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

_NUMERIC = "biufc"


_index = selection("indexing")
# A value with its axes at the places of those of a selection's view; None: a new axis of length 1.
_align = shape_function("assignment", lambda shape, axes: relabel(_place_axes(shape, axes)))


def getitem(x: Any, key: Any) -> Any:
    """Return the items that `key` (integers, slices, `...`, None, or a mask) selects.

    Slices stay where they are: the result has explicit `boundaries`, no communication happens and
    the result looks at the memory of `x`. An integer on a cut axis copies the selected item from
    its owner to the processes along the mesh axes that cut it (or, where it has more than
    `SPREAD_ITEMS` items, spreads it); write `x[i:i + 1]` to leave it in place. A negative step
    along a cut axis exchanges the blocks with their mirror images. Both are copies, and read-only,
    because NumPy's would be views: `x[i] = value` and `x[i] += value` write into `x`. A single
    item, in NumPy a number, is a read-only copy always; in-place operators make a new one of it.

    A mask is the whole key: booleans of the lengths of the first axes, as a DistArray of any layout
    or as an array or list that every process has alike. Its axes become one, which stays cut as
    the first of them is: each process keeps what is selected of its own block, and the result has
    the `boundaries` that this gives (see `rebalance`). Where later ones are cut as well, `x` is
    first cut along the first alone. All processes of the mesh learn the shape; outside the mesh
    nobody does, and the call raises there.

    Raises
    ------
    IndexingError
        If the key is out of range, too long, or of another kind; if a mask has other lengths.
    MeshError
        If the key is a mask and this process is not in the mesh.
    """
    block = x._local
    try:
        entries = normalize_key(key)
    except IndexingError:
        mask = as_mask(key)
        if mask is None:
            raise
        return select_by_mask(x, mask)
    step = steps[_index, entries, x._layout, block.dtype]
    found = step.spec
    block = step.run(block) if step.still else step.run(*step.move((block,)))
    result = x._new(block, found.output)
    if found.copies_view:
        result._origin = ITEM if found.is_item else (ref(x), found.purpose.text)
    return result


def rows(x: Any, keys: Iterable[Any]) -> Iterator[Any]:
    """Yield `x[key]` for some keys; what is a copy is read-only for in-place operators, too."""
    for key in keys:
        row = getitem(x, key)
        if getattr(row, "_origin", None) is not ITEM:
            row._origin = None
        yield row


def setitem(x: Any, key: Any, value: Any) -> None:
    """Write `value` into the items that `key` selects; their layout and dtype stay.

    Parameters
    ----------
    x : DistArray
        Changed in place. Where it is `Partial`, the value is split so that the blocks reduce to it.
    key
        Integers, slices, `...`, None.
    value : scalar, array or DistArray
        Broadcast to the selected shape and cast to the dtype of `x` as NumPy does. A plain array
        must be the same on every process; a DistArray of any layout, also on another mesh, is
        redistributed first.

    Raises
    ------
    IndexingError
        If the key is out of range, too long, or of another kind.
    ShapeError
        If the value does not broadcast to the selected shape.
    DeviceError
        If the value is on another device.
    ReadOnlyError
        If the array is read-only.
    """
    found = steps[_index, normalize_key(key), x._layout, x._local.dtype].spec
    if isinstance(value, PendingWrite):
        value = value.settle(x, found.purpose.text)
    check_writable("assignment", x)
    if isinstance(value, BaseArray):
        _check_device(x, value)
        _write_distributed(x, found, value)
        return
    if _backend.is_buffer(value):
        value = match_device(
            "assignment", plain_buffer(value, "assignment", objects=True), x._local
        )
    array = _convert(value, x._local.dtype)
    if array.ndim == 0 and not x._layout.has_partial:
        if x._layout.mesh.coordinate is not None:
            x._local[found.key] = _on_device(array, x._local)
        return
    if x._layout.has_partial:
        array = _cast(array, x._local.dtype)
    array = _align_plain(array, found)
    layout = found.value_layout(array.shape)
    if layout.mesh.coordinate is None:
        return
    if layout.has_partial:
        whole = replicated_layout(layout.mesh, layout.shape)
        block = redistribute_local(_on_device(array, x._local), whole, layout)
    else:
        box = layout.local_box()
        assert box is not None
        block = _on_device(array[boxes.slices(box)], x._local)
    _write(x, found.key, block)


def _check_device(x: Any, value: Any) -> None:
    here, there = x._layout.mesh.device, value._layout.mesh.device
    if here != there:
        raise DeviceError(
            f"assignment of a DistArray on {there!r} to items of one on {here!r}; nothing moves "
            f"between devices unless it is asked for: bring it over with value.to_device({here!r})"
        )


def _on_device(array: Buffer, like: Buffer) -> Buffer:
    return array if _backend.is_numpy(like) else _backend.asarray(array, _backend.device_of(like))


def _convert(value: Any, dtype: Any) -> Buffer:
    """Return a plain value as an array; what cannot become `dtype` fails on every process alike."""
    if _backend.is_buffer(value) and (
        value.dtype == dtype
        or (value.ndim and value.dtype.kind in _NUMERIC and dtype.kind in _NUMERIC)
    ):
        return value  # cast item by item where it is written
    return _cast(value, dtype)


def _cast(value: Any, dtype: Any) -> Buffer:
    if _backend.is_cupy(value):
        if value.dtype.kind in _NUMERIC and dtype.kind in _NUMERIC:
            return value.astype(dtype)
        raise DTypeError(
            f"values of {value.dtype} cannot be written into an array of {dtype}; convert them "
            "with astype first"
        )
    item = np.empty(np.shape(value), dtype)
    try:
        item[...] = value
    except FloatingPointError as error:
        raise FloatingError(f"assignment: {error}; np.errstate asks to raise it") from None
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        kind = DTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(
            f"a value of type {type(value).__name__} cannot be written into an array of {dtype} "
            f"({error}); convert it first"
        ) from None
    return item


def _axes_of(shape: Shape, found: Selection) -> tuple[int | None, ...]:
    """Return which axes of a value the last axes of the selection's view are; None: a new one.

    Raises
    ------
    ShapeError
        If the value does not broadcast to the selected shape.
    """
    selected = found.output.shape
    extra = max(len(shape) - len(selected), 0)
    own = shape[extra:]
    if any(n != 1 for n in shape[:extra]) or any(
        n not in (1, m) for n, m in zip(own[::-1], selected[::-1], strict=False)
    ):
        raise ShapeError(
            f"a value of shape {shape} does not broadcast to the selected shape {selected}; "
            "sizes must be equal or 1, counted from the last axis"
        )
    places = [axis for axis in range(found.kept.ndim) if axis not in found.taken]
    places = places[len(places) - len(own) :]
    first = places[0] if places else found.kept.ndim
    return tuple(
        extra + places.index(place) if place in places else None
        for place in range(first, found.kept.ndim)
    )


def _place_axes(shape: Shape, axes: Sequence[int | None]) -> DimMap:
    return DimMap(
        shape, tuple(dimmap.Singleton() if a is None else dimmap.InputAxis(a) for a in axes)
    )


def _backwards(found: Selection, shape: Shape) -> tuple[int, ...]:
    """Return which axes of an aligned value are to be reversed."""
    shift = found.kept.ndim - len(shape)
    places = (axis - shift for axis in found.flipped)
    return tuple(axis for axis in places if axis >= 0 and shape[axis] > 1)


def _align_plain(array: Buffer, found: Selection) -> Buffer:
    """Return a plain value with one axis per (trailing) axis of the selection's view."""
    axes = _axes_of(array.shape, found)
    array = array.reshape([1 if axis is None else array.shape[axis] for axis in axes])
    return np.flip(array, _backwards(found, array.shape))


def _write_distributed(x: Any, found: Selection, value: Any) -> None:
    fits = value._layout is found.output and value._local.dtype == x._local.dtype
    if fits and found.is_local and value._layout.mesh.coordinate is not None:
        view = x._local[found.key]
        block = value._local.reshape(view.shape)
        if not _same_memory(view, block):
            view[...] = block
        return
    kinds = (value.dtype.kind, x._local.dtype.kind)
    if kinds[0] != kinds[1] and not all(kind in _NUMERIC for kind in kinds):
        raise DTypeError(
            f"values of {value.dtype} cannot be written into an array of {x._local.dtype}; convert "
            "them with astype first"
        )
    value = run_one(_align, value, _axes_of(value.shape, found))
    flips = _backwards(found, value.shape)
    if flips:
        value = flip_axes(value, flips)
    target = found.value_layout(value.shape)
    if value._layout.has_partial or target.has_partial:
        value = cast("assignment", value, x._local.dtype)
    block = move("assignment", value._local, value._layout, target)
    if target.mesh.coordinate is None:
        return
    if not _same_memory(x._local[found.key], block):
        _write(x, found.key, block)


def _write(x: Any, key: Any, block: Buffer) -> None:
    """Write a block where a key selects items of the local one; what fails, fails on all ranks."""
    local = x._local
    write = functools.partial(local.__setitem__, key, block)
    convert_on_all(x._layout.mesh, "assignment", block.dtype, local.dtype, write)


def _same_memory(a: Buffer, b: Buffer) -> bool:
    """Tell whether two blocks are one and the same, as in `x[2:5] += 1`."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.strides == b.strides
        and address_of(a) == address_of(b)
    )
