"""Where the cut axes of an argument are in the result of a torch function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout
from distarray.torch._layouts import is_placed
from distarray.torch.following._indices import kept_axes
from distarray.torch.following._products import PRODUCTS, Labels, labelled
from distarray.torch.following._reshaped import (
    Axes,
    cut_axes,
    reshaped_axes,
    single_axes,
    squeezed_axes,
)
from distarray.torch.following._worked_axes import CONVOLUTIONS, bare, worked_axes, works_along

_ITEM_BY_ITEM = frozenset(
    (
        *("subtract", "multiply", "divide", "true_divide", "floor_divide", "negative", "absolute"),
        *("greater", "greater_equal", "less", "less_equal", "not_equal", "isclose", "fix"),
        *("dropout", "alpha_dropout", "bernoulli", "to", "type", "type_as", "float", "double"),
        *("half", "bfloat16", "int", "long", "bool", "cpu", "cuda", "contiguous", "detach"),
        *("alias", "requires_grad_", "tanhshrink", "softsign", "logsigmoid", "softshrink", "rrelu"),
        *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "isreal"),
        *("expit", "fill", "zero", "float_power", "conj", "real", "imag", "complex", "polar"),
        *("gammainc", "gammaincc", "gammaln", "multigammaln", "ndtr", "psi", "short", "char"),
        *("byte", "cfloat", "cdouble", "chalf", "log_sigmoid", "binomial"),
        *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
        *("__radd__", "__rmul__", "__rsub__", "__rdiv__", "__rtruediv__", "__rpow__"),
        *("__floordiv__", "__rfloordiv__", "__rmod__", "__invert__", "__and__", "__or__"),
        *("expand", "expand_as", "broadcast_to"),
        *("__xor__", "__rand__", "__ror__", "__rxor__", "__ipow__", "__ifloordiv__"),
    )
)
"""Beside all that torch itself tags as such."""
_SAME_PROPERTIES = frozenset(
    getattr(torch.Tensor, name).__get__ for name in ("data", "real", "imag")
)
_PERMUTING = frozenset(
    (
        *("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "adjoint"),
        "unsqueeze",
    )
)
_PERMUTING_PROPERTIES = frozenset(
    getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH")
)
_RESHAPING = frozenset(
    (*("view", "reshape", "flatten", "unflatten", "ravel", "view_as", "reshape_as"),)
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
_PAIRING = ("gather", "scatter")
"""Beginnings of names: functions of a tensor and of indices with as many axes."""


class Case(NamedTuple):
    """One call of a torch function, and one of its results."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: torch.Tensor
    layout: Layout
    result: torch.Tensor

    @property
    def cut(self) -> list[int]:
        """Which axes of the source some mesh axis cuts."""
        return cut_axes(self.layout)


Rule = Callable[[Case], "Axes | None"]


@cache
def rule_of(function: Any) -> Rule | None:
    """Return what tells where the axes of a call's arguments are; None where nothing does."""
    name = getattr(function, "__name__", "")
    if name in _RESHAPING:
        return _reshaped
    if name == "squeeze":
        return _squeezed
    if name == "__getitem__":
        return _indexed
    if name in _PERMUTING or function in _PERMUTING_PROPERTIES:
        return _permuted
    if name in _TAKING:
        return _taken
    if name == "stack":
        return _stacked
    if works_along(bare(name)) and bare(name) != "where":  # of three, it works item by item
        if bare(name) in PRODUCTS:
            return _multiplied
        return None if name in CONVOLUTIONS else _beside_worked
    if bare(name) in _ITEM_BY_ITEM or function in _SAME_PROPERTIES:
        return item_by_item
    if is_pointwise(name) or is_pointwise(bare(name)):
        return item_by_item
    return None


def labels_of(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], operands: list[torch.Tensor]
) -> list[tuple[torch.Tensor, Labels]]:
    """Return operands with labels for their axes: those of one label meet, items by items."""
    if rule_of(function) is _multiplied:
        return labelled(bare(function.__name__), args, kwargs)
    return [(x, tuple(range(-x.ndim, 0))) for x in operands]


@cache
def is_pointwise(name: str) -> bool:
    """Tell whether torch says of a function of its own that it works item by item."""
    packet: Any = getattr(torch.ops.aten, name, None)
    if not hasattr(packet, "overloads"):
        return False
    overloads = [getattr(packet, key) for key in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)


