"""What a layout becomes where torch reshapes, converts or scales a tensor that has one.

Only functions that leave the cut axes whole are known; the result of any other has no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout, Shard
from distarray.torch._layouts import is_placed, place, placed_of
from distarray.torch._parameters import is_sharded

Axes = Mapping[int, int]
"""Where every cut axis of the input is in the result."""

_ITEM_BY_ITEM = frozenset(
    (
        *("add", "add_", "sub", "sub_", "subtract", "rsub", "mul", "mul_", "multiply"),
        *("div", "div_", "divide", "true_divide", "neg", "negative", "addcmul", "addcdiv"),
        *("tanh", "tanh_", "sigmoid", "relu", "relu_", "exp", "log", "pow", "abs", "where"),
        *("clamp", "clamp_", "clip", "clip_", "masked_fill", "masked_fill_", "nan_to_num"),
        *("dropout", "softplus", "to", "type", "type_as", "float", "double", "half", "bfloat16"),
        *("cpu", "cuda", "contiguous", "clone", "detach", "detach_", "alias", "requires_grad_"),
        *("__radd__", "__rmul__", "__rsub__", "__rtruediv__"),
    )
)
_PERMUTING = frozenset(
    (
        *("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "adjoint"),
        "unsqueeze",
    )
)
_PERMUTING_PROPERTIES = frozenset((torch.Tensor.T.__get__, torch.Tensor.mT.__get__))  # type: ignore[attr-defined]
_RESHAPING = frozenset(
    (
        *("view", "reshape", "flatten", "unflatten", "ravel", "view_as", "reshape_as"),
        "squeeze",
    )
)
_TAKING = {
    "narrow": 1,
    "select": 1,
    "index_select": 1,
    "unbind": 1,
    "chunk": 2,
    "split": 2,
    "tensor_split": 2,
}
"""Functions that take parts along one axis, and which argument names it."""


def carry(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Place the result of a torch function whose input has a layout, where it is known how."""
    name = getattr(function, "__name__", "")
    rule = _rule(function, name)
    if rule is None:
        return
    placed = [(x, found) for x in (*args, *kwargs.values()) if (found := known(x)) is not None]
    placed = [(x, found) for x, found in placed if is_sharded(found)] or placed
    if len({found for _, found in placed}) != 1:
        return  # none, or they differ
    source, layout = placed[0]
    if layout.has_partial:
        return
    results = result if isinstance(result, tuple | list) else (result,)
    for one in results:
        if isinstance(one, torch.Tensor) and not is_placed(one):
            axes = rule(_Case(function, args, kwargs, source, cut_axes(layout), one))
            if axes is not None:
                place(one, relabelled(layout, axes, tuple(one.shape)))


def known(x: Any) -> Layout | None:
    """Return the layout of a tensor itself; None where there is none, or for other objects.

    Tensors that consist of parts, each cut by itself, are not followed.
    """
    placed = placed_of(x) if isinstance(x, torch.Tensor) and is_placed(x) else None
    return None if placed is None or placed.parts else placed.layout


def cut_axes(layout: Layout) -> list[int]:
    """Return the array axes that some mesh axis cuts."""
    return sorted({p.axis for p in layout.placements if type(p) is Shard})


def relabelled(layout: Layout, axes: Axes, local: Sequence[int]) -> Layout:
    """Return a layout whose cut axes have moved, of blocks of another shape.

    Parameters
    ----------
    axes
        From the layout's cut axes to those of the result.
    local
        Shape of this rank's block; its other axes are whole.
    """
    shape = list(local)
    boundaries = {}
    for old, new in axes.items():
        shape[new] = layout.shape[old]
        boundaries[new] = layout.partition(old).offsets
    placements = [Shard(axes[p.axis]) if type(p) is Shard else p for p in layout.placements]
    return Layout(
        layout.mesh,
        placements,
        shape,
        shard_order=layout.shard_order,
        boundaries=boundaries or None,
    )


