"""What an index of a tensor does to each axis: keep it whole, or pick from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_MASKS = (torch.bool, torch.uint8)


def picked_axes(index: Any, ndim: int) -> frozenset[int] | None:
    """Return the axes from which an index picks; None for one that is not followed."""
    found = kept_axes(index, ndim)
    return None if found is None else frozenset(range(ndim)) - found.keys()


def kept_axes(index: Any, ndim: int) -> dict[int, int] | None:
    """Return where the axes are in the result that an index keeps whole; None if not followed.

    Numbers drop their axes first. Tensors and lists then make axes together, of the shape that they
    are broadcast to: in the place of theirs if these are side by side, else in front.
    """
    items = index if isinstance(index, tuple) else (index,)
    if any(_width(item) is None for item in items):
        return None
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    missing = ndim - sum(_width(item) or 0 for item in items)
    if missing < 0:
        return None
    axes: list[int | None] = []  # of the result: those that are kept, and None for others
    picking: list[int] = []  # places among them of tensors, which all pick together
    depth = at = 0
    for item in items:
        if item is Ellipsis:
            axes += range(at, at + missing)
            at += missing
        elif item is None:
            axes.append(None)
        elif isinstance(item, slice):
            axes.append(at if item == slice(None) else None)
        elif (isinstance(item, torch.Tensor) or _is_list(item)) and not _is_number(item):
            width = max(_width(item) or 0, 1)
            picking += range(len(axes), len(axes) + width)
            axes += [None] * width
            depth = max(depth, _depth(item))
        at += 0 if item is Ellipsis else _width(item) or 0
    if picking:
        side_by_side = picking == list(range(picking[0], picking[-1] + 1))
        start = picking[0] if side_by_side else 0
        rest = [axis for place, axis in enumerate(axes) if place not in picking]
        axes = [*rest[:start], *[None] * depth, *rest[start:]]
    return {axis: place for place, axis in enumerate(axes) if axis is not None}


def _is_number(item: Any) -> bool:
    """Tell whether torch takes a tensor as one number, which drops an axis."""
    return isinstance(item, torch.Tensor) and item.ndim == 0 and item.dtype not in _MASKS


def _is_list(item: Any) -> bool:
    return isinstance(item, Sequence) and not isinstance(item, str)


def _width(item: Any) -> int | None:
    """Return how many axes an index takes up; None for one that is not followed."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, slice) or (isinstance(item, int) and not isinstance(item, bool)):
        return 1
    if isinstance(item, torch.Tensor):
        return item.ndim if item.dtype in _MASKS else 1
    if _is_list(item) and all(isinstance(one, int) for one in item):
        return 1  # of numbers, or of booleans for one axis
    return None


def _depth(item: Any) -> int:
    """Return how many axes of the result a tensor or a list makes."""
    if isinstance(item, torch.Tensor):
        return 1 if item.dtype in _MASKS else item.ndim
    return 1
