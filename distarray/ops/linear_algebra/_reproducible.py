"""Products of matrices whose bits depend on the items alone, with the error of ordinary ones.

Those of few terms are exact sums of rounded products, as of vectors, where items of rows and of
columns are so near to each other that two levels of a kernel hold all of them
(`comm/kernels/_exact_products`). They need no BLAS, and one number of all processes.

Other matrices are cut into slices, integers of few bits below the largest magnitude of each
row or column, so that every product of two slices is exact: in any library's order, with or without
fused operations, and added up over ranks (K. Ozaki, T. Ogita, S. Oishi, S. M. Rump, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications", Numer. Algorithms 59, 2012). Complex ones become real ones of twice as many terms,
as NumPy fuses operations where the processor can.

How many bits are needed depends on the items: an ordinary product has an error of about `k * eps`
times `|x1| @ |x2|`, and slices one of sums of the magnitudes of a row and a column. A product of
few leading bits of magnitudes, exact as well, bounds the former from below, and its least item says
how far the slices reach. Its largest one, and sums of leading bits, say how many bits a product may
have. Slices of different widths cover what is needed with fewest products, mostly three: where bits
of `x1` from some place on meet only the first bits of `x2`, that is cut anew. Where a bit more for
each would make them fewer, the terms are multiplied in parts, whose sums are rounded once: so their
order does not matter. Where some items would need many more bits than others, these few are summed
up exactly, as by `vecdot`.

Rows and columns are scaled by the power of two above their largest items, or by twice that: of
alike rows some exceed a power of two and others do not, and then their sums differ by half.

Where a process has the blocks that it multiplies, it does all of that with these as plain arrays,
and the processes exchange a few numbers; else every step is an operation of distributed arrays.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor, frexp, inf, isnan, ldexp, prod
from types import EllipsisType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm.kernels import address_of, kernel, run_faster
from distarray.core import (
    POINTWISE,
    BaseArray,
    Op,
    elementwise,
    errors_raise,
    floating,
    is_plain,
    products_of,
    reduce_block,
    reduction,
    run_row,
    scratch_of_thread,
    sum_exactly,
)
from distarray.errors import DTypeError
from distarray.layout import Layout, Partial, Shard
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.ops.elementwise._rounding import astype, imag, real, where
from distarray.ops.families._values import read_values
from distarray.ops.indexing._places import nonzero
from distarray.ops.manipulation._joining import stack
from distarray.ops.manipulation._reshape import reshape
from distarray.ops.manipulation._shape import broadcast_to, moveaxis
from distarray.ops.statistical import _reductions as reductions
from distarray.typing import Buffer, Shape

Product = Callable[[Any, Any], Any]
Fits = Callable[[Any, Any], Layout | None]
Agree = Callable[[list[float]], list[float]]

Box: TypeAlias = tuple[slice | EllipsisType, ...]
Slices: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]
"""Of each slice of the left operand the last bit, and last bits of the right one's slices that it
meets; bits are counted from the largest item of a row or column, which is below 1."""

_FIRST_BITS: Final = 10
"""Bits of the first look at most, so that libraries which round float32 to 11 bits agree."""
_FEWEST_PRODUCTS: Final = 3
"""Products that more bits at a time could not do without."""
_LONG_AXIS: Final = 256
"""Terms from which on two products of half as many take hardly longer."""
_WIDTHS: Final = 4
"""So many widths of a slice are tried for each number of its products, the widest first. All would
take 3 to 10 ms, as long as a product of 512 rows, and save one product in 1 of 100 cases."""
_SHARE: Final = 17 / 32
"""Of a sum, about what parts of its terms come to at most where these are multiplied in parts."""
_HALVED_FROM: Final = 11 / 16
"""Sums of rows are halved from this part of the largest on, if the least is half of it at most:
those of alike items are within a tenth or two of one number, or of twice of it."""
_USUAL_PRODUCTS: Final = 6
"""Products up to which the first look decides."""
_REACHES: Final = (12, 28)
"""Bits from a row's and a column's largest items down to `|x1| @ |x2|`, for which it is weighed
whether slices reach so far; and as many as the second look sees."""
_EXACT_COST: Final = 64
"""So many times as long as in a product of slices an item takes by exact sums. Measured on Zen 3:
2.7 ns for each pair of items, beside 0.06."""
_CUT_COST: Final = 6
"""So many times as long as for a plain copy NumPy takes to cut a matrix, or to find first bits."""
_PIECE: Final = 1 << 15
"""So many items at once, with what is computed of them, stay in the cache of a core."""
_GATHERED_ITEMS: Final = 1 << 22
"""Items of rows, and of columns, that a process gets at a time to sum up some items exactly."""
_FEW_TERMS: Final = {"d": 1 << 26, "D": 1 << 27, "f": 1 << 24, "F": 1 << 22}
"""Terms of a product of two matrices that are summed up exactly: as many as of 400, 512, 256 and
160 rows. On Zen 5 the kernel takes 0.07 ns for two real numbers, 2 to 3.5 times as long as the
BLAS, slices 3 to 4.5 times; NumPy takes 5 ns."""
_SHORT: Final = 1024
_LONGEST: Final = 8
"""Terms of such sums at most, or times as many as rows or columns: as processes need all terms."""
_APART: Final = 47
"""Powers of two between items of a row, and of a column, together, for which it is exact: one less
for each doubling of terms from 4096 on."""
_FARTHEST: Final = {8: 400, 4: 30}
"""Powers of two from 1 to items of float64 and float32 whose sums are never too large or small."""
_TERMS_AT_ONCE: Final = 1 << 22
"""Products that are in the memory of a device at a time."""
_SUM_COST: Final = 16
"""So many times as long as for a plain copy of float64 terms NumPy takes to multiply and sum up."""


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
    """Return the next number of seven bits."""
    fraction, exponent = frexp(number)
    return ldexp(ceil(128 * fraction), exponent - 7)


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
    def cover_from(start: int) -> tuple[int, float, tuple[int, ...]]:
        """Return how many products follow, their error, and how the next slice is cut.

        That is its width, and first bit, step and number of those of the right operand.
        """
        if start > reach:
            return 0, bounds.columns * 2.0**-start, ()
        first, further = (of_right, of_rests) if start else (of_firsts, of_left)
        choices, tried, before = [], 0, 0
        for width in range(min(further, first - least + 1), 0 if start else least - 1, -1):
            bit, step = first - width, 1 + further - width
            count = 1 + max(0, -((bit + start - reach) // step))
            tried = tried + 1 if count == before else 1
            before = count
            if tried <= _WIDTHS:
                more, error, _ = cover_from(start + width + 1)
                last = start + bit + (count - 1) * step
                error += (bounds.depth if start else bounds.rows) * 2.0 ** -(last + 1)
                choices.append((count + more, error, (width, bit, step, count)))
            elif count == 1:
                break
        return min(choices)

    slices, start = [], 0
    while start <= reach:
        width, bit, step, count = cover_from(start)[2]
        slices.append((start + width, tuple(range(bit, bit + count * step, step))))
        start += width + 1
    return (*cover_from(0)[:2], tuple(slices))


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
    if prod(shape) <= _PIECE or not _backend.is_numpy(largest):
        yield (...,), (...,)
        return
    left, steps = _PIECE, []
    for n in reversed(shape):
        steps.append(max(1, min(n, left)))
        left //= steps[-1]
    ranges = [range(0, n, step) for n, step in zip(shape, reversed(steps), strict=True)]
    for corner in itertools.product(*ranges):
        box = tuple(slice(i, i + one.step) for i, one in zip(corner, ranges, strict=True))
        sides = zip(box[len(shape) - largest.ndim :], largest.shape, strict=True)
        yield box, tuple(slice(None) if n == 1 else side for side, n in sides)


def _exponents_of(largest: Buffer) -> Any:
    """Return exponents of powers of two that no finite item exceeds."""
    library = _backend.namespace_of(largest)
    return library.frexp(library.where(library.isfinite(largest), largest, 0))[1]


def _scale(x: Buffer, out: Buffer, *powers: Buffer) -> Buffer:
    """Write items times powers of two, or two to the power of integers, to float64 `out`."""
    library = _backend.namespace_of(x)
    if powers[0].dtype.kind == "i":
        return library.ldexp(x.astype(np.float64, copy=False), sum(powers[1:], powers[0]), out=out)
    for power in powers:
        x = library.multiply(x, power, out=out)
    return out


def _powers(*exponents: Buffer) -> Any:
    """Return powers of two if all are moderate, as ldexp takes NumPy 30 times as long."""
    if all(bool((abs(one) < 400).all()) for one in exponents):
        return [_backend.namespace_of(one).ldexp(1.0, one) for one in exponents]
    return exponents


class _Rows(NamedTuple):
    """A matrix, or its transpose, whose rows have their items side by side."""

    block: Buffer
    is_scaled: bool
    """Each row by a power of two; else each column."""


def _rows_of(x: Buffer, scales: Buffer) -> _Rows | None:
    """Return the rows of a matrix whose scales have such a shape; None where no kernel reads it."""
    if not _backend.is_numpy(x) or x.ndim != 2 or not is_plain(x):
        return None
    of_rows = scales.shape == (len(x), 1)
    if x.strides[1] == x.itemsize:
        return _Rows(x, of_rows)
    return _Rows(x.T, not of_rows) if x.strides[0] == x.itemsize else None


def _facts(rows: _Rows) -> tuple[int, ...]:
    """Return the first arguments of the kernels."""
    block = rows.block
    count, length = block.shape
    return address_of(block), count, block.strides[0] // block.itemsize, length, rows.is_scaled


def _run_faster(
    job: str,
    name: str,
    rows: _Rows | None,
    by_kernel: Callable[[Callable[..., Any]], object],
    by_numpy: Callable[[], object],
) -> None:
    if rows is None:
        by_numpy()
        return
    kind = rows.block.dtype.str[1:]
    run = kernel("distarray.comm.kernels._slices", name, kind)
    run_faster(f"{job} {kind}", rows.block.nbytes, run, by_kernel, by_numpy, _CUT_COST)


def _find_heads(x: Any, axis: int, bits: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Return the largest magnitudes in rows or columns, the first bits of all, and their sums."""
    found: list[Any] = []

    def by_kernel(run: Callable[..., int]) -> None:
        assert rows is not None
        heads = _memory.empty(rows.block.shape, np.float32)
        lines = heads.shape[0 if rows.is_scaled else 1]
        shape = (lines, 1) if rows.is_scaled else (1, lines)
        largest, powers, sums = np.empty(shape), np.empty(shape), np.empty(shape, np.float32)
        if run(*_facts(rows), bits, *map(address_of, (largest, powers, heads, sums))):
            by_numpy()  # as float32 does not hold all scales
        else:
            found.extend(one if rows.block is x else one.T for one in (largest, heads, sums))

    def by_numpy() -> None:
        largest = _largest(x, axis=axis, keepdims=True)
        heads = _apply(_head, x, largest, bits=bits, dtype=dtype)
        found.extend((largest, heads, _sum_of(heads, axis)))

    rows = None
    if dtype == np.float32 and not isinstance(x, BaseArray):
        shape = (len(x), 1) if axis == -1 else (1, x.shape[-1])
        rows = _rows_of(x, np.broadcast_to(0, shape))
    _run_faster("reduce heads", "find_heads", rows, by_kernel, by_numpy)
    largest, heads, sums = found
    return largest, heads, sums


