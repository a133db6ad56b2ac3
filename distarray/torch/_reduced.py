"""Over which axes of its input a step in autograd's record reduces or normalises.

A rank that reduces over an axis of which it has a share computes another number than one process.
"""

from __future__ import annotations

from typing import Any

from distarray.errors import LayoutError
from distarray.layout import Layout

_REDUCTIONS = frozenset(
    (
        *("Sum", "Mean", "Nansum", "Prod", "Amax", "Amin", "Max", "Min", "Median", "Logsumexp"),
        *("LinalgVectorNorm", "Norm", "Std", "Var", "StdMean", "VarMean"),
    )
)


def _name(node: Any) -> str:
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def reduces(node: Any) -> bool:
    """Tell whether a step reduces: items of its input meet, in the input's first operand."""
    return _name(node) in _REDUCTIONS


def axes_of(node: Any, ndim: int) -> frozenset[int]:
    """Return along which axes such a step works; all where none is told."""
    shape = getattr(node, "_saved_normalized_shape", None)
    if shape is not None:
        return frozenset(range(ndim - len(shape), ndim))
    told = getattr(node, "_saved_dim", None)
    if told is None or told == ():
        return frozenset(range(ndim))
    axes = (told,) if isinstance(told, int) else told
    return frozenset(signed(axis) % ndim for axis in axes) if ndim else frozenset()


def signed(axis: int) -> int:
    """Return an axis that autograd holds as an unsigned number."""
    return axis - (1 << 64) if axis >= 1 << 63 else axis


def refusal(node: Any, layout: Layout) -> LayoutError:
    """Return the error of what was computed over a cut axis of a tensor with a layout."""
    return LayoutError(
        f"the input was computed from a tensor placed as {layout} by a reduction over an axis that "
        f"is cut ({_name(node)} in autograd's record: a softmax, a norm, a mean), of which "
        "each rank saw its share only. Let the style that the tensor comes from pass output_layouts"
        "=da.Replicate(), and this one input_layouts=da.Replicate(). Where a result of each rank's "
        "alone is meant, say how it is placed: dt.redistribute(x, mesh, [da.Shard(-1)], "
        "[da.Shard(-1)])"
    )
