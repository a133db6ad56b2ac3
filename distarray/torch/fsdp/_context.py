"""Order of a model's groups: whose turn is next, and what is on its way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from distarray.torch import _compat
from distarray.torch._backward import BackwardPass
from distarray.torch.fsdp._gradients import PendingReduction

if TYPE_CHECKING:
    from distarray.torch.fsdp._group import Group

_MOST_PENDING = 2
"""Groups whose gradients may be on their way at a time, beside those that are computed: one that is
reduced while the next is packed. Each holds the whole gradients of its group."""


class Context:
    """A model and the groups in it, in the order in which they are used."""

    def __init__(self) -> None:
        self.last_backward = True  # the end of a backward pass waits for its gradients
        self._entered: list[Group] = []
        self._expected: list[Group] = []
        self.left: list[Group] = []  # by calls that have ended, in their order
        self._early: list[Group] = []
        self._pending: list[PendingReduction] = []
        self._earlier_pending: list[PendingReduction] = []  # of passes that have not waited
        self._deferring: dict[int, Group] = {}
        self._backward: Backward | None = None

    # --- forward ---------------------------------------------------------------------------------

    def begin(self) -> None:
        self._entered, self.left = [], []

    def enter(self, group: Group) -> None:
        """Start to gather what is used after a group."""
        self._entered.append(group)
        following: Sequence[Group] = group.forward_prefetch or ()
        if group.forward_prefetch is None:
            count = len(self._entered)
            if self._expected[:count] == self._entered:
                following = self._expected[count : count + 1]
        for other in following:
            other.start_unshard()
            self._early.append(other)

    def end(self) -> None:
        """End the forward pass of the model."""
        self._expected = self._entered
        used = {id(group) for group in self.left}
        for group in self._early:
            if id(group) not in used:  # gathered for nothing
                group.reshard()
        self._early = []
        for group in self._entered:
            if id(group) not in used:  # the last of its modules has not been called
                group.hold_shards()
                if group.reshards_after_forward:
                    group.reshard(after_forward=True)

    # --- backward --------------------------------------------------------------------------------

    def current_backward(self) -> Backward:
        """Return the backward pass under way."""
        current = self._backward
        if current is None or not current.is_running:
            self._pending = []  # those of a pass that failed
            current = self._backward = Backward(self)
        return current

    def defer(self, group: Group) -> None:
        """Take note of a group that keeps gradients for a later pass or the end of this one."""
        self._deferring[id(group)] = group

    def find_previous(self, group: Group) -> Group | None:
        """Return which group was used before this one, the last time that this one was."""
        pairs = pairwise(reversed(self.left))
        return next((before for found, before in pairs if found is group), None)

    def add_pending(self, reduction: PendingReduction) -> None:
        """Add gradients that are on their way; wait for the first where there are too many.

        On all ranks at the same time, whenever they arrive: users' hooks see them then, and raise
        or communicate.
        """
        self._pending.append(reduction)
        if len(self._pending) > _MOST_PENDING:
            self._pending.pop(0).accumulate()

    def finish(self) -> None:
        """End a backward pass: wait for all gradients, unless it is not the last one.

        What groups have kept is reduced, also of those that this pass has not met.
        """
        deferring = self._deferring.items()
        self._deferring = {key: group for key, group in deferring if group.reducer.flush()}
        self._backward = None
        self._earlier_pending += self._pending
        self._pending = []
        if self.last_backward:
            self.wait_for_gradients()

    def wait_for_gradients(self) -> None:
        """Wait for the gradients of earlier passes; the rest is lost where a hook raises."""
        pending, self._earlier_pending = self._earlier_pending, []
        for reduction in pending:
            reduction.accumulate()


class Backward(BackwardPass):
    """One backward pass, in which groups take part."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._task = _compat.current_backward_pass()
        self._joined: dict[int, Group] = {}
        self._done: set[int] = set()
        super().__init__()

    @property
    def is_nested(self) -> bool:
        """Whether the graph under way is inside of another, as reentrant checkpoints make it."""
        return _compat.current_backward_pass() != self._task

    def join(self, group: Group) -> None:
        self._joined[id(group)] = group

    def pre_backward(self, group: Group) -> None:
        """Make a group's unsharded parameters ready, and start to gather what comes next."""
        self.join(group)
        if not group.unshard_in_backward or id(group) in self._done:
            return
        group.ensure_unsharded()
        with torch.enable_grad():
            group.hold_unsharded()
        following: Sequence[Group] = group.backward_prefetch or ()
        if group.backward_prefetch is None:
            before = self._context.find_previous(group)
            following = () if before is None else (before,)
        for other in following:
            if other.unshard_in_backward and id(other) not in self._done:
                self.join(other)
                other.start_unshard()

    def post_backward(self, group: Group) -> None:
        """Let a group's unsharded parameters go: all of its gradients are there."""
        self._done.add(id(group))
        group.end_backward()

    def finish(self) -> None:
        self._context.finish()
        for group in self._take_joined():
            group.end_backward()

    def abandon(self) -> None:
        for group in self._take_joined():
            group.abandon()

    def _take_joined(self) -> Collection[Group]:
        joined, self._joined = self._joined, {}
        return joined.values()
