"""Where the cut axes of an argument are in the result of a torch function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout, Shard
from distarray.torch._indices import kept_axes
from distarray.torch._layouts import is_placed
from distarray.torch._worked_axes import PRODUCTS, bare, worked_axes, works_along

Axes = Mapping[int, int]
"""Where every cut axis of the input is in the result."""

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
        return None if bare(name) in PRODUCTS else _beside_worked
    if bare(name) in _ITEM_BY_ITEM or function in _SAME_PROPERTIES:
        return _in_place
    if is_pointwise(name) or is_pointwise(bare(name)):
        return _in_place
    return None


@cache
def is_pointwise(name: str) -> bool:
    """Tell whether torch says of a function of its own that it works item by item."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    overloads = [getattr(packet, key) for key in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)


def _in_place(case: Case) -> Axes | None:
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


def cut_axes(layout: Layout) -> list[int]:
    """Return the array axes that some mesh axis cuts."""
    return sorted({p.axis for p in layout.placements if type(p) is Shard})


@lru_cache(maxsize=4096)
def single_axes(layout: Layout) -> frozenset[int]:
    """Return the cut axes of which some rank has one item, as of axes that squeeze drops."""
    ends = ((axis, layout.partition(axis).offsets) for axis in cut_axes(layout))
    return frozenset(axis for axis, at in ends if any(j - i == 1 for i, j in pairwise(at)))


def squeezed_axes(shape: Sequence[int], dropped: Iterable[int], layout: Layout) -> Axes | None:
    """Return where cut axes are without axes of length 1; None where a rank might drop a cut one.

    Parameters
    ----------
    shape
        Of this rank's block.
    dropped
        Axes that are dropped if they are of length 1.
    """
    cut, dropped = cut_axes(layout), frozenset(dropped)
    if dropped & single_axes(layout):
        return None
    gone = [axis for axis in dropped if shape[axis] == 1]
    return {axis: axis - sum(one < axis for one in gone) for axis in cut}


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


def reshaped_axes(
    before: Sequence[int], after: Sequence[int], cut: Sequence[int], single: Collection[int] = ()
) -> Axes | None:
    """Return where cut axes are after a reshape; None where one does not stay an axis.

    An axis stays one where as many items lie before it, and after it, as did. Beside a new axis of
    length 1 it may not: one of the two is of that length on this rank alone, such as that of heads.
    Where there were axes of length 1 before, the one that is as far from the end, else from the
    start, is taken, as with longer axes on other ranks. Where a rank with one item could not tell
    which it is, no rank can.

    Parameters
    ----------
    before, after
        Shapes of this rank's block.
    cut
        Axes of ``before``.
    single
        Those of them that are of length 1 on some rank.
    """
    axes = {}
    for axis in cut:
        lead, trail = prod(before[:axis]), prod(before[axis + 1 :])
        fits = _fitting(after, before[axis], lead, trail)
        if not fits:
            return None
        from_end = axis - len(before) + len(after)
        found = axes[axis] = next((k for k in (from_end, axis) if k in fits), fits[0])
        if _ones(_with(after, found, 2), lead, trail) > _ones(_with(before, axis, 2), lead, trail):
            return None
        if axis in single:
            there = _with(before, axis, 1), _with(after, found, 1)
            if any(len(_fitting(shape, 1, lead, trail)) > 1 for shape in there):
                return None
    return axes if len(set(axes.values())) == len(axes) else None


def _with(shape: Sequence[int], axis: int, length: int) -> list[int]:
    """Return the shape of another rank's block."""
    return [*shape[:axis], length, *shape[axis + 1 :]]


def _fitting(shape: Sequence[int], own: int, lead: int, trail: int) -> list[int]:
    """Return the axes of a length with so many items before and after them."""
    return [
        k
        for k, length in enumerate(shape)
        if length == own and prod(shape[:k]) == lead and prod(shape[k + 1 :]) == trail
    ]


def _ones(shape: Sequence[int], lead: int, trail: int) -> int:
    """Count the axes of length 1 with at least so many items before and after them."""
    return sum(
        length == 1 and prod(shape[:k]) >= lead and prod(shape[k + 1 :]) >= trail
        for k, length in enumerate(shape)
    )
