"""Opaque functions of this package: torch's compiler, transforms and modes do not look in.

torch.compile leaves them alone, torch.func is refused, and modes that follow layouts pause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch.overrides import TorchFunctionMode

from distarray.errors import ArgumentError
from distarray.torch import _compat
from distarray.torch._compat import COMPILER, is_transforming

F = TypeVar("F", bound=Callable[..., Any])


class Pausing(TorchFunctionMode):
    """A mode that sees nothing of what this package calls.

    Where it is the innermost one it is taken away meanwhile: it would learn of every shape and
    dtype that is read, at a microsecond each. Where a mode of somebody else's is further in, which
    is to see what it saw, ``pauses`` counts.
    """

    pauses = 0


def skip_compile(function: F) -> F:
    """Keep torch.compile out of a function, but not out of what it calls: ``recursive=False``.

    For functions of which there are many alike, in many modules: the compiler would trace them for
    each anew, up to a limit beyond which it gives all of them up.
    """
    return _compat.skip_frame(_compat.mark_disabled(function))


class pause_modes:  # noqa: N801 - reads as a phrase: with pause_modes()
    """Pause the modes of this thread that can inside."""

    __slots__ = ("_beneath", "_taken")

    @skip_compile
    def __enter__(self) -> pause_modes:
        self._taken: list[Any] = []
        self._beneath: list[Pausing] = []
        depth = _compat.function_mode_depth()
        while depth and isinstance(_compat.function_mode_at(depth - 1), Pausing):
            self._taken.append(_compat.pop_function_mode())
            depth -= 1
        if depth:
            self._beneath += (m for m in _compat.function_modes() if isinstance(m, Pausing))
            for mode in self._beneath:
                mode.pauses += 1
        return self

    @skip_compile
    def __exit__(self, *_: object) -> None:
        for mode in self._beneath:
            mode.pauses -= 1
        while self._taken:
            _compat.push_function_mode(self._taken.pop())


@skip_compile
def resume(pause: pause_modes, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function where the modes see it again that a pause has taken away."""
    pause.__exit__()
    try:
        return function(*args, **kwargs)
    finally:
        pause.__enter__()


def disable_compile(function: F) -> F:
    """Keep torch.compile and the mode that follows layouts out of a function and what it calls.

    As ``torch.compiler.disable`` does: graphs end before it, and begin again after it. Where
    nothing has been compiled and no mode is open a call costs next to nothing more, and torch's
    compiler, whose import takes seconds, is not imported.
    """
    apart: Any = None

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal apart
        if apart is None and COMPILER in sys.modules:
            apart = torch.compiler.disable(function)
        if not _compat.function_mode_depth():
            return (apart or function)(*args, **kwargs)
        with pause_modes():
            return (apart or function)(*args, **kwargs)

    return skip_compile(cast("F", call))


# --- transforms -----------------------------------------------------------------------------------


def refuse_transforms(what: str) -> None:
    """Raise inside of a transform of torch.func, which cannot look into ``what``."""
    if is_transforming():
        raise ArgumentError(
            f"torch.func (grad, vjp, jvp, vmap, ...) cannot look into {what}; or take gradients by "
            "backward() or torch.autograd.grad"
        )
