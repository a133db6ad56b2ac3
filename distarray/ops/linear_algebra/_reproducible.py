"""Products of matrices whose bits depend on the items alone, with the error of ordinary ones.

Matrices are cut into slices, integers of few bits below the largest magnitude of each
row or column, so that every product of two slices is exact: in any library's order, with or without
fused operations, and added up over ranks (K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications", Numer. Algorithms 59, 2012). Complex numbers are multiplied by their parts, as NumPy
fuses operations where the processor can.

How many bits are needed depends on the items: an ordinary product has an error of about `k * eps`
times `|x1| @ |x2|`, and slices one of sums of the magnitudes of a row and a column. A product of
few leading bits of magnitudes, exact as well, bounds the former from below, and its least item says
how far the slices reach. Its largest one, and sums of leading bits, say how many bits a product may
have. Slices of different widths cover what is needed with fewest products, mostly three: where bits
of `x1` from some place on meet only the first bits of `x2`, that is cut anew. Where a bit more for
each would make them fewer, even and odd terms are multiplied apart. Where some items would need
many more bits than others, these few are summed up exactly, as by `vecdot`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from math import ceil, frexp, isnan, ldexp, prod
from typing import Any, Final, NamedTuple, TypeAlias

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
_FEWEST: Final = 3
"""Products that more bits at a time could not do without."""
_LONG: Final = 512
"""Terms from which on two products of half as many take hardly longer."""
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


class Bounds(NamedTuple):
    """What sums of magnitudes are at most, beside the largest of a row and a column."""

    rows: float
    columns: float
    pairs: float
    """Of products of a row and a column."""
    depth: float
    """Of so many items that are 1 at most."""


def bounds_of(*most: float) -> Bounds:
    """Return bounds of few bits, so that others like them find the same slices in the cache."""
    return Bounds(*(min(most[-1], _round_up(one)) for one in most))


def _round_up(number: float) -> float:
    """Return the next number of five bits."""
    fraction, exponent = frexp(number)
    return ldexp(ceil(32 * fraction), exponent - 5)


@functools.lru_cache(256)
def choose_slices(bounds: Bounds, of_part: Bounds, least: int, allowed: float) -> Slices:
    """Return the slices of fewest products whose error is allowed, and least with so many.

    Parameters
    ----------
    bounds : Bounds
        Of items rounded up after `least` bits.
    of_part : Bounds
        Of what is multiplied at a time, which is to be exact.
    least : int
        Bits of a first slice at least.
    allowed : float
        The error of an item, beside the largest of a row and a column.
    """
    reach = max(1, 1 - frexp(allowed / min(bounds.rows, bounds.columns))[1])
    while (found := _cover(bounds, of_part, least, reach))[1] > allowed:
        reach += 1
    while (further := _cover(bounds, of_part, least, reach := reach + 1))[0] == found[0]:
        found = min(found, further)
    return found[2]


def count_products(slices: Slices) -> int:
    return sum(len(bits) for _, bits in slices)


def _exact_bits(bound: float) -> int:
    """Return the bits of two slices whose products add up exactly, as many as one may have."""
    fraction, exponent = frexp(bound)
    return min(50, 53 - exponent + (fraction == 0.5))


def _cover(bounds: Bounds, of_part: Bounds, least: int, reach: int) -> tuple[int, float, Slices]:
    """Return slices whose products have all pairs of bits whose places add up to `reach`.

    They are those of fewest products, and of these the ones of least error, which go before them.
    """
    # What is left of an item behind its first slice is half a unit at most, but no small number.
    of_firsts, of_left = _exact_bits(of_part.pairs), _exact_bits(of_part.rows)
    of_right, of_rests = _exact_bits(of_part.columns), _exact_bits(of_part.depth)

    @functools.cache
    def cover_from(start: int) -> tuple[int, float, Slices]:
        if start > reach:
            return 0, bounds.columns * 2.0**-start, ()
        first, further = (of_right, of_rests) if start else (of_firsts, of_left)
        choices = []
        for width in range(1 if start else least, min(further, first - least + 1)):
            bits = [first - width]
            while bits[-1] < reach - start:
                bits.append(bits[-1] + 1 + further - width)
            count, error, rest = cover_from(start + width + 1)
            error += (bounds.depth if start else bounds.rows) * 2.0 ** -(start + bits[-1] + 1)
            choices.append((count + len(bits), error, ((start + width, tuple(bits)), *rest)))
        return min(choices)

    return cover_from(0)


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


def _align(largest: Buffer, fraction: Any) -> Buffer:
    """Return magnitudes, doubled where they have larger fractions than the largest one of all.

    So the exponents of those down to half of that one are equal, wherever powers of two are.
    """
    library = _backend.namespace_of(largest)
    above = library.frexp(largest)[0] > fraction
    return library.ldexp(largest, above.astype(np.int32))


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


def _scale(x: Buffer, *powers: Buffer) -> Buffer:
    """Return float64 items times powers of two, or two to the power of integers."""
    library = _backend.namespace_of(x)
    if powers[0].dtype.kind == "i":
        return library.ldexp(x.astype(np.float64, copy=False), sum(powers[1:], powers[0]))
    x = library.multiply(x, powers[0], dtype=np.float64)
    for power in powers[1:]:
        x *= power
    return x


def _powers(*exponents: Buffer) -> Any:
    """Return powers of two if all are moderate, as ldexp takes NumPy 30 times as long."""
    if all(bool((abs(one) < 400).all()) for one in exponents):
        return [_backend.namespace_of(one).ldexp(1.0, one) for one in exponents]
    return exponents


def _head(x: Buffer, largest: Buffer, bits: int, dtype: Any) -> Buffer:
    """Return the first bits of magnitudes, cut off.

    In rows or columns of zeros all are half as large as can be, in those with what is not finite
    NaN.
    """
    library = _backend.namespace_of(x)
    out = _memory.empty(x.shape, dtype, _backend.device_of(x))
    (power,) = _powers(bits - _exponents_of(largest))
    is_special = (largest == 0) | ~library.isfinite(largest)
    special = library.where(largest == 0, 2.0 ** (bits - 1), np.nan)
    has_special = bool(is_special.any())
    for box, alike in _boxes(x.shape, largest):
        scaled = _scale(x[box], power[alike])
        out[box] = library.floor(library.absolute(scaled, out=scaled), out=scaled)
        if has_special:
            out[box] = library.where(is_special[alike], special[alike], out[box])
    return out


def _cut(x: Buffer, largest: Buffer, chains: tuple[tuple[int, ...], ...]) -> Any:
    """Return slices, below 1: for each last bit in a chain what those before it have left."""
    library = _backend.namespace_of(x)
    on = _backend.device_of(x)
    out = tuple(_memory.empty(x.shape, np.float64, on) for chain in chains for _ in chain)
    (power,) = _powers(-_exponents_of(largest))
    for box, alike in _boxes(x.shape, largest):
        scaled = _scale(x[box], power[alike])
        parts = iter(out)
        for chain in chains:
            rest = scaled
            for last, following in itertools.zip_longest(chain, chain[1:]):
                # An addition rounds to the last bit of the larger number.
                part, larger = next(parts)[box], 1.5 * 2.0 ** (52 - last)
                library.add(rest, larger, out=part)
                part -= larger
                if following is not None:
                    rest = rest - part
    return out if len(out) > 1 else out[0]


def _add_terms(rows: Buffer, columns: Buffer, *terms: Buffer, dtype: Any) -> Buffer:
    """Return the sum of terms, the smallest first."""
    shape, on = terms[0].shape, _backend.device_of(terms[0])
    out = _memory.empty(shape, dtype, on)
    rows, columns = _powers(_exponents_of(rows), _exponents_of(columns))
    for (box, down), (_, across) in zip(_boxes(shape, rows), _boxes(shape, columns), strict=True):
        total = terms[0][box]
        for term in terms[1:]:
            total = total + term[box]
        out[box] = _scale(total, rows[down], columns[across])
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


_row_of_tops = _row(_align, 2)
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
    depth = x1.shape[-1]
    largest = [
        _row_of_tops(one, frexp(float(reductions.max(one)))[0])
        for one in (_largest(x1, axis=-1, keepdims=True), _largest(x2, axis=-2, keepdims=True))
    ]
    half = min(_FEW, (24 - (depth - 1).bit_length()) // 2)  # so that sums of heads are exact
    kind: Any = np.float32
    if half < 4:
        half, kind = _FEW, np.float64
    heads = _row_of_heads(bits=half, dtype=kind)
    firsts = heads(x1, largest[0]), heads(x2, largest[1])
    magnitudes = product(*firsts)
    seen = float(reductions.min(magnitudes))
    if isnan(seen):
        # Which items are infinite or NaN does not depend on any order.
        signs = [where(logic.isfinite(x), arithmetic.sign(x), x) for x in (x1, x2)]
        rest = [where(logic.isfinite(x), x, 0.0) for x in (x1, x2)]
        marks = product(*signs)
        known = _multiply_real(product, sum_rows, rest[0], rest[1], dtype)
        return where(logic.isfinite(marks), known, astype(marks, dtype))

    # Heads are rounded up for what is no less than sums of magnitudes.
    def find_bounds(parts: int) -> list[float]:
        found = []
        for head, axis in zip(firsts, (-1, -2), strict=True):
            some = [head[_part(axis, i, parts)] if parts > 1 else head for i in range(parts)]
            sums = [reductions.sum(one, axis=axis, dtype=np.float64) for one in some]
            most = max(float(reductions.max(one)) for one in sums)
            found.append((most + ceil(depth / parts)) * 2.0**-half)
        return found

    rows, columns = find_bounds(1)
    pairs = float(reductions.max(magnitudes)) * 4.0**-half
    pairs += (rows + columns) * 2.0**-half
    bounds = bounds_of(rows, columns, pairs, depth)
    # Half a unit is left to the last rounding, a tenth of that to others, but to halves a unit.
    allowed = (depth - (0.55 if depth < _LONG else 1.1)) * float(np.finfo(dtype).eps)
    if seen:
        error = -_round_up(-allowed * seen * 4.0**-half)
        slices, parts = choose_slices(bounds, bounds, half, error), 1
        if count_products(slices) > _FEWEST and depth >= _LONG:
            rows, columns = find_bounds(2)
            of_part = bounds_of(rows, columns, min(rows, columns, pairs), ceil(depth / 2))
            others = choose_slices(bounds, of_part, half, error)
            if count_products(others) < count_products(slices):
                slices, parts = others, 2
        if count_products(slices) <= _USUAL:
            return _multiply_slices(product, x1, x2, largest, slices, dtype, parts)
    least = half
    half = (53 - (depth - 1).bit_length()) // 2
    heads = _row_of_heads(bits=half, dtype=np.float64)
    pairs = product(*(astype(logic.not_equal(x, 0), np.float32) for x in (x1, x2)))
    reach = _row_of_reach(bits=half)(product(heads(x1, largest[0]), heads(x2, largest[1])), pairs)
    cost = float("inf")
    for bits in (*_REACHES, 2 * half):
        slices = choose_slices(bounds, bounds, least, allowed * 2.0**-bits)
        beyond = logic.greater(reach, bits)
        count = int(reductions.count_nonzero(beyond))
        takes = count_products(slices) + _EXACT * count / prod(reach.shape)
        if takes < cost:
            cost, best, rest, some = takes, slices, beyond, count
    found = _multiply_slices(product, x1, x2, largest, best, dtype)
    if some:
        _write_exactly(found, nonzero(rest), some, x1, x2, sum_rows)
    return found


def _part(axis: int, start: int, step: int) -> Any:
    return (..., slice(start, None, step), *[slice(None)] * (-1 - axis))


def _multiply_slices(
    product: Product, x1: Any, x2: Any, largest: Any, slices: Slices, dtype: Any, parts: int = 1
) -> Any:
    lasts, chains = zip(*slices, strict=True)
    once = [c for i, c in enumerate(chains) if not any(d[: len(c)] == c for d in chains[:i])]
    prefixes = [chain[:count] for chain in once for count in range(1, len(chain) + 1)]
    cut_left = _row_of_slices(nout=len(lasts), chains=(lasts,))
    cut_right = _row_of_slices(nout=len(prefixes), chains=tuple(once))
    terms = []
    for part in range(parts):
        y1, y2 = (
            x[_part(axis, part, parts)] if parts > 1 else x for x, axis in ((x1, -1), (x2, -2))
        )
        left, right = cut_left(y1, largest[0]), cut_right(y2, largest[1])
        left, right = ([x] if hasattr(x, "shape") else x for x in (left, right))
        after = dict(zip(prefixes, right, strict=True))
        for one, last, chain in zip(left, lasts, chains, strict=True):
            for count, other in enumerate(chain, 1):
                terms.append((last + other, product(one, after[chain[:count]])))
    terms.sort(key=lambda term: -term[0])
    add_terms = _row_of_sums(2 + len(terms), dtype=dtype)
    return add_terms(*largest, *(term for _, term in terms))


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
