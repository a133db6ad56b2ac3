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
from distarray.core._arguments import plain_buffer
from distarray.core._base import BaseArray
from distarray.core._dispatch import move
from distarray.core._float_errors import converted
from distarray.core._meshes import replicated
from distarray.core._operands import beside
from distarray.core._policy import permit, permit_exchange
from distarray.core._read_only import ITEM, PendingWrite, check_writable
from distarray.errors import ArgumentError, DeviceError, DTypeError, FloatingError, ShapeError
from distarray.layout import Layout, Replicate
from distarray.layout import box as boxes
from distarray.ops._blocks import copied, empty_block, separate
from distarray.ops._relabel import carry
from distarray.ops._selection import Selection, select
from distarray.ops._windows import mirror, mirrored, run
from distarray.redistribute import redistribute_local
from distarray.typing import Buffer, Shape

_NUMERIC = "biufc"


def getitem(x: Any, key: Any) -> Any:
    """Return the items that `key` (integers, slices, `...`, None) selects.

    Slices stay where they are: the result has explicit `boundaries`, no communication happens and
    the result looks at the memory of `x`. An integer on a cut axis copies the selected item from
    its owner to the processes along the mesh axes that cut it (or, where it has more than
    `SPREAD_ITEMS` items, spreads it); write `x[i:i + 1]` to leave it in place. A negative step
    along a cut axis exchanges the blocks with their mirror images. Both are copies, and read-only,
    because NumPy's would be views: `x[i] = value` and `x[i] += value` write into `x`. A single
    item, in NumPy a number, is a read-only copy always; in-place operators make a new one of it.

    Raises
    ------
    IndexingError
        If the key is out of range, too long, or of another kind.
    """
    found = select(x._layout, key)
    if not found.still:
        if found.alone and x._layout.mesh.coordinate is not None:
            block = copied(x._local[found.key].reshape(found.output.local_shape()))
        else:
            block = separate(_moved(x._local, found), x._local)
        result = x._new(_backend.fixed(block), found.output)
        result._origin = ITEM if found.is_item else (ref(x), found.purpose.text)
        return result
    if x._layout.mesh.coordinate is None:
        block = empty_block(found.output, x._local.dtype)
    else:
        block = x._local[found.key]
    if not found.is_item:
        return x._new(block, found.output)
    result = x._new(_backend.fixed(copied(block)), found.output)
    result._origin = ITEM
    return result


def rows(x: Any, keys: Iterable[Any]) -> Iterator[Any]:
    """Yield `x[key]` for some keys; what is a copy is read-only for in-place operators, too."""
    for key in keys:
        row = getitem(x, key)
        if getattr(row, "_origin", None) is not ITEM:
            row._origin = None
        yield row


def _moved(block: Buffer, found: Selection) -> Buffer:
    """Return the block of a selection that needs an exchange."""
    inside = found.kept.mesh.coordinate is not None
    if found.taken:
        permit("indexing", found.kept, found.cut, block.dtype)
    if found.flipped:
        permit_exchange("indexing", found.kept, found.output, block.dtype)
    if not inside:
        return empty_block(found.output, block.dtype)
    block = block[found.key]
    if found.taken:
        block = redistribute_local(block, found.kept, found.cut, purpose=found.purpose)
        taken = [0 if axis in found.taken else slice(None) for axis in range(block.ndim)]
        block = block[(*taken, ...)]  # an array also where no axis is left
    if found.flipped:
        block = reverse(
            block, mirrored(found.output, axes := found.result_axes(found.flipped)), axes
        )
    return block


def reverse(block: Buffer, layout: Layout, axes: Sequence[int]) -> Buffer:
    """Return the block of `mirrored(layout)` with some cut axes reversed across processes."""
    after = mirrored(layout, axes)
    exchange = mirror(layout, axes, f"reverse axes {tuple(axes)} of {layout!r}")
    return run(exchange, block, empty_block(after, block.dtype))


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
    found = select(x._layout, key)
    if isinstance(value, PendingWrite):
        value = value.settle(x, found.purpose.text)
    check_writable("assignment", x)
    if isinstance(value, BaseArray):
        _check_device(x, value)
        _write_distributed(x, found, value)
        return
    if _backend.is_buffer(value):
        value = beside("assignment", plain_buffer(value, "assignment", objects=True), x._local)
    array = _converted(value, x._local.dtype)
    if array.ndim == 0 and not x._layout.has_partial:
        if x._layout.mesh.coordinate is not None:
            x._local[found.key] = _on_device(array, x._local)
        return
    if x._layout.has_partial:
        array = _cast(array, x._local.dtype)
    array = _aligned(array, found)
    layout = found.value_layout(array.shape)
    if layout.mesh.coordinate is None:
        return
    if layout.has_partial:
        whole = replicated(layout.mesh, layout.shape)
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


def _converted(value: Any, dtype: Any) -> Buffer:
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


def _fit(shape: Shape, found: Selection) -> Shape:
    """Return `shape` without superfluous leading ones, checked against the selected shape."""
    while len(shape) > len(found.shape) and shape[0] == 1:
        shape = shape[1:]
    tail = found.shape[len(found.shape) - len(shape) :]
    if len(shape) > len(found.shape) or any(
        n not in (1, m) for n, m in zip(shape, tail, strict=True)
    ):
        raise ShapeError(
            f"a value of shape {shape} does not broadcast to the selected shape {found.shape}; "
            "sizes must be equal or 1, counted from the last axis"
        )
    return shape