@np.errstate(all="ignore")  # rounded to float32, items may be zero, or infinite beside such
def _head(x: Buffer, largest: Buffer, bits: int, dtype: Any) -> Buffer:
    """Return the first bits of magnitudes, cut off.

    Those in float32 are rounded to it first, which what `_look` allows leaves room for. In rows or
    columns of zeros all are half as large as can be, in those with what is not finite NaN.
    """
    library = _backend.namespace_of(x)
    out = _memory.empty(x.shape, dtype, _backend.device_of(x))
    exponents = bits - _exponents_of(largest)
    is_narrow = out.dtype == np.float32 and bool((abs(exponents) < 100).all())
    (power,) = (library.ldexp(np.float32(1), exponents),) if is_narrow else _powers(exponents)
    is_special = (largest == 0) | ~library.isfinite(largest)
    special = library.where(largest == 0, 2.0 ** (bits - 1), np.nan)
    has_special = bool(is_special.any())
    spare = _spare(x)
    for box, alike in _boxes(x.shape, largest):
        some = out[box]
        if is_narrow:
            some[...] = x[box]
            library.multiply(some, power[alike], out=some)
        else:
            some[...] = _scale(x[box], _as_piece(spare, x[box]), power[alike])
        library.floor(library.absolute(some, out=some), out=some)
        if has_special:
            out[box] = library.where(is_special[alike], special[alike], out[box])
    return out


