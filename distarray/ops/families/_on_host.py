"""Functions that know NumPy's arrays alone: blocks on GPUs visit the host for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distarray.comm import _backend


def call_on_host(function: Callable[..., Any], *blocks: Any) -> Any:
    """Return `function(*blocks)`, one array or a tuple, on the device of the blocks."""
    if all(map(_backend.is_numpy, blocks)):
        return function(*blocks)
    device = _backend.device_of(next(block for block in blocks if not _backend.is_numpy(block)))
    result = function(*map(_backend.to_host, blocks))
    if isinstance(result, tuple):
        return tuple([_backend.asarray(one, device) for one in result])
    return _backend.asarray(result, device)
