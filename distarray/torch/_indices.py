"""What an index of a tensor does to each axis: keep it whole, or pick from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def picked_axes(index: Any, ndim: int) -> frozenset[int] | None:
    """Return the axes from which an index picks; None for one that is not followed."""
    found = _walked(index, ndim)
    return None if found is None else frozenset(range(ndim)) - found.keys()


def kept_axes(index: Any, ndim: int) -> dict[int, int] | None:
    """Return where the axes are in the result that an index keeps whole.

    Slices, numbers, None, an ellipsis and at most one tensor or list are followed; None for others.
    """
    items = index if isinstance(index, tuple) else (index,)
    tensors = sum(isinstance(item, torch.Tensor) or _is_list(item) for item in items)
    numbers = any(isinstance(item, int) for item in items)
    if tensors > 1 or (tensors and numbers):
        return None  # a number beside a tensor counts as one, and may move the result's axes
    return _walked(index, ndim)


def _walked(index: Any, ndim: int) -> dict[int, int] | None:
    """Return the axes that are kept, and their places while nothing else moves."""
    items = index if isinstance(index, tuple) else (index,)
    widths = [width for item in items if (width := _width(item)) is not None]
    if len(widths) < len(items):
        return None
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    whole: dict[int, int] = {}
    at = out = 0
    for item in items:
        if item is Ellipsis:
            missing = ndim - sum(widths)
            whole |= {at + k: out + k for k in range(missing)}
            at, out = at + missing, out + missing
        elif isinstance(item, slice) and item == slice(None):
            whole[at] = out
            at, out = at + 1, out + 1
        else:
            at += _width(item) or 0
            out += _depth(item)
    return whole


def _is_list(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str)


def _width(item: Any) -> int | None:
    """Return how many axes an index takes up; None for one that is not followed."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, slice) or (isinstance(item, int) and not isinstance(item, bool)):
        return 1
    if isinstance(item, torch.Tensor):
        return item.ndim if item.dtype in (torch.bool, torch.uint8) else 1
    if _is_list(item) and all(isinstance(one, int) for one in item):
        return 1  # of numbers, or of booleans for one axis
    return None


def _depth(item: Any) -> int:
    """Return how many axes of the result an index makes."""
    if isinstance(item, torch.Tensor):
        return 1 if item.dtype in (torch.bool, torch.uint8) else item.ndim
    return 0 if isinstance(item, int) else 1