def _spare(x: Buffer) -> Buffer:
    """Return memory for float64 items of a piece."""
    size = min(x.size, _PIECE) if _backend.is_numpy(x) else x.size
    return _memory.empty((size,), np.float64, _backend.device_of(x))


def _as_piece(spare: Buffer, piece: Buffer) -> Buffer:
    return spare[: piece.size].reshape(piece.shape)


def _clip(heads: Buffer, most: float) -> Buffer:
    """Return heads, but none that is more than `most`."""
    library = _backend.namespace_of(heads)
    out = _memory.empty(heads.shape, heads.dtype, _backend.device_of(heads))
    return library.minimum(heads, heads.dtype.type(most), out=out)


def _halve(heads: Buffer, sums: Buffer, most: float) -> Buffer:
    """Return heads, half of them in rows or columns whose sums are more than `most`."""
    library = _backend.namespace_of(heads)
    out = _memory.empty(heads.shape, heads.dtype, _backend.device_of(heads))
    part = library.where(sums > most, heads.dtype.type(0.5), heads.dtype.type(1))
    return library.multiply(heads, part, out=out)


def _find_exponents(largest: Buffer, sums: Buffer, most: float) -> Any:
    """Return exponents, one more in rows or columns whose sums are more than `most`."""
    return _exponents_of(largest) + (sums > most).astype(np.int32)


def _cut(x: Buffer, exponents: Buffer, chains: tuple[tuple[int, ...], ...]) -> Any:
    """Return slices, below 1: for each last bit in a chain what those before it have left."""
    lengths = [*map(len, chains)]
    # An addition rounds to the last bit of the larger number.
    larger = np.array([1.5 * 2.0 ** (52 - last) for chain in chains for last in chain])
    (power,) = _powers(-exponents)
    found: list[Any] = []

    def by_kernel(run: Callable[..., object]) -> None:
        assert rows is not None
        out = _memory.empty((larger.size, *rows.block.shape), np.float64)
        ends = np.repeat(np.cumsum(lengths) - 1, lengths)
        lines = address_of(power), address_of(larger), address_of(ends)
        run(*_facts(rows), *lines, larger.size, address_of(out))
        found.extend(one if rows.block is x else one.T for one in out)

    def by_numpy() -> None:
        on = _backend.device_of(x)
        found.extend(_memory.empty(x.shape, np.float64, on) for _ in larger)
        for box, alike in _boxes(x.shape, exponents):
            parts = zip([one[box] for one in found], larger.tolist(), strict=True)
            for length in lengths:
                slices = [*itertools.islice(parts, length)]
                rest = _scale(x[box], slices[-1][0], power[alike])
                for part, more in slices:
                    _backend.namespace_of(x).add(rest, more, out=part)
                    part -= more
                    if part is not rest:
                        rest -= part

    rows = _rows_of(x, exponents) if power.dtype.kind == "f" else None
    _run_faster("expand slices", "cut_slices", rows, by_kernel, by_numpy)
    return tuple(found) if len(found) > 1 else found[0]


