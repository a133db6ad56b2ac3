"""What becomes of the gradients of a group's wholes: kept for later, or reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.torch._anchor import is_for_all_leaves
from distarray.torch.fsdp import _hooks
from distarray.torch.fsdp._context import Context, Member
from distarray.torch.fsdp._gradients import (
    Carried,
    Flight,
    GradientBundle,
    Gradients,
    Reduction,
)
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.torch.fsdp._policies import MixedPrecisionPolicy
from distarray.torch.training._norms import listed

_Bundles = list[tuple[GradientBundle, list[int]]]
"""Bundles, and the positions of their members in the group."""


class Settings(Member, Protocol):
    """What a group says of its gradients."""

    members: list[ShardedParameter]
    mesh: DeviceMesh
    policy: MixedPrecisionPolicy
    name: str
    context: Context | None
    syncing: bool
    replicas_sync: bool
    factor: float | None
    ends_with_inputs: bool
    calls: int


class Receiver:
    """Takes the gradients of the wholes of a group.

    Parameters
    ----------
    group
        Which.
    device
        Where its module computes.
    """

    def __init__(self, group: Settings, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._members: Sequence[ShardedParameter] = group.members
        self._bundles: dict[tuple[bool, ...], _Bundles] = {}
        """By which parameters have gradients."""
        self._carried = Carried()
        self._kept: list[torch.Tensor | None] = []
        """Gradients of wholes that have not been reduced."""
        self._late: set[int] = set()
        """The ids of parameters whose gradients come later than autograd asks for them."""
        self._passes = 0
        self._is_alone = group.mesh.size == 1

    def restart(self, members: Sequence[ShardedParameter], device: torch.device) -> None:
        """Follow parameters that are others now, elsewhere, or in another order."""
        if self._kept:
            kept = dict(zip(map(id, self._members), self._kept, strict=True))
            self._kept = [kept[id(member)] for member in members]
        self._members = members
        self._device = device
        self._bundles = {}

    def abandon(self) -> None:
        """Forget what a backward pass that failed has left."""
        if self._group.syncing:
            self._kept = []

    def forget(self) -> None:
        """Forget what is kept for later passes."""
        self._kept = []
        self._carried.clear()

    def receive(self, gradients: Gradients) -> Gradients:
        """Take the gradients of the wholes; return those of the shares, None for later ones."""
        if torch.is_grad_enabled():
            raise ArgumentError(
                f"{self._group.name}: gradients of sharded parameters cannot be differentiated "
                "again (create_graph=True); use replicate, or unsharded parameters, for that"
            )
        nothing: Gradients = [None] * len(gradients)
        context = self._group.context
        assert context is not None  # it has been used in forward
        self._late.clear()
        for member in self._members:
            _hooks.guard(member.parameter, self._late)
        if not is_for_all_leaves():
            return self.reduced_now(gradients)
        own = self._own(gradients) if self._is_alone and self._group.syncing else nothing
        pairs = zip(self._members, own, strict=True)
        self._late.update(id(m.parameter) for m, gradient in pairs if gradient is None)
        backward = context.backward()
        backward.met(self._group)
        later = not self._group.syncing or backward.is_nested
        if self._is_alone and self._group.syncing:
            if not backward.is_nested and not self._group.ends_with_inputs:
                backward.done(self._group)
            return own
        self._keep(gradients, copied=not self._group.syncing)
        if later or not self._group.replicas_sync:
            context.owes(self._group)
        if later:
            return nothing
        gradients, self._kept = self._kept, []
        self._send(gradients)
        if not self._group.ends_with_inputs:
            backward.done(self._group)
        return nothing

    def _own(self, gradients: Gradients) -> Gradients:
        """Return the gradients of the shares where these are everything: autograd adds them up."""
        if self._kept:
            self._keep(gradients, copied=False)
            gradients, self._kept = self._kept, []
        group = self._group
        found: list[torch.Tensor | None] = []
        for member, gradient in zip(self._members, gradients, strict=True):
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
        if self._kept or (self._carried and self._group.replicas_sync):
            gradients, self._kept = self._kept or [None] * len(self._members), []
            self._send(gradients)
        return bool(self._carried)

    def _keep(self, gradients: Gradients, *, copied: bool) -> None:
        """Add gradients to those that were kept, in the dtype in which they are reduced.

        Those that stay beyond this pass are copied: they may be tensors of the user's.
        """
        if not self._kept:
            self._kept = [None] * len(gradients)
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            kept = self._kept[i]
            if kept is not None:
                self._kept[i] = kept + gradient.to(kept.dtype)
            elif copied:
                dtype = self._group.policy.reduce_dtype or gradient.dtype
                self._kept[i] = gradient.detach().to(dtype, copy=True)
            else:
                self._kept[i] = gradient  # converted while it is packed

    def _send(self, gradients: Gradients) -> None:
        assert self._group.context is not None  # it has been used in forward
        how = Reduction(self._group.factor, self._group.replicas_sync)
        bundles = self._by_dtype(gradients, carried=how.replicas)
        for flight in self._flights(bundles, gradients, how):
            self._group.context.take_off(flight)

    def reduced_now(self, gradients: Gradients) -> Gradients:
        """Return the gradients of the shares (collective); nothing is added to those there are."""
        found: list[torch.Tensor | None] = [None] * len(gradients)
        how = Reduction(self._group.factor, alone=True)
        bundles = self._by_dtype(gradients)
        flights = self._flights(bundles, gradients, how)
        for (_, positions), flight in zip(bundles, flights, strict=True):
            for position, gradient in zip(positions, flight.land(), strict=True):
                found[position] = gradient
        return found

    def _flights(self, bundles: _Bundles, gradients: Gradients, how: Reduction) -> list[Flight]:
        self._passes += 1
        group = self._group
        what = f"{group.name}, backward {self._passes} after {group.calls} calls in training"
        pairs = zip(self._members, gradients, strict=True)
        missing = [repr(member.path) for member, gradient in pairs if gradient is None]
        if missing:
            what += f", with none of {listed(missing)}"
        return [
            bundle.start([gradients[i] for i in positions], how, what)
            for bundle, positions in bundles
        ]

    def _by_dtype(self, gradients: Gradients, *, carried: bool = False) -> _Bundles:
        """Return the parameters that have gradients by the dtype in which these travel.

        They are those that require them, others for which there is one in `gradients`, and those
        that have some `carried` on.
        """
        needed = tuple(
            m.parameter.requires_grad or g is not None or (carried and m in self._carried)
            for m, g in zip(self._members, gradients, strict=True)
        )
        found = self._bundles.get(needed)
        if found is None:
            kinds: dict[torch.dtype, list[int]] = {}
            for i, member in enumerate(self._members):
                if needed[i]:
                    dtype = self._group.policy.reduce_dtype
                    if dtype is None or not member.parameter.dtype.is_floating_point:
                        dtype = self._group.policy.dtype_of(member.parameter.dtype)
                    kinds.setdefault(dtype, []).append(i)
            found = self._bundles[needed] = [
                (
                    GradientBundle(
                        [self._members[i] for i in at],
                        self._group.mesh,
                        dtype,
                        self._device,
                        self._carried,
                    ),
                    at,
                )
                for dtype, at in kinds.items()
            ]
        return found
