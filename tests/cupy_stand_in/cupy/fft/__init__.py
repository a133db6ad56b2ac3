"""`cupy.fft` of the stand-in: functions by NumPy, with CuPy's names and arguments."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import cupy

    if name.startswith("__"):
        raise AttributeError(name)
    value = cupy.found("cupy.fft", name)
    globals()[name] = value
    return value
