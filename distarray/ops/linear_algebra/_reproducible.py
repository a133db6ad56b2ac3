"""Products of matrices whose bits depend on the items alone, with the error of ordinary ones.

Matrices are cut into slices, integers of few bits below the largest magnitude of each
row or column, so that every product of two slices is exact: in any library's order, with or without
fused operations, and added up over ranks (K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications", Numer. Algorithms 59, 2012). Complex numbers are multiplied by their parts, as NumPy
fuses operations where the processor can.

How many bits are needed depends on the items: an ordinary product has an error of about `k * eps`
times `|x1| @ |x2|`, and slices one of `k` times the largest items of a row and a column. A product
of few leading bits of magnitudes, exact as well, bounds the former from below, and its least item
says how far the slices reach. Slices of different widths cover what is needed with fewest products:
where bits of `x1` from some place on meet only the first bits of `x2`, that is cut anew. Where some
items would need many more bits than others, these few are summed up exactly, as by `vecdot`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from math import floor, frexp, isnan, ldexp, prod
from typing import Any, Final, TypeAlias

import numpy as np

from distarray.comm import _backend, _memory
from distarray.core import (
    POINTWISE,
    BaseArray,
    elementwise,
    floating,
    reduce_block,
    reduction,
    replicated_layout,
    run_row,
)
from distarray.errors import DTypeError
from distarray.layout import Shard
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise._rounding import astype, imag, real, where
from distarray.ops.indexing._places import nonzero
from distarray.ops.manipulation._shape import broadcast_to, moveaxis
from distarray.ops.statistical import _reductions as reductions
from distarray.typing import Buffer, Shape

Product = Callable[[Any, Any], Any]

Box: TypeAlias = tuple[slice, ...]
Slices: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Of each slice of the left operand the last bit, and last bits of the right one's slices that it
meets; bits are counted from the largest item of a row or column, which is below 1."""

_FEW: Final = 10
"""Bits of the first look at most, so that libraries which round float32 to 11 bits agree."""
_USUAL: Final = 6
"""Products up to which the first look decides."""
_REACHES: Final = (12, 28)
"""Bits from a row's and a column's largest items down to `|x1| @ |x2|`, for which it is weighed
whether slices reach so far; and as many as the second look sees."""
_EXACT: Final = 64
"""So many times as long as in a product of slices an item takes by exact sums. Measured on Zen 3:
2.7 ns for each pair of items, beside 0.06."""
_PIECE: Final = 1 << 14
"""So many items at once, with what is computed of them, stay in the cache of a core."""
_GATHERED: Final = 1 << 22
"""Items of rows, and of columns, that a process gets at a time to sum up some items exactly."""


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


# --- how matrices are cut ------------------------------------------------------------------------


@functools.lru_cache(256)
def choose_slices(total: int, allowed: float) -> Slices:
    """Return the slices of fewest products whose error is allowed, and least with so many.

    Parameters
    ----------
    total : int
        Bits of a slice of the left operand and one of the right together.
    allowed : float
        The error of the product of two items, beside the largest of a row and a column.
    """
    reach = max(1, -frexp(allowed)[1])
    while error_of(found := _cover(total, reach)) > allowed:
        reach += 1
    while count_products(further := _cover(total, reach + 1)) == count_products(found):
        found, reach = further, reach + 1
    return found


def count_products(slices: Slices) -> int:
    return sum(len(bits) for _, bits in slices)


def error_of(slices: Slices) -> float:
    """Return what is left of the product of two items below 1, at most."""
    starts = [0, *(last + 1 for last, _ in slices)]  # what is left is half a unit at most
    error = 2.0 ** -starts[-1]
    for start, (_, bits) in zip(starts, slices, strict=False):
        error += 2.0 ** -(start + bits[-1] + 1)
    return error


