"""Whole tensors out of blocks, on all ranks or on one, and blocks out of a whole that one rank has.

What one rank collects or hands out is held by no other rank: only the blocks travel.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.core._meshes import lift
from distarray.errors import ArgumentError, MeshError
from distarray.layout import Layout, Replicate, Shard
from distarray.torch import _moves
from distarray.torch._buffers import buffer_of
from distarray.torch._layouts import Placed
from distarray.torch._shares import in_full_order, in_order_of_ranks, is_sharded

_R = Replicate()


def gathered_on_all(block: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return the whole of a tensor on every rank of its mesh (collective)."""
    layout = placed.layout
    if not is_sharded(layout):
        return block
    whole = layout.replace(placements=[_R] * layout.mesh.ndim, boundaries=None, shard_order=None)
    moved = _moves.moved(block, *_moves.legs_between(layout, whole, requires_grad=False))
    return in_full_order(moved, placed)


def gathered_on_one(block: torch.Tensor, placed: Placed, rank: int) -> torch.Tensor | None:
    """Return the whole of a tensor on one rank, None on the others (collective).

    Parameters
    ----------
    rank
        Its number in the program. Where the tensor's mesh lacks it, nothing happens.
    """
    layout = placed.layout
    mesh: Any = layout.mesh
    if rank not in mesh.flat_ranks:
        return None
    if not is_sharded(layout):
        return block if mesh.rank == rank else None
    comm = mesh.communicator()
    root = mesh.coordinate_of(rank)
    boxes = {r: layout.local_box(mesh.coordinate_of(r)) or () for r in comm.ranks}
    counts = [
        _volume(boxes[r]) if _is_copy_of(mesh.coordinate_of(r), root, layout) else 0
        for r in comm.ranks
    ]
    mine = block.detach().contiguous() if counts[comm.rank] else block.new_empty(0)
    here = comm.ranks.index(rank)
    arrived = block.new_empty(sum(counts) if comm.rank == here else 0)
    target = _flat(arrived) if comm.rank == here else None
    comm.gather(_flat(mine), target, counts, here)
    if comm.rank != here:
        return None
    whole = block.new_empty(layout.shape)
    for r, piece in zip(comm.ranks, arrived.split(counts), strict=True):
        if piece.numel():
            cut = _cut(whole, boxes[r])
            cut.copy_(piece.view(cut.shape))
    return in_full_order(whole, placed)


def handed_out(
    whole: torch.Tensor | None, placed: Placed, rank: int, like: torch.Tensor
) -> torch.Tensor:
    """Return this rank's block of a tensor that one rank of its mesh has (collective).

    Parameters
    ----------
    whole
        In the order of one process; None but on that rank.
    rank
        Its number in the program.
    like
        Of the dtype that is sent, on the device where the block goes.
    """
    layout = placed.layout
    mesh: Any = layout.mesh
    coordinate, root = mesh.coordinate, mesh.coordinate_of(rank)
    block = like.new_empty(layout.local_shape())
    cutting = tuple(
        i for i, p in enumerate(layout.placements) if type(p) is Shard and mesh.shape[i] > 1
    )
    copying = tuple(i for i in range(mesh.ndim) if i not in cutting and mesh.shape[i] > 1)
    if whole is not None:
        whole = in_order_of_ranks(whole.detach().to(like.device, like.dtype), placed)
        block.copy_(_cut(whole, layout.local_box() or ()))
    if cutting and _is_copy_of(coordinate, root, layout):
        comm = mesh.communicator(cutting)
        boxes = [layout.local_box(mesh.coordinate_of(r)) or () for r in comm.ranks]
        send = None
        if whole is not None:
            send = _flat(_one_after_another(whole, boxes))
        comm.scatter(send, _flat(block), [_volume(box) for box in boxes], comm.ranks.index(rank))
    if copying:
        comm = mesh.communicator(copying)
        source = tuple(root[i] if i in copying else coordinate[i] for i in range(mesh.ndim))
        index = 0
        for i in copying:
            index = index * mesh.shape[i] + source[i]
        comm.broadcast(_flat(block), root=index)
    return block


def over(placed: Placed, mesh: DeviceMesh) -> Placed:
    """Return how a tensor is placed on a larger mesh: replicated along its further axes.

    Raises
    ------
    MeshError
        The tensor's mesh is no sub-mesh of it.
    """
    layout: Any = placed.layout
    if layout.mesh is mesh:
        return placed
    if mesh.axes_of(layout.mesh) is None:
        raise MeshError(
            f"{mesh} does not contain {layout.mesh}, on which a parameter is placed; pass the mesh "
            "from which that was taken"
        )
    return placed._replace(layout=lift(layout, mesh))


def number_of(mesh: Any, position: Any) -> int:
    """Return the number in the program of a position in a mesh."""
    if not isinstance(position, int) or not 0 <= position < mesh.size:
        raise ArgumentError(
            f"rank {position!r}: {mesh} has the positions 0 to {mesh.size - 1}; pass one of these"
        )
    return int(mesh.flat_ranks[position])


def _is_copy_of(coordinate: Any, root: Any, layout: Layout) -> bool:
    """Tell whether a rank differs from the root along mesh axes that shard alone."""
    return all(
        type(p) is Shard or a == b
        for p, a, b in zip(layout.placements, coordinate, root, strict=True)
    )


def _one_after_another(whole: torch.Tensor, boxes: list[Any]) -> torch.Tensor:
    """Return a tensor's boxes in one run of memory: its own, where they lie so."""
    if whole.is_contiguous() and whole.ndim:
        rest = [(0, size) for size in whole.shape[1:]]
        ends = [0, *(box[0][1] for box in boxes)]
        rows = all(
            box[0][0] == end and list(box[1:]) == rest
            for box, end in zip(boxes, ends[:-1], strict=True)
        )
        if rows and ends[-1] == whole.shape[0]:
            return whole
    return torch.cat([_cut(whole, box).reshape(-1) for box in boxes])


def _cut(whole: torch.Tensor, box: Any) -> torch.Tensor:
    for axis, (start, stop) in enumerate(box):
        whole = whole.narrow(axis, start, stop - start)
    return whole


def _volume(box: Any) -> int:
    return math.prod(stop - start for start, stop in box)


def _flat(tensor: torch.Tensor) -> Any:
    """Return a contiguous tensor's memory, of a dtype that MPI knows."""
    bits = torch.int16 if tensor.dtype is torch.bfloat16 else tensor.dtype
    return buffer_of(tensor.view(-1).view(bits))
