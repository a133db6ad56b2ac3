"""Backward passes: of which kind they are, how they end, and gradients that come at their end.

Ranks reduce gradients in the background, later than autograd looks for them. The user's hooks are
called with what ranks have reduced, once it is there; autograd's own calls do not reach them.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from distarray.comm import DeviceMesh, register_worker_test
from distarray.torch._buffers import still_read, tensor_of
from distarray.torch._compat import (
    call_after_backward,
    hooks_after_accumulation_of,
    hooks_of,
    is_going_backward,
    leaves_of,
    will_execute,
)
from distarray.torch._layouts import TensorMap
from distarray.typing import Buffer

register_worker_test(is_going_backward)


def make_anchor() -> torch.Tensor:
    """Return a leaf for a graph to hang on: only ``backward()`` for all leaves reaches it.

    Each graph has its own. Threads that share a leaf may stand still for ever, all of them: torch
    2.13 waits for Python's lock while it holds the leaf's mutex, and for that with Python's lock.
    """
    return torch.zeros((), requires_grad=True, device="cpu")


def is_for_all_leaves(anchor: torch.Tensor) -> bool:
    """Tell whether the pass under way, of a graph that hangs on an anchor, is ``backward()``.

    It is not inside of ``torch.autograd.grad`` and ``backward(inputs=...)``.
    """
    return will_execute(torch.autograd.graph.get_gradient_edge(anchor).node)


def hook_gradients(values: Any, hook: Callable[[torch.Tensor], Any]) -> bool:
    """Let a hook see the gradients of computed tensors in containers; tell whether there are any.

    Leaves have gradients of all that is made of them, not of this use alone.
    """
    found = [x for x in leaves_of(values) if isinstance(x, torch.Tensor) and x.grad_fn is not None]
    for tensor in found:
        tensor.register_hook(hook)
    return bool(found)


class BackwardPass(ABC):
    """The backward pass under way: the engine calls `finish` at its end, or lets go where it fails.

    Who raises in a pass may keep its frames alive, and with them the pass; the engine alone holds
    what tells whether it goes on.
    """

    def __init__(self) -> None:
        ending = _EndOfPass(self)
        call_after_backward(ending)
        self._ending = weakref.ref(ending)

    @property
    def is_running(self) -> bool:
        """Whether the end is still to come, and will."""
        return self._ending() is not None

    @abstractmethod
    def finish(self) -> None:
        """Do what is left to do at the end."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go what a pass that failed has left; nothing where it has come to its end."""


class _EndOfPass:
    def __init__(self, ends: BackwardPass) -> None:
        self._ends = ends

    def __call__(self) -> None:
        self._ends.finish()

    def __del__(self) -> None:
        self._ends.abandon()


# --- awaited gradients ----------------------------------------------------------------------------

awaited: TensorMap[DeviceMesh] = TensorMap()
"""Parameters for whose gradients somebody waits while the backward pass goes on: those of all ranks
of a mesh, which are reduced over it."""

# --- late gradients ------------------------------------------------------------------------------


def pack_gradients(gradients: Sequence[torch.Tensor | None], places: Iterable[Buffer]) -> None:
    """Copy gradients to their places in a buffer, zeros where there is none."""
    for gradient, place in zip(gradients, places, strict=True):
        if gradient is None:
            tensor_of(place).zero_()
        else:
            tensor_of(place).copy_(gradient.detach())
            still_read(gradient)


class _Guarded(NamedTuple):
    """A hook that autograd's calls do not reach while its parameter's gradient is late."""

    hook: Callable[[Any], Any]
    late: set[int]

    def __call__(self, given: Any) -> Any:
        if given is None or id(given) in self.late:
            return None
        return self.hook(given)


def guard_hooks(parameter: torch.Tensor, late: set[int]) -> None:
    """Let autograd call hooks of a parameter with complete gradients only.

    ``late`` has the ids of parameters whose gradients will come later than it asks for them.
    """
    for hooks in (hooks_of(parameter), hooks_after_accumulation_of(parameter)):
        for key, hook in (hooks or {}).items():
            if not isinstance(hook, _Guarded):
                hooks[key] = _Guarded(hook, late)


@torch.no_grad()
def call_hooks(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return what hooks of a parameter make of its gradient."""
    for hook in list((hooks_of(parameter) or {}).values()):
        found = getattr(hook, "hook", hook)(gradient)
        if found is not None:
            gradient = found
    return gradient


@torch.no_grad()
def call_hooks_after_accumulation(parameter: torch.Tensor) -> None:
    """Call the hooks that wait for a parameter's gradient to have been added."""
    for hook in list((hooks_after_accumulation_of(parameter) or {}).values()):
        getattr(hook, "hook", hook)(parameter)