def _cover(total: int, reach: int) -> Slices:
    """Return slices whose products have all pairs of bits whose places add up to `reach`."""

    @functools.cache
    def cover_from(start: int) -> tuple[int, int, Slices]:
        if start > reach:
            return 0, 0, ()
        choices = []
        for width in range(1, total):
            bits = [total - width]
            while bits[-1] < reach - start:
                bits.append(bits[-1] + 1 + total - width)
            count, slices, rest = cover_from(start + width + 1)
            choices.append((count + len(bits), slices + 1, ((start + width, tuple(bits)), *rest)))
        return min(choices)

    return cover_from(0)[2]


# --- local steps ---------------------------------------------------------------------------------


def _find_largest(block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool) -> Any:
    high = reduce_block(np.maximum, block, axes, dtype, keepdims)
    low = reduce_block(np.minimum, block, axes, dtype, keepdims)
    return _backend.namespace_of(block).maximum(high, -low)


_largest = reduction(
    "largest",
    "Return the largest magnitude.",
    _find_largest,
    "max",
    ("axis", "keepdims"),
    answers_name=False,
)


def _boxes(shape: Shape, largest: Buffer) -> Iterator[tuple[Box, Box]]:
    """Yield pieces of a block, and of what is the same along its rows or columns."""
    left = _PIECE if _backend.is_numpy(largest) else prod(shape)
    steps = []
    for n in reversed(shape):
        steps.append(max(1, min(n, left)))
        left //= steps[-1]
    ranges = [range(0, n, step) for n, step in zip(shape, reversed(steps), strict=True)]
    for corner in itertools.product(*ranges):
        box = tuple(slice(i, i + one.step) for i, one in zip(corner, ranges, strict=True))
        sides = zip(box[len(shape) - largest.ndim :], largest.shape, strict=True)
        yield box, tuple(slice(None) if n == 1 else side for side, n in sides)


def _exponents_of(largest: Buffer) -> Any:
    library = _backend.namespace_of(largest)
    return library.frexp(library.where(library.isfinite(largest), largest, 0))[1]


def _scale(x: Buffer, *exponents: Buffer) -> Buffer:
    """Return float64 items times powers of two; NumPy's ldexp takes 30 times as long."""
    library = _backend.namespace_of(x)
    if all(bool((abs(one) < 400).all()) for one in exponents):
        first, *others = (library.ldexp(1.0, one) for one in exponents)
        x = library.multiply(x, first, dtype=np.float64)
        for one in others:
            x *= one
        return x
    return library.ldexp(x.astype(np.float64), sum(exponents[1:], exponents[0]))


def _head(x: Buffer, largest: Buffer, bits: int, dtype: Any) -> Buffer:
    """Return the first bits of magnitudes, cut off.

    In rows or columns of zeros all are as large as can be, in those with what is not finite NaN.
    """
    library = _backend.namespace_of(x)
    out = _memory.empty(x.shape, dtype, _backend.device_of(x))
    for box, alike in _boxes(x.shape, largest):
        top = largest[alike]
        scaled = _scale(x[box], bits - _exponents_of(top))
        out[box] = library.floor(library.absolute(scaled, out=scaled), out=scaled)
        special = library.where(top == 0, 2.0**bits, np.nan)
        is_special = (top == 0) | ~library.isfinite(top)
        if is_special.any():
            out[box] = library.where(is_special, special, out[box])
    return out


def _cut(x: Buffer, largest: Buffer, chains: tuple[tuple[int, ...], ...]) -> Any:
    """Return slices: for each last bit in a chain the integers that those before it have left."""
    library = _backend.namespace_of(x)
    on = _backend.device_of(x)
    out = tuple(_memory.empty(x.shape, np.float64, on) for chain in chains for _ in chain)
    for box, alike in _boxes(x.shape, largest):
        exponents = _exponents_of(largest[alike])
        parts = iter(out)
        for chain in chains:
            rest = _scale(x[box], chain[0] - exponents)
            for last, following in itertools.zip_longest(chain, chain[1:]):
                part = library.rint(rest, out=next(parts)[box])
                if following is not None:
                    rest = library.subtract(rest, part, out=rest)
                    rest *= 2.0 ** (following - last)
    return out if len(out) > 1 else out[0]