def reshaped_axes(before: Sequence[int], after: Sequence[int], cut: Sequence[int]) -> Axes | None:
    """Return where cut axes are after a reshape; None where one does not stay an axis.

    An axis stays one where as many items lie before it, and after it, as did. Axes of length 1
    could stand for each other: the one that is as far from the end, else from the start, is taken,
    as with longer axes on other ranks.

    Parameters
    ----------
    before, after
        Shapes of this rank's block.
    cut
        Axes of ``before``.
    """
    axes = {}
    for axis in cut:
        lead, trail = prod(before[:axis]), prod(before[axis + 1 :])
        fits = [
            k
            for k, length in enumerate(after)
            if length == before[axis] and prod(after[:k]) == lead and prod(after[k + 1 :]) == trail
        ]
        from_end = axis - len(before) + len(after)
        if not fits:
            return None
        axes[axis] = next((k for k in (from_end, axis) if k in fits), fits[0])
    return axes if len(set(axes.values())) == len(axes) else None


# --- rules ---------------------------------------------------------------------------------------


class _Case(NamedTuple):
    """One call of a torch function, and one of its results."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: torch.Tensor
    cut: list[int]
    result: torch.Tensor


_Rule = Callable[[_Case], "Axes | None"]


def _rule(function: Any, name: str) -> _Rule | None:
    if name in _ITEM_BY_ITEM:
        return _in_place
    if name in _RESHAPING:
        return _reshaped
    if name in _TAKING:
        return _taken
    if name == "__getitem__":
        return _indexed
    if name in _PERMUTING or function in _PERMUTING_PROPERTIES:
        return _permuted
    return None


def _in_place(case: _Case) -> Axes | None:
    if case.result.shape != case.source.shape or not case.result.is_floating_point():
        return None
    return {axis: axis for axis in case.cut}


def _reshaped(case: _Case) -> Axes | None:
    return reshaped_axes(case.source.shape, case.result.shape, case.cut)


def _permuted(case: _Case) -> Axes | None:
    """Try on a tensor without memory, whose axes are told apart by their lengths."""
    trial = torch.empty(tuple(range(2, 2 + case.source.ndim)), device="meta")
    args = [trial if x is case.source else x for x in case.args]
    kwargs = {key: trial if x is case.source else x for key, x in case.kwargs.items()}
    order = [length - 2 for length in case.function(*args, **kwargs).shape]
    return {axis: order.index(axis) for axis in case.cut}


def _taken(case: _Case) -> Axes | None:
    position = _TAKING[case.function.__name__]
    along = case.args[position] if len(case.args) > position else case.kwargs.get("dim", 0)
    if not isinstance(along, int) or along % case.source.ndim in case.cut:
        return None
    along %= case.source.ndim
    dropped = case.result.ndim < case.source.ndim
    return {axis: axis - (dropped and axis > along) for axis in case.cut}


def _indexed(case: _Case) -> Axes | None:
    """Follow slices, numbers, None, an ellipsis and at most one tensor, in the other axes."""
    index = case.args[1]
    items = index if isinstance(index, tuple) else (index,)
    widths = [width for item in items if (width := _width(item)) is not None]
    tensors = sum(isinstance(item, torch.Tensor) for item in items)
    numbers = any(isinstance(item, int) for item in items)
    if len(widths) < len(items) or tensors > 1 or (tensors and numbers):
        return None  # a number beside a tensor counts as one, and may move the result's axes
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    whole: dict[int, int] = {}
    at = out = 0
    for item in items:
        if item is Ellipsis:
            missing = case.source.ndim - sum(widths)
            whole |= {at + k: out + k for k in range(missing)}
            at, out = at + missing, out + missing
        elif isinstance(item, slice) and item == slice(None):
            whole[at] = out
            at, out = at + 1, out + 1
        else:
            at += _width(item) or 0
            out += _depth(item)
    if not whole.keys() >= set(case.cut):
        return None
    return {axis: whole[axis] for axis in case.cut}


def _width(item: Any) -> int | None:
    """Return how many axes an index takes up; None for one that is not followed."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, slice) or (isinstance(item, int) and not isinstance(item, bool)):
        return 1
    if isinstance(item, torch.Tensor):
        return item.ndim if item.dtype in (torch.bool, torch.uint8) else 1
    return None


def _depth(item: Any) -> int:
    """Return how many axes of the result an index makes."""
    if isinstance(item, torch.Tensor):
        return 1 if item.dtype in (torch.bool, torch.uint8) else item.ndim
    return 0 if isinstance(item, int) else 1
