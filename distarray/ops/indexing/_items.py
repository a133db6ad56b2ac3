"""Reading and writing the items that a key selects.

Of a basic key (integers, slices, `...`, None) a result that needed no communication looks at the
memory of its array, as in NumPy; one that did (an integer on a cut axis, a negative step along one)
is a read-only copy. Writing goes through the layout of the selected part: the value is brought to
that layout and each process writes its own.

A key with arrays or booleans is taken apart (`_keys`): its basic part selects a view, and a mask
from this.
"""

from __future__ import annotations

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
    check_writable,
    copy_array,
    empty_block,
    run_one,
)
from distarray.errors import ArgumentError, DTypeError, IndexingError
from distarray.layout import DimMap, dimmap
from distarray.ops.families._relabel import carry_cuts
from distarray.ops.families._selection import (
    WHOLE_AXIS,
    Key,
    Outcome,
    Selection,
    basic_key,
    flip_axes,
    select,
    selection,
)
from distarray.ops.families._shape_function import relabel, shape_function
from distarray.ops.indexing._arrays import get_by_arrays, set_by_arrays
from distarray.ops.indexing._gather import select_along
from distarray.ops.indexing._keys import (
    Advanced,
    AdvancedKey,
    Index,
    array_of,
    broadcast_indices,
    parse,
)
from distarray.ops.indexing._masks import assign_by_mask, is_mask_of, select_by_mask
from distarray.ops.indexing._values import (
    block_of_value,
    check_broadcasts,
    check_device,
    check_kinds,
    on_device,
    read_value,
    write,
)
from distarray.typing import Buffer, Shape

_index = selection("indexing")
# A value with its axes at the places of those of a selection's view; None: a new axis of length 1.
_align = shape_function("assignment", lambda shape, axes: relabel(_place_axes(shape, axes)))


def getitem(x: Any, key: Any) -> Any:
    """Return the items that `key` selects.

    Slices stay where they are: the result has explicit `boundaries`, no communication happens and
    the result looks at the memory of `x`. An integer on a cut axis copies the selected item from
    its owner to the processes along the mesh axes that cut it (or, where it has more than
    `SPREAD_ITEMS` items, spreads it); write `x[i:i + 1]` to leave it in place. A negative step
    along a cut axis exchanges the blocks with their mirror images. Both are copies, and read-only,
    because NumPy's would be views: `x[i] = value` and `x[i] += value` write into `x`. A single
    item, in NumPy a number, is a read-only copy always; in-place operators make a new one of it.

    A mask has booleans for one or more axes, as a DistArray of any layout or as an array or list
    that every process has alike. Its axes become one, which stays cut as the first of them is: each
    process keeps what is selected of its own block, and the result has the `boundaries` that this
    gives (see `rebalance`). Where later ones are cut as well, `x` is first cut along the first
    alone. The mask comes to `x`, one byte an item. The processes along the mesh axes that cut the
    result tell each other how many items they keep, 8 bytes each, and so all processes of the mesh
    learn the shape; outside the mesh nobody does, and the call raises there.

    Index arrays, as DistArrays of any layout or as arrays and lists that every process has alike,
    are broadcast to one shape, as by NumPy; beside them, and beside each other, masks stand for the
    places of their true items. Where an indexed axis is cut, each process takes the rows that its
    part of the index names: in a node from where they lie, between nodes each that it lacks once.
    The result is cut as the index, by the mesh axes that cut the indexed axes, or else along the
    index's longest axis; along others as `x`, and the index is gathered there, 8 bytes an item.
    Beside the result this needs 24 bytes for each index of the process.

    The name of a field of a structured array, or a list of names, gives a view.

    Parameters
    ----------
    x : DistArray
    key
        Integers, slices, `...`, None, booleans, masks, index arrays, and tuples of these; or names.

    Raises
    ------
    IndexingError
        If the key is out of range, too long, or of another kind; if a mask has other lengths, or
        index arrays do not broadcast.
    MeshError
        If the key has a mask and this process is not in the mesh.
    """
    entries = (key,) if key.__class__ is int else _basic_entries(key)
    if entries is None and type(key) is tuple:
        return _get_advanced(x, parse(key, x._layout.shape))
    if entries is None:
        if is_mask_of(key, x.shape):  # found without taking the key apart, which takes 20 us
            return select_by_mask(x, key, 0)
        names = _field_names(key)
        if names is not None:
            return _select_fields(x, names)
        array = array_of(key)
        if array is not None and array.dtype.kind != "b" and x.ndim:
            return select_along(x, 0, array)
        return _get_advanced(x, parse(key, x.shape))
    found = select(_index, x, entries)
    result = found.take(x)
    if found.step is not None:
        result._origin = ITEM if found.outcome.is_item else (ref(x), found.text)
    return result


