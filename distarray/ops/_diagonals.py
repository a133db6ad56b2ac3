"""Matrices made of their diagonals: items stay with their process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _memory
from distarray.core import (
    Call,
    Layouts,
    Op,
    Step,
    check_distributed,
    check_integer,
    device_of,
    register,
    run_one,
)
from distarray.errors import ShapeError
from distarray.layout import Layout
from distarray.ops.families._relabel import carry_cuts
from distarray.ops.linear_algebra._products import diagonal
from distarray.ops.manipulation._reshape import ravel
from distarray.ops.manipulation._shape import reduce_unless_sum
from distarray.typing import Buffer


def _diag_spec(_: Op, call: Call) -> Layouts:
    (layout,), k = call.layouts, call.static
    source: Layout = reduce_unless_sum(layout)
    top, size = max(-k, 0), layout.shape[0] + abs(k)
    offsets = None
    if layout.sharding_axes(0):
        inner = layout.partition(0).offsets[1:-1]
        offsets = {0: (0, *(i + top for i in inner), size)}
    free = source.replace(boundaries=None)
    return Layouts((source,), carry_cuts(free, (size, size), {0: 0}, offsets))


def _diag_bind(step: Step) -> Callable[[Buffer], Buffer]:
    k, output = step.call.static, step.output
    (start, _), (first, _) = step.sources[0].own_box[0], output.own_box[0]
    place = (start + max(-k, 0) - first) * output.shape[1] + start + max(k, 0)

    def put(block: Buffer) -> Buffer:
        out = _memory.zeros(output.local_shape(), block.dtype, device_of(output))
        if block.size:
            out.reshape(-1)[place :: output.shape[1] + 1][: block.size] = block
        return out

    return put


_diag = Op("diag", np.diag, _diag_spec, bind=_diag_bind)


@register
def diag(x: Any, /, k: int = 0) -> Any:
    """Return diagonal `k` of a matrix, or a matrix with the items of `x` on it and zeros elsewhere.

    Parameters
    ----------
    x : DistArray
        Of one axis or two.
    k : int
        Which diagonal: above the main one if positive.

    Returns
    -------
    DistArray
        Of a matrix what `diagonal` returns. Else a matrix whose rows lie where their items are.

    Raises
    ------
    ShapeError
        If `x` has another number of axes.

    Notes
    -----
    Distribution: nothing is sent.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.diag(da.arange(1, 3)))
    [[1 0]
     [0 2]]
    """
    ndim = check_distributed("diag", x)._layout.ndim
    k = check_integer("diag", "k", k)
    if ndim == 2:
        return diagonal(x, k)
    if ndim != 1:
        raise ShapeError(f"diag got an array of shape {x.shape}; it takes one axis or two")
    return run_one(_diag, x, k)


@register
def diagflat(x: Any, /, k: int = 0) -> Any:
    """Return a matrix with the items of `x`, in flat order, on diagonal `k`, and zeros elsewhere.

    Parameters
    ----------
    x : DistArray
    k : int
        Which diagonal: above the main one if positive.

    Returns
    -------
    DistArray
        As of `diag`.

    Examples
    --------
    >>> import distarray as da
    >>> da.diagflat(da.ones((2, 2)), 1).shape
    (5, 5)
    """
    return diag(ravel(check_distributed("diagflat", x)), k)
