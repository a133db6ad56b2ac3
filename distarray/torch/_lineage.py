"""The layout of a tensor that has none itself, found from autograd's record of how it came about.

Tensors that this library returns leave their layout with the node that made them, which outlives
the tensor. Each function since has a node, which knows what came in. Views, conversions and
functions that work item by item are followed; any other ends the search.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from distarray.layout import Layout, Replicate
from distarray.torch._carried import relabelled
from distarray.torch._followed import Axes, cut_axes, reshaped_axes, single_axes, squeezed_axes
from distarray.torch._layouts import LINEAGE, Placed, place

_LONGEST = 12  # steps back, of all branches together

_ALIKE = "alike"
"""Steps whose result is what came in, perhaps of another dtype."""
_ITEMS = "items"
"""Steps that make of every item another one, alike on all ranks."""
_MIXED = "mixed"
"""Steps that may take further operands, item by item, of which autograd need not know."""
_VIEWED = "viewed"

_KINDS = {
    **dict.fromkeys(("ToCopy", "Clone", "Alias", "Contiguous"), _ALIKE),
    **dict.fromkeys(
        (
            *("Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Neg", "Abs", "Exp", "Sqrt", "Elu"),
            *("LeakyRelu", "Softplus", "Mish", "Hardtanh", "Hardswish", "Hardsigmoid"),
            *("LogSigmoid", "Erf", "Sin", "Cos"),
        ),
        _ITEMS,
    ),
    **dict.fromkeys(
        (
            *("Add", "Sub", "Rsub", "Mul", "Div", "Pow", "Where", "MaskedFill", "NativeDropout"),
            *("Clamp", "Addcmul", "Addcdiv", "Maximum", "Minimum"),
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
    """
    return _Search(_ALIKE, _ITEMS, _MIXED).placed(tensor)


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
        return None if before is None else self._made(before, which, shape)

    def _mixed(self, node: Any, shape: tuple[int, ...]) -> Placed | None:
        """Return how an operand of the full shape is placed that is cut: the nearest, if several.

        Where operands are broadcast, the others have fewer items than blocks of this shape.
        """
        operands = [entry for entry in node.next_functions if entry[0] is not None]
        for before, number in operands:
            if number in before.metadata.get(LINEAGE, ()):
                found = self._made(before, number, shape)
                if found is not None and _is_cut(found.layout):
                    return found
        for before, number in operands:
            found = self._made(before, number, shape)
            if found is not None and _is_cut(found.layout):
                return found
        return None

    def _viewed(self, node: Any, number: int, after: tuple[int, ...]) -> Placed | None:
        if _shape(node, number) != after:
            return None  # it has been broadcast since
        shape, how = _before(node, after)
        before, which = node.next_functions[0]
        found = None if before is None else self._made(before, which, shape)
        if found is None or found.parts:
            return None
        layout = _seen(found.layout, shape, after, how)
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


def _shape(node: Any, number: int) -> tuple[int, ...] | None:
    """Return the shape of an output of a node."""
    told = node._input_metadata
    return tuple(told[number].shape) if number < len(told) else None


def _is_cut(layout: Layout) -> bool:
    return not any(type(p) is Replicate for p in layout.placements)


# --- views ---------------------------------------------------------------------------------------


def _before(node: Any, after: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """Return the shape of the input of a view, and how it is seen.

    By a new axis, an order, or the axes that are dropped if they are of length 1.
    """
    name = node.name()
    if name.startswith("Unsqueeze"):
        axis = _signed(node._saved_dim) % len(after)
        return after[:axis] + after[axis + 1 :], axis
    if name.startswith(("Transpose", "Permute", "TBackward")):
        order = _order(node, len(after))
        return tuple(after[order.index(axis)] for axis in range(len(after))), tuple(order)
    before = tuple(node._saved_self_sym_sizes)
    if name.startswith("Squeeze"):
        told = getattr(node, "_saved_dim", range(len(before)))
        dropped = [told] if isinstance(told, int) else told
        return before, frozenset(_signed(axis) % len(before) for axis in dropped if before)
    return before, None


@lru_cache(maxsize=4096)
def _seen(
    layout: Layout,
    before: tuple[int, ...],
    after: tuple[int, ...],
    how: int | tuple[int, ...] | frozenset[int] | None,
) -> Layout | None:
    """Return the layout of a view; None where a cut axis is no axis any longer."""
    cut = cut_axes(layout)
    axes: Axes | None
    if isinstance(how, int):
        axes = {axis: axis + (axis >= how) for axis in cut}
    elif isinstance(how, frozenset):
        axes = squeezed_axes(before, how, layout)
    elif how is not None:
        axes = {axis: how.index(axis) for axis in cut}
    else:
        axes = reshaped_axes(before, after, cut, single_axes(layout))
    return None if axes is None else relabelled(layout, axes, after)


def _order(node: Any, ndim: int) -> list[int]:
    """Return which axis of the input is at each place of the result."""
    order = list(range(ndim))
    if node.name().startswith("Permute"):
        return [_signed(axis) % ndim for axis in node._saved_dims]
    if node.name().startswith("TBackward"):
        return order[::-1]
    i, j = _signed(node._saved_dim0) % ndim, _signed(node._saved_dim1) % ndim
    order[i], order[j] = order[j], order[i]
    return order


def _signed(axis: int) -> int:
    """Return an axis that autograd holds as an unsigned number."""
    return axis - (1 << 64) if axis >= 1 << 63 else axis
