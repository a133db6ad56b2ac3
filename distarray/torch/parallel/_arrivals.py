"""Inputs as they arrive: what is known of them, against what a style says."""

from __future__ import annotations

from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.errors import LayoutError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.torch._layouts import Placed, is_derived, lost_of, own_placed

_R = Replicate()
Placements = tuple[Placement, ...]


def find_placed(
    x: torch.Tensor,
    mesh: DeviceMesh,
    subject: str = "the input",
    declared: Placements | None = None,
) -> Placed | None:
    """Return how a tensor is placed, None if unknown, or raise where that was lost on the way."""
    remedy = ", and this one input_layouts=da.Replicate()"
    check_lost(x, mesh, subject, remedy, declared)
    lost = lost_of(x)
    over = () if lost is None else placements_over(lost.layout, mesh) or ()
    of_shards = any(
        type(p) is Shard and size > 1 for p, size in zip(over, mesh.shape, strict=False)
    )
    if lost is not None and declared == (_R,) * mesh.ndim and of_shards:
        raise LayoutError(
            f"{subject} was computed from a tensor placed as {lost.layout} by functions that are "
            "not followed, but declared as Replicate(). Let the style that the tensor comes from "
            "pass output_layouts=da.Replicate(). Where all ranks have the same, since it was "
            "brought together by hand, say so: "
            "dt.redistribute(x, mesh, [da.Replicate()], [da.Replicate()])"
        )
    if declared != (_R,) * mesh.ndim and is_derived(x, mesh):
        raise LayoutError(
            f"{subject} was computed from what all ranks have, as a parameter without a style, "
            "by a rank's own lengths or with tensors of which nothing is known, but is taken for a "
            "shard or a contribution: each rank would have a part of the gradient. If it is whole, "
            "pass input_layouts=da.Replicate(), or say so, and the style cuts it: "
            "dt.redistribute(x, mesh, [da.Replicate()], [da.Replicate()]). If not, give a style to "
            "the modules that it comes from, or say of what it is computed from that parts are "
            "added up, by grad_placements=[da.Partial()]"
        )
    return own_placed(x)


def check_lost(
    x: torch.Tensor,
    mesh: DeviceMesh | None,
    subject: str,
    remedy: str,
    declared: Placements | None = None,
) -> None:
    """Raise where it was lost on the way to a tensor how it is cut, by this mesh or another.

    A function has worked along an axis that is cut, or on contributions of the ranks that nothing
    has added up, and it is not ``declared`` over the mesh to consist of such.
    """
    lost = lost_of(x)
    if lost is None or not (lost.axes or lost.layout.has_partial):
        return
    said = {} if mesh is None else dict(zip(_lines(mesh), declared or (), strict=False))
    for line, p in zip(_lines(lost.layout.mesh), lost.layout.placements, strict=True):
        if type(p) is Partial and type(said.get(line)) is not Partial:
            raise LayoutError(
                f"{subject} was computed from a tensor placed as {lost.layout}: of what each rank "
                "has to add, before it was added up. Let the style that the tensor comes from pass "
                "output_layouts=da.Replicate(), or da.Shard(axis). Where sums of this are sums of "
                "that, let the next style say input_layouts=da.Partial(), or say it by "
                "dt.redistribute(x, mesh, [da.Partial()], [da.Replicate()])"
            )
        if type(p) is Shard and p.axis in lost.axes:
            raise LayoutError(
                f"{subject} was computed from a tensor placed as {lost.layout} by {lost.function}, "
                f"along an axis that is cut, of which each rank saw its shard only{lost.hint}. Let "
                "the style that the tensor comes from pass output_layouts=da.Replicate()"
                f"{remedy}, or bring it together before, by dt.redistribute. Where a result of "
                "each rank's alone is meant, say how it is placed: "
                "dt.redistribute(x, mesh, [da.Shard(-1)], [da.Shard(-1)]); of a mean over this "
                "rank's part of a batch dt.redistribute(x, mesh, avg, avg), avg=[da.Partial('avg')]"
                "; where a batch of each rank's own is meant, call the model with a plain x.clone()"
            )


def _lines(mesh: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return the ranks along each mesh axis, with its name, which differs where one rank is."""
    return [(name, mesh[name].flat_ranks) for name in mesh.axis_names]


def placements_over(layout: Layout, mesh: DeviceMesh) -> Placements | None:
    """Return a layout's placements over a mesh, or a sub-mesh of its own; None for any other."""
    whole: Any = layout.mesh
    if whole is mesh:
        return layout.placements
    axes = whole.axes_of(mesh) if isinstance(whole, DeviceMesh) else None
    return None if axes is None else tuple(layout.placements[axis] for axis in axes)


def check_arrival(
    x: torch.Tensor,
    mesh: DeviceMesh,
    declared: Placements,
    *,
    moves: bool = True,
    name: str = "the input",
    keyword: str = "input_layouts",
) -> Placed | None:
    """Return how an input is placed over this very mesh; None where that is not known.

    Raise where it is placed otherwise than ``declared``, or consists of parts and ``moves``. All
    ranks know the same: where one raises, all do, and nothing has been sent. For messages ``name``
    says which input it is, "" where that is said already, and ``keyword`` by which argument of the
    style it is declared.
    """
    placed = find_placed(x, mesh, name or "it", declared)
    known = None if placed is None else placements_over(placed.layout, mesh)
    if placed is None or known is None:
        return None
    subject = f"{name} is" if name else "it is"
    if known != declared:
        there, wanted = _spell(known), _spell(declared)
        by_hand = ""
        if all(type(p) is Replicate for p in known):
            said = list(declared)
            by_hand = (
                ", or say what it is: "
                f"dt.redistribute(x, mesh, {said}, {said}), where each rank took its shard by hand"
            )
        raise LayoutError(
            f"{subject} placed as {placed.layout}, but declared as {wanted}; pass "
            f"{keyword}={there} to this style, or output_layouts={wanted} to the style that the "
            f"tensor comes from{by_hand}"
        )
    if placed.parts and moves:
        raise LayoutError(
            f"{subject} placed as {placed.layout}, with features of {len(placed.parts)} parts that "
            "are cut each by itself, and cannot be moved so; pass output_layouts= as it is "
            "needed to the style that it comes from, which knows the parts"
        )
    return placed if placed.layout.mesh is mesh else None


def _spell(placements: Placements) -> str:
    return repr(placements[0] if len(placements) == 1 else placements)
