"""The layout of a reshaped or converted output, found from autograd's record of how it came about.

Tensors that this library returns leave their layout with the node that made them, which outlives
the tensor. Each view and conversion since has a node that knows its input's shape.
"""

from __future__ import annotations

from typing import Any

import torch

from distarray.layout import Layout
from distarray.torch._carried import Axes, cut_axes, relabelled, reshaped_axes
from distarray.torch._layouts import LINEAGE, place

_LONGEST = 16  # steps back
_SAME = ("ToCopyBackward", "CloneBackward", "AliasBackward", "ContiguousBackward")
_RESHAPED = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward", "SqueezeBackward")
_PERMUTED = ("TransposeBackward", "PermuteBackward", "TBackward")


def layout_by_lineage(tensor: torch.Tensor) -> Layout | None:
    """Return the layout that a tensor has by its way from one that has; None where unknown.

    The tensor is placed so, then.
    """
    node: Any = tensor.grad_fn
    number = tensor.output_nr
    shapes = [tuple(tensor.shape)]
    steps: list[Any] = []
    while node is not None and len(steps) < _LONGEST:
        layout = node.metadata.get(LINEAGE, {}).get(number)
        if layout is not None:
            return _followed(tensor, layout, shapes[::-1], steps[::-1])
        before = _before(node, shapes[-1])
        if before is None:
            return None
        shapes.append(before)
        steps.append(node)
        node, number = node.next_functions[0]
    return None


def _before(node: Any, after: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape of the input of a step; None for a step of another kind."""
    name = node.name()
    if name.startswith(_SAME):
        return after
    if name.startswith(_RESHAPED):
        return tuple(node._saved_self_sym_sizes)
    if name.startswith(_PERMUTED):
        order = _order(node, len(after))
        return tuple(after[order.index(axis)] for axis in range(len(after)))
    if name.startswith("UnsqueezeBackward"):
        axis = _signed(node._saved_dim) % len(after)
        return after[:axis] + after[axis + 1 :]
    return None


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


def _followed(
    tensor: torch.Tensor, layout: Layout, shapes: list[tuple[int, ...]], steps: list[Any]
) -> Layout | None:
    if layout.has_partial or layout.local_shape() != shapes[0]:
        return None
    at: dict[int, int] = {axis: axis for axis in cut_axes(layout)}
    for node, before, after in zip(steps, shapes, shapes[1:], strict=False):
        name = node.name()
        found: Axes | None = None
        if name.startswith(_PERMUTED):
            order = _order(node, len(after))
            found = {axis: order.index(axis) for axis in at.values()}
        elif name.startswith("UnsqueezeBackward"):
            new = _signed(node._saved_dim) % len(after)
            found = {axis: axis + (axis >= new) for axis in at.values()}
        else:
            found = reshaped_axes(before, after, list(at.values()))
        if found is None:
            return None
        at = {axis: found[now] for axis, now in at.items()}
    result = relabelled(layout, at, shapes[-1])
    place(tensor, result)
    return result
