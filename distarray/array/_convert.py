"""Ways in and out: adopting blocks, distributing a value, gathering, changing the layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm._device_mesh import default_mesh, default_placements
from distarray.core._base import BaseArray
from distarray.errors import ArgumentError, DTypeError, LayoutError, PlacementError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.redistribute._background import redistribute_async
from distarray.redistribute._execute import redistribute_local
from distarray.typing import Buffer, Shape

_AVERAGED_KINDS = "biu"


def _resolve_mesh(mesh: Any) -> Any:
    return default_mesh() if mesh is None else mesh


def _resolve_placements(mesh: Any, placements: Any, ndim: int) -> tuple[Placement, ...]:
    if placements is None:
        return tuple(default_placements(mesh, ndim))
    return tuple(placements)


def check_dtype(dtype: Any) -> None:
    """Refuse dtypes whose items cannot travel.

    Raises
    ------
    DTypeError
        If `dtype` holds Python objects.
    """
    if dtype.hasobject:
        raise DTypeError(
            f"dtype {dtype} holds Python objects, which cannot be sent as memory; convert the "
            "values to a numeric, string or structured dtype first"
        )


def averaged(block: Buffer, layout: Layout) -> Buffer:
    """Return `block`, as float64 where it is an integer block of a Partial("avg") layout."""
    integer = layout.has_partial and block.dtype.kind in _AVERAGED_KINDS
    if integer and any(p.is_partial("avg") for p in layout.placements):
        return block.astype(np.float64)
    return block


# --- adopting blocks -----------------------------------------------------------------------------


def adopt(
    local: Any, mesh: Any, placements: Any, shape: Sequence[int] | None, check: bool
) -> tuple[Buffer, Layout]:
    """Return (block, layout) for the public `from_local`."""
    mesh = _resolve_mesh(mesh)
    block = local if _backend.is_buffer(local) else _backend.asarray(local, mesh.device)
    check_dtype(block.dtype)
    placements = _resolve_placements(mesh, placements, block.ndim)
    if mesh.coordinate is None:
        return _adopt_outside(block, mesh, placements, shape)
    if check:
        layout = _checked_layout(block, mesh, placements, shape)
    else:
        layout = _unchecked_layout(block, mesh, placements, shape)
    return averaged(block, layout), layout


def _adopt_outside(
    block: Buffer, mesh: Any, placements: tuple[Placement, ...], shape: Sequence[int] | None
) -> tuple[Buffer, Layout]:
    if block.size:
        raise LayoutError(
            f"this process is not in {mesh}, but passes a block of shape {block.shape}; a process "
            "outside the mesh must pass an empty block"
        )
    layout = Layout(mesh, placements, tuple(block.shape if shape is None else shape))
    return averaged(np.empty(layout.local_shape(), block.dtype), layout), layout


def _unchecked_layout(
    block: Buffer, mesh: Any, placements: tuple[Placement, ...], shape: Sequence[int] | None
) -> Layout:
    if shape is None:
        sizes = list(block.shape)
        for axis, placement in enumerate(placements):
            if type(placement) is Shard:
                sizes[placement.axis] *= mesh.shape[axis]
        shape = sizes
    layout = Layout(mesh, placements, tuple(shape))
    if tuple(block.shape) != tuple(layout.local_shape()):
        raise LayoutError(
            f"the block has shape {tuple(block.shape)}, but {layout} gives this process "
            f"{tuple(layout.local_shape())}; pass check=True for blocks of other sizes"
        )
    return layout


def _checked_layout(
    block: Buffer, mesh: Any, placements: tuple[Placement, ...], shape: Sequence[int] | None
) -> Layout:
    """Compare all blocks and return the layout they tile; errors are alike on every rank."""
    told = None if shape is None else tuple(int(size) for size in shape)
    mine = (tuple(block.shape), block.dtype.str, placements, told)
    everyone = mesh.communicator().all_gather_object(mine)
    shapes = [entry[0] for entry in everyone]
    if len({len(own) for own in shapes}) > 1:
        raise LayoutError(f"blocks differ in their number of axes: shapes by rank {shapes}")
    dtypes = [entry[1] for entry in everyone]
    if len(set(dtypes)) > 1:
        raise DTypeError(
            f"blocks differ in dtype: {dtypes} by rank; convert them with astype beforehand"
        )
    if any(entry[2] != placements for entry in everyone):
        raise PlacementError(f"placements differ between ranks: {[e[2] for e in everyone]}")
    if any(entry[3] != told for entry in everyone):
        raise LayoutError(f"shape= differs between ranks: {[entry[3] for entry in everyone]}")
    return tiled_layout(mesh, placements, shapes, told)


def tiled_layout(
    mesh: Any, placements: tuple[Placement, ...], shapes: list[Shape], told: Shape | None
) -> Layout:
    """Return the layout that blocks of these shapes (by position in the mesh) tile.

    Raises
    ------
    LayoutError
        If they do not tile a box, or tile another shape than `told`.
    """
    ndim = len(shapes[0]) if told is None else len(told)
    if len(shapes[0]) != ndim:
        raise LayoutError(f"shape={told} has {ndim} axes, but the blocks have shapes {shapes}")
    draft = Layout(mesh, placements, shapes[0])  # settles negative axes, and refuses bad ones
    sizes: list[int] = []
    boundaries: dict[int, tuple[int, ...]] = {}
    for axis in range(ndim):
        cutting = draft.sharding_axes(axis)
        blocks: dict[int, int] = {}
        for position, shape in enumerate(shapes):
            coordinate = mesh.coordinate_of(mesh.flat_ranks[position])
            index = draft.block_index(axis, coordinate)
            if blocks.setdefault(index, shape[axis]) != shape[axis]:
                raise LayoutError(
                    f"blocks {index} of axis {axis} should be equal, but have sizes "
                    f"{blocks[index]} and {shape[axis]} (shapes by rank {shapes}, placements "
                    f"{placements})"
                )
        offsets = [0]
        for index in range(len(blocks)):
            offsets.append(offsets[-1] + blocks[index])
        sizes.append(offsets[-1])
        if cutting:
            boundaries[axis] = tuple(offsets)
    if told is not None and tuple(sizes) != told:
        raise LayoutError(
            f"the blocks add up to shape {tuple(sizes)}, not to shape={told} (shapes by rank "
            f"{shapes}, placements {placements})"
        )
    return Layout(mesh, draft.placements, tuple(sizes), boundaries=boundaries or None)


# --- distributing a value ------------------------------------------------------------------------


def distribute(value: Any, mesh: Any, placements: Any, src: int | None) -> tuple[Buffer, Layout]:
    """Return (block, layout) for the public `distribute_array`."""
    mesh = _resolve_mesh(mesh)
    if src is None:
        return _take_part(value, mesh, placements)
    if not 0 <= src < mesh.size:
        raise ArgumentError(f"src={src} is no position in {mesh}; it must be 0 to {mesh.size - 1}")
    if mesh.coordinate is None:
        return _distribute_outside(value, mesh, placements)
    return _scatter(value, mesh, placements, src)


def _take_part(value: Any, mesh: Any, placements: Any) -> tuple[Buffer, Layout]:
    array = np.asarray(value) if not _backend.is_buffer(value) else value
    check_dtype(array.dtype)
    layout = Layout(mesh, _resolve_placements(mesh, placements, array.ndim), array.shape)
    array = averaged(array, layout)
    if mesh.coordinate is None:
        return np.empty(layout.local_shape(), array.dtype), layout
    whole = Layout(mesh, (Replicate(),) * mesh.ndim, array.shape)
    block = redistribute_local(array, whole, layout)
    return _owned(_backend.asarray(block, mesh.device), array), layout


def _owned(block: Buffer, source: Buffer) -> Buffer:
    """Return `block`, copied where it shares memory with `source`."""
    if _backend.is_numpy(block) and not np.may_share_memory(block, source):
        return block
    return copy_block(block)


def copy_block(block: Buffer) -> Buffer:
    """Return a C-contiguous copy in memory of its own."""
    out = _memory.empty(block.shape, block.dtype, _backend.device_of(block))
    out[...] = block
    return out


def _distribute_outside(value: Any, mesh: Any, placements: Any) -> tuple[Buffer, Layout]:
    """Return the empty block of a process that is not in the mesh.

    Shape and dtype are those of the value it passes; if it has none to pass, they stay unknown
    here, and the shape is taken as empty.
    """
    array = np.asarray(value)
    if array.dtype.hasobject:
        axes = [p.axis for p in placements or () if type(p) is Shard]
        array = np.empty((0,) * (1 + max((*axes, 0))))
    layout = Layout(mesh, _resolve_placements(mesh, placements, array.ndim), array.shape)
    return averaged(np.empty(layout.local_shape(), array.dtype), layout), layout


def _scatter(value: Any, mesh: Any, placements: Any, src: int) -> tuple[Buffer, Layout]:
    """Send each process of the mesh its block from the process at position `src`."""
    comm = mesh.communicator()
    at_source = comm.rank == src
    told: Any = None
    array = None
    if at_source:
        try:
            array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
            check_dtype(array.dtype)
            told = (array.shape, array.dtype)
        except (DTypeError, ValueError, TypeError) as error:
            told = error
    told = comm.broadcast_object(told, src)
    if isinstance(told, Exception):
        raise told
    shape, dtype = told
    layout = Layout(mesh, _resolve_placements(mesh, placements, len(shape)), shape)
    # A Partial result is made from replicated blocks, by each process for itself.
    plain = layout.replace(
        placements=[Replicate() if type(p) is Partial else p for p in layout.placements]
    )
    block = _memory.empty(plain.local_shape(), dtype)
    if plain.is_replicated:
        if at_source:
            block[...] = array
        comm.broadcast(block.reshape(-1), src)
    else:
        _scatter_blocks(comm, array, block, plain, src)
    block = averaged(_backend.asarray(block, mesh.device), layout)
    return redistribute_local(block, plain, layout) if plain is not layout else block, layout


def _scatter_blocks(comm: Any, array: Any, block: Buffer, layout: Layout, src: int) -> None:
    mesh = layout.mesh
    boxes = [layout.local_box(mesh.coordinate_of(rank)) for rank in comm.ranks]
    counts = [int(np.prod([stop - start for start, stop in box], dtype=np.int64)) for box in boxes]
    send = None
    if array is not None:
        send = _memory.empty((sum(counts),), block.dtype)
        start = 0
        for box, count in zip(boxes, counts, strict=True):
            part = array[tuple(slice(lo, hi) for lo, hi in box)]
            send[start : start + count].reshape(part.shape)[...] = part
            start += count
    comm.scatter(send, block.reshape(-1), counts, src)


# --- out, and to another layout ------------------------------------------------------------------


def gather(array: BaseArray) -> Buffer:
    """Return a copy of the global array; empty outside the mesh."""
    block, layout = array._local, array._layout
    if layout.mesh.coordinate is None:
        return block.copy()
    whole = Layout(layout.mesh, (Replicate(),) * layout.mesh.ndim, layout.shape)
    result = block if whole is layout else redistribute_local(block, layout, whole)
    return copy_block(result) if result is block or _shares(result, block) else result


def _shares(result: Buffer, block: Buffer) -> bool:
    return not _backend.is_numpy(result) or bool(np.may_share_memory(result, block))


def redistribute(
    array: Any, placements: Any, mesh: Any, async_op: bool, max_bytes: int | None
) -> Any:
    """Return `array` under other placements or on another mesh; see the public method."""
    src = array._layout
    dst = target(src, placements, mesh)
    block = averaged(array._local, dst)
    if async_op:
        return PendingArray(array, redistribute_async(block, src, dst, max_bytes=max_bytes), dst)
    if dst is src:
        return array._new(array._local, src)
    result = redistribute_local(block, src, dst, max_bytes=max_bytes)
    return array._new(own(result, array._local), dst)


def own(result: Buffer, block: Buffer) -> Buffer:
    """Return `result` in memory apart from `block`.

    A slice of a replicated block would let an in-place operation on the result change the
    replicas, on every rank another part.
    """
    return copy_block(result) if result is not block and _shares(result, block) else result


def target(src: Layout, placements: Any, mesh: Any) -> Layout:
    """Return the layout that `redistribute(placements, mesh=mesh)` asks for."""
    if mesh is None or mesh is src.mesh:
        if placements is None:
            return src
        return Layout(src.mesh, tuple(placements), src.shape)
    return Layout(mesh, _resolve_placements(mesh, placements, src.ndim), src.shape)


class PendingArray:
    """An array that is on its way; `wait` for it before the source is changed."""

    __slots__ = ("_array", "_handle", "_layout", "_result")

    def __init__(self, array: BaseArray, handle: Any, layout: Layout) -> None:
        self._array = array
        self._handle = handle
        self._layout = layout
        self._result: Any = None

    def test(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._result is not None or bool(self._handle.test())

    def wait(self) -> Any:
        """Return the array, after all of it has arrived."""
        if self._result is None:
            block = own(self._handle.wait(), self._array._local)
            self._result = self._array._new(block, self._layout)
            self._handle = None
        return self._result
