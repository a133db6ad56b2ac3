"""Exact sums of floating-point items, rounded once.

A tile of a block is split by error-free transformations: with `sigma`, 1.5 * 2**52 units `g`, the
bits of `x + sigma` less those of `sigma` are the integer nearest to `x / g`, and what is left of
`x` is at most half a unit (S. M. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation part
I", SIAM J. Sci. Comput. 31, 2008). The integers are added up as integers, which is exact in any
order, and go into a fixed-point number that holds every float64 and any count of them; levels
follow until nothing is left, two of them where all items of a tile are within 2**20 of the largest.

Binned sums (J. Demmel, H. D. Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. 64,
2015; P. Ahrens, J. Demmel, H. D. Nguyen, "Algorithms for efficient reproducible floating point
summation", ACM Trans. Math. Softw. 46, 2020) keep a few levels of the same kind at fixed places,
and so depend on how many. As here nothing is dropped, the levels may lie where each tile needs
them, and the result is the sum itself, rounded to nearest.

Kernels do so with blocks of float32 and float64, wherever their items lie, and without a
fixed-point number where a tile has all items of a sum (`comm/kernels/_exact_sum`): one with items
that lie side by side, or products of such, another with items of several sums. Items under a mask
and products of other dtypes are made a tile at a time, and added up by either.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import frexp, fsum, inf, isfinite, ldexp, prod
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _memory
from distarray.comm.kernels import CERTAINLY_SLOWER, address_of, kernel, run_faster
from distarray.core.engine._tiles import tile_shape, tiles
from distarray.core.families._exact_items import Box, Items, items_of
from distarray.typing import Buffer, Shape

DIGIT_BITS: Final = 24
"""A digit is an integer of 64 bits; 2**39 additions of 24 bits to it do not overflow."""
LEAST: Final = -1074
"""The exponent of the first digit's unit, the least subnormal number."""
DIGITS: Final = 92
"""Up to 2**1134: more than 2**63 items of 2**1024."""
PLUS, MINUS, MISSING = DIGITS, DIGITS + 1, DIGITS + 2
"""Words after the digits: how many items are infinity, its negative, NaN."""
WORDS: Final = DIGITS + 3

_TILE: Final = 1 << 15
"""Items of a tile: its scratch memory and a few more calls of NumPy fit the second-level cache.
With 2**12, 2**14 and 2**15 items an operation of NumPy takes 0.8, 0.45 and 0.35 ns an item on Zen
1."""
_STATES_AT_ONCE: Final = 2048
"""Sums that are found together: 1.5 MB of words, and as much to round them."""
_DEPTH: Final = 16
"""Least items of a sum in a tile, where it has so many; not measured further."""
_MOST_BITS: Final = 50
"""Of the integers of a level: `x + sigma` stays in the binade of `sigma` up to 2**51 units."""
_HUGE_EXPONENT: Final = 960
"""Of items from here on `sigma` could overflow, and they are scaled by so many digits first."""
_SHIFT: Final = 4

WANT_WORDS, WANT_NEAREST, WANT_ODD, WANT_SHORT = range(4)
"""What the kernel does: it adds to words, or gives bits of sums rounded to nearest, or to odd, or
short states."""
_LENGTHS: Final[tuple[Shape, ...]] = ((WORDS,), (), (), (2,))
"""Of what it gives of a sum, if that is not one number."""
_INVALID, _OVERFLOW, _FALLS_SHORT = 1, 2, 4
"""What it tells: a sum has infinities of both signs, or is too large for float64; a short state
does not hold it."""

_LEVEL: Final = 51
_LOWEST, _HIGHEST, _FIELDS, _MISFIT, _FIELD_BITS = 49, 2000, 2047, 2048, 12
"""Of short states, as in `comm/kernels/_exact_digits`."""
_SCRATCH: Final = 42640
"""Words of its scratch memory."""
_PYTHON_ITEMS: Final = 128
"""Items of a sum that Python's library adds up in less time than it takes to call a kernel."""
_NUMPY_ITEMS: Final = 1024
"""The same of NumPy: 40 us of items that are alike, 100 us of such that differ by 2**600."""
_LINE_ITEMS: Final = 64
_LINE_PRODUCTS: Final = 8
"""Items side by side that are a line, which another kernel adds up, and so many products: on Zen 5
lines of 16 take two thirds of the time, where numbers are complex a third."""

_kernel = functools.partial(kernel, "distarray.comm.kernels._exact_sum")
_KINDS: Final = {np.dtype(np.float64): "f8", np.dtype(np.float32): "f4"}
_ITEM_COST: Final = 6
_MOST_KNOWN: Final = 8
"""In so many ways may blocks lie for which it is known how to call a kernel."""
_ROUNDING_COST: Final = 30
"""So many times as long as for a plain copy NumPy takes, of items and of words to round."""
_CALL_BYTES: Final = 1 << 20
"""A plain copy of so many bytes takes as long as a call of few items by NumPy, 0.1 ms."""