def _add_terms(rows: Buffer, columns: Buffer, *terms: Buffer, weights: Any, dtype: Any) -> Buffer:
    """Return the sum of terms, integers times powers of two, the smallest first."""
    shape, on = terms[0].shape, _backend.device_of(terms[0])
    out = _memory.empty(shape, dtype, on)
    for (box, down), (_, across) in zip(_boxes(shape, rows), _boxes(shape, columns), strict=True):
        total = terms[0][box] * 2.0 ** -weights[0]
        for term, weight in zip(terms[1:], weights[1:], strict=True):
            total += term[box] * 2.0**-weight
        out[box] = _scale(total, _exponents_of(rows[down]), _exponents_of(columns[across]))
    return out


def _find_reach(heads: Buffer, pairs: Buffer, bits: int) -> Buffer:
    """Return how many bits items of `|x1| @ |x2|` are below the largest ones, at most.

    That is 0 where all terms are zero, and 9999 where no leading bits tell.
    """
    library = _backend.namespace_of(heads)
    reach = 2 * bits + 1 - library.frexp(heads)[1]
    return library.where(pairs == 0, 0, library.where(heads == 0, 9999, reach))


def _row(local: Callable[..., Any], nin: int, nout: int = 1, **static: Any) -> Any:
    function: Any = functools.partial(local, **static)
    function.nout = nout
    return elementwise(local.__name__.strip("_"), function, nin, POINTWISE, defer=None)


_row_of_heads = functools.lru_cache(64)(functools.partial(_row, _head, 2))
_row_of_slices = functools.lru_cache(256)(functools.partial(_row, _cut, 2))
_row_of_sums = functools.lru_cache(256)(functools.partial(_row, _add_terms))
_row_of_reach = functools.lru_cache(64)(functools.partial(_row, _find_reach, 2))


# --- products ------------------------------------------------------------------------------------


def _join_parts(real_part: Any, imag_part: Any) -> Any:
    library = _backend.namespace_of(real_part)
    joint = library.empty(real_part.shape, np.result_type(real_part.dtype, np.complex64))
    joint.real, joint.imag = real_part, imag_part
    return joint


_complex = elementwise("complex", _join_parts, 2, POINTWISE, defer=None)


def multiply_matrices(product: Product, sum_rows: Product, x1: Any, x2: Any, dtype: Any) -> Any:
    """Return the product of stacks of matrices.

    Parameters
    ----------
    product : callable
        The product of operands of one floating-point dtype, which may use any order and `Partial`
        results.
    sum_rows : callable
        The exact sums of products along the last axis of two arrays of one shape.
    x1, x2 : array
        Of shapes (..., m, k) and (..., k, n).
    dtype : dtype
        Of the result, floating point.
    """
    x1, x2 = (reductions.without_partial("matmul", x) for x in (x1, x2))
    narrow = np.empty(0, dtype).real.dtype

    def times(a: Any, b: Any) -> Any:
        a, b = (x if x.dtype.kind == "f" else astype(x, np.float64) for x in (a, b))
        return _multiply_real(product, sum_rows, a, b, narrow)

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


