"""Scatter of what one rank has to all ranks of a mesh, and gather of what all have on one.

Each item travels once: where several ranks have the same block, those in the root's row of the
mesh take part, and blocks are copied further from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distarray.comm import (
    Communicator,
    DeviceMesh,
    _backend,
    _memory,
    copy_box,
    copy_boxes,
    split_parts,
)
from distarray.layout import Layout, Shard
from distarray.layout import box as boxes
from distarray.typing import Box, Buffer, Coordinate

Fetch = Callable[[], Buffer | None]


def scatter_from(
    root: int,
    out: Buffer,
    layout: Layout,
    read: Callable[[Box], Buffer] | None,
    call: Callable[[Fetch], Buffer | None] = lambda fetch: fetch(),
) -> None:
    """Fill every rank's block with what one rank has (collective over the mesh).

    The ranks in the root's row of the mesh get their blocks by one scatter, the copies of these by
    one broadcast. ``root`` is a world rank of the mesh, ``out`` this rank's C-contiguous block of a
    layout without ``Partial``; ``read`` returns the values of a box, and is None but on the root.
    What reads is called by ``call``, on all ranks, so that all may be told where that fails.
    """
    mesh, here, there, cutting, copying = _places(root, layout)
    flat = out.reshape(-1)
    if not cutting:

        def fill() -> None:
            if read is not None:
                copy_box(out, read(layout.local_box() or ()))

        call(fill)
    else:
        in_row = all(here[i] == there[i] for i in copying)
        comm = mesh.communicator(cutting)
        held = _boxes_of(comm, layout)
        send = call(lambda: None if read is None else _pack(read, held, layout, out))
        if in_row:
            comm.scatter(send, flat, [*map(boxes.volume, held)], comm.ranks.index(root))
    if copying:
        comm = mesh.communicator(copying)
        source = [there[i] if i in copying else at for i, at in enumerate(here)]
        comm.broadcast(flat, comm.ranks.index(mesh.rank_at(source)))


def gather_to(root: int, block: Buffer, layout: Layout) -> Buffer | None:
    """Return all values in memory of their own on one rank, None on the others (collective).

    The ranks in the root's row of the mesh send their blocks by one gather; the others, which have
    copies of these, send nothing. ``root`` is a world rank of the mesh, ``block`` this rank's block
    of a layout without ``Partial``.
    """
    mesh, here, there, cutting, copying = _places(root, layout)
    if any(here[i] != there[i] for i in copying):
        return None
    device = _backend.device_of(block)
    whole = _memory.empty(layout.shape, block.dtype, device) if mesh.rank == root else None
    if not cutting:
        if whole is not None:
            copy_box(whole, block)
        return whole
    comm = mesh.communicator(cutting)
    held = _boxes_of(comm, layout)
    direct = whole is None or _lie_in_order(held, layout)
    packed = whole if direct else _memory.empty((layout.size,), block.dtype, device)
    counts = [*map(boxes.volume, held)]
    comm.gather(_memory.make_contiguous(block), packed, counts, comm.ranks.index(root))
    if whole is not None and not direct:
        pairs = zip(held, _boxes_in(packed, held), strict=True)
        copy_boxes([(whole[boxes.slices(box)], part) for box, part in pairs])
    return whole


def _places(
    root: int, layout: Layout
) -> tuple[DeviceMesh, Coordinate, Coordinate, list[int], list[int]]:
    """Return the mesh, where this rank and the root are, and along which axes blocks differ.

    The last are the axes along which ranks have copies.
    """
    mesh = layout.mesh
    assert isinstance(mesh, DeviceMesh)  # arrays live on no other
    here, there = mesh.coordinate, mesh.coordinate_of(root)
    assert here is not None  # as the caller has checked
    assert there is not None
    axes = [i for i in range(mesh.ndim) if mesh.shape[i] > 1]
    cutting = [i for i in axes if type(layout.placements[i]) is Shard]
    return mesh, here, there, cutting, [i for i in axes if i not in cutting]


def _boxes_of(comm: Communicator, layout: Layout) -> list[Box]:
    return [layout.local_box(layout.mesh.coordinate_of(rank)) or () for rank in comm.ranks]


def _boxes_in(flat: Buffer, held: Sequence[Box]) -> list[Buffer]:
    """Return views of the values of boxes that lie one after another."""
    parts = split_parts(flat, [*map(boxes.volume, held)])
    return [part.reshape(boxes.shape(box)) for part, box in zip(parts, held, strict=True)]


def _lie_in_order(held: Sequence[Box], layout: Layout) -> bool:
    """Tell whether the values of all boxes, one after another, are those of the array."""
    whole = boxes.whole(layout.shape)
    return held == sorted(held) and all(box[1:] == whole[1:] for box in held)


def _pack(read: Callable[[Box], Buffer], held: list[Box], layout: Layout, out: Buffer) -> Buffer:
    """Return the values of all boxes one after another: as they lie, where they lie so."""
    if _lie_in_order(held, layout):
        whole = boxes.whole(layout.shape)
        values = read(whole)
        if values.flags.c_contiguous and values.dtype == out.dtype:
            return values.reshape(-1)
        held, read = [whole], lambda _: values
    found = _memory.empty((sum(map(boxes.volume, held)),), out.dtype, _backend.device_of(out))
    for box, part in zip(held, _boxes_in(found, held), strict=True):
        copy_box(part, read(box))
    return found
