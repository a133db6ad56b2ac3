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
        mesh = self._mesh
        ends = how.replicas or mesh.ndim == 1
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
            if not ends or mesh.ndim == 1:
                return own
            across = mesh[mesh.axis_names[:-1]]  # among the ranks that have the same shards
            src = Layout(across, [Partial(op)] * across.ndim, own.shape)
            dst = src.without_partial()
            return redistribute_local(own, src, dst, purpose=purpose, background=behind)

        follow(self._like)
        handle = run_in_background(work, alone=mesh.size == 1)
        return PendingReduction(self.members, brings if ends else None, handle, how.factor)


class PendingReduction(NamedTuple):
    """Gradients on their way; which of them there are, or None where all are carried on."""

    members: Sequence[ShardedParameter]
    given: list[bool] | None
    handle: Handle
    factor: float | None

    def wait(self) -> list[torch.Tensor | None]:
        """Return the gradients of the members' shards, None where there are none."""
        own = tensor_of(self.handle.wait())
        if self.given is None:
            return [None] * len(self.members)
        if self.factor is not None:
            own = own.mul_(1 / self.factor)
        if all(m.parameter.is_cpu for m in self.members):
            own = own.cpu()  # by one copy
        blocks = zip(self.members, cut_blocks(own, self.members), self.given, strict=True)
        return [b.to(m.parameter.device, m.parameter.dtype) if g else None for m, b, g in blocks]

    def accumulate(self) -> None:
        """Add the gradients to those of the parameters."""
        for member, found in zip(self.members, self.wait(), strict=True):
            if found is None:
                continue
            parameter: Any = member.parameter
            gradient = call_hooks(parameter, found)
            if parameter.grad is None:
                parameter.grad = gradient
                place(gradient, *member.placed)
            else:
                parameter.grad.add_(gradient)
            call_hooks_after_accumulation(parameter)


class GradientReducer:
    """Takes the gradients of the unsharded parameters of a group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.buckets: dict[tuple[bool, ...], list[tuple[GradientBucket, list[int]]]] = {}
        """By which members have gradients: buckets, and where their members are in the group."""
        self._has_unreduced = False
        self._late: set[int] = set()  # whose gradients come later than autograd asks for them
        self._passes = 0

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
        group = self._group
        self._late.clear()
        for member in group.members:
            guard_hooks(member.parameter, self._late)
        if not is_for_all_leaves(anchor):
            return self.reduce_now(gradients)
        # As autograd does with those that were frozen after the forward pass.
        gradients = [
            gradient if member.parameter.requires_grad else None
            for member, gradient in zip(group.members, gradients, strict=True)
        ]
        at_once = group.syncing and group.mesh.size == 1
        own = self._convert(gradients) if at_once else [None] * len(gradients)
        pairs = zip(group.members, own, strict=True)
        self._late.update(id(m.parameter) for m, gradient in pairs if gradient is None)
        backward = group.context.current_backward()
        backward.join(group)
        later = not group.syncing or backward.is_nested
        if not at_once:
            self._keep_unreduced(gradients, copied=not group.syncing)
            if later or not group.replicas_sync:
                group.context.defer(group)
            if not later:
                self._start_reduction()
        if not later and not group.ends_with_inputs:
            backward.post_backward(group)
        return own

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
            self._start_reduction()
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

    def _start_reduction(self) -> None:
        """Start to reduce what is kept unreduced (collective)."""
        group = self._group
        how = Reduction(group.factor, group.replicas_sync)
        for reduction, _ in self._start(self._take_unreduced(), how):
            group.context.add_pending(reduction)

    def reduce_now(self, gradients: Gradients) -> Gradients:
        """Return the gradients of the shards (collective); nothing is added to those there are."""
        found: list[torch.Tensor | None] = [None] * len(gradients)
        for reduction, positions in self._start(
            gradients, Reduction(self._group.factor, alone=True)
        ):
            for position, gradient in zip(positions, reduction.wait(), strict=True):
                found[position] = gradient
        return found

    def _start(
        self, gradients: Gradients, how: Reduction
    ) -> list[tuple[PendingReduction, list[int]]]:
        """Start to reduce gradients, by the dtype in which they travel, of members at positions.

        They are those of members that require them, others for which there is one, and those of
        which earlier passes have left some to carry on.
        """
        self._passes += 1
        group, deferred = self._group, how.replicas and not how.alone
        what = f"{group.name}, backward {self._passes} after {group.calls} calls in training"
        missing = [repr(m.path) for m, g in zip(group.members, gradients, strict=True) if g is None]
        if missing:
            what += f", with none of {list_names(missing)}"
        if how.factor is not None:
            what += f", divided by {how.factor:g}"
        needed = tuple(
            m.parameter.requires_grad or g is not None or (deferred and m.is_deferred)
            for m, g in zip(group.members, gradients, strict=True)
        )
        if needed not in self.buckets:
            self.buckets[needed] = self._make_buckets(needed)
        return [
            (bucket.start([gradients[i] for i in positions], how, what), positions)
            for bucket, positions in self.buckets[needed]
        ]

    def _make_buckets(self, needed: Sequence[bool]) -> list[tuple[GradientBucket, list[int]]]:
        group = self._group
        kinds: dict[torch.dtype, list[int]] = {}
        for i in (i for i, is_needed in enumerate(needed) if is_needed):
            own = group.members[i].parameter.dtype
            dtype = group.policy.reduce_dtype if own.is_floating_point else None
            kinds.setdefault(dtype or group.policy.dtype_of(own), []).append(i)
        return [
            (GradientBucket([group.members[i] for i in at], group.mesh, dtype, group.device), at)
            for dtype, at in kinds.items()
        ]
