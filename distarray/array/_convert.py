"""Conversions: adopting blocks, distributing a value, gathering, changing the layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory, all_gather_checked, by_answer, token
from distarray.core import (
    BaseArray,
    _replicas,
    call_on_all,
    check_device,
    check_device_name,
    check_flag,
    check_position,
    choose_mesh,
    choose_placements,
    copy_block,
    device_of,
    empty_block,
    is_stored,
    meet,
    normalize_shape,
    plain_buffer,
    plain_source,
    read_box,
    reduced_source,
    replicated_layout,
    unshare,
)
from distarray.errors import (
    ArgumentError,
    DistArrayError,
    DTypeError,
    LayoutError,
    PlacementError,
)
from distarray.layout import Layout, Partial, Placement, Shard
from distarray.ops import asarray
from distarray.redistribute import (
    check_dtype,
    gather_to,
    redistribute_async,
    redistribute_local,
    scatter_from,
)
from distarray.typing import Box, Buffer, Shape

_AVERAGED_KINDS = "biu"


def convert_averaged(block: Buffer, layout: Layout) -> Buffer:
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
    mesh = choose_mesh(mesh)

    def read_given() -> _LocalInput:
        block = plain_buffer(local, "from_local", mesh.device)
        check_device(block, mesh, "from_local")
        placed = choose_placements(mesh, placements, block.ndim)
        draft = Layout(mesh, placed, block.shape)  # settles negative axes, and refuses bad ones
        whole = replicated_layout(mesh, block.shape)
        check_dtype(draft, whole, block.dtype)  # whether its Partial can be reduced
        return _LocalInput(block, draft, None if shape is None else normalize_shape(shape))

    if mesh.coordinate is None:
        given = read_given()
        block, layout = _adopt_outside(given)
    elif check:
        block, layout = _compare_blocks(mesh, read_given)
    else:
        given = read_given()
        block, layout = given.block, _assume_layout(given)
        if _replicas.checked:
            told = _replicas.exchange(mesh, "from_local", lambda: _replicas.summarize(block))
            _replicas.refuse(mesh, "from_local", "the block", told, layout)
    return convert_averaged(block, layout), layout


class _LocalInput(NamedTuple):
    """What a rank passes to `from_local`; the draft has the shape of the block."""

    block: Buffer
    draft: Layout
    told: Shape | None


def _adopt_outside(given: _LocalInput) -> tuple[Buffer, Layout]:
    block, draft, told = given
    if block.size:
        raise LayoutError(
            f"this process is not in {draft.mesh}, but passes a block of shape {block.shape}; a "
            "process outside the mesh must pass an empty block"
        )
    layout = draft if told is None else draft.replace(shape=told)
    return empty_block(layout, block.dtype), layout


def _assume_layout(given: _LocalInput) -> Layout:
    block, draft, told = given
    sizes = list(block.shape)
    for axis, placement in enumerate(draft.placements):
        if type(placement) is Shard:
            sizes[placement.axis] *= draft.mesh.shape[axis]
    layout = draft.replace(shape=sizes if told is None else told)
    if tuple(block.shape) != tuple(layout.local_shape()):
        raise LayoutError(
            f"the block has shape {tuple(block.shape)}, but {layout} gives this process "
            f"{tuple(layout.local_shape())}; pass check=True for blocks of other sizes"
        )
    return layout


def _compare_blocks(mesh: Any, read_given: Callable[[], _LocalInput]) -> tuple[Buffer, Layout]:
    """Compare all blocks and adopt this rank's; errors are alike on every rank."""
    given: list[_LocalInput] = []

    def say() -> tuple[Any, ...]:
        given.append(read_given())
        block, draft, told = given[0]
        writeable = _backend.is_writeable(block)
        digest = _replicas.summarize(block) if _replicas.checked else ""
        # As text, which is pickled in a tenth of the time.
        placed = str(draft.placements)
        return tuple(block.shape), block.dtype.str, placed, told, writeable, digest

    everyone = all_gather_checked(mesh, "from_local", say)
    shapes, dtypes, placed, told, writeable, digests = (
        list(answers) for answers in zip(*everyone, strict=True)
    )
    check_blocks(mesh, "the blocks", shapes, dtypes)
    check_alike(PlacementError, mesh, "placements differ between ranks:", placed)
    check_alike(LayoutError, mesh, "shape= differs between ranks:", told)
    layout = infer_layout(mesh, given[0].draft.placements, tuple(shapes), told[0])
    if any(digests):
        _replicas.refuse(mesh, "from_local", "the block", digests, layout)
    # Where one rank's memory is protected, writing fails on every rank alike.
    block = given[0].block if all(writeable) else _backend.make_read_only(given[0].block)
    return block, layout


