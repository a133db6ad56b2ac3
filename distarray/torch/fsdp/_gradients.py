"""Gradients of unsharded parameters become gradients of shards: kept for later, or reduced.

They are packed, reduced, and added to what is there: outside of autograd, later than it looks for
them. The user's hooks of shards see gradients when these are there, and see nothing before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import ArgumentError
from distarray.layout import Layout, Partial
from distarray.redistribute import Handle, Packed, redistribute_local, run_in_background
from distarray.torch._backward import (
    call_hooks,
    call_hooks_after_accumulation,
    guard_hooks,
    is_for_all_leaves,
    pack_gradients,
)
from distarray.torch._buffers import empty, follow, tensor_of
from distarray.torch._layouts import place
from distarray.torch.fsdp._parameter import ShardedParameter, cut_blocks
from distarray.torch.training import list_names
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.torch.fsdp._group import Group

Gradients = Sequence[torch.Tensor | None]


class Reduction(NamedTuple):
    """How gradients are reduced."""

    factor: float | None = None  # that divides sums; None for the number of ranks
    replicas: bool = True  # among the ranks that have the same shards, too
    alone: bool = False  # without what earlier passes have left to carry on


class GradientBucket:
    """Parameters whose gradients travel together, in one dtype."""

    def __init__(
        self, members: Sequence[ShardedParameter], mesh: DeviceMesh, dtype: torch.dtype, device: Any
    ) -> None:
        self.members = list(members)
        self._mesh = mesh
        self._packed = Packed(mesh, [m.layout for m in members], [m.stride for m in members])
        self._like = torch.empty(0, dtype=dtype, device=device)

    def start(self, gradients: Gradients, how: Reduction, what: str) -> PendingReduction:
        """Start to reduce gradients (collective), which must stay as they are.

        A member whose gradient is None on all ranks stays without; the others know by ``what``.
        """
        purpose = Purpose.of(f"{len(self.members)} gradients of {what}")
        op = "avg" if how.factor is None else "sum"
        held = list(gradients)
        brings = [g is not None for g in gradients]
        ends = how.replicas or self._mesh.ndim == 1
        if not how.alone:
            for i, member in enumerate(self.members):
                brings[i] = brings[i] or member.is_deferred
                member.is_deferred = brings[i] and not ends

        def work(behind: bool) -> Buffer:
            full = empty(self._packed.total, self._like)
            pack_gradients(held, self._packed.wholes(full))
            held.clear()
            own = self._packed.reduce(full, op, purpose, background=behind)
            del full
            if not how.alone:
                blocks = zip(
                    self.members, cut_blocks(tensor_of(own), self.members), brings, strict=True
                )
                for member, block, is_there in blocks:
                    left, member.deferred = member.deferred, None
                    if left is not None:
                        block.add_(left.to(block.device, block.dtype))
                    if is_there and not ends:
                        member.deferred = block
            return self._among_replicas(own, op, purpose, behind) if ends else own

        follow(self._like)
        return PendingReduction(
            self, brings if ends else None, run_in_background(work, alone=self._mesh.size == 1), how
        )

    def split(self, own: torch.Tensor, how: Reduction) -> list[torch.Tensor]:
        """Return the gradients of the shards in a reduced buffer."""
        if how.factor is not None:
            own = own.mul_(1 / how.factor)
        if all(m.parameter.is_cpu for m in self.members):
            own = own.cpu()  # by one copy
        blocks = zip(self.members, cut_blocks(own, self.members), strict=True)
        return [block.to(m.parameter.device, m.parameter.dtype) for m, block in blocks]

    def _among_replicas(self, own: Buffer, op: str, purpose: Purpose, background: bool) -> Buffer:
        """Reduce among the ranks that have the same shards."""
        mesh = self._mesh
        if mesh.ndim == 1:
            return own
        across = mesh[mesh.axis_names[:-1]]
        src = Layout(across, [Partial(op)] * across.ndim, own.shape)
        dst = src.without_partial()
        return redistribute_local(own, src, dst, purpose=purpose, background=background)


class PendingReduction(NamedTuple):
    """Gradients on their way; which of them there are, or None where all are carried on."""

    bucket: GradientBucket
    given: list[bool] | None
    handle: Handle
    how: Reduction

    def wait(self) -> list[torch.Tensor | None]:
        """Return the gradients of the members' shards, None where there are none."""
        own = tensor_of(self.handle.wait())
        if self.given is None:
            return [None] * len(self.bucket.members)
        found = self.bucket.split(own, self.how)
        return [g if given else None for g, given in zip(found, self.given, strict=True)]

    def accumulate(self) -> None:
        """Add the gradients to those of the parameters."""
        for member, gradient in zip(self.bucket.members, self.wait(), strict=True):
            if gradient is not None:
                _accumulate(member, gradient)


