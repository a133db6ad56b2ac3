"""Reading and writing items by a boolean mask: each process takes or changes those of its block.

The mask is brought to the array, one byte an item; a plain or replicated one is cut where it lies.
How many items each block has left then makes the boundaries of the selected part: 8 bytes from each
process along the mesh axes that cut it. No item is sent, unless several of the masked axes are cut:
then the array, or a block of values as large, is first cut along the first of them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory, compress, expand, gather_lengths, token
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    empty_block,
    match_device,
    meet,
    move,
    run,
    several_ranks,
)
from distarray.errors import MeshError, ShapeError
from distarray.layout import Layout, Replicate, counted, kept
from distarray.layout import box as boxes
from distarray.ops.families._relabel import carry_cuts, recut, uncut_axes
from distarray.ops.indexing._gather import bring
from distarray.ops.indexing._values import block_of_value, check_device, on_device, write
from distarray.typing import Buffer, Shape

_ASSIGNMENT = "assignment by a mask"

# --- layouts -------------------------------------------------------------------------------------


@kept(256)
def cut_first_alone(layout: Layout, axis: int, count: int, like: Layout | None = None) -> Layout:
    """Return the layout of an array of whose masked axes only the first is cut.

    Parameters
    ----------
    layout : Layout
    axis, count : int
        The first of the masked axes, and how many they are.
    like : Layout, optional
        Of the mask: an array whose masked axes are not cut is cut as this is, where the array is
        replicated.
    """
    first = layout.sharding_axes(axis)
    added = [m for a in range(axis + 1, axis + count) for m in layout.sharding_axes(a)]
    boundaries: dict[int, tuple[int, ...]] = {}
    if not first and not added and like is not None:
        added = [m for m in like.sharding_axes(0) if layout.placements[m] == Replicate()]
        if len(added) == len(like.sharding_axes(0)) and 0 in (like.boundaries or {}):
            boundaries[axis] = like.partition(0).offsets
    if not added:
        return layout
    masked = range(axis, axis + count)
    cuts: dict[int, tuple[int, ...]] = {**dict.fromkeys(masked, ()), axis: (*first, *added)}
    return recut(layout, cuts, boundaries)


@kept(256)
def _mask_layout(layout: Layout, axis: int, count: int) -> Layout:
    """Return the layout of a mask of some axes of an array, cut as these are."""
    shape = layout.shape[axis : axis + count]
    return carry_cuts(layout.without_partial(), shape, {axis + i: i for i in range(count)})


@kept(256)
def merged_layout(layout: Layout, axis: int, count: int) -> Layout:
    """Return the layout with masked axes, of which at most the first is cut, as one of length 0."""
    free = recut(layout, {axis: layout.sharding_axes(axis)})  # evenly
    shape = (*layout.shape[:axis], 0, *layout.shape[axis + count :])
    others = {a: a - count + 1 for a in range(axis + count, layout.ndim)}
    return carry_cuts(free, shape, {**{a: a for a in range(axis + 1)}, **others})


# --- reading -------------------------------------------------------------------------------------


def is_mask_of(key: Any, shape: Shape) -> bool:
    """Tell whether a key is one array of booleans that fits the first axes of a shape."""
    is_array = type(key) is np.ndarray or isinstance(key, BaseArray) or _backend.is_cupy(key)
    return is_array and key.dtype == bool and key.ndim > 0 and key.shape == shape[: key.ndim]


def select_by_mask(x: Any, mask: Any, axis: int) -> Any:
    """Return the items of `x` where a mask of its axes from `axis` on is true; see `getitem`."""
    if isinstance(x, BaseArray):
        if isinstance(mask, BaseArray):
            mask = bring(x, mask)
        if x._layout.mesh.coordinate is None:
            if not mask.size:  # which selects nothing, whoever has it
                mask = np.empty(mask.shape, np.bool_)
            if not isinstance(mask, BaseArray):
                return outside(
                    x, axis, mask.ndim, lambda *ends: np.count_nonzero(mask[slice(*ends)])
                )
    return run(_select, (x, mask), axis)


def outside(
    x: Any,
    axis: int,
    count: int,
    length_of: Callable[[int, int], Any],
) -> Any:
    """Return what a process outside of the mesh of `x` has of the items that a mask selects.

    Parameters
    ----------
    x, axis, count
        As of `cut_first_alone`.
    length_of : callable
        Returns how many are selected between two places along the first masked axis, which here
        every process knows.
    """
    source = cut_first_alone(x._layout, axis, count)
    lengths = [int(length_of(*ends)) for ends in pairwise(source.partition(axis).offsets)]
    layout = counted(merged_layout(source, axis, count), axis, lengths)
    return x._new(empty_block(layout, x._local.dtype), layout)


def _spec(_: Op, call: Call) -> Layouts:
    axis: int = call.static
    layout, mask = call.layouts
    source = cut_first_alone(layout, axis, mask.ndim, mask)
    along = _mask_layout(source, axis, mask.ndim)
    return Layouts((source, along), merged_layout(source, axis, mask.ndim), counted=axis)


def _bind(step: Step) -> Callable[[Buffer, Buffer], Buffer]:
    axis: int = step.call.static
    return lambda block, mask: take_by_mask(block, mask, axis)


def take_by_mask(block: Buffer, mask: Buffer, axis: int) -> Buffer:
    """Return the items of a block where a mask of its axes from `axis` on is true."""
    if (
        mask.ndim == block.ndim
        and block.nbytes < _memory.POOLED_BYTES
        and type(block) is np.ndarray
    ):
        found: np.ndarray = block[mask]
        return found
    before, after = block.shape[:axis], block.shape[axis + mask.ndim :]
    rows, flat = block.reshape(*before, mask.size, *after), mask.reshape(-1)
    shape = (*before, int(np.count_nonzero(flat)), *after)
    out = _memory.empty(shape, block.dtype, _backend.device_of(block))
    if prod(before) == 1:
        one_axis = (len(flat), *after), (shape[axis], *after)
        compress(rows.reshape(one_axis[0]), flat, out.reshape(one_axis[1]))
    elif rows.flags.c_contiguous and _backend.is_numpy(rows):
        np.take(rows, np.flatnonzero(flat), axis=axis, out=out, mode="clip")
    else:  # which np.take would copy as a whole
        out[...] = rows[(*(slice(None),) * axis, flat)]
    return out


_select = Op("indexing by a mask", np.compress, _spec, bind=_bind)


# --- writing -------------------------------------------------------------------------------------


def assign_by_mask(x: Any, mask: Any, axis: int, value: Any, repeats: bool = False) -> None:
    """Write a value into the items of `x` where a mask of its axes from `axis` on is true.

    Parameters
    ----------
    x : DistArray
        Writable.
    mask : DistArray or array of bool
    axis : int
        The first of the masked axes.
    value : DistArray or array
        With the axes of `x`, the masked ones as one; lengths other than 1 are those of `x` and, of
        the masked ones, how many items the mask selects.
    repeats : bool
        A plain value, of one axis, is instead repeated as often as there are items for it.
    """
    layout, count = x._layout, mask.ndim
    width = value.shape[axis]
    if isinstance(mask, BaseArray):
        check_device(_ASSIGNMENT, x, mask)
    else:
        mask = match_device(_ASSIGNMENT, mask, x._local)
    if width == 1:
        bits = _block_of_mask(x, mask, _mask_layout(layout, axis, count))
        if value.size == 1 and not isinstance(value, BaseArray) and not layout.has_partial:
            block = on_device(value, x._local)
        else:
            others = merged_layout(uncut_axes(layout, range(axis, axis + count)), axis, count)
            block = block_of_value(x, value, _value_layout(others, value.shape))
        if layout.mesh.coordinate is not None:
            _put(x, axis, bits, block)
        return
    _check_mesh(x, value)
    source = cut_first_alone(layout, axis, count)
    bits = _block_of_mask(x, mask, _mask_layout(source, axis, count))
    if layout.mesh.coordinate is None:
        return
    lengths = _lengths(source, axis, int(np.count_nonzero(bits)))
    if repeats:
        index = source.block_index(axis, layout.mesh.coordinate)
        start = sum(lengths[:index])
        numbers = np.arange(start, start + lengths[index]) % width
        block = on_device(value, x._local)[on_device(numbers, x._local)]
    else:
        if sum(lengths) != width:
            raise ShapeError(
                f"a value with {width} items cannot be written where a mask selects "
                f"{sum(lengths)}; it needs as many, or one"
            )
        selected = counted(merged_layout(source, axis, count), axis, lengths)
        block = block_of_value(x, value, _value_layout(selected, value.shape))
    if source is layout:
        _put(x, axis, bits, block)
        return
    spread = x._new(empty_block(source, x._local.dtype), source)
    _put(spread, axis, bits, block)
    moved = move(_ASSIGNMENT, spread._local, source, layout)
    bits = _block_of_mask(x, mask, _mask_layout(layout, axis, count))
    _put(x, axis, bits, take_by_mask(moved, bits, axis))


def _put(x: Any, axis: int, mask: Buffer, block: Buffer) -> None:
    """Write a block where a mask of the local one, of its axes from `axis` on, is true."""
    local, key = x._local, (slice(None),) * axis
    block = block.reshape(()) if block.size == 1 else block  # which NumPy need not broadcast
    if not _backend.is_numpy(local):
        write(x, (*key, mask), block)
        return
    if local.flags.c_contiguous:
        local = local.reshape(*local.shape[:axis], mask.size, *local.shape[axis + mask.ndim :])
        mask = mask.reshape(-1)
        before, after = local.shape[:axis], local.shape[axis + 1 :]
        shares = np.may_share_memory(local, block) or np.may_share_memory(local, mask)
        if prod(before) == 1 and block.dtype == local.dtype and not shares:
            rows = local.reshape(mask.size, *after)
            if not block.ndim:
                expand(block, mask, rows)
                return
            count = block.shape[axis]
            if block.shape == (*before, count, *after) and count > 1:  # one would be for all
                expand(block.reshape(count, *after), mask, rows)
                return
    # By numbers of items, which NumPy is several times quicker with than with truth values.
    write(x, (*key, *np.nonzero(mask)), block, local)


@kept(256)
def _value_layout(selected: Layout, shape: Shape) -> Layout:
    """Return the layout of a value whose blocks broadcast to those of the selected part."""
    same = [a for a, size in enumerate(shape) if size == selected.shape[a]]
    return carry_cuts(selected, shape, {a: a for a in same})


def _block_of_mask(x: Any, mask: Any, target: Layout) -> Buffer:
    """Return this process's block of a mask in a layout on the mesh of `x`."""
    if isinstance(mask, BaseArray):
        return move(_ASSIGNMENT, mask._local, mask._layout, target)
    box = target.local_box()
    return x._local if box is None else mask[boxes.slices(box)]


def _lengths(source: Layout, axis: int, own: int) -> list[int]:
    """Return how many items the mask selects in each block along an axis (collective)."""
    comm = several_ranks(source.mesh, source.sharding_axes(axis))
    if comm is None:
        return [own]
    return gather_lengths(comm, own, token(_ASSIGNMENT, source.fingerprint, axis), _ASSIGNMENT)


def _check_mesh(x: Any, value: Any) -> None:
    """Refuse a value on processes that cannot know how many items a mask of `x` selects."""
    if not isinstance(value, BaseArray) or value._layout.mesh is x._layout.mesh:
        return
    there, here = (layout.mesh.flat_ranks for layout in meet(value._layout, x._layout))
    if not set(there) <= set(here):
        raise MeshError(
            f"a value on {value._layout.mesh} is to be written by a mask into an array on "
            f"{x._layout.mesh}: processes outside of this cannot know how many items the mask "
            "selects; bring the value there first: value.redistribute(placements, mesh=x.mesh)"
        )
