"""Parameters that become this rank's block of themselves, in place: whoever holds one, sees it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, LayoutError, MismatchError
from distarray.layout import Layout, Placement, Shard
from distarray.torch import _fused
from distarray.torch._buffers import buffer_of
from distarray.torch._layouts import Placed, place, placed_of
from distarray.torch._modules import state_of
from distarray.torch._moves import check_mesh

_source: ContextVar[int | None] = ContextVar("source of parameters", default=0)


@contextlib.contextmanager
def values_from(rank: int | None) -> Iterator[None]:
    """Set which rank's values parameters take: a position in their mesh, or each its own (None)."""
    token = _source.set(rank)
    try:
        yield
    finally:
        _source.reset(token)


def distribute_parameter(
    module: nn.Module,
    name: str,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    parts: Sequence[int] = (),
    unit: int | Sequence[int] = 1,
    axis: int = 0,
) -> Layout:
    """Turn a module's parameter into this rank's block of it (collective over the mesh).

    The parameter stays the same object, so that modules which share it and optimizers which hold
    it see the block. A parameter on the meta device becomes a block there, and nothing is sent.

    Parameters
    ----------
    module, name
        The module that holds it, and under which name.
    mesh, placements
        How it is placed: ``Shard`` and ``Replicate``.
    parts
        Sizes of the parts that the full parameter consists of along ``axis``, each of which is
        cut by itself: every rank holds its share of each, one after another. For fused query,
        key and value weights, for instance.
    unit
        How many items along ``axis`` must stay together, such as the features of a head; one
        number, or one for each part.
    axis
        See ``parts`` and ``unit``; one mesh axis at most may shard it.

    Returns
    -------
    Layout
        Of the full parameter. With ``parts`` its items along ``axis`` are in the order of the
        ranks.

    Raises
    ------
    LayoutError
        The parameter is placed otherwise already, by another module that shares it.
    MismatchError
        Each rank shall keep its own values (``src_data_rank=None``), and these differ.
    """
    check_mesh(mesh)
    parameter = _parameter(module, name)
    if name in state_of(module).placed:
        raise LayoutError(
            f"parameter {name!r} is distributed already, as {state_of(module).placed[name].layout}"
            ": apply one style that distributes it, once"
        )
    known = placed_of(parameter)
    shape = tuple(parameter.shape) if known is None else known.layout.shape
    placed = placed_as(mesh, placements, shape, parts, axis, unit)
    if known is not None and known != placed:
        raise LayoutError(
            f"parameter {name!r} is placed as {known.layout} already, by a module that shares it, "
            f"and cannot be {placed.layout} as well; give both modules styles that place it alike"
        )
    if known is None:
        if parameter.grad is not None:
            raise ArgumentError(
                f"parameter {name!r} has a gradient already, of the full shape; parallelize before "
                "the first backward pass, or after zero_grad()"
            )
        if parameter.device.type != "meta":
            _agree_on_values(parameter, mesh, name)
        block = block_of(parameter.detach(), placed).clone(memory_format=torch.contiguous_format)
        forget_graphs(parameter)
        parameter.data = block
        place(parameter, *placed)
    state_of(module).placed[name] = placed
    return placed.layout


def forget_graphs(parameter: nn.Parameter) -> None:
    """Let new graphs take gradients of a shape that those which are still alive did not know.

    While the result of an earlier call lives, torch goes on using that graph's entry for the
    parameter, shape and all. A change of dtype makes it begin a new one.
    """
    other = torch.float16 if parameter.dtype is not torch.float16 else torch.float32
    parameter.data = torch.empty(0, dtype=other, device=parameter.device)


def _parameter(module: nn.Module, name: str) -> nn.Parameter:
    """Return a parameter that can be cut, or raise and say why there is none."""
    parameter = getattr(module, name, None)
    kind = type(module).__name__
    if isinstance(parameter, UninitializedParameter):
        raise ArgumentError(
            f"parameter {name!r} of {kind} has no shape yet; run the module once beforehand"
        )
    if isinstance(parameter, nn.Parameter) and name in module._parameters:
        return parameter
    if isinstance(parameter, torch.Tensor):
        raise ArgumentError(
            f"{name!r} of {kind} is no parameter but computed from others (a parametrization, "
            "weight_norm, spectral_norm): its parts cannot be cut. Remove that beforehand, by "
            "torch.nn.utils.parametrize.remove_parametrizations or remove_weight_norm"
        )
    raise ArgumentError(f"{kind} has no parameter {name!r} to distribute")


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
    layout, parts, axis, units = placed
    if not parts:
        return full
    cutting = layout.sharding_axes(axis)[0]
    return _fused.by_ranks(full, parts, units, layout.mesh.shape[cutting], axis)


def in_full_order(gathered: torch.Tensor, placed: Placed) -> torch.Tensor:
    """Return a full tensor whose parts, gathered in the order of the ranks, are whole again."""
    layout, parts, axis, units = placed
    if not parts:
        return gathered
    cutting = layout.sharding_axes(axis)[0]
    return _fused.by_parts(gathered, parts, units, layout.mesh.shape[cutting], axis)


def _agree_on_values(parameter: nn.Parameter, mesh: DeviceMesh, name: str) -> None:
    """Give all ranks the values of one, or check that they have the same."""
    source = _source.get()
    comm = mesh.communicator()
    whole = parameter.detach().contiguous()
    buffer = buffer_of(whole)
    if source is None:
        digest = hashlib.blake2b(buffer.tobytes(), digest_size=16).hexdigest()
        told = comm.all_gather_object((tuple(parameter.shape), str(parameter.dtype), digest))
        if len(set(told)) > 1:
            raise MismatchError(
                f"parameter {name!r} differs between the ranks of {mesh}: {told}; start from the "
                "same values, or let src_data_rank=0 give its own to all"
            )
        return
    comm.broadcast(buffer.reshape(-1), root=source)
    if whole.data_ptr() != parameter.data_ptr():
        parameter.data.copy_(whole)


def is_sharded(layout: Layout) -> bool:
    """Tell whether ranks hold different blocks."""
    return any(
        type(p) is Shard and size > 1
        for p, size in zip(layout.placements, layout.mesh.shape, strict=True)
    )
