"""Checkpoints that run again, in the backward pass, what first ran where layouts are followed.

There the mode is not open: torch switches modes off while ``backward`` runs, or it is called after
the mode has ended. So the functions that checkpoints keep are made to open it themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, GeneratorType
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from distarray.errors import LayoutError
from distarray.torch._layouts import Placed, is_placed, own_placed, place
from distarray.torch.following._known import lose, lost_of

Context = Callable[[], AbstractContextManager[Any]]


def opening_frame() -> FrameType | None:
    """Return the innermost frame that belongs neither to this package nor to contextlib."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in (__name__.partition(".")[0], "contextlib"):
        frame = frame.f_back
    return frame


def open_again(context: Context, opened_in: FrameType | None, *, refuse: bool = False) -> None:
    """Let the checkpoints in which this thread is open a context when they run again.

    Parameters
    ----------
    context
        Makes it.
    opened_in
        Where it was opened: checkpoints further out run that again by themselves.
    refuse
        Whether to raise where it is not known whether something runs again.

    Raises
    ------
    LayoutError
        A function of autograd's is under way of which it is not known what it runs again.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not opened_in:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            holder = frame.f_locals.get(code.co_varnames[0])
            if isinstance(holder, FunctionCtx) and _package(frame) != __name__.partition(".")[0]:
                args = frame.f_locals.get("args", ())
                _replace(holder, "run_function", args, context, refuse)
        elif code.co_name == "checkpoint":
            found = frame.f_locals
            kept = found.get("gen")
            if isinstance(kept, GeneratorType) and kept.gi_frame is not None:
                holder = kept.gi_frame.f_locals.get("new_frame")
                if holder is not None:
                    args = found.get("args", ())
                    _replace(holder, "recompute_fn", args, context, refuse)
        frame = frame.f_back


def _replace(holder: Any, name: str, args: tuple[Any, ...], context: Context, refuse: bool) -> None:
    function = getattr(holder, name, None)
    if not callable(function):
        if not refuse:
            return
        raise LayoutError(
            f"cross_entropy inside loss_parallel and in the forward of {type(holder).__name__}, a "
            "function of autograd's, whose backward might compute it again outside: there it would "
            "see this rank's shard only. Open loss_parallel inside that function, or take "
            "dt.vocab_parallel_cross_entropy there"
        )
    if not isinstance(function, _Again):
        setattr(holder, name, _Again(function, context, args))


class _Again:
    """A function that opens a context, and knows how its arguments were placed before."""

    def __init__(self, function: Any, context: Context, values: tuple[Any, ...]) -> None:
        self._function = function
        self._context = context
        tensors = [x if isinstance(x, torch.Tensor) else None for x in values]
        self._known = [None if x is None else own_placed(x) or lost_of(x) for x in tensors]

    def __call__(self, *args: Any) -> Any:
        for x, known in zip(args, self._known, strict=False):
            if known is None or is_placed(x):
                continue
            if isinstance(known, Placed):
                place(x, *known)
            else:
                lose(x, known)
        with self._context():
            return self._function(*args)


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
