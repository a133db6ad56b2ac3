"""Meshes of operands, and the one on which different ones meet: of which others are sub-meshes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from distarray.comm import Communicator, name_meshes
from distarray.errors import DeviceError, MeshError
from distarray.layout import Layout, Replicate
from distarray.typing import Shape


def common_mesh(name: str, meshes: Sequence[Any]) -> Any:
    """Return the mesh that operands on `meshes` are combined on.

    Operands on a mesh and on its sub-meshes meet on the parent; two sub-meshes of one parent meet
    on that parent.

    Raises
    ------
    MeshError
        If the meshes have no parent in common.
    DeviceError
        If they are on different devices.
    """
    first = meshes[0]
    for mesh in meshes:
        if mesh is not first:
            break
    else:
        return first
    found = _shared_parent(meshes)
    if found is not None:
        return found
    devices = list(dict.fromkeys(mesh.device for mesh in meshes))
    if len(devices) > 1:
        raise DeviceError(
            f"{name} got operands on {' and '.join(map(repr, devices))}; nothing moves between "
            f"devices unless it is asked for: bring one over with x.to_device({devices[0]!r})"
        )
    raise MeshError(
        f"{name} got operands on different meshes: {name_meshes(meshes)}; all operands must live "
        "on one mesh (or on sub-meshes of it); make them there with mesh=, or inside of "
        "da.use_mesh(mesh), or move one with x.redistribute(placements, mesh=other.mesh)"
    )


def meet(src: Layout, dst: Layout) -> tuple[Layout, Layout]:
    """Return layouts that values move between, on the mesh of which theirs are sub-meshes, if any.

    Each process has sub-meshes of its own: between those, not all would ask for the same move.
    """
    meshes: Any = src.mesh, dst.mesh
    if src.mesh is dst.mesh or all(mesh.parent is None for mesh in meshes):
        return src, dst
    mesh = _shared_parent(meshes)
    return (src, dst) if mesh is None else (lift(src, mesh), lift(dst, mesh))


def several_ranks(mesh: Any, axes: Sequence[int]) -> Communicator | None:
    """Return the communicator of this process along mesh axes; None where it is alone there."""
    found: Communicator | None = mesh.communicator(tuple(axes)) if axes else None
    return None if found is None or found.size == 1 else found


def device_of(layout: Layout) -> str:
    """Return where blocks of a layout over a device mesh live."""
    mesh: Any = layout.mesh
    device: str = mesh.device
    return device


def _shared_parent(meshes: Sequence[Any]) -> Any:
    for mesh in itertools.chain.from_iterable(map(_ancestors, meshes)):
        if all(mesh.axes_of(other) is not None for other in meshes):
            return mesh
    return None


def _ancestors(mesh: Any) -> Iterator[Any]:
    while mesh is not None:
        yield mesh
        mesh = mesh.parent


def lift(layout: Layout, mesh: Any) -> Layout:
    """Return `layout` as seen on a larger mesh: replicated on the axes that its own mesh lacks."""
    if layout.mesh is mesh:
        return layout
    axes = mesh.axes_of(layout.mesh)
    placements: list[Any] = [Replicate()] * mesh.ndim
    for placement, axis in zip(layout.placements, axes, strict=True):
        placements[axis] = placement
    order = [axes[i] for i in layout.shard_order or range(len(axes))]
    return layout.replace(mesh=mesh, placements=placements, shard_order=order)


def replicated_layout(mesh: Any, shape: Shape) -> Layout:
    """Return the layout of a plain value that every rank has."""
    return Layout(mesh, (Replicate(),) * mesh.ndim, shape)
