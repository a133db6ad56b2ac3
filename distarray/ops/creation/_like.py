"""NumPy's creation functions with `like=`, and grids of coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.core import BaseArray, check_flag, register
from distarray.errors import ArgumentError
from distarray.ops.creation._asarray import (
    array,
    asanyarray,
    asarray,
    ascontiguousarray,
    asfortranarray,
)
from distarray.ops.creation._filled import empty, full, ones, zeros
from distarray.ops.creation._grids import fromfunction
from distarray.ops.creation._ranges import arange, eye, geomspace, identity, linspace, logspace, tri
from distarray.ops.elementwise._rounding import copy as copy_of
from distarray.ops.manipulation._reshape import reshape
from distarray.ops.manipulation._shape import broadcast_arrays

creators: dict[Callable[..., Any], tuple[Callable[..., Any], int]] = {
    np.arange: (arange, 4),
    np.array: (array, 2),
    np.asanyarray: (asanyarray, 3),
    np.asarray: (asarray, 2),
    np.ascontiguousarray: (ascontiguousarray, 2),
    np.asfortranarray: (asfortranarray, 2),
    np.empty: (empty, 2),
    np.eye: (eye, 4),
    np.fromfunction: (fromfunction, 2),
    np.full: (full, 3),
    np.geomspace: (geomspace, 5),
    np.identity: (identity, 2),
    np.linspace: (linspace, 6),
    np.logspace: (logspace, 6),
    np.ones: (ones, 2),
    np.tri: (tri, 4),
    np.zeros: (zeros, 2),
}
"""What NumPy's functions call with `like=` a distributed array, or with one as an end of a range,
on its mesh, and how many arguments by position mean the same; the next says how items lie in
memory, or along which axis."""


@register
def meshgrid(
    *arrays: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[Any, ...]:
    """Return the coordinates of the points of a grid, from those along each of its axes.

    Parameters
    ----------
    *arrays : DistArray or array
        Of one axis, or none. Plain arrays are the same on every process.
    copy : bool
        Arrays with memory of their own, that may be written into.
    sparse : bool
        Leave each array at length 1 along the axes of the others.
    indexing : {"xy", "ij"}
        Whether the first array belongs to the second axis and the second to the first, or all to
        theirs.

    Returns
    -------
    tuple of DistArray
        Each cut along its own axis, as the array that it is made from was.

    Raises
    ------
    ArgumentError
        If `indexing` is something else.

    Notes
    -----
    Distribution: nothing is sent.

    Examples
    --------
    >>> import distarray as da
    >>> x, y = da.meshgrid(da.arange(3), da.arange(2))
    >>> print(y)
    [[0 0 0]
     [1 1 1]]
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid got indexing={indexing!r}; it is 'xy' or 'ij'")
    sparse, copy = check_flag("meshgrid", "sparse", sparse), check_flag("meshgrid", "copy", copy)
    grids = []
    for i, x in enumerate(arrays):
        x = x if isinstance(x, BaseArray) else asarray(x)
        place = 1 - i if indexing == "xy" and i < 2 <= len(arrays) else i
        shape = [1] * len(arrays)
        shape[place] = x.size
        grids.append(reshape(x, shape))
    found = tuple(grids) if sparse or not grids else broadcast_arrays(*grids)
    return tuple(map(copy_of, found)) if copy else found
