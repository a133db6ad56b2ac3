"""The layout of a tensor that has none itself, found from autograd's record of how it came about.

Tensors that this library returns leave their layout with the node that made them, which outlives
the tensor. Each function since has a node, which knows what came in. Views, conversions and
functions that work item by item are followed; any other ends the search. One that is known to have
taken a share of an axis for the whole is an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from distarray.layout import Layout, Replicate
from distarray.torch._layouts import LINEAGE, Placed, place
from distarray.torch._reduced import axes_of, reduces, refusal
from distarray.torch._reshaped import cut_axes, single_axes
from distarray.torch._viewed import layout_after, shape_before

_LONGEST = 12  # steps back, of all branches together

_ALIKE = "alike"
"""Steps whose result is what came in, perhaps of another dtype."""
_ITEMS = "items"
"""Steps that make of every item another one, alike on all ranks."""
_MIXED = "mixed"
"""Steps that may take further operands, item by item, of which autograd need not know."""
_VIEWED = "viewed"
_ALONG = "along"
"""Steps that normalise along some axes."""

_KINDS = {
    **dict.fromkeys(("ToCopy", "Clone", "Alias", "Contiguous"), _ALIKE),
    **dict.fromkeys(
        (
            *("Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Neg", "Abs", "Exp", "Sqrt", "Elu"),
            *("LeakyRelu", "Softplus", "Mish", "Hardtanh", "Hardswish", "Hardsigmoid"),
            *("LogSigmoid", "Erf", "Sin", "Cos", "Rsqrt", "Reciprocal", "Log"),
        ),
        _ITEMS,
    ),
    **dict.fromkeys(
        (
            *("Add", "Sub", "Rsub", "Mul", "Div", "Pow", "Where", "MaskedFill", "NativeDropout"),
            *("Clamp", "ClampMin", "Addcmul", "Addcdiv", "Maximum", "Minimum"),
        ),
        _MIXED,
    ),
    **dict.fromkeys(
        (
            *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"),
            *("Transpose", "Permute", "T"),
        ),
        _VIEWED,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "NativeLayerNorm", "FusedRmsNorm"), _ALONG),
}
_kinds: dict[type, str] = {}


def layout_by_lineage(tensor: torch.Tensor) -> Layout | None:
    """Return the layout that a tensor has by views and conversions of one that has; None else.

    The tensor is placed so, then.
    """
    found = _Search(_ALIKE).placed(tensor)
    if found is None or found.parts:
        return None
    place(tensor, *found)
    return found.layout


def placed_by_lineage(tensor: torch.Tensor) -> Placed | None:
    """Return how a tensor is placed by its way from such as are, item by item too; None if unknown.

    Where tensors meet, one that is known to be cut tells how all are: blocks of the same shape are
    blocks of the same cut. One that is known to be replicated does not, since others may differ by
    rank.

    Raises
    ------
    LayoutError
        On the way, or for another factor, a tensor was reduced over an axis that is cut.
    """
    return _Search(_ALIKE, _ITEMS, _MIXED, _ALONG).placed(tensor)


class _Search:
    """One way back from a tensor."""

    __slots__ = ("followed", "steps")

    def __init__(self, *followed: str) -> None:
        self.followed = followed
        self.steps = 0

    def placed(self, tensor: torch.Tensor) -> Placed | None:
        node = tensor.grad_fn
        return None if node is None else self._made(node, tensor.output_nr, tuple(tensor.shape))

    def _made(self, node: Any, number: int, shape: tuple[int, ...]) -> Placed | None:
        """Return how the output of a node is placed, which has this shape."""
        known: Placed | None = node.metadata.get(LINEAGE, {}).get(number)
        if known is not None:
            fits = not known.layout.has_partial and known.layout.local_shape() == shape
            return known if fits else None
        self.steps += 1
        kind = _kind(type(node))
        if not kind or self.steps > _LONGEST:
            return None
        if kind is _VIEWED:
            return self._viewed(node, number, shape)
        if kind not in self.followed:
            return None
        if kind is _MIXED:
            return self._mixed(node, shape)
        before, which = node.next_functions[number]
        found = None if before is None else self._made(before, which, shape)
        if kind is _ALONG and found is not None:
            _check(node, found)
            return found if _is_cut(found.layout) else None  # weights may differ by rank
        return found

    def _mixed(self, node: Any, shape: tuple[int, ...]) -> Placed | None:
        """Return how an operand of the full shape is placed that is cut: the nearest, if several.

        Where operands are broadcast, the others have fewer items than blocks of this shape.
        """
        operands = [entry for entry in node.next_functions if entry[0] is not None]
        placed = [e for e in operands if e[1] in e[0].metadata.get(LINEAGE, ())]
        for before, number in (*placed, *operands):
            found = self._made(before, number, shape)
            if found is not None and _is_cut(found.layout):
                others = [entry for entry in operands if entry != (before, number)]
                if not _kind_is_sum(node):
                    for other in others:
                        self._check_factor(*other)
                return found if self._agree(found, others, len(shape)) else None
        return None

    def _agree(self, found: Placed, others: list[Any], ndim: int) -> bool:
        """Tell whether no other operand is cut along an axis of which a rank may have one item."""
        if not single_axes(found.layout):
            return True  # the shapes have told
        for before, number in others:
            shape = _shape(before, number) or ()
            other = self._made(before, number, shape)
            if other is not None and _is_cut(other.layout):
                shift = ndim - len(shape)
                if {axis + shift for axis in cut_axes(other.layout)} != set(cut_axes(found.layout)):
                    return False
        return True

    def _check_factor(self, node: Any, number: int) -> None:
        """Raise where a factor was made of what is reduced over an axis that is cut."""
        if number in node.metadata.get(LINEAGE, ()):
            return
        self.steps += 1
        if self.steps > _LONGEST:
            return
        if reduces(node):
            before, which = node.next_functions[0]
            shape = None if before is None else _shape(before, which)
            found = None if shape is None else self._made(before, which, shape)
            if found is not None:
                _check(node, found)
        elif _kind(type(node)) is _MIXED:
            for before, which in node.next_functions:
                if before is not None:
                    self._check_factor(before, which)
        elif _kind(type(node)) or node.name().startswith("Expand"):
            before, which = node.next_functions[0]
            if before is not None:
                self._check_factor(before, which)

    def _viewed(self, node: Any, number: int, after: tuple[int, ...]) -> Placed | None:
        if _shape(node, number) != after:
            return None  # it has been broadcast since
        shape, how = shape_before(node, after)
        before, which = node.next_functions[0]
        found = None if before is None else self._made(before, which, shape)
        if found is None or found.parts:
            return None
        layout = layout_after(found.layout, shape, after, how)
        return None if layout is None else Placed(layout)


def _kind(node: type) -> str:
    """Return what a step does, "" where that is not known."""
    found = _kinds.get(node)
    if found is None:
        if issubclass(node, BackwardCFunction):  # a function of somebody's own, of whatever name
            return _ALIKE if node.__name__ == "BackwardHookFunctionBackward" else ""
        name = node.__name__.rstrip("0123456789").removesuffix("Backward")
        found = _kinds[node] = _KINDS.get(name, "")
    return found


def _kind_is_sum(node: Any) -> bool:
    """Tell whether a step adds: then a reduction is an addend, such as one that is 0."""
    return bool(node.name().startswith("AddBackward"))


def _check(node: Any, found: Placed) -> None:
    """Raise where a step worked along an axis that is cut.

    Along the first of several, the batch, data-parallel ranks may well take theirs alone.
    """
    layout = found.layout
    met = axes_of(node, layout.ndim).intersection(cut_axes(layout))
    if _is_cut(layout) and any(axis or layout.ndim == 1 for axis in met):
        raise refusal(node, layout)


def _shape(node: Any, number: int) -> tuple[int, ...] | None:
    """Return the shape of an output of a node."""
    told = node._input_metadata
    return tuple(told[number].shape) if number < len(told) else None


def _is_cut(layout: Layout) -> bool:
    return not any(type(p) is Replicate for p in layout.placements)
