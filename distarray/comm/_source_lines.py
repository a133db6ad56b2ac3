"""Lines of the program, for messages: where a thread is, and where an error was raised."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType

_LIBRARIES = ("distarray", "numpy", "torch")  # whose lines say nothing about the program


def line_of(frame: FrameType | None) -> str:
    """Return the line of the program that a thread is in, for a message; empty where none is."""
    roots = _roots()
    while frame is not None and frame.f_code.co_filename.startswith(roots):
        frame = frame.f_back
    if frame is None:
        return ""
    # between two lines it has none
    return _describe(frame, frame.f_lineno or frame.f_code.co_firstlineno)


def line_of_error(error: BaseException) -> str:
    """Return the innermost line of the program on the way to an error; empty where none is."""
    roots, found = _roots(), ""
    at = error.__traceback__
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(roots):
            found = _describe(at.tb_frame, at.tb_lineno)
        at = at.tb_next
    return found


def _roots() -> tuple[str, ...]:
    return tuple(
        str(Path(module.__file__).parent) + os.sep
        for name in _LIBRARIES
        if (module := sys.modules.get(name)) is not None and module.__file__
    )


def _describe(frame: FrameType, number: int) -> str:
    import linecache

    path = frame.f_code.co_filename
    if path == threading.__file__:
        return ""
    text = linecache.getline(path, number).strip()
    return f" at {path}, line {number}{f': {text}' if text else ''}"
