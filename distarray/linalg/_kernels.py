"""Kernels of tiles in host memory: SciPy's, where it is installed, or else made of NumPy's."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.comm.kernels import limit_openblas

LEAF: Final = 64
"""Rows of a triangle that are solved for at once, by NumPy in twice the operations, by BLAS at half
of its speed in products; the rest is products. No more columns than that are solved for at once."""

PANEL_LEAF: Final = 16
"""Columns of a panel that NumPy eliminates one by one; the rest is products."""

_GET_NAME: Final = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_GET_POINTER: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
"""What tells a capsule's signature and address, which Cython has no name in Python for."""


@functools.cache
def _scipy(name: str, dtype: Any) -> Callable[..., Any] | None:
    """Return a function of BLAS or LAPACK for a dtype, or None where SciPy is not installed.

    It is one that SciPy has for Cython: those for Python copy what is cut out of a larger matrix.
    Of "quick trsm" it is the latter, which is called in 2 us instead of 6.
    """
    try:
        from scipy.linalg import cython_blas, cython_lapack, get_blas_funcs
    except ImportError:
        return None
    limit_openblas()  # SciPy has one of its own
    if name == "quick trsm":
        return get_blas_funcs("trsm", dtype=dtype)
    module = cython_lapack if name in ("getrf", "laswp") else cython_blas
    letters = {"f": "s", "d": "d", "F": "c", "D": "z"}
    capsule = module.__pyx_capi__.get(letters.get(np.dtype(dtype).char, "") + name)
    if capsule is None:
        return None
    signature = _GET_NAME(capsule)
    if b" int *" not in signature:  # of 64 bits
        return None
    kinds = [ctypes.c_void_p] * (signature.count(b",") + 1)
    return ctypes.CFUNCTYPE(None, *kinds)(_GET_POINTER(capsule, signature))


def _call(function: Callable[..., None], *arguments: bytes | int | np.ndarray) -> None:
    """Call a function of Fortran with the bytes of what it reads, integers, and arrays."""
    # A list has a length: tuples made of a map are kept by the thousand, in Python's free lists.
    function(*[_address(one) for one in arguments])


def _address(value: bytes | int | np.ndarray) -> bytes | int:
    if isinstance(value, int):
        return value.to_bytes(4, sys.byteorder)
    return value if isinstance(value, bytes) else int(value.ctypes.data)


@functools.cache
def _bytes_of(number: int, dtype: Any) -> bytes:
    return np.array(number, dtype).tobytes()


def _leading_dimension(x: np.ndarray) -> int:
    """Return how many items apart rows begin, or 0 where their own do not lie side by side."""
    rows, columns = x.shape
    if columns > 1 and x.strides[1] != x.itemsize:
        return 0
    if rows < 2:
        return max(columns, 1)
    distance, rest = divmod(x.strides[0], x.itemsize)
    return distance if not rest and distance >= columns else 0


def _as_fortran(x: np.ndarray) -> tuple[bytes, int, np.ndarray]:
    """Return "N" where a matrix is its transpose to Fortran, else "T", and its leading dimension.

    If it is neither, the last result is a copy that is.
    """
    for letter, seen in ((b"N", x), (b"T", x.T)):
        if distance := _leading_dimension(seen):
            return letter, distance, x
    return b"N", max(x.shape[1], 1), np.ascontiguousarray(x)


