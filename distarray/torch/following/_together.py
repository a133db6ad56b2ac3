"""Torch functions that would take a rank's share of some items for all of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise, permutations
from typing import Any

import torch

from distarray.errors import LayoutError
from distarray.layout import Layout, Shard
from distarray.torch._layouts import own_placed
from distarray.torch._untraced import untraced_alone
from distarray.torch.following._carried import JOINING, Lost, is_weight, known, lost_of, tensors_in
from distarray.torch.following._indices import picked_axes
from distarray.torch.following._products import PRODUCTS, labelled
from distarray.torch.following._reshaped import cut_axes, single_axes
from distarray.torch.following._rules import item_by_item, labels_of, rule_of
from distarray.torch.following._worked_axes import (
    CONVOLUTIONS,
    bare,
    worked_axes,
    works_along,
)
from distarray.torch.parallel._parameters import is_sharded
from distarray.torch.training import _initialisers
from distarray.torch.training._dropout import dropout

_INDEXING = ("__getitem__", "__setitem__")
_TAKING = ("chunk", "split", "tensor_split", "narrow", "glu", "__getitem__")
_MOVING_AXES = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_")


def worked_over(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, Lost] | None:
    """Return of what a function is about to take a share for the whole; None if of nothing.

    Reductions, sorting, indices and the like along other axes pass, and so does what is not known:
    its result is known to come of a share.

    Returns
    -------
    tuple of str and Lost
        What it works along, in words, and which axes of which layout these are.
    """
    full_name = getattr(function, "__name__", "")
    name = bare(full_name)
    if not works_along(name) and name not in _INDEXING and full_name not in _MOVING_AXES:
        return None
    operands = tensors_in(args, kwargs)
    if (name in PRODUCTS or name in CONVOLUTIONS) and any(is_weight(x) for x in operands):
        return None  # of a module with a style, which adds up the products
    if full_name in _MOVING_AXES and (layout := known(operands[0])) is not None:
        raise LayoutError(
            f"{full_name} would move the axes of a tensor placed as {layout} in place; take "
            f"{full_name[:-1]}, whose result has a layout of its own"
        )
    for x in operands:
        axes = _axes(name, args, kwargs, x)
        if not axes:
            continue
        placed = own_placed(x)
        if placed is not None:
            if placed.parts and name in _TAKING:
                continue  # of every part its share, as it is meant
            layout = placed.layout
            met = axes.intersection(single_axes(layout) if name == "squeeze" else cut_axes(layout))
            if is_sharded(layout) and met:
                return f"a tensor placed as {layout}", Lost(layout, name, met)
        elif name == "squeeze":
            continue
        elif len(axes) == x.ndim and (lost := lost_of(x)) and is_sharded(lost.layout):
            return _computed_from(lost, name)
    return _on_diagonal(name, args, kwargs) if name in PRODUCTS else None


def _on_diagonal(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, Lost] | None:
    """Return of what a product would take its rows and columns from the same ranks alone."""
    cut: dict[Any, set[int | str]] = {}
    for x, labels in labelled(name, args, kwargs):
        placed = own_placed(x)
        if placed is None:
            continue
        layout = placed.layout
        for i, p in enumerate(layout.placements):
            if type(p) is Shard:
                found = cut.setdefault((layout.mesh, i), set())
                found.add(labels[p.axis])
                if len(found) > 1:
                    return f"a tensor placed as {layout}", Lost(layout, name, frozenset({p.axis}))
    return None


def check_beside(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise where a function would take of one tensor a share, and of one beside it all items.

    A share of one item would be taken for what is the same for all. Of a tensor of which nothing is
    known, as many items as there are on all ranks are all of them.
    """
    name = getattr(function, "__name__", "the function")
    if name not in JOINING and rule_of(function) is not item_by_item and bare(name) not in PRODUCTS:
        return
    operands = tensors_in(args, kwargs)
    if bare(name) in PRODUCTS and any(is_weight(x) for x in operands):
        return
    met = [(x, labels, own_placed(x)) for x, labels in labels_of(function, args, kwargs, operands)]
    for (_, of_one, one), (y, of_other, other) in permutations(met, 2):
        if one is None or (other is None and lost_of(y) is not None):
            continue
        whole = None if other is None else set(range(y.ndim)).difference(cut_axes(other.layout))
        for axis in cut_axes(one.layout):
            label = of_one[axis]
            there = of_other.index(label) if type(label) is int and label in of_other else None
            if there is None or (whole is not None and there not in whole):
                continue
            if _are_all(y if other is None else other.layout, there, one.layout, axis, kwargs):
                beside = f"of shape {tuple(y.shape)}" if other is None else f"as {other.layout}"
                raise LayoutError(
                    f"{name} of tensors placed as {one.layout} and {beside}: along axis {axis} "
                    "every rank has its share of the one, and all of the other. Let the styles "
                    "that they come from leave them alike, by output_layouts=, or bring one to the "
                    "other: dt.redistribute(x, mesh, [da.Replicate()], [da.Shard(axis)])"
                )


def _are_all(
    other: torch.Tensor | Layout, there: int, one: Layout, axis: int, kwargs: Mapping[str, Any]
) -> bool:
    """Tell whether a tensor beside a share has all items of an axis, and not one for all."""
    length = other.shape[there]
    if length == 1:
        return False
    if isinstance(other, torch.Tensor):
        offsets = one.partition(axis).offsets
        return length == one.shape[axis] and all(j - i < length for i, j in pairwise(offsets))
    return length == one.shape[axis] or bool(kwargs.get("enable_gqa"))


def number_of(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> tuple[str, Lost] | None:
    """Return of what a function, of whatever kind, has made a single number; as `worked_over`."""
    if not isinstance(result, torch.Tensor) or result.ndim:
        return None
    lost = lost_of(result)
    if lost is None or not is_sharded(lost.layout):
        return None
    if all(x.ndim == 0 for x in tensors_in(args, kwargs)):
        return None
    return _computed_from(lost, getattr(function, "__name__", "the function"))


def _computed_from(lost: Lost, name: str) -> tuple[str, Lost]:
    layout = lost.layout
    what = f"what was computed from a tensor placed as {layout}"
    return what, Lost(layout, name, frozenset(cut_axes(layout)))


def refusal(
    what: str, lost: Lost, where: str = " inside check_layouts or loss_parallel"
) -> LayoutError:
    """Return the error of a function that would take a share for the whole."""
    return LayoutError(
        f"{lost.function}{where} would see this rank's share only of {what}; take the whole "
        "tensor, dt.full_tensor(x), or let the style that it comes from pass "
        "output_layouts=da.Replicate(), or take loss_parallel and cross_entropy for a loss, or "
        "call it outside where a result of this rank's alone is meant"
    )


@untraced_alone
def called_by_library(calls_modules: Any) -> bool:
    """Tell whether this package calls torch, and not the user or torch itself for the user.

    One function of it ``calls_modules`` of the user's; `dropout` is one more of torch's, and
    initialisers stand in the place of torch's.
    """
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is calls_modules.__code__:
            return False
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        in_place_of_torch = frame.f_code is dropout.__code__ or module == _initialisers.__name__
        if package != "torch" and not in_place_of_torch:
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