def _add_terms(
    rows: Buffer, columns: Buffer, *terms: Buffer, dtype: Any, parts: int, out: Buffer | None = None
) -> Buffer:
    """Return the sum of terms, the smallest first, times powers of two.

    So many after one another are parts of one, whose sum is rounded once: so it does not matter
    which items are in which part.
    """
    shape, on = terms[0].shape, _backend.device_of(terms[0])
    library = _backend.namespace_of(terms[0])
    if out is None or out.dtype != dtype:
        out = _memory.empty(shape, dtype, on)
    rows, columns = _powers(rows, columns)
    spare = None if out.dtype == np.float64 else _spare(out)
    for (box, down), (_, across) in zip(_boxes(shape, rows), _boxes(shape, columns), strict=True):
        some = out[box]
        piece = some if spare is None else _as_piece(spare, some)
        total: Any = None
        for start in range(0, len(terms), parts):
            term = _add_parts([one[box] for one in terms[start : start + parts]])
            total = term if total is None else library.add(total, term, out=piece)
        _scale(total, piece, rows[down], columns[across])
        if spare is not None:
            some[...] = piece
    return out


def _add_parts(parts: Sequence[Buffer]) -> Buffer:
    """Return the sum of parts of a term, rounded once.

    As it has 54 bits, what additions of more than two leave is added up as well, which is exact
    (D. E. Knuth, "The Art of Computer Programming", volume 2, section 4.2.2).
    """
    if len(parts) <= 2:
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]
    total, left = parts[0], parts[0] * 0.0
    for part in parts[1:]:
        both = total + part
        added = both - total
        left += (total - (both - added)) + (part - added)
        total = both
    return total + left


def _find_reach(heads: Buffer, pairs: Buffer, bits: int) -> Buffer:
    """Return how many bits items of `|x1| @ |x2|` are below the largest ones, at most.

    That is 0 where all terms are zero, and 9999 where no leading bits tell.
    """
    library = _backend.namespace_of(heads)
    reach = 2 * bits + 1 - library.frexp(heads)[1]
    return library.where(pairs == 0, 0, library.where(heads == 0, 9999, reach))


@functools.lru_cache(512)
def _row(local: Callable[..., Any], nin: int, nout: int, static: tuple[tuple[str, Any], ...]) -> Op:
    function: Any = functools.partial(local, **dict(static))
    function.nout = nout
    return elementwise(local.__name__.strip("_"), function, nin, POINTWISE, defer=None)


def _apply(local: Callable[..., Any], *operands: Any, nout: int = 1, **static: Any) -> Any:
    """Apply a function item by item, to blocks or to distributed arrays."""
    if not any(isinstance(x, BaseArray) for x in operands):
        return local(*operands, **static)
    return _row(local, len(operands), nout, (*static.items(),))(*operands)


# --- few terms -----------------------------------------------------------------------------------


def has_few_terms(left: Shape, right: Shape, dtype: Any) -> bool:
    """Tell whether a product of matrices is made of exact sums, if its items allow it."""
    rows, (terms, columns) = left[-2], right[-2:]
    longest = max(_SHORT, _LONGEST * rows, _LONGEST * columns)
    return rows * terms * columns <= _FEW_TERMS.get(dtype.char, 0) and terms <= longest


def _as_reals(x1: Buffer, x2: Buffer, dtype: Any) -> tuple[Buffer, Buffer]:
    """Return matrices whose product has the parts of that of complex ones side by side."""
    left, right = (x.astype(dtype, copy=False) for x in (x1, x2))
    library = _backend.namespace_of(right)
    *batch, depth, columns = right.shape
    turned = library.empty((*batch, depth, 2, columns, 2), right.real.dtype)
    turned[..., 0, :, 0] = turned[..., 1, :, 1] = right.real
    turned[..., 0, :, 1] = right.imag
    library.subtract(0.0, right.imag, out=turned[..., 1, :, 0])
    left = library.ascontiguousarray(left).view(turned.dtype)
    return left, turned.reshape(*batch, 2 * depth, 2 * columns)


def _as_complex(x: Buffer, dtype: Any) -> Buffer:
    return _backend.namespace_of(x).ascontiguousarray(x).view(dtype)


def _as_matrices(x: Buffer, batch: Shape, lanes: int = 1) -> Buffer:
    """Return a stack of matrices of float64 whose rows have their items side by side.

    They go on with zeros up to a multiple of so many items.
    """
    beyond = -x.shape[-1] % lanes
    if beyond or x.dtype != np.float64 or x.strides[-1] != 8 or not is_plain(x):
        every = _memory.empty((*x.shape[:-1], x.shape[-1] + beyond), np.float64)
        every[..., : x.shape[-1]] = x
        every[..., x.shape[-1] :] = 0.0
        x = every
    if not batch:
        return x[np.newaxis]
    return np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:])


