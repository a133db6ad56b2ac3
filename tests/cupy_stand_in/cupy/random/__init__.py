"""`cupy.random` of the stand-in: functions by NumPy, with CuPy's names and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np


class Generator:
    """NumPy's, whose C code would take any `out` for an array of its own."""

    def __init__(self, seed: Any) -> None:
        self._host = np.random.default_rng(seed)

    def random(self, size: Any = None, dtype: Any = float, out: Any = None) -> Any:
        """Return uniform numbers."""
        return _give(self._host.random(size, dtype), out)

    def standard_normal(self, size: Any = None, dtype: Any = float, out: Any = None) -> Any:
        """Return normal numbers."""
        return _give(self._host.standard_normal(size, dtype), out)

    def integers(self, low: int, high: int | None = None, size: Any = None) -> Any:
        """Return integers."""
        return _give(self._host.integers(low, high, size), None)


def default_rng(seed: Any = None) -> Generator:
    """Return a generator."""
    return Generator(seed)


def _give(values: Any, out: Any) -> Any:
    import cupy

    if out is None:
        return cupy.asarray(values)
    out[...] = cupy.asarray(values)
    return out


def __getattr__(name: str) -> Any:
    import cupy

    if name.startswith("__"):
        raise AttributeError(name)
    value = cupy.found("cupy.random", name)
    globals()[name] = value
    return value
