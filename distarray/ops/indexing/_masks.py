"""Reading items by a boolean mask: each process takes those of its own block.

The mask is brought to the array, one byte an item; a plain or replicated one is cut where it lies.
How many items each block has left then makes the boundaries of the result: 8 bytes from each
process along the mesh axes that cut the result. No item is sent, unless several of the masked axes
are cut: then the array is first cut along the first of them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import BaseArray, Call, Layouts, Op, Step, run
from distarray.errors import IndexingError
from distarray.layout import Layout, Replicate, Shard
from distarray.ops.families._relabel import carry_cuts
from distarray.typing import Buffer


def as_mask(key: Any) -> Any:
    """Return the mask that a key consists of, or None if it is another key."""
    if type(key) is tuple and len(key) == 1:
        (key,) = key
    if isinstance(key, list):
        try:
            key = np.asarray(key)
        except ValueError:  # of different lengths
            return None
    is_array = isinstance(key, BaseArray) or _backend.is_buffer(key)
    return key if is_array and key.ndim and key.dtype == np.bool_ else None


def select_by_mask(x: BaseArray, mask: Any) -> Any:
    """Return the items of `x` where the mask, of its first axes, is true; see `getitem`."""
    return run(_select, (x, mask))


def _spec(_: Op, call: Call) -> Layouts:
    layout, mask = call.layouts
    if mask.shape != layout.shape[: mask.ndim]:
        raise IndexingError(
            f"a mask of shape {mask.shape} selects from an array of shape {layout.shape}: it must "
            "have the lengths of the first axes of the array"
        )
    source = _cut_first_alone(layout, mask)
    own = (source.boundaries or {}).get(0)
    along = mask.replace(
        placements=[Shard(0) if p == Shard(0) else Replicate() for p in source.placements],
        shard_order=source.sharding_axes(0),
        boundaries=None if own is None else {0: own},
    )
    kept = {axis: axis - mask.ndim + 1 for axis in range(mask.ndim, layout.ndim)}
    shape = (0, *layout.shape[mask.ndim :])
    free = _without_boundaries(source, mask.ndim)
    return Layouts((source, along), carry_cuts(free, shape, {0: 0, **kept}), counted=0)


def _cut_first_alone(layout: Layout, mask: Layout) -> Layout:
    """Return the layout of an array of whose masked axes only the first is cut."""
    first = layout.sharding_axes(0)
    added = [m for axis in range(1, mask.ndim) for m in layout.sharding_axes(axis)]
    boundaries: dict[int, tuple[int, ...]] = {}
    if not first and not added:  # as the mask is, where the array is replicated
        added = [m for m in mask.sharding_axes(0) if layout.placements[m] == Replicate()]
        if len(added) == len(mask.sharding_axes(0)) and 0 in (mask.boundaries or {}):
            boundaries[0] = mask.partition(0).offsets
    if not added:
        return layout
    placements = [Shard(0) if m in added else p for m, p in enumerate(layout.placements)]
    others = [m for axis in range(mask.ndim, layout.ndim) for m in layout.sharding_axes(axis)]
    free = _without_boundaries(layout, mask.ndim)
    return free.replace(
        placements=placements,
        shard_order=[*first, *added, *others],
        boundaries={**(free.boundaries or {}), **boundaries} or None,
    )


def _without_boundaries(layout: Layout, count: int) -> Layout:
    """Return the layout with the default split of its first axes."""
    boundaries = {axis: own for axis, own in (layout.boundaries or {}).items() if axis >= count}
    return layout.replace(boundaries=boundaries or None)


def _bind(step: Step) -> Callable[[Buffer, Buffer], Buffer]:
    count = step.call.layouts[1].ndim

    def function(block: Buffer, mask: Buffer) -> Buffer:
        if not _backend.is_numpy(block):
            return block[mask]
        places = np.flatnonzero(mask)
        rows = block.reshape(mask.size, *block.shape[count:])
        out: np.ndarray = _memory.empty((places.size, *rows.shape[1:]), block.dtype)
        return np.take(rows, places, axis=0, out=out, mode="clip")

    return function


_select = Op("indexing by a mask", np.compress, _spec, bind=_bind)
