"""Warnings at the line of the user's program that made the call, however deep they arise."""

from __future__ import annotations

import sys
import warnings

_PASSED_OVER = ("distarray", "numpy")
"""Packages that lie between that line and the warning."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line outside of this package and NumPy."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _package(module: dict[str, object]) -> str:
    return str(module.get("__name__")).partition(".")[0]
