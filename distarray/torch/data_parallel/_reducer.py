"""Buckets of gradients, averaged while the backward pass goes on.

Hooks on the nodes that accumulate gradients tell which are there. A bucket whose gradients are
complete starts on its way in the background, never before the ones that precede it, so that all
ranks start them in one order. At the end of the backward pass the engine calls back: what is
incomplete goes with zeros, and the last bucket brings along which parameters had a gradient at
all, so that those that no rank used stay without.

Gradients are packed in the background, too, and become views of the averaged bucket when it is
there: none is copied back, and few are held twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any
from weakref import WeakMethod

import torch
from torch import nn
from torch.optim import Optimizer

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Layout, Partial, Replicate
from distarray.redistribute import Handle, Packed, redistribute_async
from distarray.torch._backward import (
    BackwardPass,
    awaited,
    call_hooks_after_accumulation,
    guard_hooks,
    hook_gradients,
    pack_gradients,
)
from distarray.torch._buffers import dense_strides, empty, tensor_of
from distarray.torch._layouts import TensorMap
from distarray.torch._opaque import disable_compile
from distarray.typing import Buffer


@dataclass(slots=True)
class _Member:
    """A parameter whose gradient is averaged."""

    name: str
    parameter: nn.Parameter
    node: Any
    """What accumulates its gradient; held, because torch keeps no other reference. A parameter
    whose data have had another dtype or device in between has a new one."""
    kind: tuple[Any, ...]
    accumulated: bool = False  # since it was averaged
    handles: list[Any] = field(default_factory=list)


NAME = "_distarray_replica"
"""Under which a module's ``__dict__`` has its replica."""


