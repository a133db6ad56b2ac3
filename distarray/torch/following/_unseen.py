"""Functions of this package whose calls of torch the mode that follows layouts does not see."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from torch.overrides import TorchFunctionMode

from distarray.torch._compat import (
    innermost_function_mode,
    pop_function_mode,
    push_function_mode,
)

F = TypeVar("F", bound=Callable[..., Any])


class Pausing(TorchFunctionMode):
    """A mode that pauses in functions that are `unseen`."""


def unseen(function: F) -> F:
    """Pause the innermost mode in a function, where it is a pausing one.

    The mode leaves alone what this package calls, but learns of every shape and dtype that is read
    first, at a microsecond each.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not isinstance(innermost_function_mode(), Pausing):
            return function(*args, **kwargs)
        mode = pop_function_mode()
        try:
            return function(*args, **kwargs)
        finally:
            push_function_mode(mode)

    return cast("F", call)
