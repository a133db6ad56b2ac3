"""What a view in autograd's record was made of: the shape before, and where cut axes have gone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from distarray.layout import Layout
from distarray.torch._carried import relabelled
from distarray.torch._reduced import signed
from distarray.torch._reshaped import Axes, cut_axes, reshaped_axes, single_axes, squeezed_axes


def shape_before(node: Any, after: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """Return the shape of the input of a view, and how it is seen.

    By a new axis, an order, or the axes that are dropped if they are of length 1.
    """
    name = node.name()
    if name.startswith("Unsqueeze"):
        axis = signed(node._saved_dim) % len(after)
        return after[:axis] + after[axis + 1 :], axis
    if name.startswith(("Transpose", "Permute", "TBackward")):
        order = _order(node, len(after))
        return tuple(after[order.index(axis)] for axis in range(len(after))), tuple(order)
    shape = tuple(node._saved_self_sym_sizes)
    if name.startswith("Squeeze"):
        told = getattr(node, "_saved_dim", range(len(shape)))
        dropped = [told] if isinstance(told, int) else told
        return shape, frozenset(signed(axis) % len(shape) for axis in dropped if shape)
    return shape, None


@lru_cache(maxsize=4096)
def layout_after(
    layout: Layout,
    shape: tuple[int, ...],
    after: tuple[int, ...],
    how: int | tuple[int, ...] | frozenset[int] | None,
) -> Layout | None:
    """Return the layout of a view; None where a cut axis is no axis any longer."""
    cut = cut_axes(layout)
    axes: Axes | None
    if isinstance(how, int):
        axes = {axis: axis + (axis >= how) for axis in cut}
    elif isinstance(how, frozenset):
        axes = squeezed_axes(shape, how, layout)
    elif how is not None:
        axes = {axis: how.index(axis) for axis in cut}
    else:
        axes = reshaped_axes(shape, after, cut, single_axes(layout))
    return None if axes is None else relabelled(layout, axes, after)


def _order(node: Any, ndim: int) -> list[int]:
    """Return which axis of the input is at each place of the result."""
    order = list(range(ndim))
    if node.name().startswith("Permute"):
        return [signed(axis) % ndim for axis in node._saved_dims]
    if node.name().startswith("TBackward"):
        return order[::-1]
    i, j = signed(node._saved_dim0) % ndim, signed(node._saved_dim1) % ndim
    order[i], order[j] = order[j], order[i]
    return order