@dataclass(eq=False)
class Replica:
    """Beside a replicated module: what averages the gradients of its parameters.

    ``number`` tells which of the replicated modules it is, alike on all ranks: those that run
    several in another order notice by it. The rest is as passed to `replicate`.
    """

    mesh: DeviceMesh
    op: str
    bucket_bytes: int
    broadcast_buffers: bool
    number: int
    syncing: bool = True  # whether the next backward pass averages
    calls: int = 0  # of ``forward`` for training: ranks out of step notice by it
    buckets: list[Bucket] = field(default_factory=list)
    members: list[_Member] = field(default_factory=list)
    bucket_of: dict[int, int] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    """Parameters, by their ids, to whose gradients autograd is adding what is not averaged yet."""
    current: _Pass | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Replica:
        kind, arguments = self.__reduce__()
        copied: Replica = kind(*arguments)
        # Beside a module, whose parameters have been copied before it.
        found = [(m.name, memo[id(m.parameter)]) for m in self.members if id(m.parameter) in memo]
        copied.attach(found)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.mesh, self.op, self.bucket_bytes, self.broadcast_buffers, self.number
        return Replica, arguments

    def attach(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Put hooks on the parameters that require gradients, unless they have them.

        What `torch.func.functional_call` has computed from others has no gradient to average: they
        keep their hooks.
        """
        named = list(parameters) if self.mesh.size > 1 else []
        found = [(n, p) for n, p in named if p.requires_grad]
        nodes = [_accumulator_of(p) for _, p in found]
        if len(found) == len(self.members) and all(
            member.node is node and member.parameter is p and member.kind == _kind(p)
            for member, node, (_, p) in zip(self.members, nodes, found, strict=True)
        ):
            return
        if not all(p.is_leaf for _, p in found):
            return
        accumulated = {id(m.parameter) for m in self.members if m.accumulated}
        for member in self.members:
            for handle in member.handles:
                handle.remove()
        self.members = []
        for i, (node, (name, p)) in enumerate(zip(nodes, found, strict=True)):
            member = _Member(name, p, node, _kind(p), id(p) in accumulated)
            before, after = WeakMethod(self.before), WeakMethod(self.after)
            member.handles = [
                node.register_prehook(partial(_call_weakly, before, i)),
                node.register_hook(partial(_call_weakly, after, i)),
            ]
            self.members.append(member)
        for _, p in named:
            _replicas.set(p, weakref.ref(self))
            awaited.discard(p)
        own = [p for _, p in found]
        for p in own:
            awaited.set(p, self.mesh)
        self.buckets = [
            Bucket(self.mesh, own, members) for members in choose_buckets(own, self.bucket_bytes)
        ]
        self.bucket_of = {i: k for k, bucket in enumerate(self.buckets) for i in bucket.members}

    def current_pass(self) -> _Pass:
        """Return the backward pass under way."""
        if self.current is None or not self.current.is_running:
            self.current = _Pass(self)
        return self.current

    def begin_pass_at(self, output: Any) -> None:
        """Let the pass that meets this output be the one that averages at its end.

        Checkpoints run passes of their own inside; the first gradients may arrive in such.
        """
        hook_gradients(output, partial(_call_weakly, WeakMethod(self.reach)))

    def reach(self, _: torch.Tensor) -> None:
        """Begin a backward pass, unless it is under way."""
        if self.syncing and self.members:
            self.current_pass()

    def before(self, position: int, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Make a gradient ready to be added to, and return what is added, if other."""
        parameter = self.members[position].parameter
        self.late.add(id(parameter))
        guard_hooks(parameter, self.late)
        if self.current is not None and self.current.is_running:
            self.current.wait_for(self.bucket_of[position])
        if self.op == "sum":
            return tuple(g if g is None else g * self.mesh.size for g in gradients)
        return None

    def after(self, position: int, *_: Any) -> None:
        """Take note of a gradient that is there."""
        member = self.members[position]
        self.late.discard(id(member.parameter))
        gradient = member.parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise ArgumentTypeError(
                f"the gradient of {member.name!r} is sparse, and cannot be packed; pass "
                "sparse=False to the module"
            )
        if gradient is not None and gradient.requires_grad:
            raise ArgumentError(
                f"the gradient of {member.name!r} is to be differentiated again "
                "(create_graph=True), which its average cannot be; compute it by "
                "torch.autograd.grad, which averages nothing"
            )
        member.accumulated = True
        if self.syncing:
            self.current_pass().note_gradient(position)


_replicas: TensorMap[weakref.ref[Replica]] = TensorMap()
"""The replicas of parameters, also of those that require no gradient."""


@disable_compile
def check_step(optimizer: Optimizer, _: tuple[Any, ...], __: dict[str, Any]) -> None:
    """Raise before a step by a gradient of which nobody knew that it was to be averaged."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        reference = None if parameter.grad is None else _replicas.get(parameter)
        replica = None if reference is None or not parameter.requires_grad else reference()
        if replica is not None and parameter not in awaited:
            raise ArgumentError(
                f"a parameter of shape {tuple(parameter.shape)} has come to require a gradient "
                "since the last call of its replicated module, and the gradient was not averaged: "
                "after requires_grad_() call the module that dt.replicate returned itself, not "
                "only modules inside or methods, or apply dt.replicate to these instead"
            )


class _Pass(BackwardPass):
    """One backward pass, in which buckets travel."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._missing = [len(bucket.members) for bucket in replica.buckets]
        self._seen: set[int] = set()
        self._started = 0
        self._pending: dict[int, Handle] = {}
        self._again: set[int] = set()
        self._averaged: set[int] = set()
        super().__init__()

    def note_gradient(self, position: int) -> None:
        """Start the buckets that are complete, in order; the last waits for the end."""
        k = self._replica.bucket_of[position]
        if k < self._started:
            self._again.add(k)  # which a nested pass has sent already
            return
        if position in self._seen:
            return
        self._seen.add(position)
        self._missing[k] -= 1
        last = len(self._missing) - 1
        while self._started < last and not self._missing[self._started]:
            self._start(self._started)
            for k in [k for k, handle in self._pending.items() if handle.test()]:
                self.wait_for(k)

    def wait_for(self, k: int) -> None:
        """Wait for a bucket that is on its way, if it is: all of its parameters have gradients."""
        if k in self._pending:
            self._take(k, self._pending.pop(k).wait(), None)

    def finish(self) -> None:
        """Send what is left, and take all that is on its way."""
        replica = self._replica
        try:
            if not self._seen:
                return  # the gradients of other tensors were asked for
            last = len(replica.buckets) - 1
            for k in range(self._started, last):
                self._start(k)
            has = [m.accumulated and m.parameter.grad is not None for m in replica.members]
            again = [k in self._again for k in range(len(replica.buckets))]
            self._start(last, [*has, *again])
            final = self._pending.pop(last).wait()
            flags = replica.buckets[last].read_flags(final)
            used, again = flags[: len(has)], flags[len(has) :]
            for k in sorted(self._pending):
                self._take(k, self._pending.pop(k).wait(), used)
            self._take(last, final, used)
            for k in (k for k, repeated in enumerate(again) if repeated):
                self._start(k)
                self._take(k, self._pending.pop(k).wait(), used)
            # All ranks' at once and in one order: what the hooks do may be collective.
            for position in sorted(self._averaged, reverse=True):
                call_hooks_after_accumulation(replica.members[position].parameter)
        finally:
            replica.current = None  # the next gradient begins another pass

    def abandon(self) -> None:
        self._pending.clear()

    def _start(self, k: int, flags: list[bool] | None = None) -> None:
        """Send a bucket on its way."""
        replica = self._replica
        bucket = replica.buckets[k]
        self._started = max(self._started, k + 1)
        gradients = [replica.members[i].parameter.grad for i in bucket.members]
        first, last = (replica.members[bucket.members[i]].name for i in (0, -1))
        purpose = Purpose.of(
            f"gradients {k + 1} of {len(replica.buckets)}, {first!r} to {last!r} of replicated "
            f"module {replica.number}, after forward call {replica.calls}"
        )
        self._pending[k] = bucket.reduce(gradients, flags or (), purpose)

    def _take(self, k: int, buffer: Any, used: list[bool] | None) -> None:
        """Let averaged gradients be those of their parameters, where any rank has some."""
        replica = self._replica
        bucket = replica.buckets[k]
        for position, view in zip(bucket.members, bucket.unpack(buffer), strict=True):
            member = replica.members[position]
            if used is None or used[position]:
                member.parameter.grad = view.to(member.parameter.dtype)
                self._averaged.add(position)
            member.accumulated = False


def _call_weakly(method: WeakMethod[Any], *args: Any) -> Any:
    """Call a method, unless its object is gone: hooks of nodes must not keep it alive."""
    found = method()
    return None if found is None else found(*args)


@torch.enable_grad()
def _accumulator_of(parameter: nn.Parameter) -> Any:
    """Return the node that accumulates a gradient, in half the time of `get_gradient_edge`."""
    return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def _kind(parameter: nn.Parameter) -> tuple[Any, ...]:
    return parameter.dtype, parameter.device, parameter.shape, parameter.stride()


# --- buckets -------------------------------------------------------------------------------------

END_BYTES = 1 << 20
"""Most bytes of the first bucket, which starts early, and of the last, which nothing hides; torch's
DistributedDataParallel begins with as many."""


class Bucket:
    """Parameters of one dtype and device, whose gradients travel one after another in one buffer.

    Gradients lie there as the parameters do where these are dense, as optimizers like it, in the
    order of ``members``, the positions of the parameters among all.
    """

    def __init__(
        self, mesh: DeviceMesh, parameters: Sequence[nn.Parameter], members: Sequence[int]
    ) -> None:
        self.members = tuple(members)
        own = [parameters[i] for i in members]
        whole = [Replicate()] * mesh.ndim
        layouts = [Layout(mesh, whole, p.shape) for p in own]
        self._mesh = mesh
        self._packed = Packed(mesh, layouts, [dense_strides(p) for p in own])
        self._like = torch.empty(0, dtype=own[0].dtype, device=own[0].device)

    def reduce(
        self, gradients: Sequence[torch.Tensor | None], flags: Sequence[bool], purpose: Purpose
    ) -> Handle:
        """Start to average gradients and flags (collective); gradients must stay as they are."""
        total = self._packed.total
        buffer = empty(total + len(flags), self._like)

        def fill() -> None:
            pack_gradients(gradients, self._packed.wholes(buffer))
            if flags:
                tensor_of(buffer[total:]).copy_(torch.tensor(flags))

        here = not self._like.is_cpu
        if here:
            fill()  # in this thread's stream
        src = Layout(self._mesh, [Partial("avg")] * self._mesh.ndim, buffer.shape)
        dst = src.without_partial()
        return redistribute_async(buffer, src, dst, purpose=purpose, prepare=None if here else fill)

    def unpack(self, buffer: Buffer) -> list[torch.Tensor]:
        """Return the gradients in a reduced buffer, in its memory."""
        return list(map(tensor_of, self._packed.wholes(buffer)))

    def read_flags(self, buffer: Buffer) -> list[bool]:
        """Return the flags behind reduced gradients: whether any rank has set them."""
        found: list[bool] = (tensor_of(buffer[self._packed.total :]) != 0).tolist()
        return found


def choose_buckets(parameters: Sequence[nn.Parameter], bucket_bytes: int) -> list[list[int]]:
    """Return the members of buckets, in the order in which these are likely to be complete.

    The backward pass meets the last parameters first, so that the buckets are filled from the end.
    A bucket is closed before it would exceed ``bucket_bytes``, the first and the last one at 1 MiB
    already; a larger parameter has its own.
    """
    sizes = [p.numel() * p.dtype.itemsize for p in parameters]
    end_bytes = min(END_BYTES, bucket_bytes)
    found: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for position in reversed(range(len(parameters))):
        kind = parameters[position].dtype, parameters[position].device
        members, filled = filling.get(kind, ([], 0))
        limit = end_bytes if members and members is found[0] else bucket_bytes
        if not members or filled + sizes[position] > limit:
            members, filled = [], 0
            found.append(members)
        members.append(position)
        filling[kind] = members, filled + sizes[position]
    # A bucket is complete when its last parameter is, the one that was registered first.
    found.sort(key=lambda members: -members[-1])
    if found and sum(sizes[i] for i in found[-1]) > end_bytes:
        last = found.pop()
        kept = max(1, sum(total <= end_bytes for total in accumulate(sizes[i] for i in last[::-1])))
        found += [part for part in (last[:-kept], last[-kept:]) if part]
    return found
