"""What the groups of a model do one after another: whose turn is next, and what is on its way."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from distarray.torch.fsdp._gradients import Flight

_IN_FLIGHT = 2
"""Groups whose gradients may be on their way at a time, beside those that are computed."""


class Member(Protocol):
    """What a context knows of a group."""

    unshard_in_backward: bool
    reshard_after_backward: bool

    @property
    def forward_prefetch(self) -> Sequence[Any] | None:
        """Groups to gather while this one computes."""

    @property
    def backward_prefetch(self) -> Sequence[Any] | None:
        """Groups to gather while this one computes gradients."""

    def start(self) -> None:
        """Begin to gather the wholes."""

    def ensure(self) -> None:
        """Gather the wholes."""

    def show(self) -> None:
        """Let modules hold the wholes."""

    def hide(self) -> None:
        """Let modules hold the shares."""

    def free(self) -> None:
        """Let the wholes go."""

    def flush(self) -> None:
        """Reduce gradients that were kept."""


class Context:
    """A model and the groups in it, in the order in which they are used.

    Attributes
    ----------
    last_backward
        Whether the end of a backward pass waits for its gradients.
    """

    def __init__(self) -> None:
        self.last_backward = True
        self._entered: list[Member] = []
        self._expected: list[Member] = []
        self._left: list[Member] = []
        self._early: list[Member] = []
        self._flights: list[Flight] = []
        self._backward: weakref.ref[Backward] | None = None

    # --- forward ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the forward pass of the model."""
        self._entered, self._left = [], []

    def entered(self, group: Member) -> None:
        """Start to gather what is used after a group."""
        self._entered.append(group)
        following: Sequence[Member] = group.forward_prefetch or ()
        if group.forward_prefetch is None:
            count = len(self._entered)
            if self._expected[:count] == self._entered:
                following = self._expected[count : count + 1]
        for other in following:
            self._gather_early(other)

    def left(self, group: Member) -> None:
        """Take note of a group that has been used."""
        self._left.append(group)

    def end(self) -> None:
        """End the forward pass of the model."""
        self._expected = self._entered
        self._drop_early()

    def _gather_early(self, group: Member) -> None:
        group.start()
        self._early.append(group)

    def _drop_early(self) -> None:
        """Let go what was gathered for nothing."""
        used = {id(group) for group in self._left}
        for group in self._early:
            if id(group) not in used:
                group.free()
        self._early = []

    # --- backward --------------------------------------------------------------------------------

    def backward(self) -> Backward:
        """Return the backward pass under way; one that failed is gone with its graph task."""
        current = None if self._backward is None else self._backward()
        if current is None:
            current = Backward(self)
            torch.autograd.Variable._execution_engine.queue_callback(current)
            self._backward = weakref.ref(current)
        return current

    def noticed(self, group: Member) -> None:
        """Take note of a group that is whole: inside a backward pass it has to go at its end."""
        if torch._C._current_graph_task_id() != -1:
            self.backward().met(group)

    def before(self, group: Member) -> Member | None:
        """Return which group was used before this one, the last time that this one was."""
        for i in range(len(self._left) - 1, 0, -1):
            if self._left[i] is group:
                return self._left[i - 1]
        return None

    def take_off(self, flight: Flight) -> None:
        """Add gradients that are on their way; take in those that are there, or too many."""
        self._flights.append(flight)
        while len(self._flights) > _IN_FLIGHT or self._flights[0].is_there:
            self._flights.pop(0).accumulate()
            if not self._flights:
                return

    def land(self) -> None:
        """Wait for all gradients."""
        while self._flights:
            self._flights.pop(0).accumulate()


class Backward:
    """One backward pass; the engine calls it at the end, and alone holds it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._task = torch._C._current_graph_task_id()
        self._met: dict[int, Member] = {}
        self._done: set[int] = set()

    @property
    def is_nested(self) -> bool:
        """Whether the graph under way is inside of another, as reentrant checkpoints make it."""
        return torch._C._current_graph_task_id() != self._task

    def met(self, group: Member) -> None:
        """Take note of a group that takes part."""
        self._met[id(group)] = group

    def reached(self, group: Member) -> None:
        """Make a group's wholes ready, and start to gather what comes next."""
        self.met(group)
        if not group.unshard_in_backward:
            return
        group.ensure()
        with torch.enable_grad():
            group.show()
        following: Sequence[Member] = group.backward_prefetch or ()
        if group.backward_prefetch is None:
            before = self._context.before(group)
            following = () if before is None else (before,)
        for other in following:
            if other.unshard_in_backward and id(other) not in self._done:
                self.met(other)
                other.start()

    def done(self, group: Member) -> None:
        """Let a group's wholes go: all of its gradients are there."""
        self._done.add(id(group))
        group.hide()
        if group.reshard_after_backward:
            group.free()

    def __call__(self) -> None:
        """Finish the backward pass."""
        context = self._context
        context._backward = None
        for group in self._met.values():
            group.flush()
        if context.last_backward:
            context.land()
        for group in self._met.values():
            group.hide()
            if group.reshard_after_backward:
                group.free()