def check_alike(
    error: type[DistArrayError],
    mesh: Any,
    what: str,
    said: Sequence[Any],
    remedy: str = "pass the same everywhere",
    compared: Callable[[Any], Any] = lambda one: one,
) -> None:
    """Raise an error that says what each rank has passed, where that differs."""
    if said.count(said[0]) < len(said) and len(set(map(compared, said))) > 1:
        raise error(f"{what} {by_answer(said, mesh.communicator().world_ranks)}; {remedy}")


def check_blocks(mesh: Any, what: str, shapes: Sequence[Shape], dtypes: Sequence[str]) -> None:
    """Raise where blocks have different numbers of axes, or different dtypes."""
    count, remedy = f"{what} differ in their number of axes: shape", "reshape them alike beforehand"
    check_alike(LayoutError, mesh, count, shapes, remedy, len)
    remedy = "convert them with astype beforehand"
    check_alike(DTypeError, mesh, f"{what} differ in dtype:", dtypes, remedy)


@lru_cache(maxsize=256)
def infer_layout(
    mesh: Any,
    placements: tuple[Placement, ...],
    shapes: tuple[Shape, ...],
    told: Shape | None = None,
    shard_order: tuple[int, ...] | None = None,
) -> Layout:
    """Return the layout that blocks of these shapes (by position in the mesh) tile."""
    ndim = len(shapes[0]) if told is None else len(told)
    if len(shapes[0]) != ndim:
        raise LayoutError(f"shape={told} has {ndim} axes, but the blocks have shapes {shapes}")
    # Settles negative axes, and refuses bad ones.
    draft = Layout(mesh, placements, shapes[0], shard_order=shard_order)
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
                    f"{placements}); where blocks lie one beside the other along axis {axis}, pass "
                    f"Shard({axis}) for that mesh axis"
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
    return draft.replace(shape=tuple(sizes), boundaries=boundaries or None)


# --- distributing a value ------------------------------------------------------------------------


def distribute(value: Any, mesh: Any, placements: Any, src: Any) -> tuple[Buffer, Layout]:
    """Return (block, layout) for the public `distribute_array`."""
    mesh = choose_mesh(mesh)
    if src is None:
        return _take_part(value, mesh, placements)
    if mesh.coordinate is None:
        check_position(src, mesh)
        return _distribute_outside(value, mesh, placements)
    return _scatter(value, mesh, placements, src)


def _take_part(value: Any, mesh: Any, placements: Any) -> tuple[Buffer, Layout]:
    source = plain_source(value, "distribute_array")
    if _replicas.checked:
        _replicas.compare(mesh, "distribute_array", {"value": source})
    layout = Layout(mesh, choose_placements(mesh, placements, len(source.shape)), source.shape)
    dtype = convert_averaged(np.empty(0, source.dtype), layout).dtype
    array = asarray(source, dtype=dtype, mesh=mesh, placements=layout.placements)
    return array._local, layout


def _distribute_outside(value: Any, mesh: Any, placements: Any) -> tuple[Buffer, Layout]:
    """Return the empty block of a process that is not in the mesh.

    Shape and dtype are those of the value it passes; if it has none to pass, they stay unknown
    here, and the shape is taken as empty.
    """
    array = plain_buffer(value, "distribute_array", objects=True)
    if array.dtype.hasobject:
        axes = [p.axis for p in placements or () if type(p) is Shard]
        array = np.empty((0,) * (1 + max((*axes, 0))))
    layout = Layout(mesh, choose_placements(mesh, placements, array.ndim), array.shape)
    return convert_averaged(empty_block(layout, array.dtype), layout), layout


def _scatter(value: Any, mesh: Any, placements: Any, src: Any) -> tuple[Buffer, Layout]:
    """Send each process of the mesh its block from the process at position `src`."""
    comm = mesh.communicator()
    source: Any = None

    def say() -> tuple[Any, ...]:
        nonlocal source
        position = check_position(src, mesh)
        asked = None if placements is None else choose_placements(mesh, placements, 0)
        if comm.rank != position:
            return position, asked, None
        source = plain_source(value, "distribute_array")
        return position, asked, (tuple(source.shape), source.dtype, is_stored(source))

    positions, asked, told = zip(*all_gather_checked(mesh, "distribute_array", say), strict=True)
    check_alike(ArgumentError, mesh, "src= differs between ranks:", positions)
    check_alike(PlacementError, mesh, "placements differ between ranks:", asked)
    shape, dtype, stored = told[positions[0]]
    # One that was pickled is equal to NumPy's own, whose loops ask for the very same: `add.at` of
    # such a block takes 45 times as long.
    dtype = np.dtype(dtype.type) if dtype.kind in "biufc" and dtype.isnative else dtype
    layout = Layout(mesh, choose_placements(mesh, placements, len(shape)), shape)
    # A Partial result is made from replicated blocks, by each process for itself.
    plain = layout.without_partial()
    check_dtype(plain, layout, dtype)
    block = _memory.empty(plain.local_shape(), dtype)
    read = None if source is None else lambda box: _host_box(source, box)
    options = {"call": partial(call_on_all, mesh, "distribute_array")} if stored else {}
    scatter_from(mesh.flat_ranks[positions[0]], block, plain, read, **options)
    block = convert_averaged(_backend.asarray(block, mesh.device), layout)
    return redistribute_local(block, plain, layout) if plain is not layout else block, layout