def _range_of(x: Buffer, axis: int) -> tuple[int, int]:
    """Return the most powers of two between items of a row or column, and of any from 1."""
    library = _backend.namespace_of(x)
    fields = abs(x.astype(np.float64, copy=False)).view(np.int64) >> 52
    has_items, is_zero = (x != 0).any(axis), x == 0
    if not bool(has_items.any()):
        return 0, 0
    most = library.where(is_zero, 0, fields).max(axis)[has_items]
    least = library.where(is_zero, 2047, fields).min(axis)[has_items]
    return int((most - least).max()), max(int(most.max()) - 1023, 1023 - int(least.min()))


def _multiply_few(x1: Buffer, x2: Buffer, dtype: Any, agree: Agree) -> Buffer | None:
    """Return exact sums of rounded products, rounded once; None where items are too far apart."""
    narrow = np.empty(0, dtype).real.dtype
    a, b = _as_reals(x1, x2, np.complex128) if dtype.kind == "c" else (x1, x2)
    if is_turned := b.shape[-1] < min(32, a.shape[-2]):  # lanes are columns of the right one
        a, b = (np.moveaxis(x, -1, -2) for x in (b, a))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    facts, found = np.zeros(3, np.int64), []
    terms = prod(batch) * a.shape[-2] * prod(b.shape[-2:])

    def by_kernel(run: Callable[..., object]) -> None:
        lines, columns = _as_matrices(a, batch), _as_matrices(b, batch, 8)
        count, rows, depth = lines.shape
        out = _memory.empty((*batch, rows, b.shape[-1]), np.float64)
        where = address_of(out), narrow.itemsize < 8, address_of(facts)
        (s, t, _), (u, v, _) = lines.strides, columns.strides
        run(
            count, address_of(lines), rows, s // 8, t // 8, address_of(columns), b.shape[-1],
            u // 8, v // 8, depth, scratch_of_thread(), *where,
        )  # fmt: skip
        found.append(out)

    def by_numpy() -> None:
        (of_rows, far), (of_columns, other) = _range_of(a, -1), _range_of(b, -2)
        facts[:] = of_rows, of_columns, max(far, other)

    if not _backend.is_numpy(x1) or not terms:
        by_numpy()
    else:
        run = kernel("distarray.comm.kernels._exact_products", "multiply")
        run_faster("reduce exactly terms", 8 * terms, run, by_kernel, by_numpy, _SUM_COST)
    of_rows, of_columns, farthest = agree([*map(float, facts)])
    longer = max(0, (a.shape[-1] - 1).bit_length() - 12)
    if of_rows + of_columns + longer > _APART or farthest > _FARTHEST[narrow.itemsize]:
        return None
    sums = found[0] if found else _sum_terms(a, b, narrow)
    sums = (np.moveaxis(sums, -1, -2) if is_turned else sums).astype(narrow, copy=False)
    return _as_complex(sums, dtype) if dtype.kind == "c" else sums