def _basic_entries(key: Any) -> Key | None:
    """Return a key of integers, slices, `...` and None; None for one of another kind."""
    if key.__class__ is not slice and (
        isinstance(key, list) or (isinstance(key, (BaseArray, np.ndarray)) and key.ndim)
    ):
        return None  # the most frequent ones, found sooner
    try:
        return basic_key(key)
    except IndexingError:
        return None


def rows(x: Any, keys: Iterable[Any]) -> Iterator[Any]:
    """Yield `x[key]` for some keys; what is a copy is read-only for in-place operators, too."""
    for key in keys:
        row = getitem(x, key)
        if getattr(row, "_origin", ITEM) is not ITEM:
            row._origin = None
        yield row


def setitem(x: Any, key: Any, value: Any) -> None:
    """Write `value` into the items that `key` selects; their layout and dtype stay.

    Parameters
    ----------
    x : DistArray
        Changed in place. Where it is `Partial`, the value is split so that the blocks reduce to it.
    key
        As for `getitem`.
    value : scalar, array or DistArray
        Broadcast to the selected shape and cast to the dtype of `x` as NumPy does. A plain array
        must be the same on every process; a DistArray of any layout, also on another mesh, is
        redistributed first. One that has an item for each that a mask selects goes where these are
        (processes tell each other how many, as for reading), and no other item moves; where several
        of the masked axes are cut, it is written along the first of them, and as much as `x` moves.
        What index arrays select is sent to its owners with 8 bytes for each index, or to all where
        indices and values are few, unless every process has them; of items that they name
        repeatedly the last value counts.

    Raises
    ------
    IndexingError
        If the key is out of range, too long, or of another kind; if a mask has other lengths, or
        index arrays do not broadcast.
    ShapeError
        If the value does not broadcast to the selected shape.
    DeviceError
        If the value is on another device.
    ReadOnlyError
        If the array is read-only.
    MeshError
        If the value has an item for each that a mask selects, and is on processes outside the mesh
        of `x`: they cannot know how many these are.
    """
    entries = _basic_entries(key)
    if entries is None:
        if not isinstance(value, (BaseArray, PendingWrite)) and is_mask_of(key, x.shape):
            check_writable("assignment", x)
            array = read_value(x, value)
            if not array.ndim:  # found without taking the key apart, as for reading
                assign_by_mask(x, key, 0, array.reshape((1,) * (x.ndim - key.ndim + 1)))
                return
        names = _field_names(key)
        if names is None:
            _set_advanced(x, parse(key, x.shape), value)
        else:
            setitem(_select_fields(x, names), ..., value)
        return
    found = select(_index, x, entries)
    if isinstance(value, PendingWrite):
        value = value.settle(x, str(found.text))
    check_writable("assignment", x)
    if isinstance(value, BaseArray):
        check_device("assignment", x, value)
        _write_distributed(x, found, value)
        return
    array = read_value(x, value)
    if array.ndim == 0 and not x._layout.has_partial:
        if x._layout.mesh.coordinate is not None:
            x._local[found.key] = on_device(array, x._local)
        return
    array = _align_plain(array, found.outcome)
    layout = found.outcome.value_layout(array.shape)
    block = block_of_value(x, array, layout)
    if layout.mesh.coordinate is not None:
        write(x, found.key, block)


def _axes_of(shape: Shape, found: Outcome) -> tuple[int | None, ...]:
    """Return which axes of a value the last axes of the selection's view are; None: a new one.

    Raises
    ------
    ShapeError
        If the value does not broadcast to the selected shape.
    """
    check_broadcasts(shape, found.output.shape)
    extra = max(len(shape) - found.output.ndim, 0)
    places = [axis for axis in range(found.kept.ndim) if axis not in found.taken]
    places = places[len(places) - len(shape) + extra :]
    first = places[0] if places else found.kept.ndim
    return tuple(
        extra + places.index(place) if place in places else None
        for place in range(first, found.kept.ndim)
    )


