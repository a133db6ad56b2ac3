"""Functions that torch.compile leaves alone, with or without what they call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from distarray.torch._compat import compiler_is_imported, mark_untraced, skip_frame

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
            if not compiler_is_imported():
                return function(*args, **kwargs)
            apart = torch.compiler.disable(function)
        return apart(*args, **kwargs)

    return untraced_itself(cast("F", call))


def untraced_itself(function: F) -> F:
    """Keep torch.compile out of a function, but not out of what it calls.

    For functions of which there are many alike, in many modules: the compiler would trace them for
    each anew, up to a limit beyond which it gives all of them up.
    """
    return untraced_alone(mark_untraced(function))


def untraced_alone(function: F) -> F:
    """Keep torch.compile out of a function where it is called by what is not compiled."""
    return skip_frame(function)
