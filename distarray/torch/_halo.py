"""Halos of tensors: blocks with the edges of their neighbours around them, differentiable.

The forward pass copies items of other blocks around a block. Backward, what the gradient has there
goes to the owners of these items, who add it up: one exchange of as many bytes the other way, whose
boxes are received one after another and added in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from distarray.comm import DeviceMesh
from distarray.errors import LayoutError, MismatchError
from distarray.layout import Layout, Placement, kept
from distarray.ops import (
    Exchange,
    Fill,
    HaloSpec,
    Pair,
    Window,
    fill_in,
    fill_views,
    plan_halo,
    read_halo,
    refuse_exchange,
    run_exchange,
)
from distarray.torch._buffers import buffer_of, check_travels, empty, tensor_of, wire_dtype
from distarray.torch._layouts import check_block, check_mesh, layout_from
from distarray.torch._moves import reduce_partial
from distarray.torch._opaque import disable_compile, refuse_transforms

_WITH_GRADIENT = "dt.halo of a tensor that requires a gradient"
"""Said to the other ranks: all of them go back, or none."""


class _Halo(torch.autograd.Function):
    """Put edges around a block; its gradient goes back to the blocks that they are of."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, layout: Layout, spec: HaloSpec, name: str
    ) -> torch.Tensor:
        ctx.how = layout, spec
        around = plan_halo(name, layout, spec, tensor.dtype).first
        out = empty(prod(around.shape), tensor).reshape(around.shape)
        result = tensor_of(run_exchange(around.exchange, buffer_of(tensor), out))
        fill_in(fill_views(around.fills, result, spec.constants))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _Transposed.apply(gradient, *ctx.how), None, None, None


class _Transposed(torch.autograd.Function):
    """Add the edges to the blocks that they are of; the gradient of that has edges again."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, layout: Layout, spec: HaloSpec) -> torch.Tensor:
        ctx.how = layout, spec._replace(constants=((0, 0),) * layout.ndim), _WITH_GRADIENT
        way = _way_back(layout, spec, gradient.dtype)
        source = gradient.detach()
        if way.fills:
            source = source.clone()
            _add_repeated(way.fills, source)
        parts = empty(way.size, gradient)
        run_exchange(way.exchange, buffer_of(source), parts)
        arrived = tensor_of(parts)
        result = source[way.interior or ...].clone(memory_format=torch.contiguous_format)
        for pair, (key, flipped) in zip(way.exchange.receives, way.owned, strict=True):
            result[key] += pair.target.of(arrived).flip(flipped)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _Halo.apply(gradient, *ctx.how), None, None


class _WayBack(NamedTuple):
    """How the gradient of a block with edges becomes that of the block."""

    exchange: Exchange
    size: int
    """Of all boxes that arrive, one after another."""
    owned: tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...]
    """For each of them where it is added, and the axes along which it arrives backwards."""
    interior: tuple[slice, ...]
    fills: tuple[Fill, ...]


@kept(1024)
def _way_back(layout: Layout, spec: HaloSpec, dtype: torch.dtype) -> _WayBack:
    found = plan_halo(_WITH_GRADIENT, layout, spec, dtype)
    there = found.edges
    own = there.communicator.rank
    block = np.broadcast_to(np.int8(0), layout.local_shape())
    receives, owned, size = [], [], 0
    for pair in there.sends:
        shape = pair.source.of(block).shape
        start, size = size, size + prod(shape)
        arrived = Window(0, slice(start, size), shape, (...,))
        receives.append(Pair(pair.peer, pair.target, arrived))
        owned.append(_without_negative_steps(pair.source.key, block.shape))
    sends = tuple(
        Pair(pair.peer, pair.target, pair.source) for pair in there.receives if pair.peer != own
    )
    exchange = Exchange(there.communicator, tuple(receives), sends, f"{there.what}, backward")
    return _WayBack(exchange, size, tuple(owned), found.interior, found.first.fills)


def _without_negative_steps(
    key: tuple[slice, ...], shape: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Return a window without negative steps, which torch lacks, and which axes had them."""
    ranges = [range(n)[one] for one, n in zip(key, shape, strict=True)]
    flipped = tuple(axis for axis, r in enumerate(ranges) if r.step < 0)
    return tuple(slice(min(r, default=0), max(r, default=-1) + 1) for r in ranges), flipped


def _add_repeated(fills: tuple[Fill, ...], gradient: torch.Tensor) -> None:
    """Add to edges what the items got that repeat them; those that are constant have nothing."""
    for axis, _, target, source in reversed(fills):
        key = (slice(None),) * axis
        total = gradient[(*key, target)].sum(axis, keepdim=True)
        gradient[(*key, target)] = 0
        if source is not None:
            gradient[(*key, source)] += total


@disable_compile  # a graph of torch.compile ends where it is called
def halo(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    width: Any,
    boundary: Any = None,
    *,
    shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return this rank's block with its neighbours' edges around it (collective, differentiable).

    Parameters
    ----------
    tensor
        This rank's block, on every rank of the mesh.
    mesh
        Over whose axes the placements are.
    placements
        One per mesh axis. What is ``Partial`` is reduced first.
    width, boundary
        As of `distarray.halo`: ``{2: 1, 3: (0, 2)}`` for images whose axes 2 and 3 are cut.
    shape
        Of the global tensor. Without it the ranks tell each other the shapes of their blocks where
        an axis is sharded (which `CommLog` does not count): these may be of any sizes.

    Returns
    -------
    torch.Tensor
        Plain, with the edges around the block; where there is no boundary, without any past the
        ends of the global tensor. In the backward pass the gradient of the edges is sent to the
        blocks that they are of, in one exchange, and added there. Along mesh axes that replicate
        the tensor each rank has the gradient of its own copy.

    Raises
    ------
    ArgumentError
        A width is negative, there is no such boundary, or an axis has no items to extend it by.
    LayoutError
        The block does not fit ``shape``, or the blocks of the ranks do not fit each other.
    MismatchError
        The ranks ask for different halos, or only some need a gradient.

    Examples
    --------
    >>> def around():
    ...     block = torch.arange(2.0) + 2 * da.default_mesh().rank
    ...     return dt.halo(block, da.default_mesh(), [da.Shard(0)], 1, "periodic")
    >>> da.testing.simulate(2, around)
    [tensor([3., 0., 1., 2.]), tensor([1., 2., 3., 0.])]
    """
    refuse_transforms("what ranks send each other (dt.halo)")
    check_mesh(mesh)
    check_travels(tensor)
    told = None if shape is None else Layout(mesh, placements, shape)
    source = layout_from(tensor, mesh, placements) if told is None else told
    layout = source.without_partial()
    dtype = wire_dtype(tensor.dtype)
    if tensor.is_floating_point():  # also bfloat16, which NumPy does not know
        dtype = np.dtype(float)
    spec = read_halo("dt.halo", width, boundary, layout, dtype)
    constants = tuple(
        (None, None) if before is None else (before.item(), after.item())
        for before, after in spec.constants
    )
    needs = tensor.requires_grad and torch.is_grad_enabled()
    name = _WITH_GRADIENT if needs else "dt.halo"
    try:
        if source is not layout:
            tensor = reduce_partial(tensor, source)
        check_block(tuple(tensor.shape), layout)
    except (LayoutError, MismatchError) as error:  # which only some ranks may know
        refuse_exchange(plan_halo(name, layout, spec, tensor.dtype).first.exchange, str(error))
        raise
    result: torch.Tensor = _Halo.apply(tensor, layout, spec._replace(constants=constants), name)
    return result