def _sum_terms(a: Buffer, b: Buffer, dtype: Any) -> Buffer:
    """Return the same as the kernel where that is exact."""
    library = _backend.namespace_of(a)
    lines, columns = a[..., :, None, :], np.moveaxis(b, -1, -2)[..., None, :, :]
    shape = np.broadcast_shapes(lines.shape, columns.shape)
    found = np.empty(shape[:-1], dtype)
    # Of blocks in host memory products are made a tile at a time, on a device at once.
    step = max(1, _TERMS_AT_ONCE // max(1, prod(shape[1:])))
    step = max(1, len(found)) if _backend.is_numpy(a) else step
    pair = [library.broadcast_to(x, shape) for x in (lines, columns)]
    for start in range(0, len(found), step):
        (items,) = products_of(*(x[start : start + step] for x in pair))
        found[start : start + step] = sum_exactly(items, (len(shape) - 1,), dtype)[..., 0]
    return _backend.asarray(found, _backend.device_of(a))


# --- products ------------------------------------------------------------------------------------


def _join_parts(real_part: Any, imag_part: Any) -> Any:
    library = _backend.namespace_of(real_part)
    joint = library.empty(real_part.shape, np.result_type(real_part.dtype, np.complex64))
    joint.real, joint.imag = real_part, imag_part
    return joint


_complex = elementwise("complex", _join_parts, 2, POINTWISE, defer=None)


def multiply_matrices(
    product: Product, sum_rows: Product, fits: Fits, x1: Any, x2: Any, dtype: Any
) -> Any:
    """Return the product of stacks of matrices.

    Parameters
    ----------
    product : callable
        The product of operands of one floating-point dtype, which may use any order and `Partial`
        results.
    sum_rows : callable
        The exact sums of products along the last axis of two arrays of one shape.
    fits : callable
        `fits(x1, x2)` gives the layout of the product where each process may multiply its blocks as
        they are, else None.
    x1, x2 : array
        Of shapes (..., m, k) and (..., k, n), not Partial.
    dtype : dtype
        Of the result, floating point.
    """
    if 0 in (*x1.shape, *x2.shape):
        return astype(product(x1, x2), dtype, copy=False)
    layout, blocks = fits(x1, x2), (x1._local, x2._local)
    agree = functools.partial(_agree, x1)
    if layout is not None and has_few_terms(x1.shape, x2.shape, dtype):
        found = _multiply_few(*blocks, dtype, agree)
        if found is not None:
            return x1._new(found, layout)
    if layout is not None and _backend.is_numpy(blocks[0]) and not errors_raise():
        found = _multiply_blocks(*blocks, dtype, agree)
        if found is not None:
            return x1._new(found, layout)
    if dtype.kind == "f":
        x1, x2 = (x if x.dtype.kind == "f" else astype(x, np.float64) for x in (x1, x2))
        return _multiply_real(product, sum_rows, x1, x2, dtype)
    narrow = np.empty(0, dtype).real.dtype
    (a, b), (c, d) = ([astype(part(x), narrow) for part in (real, imag)] for x in (x1, x2))
    rows = [stack(pair, axis=-1) for pair in ((c, d), (arithmetic.negative(d), c))]
    *batch, depth, columns = x2.shape
    found = _multiply_real(
        product,
        sum_rows,
        reshape(stack((a, b), axis=-1), (*x1.shape[:-1], 2 * depth)),
        reshape(stack(rows, axis=-3), (*batch, 2 * depth, 2 * columns)),
        narrow,
    )
    found = reshape(found, (*found.shape[:-1], columns, 2))
    return run_row(_complex, (found[..., 0], found[..., 1]))


def _multiply_real(product: Product, sum_rows: Product, x1: Any, x2: Any, dtype: Any) -> Any:
    """Return the product of real matrices; what is not finite in it is as without slices."""
    look = _look(product, x1, x2, dtype)
    if look.slices:
        return _multiply_slices(product, x1, x2, look, dtype)
    if look.bounds is None:
        # Which items are infinite or NaN does not depend on any order.
        signs = [where(logic.isfinite(x), arithmetic.sign(x), x) for x in (x1, x2)]
        rest = [where(logic.isfinite(x), x, 0.0) for x in (x1, x2)]
        marks = product(*signs)
        known = _multiply_real(product, sum_rows, rest[0], rest[1], dtype)
        marks = where(logic.isnan(marks), np.nan, marks)  # of which processors have others
        return where(logic.isfinite(marks), known, astype(marks, dtype))
    bits = (53 - (x1.shape[-1] - 1).bit_length()) // 2
    pairs = product(*(astype(logic.not_equal(x, 0), np.float32) for x in (x1, x2)))
    heads = look.heads(x1, x2, bits, np.float64)
    reach = _apply(_find_reach, product(*heads), pairs, bits=bits)
    cost = float("inf")
    for reached in (*_REACHES, 2 * bits):
        slices = choose_slices(look.bounds, look.bounds, look.bits, look.allowed * 2.0**-reached)
        beyond = logic.greater(reach, reached)
        count = int(reductions.count_nonzero(beyond))
        takes = count_products(slices) + _EXACT_COST * count / prod(reach.shape)
        if takes < cost:
            cost, best, rest, some = takes, slices, beyond, count
    found = _multiply_slices(product, x1, x2, look._replace(slices=best), dtype)
    if some:
        _write_exactly(found, nonzero(rest), some, x1, x2, sum_rows)
    return found


class _Look(NamedTuple):
    """What the first bits of two matrices tell.

    Attributes
    ----------
    largest, sums
        Of magnitudes in rows of the left one and in columns of the right one; `sums` are those of
        the first `bits` of each item.
    limits
        Sums beyond which a row or column is scaled by half as much as its largest item allows: so
        sums differ less, whatever power of two the largest item exceeds.
    allowed
        The error of an item of the product, in units of the least one of magnitudes.
    bounds
        Of sums of magnitudes; None where items are not finite.
    slices, parts
        What to multiply, and in how many parts of the terms; no slices where some items of the
        product are too small to tell, or would need more than usual.
    """

    largest: Any
    sums: Any
    limits: Any
    bits: int
    allowed: float
    bounds: Bounds | None = None
    slices: Slices = ()
    parts: int = 1

    def heads(self, x1: Any, x2: Any, bits: int, dtype: Any) -> list[Any]:
        """Return the first bits of magnitudes, scaled."""
        found = []
        for x, *how, limit in zip((x1, x2), self.largest, self.sums, self.limits, strict=True):
            head = _apply(_head, x, how[0], bits=bits, dtype=dtype)
            found.append(head if limit == inf else _apply(_halve, head, how[1], limit))
        return found

    def exponents(self) -> list[Any]:
        """Return those of powers of two by which rows and columns are scaled."""
        facts = zip(self.largest, self.sums, self.limits, strict=True)
        return [_apply(_find_exponents, *of_one) for of_one in facts]


def _look(product: Product, x1: Any, x2: Any, dtype: Any, agree: Agree | None = None) -> _Look:
    """Find out which slices of matrices are to be multiplied; of blocks, with all processes."""
    depth = x1.shape[-1]
    half = min(_FIRST_BITS, (24 - (depth - 1).bit_length()) // 2)  # so that sums of heads are exact
    kind: Any = np.float32
    if half < 4:
        half, kind = _FIRST_BITS, np.float64
    of_both = [_find_heads(x, axis, half, kind) for x, axis in ((x1, -1), (x2, -2))]
    # Heads are rounded up for what is no less than sums of magnitudes.
    largest, heads, sums = zip(*of_both, strict=True)
    firsts = [*heads]
    most, least = _extremes(agree, sums, sums)
    # Half a unit is left to the last rounding, a tenth of that to others, but to halves a unit.
    allowed = (depth - (0.55 if depth < _LONG_AXIS else 1.1)) * float(np.finfo(dtype).eps)
    limits = [
        floor(_HALVED_FROM * high) if high >= 2 * low else inf
        for high, low in zip(most, least, strict=True)
    ]
    look = _Look(largest, sums, limits, half, allowed)
    if any(map(isnan, most)):
        return look
    for i, limit in enumerate(limits):
        if limit < inf:
            firsts[i] = _apply(_halve, firsts[i], sums[i], limit)
            most[i] = _extremes(agree, [_apply(_halve, sums[i], sums[i], limit)], [])[0][0]
    unit = 2.0**-half
    rows, columns = ((one + depth) * unit for one in most)
    if np.dtype(dtype).itemsize < 8:  # 16 bits are known of most products, and need not be so well
        bounds = bounds_of(rows, columns, min(rows, columns), depth)
        seen = _bound_least(agree, firsts, least) * unit**2
        if seen > 0:
            slices = choose_slices(bounds, bounds, half, -_round_up(-allowed * seen))
            if count_products(slices) == 1:
                return look._replace(bounds=bounds, slices=slices)
    magnitudes = product(*firsts)
    (high,), (seen,) = _extremes(agree, [magnitudes], [magnitudes])
    pairs = min(rows, columns, high * unit**2 + (rows + columns) * unit)
    bounds = bounds_of(rows, columns, pairs, depth)
    look = look._replace(bounds=bounds)
    if not seen:
        return look
    error, parts = -_round_up(-allowed * seen * unit**2), 1
    slices = choose_slices(bounds, bounds, half, error)
    share = min(rows, columns) * _SHARE
    if count_products(slices) > _FEWEST_PRODUCTS and depth >= _LONG_AXIS and share >= 1 + unit:
        of_part = Bounds(rows * _SHARE, columns * _SHARE, min(share, pairs), ceil(depth / 2))
        others = choose_slices(bounds, bounds_of(*of_part), half, error)
        if count_products(others) < count_products(slices):
            slices, parts = others, _count_parts(agree, firsts, of_part, unit)
    return look._replace(
        slices=slices if count_products(slices) <= _USUAL_PRODUCTS else (), parts=parts
    )


def _bound_least(agree: Agree | None, heads: Sequence[Any], sums: Sequence[float]) -> float:
    """Return what no product of a row and a column of heads is less than.

    Where `u` and `v` are 1 at most, the sum of `u * v` is that of `u + v - 1` at least. What items
    are beyond about the least mean of a row, or column, is left out, so that many are nearly 1.
    """
    depth = heads[0].shape[-1]
    most = [2.0 ** (frexp(one / depth)[1] - 1) for one in sums]
    clipped = [
        _sum_of(_apply(_clip, head, top), axis)
        for head, axis, top in zip(heads, (-1, -2), most, strict=True)
    ]
    _, least = _extremes(agree, [], clipped)
    return prod(most) * (least[0] / most[0] + least[1] / most[1] - depth)


def _count_parts(agree: Agree | None, heads: Sequence[Any], most: Bounds, unit: float) -> int:
    """Return of how many parts of the terms no sums exceed the bounds, or their power of two.

    Each rank may have another number for its blocks.
    """
    depth, parts = heads[0].shape[-1], 1
    bounds = [2.0 ** (53 - _exact_bits(one)) for one in most[:2]]
    while True:
        parts *= 2
        left = ceil(depth / parts) * unit
        for head, axis, bound in zip(heads, (-1, -2), bounds, strict=True):
            indices = _parts(axis, parts, depth, agree is not None)
            sums = [_sum_of(head[one], axis) for one in indices]
            highs, _ = _extremes(None if agree is None else list, sums, [])
            if max(highs) * unit + left > bound:
                break
        else:
            return parts


def _sum_of(heads: Any, axis: int) -> Any:
    """Return the sums along an axis, the last one or that before, which are exact in the dtype."""
    if isinstance(heads, BaseArray):
        return reductions.sum(heads, axis=axis, keepdims=True)
    ones = np.ones(heads.shape[axis], heads.dtype)  # the BLAS takes a third of the time of `sum`
    return np.expand_dims(heads @ ones if axis == -1 else ones @ heads, axis)


def _extremes(
    agree: Agree | None, highs: Sequence[Any], lows: Sequence[Any]
) -> tuple[list[float], list[float]]:
    """Return the largest item of each array, and the least of others, of all processes."""
    if agree is None:
        return [float(reductions.max(x)) for x in highs], [float(reductions.min(x)) for x in lows]
    own = [float(np.max(x, initial=-inf)) for x in highs]
    own += [-float(np.min(x, initial=inf)) for x in lows]
    every = agree(own)
    return every[: len(highs)], [-one for one in every[len(highs) :]]


def _agree(x: Any, values: list[float]) -> list[float]:
    """Return the largest of each value on the processes of an array."""
    mesh = x._layout.mesh
    if mesh.size == 1:
        return values
    layout = Layout(mesh, [Partial("max")] * mesh.ndim, (len(values),))
    found: list[float] = read_values("matmul", x._new(np.array(values), layout)).tolist()
    return found


def _parts(axis: int, count: int, depth: int, of_block: bool) -> Iterator[Any]:
    """Yield indices of parts of the terms: of blocks runs, else what each rank has some of."""
    for i in range(count):
        step = -(-depth // count)
        one = slice(i * step, (i + 1) * step) if of_block else slice(i, None, count)
        yield (..., one, *[slice(None)] * (-1 - axis))


class _Plan(NamedTuple):
    """Slices of matrices, and which are multiplied, the least products first."""

    lasts: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]


@functools.lru_cache(64)
def _plan(slices: Slices) -> _Plan:
    lasts, chains = zip(*slices, strict=True)
    once = [c for i, c in enumerate(chains) if not any(d[: len(c)] == c for d in chains[:i])]
    prefixes = [chain[:count] for chain in once for count in range(1, len(chain) + 1)]
    pairs = [
        (-last - other, i, prefixes.index(chain[:count]))
        for i, (last, chain) in enumerate(slices)
        for count, other in enumerate(chain, 1)
    ]
    pairs.sort(key=lambda pair: pair[0])
    return _Plan(lasts, (*once,), tuple(pair[1:] for pair in pairs))


def _cut_both(x1: Any, x2: Any, exponents: Any, plan: _Plan) -> list[Any]:
    """Return slices of both matrices."""
    found = []
    for x, to, chains in zip((x1, x2), exponents, ((plan.lasts,), plan.chains), strict=True):
        count = sum(map(len, chains))
        cut = _apply(_cut, x, to, nout=count, chains=chains)
        found.append(cut if count > 1 else [cut])
    return found


def _multiply_slices(product: Product, x1: Any, x2: Any, look: _Look, dtype: Any) -> Any:
    plan, exponents, depth = _plan(look.slices), look.exponents(), x1.shape[-1]
    indices = zip(*(_parts(axis, look.parts, depth, False) for axis in (-1, -2)), strict=True)
    cut = [
        _cut_both(*((x1, x2) if look.parts == 1 else (x1[one], x2[other])), exponents, plan)
        for one, other in indices
    ]
    terms = [product(left[i], right[j]) for i, j in plan.pairs for left, right in cut]
    return _apply(_add_terms, *exponents, *terms, dtype=dtype, parts=look.parts)


def _multiply_blocks(x1: Buffer, x2: Buffer, dtype: Any, agree: Agree) -> Buffer | None:
    """Return the block of the product, whose terms are added up as they come.

    None where slices do not do all of it.
    """
    narrow = np.empty(0, dtype).real.dtype
    if dtype.kind == "c":
        x1, x2 = _as_reals(x1, x2, dtype)
    else:
        x1, x2 = (x if x.dtype.kind == "f" else x.astype(np.float64) for x in (x1, x2))
    look = _look(_multiply, x1, x2, narrow, agree)
    if not look.slices:
        return None
    plan, exponents, depth = _plan(look.slices), look.exponents(), x1.shape[-1]
    left, right = _cut_both(x1, x2, exponents, plan)
    total: Any = None
    for i, j in plan.pairs:
        indices = zip(*(_parts(axis, look.parts, depth, True) for axis in (-1, -2)), strict=True)
        term, *parts = [_multiply(left[i][one], right[j][other]) for one, other in indices]
        if len(parts) == 1:
            term += parts[0]
        elif parts:
            term = _add_parts([term, *parts])
        total = term if total is None else np.add(total, term, out=total)
    sums = _add_terms(*exponents, total, dtype=narrow, parts=1, out=total)
    return _as_complex(sums, dtype) if dtype.kind == "c" else sums


def _multiply(x1: Buffer, x2: Buffer) -> Buffer:
    """Return the product of blocks in memory that is kept for such ones."""
    batch = np.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    out = _memory.empty((*batch, x1.shape[-2], x2.shape[-1]), x1.dtype)
    return np.matmul(x1, x2, out=out)


def _write_exactly(
    found: Any, places: Any, count: int, x1: Any, x2: Any, sum_rows: Product
) -> None:
    """Write the exact sums of products, for which some rows and columns are brought together."""
    mesh, batch = found._layout.mesh, found.shape[:-2]
    lines = [broadcast_to(x, (*batch, *x.shape[-2:])) for x in (x1, moveaxis(x2, -1, -2))]
    at_once = max(1, mesh.size * _GATHERED_ITEMS // x1.shape[-1])
    for start in range(0, count, at_once):
        some = [
            place[start : start + at_once].redistribute([Shard(0)] * mesh.ndim) for place in places
        ]
        rows, columns = lines[0][(*some[:-1],)], lines[1][(*some[:-2], some[-1])]
        found[tuple(some)] = sum_rows(rows, columns)
