"""Kernels of tiles in host memory: SciPy's, where it is installed, or else made of NumPy's."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

LEAF: Final = 32
"""Rows of a triangle that NumPy solves at once, in twice the operations; the rest is products."""

PANEL_LEAF: Final = 16
"""Columns of a panel that NumPy eliminates one by one; the rest is products."""


@functools.cache
def _scipy(name: str, dtype: Any) -> Any:
    """Return a function of BLAS or LAPACK for a dtype, or None where SciPy is not installed."""
    try:
        from scipy.linalg import get_blas_funcs, get_lapack_funcs
    except ImportError:
        return None
    find = get_lapack_funcs if name == "getrf" else get_blas_funcs
    return find(name, dtype=dtype)


def subtract_product(x: np.ndarray, a: np.ndarray, b: np.ndarray, scratch: np.ndarray) -> None:
    """Subtract `a @ b` from `x`; `scratch` has room for the product."""
    product = scratch[: len(a), : b.shape[1]]
    np.matmul(a, b, out=product)
    x -= product


def solve_triangle(triangle: np.ndarray, x: np.ndarray, lower: bool) -> None:
    """Put the solution of `triangle @ y = x` into `x`.

    Without SciPy it is made of small solutions and products. No triangle is inverted, so that all
    is backward stable (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapter 8).
    """
    trsm = _scipy("trsm", x.dtype)
    if trsm is not None and x.size and x.flags.f_contiguous:
        trsm(1, triangle, x, lower=lower, overwrite_b=True)
        return
    if trsm is not None and x.size and x.flags.c_contiguous:
        trsm(1, triangle.T, x.T, side=1, lower=not lower, overwrite_b=True)
        return
    size = len(triangle)
    starts = range(0, size, LEAF)
    for start in starts if lower else reversed(starts):
        stop = min(start + LEAF, size)
        rows = x[start:stop]
        done = slice(0, start) if lower else slice(stop, size)
        if done.stop > done.start:
            rows -= triangle[start:stop, done] @ x[done]
        rows[...] = np.linalg.solve(triangle[start:stop, start:stop], rows)


def eliminate_panel(panel: np.ndarray) -> np.ndarray:
    """Put the triangles of a panel into its place; return its rows in the order of the pivots."""
    height, width = panel.shape
    order = np.arange(height)
    getrf = _scipy("getrf", panel.dtype)
    if getrf is not None and panel.size:  # LAPACK complains of no rows on stderr
        triangles, pivots, _ = getrf(np.asfortranarray(panel))
        for k, pivot in enumerate(pivots.tolist()):
            order[k], order[pivot] = order[pivot], order[k]
        panel[...] = triangles
        return order
    for start in range(0, min(panel.shape), PANEL_LEAF):
        stop = min(start + PANEL_LEAF, height, width)
        leaf = np.ascontiguousarray(panel[start:, start:stop].T)
        rows = start + _eliminate_leaf(leaf)
        moved = np.flatnonzero(rows != np.arange(start, height))
        panel[start + moved] = panel[rows[moved]]
        order[start:] = order[rows]
        panel[start:, start:stop] = leaf.T
        lower = np.tril(panel[start:stop, start:stop], -1) + np.eye(stop - start, dtype=panel.dtype)
        rest = panel[start:stop, stop:]
        solve_triangle(lower, rest, lower=True)
        panel[stop:, stop:] -= panel[stop:, start:stop] @ rest
    return order


def _eliminate_leaf(columns: np.ndarray) -> np.ndarray:
    """Do the same for a few columns, which are the rows of the argument."""
    order = np.arange(columns.shape[1])
    for k, column in enumerate(columns):
        pivot = k + int(np.argmax(abs(column[k:])))
        if pivot != k:
            columns[:, [k, pivot]] = columns[:, [pivot, k]]
            order[[k, pivot]] = order[[pivot, k]]
        if column[k] != 0:
            column[k + 1 :] /= column[k]
        columns[k + 1 :, k + 1 :] -= np.outer(columns[k + 1 :, k], column[k + 1 :])
    return order