def _multiply_real(product: Product, sum_rows: Product, x1: Any, x2: Any, dtype: Any) -> Any:
    """Return the product of real matrices; what is not finite in it is as without slices."""
    if 0 in (*x1.shape, *x2.shape):
        return astype(product(x1, x2), dtype, copy=False)
    depth = (x1.shape[-1] - 1).bit_length()
    largest = _largest(x1, axis=-1, keepdims=True), _largest(x2, axis=-2, keepdims=True)
    half = min(_FEW, (24 - depth) // 2)  # so that sums of products of heads are exact
    kind: Any = np.float32
    if half < 4:
        half, kind = (53 - depth) // 2, np.float64
    heads = _row_of_heads(bits=half, dtype=kind)
    seen = float(reductions.min(product(heads(x1, largest[0]), heads(x2, largest[1]))))
    if isnan(seen):
        # Which items are infinite or NaN does not depend on any order.
        signs = [where(logic.isfinite(x), arithmetic.sign(x), x) for x in (x1, x2)]
        rest = [where(logic.isfinite(x), x, 0.0) for x in (x1, x2)]
        marks = product(*signs)
        known = _multiply_real(product, sum_rows, rest[0], rest[1], dtype)
        return where(logic.isfinite(marks), known, astype(marks, dtype))
    total, finest = 53 - depth, np.finfo(dtype).nmant + 1

    def choose(magnitude: float) -> Slices:
        # Half of an error of `k * eps` is left to the last rounding, and a tenth to all others.
        fraction, exponent = frexp(0.9 * magnitude)
        return choose_slices(total, ldexp(floor(8 * fraction) / 8, exponent - finest))

    if seen and count_products(slices := choose(seen * 4.0**-half)) <= _USUAL:
        return _multiply_slices(product, x1, x2, largest, slices, dtype)
    half = total // 2
    heads = _row_of_heads(bits=half, dtype=np.float64)
    pairs = product(*(astype(logic.not_equal(x, 0), np.float32) for x in (x1, x2)))
    reach = _row_of_reach(bits=half)(product(heads(x1, largest[0]), heads(x2, largest[1])), pairs)
    cost = float("inf")
    for bits in (*_REACHES, 2 * half):
        slices, beyond = choose(2.0**-bits), logic.greater(reach, bits)
        count = int(reductions.count_nonzero(beyond))
        takes = count_products(slices) + _EXACT * count / prod(reach.shape)
        if takes < cost:
            cost, best, rest, some = takes, slices, beyond, count
    found = _multiply_slices(product, x1, x2, largest, best, dtype)
    if some:
        _write_exactly(found, nonzero(rest), some, x1, x2, sum_rows)
    return found


def _multiply_slices(
    product: Product, x1: Any, x2: Any, largest: Any, slices: Slices, dtype: Any
) -> Any:
    lasts, chains = zip(*slices, strict=True)
    left = _row_of_slices(nout=len(lasts), chains=(lasts,))(x1, largest[0])
    right = _row_of_slices(nout=count_products(slices), chains=chains)(x2, largest[1])
    left, right = ([x] if hasattr(x, "shape") else x for x in (left, right))
    firsts = [i for i, chain in enumerate(chains) for _ in chain]
    places = [lasts[i] + last for i, last in zip(firsts, itertools.chain(*chains), strict=True)]
    order = sorted(range(len(places)), key=lambda i: -places[i])
    terms = [product(left[firsts[i]], right[i]) for i in order]
    weights = tuple(places[i] for i in order)
    add_terms = _row_of_sums(2 + len(terms), weights=weights, dtype=dtype)
    return add_terms(*largest, *terms)


def _write_exactly(
    found: Any, places: Any, count: int, x1: Any, x2: Any, sum_rows: Product
) -> None:
    """Write the exact sums of products, for which some rows and columns are brought together."""
    mesh, batch = found._layout.mesh, found.shape[:-2]
    lines = []
    for x in (x1, moveaxis(x2, -1, -2) if isinstance(x2, BaseArray) else np.moveaxis(x2, -1, -2)):
        if not isinstance(x, BaseArray):
            on = _backend.device_of(found._local)
            x = found._new(_backend.asarray(x, on), replicated_layout(mesh, x.shape))
        lines.append(broadcast_to(x, (*batch, *x.shape[-2:])))
    at_once = max(1, mesh.size * _GATHERED // x1.shape[-1])
    for start in range(0, count, at_once):
        some = [
            place[start : start + at_once].redistribute([Shard(0)] * mesh.ndim) for place in places
        ]
        rows, columns = lines[0][(*some[:-1],)], lines[1][(*some[:-2], some[-1])]
        found[tuple(some)] = sum_rows(rows, columns)
