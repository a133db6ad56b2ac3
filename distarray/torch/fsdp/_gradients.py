"""Gradients of wholes become gradients of shares: packed, reduced, added to what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.layout import Layout, Partial, Replicate
from distarray.redistribute import Handle, Packed, in_background, redistribute_local
from distarray.torch._buffers import empty, follow, still_read, tensor_of
from distarray.torch._layouts import place
from distarray.torch.fsdp import _hooks
from distarray.torch.fsdp._parameter import ShardedParameter
from distarray.typing import Buffer

Gradients = Sequence[torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Reduction:
    """How gradients are reduced.

    Attributes
    ----------
    factor
        What sums are divided by; None for the number of ranks.
    replicas
        Whether to reduce among the ranks that have the same shares, too.
    alone
        Whether what earlier passes have left to carry on stays out of it.
    """

    factor: float | None = None
    replicas: bool = True
    alone: bool = False


class Carried:
    """Gradients of shares that wait to be reduced among replicas, of each parameter by itself.

    So they stay whatever becomes of the bundles that they came in. Those are read and written in
    the background, by passes in their order; which there are to be is known at once.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, torch.Tensor] = {}
        self._owners: dict[int, ShardedParameter] = {}

    def __contains__(self, member: ShardedParameter) -> bool:
        return id(member) in self._owners

    def __bool__(self) -> bool:
        return bool(self._owners)

    def clear(self) -> None:
        """Forget all; nothing may be on its way."""
        self._blocks.clear()
        self._owners.clear()

    def expect(self, member: ShardedParameter) -> None:
        """Take note that a parameter's gradient will be left."""
        self._owners[id(member)] = member

    def claim(self, member: ShardedParameter) -> None:
        """Take note that what a parameter has left will be taken."""
        self._owners.pop(id(member), None)

    def leave(self, member: ShardedParameter, block: torch.Tensor) -> None:
        """Leave a gradient."""
        self._blocks[id(member)] = block

    def add_to(self, member: ShardedParameter, block: torch.Tensor) -> None:
        """Take what a parameter has left, added to a block."""
        left = self._blocks.pop(id(member), None)
        if left is not None:
            block.add_(left.to(block.device, block.dtype))


class GradientBundle:
    """Parameters whose gradients travel together, in one dtype."""

    def __init__(
        self,
        members: Sequence[ShardedParameter],
        mesh: DeviceMesh,
        dtype: torch.dtype,
        device: Any,
        carried: Carried,
    ) -> None:
        self.members = list(members)
        self._mesh = mesh
        self._packed = Packed(mesh, [m.layout for m in members], [m.stride for m in members])
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._carried = carried

    @property
    def dtype(self) -> torch.dtype:
        """In which dtype gradients are reduced."""
        return self._like.dtype

    def start(self, gradients: Gradients, how: Reduction, what: str) -> Flight:
        """Start to reduce the gradients of wholes (collective); they must stay as they are.

        A member whose gradient is None on all ranks stays without; the others know by ``what``.
        """
        purpose = Purpose.of(f"{len(self.members)} gradients of {what}")
        op = "avg" if how.factor is None else "sum"
        held = list(gradients)
        brings = [g is not None for g in gradients]
        ends = how.replicas or self._mesh.ndim == 1
        if not how.alone:
            for i, member in enumerate(self.members):
                brings[i] = brings[i] or member in self._carried
                if ends:
                    self._carried.claim(member)
                elif brings[i]:
                    self._carried.expect(member)

        def work(behind: bool) -> Buffer:
            full = empty(self._packed.total, self._like)
            for gradient, target in zip(held, self._packed.wholes(full), strict=True):
                if target.size == 0:
                    continue
                into = tensor_of(target)
                if gradient is None:
                    into.zero_()
                else:
                    into.copy_(gradient.detach())
                    still_read(gradient)
            held.clear()
            own = self._packed.reduce(full, op, purpose, background=behind)
            del full
            if not how.alone:
                blocks = zip(self.members, self._blocks(tensor_of(own)), brings, strict=True)
                for member, block, is_there in blocks:
                    self._carried.add_to(member, block)
                    if is_there and not ends:
                        self._carried.leave(member, block)
            return self._among_replicas(own, op, purpose, behind) if ends else own

        follow(self._like)
        return Flight(
            self, brings if ends else None, in_background(work, alone=self._mesh.size == 1), how
        )

    def landed(self, own: torch.Tensor, how: Reduction) -> list[torch.Tensor]:
        """Return the gradients of the shares in a reduced buffer."""
        if how.factor is not None:
            own = own.mul_(1 / how.factor)
        if all(m.parameter.is_cpu for m in self.members):
            own = own.cpu()  # by one copy
        found = []
        for member, block in zip(self.members, self._blocks(own), strict=True):
            parameter = member.parameter
            found.append(block.to(parameter.device, parameter.dtype))
        return found

    def _blocks(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a reduced buffer, of each member."""
        at, found = 0, []
        for member in self.members:
            shape = member.layout.local_shape()
            size = _size(shape)
            # An empty one has the strides of its own shape, which autograd looks at.
            found.append(own[at : at + size].view(shape) if size else own.new_empty(shape))
            at += size
        return found

    def _among_replicas(self, own: Buffer, op: str, purpose: Purpose, background: bool) -> Buffer:
        """Reduce among the ranks that have the same shares."""
        mesh = self._mesh
        if mesh.ndim == 1:
            return own
        across = mesh[mesh.axis_names[:-1]]
        src = Layout(across, [Partial(op)] * across.ndim, own.shape)
        dst = src.replace(placements=[Replicate()] * across.ndim)
        return redistribute_local(own, src, dst, purpose=purpose, background=background)


class Flight:
    """Gradients on their way; which of them there are, or None where all are carried on."""

    def __init__(
        self, bundle: GradientBundle, given: list[bool] | None, handle: Handle, how: Reduction
    ) -> None:
        self._bundle = bundle
        self._given = given
        self._handle = handle
        self._how = how

    @property
    def is_there(self) -> bool:
        """Whether `land` would not wait."""
        return self._handle.test()

    def land(self) -> list[torch.Tensor | None]:
        """Return the gradients of the members' shares, None where there are none."""
        own = tensor_of(self._handle.wait())
        if self._given is None:
            return [None] * len(self._bundle.members)
        found = self._bundle.landed(own, self._how)
        return [g if given else None for g, given in zip(found, self._given, strict=True)]

    def accumulate(self) -> None:
        """Add the gradients to those of the parameters."""
        for member, gradient in zip(self._bundle.members, self.land(), strict=True):
            if gradient is not None:
                _accumulate(member, gradient)


def _accumulate(member: ShardedParameter, gradient: torch.Tensor) -> None:
    parameter: Any = member.parameter
    gradient = _hooks.seen(parameter, gradient)
    if parameter.grad is None:
        parameter.grad = gradient
        place(gradient, *member.placed)
    else:
        parameter.grad.add_(gradient)
    _hooks.accumulated(parameter)


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
