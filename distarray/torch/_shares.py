"""How a tensor is placed with the parts it consists of, and which of it is a rank's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from distarray.comm import DeviceMesh
from distarray.errors import LayoutError
from distarray.layout import Layout, Placement, Shard
from distarray.torch._layouts import Placed
from distarray.torch.parallel import _fused


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
    sizes, units = _fused.checked_parts(layout.shape[axis], parts, unit)
    cutting = layout.sharding_axes(axis)
    if len(cutting) > 1:
        raise LayoutError(
            f"{layout}: an axis that consists of parts or units is cut by one mesh axis only"
        )
    if not cutting:
        return Placed(layout)
    offsets = _fused.boundaries(sizes, units, mesh.shape[cutting[0]])
    layout = layout.replace(boundaries={axis: offsets})
    return Placed(layout) if len(sizes) == 1 else Placed(layout, sizes, axis, units)


def block_of(full: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return this rank's block of a full tensor, which shares its memory where it can."""
    layout, parts, axis, units = placed
    box = layout.local_box()
    assert box is not None  # this rank is in the mesh
    cutting = layout.sharding_axes(axis) if parts else ()
    if len(cutting) > 1:  # a share of the parts is cut again
        full, parts = in_order_of_ranks(full, placed), ()
    for i, (start, stop) in enumerate(box):
        if not (parts and i == axis):
            full = full.narrow(i, start, stop - start)
    if not parts:
        return full
    coordinate = layout.mesh.coordinate
    assert coordinate is not None
    count = layout.mesh.shape[cutting[0]]
    return _fused.own_share(full, parts, units, count, coordinate[cutting[0]], axis)


def in_order_of_ranks(full: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return a full tensor whose parts have been torn apart, as the ranks hold them."""
    _, parts, axis, units = placed
    if not parts:
        return full
    return _fused.by_ranks(full, parts, units, torn_among(placed), axis)


def in_full_order(gathered: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return a full tensor whose parts, gathered in the order of the ranks, are whole again."""
    _, parts, axis, units = placed
    if not parts:
        return gathered
    return _fused.by_parts(gathered, parts, units, torn_among(placed), axis)


def torn_among(placed: Placed) -> int:
    """Return how many ranks have a share of each part: along the mesh axis that cuts first.

    Layouts do not know where in the order an axis of one rank comes: it cuts nothing.
    """
    layout = placed.layout
    sizes = (layout.mesh.shape[i] for i in layout.sharding_axes(placed.axis))
    return next((size for size in sizes if size > 1), 1)


@lru_cache(maxsize=4096)
def is_sharded(layout: Layout) -> bool:
    """Tell whether ranks hold different blocks."""
    return any(
        type(p) is Shard and size > 1
        for p, size in zip(layout.placements, layout.mesh.shape, strict=True)
    )
