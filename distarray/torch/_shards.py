"""Shards of tensors: which block a rank has, of axes made of parts as well.

A fused weight is several weights one after another, such as query, key and value, or gate and up.
Every rank holds its shard of each part, one after another: the order *by ranks*. In the order *by
parts*, which is that of one process, each part is whole. A unit is what must not be torn apart: the
features of a head, or of all query heads that share one key. Units are dealt out as `torch.chunk`
deals out items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any

import torch

from distarray.checkpoint import box_view
from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, LayoutError
from distarray.layout import Layout, Placement, chunk
from distarray.layout import box as boxes
from distarray.torch._layouts import Placed, TensorMap
from distarray.typing import Box


def placed_as(
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int],
    parts: Sequence[int] = (),
    axis: int = 0,
    unit: int | Sequence[int] = 1,
) -> Placed:
    """Return how a parameter of this shape is placed, with the boundaries that parts make."""
    layout = Layout(mesh, placements, shape)
    if not parts and unit == 1:
        return Placed(layout)
    axis %= layout.ndim
    sizes, units = check_parts(layout.shape[axis], parts, unit)
    cutting = layout.sharding_axes(axis)
    if len(cutting) > 1:
        raise LayoutError(
            f"{layout}: an axis that consists of parts or units is cut by one mesh axis only"
        )
    if not cutting:
        return Placed(layout)
    offsets = boundaries(sizes, units, mesh.shape[cutting[0]])
    layout = layout.replace(boundaries={axis: offsets})
    return Placed(layout) if len(sizes) == 1 else Placed(layout, sizes, axis, units)


def block_of(full: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return this rank's block of a full tensor, which shares its memory where it can."""
    own: Any = placed.layout.local_box()
    found = [box_view(full, box) for box, _ in list_boxes(placed)] or [box_view(full, own)]
    return found[0] if len(found) == 1 else torch.cat(found, placed.axis)


def list_boxes(placed: Placed) -> list[tuple[Box, Box]]:
    """Return which boxes of the whole tensor this rank holds, and where each is in its block.

    They are several where the axis consists of parts: the whole is in the order of one process.
    """
    layout, parts, axis, units, _ = placed
    box = layout.local_box()
    if box is None:
        return []
    if not parts:
        return [(box, boxes.shift(box, box))]
    # The mesh axis that cuts first deals out the parts; further ones cut what a rank of it has.
    (start, stop), found, at = box[axis], [], 0
    before, after = box[:axis], box[axis + 1 :]
    for piece in chain.from_iterable(order(parts, units, count_first_cut(placed))):
        length = piece.stop - piece.start
        low, high = max(start, at), min(stop, at + length)
        if low < high:
            first = piece.start + low - at
            whole = (*before, (first, first + high - low), *after)
            held = (*before, (low, high), *after)
            found.append((whole, boxes.shift(held, box)))
        at += length
    return found


def in_full_order(gathered: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return a full tensor whose parts, gathered in the order of the ranks, are whole again."""
    _, parts, axis, units, _ = placed
    if not parts:
        return gathered
    return order_by_parts(gathered, parts, units, count_first_cut(placed), axis)


def count_first_cut(placed: Placed) -> int:
    """Return how many ranks have a shard of each part: along the mesh axis that cuts first.

    Layouts do not know where in the order an axis of one rank comes: it cuts nothing.
    """
    layout = placed.layout
    sizes = (layout.mesh.shape[i] for i in layout.sharding_axes(placed.axis))
    return next((size for size in sizes if size > 1), 1)


shards: TensorMap[bool] = TensorMap()
"""Parameters of which `fully_shard` has made this rank's shards."""


# --- axes made of parts --------------------------------------------------------------------------


def check_parts(
    size: int, parts: Sequence[int], unit: int | Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the parts of an axis and the unit of each, or raise; one part where none are given."""
    parts = tuple(parts) or (size,)
    if sum(parts) != size or min(parts) < 0:
        raise LayoutError(
            f"parts {parts} add up to {sum(parts)}, but the axis that they make up has {size} items"
        )
    units = (unit,) * len(parts) if isinstance(unit, int) else tuple(unit)
    if len(units) != len(parts):
        raise ArgumentError(
            f"unit={units} for parts {parts}: give one number for all parts, or one for each"
        )
    for part, one in zip(parts, units, strict=True):
        if one < 1 or part % one:
            raise LayoutError(
                f"a part of {part} items is not made of whole units of {one}; parts {parts} need "
                "units that divide them"
            )
    return parts, units


@lru_cache(maxsize=1024)
def order(
    parts: tuple[int, ...], units: tuple[int, ...], count: int
) -> tuple[tuple[slice, ...], ...]:
    """Return which items each rank has, in its order: slices that do not continue each other."""
    found = []
    for rank in range(count):
        own: list[slice] = []
        first = 0
        for part, unit in zip(parts, units, strict=True):
            start, stop = (first + end * unit for end in chunk(part // unit, (count,)).bounds(rank))
            if own and own[-1].stop == start:
                own[-1] = slice(own[-1].start, stop)
            elif start < stop:
                own.append(slice(start, stop))
            first += part
        found.append(tuple(own))
    return tuple(found)


def boundaries(parts: tuple[int, ...], units: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return where the ranks' blocks begin and end in the order by ranks."""
    lengths = (sum(one.stop - one.start for one in own) for own in order(parts, units, count))
    return tuple(accumulate(lengths, initial=0))


def order_by_ranks(
    full: torch.Tensor, parts: tuple[int, ...], units: tuple[int, ...], count: int, axis: int
) -> torch.Tensor:
    """Return a full tensor in the order by ranks, from one in the order by parts."""
    return _join(full, chain.from_iterable(order(parts, units, count)), axis)


def order_by_parts(
    gathered: torch.Tensor, parts: tuple[int, ...], units: tuple[int, ...], count: int, axis: int
) -> torch.Tensor:
    """Return a full tensor in the order by parts, from one in the order by ranks."""
    held = list(chain.from_iterable(order(parts, units, count)))
    ends = accumulate((one.stop - one.start for one in held), initial=0)
    places = sorted(zip(held, pairwise(ends), strict=True), key=lambda pair: pair[0].start)
    return _join(gathered, (slice(*there) for _, there in places), axis)


def _join(full: torch.Tensor, pieces: Iterable[slice], axis: int) -> torch.Tensor:
    """Return pieces of a tensor along an axis, one after another."""
    found = [full.narrow(axis, one.start, one.stop - one.start) for one in pieces]
    return torch.cat(found, axis) if found else full.narrow(axis, 0, 0)