def item_by_item(case: Case) -> Axes | None:
    """Follow what may have more axes in front, or longer ones, but no cut one."""
    source, result = case.source, case.result
    if not case.cut and (result.shape != source.shape or case.function.__name__.endswith("_like")):
        return None  # a new tensor may become anything
    if case.function.__name__ == "where" and len(case.args) + len(case.kwargs) == 1:
        return None  # indices of a condition
    more = result.ndim - source.ndim
    if more < 0 or any(result.shape[axis + more] != source.shape[axis] for axis in case.cut):
        return None
    return {axis: axis + more for axis in case.cut}


def _multiplied(case: Case) -> Axes | None:
    """Follow the axes over which a product does not sum."""
    operands = labelled(bare(case.function.__name__), case.args, case.kwargs)
    labels: Labels = next((one for x, one in operands if x is case.source), ())
    axes = {i: label + case.result.ndim for i in case.cut if type(label := labels[i]) is int}
    kept = all(case.result.shape[new] == case.source.shape[old] for old, new in axes.items())
    return axes if kept and len(axes) == len(case.cut) else None


def _beside_worked(case: Case) -> Axes | None:
    """Follow a function along other axes, which it may drop."""
    source, result = case.source, case.result
    name = bare(case.function.__name__)
    worked = worked_axes(name, case.args, case.kwargs, source)
    if worked is None or worked & set(case.cut):
        return None
    if name.startswith(_PAIRING) and not _paired(case):
        return None
    axes = {axis: axis for axis in case.cut}
    if result.ndim == source.ndim - len(worked) < source.ndim:
        axes = {axis: axis - sum(one < axis for one in worked) for axis in case.cut}
    elif result.ndim != source.ndim:
        return None
    kept = all(result.shape[new] == source.shape[old] for old, new in axes.items())
    return axes if kept else None


def _paired(case: Case) -> bool:
    """Tell whether all operands of a function with indices are cut alike, in all that is known.

    Along other axes than theirs, indices pick from where they are themselves.
    """
    operands = [x for x in (*case.args, *case.kwargs.values()) if isinstance(x, torch.Tensor)]
    others = [x for x in operands if x is not case.source]
    if single_axes(case.layout) and not all(map(is_placed, others)):
        return False  # one item may be a share, or all that is picked
    return all(
        x.ndim == case.source.ndim and x.shape[axis] == case.source.shape[axis]
        for x in others
        for axis in case.cut
    )


def _stacked(case: Case) -> Axes | None:
    along = case.args[1] if len(case.args) > 1 else case.kwargs.get("dim", 0)
    along %= case.result.ndim
    return {axis: axis + (axis >= along) for axis in case.cut}


def _squeezed(case: Case) -> Axes | None:
    dropped = worked_axes("squeeze", case.args, case.kwargs, case.source)
    return None if dropped is None else squeezed_axes(case.source.shape, dropped, case.layout)


def _reshaped(case: Case) -> Axes | None:
    single = single_axes(case.layout)
    return reshaped_axes(case.source.shape, case.result.shape, case.cut, single)


def _permuted(case: Case) -> Axes | None:
    """Try on a tensor without memory, whose axes are told apart by their lengths."""
    trial = torch.empty(tuple(range(2, 2 + case.source.ndim)), device="meta")
    args = [trial if x is case.source else x for x in case.args]
    kwargs = {key: trial if x is case.source else x for key, x in case.kwargs.items()}
    order = [length - 2 for length in case.function(*args, **kwargs).shape]
    return {axis: order.index(axis) for axis in case.cut}


def _taken(case: Case) -> Axes | None:
    position = _TAKING[case.function.__name__]
    along = case.args[position] if len(case.args) > position else case.kwargs.get("dim", 0)
    if not isinstance(along, int) or along % case.source.ndim in case.cut:
        return None
    along %= case.source.ndim
    dropped = case.result.ndim < case.source.ndim
    return {axis: axis - (dropped and axis > along) for axis in case.cut}


def _indexed(case: Case) -> Axes | None:
    whole = kept_axes(case.args[1], case.source.ndim)
    if whole is None or not whole.keys() >= set(case.cut):
        return None
    return {axis: whole[axis] for axis in case.cut}
