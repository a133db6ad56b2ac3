"""Products of matrices whose bits depend on the items alone.

Matrices are cut into slices, integers of few bits below the largest magnitude of each
row or column, so that every product of two slices is exact: in any library's order, with or without
fused operations, and added up over ranks (K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications", Numer. Algorithms 59, 2012). Complex numbers are multiplied by their parts, as NumPy
fuses operations where the processor can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import POINTWISE, elementwise, floating, run_row
from distarray.errors import DTypeError
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise import _rounding as rounding
from distarray.ops.elementwise._rounding import astype, imag, real, where
from distarray.ops.statistical import _reductions as reductions

Product = Callable[[Any, Any], Any]


def result_dtype(name: str, x1: Any, x2: Any) -> Any:
    """Return the dtype of a product of floating-point operands; None of others, which are exact.

    Raises
    ------
    DTypeError
        If it is wider than float64 or complex128.
    """
    dtype = np.result_type(x1.dtype, x2.dtype)
    if dtype.kind not in floating:
        return None
    if np.empty(0, dtype).real.itemsize > 8:
        raise DTypeError(
            f"{name}(reproducible=True) of {x1.dtype} and {x2.dtype}: it multiplies numbers of at "
            "most 64 bits; convert with astype"
        )
    return dtype


def _join_parts(real_part: Any, imag_part: Any) -> Any:
    library = _backend.namespace_of(real_part)
    joint = library.empty(real_part.shape, np.result_type(real_part.dtype, np.complex64))
    joint.real, joint.imag = real_part, imag_part
    return joint


_complex = elementwise("complex", _join_parts, 2, POINTWISE, defer=None)


def multiply_matrices(product: Product, x1: Any, x2: Any, dtype: Any) -> Any:
    """Return the product of stacks of matrices.

    Parameters
    ----------
    product : callable
        The product of float64 operands, which may use any order and `Partial` results.
    x1, x2 : array
        Of shapes (..., m, k) and (..., k, n).
    dtype : dtype
        Of the result, floating point.
    """
    x1, x2 = (reductions.without_partial("matmul", x) for x in (x1, x2))
    narrow = np.empty(0, dtype).real.dtype

    def times(a: Any, b: Any) -> Any:
        wide = [astype(x, np.float64, copy=False) for x in (a, b)]
        return _multiply_finite_or_not(product, wide[0], wide[1], narrow)

    if dtype.kind == "f":
        return times(x1, x2)
    if x1.dtype.kind != "c":
        parts = times(x1, real(x2)), times(x1, imag(x2))
    elif x2.dtype.kind != "c":
        parts = times(real(x1), x2), times(imag(x1), x2)
    else:
        a, b, c, d = real(x1), imag(x1), real(x2), imag(x2)
        parts = (
            arithmetic.subtract(times(a, c), times(b, d)),
            arithmetic.add(times(a, d), times(b, c)),
        )
    return run_row(_complex, parts)


def _multiply_finite_or_not(product: Product, x1: Any, x2: Any, dtype: Any) -> Any:
    """Return the product of real matrices; what is not finite in it is as without slices."""
    if 0 in (*x1.shape, *x2.shape):
        return astype(product(x1, x2), dtype, copy=False)
    largest = [
        reductions.max(arithmetic.abs(x), axis, keepdims=True) for x, axis in ((x1, -1), (x2, -2))
    ]
    finite = [reductions.all(logic.isfinite(x)) for x in largest]
    if logic.logical_and(*finite):
        return _multiply_slices(product, x1, x2, largest, dtype)
    # Which items are infinite or NaN does not depend on any order.
    signs = [where(logic.isfinite(x), arithmetic.sign(x), x) for x in (x1, x2)]
    rest = [where(logic.isfinite(x), x, 0.0) for x in (x1, x2)]
    marks = product(*signs)
    known = _multiply_finite_or_not(product, rest[0], rest[1], dtype)
    return where(logic.isfinite(marks), known, astype(marks, dtype))


def _multiply_slices(product: Product, x1: Any, x2: Any, largest: Any, dtype: Any) -> Any:
    # Sums over the axis of products of two integers, each up to 2**bits, are up to 2**53.
    bits = (53 - (x1.shape[-1] - 1).bit_length()) // 2
    count = -(-(np.finfo(dtype).nmant + 3) // bits)
    rows, first = _slices(x1, largest[0], bits, count)
    columns, second = _slices(x2, largest[1], bits, count)
    total = None
    for order in reversed(range(count)):  # the smallest first
        total = None if total is None else arithmetic.multiply(total, 2.0**-bits)
        for i in range(order + 1):
            term = product(first[i], second[order - i])
            total = term if total is None else arithmetic.add(total, term)
    exponents = arithmetic.add(arithmetic.add(rows, columns), np.int32(-2 * bits))
    return astype(arithmetic.ldexp(total, exponents), dtype, copy=False)


def _slices(x: Any, largest: Any, bits: int, count: int) -> tuple[Any, list[Any]]:
    """Return exponents and slices: integers, each worth 2**-bits of the one before it."""
    _, exponents = arithmetic.frexp(largest)
    rest = arithmetic.ldexp(x, arithmetic.subtract(np.int32(bits), exponents))
    slices = []
    for last in reversed(range(count)):
        slices.append(rounding.rint(rest))
        if last:
            rest = arithmetic.multiply(arithmetic.subtract(rest, slices[-1]), 2.0**bits)
    return exponents, slices