def subtract_product(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Subtract `a @ b` from `x`."""
    if not (a.size and b.size):
        return
    if not _leading_dimension(x):
        x, a, b = x.T, b.T, a.T
    gemm, distance = _scipy("gemm", x.dtype), _leading_dimension(x)
    if gemm is None or not distance or not a.dtype == b.dtype == x.dtype:
        height = max(a.size, b.size) // x.shape[1]  # so that a product is no larger than they are
        for start in range(0, len(x), height):
            x[start : start + height] -= a[start : start + height] @ b
    else:
        (a_letter, a_distance, a), (b_letter, b_distance, b) = _as_fortran(a), _as_fortran(b)
        letters, sizes = (b_letter, a_letter), (x.shape[1], len(x), len(b))
        minus, one = _bytes_of(-1, x.dtype), _bytes_of(1, x.dtype)
        _call(gemm, *letters, *sizes, minus, b, b_distance, a, a_distance, one, x, distance)


def decompose_finite(x: np.ndarray, compute_uv: bool = True, **options: Any) -> Any:
    """Return singular value decompositions, or raise where LAPACK may not return."""
    if compute_uv:
        check_finite(x)
    svd: Any = np.linalg.svd  # whose stub knows literals alone
    return svd(x, compute_uv=compute_uv, **options)


def check_finite(x: np.ndarray) -> None:
    """Raise the error of a decomposition that does not converge where an item is not finite."""
    if not np.isfinite(x).all():
        raise np.linalg.LinAlgError("SVD did not converge; NaN or infinities are among the items")


def scales_of_tiny(numbers: np.ndarray) -> np.ndarray:
    """Return powers of two that make subnormal numbers large enough to divide by, and 1 for others.

    Reciprocals of subnormal numbers overflow; BLAS and complex division make some. A complex number
    counts as one where both its parts do, so that its size may be that of normal ones.
    """
    finfo, sizes = np.finfo(numbers.dtype), abs(numbers)
    is_tiny = (sizes > 0) & (sizes < 2 * finfo.tiny)
    return np.where(is_tiny, finfo.eps**-2, finfo.dtype.type(1))


def solve_triangle(triangle: np.ndarray, x: np.ndarray, lower: bool, unit: bool = False) -> None:
    """Put the solution of `triangle @ y = x` into `x`, where `unit` with ones on the diagonal.

    Nothing else of `triangle` is looked at, so that two may lie in one matrix.
    Without SciPy it is made of small solutions and products. No triangle is inverted, so that all
    is backward stable (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapter 8).
    """
    size, quick = len(triangle), _scipy("quick trsm", x.dtype)
    if not unit and abs(triangle.diagonal()).min(initial=1) < np.finfo(triangle.dtype).tiny:
        factors = scales_of_tiny(triangle.diagonal())[:, None]
        triangle = triangle * factors
        x *= factors
    if quick is not None and 0 < size <= 2 * LEAF and x.size and x.flags.carray:
        quick(1, triangle.T, x.T, side=1, lower=not lower, diag=unit, overwrite_b=True)
        return
    if quick is not None and x.shape[1] <= LEAF:  # what BLAS does of it takes less than calls do
        _solve_leaf(triangle, x, lower, unit)
        return
    starts = range(0, size, LEAF)
    for start in starts if lower else reversed(starts):
        leaf = slice(start, min(start + LEAF, size))
        done = slice(0, start) if lower else slice(leaf.stop, size)
        subtract_product(x[leaf], triangle[leaf, done], x[done])
        _solve_leaf(triangle[leaf, leaf], x[leaf], lower, unit)


def _solve_leaf(triangle: np.ndarray, x: np.ndarray, lower: bool, unit: bool) -> None:
    trsm = _scipy("trsm", x.dtype)
    if trsm is None or triangle.dtype != x.dtype:
        triangle = np.tril(triangle) if lower else np.triu(triangle)
        if unit:
            np.fill_diagonal(triangle, 1)
        try:
            x[...] = np.linalg.solve(triangle, x)
        except np.linalg.LinAlgError:  # NaN or what underflows makes a pivot 0: in one process
            _solve_by_rows(triangle, x, lower)
    elif x.shape[1] == 1 and (trsv := _scipy("trsv", x.dtype)) is not None:
        letter, distance, triangle = _as_fortran(triangle)  # read once, as it is more than all else
        half = b"U" if lower == (letter == b"N") else b"L"
        column = x[:, 0] if x.flags.c_contiguous else np.ascontiguousarray(x[:, 0])
        modes = half, b"T" if letter == b"N" else b"N", b"U" if unit else b"N"
        _call(trsv, *modes, len(x), triangle, distance, column, 1)
        x[:, 0] = column
    elif x.size:
        x_letter, x_distance, solved = _as_fortran(x)
        letter, distance, triangle = _as_fortran(triangle)
        side, sizes = (b"R", x.T.shape) if x_letter == b"N" else (b"L", x.shape)
        half = b"U" if lower == (letter == b"N") else b"L"
        letters = side, half, b"N" if letter == x_letter else b"T", b"U" if unit else b"N"
        one = _bytes_of(1, x.dtype)
        _call(trsm, *letters, *sizes, one, triangle, distance, solved, x_distance)
        if solved is not x:
            x[...] = solved


def _solve_by_rows(triangle: np.ndarray, x: np.ndarray, lower: bool) -> None:
    size = len(triangle)
    with np.errstate(all="ignore"):
        for i in range(size) if lower else reversed(range(size)):
            done = slice(0, i) if lower else slice(i + 1, size)
            x[i] = (x[i] - triangle[i, done] @ x[done]) / triangle[i, i]


def eliminate_panel(panel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the triangles of a panel in one matrix, and its rows in the order of the pivots."""
    height, width = panel.shape
    order = np.arange(height)
    getrf = _scipy("getrf", panel.dtype)
    if getrf is not None and panel.size:  # LAPACK complains of no rows on stderr
        triangles = np.array(np.ascontiguousarray(panel), order="F")
        pivots = np.empty(min(panel.shape), np.int32)
        _call(getrf, height, width, triangles, height, pivots, np.empty(1, np.int32))
        if not _has_skipped(triangles):
            own = np.arange(height, dtype=np.int32)  # rows that are left stay where they come to be
            own[: len(pivots)] = pivots - 1
            return triangles, order_of(own)
    panel = panel.copy()
    for start in range(0, min(panel.shape), PANEL_LEAF):
        stop = min(start + PANEL_LEAF, height, width)
        leaf = panel[start:, start:stop].T.copy()
        rows = start + _eliminate_leaf(leaf)
        moved = np.flatnonzero(rows != np.arange(start, height))
        panel[start + moved] = panel[rows[moved]]
        order[start:] = order[rows]
        panel[start:, start:stop] = leaf.T
        rest = panel[start:stop, stop:]
        solve_triangle(panel[start:stop, start:stop], rest, lower=True, unit=True)
        panel[stop:, stop:] -= panel[stop:, start:stop] @ rest
    return panel, order


def order_of(pivots: np.ndarray) -> np.ndarray:
    """Return the order into which interchanges, one for each row, bring rows."""
    size, swap = len(pivots), _scipy("laswp", np.float64)
    if swap is not None and size:
        rows = np.arange(float(size))
        _call(swap, 1, rows, size, 1, size, np.add(pivots, 1, dtype=np.int32, casting="unsafe"), 1)
        return rows.astype(np.int64)
    order = [*range(size)]
    for k, row in enumerate(pivots.tolist()):
        order[k], order[row] = order[row], order[k]
    return np.array(order, np.int64)


def _has_skipped(triangles: np.ndarray) -> bool:
    """Tell whether OpenBLAS may have skipped a pivot, as it does subnormal ones.

    It neither divides by them nor brings them to the diagonal: a 0 may be there instead.
    """
    diagonal = triangles.diagonal()
    if scales_of_tiny(diagonal).max() > 1:
        return True
    return any(triangles[k:, k].any() for k in np.flatnonzero(diagonal == 0))


def _eliminate_leaf(columns: np.ndarray) -> np.ndarray:
    """Do the same for a few columns, which are the rows of the argument."""
    order = np.arange(columns.shape[1])
    for k, column in enumerate(columns):
        pivot = k + int(np.argmax(abs(column[k:])))
        if pivot != k:
            columns[:, [k, pivot]] = columns[:, [pivot, k]]
            order[[k, pivot]] = order[[pivot, k]]
        if column[k] != 0:
            factor = scales_of_tiny(column[k])
            column[k + 1 :] = column[k + 1 :] * factor / (column[k] * factor)
        columns[k + 1 :, k + 1 :] -= np.outer(columns[k + 1 :, k], column[k + 1 :])
    return order
