"""Refuse torch functions that would take a rank's share of some items for all of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from distarray.errors import LayoutError
from distarray.torch._carried import is_weight, known, lost_layout, tensors_in
from distarray.torch._indices import picked_axes
from distarray.torch._lineage import layout_by_lineage
from distarray.torch._parameters import is_sharded
from distarray.torch._reshaped import cut_axes, single_axes
from distarray.torch._untraced import untraced_alone
from distarray.torch._worked_axes import PRODUCTS, bare, worked_axes, works_along

_INDEXING = ("__getitem__", "__setitem__")
_MOVING_AXES = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_")


def check_together(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise where a function works along a cut axis of an argument.

    Reductions, sorting, indices and the like along other axes pass, and so does what is not known:
    its result is known to come of a share.
    """
    full_name = getattr(function, "__name__", "")
    name = bare(full_name)
    if not works_along(name) and name not in _INDEXING and full_name not in _MOVING_AXES:
        return
    operands = tensors_in(args, kwargs)
    if name in PRODUCTS and any(is_weight(x) for x in operands):
        return  # of a module with a style, which adds up the products
    if full_name in _MOVING_AXES and (layout := known(operands[0])) is not None:
        raise LayoutError(
            f"{full_name} would move the axes of a tensor placed as {layout} in place; take "
            f"{full_name[:-1]}, whose result has a layout of its own"
        )
    for x in operands:
        axes = _axes(name, args, kwargs, x)
        if not axes:
            continue
        layout = known(x) or (None if lost_layout(x) is not None else layout_by_lineage(x))
        if layout is not None:
            met = single_axes(layout) if name == "squeeze" else cut_axes(layout)
            if is_sharded(layout) and not axes.isdisjoint(met):
                raise _refusal(name, f"a tensor placed as {layout}")
        elif name == "squeeze":
            continue
        elif (layout := lost_layout(x)) is not None and len(axes) == x.ndim:
            raise _refusal(name, f"what was computed from a tensor placed as {layout}")


def check_numbers(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> None:
    """Raise where a function, of whatever kind, has made a single number of a rank's share."""
    if not isinstance(result, torch.Tensor) or result.ndim or lost_layout(result) is None:
        return
    if all(x.ndim == 0 for x in tensors_in(args, kwargs)):
        return
    layout = lost_layout(result)
    name = getattr(function, "__name__", "the function")
    raise _refusal(name, f"a tensor placed as {layout}, or what was computed from it,")


@untraced_alone
def called_by_library() -> bool:
    """Tell whether this package calls torch, and not the user or torch itself for the user."""
    frame = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package != "torch":
            return bool(package == __name__.partition(".")[0])
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _axes(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], x: torch.Tensor
) -> frozenset[int] | None:
    if name not in _INDEXING:
        return worked_axes(name, args, dict(kwargs), x)
    if x is not args[0]:
        return None
    index = args[1]
    if name == "__setitem__" and isinstance(index, torch.Tensor) and index.shape == x.shape:
        return None  # a mask, item by item
    return picked_axes(index, x.ndim)


def _refusal(name: str, of_what: str) -> LayoutError:
    return LayoutError(
        f"{name} inside loss_parallel would see this rank's share only of {of_what}; take "
        "cross_entropy for a loss, or the whole tensor, dt.full_tensor(x), or call it outside "
        "loss_parallel where a result of this rank's alone is meant"
    )