# --- sums ----------------------------------------------------------------------------------------


def add_up(items: Items, axes: tuple[int, ...]) -> Buffer:
    """Return the exact sums of items over axes, as words.

    Parameters
    ----------
    items : Items
    axes : tuple of int
        Ascending.

    Returns
    -------
    array of int64
        Of the shape of the items with reduced axes of length 1, and an axis of WORDS words. The
        words of several blocks add up.
    """
    return _find(items, axes, WANT_WORDS)


def shorten(items: Items, axes: tuple[int, ...]) -> Buffer:
    """Return the exact sums of items over axes as short states, along a last axis of two words.

    They hold sums of 114 bits: of items that are not much farther apart than 2**45. Others say that
    they hold nothing; a kernel stops where it finds such items, and all of them say so.
    """
    return _find(items, axes, WANT_SHORT)


def sum_exactly(items: Items, axes: tuple[int, ...], dtype: Any) -> Buffer:
    """Return the sums of items over axes, rounded once to a real floating dtype.

    Ties go to the even number, an exact zero is 0.0, and what is too large infinity.

    Returns
    -------
    array
        Of the shape of the items with reduced axes of length 1.
    """
    sums = _find(items, axes, _wanted(dtype)).view(np.float64)
    return sums.astype(dtype, copy=False)


class Finder:
    """What finds the sums of the items of blocks, all of one shape and dtype, over axes.

    How to call a kernel for few items where they lie is kept, as to look at blocks anew takes
    longer than the kernel.

    Parameters
    ----------
    items : callable
        `items(*blocks)` gives items, or those of each part of complex sums.
    axes : tuple of int
        Ascending, of the first block.
    dtype : dtype, optional
        To round sums to, real floating; else they are found as words, or short states.
    is_short : bool
    """

    def __init__(
        self,
        items: Callable[..., tuple[Items, ...]],
        axes: tuple[int, ...],
        dtype: Any = None,
        is_short: bool = False,
    ) -> None:
        self._items, self._axes, self._dtype = items, axes, dtype
        self._wanted = _wanted(dtype) if dtype else WANT_SHORT if is_short else WANT_WORDS
        self._known: dict[Any, list[_Ready]] = {}

    def __call__(self, *blocks: Buffer) -> Buffer:
        """Return sums with reduced axes of length 1, and an axis of parts if they have some."""
        lie = tuple(
            [(one.strides, one.__class__ is np.ndarray and one.flags.aligned) for one in blocks]
        )
        known = self._known.get(lie)
        if known is not None:
            return self._run(known, blocks)
        ndim = blocks[0].ndim
        calls: list[Any] = []
        found = []
        for one in self._items(*blocks):
            axes = (*self._axes, ndim) if one.adds_last else self._axes
            found.append(_find(one, axes, self._wanted, calls))
        if len(calls) == len(found):
            self._remember(lie, calls, (blocks[0], blocks[-1]))
        if self._dtype is not None:
            found = [one.view(np.float64).astype(self._dtype, copy=False) for one in found]
        return found[0] if len(found) == 1 else np.concatenate(found, ndim)

    def _remember(self, lie: Any, calls: Sequence[Any], blocks: Sequence[Buffer]) -> None:
        """Keep how to call kernels for such blocks, if items lie in these."""
        known = []
        for run, nest, items in calls:
            if nest.is_plain and all(map(np.may_share_memory, items, blocks)):
                left, right = (
                    address_of(one) + i * one.itemsize - address_of(block)
                    for one, block, i in zip(items, blocks, nest.offsets, strict=True)
                )
                known.append(_Ready(run, left, right, nest))
        if len(known) == len(calls):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[lie] = known

    def _run(self, known: list[_Ready], blocks: Sequence[Buffer]) -> Buffer:
        ndim, nest = blocks[0].ndim, known[0].nest
        beyond = _LENGTHS[self._wanted]
        shape = nest.shape + beyond if len(known) == 1 else (2, *nest.shape[:ndim], *beyond)
        new = np.empty if self._wanted else np.zeros
        found = new(shape, np.int64 if self._dtype is None else np.float64)
        first, scratch = address_of(blocks[0]), scratch_of_thread()
        last = first if len(blocks) == 1 else address_of(blocks[1])
        told, to = 0, address_of(found)
        for run, left, right, nest in known:
            told |= run(first + left, last + right, *nest.lengths, scratch, to, self._wanted)
            to += found.nbytes // len(known)
        if told:
            _raise_float_errors(told)
        if self._dtype is not None and self._dtype is not found.dtype:
            found = found.astype(self._dtype, copy=False)
        if len(known) == 1:
            return found
        parts_beside = (*range(1, ndim + 1), 0, *range(ndim + 1, found.ndim))
        return np.ascontiguousarray(found.transpose(parts_beside))


