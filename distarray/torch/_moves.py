"""The differentiable bridge: from layout to layout forward, and the transpose of that backward.

A tensor is this rank's block of a global one. Its gradient is a block of the gradient of the global
tensor, with one liberty: where the tensor is ``Partial``, every rank's contribution has the same
gradient, so that the gradient is ``Replicate``; and where a replicated tensor is used differently
on each rank, as the input of a column-parallel layer is, the gradients of the uses are ``Partial``
and their sum is the gradient (`grad_placements` says so).

The backward pass of a move is a move again, and the backward pass of that is the first one: so
second derivatives need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from distarray.array._convert import tiled_layout
from distarray.comm import DeviceMesh
from distarray.comm._log import unrecorded
from distarray.errors import ArgumentTypeError, DTypeError, LayoutError, MeshError
from distarray.layout import Layout, Partial, Placement, Replicate
from distarray.redistribute._background import Handle, redistribute_async
from distarray.redistribute._execute import redistribute_local
from distarray.redistribute._ways import check_dtype
from distarray.torch._buffers import buffer_of, check_travels, tensor_of
from distarray.torch._layouts import place

_R = Replicate()


class Leg(NamedTuple):
    """One way of a move: between layouts, and what its values are multiplied by."""

    src: Layout
    dst: Layout
    scale: float = 1.0


class _Move(torch.autograd.Function):
    """Run one leg; the gradient runs the other."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, there: Leg, back: Leg) -> torch.Tensor:
        ctx.legs = back, there
        return _run(tensor, there)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _Move.apply(gradient, *ctx.legs), None, None


