"""Items put into arrays, taken out of them, and arrays of another size, along an axis."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, copy_box
from distarray.core import (
    BaseArray,
    check_distributed,
    describe,
    empty_block,
    move,
    normalize_shape,
    plain_buffer,
    register,
)
from distarray.errors import IndexingError, ShapeError
from distarray.layout import counted, normalize_axis
from distarray.ops.creation._filled import empty_like, ones, target_layout, zeros_like
from distarray.ops.elementwise._rounding import copy
from distarray.ops.families._relabel import resize_axis
from distarray.ops.families._values import check_one_mesh, read_values
from distarray.ops.indexing._items import getitem, setitem
from distarray.ops.indexing._masks import cut_first_alone, merged_layout, take_by_mask
from distarray.ops.indexing._values import on_device
from distarray.ops.manipulation._joining import concat_as, tile
from distarray.ops.manipulation._reshape import change_shape


@register
def append(x: Any, /, values: Any, axis: int | None = None) -> Any:
    """Return an array with others after its items, along an axis.

    Parameters
    ----------
    x : DistArray
    values : DistArray or array_like
        Of the shape of `x` but for `axis`. Plain ones must be the same on every process.
    axis : int or None
        None takes the items of both in flat order.

    Returns
    -------
    DistArray
        As `concat` places it.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    AxisError
        If there is no such axis.

    Examples
    --------
    >>> import distarray as da
    >>> da.append(da.arange(3), [7, 8]).full_array()
    array([0, 1, 2, 7, 8])
    """
    parts = [
        one if isinstance(one, BaseArray) else plain_buffer(one, "append") for one in (x, values)
    ]
    return concat_as("append", parts, axis)


@register
def delete(x: Any, /, obj: Any, axis: int | None = None) -> Any:
    """Return an array without the items at some places along an axis.

    Parameters
    ----------
    x : DistArray
    obj : int, slice, DistArray or array_like
        Which: integers, or booleans for all places.
    axis : int or None
        None takes the items in flat order.

    Returns
    -------
    DistArray
        Items stay where they are; along a cut axis the boundaries follow (see `rebalance`).

    Raises
    ------
    IndexingError
        If a place is out of range.
    ShapeError
        If there is not one boolean for each place.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: nothing travels, unless `obj` is distributed: then, as in `x[mask]`, 8 bytes from
    each process along the mesh axes that cut the axis, and the places that others than this
    process have.

    Examples
    --------
    >>> import distarray as da
    >>> da.delete(da.arange(5), [0, -1]).full_array()
    array([1, 2, 3])
    """
    x, along = _along("delete", x, axis)
    size = x.shape[along]
    where: Any = obj if isinstance(obj, (slice, BaseArray)) else _places("delete", obj)
    if getattr(where, "dtype", None) == np.bool_ and where.shape != (size,):
        raise ShapeError(
            f"delete got booleans of shape {where.shape}; axis {along} of length {size} takes one "
            "for each place"
        )
    if isinstance(where, BaseArray):
        kept = ones((size,), dtype=bool, mesh=x._layout.mesh)
        setitem(kept, where, False)
        return getitem(x, (*(slice(None),) * along, kept))
    if not isinstance(where, slice) and where.dtype != np.bool_:
        _check_places("delete", where, size, along)
    return _without(x, along, _deleted(where, size))


def _deleted(where: Any, size: int) -> range | np.ndarray:
    """Return places of an axis, of which every process has all, once each and in order."""
    if isinstance(where, slice):
        given = range(size)[where]
        return given if given.step > 0 else given[::-1]
    if where.dtype == np.bool_:
        return np.flatnonzero(where)
    if where.size == 1:
        place = int(where.item()) % size
        return range(place, place + 1)
    return np.unique(where.astype(np.int64) % max(size, 1))


def _without(x: Any, axis: int, gone: range | np.ndarray) -> Any:
    """Return an array without places of an axis that every process knows; nothing is sent."""
    layout = x._layout
    mesh: Any = layout.mesh
    # As by a mask, which has the default layout.
    source = cut_first_alone(layout, axis, 1, target_layout((x.shape[axis],), mesh, None, None))
    offsets = source.partition(axis).offsets
    ends = [bisect_left(gone, offset) for offset in offsets]
    lengths = [
        stop - start - (last - first)
        for (start, stop), (first, last) in zip(pairwise(offsets), pairwise(ends), strict=True)
    ]
    result = counted(merged_layout(source, axis, 1), axis, lengths)
    if mesh.coordinate is None:
        return x._new(empty_block(result, x._local.dtype), result)
    block = move("delete", x._local, layout, source)
    index = source.block_index(axis, mesh.coordinate)
    mine = gone[ends[index] : ends[index + 1]]
    if len(mine) and mine[-1] - mine[0] >= len(mine):
        bits = np.ones(block.shape[axis], np.bool_)
        bits[np.asarray(mine) - offsets[index]] = False
        return x._new(take_by_mask(block, on_device(bits, block), axis), result)
    first = int(mine[0]) - offsets[index] if len(mine) else 0
    out = empty_block(result, block.dtype)
    for here, there in (
        (slice(first), slice(first)),
        (slice(first, None), slice(first + len(mine), None)),
    ):
        key = (slice(None),) * axis
        copy_box(out[(*key, here)], block[(*key, there)])
    return x._new(out, result)


@register
def insert(x: Any, /, obj: Any, values: Any, axis: int | None = None) -> Any:
    """Return an array with values put in before the items at some places along an axis.

    Parameters
    ----------
    x : DistArray
    obj : int, slice, array_like or DistArray
        The places in `x`, up to its length; several of one place keep their order. Every process
        gets distributed ones.
    values : DistArray, array_like or number
        Broadcast along the axes of `x`, with one row for each place; converted to the dtype of `x`.
    axis : int or None
        None takes the items in flat order.

    Returns
    -------
    DistArray
        Placed as `x`, `axis` by the default split.

    Raises
    ------
    IndexingError
        If a place is out of range.
    ShapeError
        If the values do not fit.
    AxisError
        If there is no such axis.

    Notes
    -----
    Distribution: the items of `x` go to where the default split has them, and the values as for
    `put`. Memory: of several places a byte for each item of the axis on the process, beside the
    result, and in an array 24 bytes each.

    Examples
    --------
    >>> import distarray as da
    >>> da.insert(da.arange(4), [1, 3], [7, 8]).full_array()
    array([0, 7, 1, 2, 8, 3])
    """
    x, along = _along("insert", x, axis)
    check_one_mesh("insert", x, obj)
    size = x.shape[along]
    if not isinstance(values, BaseArray):
        values = plain_buffer(values, "insert", dtype=x.dtype, objects=True)
    chosen = range(size)[obj] if isinstance(obj, slice) else None
    where: Any
    if chosen is not None and len(chosen) != 1:
        where, count = _spread(chosen), len(chosen)
    else:
        places = _places("insert", [chosen.start] if chosen else obj)
        numbers = _numbers(places, size, along)
        if numbers.size == 1:  # it takes as many rows as the values have
            if values.ndim < x.ndim:
                values = values[(None,) * (x.ndim - values.ndim)]
            if along and not places.ndim:  # along the first of their axes
                values = np.moveaxis(values, 0, along)
            start, count = int(numbers[0]), values.shape[along]
            where = slice(start, start + count)
        else:
            order = np.argsort(numbers, kind="stable")
            numbers[order] += np.arange(numbers.size)
            where, count = numbers, numbers.size
    layout = resize_axis(x._layout.without_partial(), along, size + count)
    out = empty_like(x, shape=layout.shape, mesh=layout.mesh, placements=layout.placements)
    before = (slice(None),) * along
    if isinstance(where, slice) and where.step is None:  # items before and after it stay together
        start, stop = where.start, where.stop
        setitem(out, (*before, slice(start)), getitem(x, (*before, slice(start))))
        setitem(out, (*before, slice(stop, None)), getitem(x, (*before, slice(start, None))))
    else:
        mine = ones((size + count,), dtype=bool, mesh=x._layout.mesh)
        setitem(mine, where, False)
        setitem(out, (*before, mine), x)
    setitem(out, (*before, where), values)
    return out


def _spread(places: range) -> slice:
    """Return the places in the result of values that are put in before those of a slice."""
    if not places:
        return slice(0, 0)
    forward = places.step > 0
    start = places.start + (0 if forward else len(places) - 1)
    step = places.step + (1 if forward else -1)
    stop = start + len(places) * step
    return slice(start, stop if stop >= 0 else None, step)


def _numbers(places: np.ndarray, size: int, along: int) -> np.ndarray:
    """Return places to insert at, of an axis of a length, as integers from 0 up to that."""
    mask = places.dtype == np.bool_
    if places.ndim > 1 or places.ndim < mask:
        raise ShapeError(
            f"insert got places of shape {places.shape}; integers have one axis at most, and "
            "booleans one"
        )
    if mask:
        places = np.flatnonzero(places)
    several = places.reshape(-1).astype(np.int64, copy=False)
    _check_places("insert", several, size, along, end=1)
    return np.where(several < 0, several + size, several)


def _check_places(name: str, places: np.ndarray, size: int, along: int, end: int = 0) -> None:
    """Refuse integers that are no places of an axis, after whose last `end` more are there."""
    wrong = places[(places < -size) | (places >= size + end)]
    if wrong.size:
        raise IndexingError(
            f"{name} got place {wrong[0]} for axis {along} of length {size}; it must be from "
            f"{-size} to {size + end - 1}"
        )


@register
def resize(x: Any, /, new_shape: Any) -> Any:
    """Return an array of another shape, filled with the items of `x` in flat order, repeatedly.

    Parameters
    ----------
    x : DistArray
    new_shape : int or sequence of int
        The shape.

    Returns
    -------
    DistArray
        Zeros where `x` has no items.

    Raises
    ------
    ShapeError
        If a length is negative.

    Examples
    --------
    >>> import distarray as da
    >>> da.resize(da.arange(3), (2, 4)).full_array()
    array([[0, 1, 2, 0],
           [1, 2, 0, 1]])
    """
    check_distributed("resize", x)
    shape = normalize_shape(new_shape)
    n = prod(shape)
    if not x.size or not n:
        return zeros_like(x, shape=shape)
    if not x.dtype.isnative:  # as of what is joined
        x = x.astype(x.dtype.newbyteorder("="))
    flat, times = change_shape(x, (-1,)), -(-n // x.size)
    if times > 1:
        flat = tile(flat, times)
    result = change_shape(getitem(flat, slice(n)), shape)
    return copy(result) if _backend.may_share_memory(result._local, x._local) else result


def _along(name: str, x: Any, axis: int | None) -> tuple[Any, int]:
    """Return the array, flat without an axis, and the axis."""
    check_distributed(name, x)
    if axis is None:
        return change_shape(x, (-1,)), 0
    return x, normalize_axis(axis, x.ndim)


def _places(name: str, obj: Any) -> Any:
    """Return places, which every process gets, as an array of integers or booleans."""
    places: Any = obj if isinstance(obj, BaseArray) else plain_buffer(obj, name, objects=True)
    if not places.size and isinstance(obj, (list, tuple)):
        places = places.astype(np.intp)
    if places.dtype.kind not in "iub":
        raise IndexingError(
            f"{name} got obj={describe(obj)}; pass an integer, a slice, integers or booleans"
        )
    return read_values(name, places) if isinstance(places, BaseArray) else places