class _Ready(NamedTuple):
    """How to call a kernel: which, how far from blocks its items lie, and the nest of these."""

    run: Callable[..., int]
    left: int
    right: int
    nest: _Nest


def _wanted(dtype: Any) -> int:
    return WANT_NEAREST if dtype == np.float64 else WANT_ODD


def _find(
    items: Items, axes: tuple[int, ...], wanted: int, calls: list[Any] | None = None
) -> Buffer:
    """Return words of sums, bits of sums rounded to nearest or to odd, or short states.

    Where a kernel would always be called for such items, `calls` gets it, their nest and them.
    """
    block, factors = items.block, items.factors
    if block is not None and not _backend.is_numpy(block):
        if not block.size:
            return _choose_way(block.shape, None, None, None, axes, wanted, False).nothing()
        words = np.moveaxis(_backend.to_host(_add_on_device(block, axes)), 0, -1)
        return _round(words, wanted) if wanted else words
    left, right = factors or (block, block)
    if (
        left is not None
        and right is not None
        and left.dtype == right.dtype
        and left.flags.aligned
        and right.flags.aligned
    ):
        others = None if factors is None else right.strides
        way = _choose_way(left.shape, left.strides, others, left.dtype, axes, wanted, items.negates)
    else:
        way = _choose_way(items.shape, tuple(items.strides), None, None, axes, wanted, False)
    if way.size == 0:
        return way.nothing()
    is_one_each = prod(way.shape) == way.size
    if is_one_each and block is not None and not _LENGTHS[wanted]:
        sums = np.asarray(np.add(block, 0.0, dtype=np.float64))  # so that no zero is negative
        sums[np.isnan(sums)] = np.nan  # of which there are others
        return sums.view(np.int64)
    if way.is_one and way.size <= _PYTHON_ITEMS:
        one = _sum_few(items)
        if one is not None:
            return np.full(way.shape, one).view(np.int64)
    if way.nest is None and way.size <= _TILE:
        return _find(items_of(items.read((), np.empty(items.shape))), axes, wanted)
    found: list[Buffer] = []

    def by_kernel(run: Callable[..., int]) -> None:
        if way.nest is not None:
            found.append(way.nest.arrange(way.nest.run(run, left, right, wanted)))
            if calls is not None and way.dear >= CERTAINLY_SLOWER:
                calls.append((run, way.nest, (left, right)))
        else:
            found.append(_find_by_tiles(items, axes, wanted, run))

    def by_numpy() -> None:
        one = _sum_few(items) if way.is_one and way.size <= _NUMPY_ITEMS else None
        if one is None:
            found.append(_find_by_tiles(items, axes, wanted))
        else:
            found.append(np.full(way.shape, one).view(np.int64))

    run_faster(way.job, 8 * way.size, way.kernel, by_kernel, by_numpy, way.dear)
    return found[0]


class _Way(NamedTuple):
    """How sums are found.

    Attributes
    ----------
    shape
        Of the sums, with reduced axes of length 1.
    wanted, size
        What is wanted of them, and how many items there are.
    is_one
        There is one sum, which is rounded to nearest.
    nest
        Of items that a kernel reads where they lie.
    job, kernel, dear
        As `run_faster` takes them.
    """

    shape: Shape
    wanted: int
    size: int
    is_one: bool
    nest: _Nest | None
    job: str
    kernel: Any
    dear: int

    def nothing(self) -> Buffer:
        """Return sums of no items."""
        return np.zeros(self.shape + _LENGTHS[self.wanted], np.int64)


