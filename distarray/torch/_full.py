"""Whole tensors and blocks: gather one, scatter the other, and share memory with arrays.

What one rank collects or scatters is held by no other rank: only the blocks travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from distarray.array import DistArray
from distarray.checkpoint import box_view
from distarray.comm import DeviceMesh, _backend, all_gather_checked
from distarray.core import check_position, choose_placements, new_array
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, LayoutError
from distarray.layout import Layout, Placement, Replicate
from distarray.redistribute import gather_to
from distarray.redistribute import scatter_from as scatter_blocks
from distarray.torch._buffers import buffer_of, check_travels, digest_of, tensor_of
from distarray.torch._layouts import Placed, check_mesh, place, placed_of
from distarray.torch._modules import check_alike
from distarray.torch._moves import move
from distarray.torch._routes import routes_between
from distarray.torch._shards import block_of, count_first_cut, in_full_order, order_by_ranks

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

    Examples
    --------
    >>> def whole():
    ...     block = dt.distribute_tensor(torch.arange(5), da.default_mesh(), [da.Shard(0)])
    ...     return dt.full_tensor(block)
    >>> da.testing.simulate(2, whole)
    [tensor([0, 1, 2, 3, 4]), tensor([0, 1, 2, 3, 4])]
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
    return gather_on_all(tensor, placed)


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

    Examples
    --------
    >>> def block():
    ...     return dt.distribute_tensor(torch.arange(5), da.default_mesh(), [da.Shard(0)])
    >>> da.testing.simulate(2, block)
    [tensor([0, 1, 2]), tensor([3, 4])]
    """
    check_mesh(mesh)

    def say() -> tuple[Any, ...]:
        check_travels(tensor)
        source = None if src_data_rank is None else check_position(src_data_rank, mesh)
        layout = Layout(mesh, choose_placements(mesh, placements, tensor.ndim), tensor.shape)
        return (
            layout.shape,
            str(tensor.dtype),
            layout.placements,
            source,
            digest_of(tensor) if source is None else None,
        )

    told = all_gather_checked(mesh, "distribute_tensor", say)
    what = "distribute_tensor got different shapes, dtypes, placements, sources or values"
    check_alike(what, told, mesh, "pass the same on every rank")
    layout = Layout(mesh, told[0][2], tensor.shape)
    plain = layout.without_partial()
    whole = tensor.detach()
    if src_data_rank is None:
        block = block_of(whole, Placed(plain)).clone(memory_format=torch.contiguous_format)
    else:
        source = mesh.flat_ranks[told[0][3]]
        block = scatter_from(whole if mesh.rank == source else None, Placed(plain), source, whole)
    block = move(block, *routes_between(plain, layout, requires_grad=False))
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

    Examples
    --------
    >>> block = dt.distribute_tensor(torch.arange(5), da.default_mesh(), [da.Shard(0)])
    >>> x = dt.from_torch(block)
    >>> x += 1
    >>> print(x.placements, block)
    (Shard(axis=0),) tensor([1, 2, 3, 4, 5])
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
    return new_array(buffer_of(tensor), layout)


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

    Examples
    --------
    >>> x = da.arange(5)
    >>> dt.to_torch(x).mul_(2)
    tensor([0, 2, 4, 6, 8])
    >>> print(x)
    [0 2 4 6 8]
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


# --- between the ranks of a mesh -----------------------------------------------------------------


def gather_on_all(block: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return the whole of a tensor on every rank of its mesh (collective)."""
    src = placed.layout
    dst = Layout(src.mesh, [_R] * src.mesh.ndim, src.shape)
    whole = move(block, *routes_between(src, dst, requires_grad=block.requires_grad))
    ordered = in_full_order(whole, placed)
    if ordered is not whole:
        place(ordered, dst)
    return ordered


def gather_on_one(block: torch.Tensor, placed: Placed, rank: int) -> torch.Tensor | None:
    """Return the whole of a tensor on one rank, by its number in the program, None on the others.

    Collective over the tensor's mesh; where that lacks the rank, nothing happens.
    """
    if rank not in placed.layout.mesh.flat_ranks:
        return None
    whole = gather_to(rank, _bits(block), placed.layout)
    return None if whole is None else in_full_order(tensor_of(whole).view(block.dtype), placed)


def scatter_from(
    whole: torch.Tensor | None, placed: Placed, rank: int, like: torch.Tensor
) -> torch.Tensor:
    """Return this rank's block of a tensor that one rank of its mesh has (collective).

    ``whole`` is in the order of one process, and None but on that rank, whose number in the program
    is ``rank``; ``like`` is of the dtype that is sent, on the device where the block goes.
    """
    block = like.new_empty(placed.layout.local_shape())
    if whole is not None:
        whole = whole.detach().to(like.device, like.dtype)
        _, parts, axis, units, _ = placed
        if parts:
            whole = order_by_ranks(whole, parts, units, count_first_cut(placed), axis)
    read = None if whole is None else lambda box: _bits(box_view(whole, box))
    scatter_blocks(rank, _bits(block), placed.layout, read)
    return block


def _bits(tensor: torch.Tensor) -> Any:
    """Return a tensor's memory, of a dtype that MPI knows."""
    return buffer_of(tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor)
