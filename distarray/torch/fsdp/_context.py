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
    def goes_after_forward(self) -> bool:
        """Whether the wholes go when the forward pass that is under way has used them."""

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

    def free(self, *, after_forward: bool = False) -> None:
        """Let the wholes go."""

    def flush(self) -> bool:
        """Reduce gradients that were kept; tell whether some still are."""

    def abandon(self) -> None:
        """Forget what a backward pass that failed has left, without communication."""


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
        self._last_flights: list[Flight] = []
        """Of earlier passes that have not waited for them."""
        self._owing: dict[int, Member] = {}
        self._backward: Backward | None = None

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
        used = {id(group) for group in self._left}
        for group in self._entered:
            if id(group) not in used:  # the last of its modules has not been called
                group.hide()
                if group.goes_after_forward:
                    group.free(after_forward=True)

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
        current = self._backward
        if current is None or not current.is_running:
            self._flights = []  # those of a pass that failed
            current = self._backward = Backward(self)
            torch.autograd.Variable._execution_engine.queue_callback(current.ending())
        return current

    def owes(self, group: Member) -> None:
        """Take note of a group that keeps gradients for a later pass or the end of this one."""
        self._owing[id(group)] = group

    def pay(self) -> None:
        """Reduce what groups have kept, also those that this pass has not met."""
        self._owing = {key: group for key, group in self._owing.items() if group.flush()}

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

    def finish(self) -> None:
        """End a backward pass: wait for all gradients, unless it is not the last one."""
        self._backward = None
        self._last_flights += self._flights
        self._flights = []
        if self.last_backward:
            self.land()

    def land(self) -> None:
        """Wait for the gradients of earlier passes."""
        while self._last_flights:
            self._last_flights.pop(0).accumulate()


class _Ending:
    """What the engine calls at the end of a pass; it alone holds it, also where the pass fails."""

    def __init__(self, backward: Backward) -> None:
        self._backward = backward

    def __call__(self) -> None:
        self._backward.finish()

    def __del__(self) -> None:
        self._backward.abandon()


class Backward:
    """One backward pass."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ending: weakref.ref[_Ending] | None = None
        self._task = torch._C._current_graph_task_id()
        self._met: dict[int, Member] = {}
        self._done: set[int] = set()

    def ending(self) -> _Ending:
        """Return what is to be called at the end."""
        found = _Ending(self)
        self._ending = weakref.ref(found)
        return found

    @property
    def is_running(self) -> bool:
        """Whether the end is still to come, and will."""
        return self._ending is not None and self._ending() is not None

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
        if not group.unshard_in_backward or id(group) in self._done:
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

    def finish(self) -> None:
        """Finish the backward pass."""
        self._context.pay()
        self._context.finish()
        met, self._met = self._met, {}
        for group in met.values():
            group.hide()
            if group.reshard_after_backward:
                group.free()

    def abandon(self) -> None:
        """Let go what a failed pass has left; nothing where it has come to its end."""
        met, self._met = self._met, {}
        for group in met.values():
            group.abandon()