def _place_axes(shape: Shape, axes: Sequence[int | None]) -> DimMap:
    return DimMap(
        shape, tuple(dimmap.Singleton() if a is None else dimmap.InputAxis(a) for a in axes)
    )


def _reversed_axes(found: Outcome, shape: Shape) -> tuple[int, ...]:
    """Return which axes of an aligned value are to be reversed."""
    shift = found.kept.ndim - len(shape)
    places = (axis - shift for axis in found.flipped)
    return tuple(axis for axis in places if axis >= 0 and shape[axis] > 1)


def _align_plain(array: Buffer, found: Outcome) -> Buffer:
    """Return a plain value with one axis per (trailing) axis of the selection's view."""
    axes = _axes_of(array.shape, found)
    array = array.reshape([1 if axis is None else array.shape[axis] for axis in axes])
    flips = _reversed_axes(found, array.shape)
    return np.flip(array, flips) if flips else array  # of one item it would be a scalar


def _write_distributed(x: Any, found: Selection, value: Any) -> None:
    outcome = found.outcome
    fits = value._layout is outcome.output and value._local.dtype == x._local.dtype
    if fits and outcome.is_local and value._layout.mesh.coordinate is not None:
        view = x._local[found.key]
        block = value._local.reshape(view.shape)
        if not _same_memory(view, block):
            view[...] = _backend.unaliased(block, view)
        return
    check_kinds(x, value)
    value = run_one(_align, value, _axes_of(value.shape, outcome))
    flips = _reversed_axes(outcome, value.shape)
    if flips:
        value = flip_axes(value, flips)
    target = outcome.value_layout(value.shape)
    block = block_of_value(x, value, target)
    if target.mesh.coordinate is not None and not _same_memory(x._local[found.key], block):
        write(x, found.key, block)


def _same_memory(a: Buffer, b: Buffer) -> bool:
    """Tell whether two blocks are one and the same, as in `x[2:5] += 1`."""
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.strides == b.strides
        and address_of(a) == address_of(b)
    )


# --- fields of structures: views of the blocks, whatever the layout ------------------------------


def _field_names(key: Any) -> Any:
    """Return a key that is the name of a field, or a list of names; None: another one."""
    if isinstance(key, str) or (
        isinstance(key, list) and key and all(isinstance(one, str) for one in key)
    ):
        return key
    return None


def _select_fields(x: BaseArray, names: Any) -> Any:
    """Return fields of a structured array, which look at its memory.

    Raises
    ------
    IndexingError
        If it has no fields.
    ArgumentError
        If it has no field of a name.
    DTypeError
        If its blocks are on GPUs, where fields have no views.
    """
    dtype, layout = x._local.dtype, x._layout
    if dtype.names is None:
        raise IndexingError(
            f"an index holds the name {names!r}, and {dtype} has no fields; integers, slices, ..., "
            "None and arrays select items"
        )
    for name in [names] if isinstance(names, str) else names:
        if name not in dtype.names:
            raise ArgumentError(f"no field is named {name!r}; those of {dtype} are {dtype.names}")
    if not _backend.is_numpy(x._local):
        raise DTypeError("fields of arrays on GPUs cannot be selected; use x.to_device('cpu')")
    block = x._local[names]
    within = block.shape[x._local.ndim :]  # of a field that is an array itself
    if within:
        layout = carry_cuts(layout, (*layout.shape, *within), {a: a for a in range(layout.ndim)})
        if layout.mesh.coordinate is None:
            block = empty_block(layout, block.dtype)
    return x._new(block, layout)


# --- keys with arrays and booleans ---------------------------------------------------------------


def _get_advanced(x: Any, found: Advanced) -> Any:
    """Return the items that a key with arrays or booleans selects: always a copy."""
    if found.key.has_arrays:
        return get_by_arrays(x, found)
    key, only, chosen = found.key, _only_mask(found), _is_chosen(found)
    nothing = (*(slice(None),) * key.place, slice(0))
    if only is None:
        result = getitem(x, _basic_key(key))
        result = result if chosen else getitem(result, nothing)
        return copy_array(result)
    index, mask = only
    axis = index.axis - sum(one.operand is None for one in key.indices if one.axis < index.axis)
    result = select_by_mask(_view(x, _integers_as_such(key)), mask, axis)
    if axis != key.place:
        result = np.moveaxis(result, axis, key.place)
    if not chosen:  # False stands for an index array of no items
        broadcast_indices([(0,), (result.shape[key.place],)])
        result = getitem(result, nothing)
    return result


