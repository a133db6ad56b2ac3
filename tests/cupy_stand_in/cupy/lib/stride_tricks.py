"""`cupy.lib.stride_tricks` of the stand-in."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_strided(x: Any, shape: Any = None, strides: Any = None) -> Any:
    """Return a view with other lengths and strides."""
    return x._view(np.lib.stride_tricks.as_strided(x._host, shape, strides))


def sliding_window_view(
    x: Any,
    window_shape: Any,
    axis: Any = None,
    *,
    subok: bool = False,
    writeable: bool = False,
) -> Any:
    """Return windows that slide over an array."""
    return x._view(np.lib.stride_tricks.sliding_window_view(x._host, window_shape, axis))
