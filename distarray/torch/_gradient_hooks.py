"""Users' hooks of parameters whose gradients are complete later than autograd adds them up.

They are called with what ranks have reduced, once it is there; autograd, which looks for gradients
earlier, calls them all the same, and does not reach them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distarray.torch._compat import hooks_after_accumulation_of, hooks_of


class _Guarded:
    """A hook that autograd's calls do not reach while its parameter's gradient is late."""

    def __init__(self, hook: Callable[[Any], Any], late: set[int]) -> None:
        self.hook = hook
        self._late = late

    def __call__(self, given: Any) -> Any:
        if given is None or id(given) in self._late:
            return None
        return self.hook(given)


def guard_hooks(parameter: torch.Tensor, late: set[int]) -> None:
    """Let hooks of a parameter be called by autograd with complete gradients only.

    Parameters
    ----------
    late
        The ids of parameters whose gradients will come later than autograd asks for them.
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
