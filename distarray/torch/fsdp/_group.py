"""Parameters that are gathered and reduced together: those of one call of `fully_shard`.

Its states: *sharded*; *on its way*, while a gathering runs in the background; *unsharded*. After
the forward pass what is kept may be the share of a smaller group of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError, ModifiedError
from distarray.redistribute import Handle
from distarray.torch.fsdp import _node
from distarray.torch.fsdp._bundle import Bundle
from distarray.torch.fsdp._context import Context
from distarray.torch.fsdp._extension import ExtendedBundle
from distarray.torch.fsdp._gradients import Gradients
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.torch.fsdp._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from distarray.torch.fsdp._receiver import Receiver
from distarray.torch.fsdp._recomputation import watch_reading
from distarray.torch.fsdp._saved_wholes import forget, remember


class Group:
    """Sharded parameters that come and go together.

    Attributes
    ----------
    name
        The path of the module, for errors.
    reshard_after_forward
        Whether the wholes go then; None: unless their module was the outermost one of the call.
    reshard_after_backward
        Whether the wholes go then.
    is_outermost
        Whether the last call of its modules was inside of no call of another sharded one.
    unshard_in_backward
        Whether they come at the beginning of the backward pass, or when first needed.
    syncing, replicas_sync
        Whether gradients are reduced, and among replicas too, or kept for a later pass.
    factor
        What sums of gradients are divided by; None for the number of ranks.
    forward_prefetch, backward_prefetch
        Groups to gather while this one computes; None for those that came next the last time.
    depth
        How many calls of its modules, one inside of the other, are under way.
    ends_with_inputs
        Whether the wholes are needed in backward until the gradients of inputs are there.
    calls
        How often its modules have been called for training: ranks out of step notice by it.
    """

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
        self.name = name
        self.context: Context | None = None
        self._offload = offload
        self._device = device
        self._bundles: list[Bundle] = []
        self.set_reshard_after_forward(reshard_after_forward)
        self.is_outermost = False
        self.reshard_after_backward = True
        self.unshard_in_backward = True
        self.syncing = True
        self.replicas_sync = True
        self.factor: float | None = None
        self.forward_prefetch: list[Group] | None = None
        self.backward_prefetch: list[Group] | None = None
        self._handles: list[Handle] | None = None
        self._is_whole = False
        self._shown: list[torch.Tensor] | None = None
        self._seen: list[int] = []
        self._traced: list[torch.Tensor] | None = None
        """The wholes as autograd knows them, until their gradients are there."""
        self._traced_for: tuple[tuple[int, bool], ...] = ()
        self._emptied = False
        self._gradients = Receiver(self, device)
        self.depth = 0
        self.ends_with_inputs = False
        self.calls = 0
        watch_reading(self, self.members)

    def set_reshard_after_forward(self, value: bool | int | None) -> None:
        """Set what is kept after forward: nothing more, all, or the share of a smaller group."""
        size = self.mesh.shape[-1]
        self.reshard_after_forward = None if value is None else bool(value)
        self._smaller: DeviceMesh | None = None
        if value is not None and not isinstance(value, bool):
            check_reshard_after_forward(value)
            if value < size:
                self._smaller = _smaller(self.mesh, value)
        for bundle in self._bundles:
            bundle.keep_among(self._smaller)

    @property
    def goes_after_forward(self) -> bool:
        """Whether the wholes go when the forward pass that is under way has used them.

        The backward pass begins with the outermost group, so that it is not worth its while to go.
        """
        if not torch.is_grad_enabled():
            return True
        goes = self.reshard_after_forward
        return not self.is_outermost if goes is None else goes

    # --- gathering -------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether the wholes are there."""
        return self._is_whole

    def start(self) -> None:
        """Begin to gather the wholes in the background, unless they are there or on their way."""
        self._refresh()
        if not self._is_whole and self._handles is None:
            self._handles = [b.gather(self.name) for b in self._bundles]

    def renew(self) -> None:
        """Gather the wholes unless they are there, of the values that the shares have now."""
        self._refresh()
        self._arrive()

    def ensure(self) -> None:
        """Gather the wholes unless they are there."""
        if not self._is_whole and self._handles is None:
            self._refresh()
        self._arrive()

    def _arrive(self) -> None:
        if self._is_whole:
            return
        handles = self._handles
        if handles is None:
            # In the background like all others, one after another: so ranks that are out of step
            # meet in different calls, and do not wait for each other in two places.
            handles = [b.gather(self.name) for b in self._bundles]
        self._handles = None
        for bundle, handle in zip(self._bundles, handles, strict=True):
            bundle.arrive(handle.wait())
            remember(self, bundle)
        self._is_whole = True
        if self._traced is not None and self._emptied:
            for traced, whole in zip(self._traced, self.wholes(), strict=True):
                traced.data = whole
            self._emptied = False
        if self.context is not None:
            self.context.noticed(self)

    def free(self, *, after_forward: bool = False) -> None:
        """Let the wholes go."""
        if self._handles is not None:  # gathered for nothing
            self.ensure()
        if not self._is_whole:
            return
        self.hide()
        for bundle in self._bundles:
            forget(bundle)
            bundle.free(keep_piece=after_forward)
        self._is_whole = False
        if self._traced is None:
            return
        if after_forward:
            for traced in self._traced:
                traced.data = traced.new_empty(0)
            self._emptied = True
        else:
            self._traced = None

    def follow(self) -> None:
        """Take the parameters that modules hold, should they be others by now."""
        if self._shown is None:
            for member in self.members:
                member.adopt()
            return
        for member, whole in zip(self.members, self._shown, strict=True):
            if member.held is not whole:
                member.refuse_held()

    def _refresh(self) -> None:
        """Follow parameters that have been replaced, converted or changed in value."""
        self.follow()
        if not self._bundles or not all(b.fits for b in self._bundles):
            self._make_bundles()
        elif (self._is_whole or self._handles) and not all(b.is_current for b in self._bundles):
            self.free()

    def _make_bundles(self) -> None:
        self.free()
        self._bundles = self._bundled()
        self.members = [m for b in self._bundles for m in b.members]
        self._gradients.restart(self.members, self._device)
        self._traced = None

    def _bundled(self) -> list[Bundle]:
        kinds: dict[Any, list[ShardedParameter]] = {}
        for member in self.members:
            own = None if member.extension is None else id(member)
            kinds.setdefault((own, member.parameter.dtype), []).append(member)
        offload = self._offload
        pinned = False
        if isinstance(offload, CPUOffloadPolicy):
            pinned = offload.pin_memory and self._device.type == "cuda"
        else:
            self._device = self.members[0].parameter.device  # where the module has been moved to
        return [
            (Bundle if own is None else ExtendedBundle)(
                found,
                self.mesh,
                self._smaller,
                self.policy.dtype_of(dtype),
                self._device,
                pinned=pinned,
            )
            for (own, dtype), found in kinds.items()
        ]

    def set_extension(self, module: nn.Module, name: str, extension: Any) -> None:
        """Let a parameter travel in another form from now on."""
        self.free()
        for member in self.members:
            if any(holder is module and n == name for holder, n in member.slots):
                member.extension = extension
                self._bundles = []
                return
        raise ArgumentError(
            f"{name!r} is no parameter that {self.name} shards; it has "
            f"{', '.join(m.path for m in self.members[:8])}"
        )

    # --- what modules see ------------------------------------------------------------------------

    def show(self) -> None:
        """Let modules hold the wholes, as autograd is to know them."""
        shown = self._traced_wholes() if torch.is_grad_enabled() else self.wholes()
        self.show_again(shown)

    @property
    def shown(self) -> list[torch.Tensor] | None:
        """What modules hold in the place of the parameters."""
        return self._shown

    def show_again(self, shown: list[torch.Tensor]) -> None:
        """Let modules hold what they held before."""
        for member, whole in zip(self.members, shown, strict=True):
            member.show(whole)
        self._shown = shown
        self._seen = list(map(_version, shown))

    def show_in_backward(self) -> None:
        """Let modules hold the wholes (collective), unless they hold some.

        For what is computed anew in a backward pass, with the values that it was computed of.
        """
        if self._shown is not None:
            return
        if self.context is None:
            raise ArgumentError(
                f"{self.name}: its parameters are read inside of a backward pass (a region of "
                "torch.utils.checkpoint is computed again), and have never been whole; outside of "
                "calls of sharded modules read parameters outside of the checkpoint"
            )
        if not all(b.is_current for b in self._bundles):
            raise ModifiedError(
                f"parameters of {self.name}, of which the backward pass computes a region of "
                "torch.utils.checkpoint again, have changed since the forward pass: call backward "
                "before optimizer.step()"
            )
        self.context.backward().met(self)
        self.ensure()
        self.show()

    def check_unchanged(self) -> None:
        """Raise where what modules hold has been changed in place, which would be lost."""
        for member, whole, version in zip(
            self.members, self._shown or (), self._seen, strict=False
        ):
            if _version(whole) != version:
                raise ModifiedError(
                    f"parameter {member.path!r} of {self.name} was changed in place during forward "
                    "(as nn.Embedding(max_norm=) and clamp_ do): such changes of gathered "
                    "parameters are lost. Change the shares between calls, or leave the parameter "
                    "to ignored_params"
                )

    def shares_of_wholes(self) -> dict[int, nn.Parameter]:
        """Return the parameters by the ids of what modules hold in their place between calls."""
        if self._shown is None or self.depth or torch._C._current_graph_task_id() != -1:
            return {}
        wholes = map(id, self._shown)
        return dict(zip(wholes, (m.parameter for m in self.members), strict=True))

    def abandon(self) -> None:
        """Forget what a backward pass that failed has left, without communication."""
        self._handles = None
        self._gradients.abandon()
        self.free()

    def hide(self) -> None:
        """Let modules hold the shares again."""
        if self._shown is not None:
            for member in self.members:
                member.show(member.parameter)
            self._shown = None

    def wholes(self) -> list[torch.Tensor]:
        """Return the wholes, anew."""
        return [whole for bundle in self._bundles for whole in bundle.wholes()]

    def _traced_wholes(self) -> list[torch.Tensor]:
        needed = tuple((id(m.parameter), m.parameter.requires_grad) for m in self.members)
        if self._traced is None or self._traced_for != needed:
            self._traced = _node.unsharded(self, [m.parameter for m in self.members])
            self._traced_for = needed
        return self._traced

    # --- gradients -------------------------------------------------------------------------------

    def receive(self, gradients: Gradients) -> Gradients:
        """Take the gradients of the wholes; return those of the shares, None for later ones."""
        return self._gradients.receive(gradients)

    def forget_gradients(self) -> None:
        """Forget what is kept for later passes, once what is on its way has come."""
        if self.context is not None:
            self.context.land()
        self._gradients.forget()

    def flush(self) -> bool:
        """Reduce what has been kept (collective), unless it is for a later pass.

        Return whether there is anything for a later pass.
        """
        return self._gradients.flush()


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def check_reshard_after_forward(value: bool | int) -> None:
    """Raise where a number of ranks is none."""
    if not isinstance(value, bool) and value < 1:
        raise ArgumentError(
            f"reshard_after_forward={value}: True, False, or how many ranks share the parameters "
            "after forward, at least 1"
        )


def _smaller(mesh: DeviceMesh, size: int) -> DeviceMesh:
    """Return the consecutive ranks along the last mesh axis that this one shares with."""
    coordinate = mesh.coordinate
    assert coordinate is not None  # this rank is in the mesh
    first = coordinate[-1] // size * size
    positions = range(first, min(first + size, mesh.shape[-1]))
    ranks = [mesh.rank_at((*coordinate[:-1], position)) for position in positions]
    return DeviceMesh(ranks, ("after_forward",), comm=mesh._base, device=mesh.device)