class _Arrival(torch.autograd.Function):
    """Take the result of a move that ran in the background."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, handle: Handle, there: Leg, back: Leg
    ) -> torch.Tensor:
        ctx.legs = back, there
        return _arrived(handle.wait(), tensor, there)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _Move.apply(gradient, *ctx.legs), None, None, None


class PendingTensor:
    """A tensor that is on its way; the source must not change before it is there."""

    __slots__ = ("_handle", "_legs", "_result", "_tensor")

    def __init__(self, tensor: torch.Tensor, there: Leg, back: Leg) -> None:
        self._tensor = tensor
        self._legs = there, back
        self._handle = redistribute_async(_source(tensor, there), there.src, there.dst)
        self._result: torch.Tensor | None = None

    def test(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._result is not None or self._handle.test()

    def wait(self) -> torch.Tensor:
        """Return the tensor, differentiable as if it had not been moved in the background."""
        if self._result is None:
            self._result = _Arrival.apply(self._tensor, self._handle, *self._legs)
            place(self._result, self._legs[0].dst)
        return self._result


def redistribute(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    src_placements: Sequence[Placement],
    dst_placements: Sequence[Placement],
    *,
    shape: Sequence[int] | None = None,
    grad_placements: Sequence[Placement] | None = None,
    async_op: bool = False,
) -> Any:
    """Return this rank's block of a tensor under other placements (collective, differentiable).

    Parameters
    ----------
    tensor
        This rank's block, on every rank of the mesh.
    mesh
        Over whose axes the placements are.
    src_placements, dst_placements
        One per mesh axis, before and after.
    shape
        Of the global tensor. Without it the ranks tell each other the shapes of their blocks
        where an axis is sharded (which `CommLog` does not count): these may be of any sizes.
    grad_placements
        How the gradient of the result arrives in the backward pass: by default as the result is
        placed, with ``Replicate`` for ``Partial``. ``Partial`` in the place of ``Replicate`` says
        that each rank uses the result for something of its own: the gradients of all are added.
    async_op
        Return at once a handle with ``wait()`` (the tensor) and ``test()``. ``tensor`` must not
        change in between.

    Returns
    -------
    torch.Tensor
        Plain; `layout_of` knows its layout. Where nothing moves it shares the memory of ``tensor``.

    Raises
    ------
    DTypeError
        A tensor that requires a gradient is reduced by another operation than sum or average.
    MismatchError
        The ranks ask for different moves.
    """
    there, back = legs(tensor, mesh, src_placements, dst_placements, shape, grad_placements)
    if async_op:
        return PendingTensor(tensor, there, back)
    return moved(tensor, there, back)


@torch._disable_dynamo
def moved(tensor: torch.Tensor, there: Leg, back: Leg) -> torch.Tensor:
    """Return a tensor moved by one leg, whose gradient moves by the other."""
    if there.src is there.dst and there.scale == 1:
        unmoved = back.src is back.dst and back.scale == 1
        if unmoved or not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
    result: torch.Tensor = _Move.apply(tensor, there, back)
    place(result, there.dst)
    return result


@torch._disable_dynamo
def legs(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    src_placements: Sequence[Placement],
    dst_placements: Sequence[Placement],
    shape: Sequence[int] | None = None,
    grad_placements: Sequence[Placement] | None = None,
) -> tuple[Leg, Leg]:
    """Return the ways of a tensor and of its gradient, checked; collective without ``shape``."""
    check_mesh(mesh)
    check_travels(tensor)
    src = layout_from(tensor, mesh, src_placements, shape)
    dst = Layout(mesh, dst_placements, src.shape)
    if src.placements == dst.placements:
        dst = src  # whatever the blocks' sizes are, they stay
    return legs_between(src, dst, grad_placements, tensor.requires_grad)


def legs_between(
    src: Layout,
    dst: Layout,
    grad_placements: Sequence[Placement] | None = None,
    requires_grad: bool = True,
) -> tuple[Leg, Leg]:
    """Return the ways between layouts, of values and of gradients."""
    arriving = dual(dst)
    if grad_placements is not None:
        arriving = dst.replace(placements=grad_placements)
        for given, own in zip(arriving.placements, dst.placements, strict=True):
            if given is not own and not isinstance(given, Partial | Replicate):
                raise LayoutError(
                    f"the gradient of {dst} cannot arrive as {arriving}: it is cut where the "
                    "tensor is; only Replicate and Partial may take each other's place"
                )
    returning = dual(src)
    ops = {p.op for layout in (src, dst, arriving) for p in layout.placements if type(p) is Partial}
    if requires_grad and not ops <= {"sum", "avg"}:
        raise DTypeError(
            f"{src} -> {dst} has no gradient: only sums and averages have. Detach the tensor, or "
            "reduce it by Partial('sum') or Partial('avg')"
        )
    scale = _averaged_over(dst) / _averaged_over(src)
    return Leg(src, dst), Leg(arriving, returning, scale)


def dual(layout: Layout) -> Layout:
    """Return the layout of the gradient: that of the tensor, with Replicate for Partial."""
    if not layout.has_partial:
        return layout
    return layout.replace(placements=[_R if type(p) is Partial else p for p in layout.placements])


def layout_from(
    tensor: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int] | None = None,
) -> Layout:
    """Return the layout of a block; collective where an axis is sharded and no shape is given."""
    local = tuple(tensor.shape)
    if shape is not None:
        layout = Layout(mesh, placements, shape)
        if layout.local_shape() != local:
            raise LayoutError(
                f"a block of shape {local} was passed where {layout} gives this rank "
                f"{layout.local_shape()}; leave shape= out for blocks of other sizes"
            )
        return layout
    draft = Layout(mesh, placements, local)
    if all(not draft.sharding_axes(axis) for axis in range(draft.ndim)):
        return draft
    told = np.array(local, np.int64)
    everyone = np.empty(mesh.size * len(local), np.int64)
    with unrecorded():
        mesh.communicator().all_gather(told, everyone)
    shapes = [tuple(map(int, row)) for row in everyone.reshape(mesh.size, -1)]
    return tiled_layout(mesh, draft.placements, shapes, None)


def check_mesh(mesh: Any) -> None:
    """Raise if this is no mesh of processes, or holds not this one."""
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(
            f"expected a DeviceMesh, not {type(mesh).__name__}; make one by da.init_device_mesh"
        )
    if mesh.coordinate is None:
        raise MeshError(f"this process is not in {mesh}; call this on the ranks of the mesh alone")


# --- running -------------------------------------------------------------------------------------


def _run(tensor: torch.Tensor, leg: Leg) -> torch.Tensor:
    return _arrived(redistribute_local(_source(tensor, leg), leg.src, leg.dst), tensor, leg)


def _source(tensor: torch.Tensor, leg: Leg) -> Any:
    """Return the buffer to move: bfloat16 becomes float32 where a Partial is made of something."""
    kept = set(leg.src.partial_axes)
    if tensor.dtype is torch.bfloat16 and not kept.issuperset(leg.dst.partial_axes):
        tensor = tensor.detach().float()
    source = buffer_of(tensor)
    check_dtype(leg.src, leg.dst, source.dtype)
    return source


def _arrived(buffer: Any, tensor: torch.Tensor, leg: Leg) -> torch.Tensor:
    if leg.src is leg.dst:
        result = tensor.view_as(tensor)
    else:
        result = tensor_of(buffer, tensor)
        if result.dtype is not tensor.dtype and tensor.is_floating_point():
            result = result.to(tensor.dtype)
    return result if leg.scale == 1 else result * leg.scale


def _averaged_over(layout: Layout) -> int:
    return prod(
        size
        for size, p in zip(layout.mesh.shape, layout.placements, strict=True)
        if type(p) is Partial and p.op == "avg"
    )
