"""Functions that torch.compile leaves alone."""

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

    # The mark by which the compiler knows such functions.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    call._torchdynamo_disable_msg = None  # type: ignore[attr-defined]
    return cast("F", call)
