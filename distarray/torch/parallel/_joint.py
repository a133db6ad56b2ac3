"""One reduction for the gradients of all modules that use a replicated tensor differently by rank.

Query, key and value projections that are cut by columns each need the same input, whole. Alone,
each adds up its gradient over the ranks. Where the input was prepared here, their gradients are
first added on each rank, and then go back together, straight to where the input came from: one
reduce-scatter for an input that had been gathered.

Beside the prepared tensor there is a handle, a second output of the same move without values. Uses
that differ by rank send their gradients to the handle, all other uses (a residual connection, a
module that is not parallel) to the tensor, by autograd's own bookkeeping. Both arrive at the
source, so that no gradient is reduced twice or not at all, whatever the tensor is used for.

What the tensor itself receives is then not its whole gradient. So where somebody could see that, in
``torch.autograd.grad``, by a hook on the tensor or by ``retain_grad``, uses reduce their gradients
at once and send them to the tensor after all. (Hooks on its ``grad_fn`` are not noticed.)
"""

from __future__ import annotations

import weakref
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

import torch

from distarray.comm import DeviceMesh
from distarray.layout import Layout, Partial
from distarray.torch import _moves
from distarray.torch._anchor import ANCHOR, is_for_all_leaves
from distarray.torch._compat import hooks_of, version
from distarray.torch._layouts import Beside
from distarray.torch._legs import Leg


@dataclass(frozen=True, slots=True)
class _Joint:
    """What is beside a prepared tensor: the handle, and how to notice who looks at it."""

    layout: Layout
    handle: torch.Tensor
    tensor: weakref.ref[torch.Tensor]
    version: int
    hooks: Sized

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has still the values that the handle stands for."""
        return version(tensor) == self.version

    def is_unseen(self) -> bool:
        """Whether nobody can tell in this backward pass what the tensor receives."""
        if not is_for_all_leaves():
            return False
        tensor = self.tensor()
        return not len(self.hooks) and (tensor is None or not tensor.retains_grad)


_joints: Beside[_Joint] = Beside()


class _Handle(torch.autograd.Function):
    """Return a tensor without values; its gradient is moved to the source."""

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, _: torch.Tensor, shape: torch.Size, there: Leg, back: Leg
    ) -> torch.Tensor:
        ctx.legs = back, there
        return _hollow(source, shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return _moves.moved(gradient, *ctx.legs), None, None, None, None


class _Use(torch.autograd.Function):
    """Return a prepared tensor as it is; its gradients, which differ by rank, go to the handle."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, _: torch.Tensor, joint: _Joint) -> torch.Tensor:
        ctx.joint = joint
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        joint = ctx.joint
        if joint.is_unseen():
            return None, gradient, None
        whole = joint.layout
        apart = whole.replace(placements=[Partial()])
        return _moves.moved(gradient, *_moves.legs_between(apart, whole)), None, None


def prepared(tensor: torch.Tensor, there: Leg, back: Leg) -> torch.Tensor:
    """Return a tensor moved to where it is replicated on a mesh of one axis.

    Column-parallel modules that use the result itself reduce their gradients together.
    """
    result = _moves.moved(tensor, there, back)
    if not result.requires_grad or not torch.is_grad_enabled():
        return result
    if result is tensor:
        result = _moves.moved(tensor.view_as(tensor), there, back)
    _, together = _moves.legs_between(there.src, there.dst, [Partial()])
    handle = _Handle.apply(tensor, ANCHOR, result.shape, there, together)
    result.register_hook(_nothing).remove()  # so that there is a dictionary of hooks to watch
    hooks: Sized = hooks_of(result)
    joint = _Joint(there.dst, handle, weakref.ref(result), version(result), hooks)
    _joints.set(result, joint)
    return result


def used_apart(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor | None:
    """Return a prepared tensor for a use that differs by rank; None for any other tensor."""
    joint = _joints.get(tensor)
    if joint is None or joint.layout.mesh is not mesh or not joint.holds(tensor):
        return None
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return tensor
    result: torch.Tensor = _Use.apply(tensor, joint.handle, joint)
    return result


def _hollow(like: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return like.new_zeros(1).as_strided(shape, (0,) * len(shape))


def _nothing(_: torch.Tensor) -> None:
    return None
