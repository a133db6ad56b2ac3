"""Unsharded parameters as autograd sees them: where they come from, and what it saves of them.

The node is reached when all gradients of a group are there. What autograd saves of an unsharded
parameter is where it was, not its memory, so that this can go after the forward pass and come again
for the backward pass. Whoever else holds one keeps its memory alive, and never finds it gone.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from distarray.errors import ModifiedError
from distarray.torch import _compat
from distarray.torch._saved_tensors import Geometry
from distarray.torch.fsdp._bucket import Bucket
from distarray.torch.fsdp._parameter import ShardedParameter

if TYPE_CHECKING:
    from distarray.torch.fsdp._group import Group


class Unshard(torch.autograd.Function):
    """Hand out a group's unsharded parameters; take their gradients all at once."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, anchor: torch.Tensor, *_: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.group, ctx.anchor = group, anchor
        ctx.set_materialize_grads(False)
        unsharded = tuple(group.view_unsharded())
        needed = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(
            *(w for w, need in zip(unsharded, needed, strict=True) if not need)
        )
        return unsharded

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None, None, *ctx.group.reducer.reduce(gradients, ctx.anchor)


gathered: weakref.WeakValueDictionary[int, Bucket] = weakref.WeakValueDictionary()
"""Those that are there, of this process, by the key of their memory."""


class _Saved(NamedTuple):
    """A view of a whole."""

    group: Group
    bucket: Bucket
    dtype: torch.dtype
    geometry: Geometry
    member: ShardedParameter
    version: tuple[int, int]

    def __call__(self) -> torch.Tensor:
        self.group.ensure_unsharded()
        if self.member.version != self.version or self.bucket.full is None:
            raise ModifiedError(
                f"parameter {self.member.path!r}, which the backward pass needs, has changed since "
                "the forward pass: call backward before optimizer.step()"
            )
        return self.bucket.view(self.dtype, self.geometry)


def view_of_unsharded(tensor: torch.Tensor) -> _Saved | None:
    """Return where a view of a whole is; None for other tensors."""
    if tensor.layout is not torch.strided:
        return None
    bucket = gathered.get(_compat.memory_key(tensor))
    group = None if bucket is None else bucket.group()
    if bucket is None or group is None:
        return None
    geometry = Geometry.of(tensor)
    return _Saved(group, bucket, tensor.dtype, geometry, *bucket.find_member(geometry.offset))