@functools.lru_cache(256)
def _choose_way(
    shape: Shape,
    strides: tuple[int, ...] | None,
    others: tuple[int, ...] | None,
    dtype: Any,
    axes: tuple[int, ...],
    wanted: int,
    negates: bool,
) -> _Way:
    """Return how sums are found of items that lie in such a way; without a dtype they are made.

    Those that are multiplied are others, which lie in another way.
    """
    ones, count = tuple(1 if i in axes else n for i, n in enumerate(shape)), prod(shape)
    nest, has_lines = None, False
    kind = None if dtype is None else _KINDS.get(dtype)
    if count and strides is not None:
        size = 1 if dtype is None else dtype.itemsize
        if kind is not None and not any(stride % size for stride in (*strides, *(others or ()))):
            apart = [tuple(n // size for n in one) for one in (strides, others or strides)]
            nest = _nest(shape, apart[0], apart[1], axes, negates)
        if nest is None:
            has_lines = _lines_in_tiles(shape, strides, axes)
        else:
            has_lines = nest.has_lines(_LINE_ITEMS if others is None else _LINE_PRODUCTS)
    nbytes = 8 * max(count, 1)
    takes = _ITEM_COST * nbytes + _CALL_BYTES
    if wanted:
        takes += _ROUNDING_COST * 8 * WORDS * prod(ones)
    multiplies = nest is not None and others is not None
    how = "made" if nest is None else "multiplied" if multiplies else "read"
    kind = "f8" if nest is None or kind is None else kind
    job = f"reduce exactly {kind} {how} {'in lines' if has_lines else 'in columns'}"
    run = _kernel("add_lines" if has_lines else "add_columns", kind, multiplies)
    is_one = wanted == WANT_NEAREST and prod(ones) == 1
    return _Way(ones, wanted, count, is_one, nest, job, run, takes // nbytes)


def _sum_few(items: Items) -> float | None:
    """Return the sum of few items, rounded to nearest; None where it is not finite.

    J. R. Shewchuk's exact sums (Discrete Comput. Geom. 18, 1997) are those of Python's library.
    """
    tile = items.read((), np.empty(items.shape))
    try:
        total = fsum(tile.ravel().tolist())
    except (OverflowError, ValueError):  # the latter of infinities of both signs
        return None
    return total + 0.0 if isfinite(total) else None


def _lines_in_tiles(shape: Shape, lie: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Tell whether items of a sum lie side by side in tiles that are made of them."""
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (abs(lie[axis]), -axis)):
        strides[axis], step = step, step * shape[axis]
    return _nest(shape, tuple(strides), tuple(strides), axes, False).has_lines()


def _add_on_device(block: Buffer, axes: tuple[int, ...]) -> Buffer:
    shape = tuple(1 if i in axes else n for i, n in enumerate(block.shape))
    words = _memory.zeros((WORDS, *shape), np.int64, _backend.device_of(block))
    _split(words, block.astype(np.float64), axes, None)
    return words


# --- by the kernel, of items where they lie ------------------------------------------------------


class _Nest(NamedTuple):
    """Kept and reduced axes of a block, as few as reach all items, the smallest stride last.

    Attributes
    ----------
    offsets
        Where the first item in the order of memory lies, in items, and that which it is multiplied
        by.
    kept, reduced
        Lengths and strides of both, of which the first are positive, at least two of each.
    sizes, places, turned
        Of the kept axes in the order of memory: their lengths, the places of the block's axes among
        them, and by which index those are turned round that run backwards.
    shape
        Of the block, with reduced axes of length 1.
    lengths
        Of the axes that a call of the kernel takes, and their strides, after whether second parts
        are negated.
    """

    offsets: tuple[int, int]
    kept: tuple[tuple[int, int, int], ...]
    reduced: tuple[tuple[int, int, int], ...]
    sizes: Shape
    places: tuple[int, ...]
    turned: Box
    shape: Shape
    lengths: tuple[int, ...]

    def has_lines(self, least: int = _LINE_ITEMS) -> bool:
        """Tell whether items of a sum lie side by side, and are so many that they make a line."""
        (outer, *_), (inner, apart, _) = self.kept[-2:]
        count, step, _ = self.reduced[-1]
        return step <= 2 and count >= least and (outer * inner == 1 or apart > step)

    @property
    def is_plain(self) -> bool:
        """Tell whether one call of a kernel does, and what it finds is in the block's order."""
        is_turned = any(one.step == -1 for one in self.turned)
        in_order = self.places == tuple(range(len(self.places))) and not is_turned
        return in_order and len(self.kept) == len(self.reduced) == 2

    def run(
        self,
        run: Callable[..., int],
        block: Buffer,
        other: Buffer,
        wanted: int,
        into: Buffer | None = None,
    ) -> Buffer:
        """Return words or bits of the sums of a block, or of products, in the order of memory.

        Those wanted as words are added to `into`, if there is one.
        """
        if wanted and len(self.reduced) > 2:
            return _round(self.run(run, block, other, WANT_WORDS), wanted)
        count = prod(self.sizes)
        if into is None:
            new = _memory.empty if wanted else _memory.zeros
            into = new((count, *_LENGTHS[wanted]), np.int64)
        rest = *self.lengths, scratch_of_thread()
        size, to = block.itemsize, address_of(into)
        first, second = (
            address_of(one) + offset * size
            for one, offset in zip((block, other), self.offsets, strict=True)
        )
        if len(self.kept) == len(self.reduced) == 2:
            told = run(first, second, *rest, to, wanted)
        else:
            step = into.nbytes // prod(n for n, *_ in self.kept[:-2])
            told = 0
            for i, kept in enumerate(_offsets(self.kept[:-2])):
                for reduced in _offsets(self.reduced[:-2]):
                    places = [(a + b) * size for a, b in zip(kept, reduced, strict=True)]
                    where = first + places[0], second + places[1]
                    told |= run(*where, *rest, to + i * step, wanted)
        if told:
            _raise_float_errors(told)
        return into

    def arrange(self, found: Buffer) -> Buffer:
        """Return what is known of each sum, along the block's axes."""
        beyond = found.shape[1:]
        if self.sizes:
            found = found.reshape((*self.sizes, *beyond))
            found = found.transpose(*self.places, *range(len(self.sizes), found.ndim))[self.turned]
        return found.reshape(self.shape + beyond)  # a view, as only axes of length 1 are added


@functools.lru_cache(64)  # tiles of one block have few shapes
def _nest(
    shape: Shape,
    strides: tuple[int, ...],
    others: tuple[int, ...],
    axes: tuple[int, ...],
    negates: bool,
) -> _Nest:
    """Return the nest of a block; strides are those between items, also of what they multiply."""
    backwards = [n * (stride < 0) for n, stride in zip(shape, strides, strict=True)]
    first, second = (
        sum((n - 1) * stride for n, stride in zip(backwards, one, strict=True) if n)
        for one in (strides, others)
    )
    every = range(len(shape))
    order = sorted(every, key=lambda axis: (-abs(strides[axis]), -abs(others[axis])))
    signs = [-1 if n else 1 for n in backwards]
    lines = [
        (n, sign * one, sign * other)
        for n, sign, one, other in zip(shape, signs, strides, others, strict=True)
    ]
    kept = [axis for axis in order if axis not in axes]
    parts = len(shape) - 1 if negates else None
    *outer, inner = _join(lines[axis] for axis in order if axis in axes and axis != parts)
    if parts is not None:
        outer = [*(line for line in outer if line != _ONE), lines[parts]]
    elif inner[0] == 2:  # parts as well: their items lie side by side better than they do
        inner, outer = outer[-1], [*outer[:-1], inner]
    if kept and lines[kept[-1]][:2] == (2, 1) and inner[1] == 2 and inner[0] < 2 * _LINE_ITEMS:
        kept = [kept[-1], *kept[:-1]]  # parts of short lines: these lie side by side instead
    kept_lines = _join(lines[axis] for axis in kept)
    reduced_lines = (*outer, inner)
    return _Nest(
        (first, second),
        kept_lines,
        reduced_lines,
        tuple(shape[axis] for axis in kept),
        tuple(kept.index(axis) for axis in sorted(kept)),
        tuple(slice(None, None, -1 if backwards[axis] else 1) for axis in sorted(kept)),
        tuple(1 if axis in axes else n for axis, n in enumerate(shape)),
        (int(negates), *itertools.chain(*kept_lines[-2:], *reduced_lines[-2:])),
    )


_ONE: Final = (1, 0, 0)
"""The length of an axis that is none, and its strides."""


def _join(lines: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return lengths and strides of as few axes, which are two or more."""
    joined: list[tuple[int, int, int]] = []
    for n, stride, other in lines:
        if n == 1:
            continue
        if joined and joined[-1][1:] == (n * stride, n * other):
            n *= joined.pop()[0]
        joined.append((n, stride, other))
    return (_ONE,) * (2 - len(joined)) + tuple(joined)


def _offsets(lines: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    for places in itertools.product(*(range(n) for n, *_ in lines)):
        pairs = [*zip(places, lines, strict=True)]
        yield sum(i * one for i, (_, one, _) in pairs), sum(i * other for i, (*_, other) in pairs)


_of_thread = threading.local()


def scratch_of_thread() -> int:
    """Return where the kernels' scratch memory lies, 340 KB that each thread keeps.

    To lease it for each call takes longer than to add up a few items.
    """
    try:
        address: int = _of_thread.address
    except AttributeError:
        _of_thread.memory = np.empty(_SCRATCH, np.int64)
        address = _of_thread.address = address_of(_of_thread.memory)
    return address


def _raise_float_errors(told: int) -> None:
    """Let NumPy warn of sums, or raise, as `np.errstate` says."""
    if told & _INVALID:
        np.subtract(np.inf, np.inf)
    if told & _OVERFLOW:
        np.ldexp(1.0, 2048)


# --- a tile at a time ----------------------------------------------------------------------------


def _find_by_tiles(
    items: Items, axes: tuple[int, ...], wanted: int, run: Callable[..., int] | None = None
) -> Buffer:
    """Return words or bits of sums, whose tiles are added up by NumPy if not by a kernel."""
    shape, every = items.shape, range(len(items.shape))
    ones = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    result = np.empty(ones + _LENGTHS[wanted], np.int64)
    depth = prod(shape[axis] for axis in axes)
    budget = min(_TILE, _STATES_AT_ONCE * min(depth, _DEPTH))
    steps = tile_shape(shape, items.strides, axes, budget, _DEPTH)
    order = sorted(every, key=lambda axis: -abs(items.strides[axis]))
    places = np.argsort(order)
    scratch = _memory.empty((2, prod(steps)), np.float64)
    at_once = run is not None and wanted and all(steps[axis] >= shape[axis] for axis in axes)
    for kept in tiles(shape, steps, [axis for axis in every if axis not in axes]):
        found: Any = None
        for reduced in tiles(shape, steps, axes):
            box = tuple(reduced[axis] if axis in axes else kept[axis] for axis in every)
            sizes = [len(range(n)[one]) for n, one in zip(shape, box, strict=True)]
            across = [sizes[axis] for axis in order]
            pair = [line[: prod(sizes)].reshape(across).transpose(places) for line in scratch]
            tile = items.read(box, pair[1])
            if run is not None:
                strides = tuple(stride // 8 for stride in tile.strides)
                nest = _nest(tile.shape, strides, strides, axes, False)
                found = nest.run(run, tile, tile, wanted if at_once else WANT_WORDS, found)
            else:
                if found is None:
                    sums = [1 if axis in axes else n for axis, n in enumerate(sizes)]
                    # Python's integers, as adding to NumPy's takes as long as a tile.
                    found = [0] * WORDS if prod(sums) == 1 else np.zeros((WORDS, *sums), np.int64)
                _split(found, tile, axes, pair)
        if run is not None:
            found = nest.arrange(found)
        else:
            found = np.moveaxis(np.asarray(found).reshape(WORDS, *sums), 0, -1)
        result[kept] = _round(found, wanted) if wanted and not at_once else found
    return result


def _split(words: Any, tile: Buffer, axes: tuple[int, ...], pair: Any, shift: int = 0) -> None:
    """Add the items of a tile, times 2**(24 * shift), to words.

    These are an array, or, of one sum, a list of integers. `pair` is scratch memory of two arrays
    as the tile, which may be the second.
    """
    depth = prod(tile.shape[axis] for axis in axes)
    bits = min(_MOST_BITS, 62 - (depth - 1).bit_length())  # so that sums of integers fit 63
    largest = max(float(tile.max()), -float(tile.min()))
    if not largest < ldexp(1.0, _HUGE_EXPONENT):
        _split_extremes(words, tile, axes, pair)
        return
    above, rest = pair or (None, None)
    exponent = frexp(largest)[1]  # of a power of two that no item exceeds
    level = 0
    while largest:
        place = max(0, -(-(exponent - bits - LEAST) // DIGIT_BITS))
        unit = LEAST + DIGIT_BITS * place
        sigma = ldexp(1.5, 52 + unit)
        above = np.add(tile, sigma, out=above)
        # Sums of bits wrap, and what is left of them is exact.
        total = _sum_integers(words, above.view(np.int64), axes)
        total -= _wrap((1075 + unit << 52 | 1 << 51) * depth)
        if words.__class__ is list:
            total = _wrap(total)
        low = place + shift
        words[low] += total & _MASK
        words[low + 1] += total >> DIGIT_BITS & _MASK
        words[low + 2] += total >> 2 * DIGIT_BITS
        if place == 0:
            return
        above -= sigma
        tile = rest = np.subtract(tile, above, out=rest)
        exponent, level = unit - 1, level + 1
        if level > 1:
            if pair and not np.bitwise_or.reduce(tile.view(np.int64), axis=None):
                return
            largest = max(float(tile.max()), -float(tile.min()))
            exponent = frexp(largest)[1]


_MASK: Final = (1 << DIGIT_BITS) - 1


def _wrap(integer: int) -> int:
    """Return the integer of 64 bits that an integer overflows to."""
    return (integer + (1 << 63)) % (1 << 64) - (1 << 63)


def _sum_integers(words: Any, integers: Buffer, axes: tuple[int, ...]) -> Any:
    if words.__class__ is list:
        return int(np.add.reduce(integers, axis=None, dtype=np.int64))
    return integers.sum(axis=axes, dtype=np.int64, keepdims=True)


def _split_extremes(words: Buffer, tile: Buffer, axes: tuple[int, ...], pair: Any) -> None:
    """Count the items that are not finite, and add the others, of which some are huge."""
    library = _backend.namespace_of(tile)
    for word, found in (
        (PLUS, tile == np.inf),
        (MINUS, tile == -np.inf),
        (MISSING, np.isnan(tile)),
    ):
        words[word] += _sum_integers(words, found, axes)
    items = library.where(np.isfinite(tile), tile, 0.0)
    is_large = abs(items) >= 1.0
    scaled = items * ldexp(1.0, -DIGIT_BITS * _SHIFT)  # exact where it is large
    _split(words, library.where(is_large, scaled, 0.0), axes, pair, _SHIFT)
    _split(words, library.where(is_large, 0.0, items), axes, pair)


# --- rounding ------------------------------------------------------------------------------------


def round_sums(words: Buffer, dtype: Any) -> Buffer:
    """Return sums given as words, which it may change, rounded once to a real floating dtype."""
    return _round(words, _wanted(dtype)).view(np.float64).astype(dtype, copy=False)


def round_short(states: Buffer, dtype: Any) -> Buffer | None:
    """Return the sums of short states along the first axis, rounded once to a real floating dtype.

    Parameters
    ----------
    states : array of int64
        Of two axes, the states of a block one after another in each row.
    dtype : dtype

    Returns
    -------
    array or None
        None where some state holds nothing.
    """
    blocks, count = len(states), states.shape[1] // 2
    found: list[Buffer | None] = []
    wanted = _wanted(dtype)

    def by_kernel(run: Callable[..., int]) -> None:
        sums = np.empty(count, np.int64)
        where = address_of(sums), int(wanted == WANT_ODD)
        told = run(
            address_of(states), states.strides[0] // 8, blocks, count, scratch_of_thread(), *where
        )
        found.append(None if told & _FALLS_SHORT else sums)
        _raise_float_errors(told)

    def by_numpy() -> None:
        if (states[:, 1::2] & _MISFIT).any():
            found.append(None)
        else:
            found.append(_round(_lengthen(states.reshape(blocks, count, 2)), wanted))

    job, run = "reduce exactly states", _kernel("round_states")
    run_faster(job, states.nbytes, run, by_kernel, by_numpy, _ROUNDING_COST)
    return None if found[0] is None else found[0].view(np.float64).astype(dtype, copy=False)


def _round(words: Buffer, wanted: int) -> Buffer:
    """Return the bits of sums given as words, which it may change, or short states."""
    words = np.ascontiguousarray(words)
    flat = words.reshape(-1, WORDS)
    found = np.empty((len(flat), *_LENGTHS[wanted]), np.int64)

    def by_numpy() -> None:
        if len(flat) == 1 and not flat[0, DIGITS:].any():
            total = _as_integer(flat[0, :DIGITS].tolist())
            if wanted == WANT_SHORT:
                found[0] = _shorten_one(total)
            else:
                found.view(np.float64)[0] = _round_one(total, wanted == WANT_ODD)
            return
        for start in range(0, len(flat), _STATES_AT_ONCE):
            part = flat[start : start + _STATES_AT_ONCE].T
            to = found[start : start + _STATES_AT_ONCE]
            if wanted == WANT_SHORT:
                to[...] = _shorten_by_numpy(part).T
            else:
                to[...] = _round_by_numpy(part, wanted == WANT_ODD).view(np.int64)

    run_faster(
        "reduce exactly words",
        words.nbytes,
        _kernel("round_words"),
        lambda run: _raise_float_errors(
            run(address_of(flat), len(flat), address_of(found), wanted - 1)
        ),
        by_numpy,
        _ROUNDING_COST,
    )
    return found.reshape(words.shape[:-1] + _LENGTHS[wanted])


def _as_integer(digits: list[int]) -> int:
    return sum(digit << DIGIT_BITS * i for i, digit in enumerate(digits) if digit)


def _shorten_one(total: int) -> tuple[int, int]:
    """Return the short state of a sum, given in units of the digits."""
    zeros = max(0, (total & -total).bit_length() - 1)
    high, field = total >> zeros + _LEVEL, _LOWEST + zeros
    if field > _HIGHEST or not -(1 << 61) <= high < 1 << 61:
        return 0, _MISFIT
    low = (total >> zeros) & (1 << _LEVEL) - 1
    return high, low << _FIELD_BITS | field


def _shorten_by_numpy(words: Buffer) -> Buffer:
    """Return the short states of sums given as words, both along first axes."""
    digits = np.concatenate([_carry(words[:DIGITS]), np.zeros((6, *words.shape[1:]), np.int64)])
    is_set = digits != 0
    first = np.argmax(is_set, axis=0)
    is_zero, beyond = ~is_set.any(axis=0), DIGITS + 5 - np.argmax(is_set[::-1], axis=0) - first > 5
    first = np.where(is_zero, 0, np.minimum(first, DIGITS))
    some = [np.take_along_axis(digits, first[None] + i, axis=0)[0] for i in range(6)]
    zeros = np.frexp((some[0] & -some[0]).astype(np.float64))[1].astype(np.int64) - 1
    zeros = np.maximum(zeros, 0)
    # Pairs of digits, of which the first two are made positive.
    below, between, above = (some[i] + (some[i + 1] << DIGIT_BITS) for i in range(0, 6, 2))
    pair = 2 * DIGIT_BITS
    between += below >> pair
    above += between >> pair
    below, between = (one & (1 << pair) - 1 for one in (below, between))
    by = zeros + _LEVEL - pair
    field = _LOWEST + DIGIT_BITS * first + zeros
    high = (above << pair - by) + (between >> by)
    low = (between & (1 << by) - 1) << _LEVEL - by | below >> zeros
    fits = ~beyond & (field <= _HIGHEST) & (above << pair + 2 - by >> pair + 2 - by == above)
    units = np.where(fits, low << _FIELD_BITS | field, _MISFIT)
    special = (words[DIGITS:] != 0) * np.array([1, 2, 4]).reshape(-1, *(1,) * first.ndim)
    special = special.sum(axis=0)
    high = np.where(special != 0, special, np.where(fits, high, 0))
    units = np.where(special != 0, _FIELDS, np.where(is_zero, 0, units))
    return np.stack([high, units])


def _lengthen(states: Buffer) -> Buffer:
    """Return the sums of short states along the first axis as words."""
    words = np.zeros((states.shape[1], WORDS), np.int64)
    every = np.arange(len(words))
    for high, unit in np.moveaxis(states, -1, 1):
        field, low = unit & _FIELDS, unit >> _FIELD_BITS
        is_special = field == _FIELDS
        for i in range(3):
            words[:, DIGITS + i] += is_special & (high >> i & 1 == 1)
        high = np.where(is_special, 0, high)
        exponents = np.clip(field, _LOWEST, _HIGHEST + 4) - _LOWEST
        for integer, exponent in ((low, exponents), (high, exponents + _LEVEL)):
            place, by = np.divmod(exponent, DIGIT_BITS)
            for i in range(2):
                part = (integer & _MASK if i == 0 else integer >> DIGIT_BITS) << by
                for j in range(3):
                    last = part >> 2 * DIGIT_BITS
                    words[every, place + i + j] += (
                        last if j == 2 else part >> j * DIGIT_BITS & _MASK
                    )
    return words


def _round_one(total: int, to_odd: bool) -> float:
    """Return a sum in units of the digits, rounded to float64, to nearest or to odd."""
    try:
        if not to_odd:
            return total / (1 << -LEAST)  # which Python rounds to nearest
        magnitude = abs(total)
        beyond = max(0, magnitude.bit_length() - 53)
        cut = magnitude >> beyond
        cut |= cut << beyond != magnitude
        return ldexp(cut if total > 0 else -cut, beyond + LEAST)
    except OverflowError:
        _raise_float_errors(_OVERFLOW)
        return inf if total > 0 else -inf


def _round_by_numpy(words: Buffer, to_odd: bool) -> Buffer:
    """Return sums given as words, rounded to float64, to nearest or to odd."""
    digits = _carry(words[:DIGITS])
    least = np.zeros((4, *digits.shape[1:]), np.int64)
    digits = np.concatenate([least, digits])  # so that three digits are below any
    is_set = digits != 0
    top = DIGITS + 3 - np.argmax(is_set[::-1], axis=0)  # of zeros any
    top = np.maximum(top, 4)

    def digit(below: int) -> Any:
        return np.take_along_axis(digits, (top - below)[None], axis=0)[0]

    # The sign of what is below is that of its first digit, as none is more than half of the next.
    places = np.arange(len(digits)).reshape(-1, *(1,) * top.ndim)
    lower = np.where(places < top - 3, digits, 0)
    first = len(digits) - 1 - np.argmax(lower[::-1] != 0, axis=0)
    sticky = np.sign(np.take_along_axis(lower, first[None], axis=0)[0])
    high = (digit(0) << DIGIT_BITS) + digit(1)
    low = (((digit(2) << DIGIT_BITS) + digit(3)) << 1) + sticky
    # Both are exact, as is the product: so that there is one rounding, of at least 70 bits.
    high, low = high * ldexp(1.0, 2 * DIGIT_BITS + 1), low.astype(np.float64)
    sums = high + low
    if to_odd:
        sums = _round_to_odd(sums, low - (sums - high))
    exponents = (DIGIT_BITS * (top - 7) + LEAST - 1).astype(np.int32)
    sums = np.ldexp(sums, exponents) + 0.0
    return _with_extremes(sums, words[PLUS], words[MINUS], words[MISSING])


def _round_to_odd(sums: Buffer, errors: Buffer) -> Buffer:
    """Return inexact sums with a last bit of 1: as if cut off, so that rounding again is right.

    S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Trans. Comput. 57 (2008).
    """
    bits = sums.view(np.int64)
    outwards = np.where((errors > 0) == (sums > 0), 1, -1)
    return np.where((errors != 0) & (bits & 1 == 0), bits + outwards, bits).view(np.float64)


def _with_extremes(sums: Buffer, plus: Buffer, minus: Buffer, missing: Buffer) -> Buffer:
    """Return sums beside items that are not finite."""
    if not (plus.any() or minus.any() or missing.any()):
        return sums
    infinite = np.where(plus > 0, np.inf, 0.0) - np.where(minus > 0, np.inf, 0.0)
    sums = np.where((plus > 0) | (minus > 0), infinite, sums)
    return np.where((missing > 0) | np.isnan(sums), np.nan, sums)


def _carry(words: Buffer) -> Buffer:
    """Return digits from -2**23 to 2**23 - 1 of the same numbers, which have these alone."""
    digits = words.copy()
    half = 1 << DIGIT_BITS - 1
    while True:
        carries = digits + half >> DIGIT_BITS
        if not carries.any():
            return digits
        digits -= carries << DIGIT_BITS
        digits[1:] += carries[:-1]