def _widened(shape: Shape, found: Selection) -> tuple[Shape, tuple[int, ...]]:
    """Return a fitting shape with the taken axes put in, and the new place of every axis."""
    places = [axis for axis in range(found.kept.ndim) if axis not in found.taken]
    places = places[len(places) - len(shape) :]
    first = places[0] if places else found.kept.ndim
    wide = [1] * (found.kept.ndim - first)
    for place, size in zip(places, shape, strict=True):
        wide[place - first] = size
    return tuple(wide), tuple(place - first for place in places)


def _aligned(array: Buffer, found: Selection) -> Buffer:
    """Return a plain value with one axis per (trailing) axis of the selection's view."""
    shape = _fit(array.shape, found)
    wide, _ = _widened(shape, found)
    array = array.reshape(wide)
    shift = found.kept.ndim - len(wide)
    backwards = [
        slice(None, None, -1) if axis + shift in found.flipped and n > 1 else slice(None)
        for axis, n in enumerate(wide)
    ]
    return array[tuple(backwards)]


def _write_distributed(x: Any, found: Selection, value: Any) -> None:
    fits = value._layout is found.output and value._local.dtype == x._local.dtype
    if fits and (found.still or found.alone) and value._layout.mesh.coordinate is not None:
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
    shape = _fit(value.shape, found)
    wide, places = _widened(shape, found)
    shift = found.kept.ndim - len(wide)
    target = found.value_layout(wide)
    block, layout = _stripped(value, len(value.shape) - len(shape))
    axes = dict(enumerate(places))
    layout = carry(layout, wide, axes)
    if layout.mesh.coordinate is None:
        block = empty_block(layout, block.dtype)
    else:
        block = block.reshape(layout.local_shape())
    flips = [axis - shift for axis in found.flipped if axis >= shift and wide[axis - shift] > 1]
    if flips:
        block, layout = flipped(block, layout, flips)
    if block.dtype != x._local.dtype and (layout.has_partial or target.has_partial):
        block, layout = _cast_reduced(block, layout, x._local.dtype)
    if layout is not target:
        permit("assignment", layout, target, block.dtype)
        block = redistribute_local(block, layout, target)
    if target.mesh.coordinate is None:
        return
    if not _same_memory(x._local[found.key], block):
        _write(x, found.key, block)


def _write(x: Any, key: Any, block: Buffer) -> None:
    """Write a block where a key selects items of the local one; what fails, fails on all ranks."""
    local = x._local
    write = functools.partial(local.__setitem__, key, block)
    converted(x._layout.mesh, "assignment", block.dtype, local.dtype, write)


def _same_memory(a: Buffer, b: Buffer) -> bool:
    """Tell whether two blocks are one and the same, as in `x[2:5] += 1`."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.strides == b.strides
        and _address(a) == _address(b)
    )


def _address(block: Buffer) -> int:
    if _backend.is_numpy(block):
        return int(block.__array_interface__["data"][0])
    return int(block.data.ptr)


def _stripped(value: Any, count: int) -> tuple[Buffer, Layout]:
    """Return block and layout of a value without its first `count` axes, which have length 1."""
    layout, block = value._layout, value._local
    if not count:
        return block, layout
    cut = [m for axis in range(count) for m in layout.sharding_axes(axis)]
    if cut:
        placements = [Replicate() if m in cut else p for m, p in enumerate(layout.placements)]
        boundaries = {a: o for a, o in (layout.boundaries or {}).items() if a >= count}
        whole = layout.replace(placements=placements, boundaries=boundaries or None)
        block, layout = move("assignment", block, layout, whole), whole
    axes = {axis: axis - count for axis in range(count, layout.ndim)}
    after = carry(layout, layout.shape[count:], axes)
    if layout.mesh.coordinate is None:
        return empty_block(after, block.dtype), after
    return block.reshape(after.local_shape()), after


def flipped(block: Buffer, layout: Layout, axes: Sequence[int]) -> tuple[Buffer, Layout]:
    """Return block and layout with the order of items reversed along some axes."""
    cut = [axis for axis in axes if layout.sharding_axes(axis)]
    whole = tuple(
        slice(None, None, -1) if a in axes and a not in cut else slice(None)
        for a in range(layout.ndim)
    )
    after = mirrored(layout, cut)
    if cut:
        permit_exchange("flip", layout, after, block.dtype)
    if layout.mesh.coordinate is None:
        return empty_block(after, block.dtype), after
    block = block[whole] if whole else block
    return (reverse(block, layout, cut) if cut else block), after


def _cast_reduced(block: Buffer, layout: Layout, dtype: Any) -> tuple[Buffer, Layout]:
    """Return a value cast to `dtype` after its Partial mesh axes are reduced."""
    whole = layout.without_partial()
    block = move("assignment", block, layout, whole)
    source = block
    return converted(
        whole.mesh, "assignment", block.dtype, dtype, lambda: source.astype(dtype)
    ), whole