def _accumulate(member: ShardedParameter, gradient: torch.Tensor) -> None:
    parameter: Any = member.parameter
    gradient = call_hooks(parameter, gradient)
    if parameter.grad is None:
        parameter.grad = gradient
        place(gradient, *member.placed)
    else:
        parameter.grad.add_(gradient)
    call_hooks_after_accumulation(parameter)


_Buckets = list[tuple[GradientBucket, list[int]]]
"""Buckets, and the positions of their members in the group."""


class GradientReducer:
    """Takes the gradients of the unsharded parameters of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.buckets: dict[tuple[bool, ...], _Buckets] = {}  # by which have gradients
        self._has_unreduced = False
        self._late: set[int] = set()  # whose gradients come later than autograd asks for them
        self._passes = 0
        self._is_alone = group.mesh.size == 1

    def abandon(self) -> None:
        """Forget what a backward pass that failed has left."""
        if self._group.syncing:
            self._take_unreduced()

    def forget(self) -> None:
        """Forget what is kept for later passes; nothing may be on its way."""
        self._take_unreduced()
        for member in self._group.members:
            member.is_deferred, member.deferred = False, None

    def _take_unreduced(self) -> Gradients:
        """Return the gradients that are kept unreduced, which are not kept any more."""
        members = self._group.members
        found = [member.unreduced for member in members]
        for member in members:
            member.unreduced = None
        self._has_unreduced = False
        return found

    def reduce(self, gradients: Gradients, anchor: torch.Tensor) -> Gradients:
        """Take gradients of unsharded parameters; return those of shards, None for later ones.

        The graph hangs on ``anchor``.
        """
        if torch.is_grad_enabled():
            raise ArgumentError(
                f"{self._group.name}: gradients of sharded parameters cannot be differentiated "
                "again (create_graph=True); use replicate, or unsharded parameters, for that"
            )
        nothing: Gradients = [None] * len(gradients)
        context = self._group.context
        assert context is not None  # it has been used in forward
        self._late.clear()
        for member in self._group.members:
            guard_hooks(member.parameter, self._late)
        if not is_for_all_leaves(anchor):
            return self.reduce_now(gradients)
        # As autograd does with those that were frozen after the forward pass.
        gradients = [
            gradient if member.parameter.requires_grad else None
            for member, gradient in zip(self._group.members, gradients, strict=True)
        ]
        own = self._convert(gradients) if self._is_alone and self._group.syncing else nothing
        pairs = zip(self._group.members, own, strict=True)
        self._late.update(id(m.parameter) for m, gradient in pairs if gradient is None)
        backward = context.current_backward()
        backward.join(self._group)
        later = not self._group.syncing or backward.is_nested
        if self._is_alone and self._group.syncing:
            if not backward.is_nested and not self._group.ends_with_inputs:
                backward.post_backward(self._group)
            return own
        self._keep_unreduced(gradients, copied=not self._group.syncing)
        if later or not self._group.replicas_sync:
            context.defer(self._group)
        if later:
            return nothing
        self._start_reduction(self._take_unreduced())
        if not self._group.ends_with_inputs:
            backward.post_backward(self._group)
        return nothing

    def _convert(self, gradients: Gradients) -> Gradients:
        """Return the gradients of the shards where these are everything: autograd adds them up."""
        if self._has_unreduced:
            self._keep_unreduced(gradients, copied=False)
            gradients = self._take_unreduced()
        group = self._group
        found: list[torch.Tensor | None] = []
        for member, gradient in zip(self._group.members, gradients, strict=True):
            if gradient is not None:
                own = member.parameter
                reduced = gradient.to(group.policy.reduce_dtype or gradient.dtype)
                gradient = reduced.to(own.device, own.dtype)
                if group.factor is not None:
                    gradient = gradient / group.factor
            found.append(gradient)
        return found

    def flush(self) -> bool:
        """Reduce what has been kept (collective), unless it is for a later pass.

        Return whether there is anything for a later pass.
        """
        if not self._group.syncing:
            return True
        members = self._group.members
        if self._has_unreduced or (
            self._group.replicas_sync and any(m.is_deferred for m in members)
        ):
            self._start_reduction(self._take_unreduced())
        return any(m.is_deferred for m in members)

    def _keep_unreduced(self, gradients: Gradients, *, copied: bool) -> None:
        """Add gradients to those that were kept, in the dtype in which they are reduced.

        Those that stay beyond this pass are copied: they may be tensors of the user's.
        """
        self._has_unreduced = True
        for member, gradient in zip(self._group.members, gradients, strict=True):
            if gradient is None:
                continue
            kept = member.unreduced
            if kept is not None:
                member.unreduced = kept + gradient.to(kept.dtype)
            elif copied:
                dtype = self._group.policy.reduce_dtype or gradient.dtype
                member.unreduced = gradient.detach().to(dtype, copy=True)
            else:
                member.unreduced = gradient  # converted while it is packed

    def _start_reduction(self, gradients: Gradients) -> None:
        assert self._group.context is not None  # it has been used in forward
        how = Reduction(self._group.factor, self._group.replicas_sync)
        buckets = self._by_dtype(gradients, deferred=how.replicas)
        for reduction in self._start(buckets, gradients, how):
            self._group.context.add_pending(reduction)

    def reduce_now(self, gradients: Gradients) -> Gradients:
        """Return the gradients of the shards (collective); nothing is added to those there are."""
        found: list[torch.Tensor | None] = [None] * len(gradients)
        how = Reduction(self._group.factor, alone=True)
        buckets = self._by_dtype(gradients)
        pending = self._start(buckets, gradients, how)
        for (_, positions), reduction in zip(buckets, pending, strict=True):
            for position, gradient in zip(positions, reduction.wait(), strict=True):
                found[position] = gradient
        return found

    def _start(
        self, buckets: _Buckets, gradients: Gradients, how: Reduction
    ) -> list[PendingReduction]:
        self._passes += 1
        group = self._group
        what = f"{group.name}, backward {self._passes} after {group.calls} calls in training"
        pairs = zip(self._group.members, gradients, strict=True)
        missing = [repr(member.path) for member, gradient in pairs if gradient is None]
        if missing:
            what += f", with none of {list_names(missing)}"
        if how.factor is not None:
            what += f", divided by {how.factor:g}"
        return [
            bucket.start([gradients[i] for i in positions], how, what)
            for bucket, positions in buckets
        ]

    def _by_dtype(self, gradients: Gradients, *, deferred: bool = False) -> _Buckets:
        """Return the parameters that have gradients by the dtype in which these travel.

        They are those that require them, others for which there is one in `gradients`, and those
        that have some `deferred`.
        """
        needed = tuple(
            m.parameter.requires_grad or g is not None or (deferred and m.is_deferred)
            for m, g in zip(self._group.members, gradients, strict=True)
        )
        found = self.buckets.get(needed)
        if found is None:
            kinds: dict[torch.dtype, list[int]] = {}
            group = self._group
            for i, member in enumerate(group.members):
                if needed[i]:
                    dtype = group.policy.reduce_dtype
                    if dtype is None or not member.parameter.dtype.is_floating_point:
                        dtype = group.policy.dtype_of(member.parameter.dtype)
                    kinds.setdefault(dtype, []).append(i)
            found = self.buckets[needed] = [
                (
                    GradientBucket([group.members[i] for i in at], group.mesh, dtype, group.device),
                    at,
                )
                for dtype, at in kinds.items()
            ]
        return found
