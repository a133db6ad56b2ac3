"""Parameters that are gathered and reduced together: those of one call of `fully_shard`.

Its states: *sharded*; *on its way*, while a gathering runs in the background; *unsharded*. After
the forward pass what is kept may be the shard of a smaller group of ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh, list_first
from distarray.errors import ArgumentError, ArgumentTypeError, ModifiedError
from distarray.redistribute import Handle
from distarray.torch._backward import make_anchor
from distarray.torch._compat import is_going_backward, memory_key, version
from distarray.torch.fsdp._autograd import Unshard, gathered
from distarray.torch.fsdp._bucket import Bucket, ExtendedBucket, PostAllGather, PreAllGather
from distarray.torch.fsdp._context import Context
from distarray.torch.fsdp._gradients import GradientReducer
from distarray.torch.fsdp._hooks import watch_modules
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.torch.fsdp._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy


class Group:
    """Sharded parameters that come and go together."""

    def __init__(
        self,
        members: Sequence[ShardedParameter],
        mesh: DeviceMesh,
        policy: MixedPrecisionPolicy,
        offload: OffloadPolicy,
        reshard_after_forward: bool | int | None,
        device: torch.device,
        name: str,
    ) -> None:
        self.members = list(members)
        self.mesh = mesh
        self.policy = policy
        self.name = name  # the path of the module, for errors
        self.device = device
        self.context = Context()  # of the last call
        self._offload = offload
        self._buckets: list[Bucket] = []
        self.set_reshard_after_forward(reshard_after_forward)
        self.reshard_after_backward = True
        self.unshard_in_backward = True  # at its beginning, or when first needed
        self.syncing = True  # gradients are reduced, or kept for a later pass
        self.replicas_sync = True  # the same, among replicas
        self.factor: float | None = None  # that divides sums of gradients; the number of ranks
        # Groups to gather while this one computes; None for those that came next the last time.
        self.forward_prefetch: list[Group] | None = None
        self.backward_prefetch: list[Group] | None = None
        self._handles: list[Handle] | None = None
        self.is_unsharded = False
        self.held: list[torch.Tensor] | None = None  # by modules; None where these are shards
        self._seen: list[int] = []
        # The unsharded parameters as autograd knows them, until their gradients are there.
        self._traced: list[torch.Tensor] | None = None
        self._traced_for: tuple[tuple[int, bool], ...] = ()
        self._emptied = False
        self.reducer = GradientReducer(self)
        self.is_outermost = False  # the last call was inside of no call of another sharded module
        self.depth = 0  # of calls of its modules, one inside of the other
        self.ends_with_inputs = False  # backward needs them until gradients of inputs are there
        self.calls = 0  # for training: ranks out of step notice by it
        watch_modules(self)

    def set_reshard_after_forward(self, value: bool | int | None) -> None:
        """Set what is kept after forward: nothing more, all, or the shard of a smaller group."""
        check_reshard_after_forward(value)
        self.reshard_after_forward = None if value is None else bool(value)
        self._smaller: DeviceMesh | None = None
        if not isinstance(value, bool | None) and value < self.mesh.shape[-1]:
            # The consecutive ranks along the last mesh axis that this one shards with.
            (*others, own) = self.mesh.coordinate or ()
            first = own // value * value
            positions = range(first, min(first + value, self.mesh.shape[-1]))
            ranks = [self.mesh.rank_at((*others, position)) for position in positions]
            self._smaller = DeviceMesh(
                ranks, ("after_forward",), comm=self.mesh._base, device=self.mesh.device
            )
        for bucket in self._buckets:
            bucket.keep_pieces_among(self._smaller)

    @property
    def reshards_after_forward(self) -> bool:
        """Whether the unsharded parameters go when the forward pass under way has used them.

        The backward pass begins with the outermost group, so that it is not worth its while to go.
        """
        if not torch.is_grad_enabled():
            return True
        goes = self.reshard_after_forward
        return not self.is_outermost if goes is None else goes

    # --- gathering -------------------------------------------------------------------------------

    def start_unshard(self) -> None:
        """Begin to gather in the background, unless the parameters are there or on their way."""
        self._refresh()
        if not self.is_unsharded and self._handles is None:
            # Where they are needed at once, too: so ranks that are out of step meet in different
            # calls, one after another, and do not wait for each other in two places.
            self._handles = [b.gather(self.name) for b in self._buckets]

    def unshard(self) -> None:
        """Gather the parameters unless they are there, of the values that the shards have now."""
        self.start_unshard()
        self._finish_unshard()

    def ensure_unsharded(self) -> None:
        """Gather the unsharded parameters unless they are there."""
        if not self.is_unsharded and self._handles is None:
            self.start_unshard()
        self._finish_unshard()

    def _finish_unshard(self) -> None:
        handles, self._handles = self._handles, None
        if handles is None:  # they are there
            return
        for bucket, handle in zip(self._buckets, handles, strict=True):
            bucket.arrive(handle.wait())
            gathered[memory_key(bucket.full)] = bucket  # type: ignore[arg-type]
        self.is_unsharded = True
        if self._traced is not None and self._emptied:
            for traced, whole in zip(self._traced, self.view_unsharded(), strict=True):
                traced.data = whole
            self._emptied = False
        if is_going_backward():  # at the end of which it has to go
            self.context.current_backward().join(self)

    def reshard(self, *, after_forward: bool = False) -> None:
        """Let the unsharded parameters go."""
        if self._handles is not None:  # gathered for nothing
            self.ensure_unsharded()
        if not self.is_unsharded:
            return
        self.hold_shards()
        for bucket in self._buckets:
            gathered.pop(memory_key(bucket.full), None)  # type: ignore[arg-type]
            bucket.drop(keep_piece=after_forward)
        self.is_unsharded = False
        if self._traced is None:
            return
        if after_forward:
            for traced in self._traced:
                traced.data = traced.new_empty(0)
            self._emptied = True
        else:
            self._traced = None

    def adopt_replaced(self) -> None:
        """Take the parameters that modules hold, should they be others by now."""
        if self.held is None:
            for member in self.members:
                member.adopt()
            return
        for member, whole in zip(self.members, self.held, strict=True):
            if member.held is not whole:
                member.refuse_held()

    def _refresh(self) -> None:
        """Follow parameters that have been replaced, converted or changed in value."""
        self.adopt_replaced()
        if not self._buckets or not all(b.fits for b in self._buckets):
            self._make_buckets()
        elif (self.is_unsharded or self._handles) and not all(b.is_current for b in self._buckets):
            self.reshard()

    def _make_buckets(self) -> None:
        self.reshard()
        kinds: dict[Any, list[ShardedParameter]] = {}
        for member in self.members:
            own = None if member.extension is None else id(member)
            kinds.setdefault((own, member.parameter.dtype), []).append(member)
        offload = self._offload
        pinned = False
        if isinstance(offload, CPUOffloadPolicy):
            pinned = offload.pin_memory and self.device.type == "cuda"
        else:
            self.device = self.members[0].parameter.device  # where the module has been moved to
        how = weakref.ref(self), self.mesh, self._smaller, self.device, pinned
        self._buckets = [
            (Bucket if own is None else ExtendedBucket)(found, self.policy.dtype_of(dtype), *how)
            for (own, dtype), found in kinds.items()
        ]
        self.members = [m for b in self._buckets for m in b.members]
        self.reducer.buckets = {}  # which follow parameters that are others now, elsewhere
        self._traced = None

    def set_extension(
        self, module: nn.Module, name: str, extension: tuple[PreAllGather, PostAllGather]
    ) -> None:
        """Let a parameter travel in another form from now on."""
        self.reshard()
        for member in self.members:
            if any(holder is module and n == name for holder, n in member.slots):
                member.extension = extension
                self._buckets = []
                return
        raise ArgumentError(
            f"{name!r} is no parameter that {self.name} shards; it has "
            f"{list_first([m.path for m in self.members])}"
        )

    # --- what modules see ------------------------------------------------------------------------

    def hold_unsharded(self) -> None:
        """Let modules hold the unsharded parameters, as autograd is to know them."""
        if not torch.is_grad_enabled():
            self.hold(self.view_unsharded())
            return
        needed = tuple((id(m.parameter), m.parameter.requires_grad) for m in self.members)
        if self._traced is None or self._traced_for != needed:
            shards = [m.parameter for m in self.members]
            tracked = any(shard.requires_grad for shard in shards)
            found = Unshard.apply(self, make_anchor(), *shards) if tracked else None
            self._traced = self.view_unsharded() if found is None else list(found)
            self._traced_for = needed
        self.hold(self._traced)

    def hold(self, tensors: list[torch.Tensor]) -> None:
        """Let modules hold tensors in the place of the parameters."""
        for member, whole in zip(self.members, tensors, strict=True):
            member.hold(whole)
        self.held = tensors
        self._seen = list(map(version, tensors))

    def hold_for_recomputation(self) -> None:
        """Let modules hold the unsharded parameters (collective), unless they hold some.

        For what is computed anew in a backward pass, with the values that it was computed of.
        """
        if self.held is not None:
            return
        if not self._buckets:
            raise ArgumentError(
                f"{self.name}: its parameters are read inside of a backward pass (a region of "
                "torch.utils.checkpoint is computed again), and have never been whole; outside of "
                "calls of sharded modules read parameters outside of the checkpoint"
            )
        if not all(b.is_current for b in self._buckets):
            raise ModifiedError(
                f"parameters of {self.name}, of which the backward pass computes a region of "
                "torch.utils.checkpoint again, have changed since the forward pass: call backward "
                "before optimizer.step()"
            )
        self.context.current_backward().join(self)
        self.ensure_unsharded()
        self.hold_unsharded()

    def check_unchanged(self) -> None:
        """Raise where what modules hold has been changed in place, which would be lost."""
        for member, whole, seen in zip(self.members, self.held or (), self._seen, strict=False):
            if version(whole) != seen:
                raise ModifiedError(
                    f"parameter {member.path!r} of {self.name} was changed in place during forward "
                    "(as nn.Embedding(max_norm=) and clamp_ do): such changes of gathered "
                    "parameters are lost. Change the shards between calls, or leave the parameter "
                    "to ignored_params"
                )

    def shards_by_held(self) -> dict[int, nn.Parameter]:
        """Return the parameters by the ids of what modules hold in their place between calls."""
        if self.held is None or self.depth or is_going_backward():
            return {}
        held = map(id, self.held)
        return dict(zip(held, (m.parameter for m in self.members), strict=True))

    def hold_shards(self) -> None:
        """Let modules hold the shards again."""
        if self.held is not None:
            for member in self.members:
                member.hold(member.parameter)
            self.held = None

    def end_backward(self) -> None:
        """Let the unsharded parameters go, should they after a backward pass."""
        self.hold_shards()
        if self.reshard_after_backward:
            self.reshard()

    def view_unsharded(self) -> list[torch.Tensor]:
        """Return the unsharded parameters, anew."""
        return [whole for bucket in self._buckets for whole in bucket.view_unsharded()]

    # --- gradients -------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget what a backward pass that failed has left, without communication."""
        self._handles = None
        self.reducer.abandon()
        self.reshard()

    def forget_gradients(self) -> None:
        """Forget what is kept for later passes, once what is on its way has come."""
        self.context.wait_for_gradients()
        self.reducer.forget()


def check_reshard_after_forward(value: Any) -> None:
    """Raise where this is no number of ranks, no truth value and not None."""
    if value is not None and not isinstance(value, int):
        raise ArgumentTypeError(
            f"reshard_after_forward={value!r}: True, False, None, or a number of ranks"
        )
    if value is not None and not isinstance(value, bool) and value < 1:
        raise ArgumentError(
            f"reshard_after_forward={value}: True, False, or how many ranks share the parameters "
            "after forward, at least 1"
        )
