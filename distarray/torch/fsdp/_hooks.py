"""The user's hooks of shares: they see gradients when these are there, and see nothing before.

The gradients of shares come outside of autograd, later than autograd looks for them. It calls hooks
all the same, with nothing in their hands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Guarded:
    """A hook that autograd's calls without a gradient do not reach."""

    def __init__(self, hook: Callable[[Any], Any], late: set[int]) -> None:
        self.hook = hook
        self._late = late

    def __call__(self, given: Any) -> Any:
        if given is None or id(given) in self._late:
            return None
        return self.hook(given)


def guard(parameter: torch.Tensor, late: set[int]) -> None:
    """Let hooks of a parameter be called with gradients only.

    Parameters
    ----------
    late
        The ids of parameters whose gradients will come later than autograd asks for them.
    """
    known: Any = parameter
    for hooks in (known._backward_hooks, known._post_accumulate_grad_hooks):
        for key, hook in (hooks or {}).items():
            if not isinstance(hook, _Guarded):
                hooks[key] = _Guarded(hook, late)


def seen(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return what hooks of a parameter make of its gradient."""
    known: Any = parameter
    for hook in list((known._backward_hooks or {}).values()):
        found = getattr(hook, "hook", hook)(gradient)
        if found is not None:
            gradient = found
    return gradient


def accumulated(parameter: torch.Tensor) -> None:
    """Call the hooks that wait for a parameter's gradient to have been added."""
    known: Any = parameter
    for hook in list((known._post_accumulate_grad_hooks or {}).values()):
        getattr(hook, "hook", hook)(parameter)