def _host_box(source: Any, box: Box) -> np.ndarray:
    return _backend.to_host(read_box(source, box, "distribute_array"))


# --- out, and to another layout ------------------------------------------------------------------


def gather(array: BaseArray, dst: Any = None) -> Any:
    """Return a copy of the global array; empty outside the mesh.

    With the position of one process in the mesh that has it alone; on the others this is None.
    """
    block, layout = array._local, array._layout
    if dst is not None:
        return _gather_on_one(array, layout, dst)
    if layout.mesh.coordinate is None:
        return block.copy()
    whole = replicated_layout(layout.mesh, layout.shape)
    block, near = reduced_source(array, block, layout, whole)
    return unshare(redistribute_local(block, near, whole), block)


def _gather_on_one(array: BaseArray, layout: Layout, dst: Any) -> Buffer | None:
    mesh: Any = layout.mesh
    position = check_position(dst, mesh, "dst")
    if mesh.coordinate is None:
        return None
    mesh.communicator().agree(
        token("full_array", position, layout.fingerprint), f"full_array(dst={position})"
    )
    reduced = reduced_layout(layout)
    root = mesh.flat_ranks[position]
    block, near = reduced_source(array, array._local, layout, reduced)
    return gather_to(root, redistribute_local(block, near, reduced), reduced)


def reduced_layout(layout: Layout) -> Layout:
    """Return the layout with no Partial in which the values of one take least memory.

    Where they are added up they are cut along the longest axis.
    """
    if not layout.has_partial or not layout.ndim:
        return layout.without_partial()
    axis = layout.shape.index(max(layout.shape))
    placements = [Shard(axis) if type(p) is Partial else p for p in layout.placements]
    kept = {a: offsets for a, offsets in (layout.boundaries or {}).items() if a != axis}
    return layout.replace(placements=placements, boundaries=kept or None)


def redistribute(
    array: Any,
    placements: Any,
    mesh: Any,
    cuts: tuple[Any, Any],
    async_op: bool,
    max_bytes: int | None,
) -> Any:
    """Return `array` under other placements or on another mesh; see the public method."""
    async_op = check_flag("redistribute", "async_op", async_op)
    src = array._layout
    dst = resolve_target(src, placements, mesh, cuts)
    if dst.mesh is not src.mesh and device_of(src) != device_of(dst):
        return _to_another_device(array, dst, async_op, max_bytes)
    block = convert_averaged(array._local, dst)
    if async_op:
        handle = redistribute_async(block, *meet(src, dst), max_bytes=max_bytes)
        return PendingArray(array, handle, dst)
    # The block itself, where nothing changes, would let in-place operations on the result change
    # this array.
    block, near = reduced_source(array, block, src, dst)
    result = redistribute_local(block, *meet(near, dst), max_bytes=max_bytes)
    return array._new_apart(copy_block(result) if result is block else result, dst)


def _to_another_device(array: Any, dst: Layout, async_op: bool, max_bytes: int | None) -> Any:
    """Redistribute where the blocks are, then take each to the other device."""
    if async_op:
        raise ArgumentError(
            f"redistribute(async_op=True) does not go from {array.device!r} to another device; "
            f"take x.to_device(...) first, or leave async_op out"
        )
    mesh: Any = dst.mesh
    near = dst.replace(mesh=mesh.on(array.device))
    moved = redistribute(
        array, near.placements, near.mesh, (near.shard_order, near.boundaries), False, max_bytes
    )
    return moved._new(_backend.asarray(moved._local, mesh.device), dst)


def to_device(array: Any, device: str) -> Any:
    """Return `array` with its blocks on another device; itself where they are there."""
    src: Layout = array._layout
    here: Any = src.mesh
    mesh = here.on(check_device_name(device))
    if mesh is src.mesh:
        return array
    return array._new(_backend.asarray(array._local, mesh.device), src.replace(mesh=mesh))


def resolve_target(src: Layout, placements: Any, mesh: Any, cuts: tuple[Any, Any]) -> Layout:
    """Return the layout that `redistribute` asks for; `cuts` are shard order and boundaries."""
    order, boundaries = cuts
    if mesh is None or mesh is src.mesh:
        mesh = src.mesh
        if placements is None:
            if order is None and boundaries is None:
                return src
            placements = src.placements
    else:
        mesh = choose_mesh(mesh)
        placements = choose_placements(mesh, placements, src.ndim)
    return Layout(mesh, placements, src.shape, shard_order=order, boundaries=boundaries)


class PendingArray:
    """An array that is on its way; `wait` for it before the source is changed."""

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
            block = unshare(self._handle.wait(), self._array._local)
            self._result = self._array._new_apart(block, self._layout)
            self._handle = None
        return self._result
