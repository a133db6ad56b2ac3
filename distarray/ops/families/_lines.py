"""Lines: arrays cut such that a process has all items along an axis, for functions of these."""

from __future__ import annotations

from typing import Any

from distarray.core import move
from distarray.errors import ArgumentError
from distarray.ops.families._relabel import move_cuts, uncut_axes

LINE_BYTES = 1 << 20
"""An array that is one line is copied to every process, if it has at most so many bytes."""


def make_whole(name: str, x: Any, axis: int) -> Any:
    """Return `x`, reduced, with every line along an axis in one block: the longest other is cut.

    Raises
    ------
    ArgumentError
        If `x` is one line of more than `LINE_BYTES` that is cut.
    """
    layout = x._layout
    source = layout.without_partial()
    others = [other for other in range(layout.ndim) if other != axis and layout.shape[other] > 1]
    if others:
        target = move_cuts(source, (axis,), max(others, key=lambda other: layout.shape[other]))
    else:
        target = uncut_axes(source, (axis,))
    if target is layout:
        return x
    if not set(layout.sharding_axes(axis)).isdisjoint(target.replicated_axes):
        nbytes = layout.size * x.dtype.itemsize
        if nbytes > LINE_BYTES:
            raise ArgumentError(
                f"{name} along axis {axis} of shape {layout.shape}: a line has {nbytes} bytes, and "
                "every process would need it whole; call the function with x.full_array() where "
                "there is room for it"
            )
    return x._new(move(name, x._local, layout, target), target)
