"""Places of items that are not zero: each process finds those of its block.

How many these are makes the boundaries of the results, as it does for a mask. What is compared and,
where later axes are cut, moved to be cut along the first axis alone are truth values, one byte an
item.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    BaseArray,
    Call,
    Layouts,
    Op,
    Step,
    elementwise,
    plain_buffer,
    register,
    run,
)
from distarray.errors import ArgumentError
from distarray.ops.families._relabel import carry_cuts
from distarray.ops.indexing._masks import cut_first_alone, merged_layout
from distarray.typing import Buffer

_INDEX = np.dtype(np.int64)
_TUPLE, _ROWS, _FLAT = "nonzero", "argwhere", "flatnonzero"


def _truth(block: Buffer) -> Buffer:
    """Return whether items count as true; of text and structures NumPy tells no other way."""
    if block.dtype.kind not in "USV":
        return block.astype(bool)
    truths = np.zeros(block.shape, bool)
    truths.reshape(-1)[np.flatnonzero(block)] = True
    return truths


_true = elementwise("nonzero", _truth, 1)


def truths(x: Any, name: str) -> Any:
    """Return an array of booleans, not `Partial`: which items of another are not zero."""
    if isinstance(x, BaseArray):
        return x if x._local.dtype == bool and not x._layout.has_partial else _true(x)
    x = plain_buffer(x, name)
    return x if x.dtype == bool else _truth(x)


@register
def nonzero(x: Any, /) -> tuple[Any, ...]:
    """Return the places of items that are not zero.

    Parameters
    ----------
    x : array
        With at least one axis; numbers, booleans, times or text.

    Returns
    -------
    tuple of DistArray
        For each axis the indices along it, int64, in C order of the items. All have one layout: cut
        as the first axis of `x`, with the boundaries that the items give (see `rebalance`).

    Raises
    ------
    ArgumentError
        If `x` has no axes.
    MeshError
        If this process is not in the mesh: the shape depends on values there.

    Notes
    -----
    Distribution: the processes along the mesh axes that cut the result tell each other how many
    items they have, 8 bytes each, and nothing else moves, unless later axes are cut: then truth
    values, a byte an item, are first cut along the first axis alone. Memory besides the result: a
    byte an item of the block.

    Examples
    --------
    >>> import distarray as da
    >>> rows, columns = da.nonzero(da.asarray([[0, 3], [4, 0]]))
    >>> print(rows, columns)
    [0 1] [1 0]
    """
    if not (x._layout.ndim if isinstance(x, BaseArray) else np.ndim(x)):
        raise ArgumentError("nonzero of an array without axes, which has no places; compare x != 0")
    return _find(x, _TUPLE)  # type: ignore[no-any-return]


@register
def argwhere(x: Any, /) -> Any:
    """Return the places of items that are not zero, a row of indices for each.

    Returns
    -------
    DistArray
        int64 of shape (items, `x.ndim`), cut along axis 0; see `nonzero`, also for what moves.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.argwhere(da.asarray([[0, 3], [4, 0]])))
    [[0 1]
     [1 0]]
    """
    if isinstance(x, BaseArray) and not x._layout.ndim:
        return _find(x[None], _ROWS)[:, :0]  # type: ignore[index]
    return _find(x, _ROWS)


@register
def flatnonzero(x: Any, /) -> Any:
    """Return the places of items that are not zero in the flattened array (in C order).

    Returns
    -------
    DistArray
        int64, cut along its one axis; see `nonzero`, also for what moves.

    Examples
    --------
    >>> import distarray as da
    >>> print(da.flatnonzero(da.asarray([[0, 3], [4, 0]])))
    [1 2]
    """
    if isinstance(x, BaseArray) and not x._layout.ndim:
        x = x[None]  # type: ignore[index]
    return _find(x, _FLAT)


def _find(x: Any, form: str) -> Any:
    """Return the places of items that are not zero, in the form of one of the functions."""
    if not isinstance(x, BaseArray):
        return getattr(np, form)(plain_buffer(x, form))
    return run(_rows[form], (truths(x, form),))


def _spec(op: Op, call: Call) -> Layouts:
    (layout,) = call.layouts
    source = cut_first_alone(layout, 0, layout.ndim)
    found = merged_layout(source, 0, layout.ndim)
    if op.name == _ROWS:
        found = carry_cuts(found, (0, layout.ndim), {0: 0})
    return Layouts((source,), found, counted=0)


def _bind(step: Step) -> Callable[[Buffer], Any]:
    source, form = step.sources[0], step.op.name
    start = source.own_box[0][0]

    def function(mask: Buffer) -> Any:
        if form == _FLAT:
            return _shifted(np.flatnonzero(mask), start * prod(source.shape[1:]))
        if form == _ROWS:
            rows = np.argwhere(mask)
            rows[:, 0] += start
            return rows
        first, *others = np.nonzero(mask)
        return (_shifted(first, start), *others)

    return function


def _shifted(places: Buffer, start: int) -> Buffer:
    """Return places counted from the start of the whole array, in memory that can be kept."""
    out = _memory.empty(places.shape, _INDEX, _backend.device_of(places))
    return np.add(places, start, out=out)


_rows = {
    name: Op(name, getattr(np, name), _spec, dtypes=lambda *_: (None, _INDEX), bind=_bind)
    for name in (_TUPLE, _ROWS, _FLAT)
}
