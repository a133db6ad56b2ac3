"""A value that one rank has, scattered to all ranks of a mesh: each item leaves it once."""

from __future__ import annotations

from collections.abc import Callable

from distarray.comm import DeviceMesh, _backend, _memory, copy_box
from distarray.layout import Layout, Shard
from distarray.layout import box as boxes
from distarray.typing import Box, Buffer


def scatter_from(
    root: int, out: Buffer, layout: Layout, read: Callable[[Box], Buffer] | None
) -> None:
    """Fill every rank's block with what one rank has (collective over the mesh).

    The ranks in the root's row of the mesh get their blocks by one scatter, the copies of these by
    one broadcast. ``root`` is a world rank of the mesh, ``out`` this rank's C-contiguous block of a
    layout without ``Partial``; ``read`` returns the values of a box, and is None but on the root.
    """
    mesh = layout.mesh
    assert isinstance(mesh, DeviceMesh)  # arrays live on no other
    here, there = mesh.coordinate, mesh.coordinate_of(root)
    assert here is not None  # as the caller has checked
    assert there is not None
    axes = [i for i in range(mesh.ndim) if mesh.shape[i] > 1]
    cutting = [i for i in axes if type(layout.placements[i]) is Shard]
    copying = [i for i in axes if i not in cutting]
    flat = out.reshape(-1)
    if not cutting:
        if read is not None:
            copy_box(out, read(layout.local_box() or ()))
    elif all(here[i] == there[i] for i in copying):
        comm = mesh.communicator(cutting)
        held = [layout.local_box(mesh.coordinate_of(rank)) or () for rank in comm.ranks]
        send = None if read is None else _packed(read, held, layout, out)
        counts = [boxes.volume(box) for box in held]
        comm.scatter(send, flat, counts, comm.ranks.index(root))
    if copying:
        comm = mesh.communicator(copying)
        source = list(here)
        for i in copying:
            source[i] = there[i]
        comm.broadcast(flat, comm.ranks.index(mesh.rank_at(source)))


def _packed(read: Callable[[Box], Buffer], held: list[Box], layout: Layout, out: Buffer) -> Buffer:
    """Return the values of all boxes one after another: as they lie, where they lie so."""
    whole = boxes.whole(layout.shape)
    if held == sorted(held) and all(box[1:] == whole[1:] for box in held):
        values = read(whole)
        if values.flags.c_contiguous and values.dtype == out.dtype:
            return values.reshape(-1)
        held, read = [whole], lambda _: values
    total = sum(boxes.volume(box) for box in held)
    found = _memory.empty((total,), out.dtype, _backend.device_of(out))
    end = 0
    for box in held:
        start, end = end, end + boxes.volume(box)
        copy_box(found[start:end].reshape(boxes.shape(box)), read(box))
    return found
