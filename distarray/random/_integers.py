"""Integers between bounds that are arrays: the same as between numbers, item by item."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import BaseArray, plain_buffer
from distarray.errors import ArgumentTypeError, DistArrayError
from distarray.random._formulas import scaled
from distarray.random._streams import Items, reject


def read_integers(name: str, value: Any) -> Any:
    """Return a bound as an int, an array of integers, or the distributed array that it is.

    Raises
    ------
    ArgumentTypeError
        If it holds no integers.
    """
    found = value
    if not isinstance(value, BaseArray):
        try:
            found = _backend.to_host(plain_buffer(value, name))
        except DistArrayError:
            found = np.empty(0)
    if found.dtype.kind not in "biu":
        raise ArgumentTypeError(f"{name}={value!r} must be an integer, or an array of such")
    return found if isinstance(value, BaseArray) or found.ndim else int(found)


def integers_between(endpoint: bool, items: Items, low: Any, high: Any) -> Any:
    """Return uint64, modulo 2**64, as `fill_integers` gives it."""
    least, most = (_modulo(one) for one in (low, high))
    among = most - least + np.uint64(bool(endpoint))

    def propose(items: Items, turn: int, among: Any) -> tuple[Any, Any]:
        x = items.bits(turn // 2)
        value, low = scaled(x, among)
        every = among == 0  # 2**64 of them
        bound = (~among + np.uint64(1)) % np.where(every, np.uint64(1), among)
        return np.where(every, x, value), every | (low >= bound)

    return least + reject(items, propose, among)


def _modulo(bound: Any) -> Any:
    """Return integers modulo 2**64."""
    return bound.astype(np.uint64) if np.ndim(bound) else np.uint64(bound % 2**64)