def _set_advanced(x: Any, found: Advanced, value: Any) -> None:
    """Write into the items that a key with arrays or booleans selects."""
    if isinstance(value, PendingWrite):
        value = value.settle(x, "a key with arrays")
    if found.key.has_arrays:
        set_by_arrays(x, found, value)
        return
    check_writable("assignment", x)
    if isinstance(value, BaseArray):
        check_device("assignment", x, value)
        check_kinds(x, value)
    else:
        value = read_value(x, value)
    key, only = found.key, _only_mask(found)
    if not _is_chosen(found):
        _get_advanced(x, found)  # refuses a mask beside False that selects several items
        check_broadcasts(value.shape, key.result_shape((0,)))
    elif only is None:
        setitem(x, _basic_key(key), value)
    else:
        check_broadcasts(value.shape, key.result_shape((-1,)))
        entries, flipped = _forward(key)
        index, mask = only
        value = _in_order_of_view(value, key, index, flipped)
        assign_by_mask(_view(x, entries), mask, index.axis, value)


def _only_mask(found: Advanced) -> tuple[Index, Any] | None:
    """Return the one mask of a key; None where there are but booleans and integers."""
    for one in found.key.indices:
        if one.operand is not None and one.ndim:
            return one, found.arrays[one.operand]
    return None


def _is_chosen(found: Advanced) -> bool:
    """Tell whether all booleans without axes in a key are true (collective where distributed)."""
    return all(bool(array) for array in found.arrays if not array.ndim)


def _view(x: Any, entries: Key) -> Any:
    """Return the view that the basic part of a key selects."""
    if all(entry == WHOLE_AXIS for entry in entries):
        return x
    return getitem(x, tuple(slice(*e) if type(e) is tuple else e for e in entries))


def _integers_as_such(key: AdvancedKey) -> Key:
    """Return the basic part of a key with its integers, which drop their axes."""
    at = {index.axis for index in key.indices if index.operand is None}  # an integer
    return tuple((e[0] or 0) if axis in at else e for axis, e in enumerate(key.basic))


def _basic_key(key: AdvancedKey) -> Any:
    """Return the basic key that says what one without masks does, with its booleans as None."""
    entries: list[Any] = [slice(*e) if type(e) is tuple else e for e in _integers_as_such(key)]
    left = [i for i, entry in enumerate(entries) if type(entry) is not int]
    entries.insert(left[key.place] if key.place < len(left) else len(entries), None)
    return tuple(entries)


def _forward(key: AdvancedKey) -> tuple[Key, list[int]]:
    """Return the basic part of a key with slices that go forwards, and the axes that went back."""
    entries = list(key.basic)
    flipped = [a for a, entry in enumerate(entries) if entry is not None and (entry[2] or 1) < 0]
    for axis in flipped:
        start, _, step = entries[axis]
        entries[axis] = start + (key.view[axis] - 1) * step, start + 1, -step
    return tuple(entries), flipped


def _in_order_of_view(value: Any, key: AdvancedKey, mask: Index, flipped: Sequence[int]) -> Any:
    """Return a value that fits with the axes of a key's view, the masked ones as one."""
    kept = list(key.kept)
    place = sum(axis < mask.axis for axis in kept)  # of the masked axis among the kept ones
    ndim = len(kept) + 1
    if value.ndim and place != key.place:
        missing = range(value.ndim - ndim, value.ndim)
        value = _aligned(value, [axis if axis >= 0 else None for axis in missing])
        value = np.moveaxis(value, key.place, place)
    kept.insert(place, mask.axis)
    axes: list[int | None] = []
    for axis in range(len(key.view)):
        if axis in kept:
            own = kept.index(axis) - ndim + value.ndim
            axes.append(own if own >= 0 else None)
        elif not mask.axis < axis < mask.axis + mask.ndim:
            axes.append(None)  # an integer's
    after = [a if a < mask.axis else a - mask.ndim + 1 for a in flipped]
    value = _aligned(value, axes)
    turned = [axis for axis in after if value.shape[axis] > 1]
    return np.flip(value, tuple(turned)) if turned else value


def _aligned(value: Any, axes: Sequence[int | None]) -> Any:
    """Return a value with its axes at places; None: a new one. Those left out have length 1."""
    if isinstance(value, BaseArray):
        return run_one(_align, value, tuple(axes))
    return value.reshape([1 if axis is None else value.shape[axis] for axis in axes])
