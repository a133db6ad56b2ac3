"""Whole tensors and blocks: gather one, hand out the other, and share memory with arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from distarray.array._array import DistArray, _wrap
from distarray.comm import DeviceMesh, _backend, all_gather_checked, by_answer
from distarray.core._arguments import checked_position, chosen_placements
from distarray.core._replicas import digest
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    LayoutError,
    MismatchError,
)
from distarray.layout import Layout, Placement, Replicate
from distarray.torch import _moves
from distarray.torch._buffers import buffer_of, check_travels, tensor_of
from distarray.torch._layouts import place, placed_of
from distarray.torch.parallel._parameters import in_full_order

_R = Replicate()


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor on every rank of its mesh (collective, differentiable).

    Parameters
    ----------
    tensor
        A parameter, gradient or other tensor that `layout_of` knows.

    Returns
    -------
    torch.Tensor
        As the single process has it: parts of a fused weight are whole. Of a replicated tensor the
        tensor itself. In the backward pass each rank takes its block of the gradient, which is to
        be the same on every rank.

    Raises
    ------
    LayoutError
        No layout is known.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"expected a torch tensor, not {type(tensor).__name__}")
    placed = placed_of(tensor)
    if placed is None:
        raise LayoutError(
            f"no layout is known of this tensor of shape {tuple(tensor.shape)}: parameters, their "
            "gradients and what this library returns have one, what torch computes of these has "
            "none. Say it by dt.redistribute(tensor, mesh, placements, [da.Replicate()])"
        )
    src = placed.layout
    dst = Layout(src.mesh, [_R] * src.mesh.ndim, src.shape)
    whole = _moves.moved(tensor, *_moves.legs_between(src, dst, requires_grad=tensor.requires_grad))
    ordered = in_full_order(whole, placed)
    if ordered is not whole:
        place(ordered, dst)
    return ordered


def distribute_tensor(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """Return this rank's block of a whole tensor (collective over the mesh).

    Parameters
    ----------
    tensor
        Of one shape and dtype on every rank; the values of the source count.
    mesh, placements
        How it is placed: one placement per mesh axis.
    src_data_rank
        Position in the mesh of the source. With None every rank takes its block of its own values,
        which are compared.

    Returns
    -------
    torch.Tensor
        With memory of its own and a layout that `layout_of` knows. It requires a gradient if
        ``tensor`` does, but none flows back to that: a differentiable way is
        ``dt.redistribute(tensor, mesh, [da.Replicate()], placements)``.

    Raises
    ------
    MismatchError
        The ranks pass other shapes, dtypes, placements, sources or, without a source, values.
    """
    _moves.check_mesh(mesh)

    def say() -> tuple[Any, ...]:
        check_travels(tensor)
        source = None if src_data_rank is None else checked_position(src_data_rank, mesh)
        layout = Layout(mesh, chosen_placements(mesh, placements, tensor.ndim), tensor.shape)
        return (
            layout.shape,
            str(tensor.dtype),
            layout.placements,
            source,
            digest_of(tensor) if source is None else None,
        )

    told = all_gather_checked(mesh, "distribute_tensor", say)
    if any(one != told[0] for one in told):
        raise MismatchError(
            "distribute_tensor got different shapes, dtypes, placements, sources or values: "
            f"{by_answer(told, mesh.communicator().world_ranks)}; pass the same on every rank"
        )
    layout = Layout(mesh, told[0][2], tensor.shape)
    plain = layout.without_partial()
    whole = tensor.detach()
    if src_data_rank is None:
        box = plain.local_box()
        block = _cut(whole, box).clone(memory_format=torch.contiguous_format)
    else:
        block = _scattered(whole, plain, told[0][3])
    block = _moves.moved(block, *_moves.legs_between(plain, layout, requires_grad=False))
    place(block, layout)
    return block.requires_grad_(tensor.requires_grad)


def from_torch(
    tensor: torch.Tensor,
    mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    shape: Sequence[int] | None = None,
    check: bool = True,
) -> DistArray:
    """Return the array whose block on this rank is a tensor; they share their memory.

    Parameters
    ----------
    tensor
        This rank's block. Gradients do not flow through the array.
    mesh, placements
        Default: those of the tensor's own layout, where `layout_of` knows it, and else
        `DistArray.from_local`'s.
    shape, check
        As for `DistArray.from_local`.

    Raises
    ------
    LayoutError
        The tensor consists of parts that are cut each by itself, which no array is.
    DTypeError
        bfloat16, which NumPy lacks.
    """
    check_travels(tensor)
    if tensor.dtype is torch.bfloat16:
        raise DTypeError(
            "NumPy has no bfloat16, so that no array can share this tensor's memory; convert it by "
            "tensor.float() first"
        )
    placed = placed_of(tensor) if mesh is None and placements is None else None
    if placed is None:
        return DistArray.from_local(buffer_of(tensor), mesh, placements, shape=shape, check=check)
    layout = placed.layout
    if placed.parts:
        raise LayoutError(
            f"the tensor {layout} consists of parts {placed.parts} along axis {placed.axis} that "
            "are cut each by itself; da.distribute_array(dt.full_tensor(tensor).detach()) has its "
            "values in order"
        )
    return _wrap(buffer_of(tensor), layout)


def to_torch(array: DistArray) -> torch.Tensor:
    """Return this rank's block of an array as a tensor, which shares its memory.

    Parameters
    ----------
    array
        Its layout is that of the tensor, as `layout_of` tells.

    Raises
    ------
    DTypeError
        torch has no such dtype.
    ArgumentError
        The block's memory is read-only, or runs backwards.
    """
    if not isinstance(array, DistArray):
        raise ArgumentTypeError(f"expected a DistArray, not {type(array).__name__}")
    block = array.to_local()
    fixed = _backend.is_numpy(block) and not block.flags.writeable
    if fixed or any(step < 0 for step in block.strides):
        raise ArgumentError(
            f"the block of {array.layout} is read-only or runs backwards, and no tensor can share "
            "its memory; pass a copy, da.asarray(x, copy=True)"
        )
    try:
        result = tensor_of(block)
    except (TypeError, ValueError, BufferError) as error:
        raise DTypeError(
            f"torch has no dtype for {block.dtype}: {error}; convert the array by astype"
        ) from None
    place(result, array.layout)
    return result


def digest_of(tensor: torch.Tensor) -> str:
    """Return what tells a tensor's values, by their bits, from all others."""
    return digest(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _cut(whole: torch.Tensor, box: Any) -> torch.Tensor:
    for axis, (start, stop) in enumerate(box):
        whole = whole.narrow(axis, start, stop - start)
    return whole


def _scattered(whole: torch.Tensor, layout: Layout, source: int) -> torch.Tensor:
    """Return this rank's block of what the source has."""
    mesh: Any = layout.mesh
    comm = mesh.communicator()
    block = torch.empty(layout.local_shape(), dtype=whole.dtype, device=whole.device)
    bits = torch.int16 if whole.dtype is torch.bfloat16 else whole.dtype  # which MPI knows
    if layout.is_replicated:
        if comm.rank == source:
            block.copy_(whole)
        comm.broadcast(buffer_of(block.view(bits)), root=source)
        return block
    boxes = [layout.local_box(mesh.coordinate_of(rank)) or () for rank in comm.ranks]
    counts = [math.prod(stop - start for start, stop in box) for box in boxes]
    send = None
    if comm.rank == source:
        send = buffer_of(torch.cat([_cut(whole, box).reshape(-1) for box in boxes]).view(bits))
    comm.scatter(send, buffer_of(block.view(bits)).reshape(-1), counts, source)
    return block
