"""Warnings at the line of the user's program that made the call, however deep they arise."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_PASSED_OVER = ("distarray", "numpy")
"""Packages that lie between that line and the warning."""


_warned: set[tuple[str, int]] = set()
"""Lines, by file and number, that are warned `once`."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside of this package and NumPy."""
    level, _ = _calling_line()
    warnings.warn(message, category, stacklevel=level)


def warn_once(message: str) -> None:
    """Warn as `warn` does, unless this line has been warned so, whatever the message was."""
    level, frame = _calling_line()
    line = frame.f_code.co_filename, frame.f_lineno
    if line not in _warned:
        _warned.add(line)
        warnings.warn(message, stacklevel=level)


def _calling_line() -> tuple[int, FrameType]:
    """Return the frame of that line, and how many levels it is above the caller of this."""
    level, frame = 2, sys._getframe(2)
    while str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER and frame.f_back:
        level, frame = level + 1, frame.f_back
    return level, frame
