"""Functions that torch.compile leaves alone, with or without what they call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Keep torch.compile out of a function: its graphs end before it, and begin again after it.

    Where nothing has been compiled a call costs next to nothing more, and torch's compiler, whose
    import takes seconds, is not imported.
    """
    apart: Any = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal apart
        if apart is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            apart = torch._dynamo.disable(function)
        return apart(*args, **kwargs)

    return untraced_itself(cast("F", call))


def untraced_itself(function: F) -> F:
    """Keep torch.compile out of a function, but not out of what it calls.

    For functions of which there are many alike, in many modules: the compiler would trace them for
    each anew, up to a limit beyond which it gives all of them up.
    """
    call: Any = function
    # The mark by which the compiler knows such functions while it traces others.
    call._torchdynamo_disable = True
    call._torchdynamo_disable_msg = None
    return untraced_alone(function)


def untraced_alone(function: F) -> F:
    """Keep torch.compile out of a function where it is called by what is not compiled."""
    # As torch._dynamo.eval_frame.skip_code, without the import of torch's compiler.
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    skip = getattr(frames, "set_code_exec_strategy", None)
    if skip is not None:  # other versions of torch trace more than they need to
        action = frames._FrameAction
        code = function.__code__  # type: ignore[attr-defined]
        skip(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function
