"""Functions of this package whose calls of torch the mode that follows layouts does not see."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

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
        depth = torch._C._len_torch_function_stack()
        if not depth or not isinstance(torch._C._get_function_stack_at(depth - 1), Pausing):
            return function(*args, **kwargs)
        mode = _pop_mode()
        try:
            return function(*args, **kwargs)
        finally:
            _push_mode(mode)

    return cast("F", call)
