"""Checkpoints that run again, in the backward pass, what first ran where layouts are followed.

There the mode is not open: torch switches modes off while ``backward`` runs, or it is called after
the mode has ended. So what checkpoints keep are functions that open the modes themselves, and that
know how their arguments were placed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch

from distarray.torch._compat import function_modes, wrap_checkpointed
from distarray.torch._layouts import Placed, is_placed, known_of, note, place
from distarray.torch.following._mode import Following


@cache
def watch_checkpoints() -> None:
    """Let checkpoints run again what they run inside of modes as they ran it, from now on."""
    wrap_checkpointed(_remember)


def _remember(function: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    modes = [m for m in function_modes() if isinstance(m, Following) and not m.pauses]
    again = _Again(function, args, modes)
    return again if modes or any(again.known) else function


class _Again:
    """A function that opens the modes which were open when a checkpoint first ran it.

    Parameters
    ----------
    args
        The last of these are the function's.
    """

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], modes: list[Following]
    ) -> None:
        self._function = function
        self._modes = [(mode, mode.is_inside) for mode in modes]
        tensors = [x if isinstance(x, torch.Tensor) else None for x in args]
        self.known = [None if x is None else known_of(x) for x in tensors]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for x, known in zip(reversed(args), reversed(self.known), strict=False):
            if known is None or is_placed(x):
                continue
            if isinstance(known, Placed):
                place(x, *known)
            else:
                note(x, known)
        with ExitStack() as stack:
            are_open = all(mode in function_modes() for mode, _ in self._modes)
            for mode, is_inside in self._modes:
                again = mode if are_open else stack.enter_context(mode.anew())
                stack.enter_context(again.running_again(is_inside))
            return self._function(*args, **kwargs)
