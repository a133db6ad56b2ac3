"""Random numbers for a local block, each a function of key, call and global index alone.

NumPy's own Philox draws the numbers of consecutive items, from any of them on: its state is set to
their counter. Numba's kernels make the same bits faster, and serve as soon as NumPy has taken as
long as loading, or compiling, them does. Measured on one core of Zen 5 for a value, in ns:

===========  =======  =======  =========================
kind         kernel   NumPy    NumPy's default generator
===========  =======  =======  =========================
uniform      1.0      3.4      1.7
integer      1.1      4.4      1.8
normal       1.6      9.0      9.5
exponential  1.6      7.0      3.0
===========  =======  =======  =========================

By NumPy a call of 1000 takes 2 to 20 us besides, most of it in normal numbers' 40 calls.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from distarray.comm.cuda import is_usable, launch, threads, upload, wrap
from distarray.comm.kernels import (
    address_of,
    kernel,
    load_kernels,
    run_faster,
    run_in_threads,
    thread_count,
)
from distarray.random import _arrays, _formulas
from distarray.typing import Box, Buffer, Shape

_COST: Final = {"uniform": 4, "integer": 8, "normal": 16, "exponential": 16}
"""So many times as long as for a plain copy NumPy takes: see above, a value is copied in 0.8 ns."""
_CALL_BYTES: Final = 16 * 1024
"""As long as for so many bytes NumPy takes for no value of those that take 16 times as long."""
_SCATTERED_COST: Final = 40
"""So many times as long as for a copy NumPy takes where indices have gaps: 5 to 110."""
BATCH: Final = 256
"""Counter blocks at a time: a kernel's scratch memory of 16 KiB is in the first-level cache."""
PIECE: Final = 16_384
"""Items that NumPy makes at a time: their temporaries are in the second-level cache."""

_PYTHON_ITEMS: Final = 12
"""Up to so many numbers are made one by one, of Python's."""
_LOWER: Final = 2**64 - 1
_ROW_ITEMS: Final = 128
"""Items of rows that are drawn one by one: setting the state takes as long as drawing 600 items."""
_GAP_ITEMS: Final = 600
"""So many items between others are drawn along: that takes no longer than a new start."""
_FORMULA_ITEMS: Final = 28
"""As long as drawing so many items takes one by the formula, and all calls `_CALLS_ITEMS`."""
_CALLS_ITEMS: Final = 43_000

_KERNELS: Final = "distarray.random._kernels"

Key = tuple[int, int]
Words = tuple[int, int, int, int]
Geometry = tuple[int, list[int], list[int], tuple[np.ndarray, np.ndarray]]


def fill_floats(
    out: Any,
    kind: str,
    key: Key,
    call: int,
    shape: Shape,
    box: Box,
    loc: float = 0.0,
    scale: float = 1.0,
) -> None:
    """Fill a block with ``loc + scale * number``, computed in float64 and rounded once.

    Parameters
    ----------
    out
        A NumPy or CuPy array, C-contiguous, of the box's shape, float32 or float64.
    kind
        "uniform" in [0, 1), standard "normal" or standard "exponential".
    key
        Two words of 64 bits, from the seed.
    call
        Number of the call.
    shape, box
        Of the global array, and the part of it that the block is.
    """
    _fill(out, kind, words_of(key, call), geometry_of(shape, box), (float(loc), float(scale), 0.0))


def fill_integers(
    out: Any, key: Key, call: int, shape: Shape, box: Box, least: int, among: int
) -> None:
    """Fill a block of integers or truth values with the numbers from ``least`` on.

    Parameters
    ----------
    among
        How many different ones there are, 1 to 2**64; each is as likely as the others.
    """
    # The last: below it the lower bits of a product are drawn again. All are modulo 2**64.
    parameters = least & _LOWER, among & _LOWER, 2**64 % among
    bits = out if out.dtype.kind == "u" else out.view(_UNSIGNED[out.itemsize])
    _fill(bits, "integer", words_of(key, call), geometry_of(shape, box), parameters)


def fill(
    out: Any,
    kind: str,
    words: Words,
    geometry: Geometry,
    loc: float = 0.0,
    scale: float = 1.0,
    first: int = 0,
) -> None:
    """Fill a block with floats, see `fill_floats`, or, of kind "integer", uint64 with random bits.

    Parameters
    ----------
    words, geometry
        As of `words_of` and `geometry_of`.
    first
        The first of the box's elements, in C order, that `out` holds; on a GPU 0.
    """
    parameters: tuple[Any, ...] = (0, 0, 0) if kind == "integer" else (loc, scale, 0.0)
    _fill(out, kind, words, geometry, parameters, first)


def _fill(
    out: Any,
    kind: str,
    words: Words,
    geometry: Geometry,
    parameters: tuple[Any, ...],
    first: int = 0,
) -> None:
    if isinstance(out, np.ndarray):
        flat = out if out.ndim == 1 else out.reshape(-1)
        _fill_on_host(flat, kind, words, geometry, parameters, first)
        return
    given = tuple(map(np.uint64, parameters)) if kind == "integer" else parameters
    if not launch_kernel(out, kind, words, geometry, given):
        host = np.empty(out.shape, out.dtype)
        _fill(host, kind, words, geometry, parameters)
        out.set(host)


# --- on the host ---------------------------------------------------------------------------------


def _fill_on_host(
    flat: np.ndarray,
    kind: str,
    words: Words,
    geometry: Geometry,
    parameters: tuple[Any, ...],
    first: int,
) -> None:
    size, is_integer = flat.size, kind == "integer"

    def in_parts(fill_part: Callable[[int, int], None]) -> None:
        parts = thread_count(4 * flat.nbytes)
        if parts == 1:
            fill_part(0, size)
        else:
            cuts = [size * i // parts for i in range(parts + 1)]
            run_in_threads(lambda cut: fill_part(*cut), itertools.pairwise(cuts))

    def by_kernel(run: Any) -> None:
        corner, sizes, _, arrays = geometry
        of_words = np.array(words, np.uint64)
        items, addresses = address_of(flat), [*map(address_of, (*arrays, of_words))]
        given = (0.0, 0.0, *parameters) if is_integer else (*parameters[:2], 0, 0, 0)

        def fill_part(start: int, stop: int) -> None:
            scratch = np.empty(9 * BATCH, np.uint64)
            memory = address_of(scratch)
            made, blocks = memory + 32 * BATCH, memory + 64 * BATCH
            run(
                items + start * flat.itemsize, stop - start, memory, made, made, blocks,
                first + start, *addresses[:2], len(sizes), corner, addresses[2], *given,
            )  # fmt: skip

        in_parts(fill_part)

    def by_numpy() -> None:
        make: Callable[..., None] = _make_integers if is_integer else _make_floats

        def fill_part(start: int, stop: int) -> None:
            most = min(stop - start, PIECE)
            memory = _arrays.memory_for(most)
            for at in range(start, stop, PIECE):
                piece = flat if most == size else flat[at : min(at + PIECE, stop)]
                make(piece, kind, words, geometry, first + at, *parameters, memory)
            _arrays.give_back(most, memory)

        in_parts(fill_part)

    dear, nbytes = _COST[kind], flat.nbytes
    if size > _PYTHON_ITEMS and dear == _COST["normal"]:
        nbytes = max(nbytes, _CALL_BYTES)
    job, by = _job_of(kind, flat.dtype)
    run_faster(job, nbytes, by, by_kernel, by_numpy, dear)


@functools.cache
def _job_of(kind: str, dtype: np.dtype[Any]) -> tuple[str, Any]:
    """Return the name and the kernel of a kind of work; NumPy takes 5 us to find a dtype's name."""
    return f"random {kind} {dtype.name}", kernel(_KERNELS, "fill", kind, dtype.name)


_UNSIGNED: Final = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
_NONE: Final = np.array(0.0)
_ONE: Final = np.uint64(1)


def draw(kind: str, index: np.ndarray, words: Words) -> np.ndarray:
    """Return the numbers of items, given by their global linear indices.

    Float64 as of `fill`; of kind "integer" 64 random bits, as uint64.
    """
    out = np.empty(index.shape, np.uint64 if kind == "integer" else np.float64)
    index = np.ascontiguousarray(index).reshape(-1)

    def by_kernel(run: Any) -> None:
        scratch, of_words = np.empty(5 * BATCH, np.uint64), np.array(words, np.uint64)
        memory = address_of(scratch)
        blocks = memory + 32 * BATCH
        run(address_of(out), out.size, memory, blocks, address_of(index), address_of(of_words))

    def by_numpy() -> None:
        flat = out.reshape(-1)
        for at in range(0, flat.size, PIECE):
            flat[at : at + PIECE] = _scattered(kind, index[at : at + PIECE], words, out.dtype)

    by = kernel(_KERNELS, "draw", kind)
    nbytes = max(out.nbytes, _CALL_BYTES) if out.size > _PYTHON_ITEMS else out.nbytes
    run_faster(f"random draw {kind}", nbytes, by, by_kernel, by_numpy, _SCATTERED_COST)
    return out


# --- by NumPy ------------------------------------------------------------------------------------


def _make_floats(
    out: np.ndarray,
    kind: str,
    words: Words,
    geometry: Geometry,
    first: int,
    loc: float,
    scale: float,
    _: float,
    memory: _arrays.Memory,
) -> None:
    found = _numbers(kind, words, geometry, first, out, memory)
    if kind == "uniform" and loc == 0.0 and scale == 1.0:
        if found is not out:
            out[...] = found
        return
    if loc == 0.0 and scale == 1.0 and out.dtype.char == "d":
        np.add(_NONE, found, out)  # there is no -0.0 then
        return
    with np.errstate(over="ignore"):  # as in the kernels
        found *= scale
        np.add(loc, found, out, casting="same_kind")


def _make_integers(
    out: np.ndarray,
    kind: str,
    words: Words,
    geometry: Geometry,
    first: int,
    least: int,
    among: int,
    bound: int,
    memory: _arrays.Memory,
) -> None:
    found = _numbers(kind, words, geometry, first, out, memory)
    if among and out.size <= _PYTHON_ITEMS:
        most = (1 << 8 * out.itemsize) - 1
        products = [x * among for x in found.tolist()]
        if min(map(_LOWER.__and__, products)) >= bound:
            out[:] = [least + (product >> 64) & most for product in products]
            return
    if among:
        found, low = _arrays.scaled(found, among, memory)
        attempt = 0
        while low is not None and low.size and np.minimum.reduce(low) < bound:
            attempt += 1
            again = np.flatnonzero(low < bound)
            index = indices_of(geometry, first + again)
            x = _scattered(kind, index, turned(words, attempt), found.dtype)
            low = np.full(low.size, bound, np.uint64)
            found[again], low[again] = _formulas.scaled(x, np.uint64(among))
    out[...] = found if least == 0 else found + least


def _numbers(
    kind: str,
    words: Words,
    geometry: Geometry,
    first: int,
    out: np.ndarray,
    memory: _arrays.Memory,
) -> np.ndarray:
    """Return random bits, or float64 before it is scaled, for what `out` holds; perhaps in it."""
    corner, sizes, *_ = geometry
    width, count = sizes[-1], out.size
    if len(sizes) == 1:
        runs = [(corner + first, count)]
    elif width < _ROW_ITEMS:
        index = indices_of(geometry, np.arange(first, first + count))
        return _scattered(kind, index, words, out.dtype)
    else:
        rows = np.arange(first - first % width, first + count, width)
        runs = [(index, width) for index in indices_of(geometry, rows).tolist()]
        runs[-1] = (runs[-1][0], first + count - int(rows[-1]))
        skipped = first % width
        runs[0] = (runs[0][0] + skipped, runs[0][1] - skipped)
    if kind != "normal":
        found = _along(kind, runs, count, words, out)
        return _finished(found, kind, out.dtype, memory)
    pairs: list[tuple[int, int]] = []
    total = 0
    for start, length in runs:
        drawn = (length + (start & 1) + 1) & -2
        pairs.append((start & -2, drawn))
        total += drawn
    found = _along(kind, pairs, total, words, out)
    _finished(found, kind, out.dtype, memory)
    if found.size == count:
        return found
    parts, place = [], 0
    for (start, length), (_, drawn) in zip(runs, pairs, strict=True):
        begin = place + (start & 1)
        parts.append(found[begin : begin + length])
        place += drawn
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _along(
    kind: str, runs: Sequence[tuple[int, int]], count: int, words: Words, out: np.ndarray
) -> np.ndarray:
    """Return what NumPy's Philox draws for runs of items: bits, or uniform float64."""
    philox = _take_philox(words)
    if _is_of_bits(kind, out.dtype):
        drawn = [philox.bits(*run) for run in runs]
        found = drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
    else:
        found = out if out.dtype.char == "d" and out.size == count else np.empty(count)
        at = 0
        for index, length in runs:
            philox.fill(index, found if length == count else found[at : at + length])
            at += length
    _give_back(philox)
    return found


def _scattered(kind: str, index: np.ndarray, words: Words, dtype: Any) -> np.ndarray:
    """Return random bits, or float64 before it is scaled, of items by their indices."""
    if kind != "normal":
        x = _bits_at(index, words)
        if not _is_of_bits(kind, dtype):
            x = _formulas.unit_double(x)
        return _finished(x, kind, dtype, _arrays.memory_for(min(x.size, PIECE)))
    # Both numbers of each pair, once of pairs that follow each other.
    pair = index >> _ONE
    is_new = np.ones(pair.size, np.bool_)
    np.not_equal(pair[1:], pair[:-1], is_new[1:])
    both = np.repeat(pair[is_new] << _ONE, 2)
    both[1::2] += _ONE
    found = _formulas.unit_double(_bits_at(both, words))
    _finished(found, kind, dtype, _arrays.memory_for(min(found.size, PIECE)))
    return found[2 * np.cumsum(is_new) - 2 + (index & _ONE).view(np.int64)]


def _bits_at(index: np.ndarray, words: Words) -> np.ndarray:
    """Return the random bits of items, by NumPy's Philox where they lie dense enough."""
    if not index.size:
        return np.empty(0, np.uint64)
    steps = np.diff(index)  # where indices descend they wrap around, beyond any gap
    near = steps <= _GAP_ITEMS
    cuts = (np.flatnonzero(~near) + 1).tolist()
    drawn = int(steps[near].sum()) + _GAP_ITEMS * (len(cuts) + 1)
    if drawn > _CALLS_ITEMS + _FORMULA_ITEMS * index.size:
        return _by_formula(index, words)
    philox = _take_philox(words)
    out = np.empty(index.size, np.uint64)
    for start, stop in itertools.pairwise((0, *cuts, index.size)):
        part = index[start:stop]
        low = int(part[0])
        found = philox.bits(low, int(part[-1]) + 1 - low)
        out[start:stop] = found if found.size == part.size else found[part - part[0]]
    _give_back(philox)
    return out


def _by_formula(index: np.ndarray, words: Words) -> np.ndarray:
    with np.errstate(over="ignore"):
        k0, k1, call, turn = map(np.uint64, words)
        found = _formulas.philox(index >> np.uint64(2), call, turn, k0, k1)
    return np.choose((index & np.uint64(3)).view(np.int64), found)


def _is_of_bits(kind: str, dtype: np.dtype[Any]) -> bool:
    return kind == "integer" or (kind == "uniform" and dtype.char == "f")


def _finished(found: np.ndarray, kind: str, dtype: Any, memory: _arrays.Memory) -> np.ndarray:
    """Return numbers of a kind, in the place of bits or uniform float64 if that may be."""
    if kind == "uniform":
        return _formulas.unit_single(found) if dtype.char == "f" else found
    if kind == "integer":
        return found
    if found.size > _PYTHON_ITEMS:
        make = _arrays.make_normal if kind == "normal" else _arrays.make_exponential
        step = _arrays.room_in(memory)
        for at in range(0, found.size, step):
            make(found[at : at + step], memory)
        return found
    few, formulas = found.tolist(), _formulas.of_numbers
    if kind == "exponential":
        found[:] = [*map(formulas.exponential, few)]
    else:
        made = map(formulas.normal_pair, few[::2], few[1::2])
        found[:] = [*itertools.chain.from_iterable(made)]
    return found


class _Philox:
    """NumPy's Philox, which draws the numbers of any items."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._draw = np.random.Generator(self._bits).random

    def aim(self, words: Words) -> None:
        self._key, self._at = words[:2], words[2:]

    def bits(self, index: int, count: int) -> np.ndarray:
        """Return the random bits of items from one on."""
        self._go_to(index)
        return self._bits.random_raw(count)

    def fill(self, index: int, out: np.ndarray) -> None:
        """Fill float64 with uniform numbers, of items from one on."""
        self._go_to(index)
        self._draw(out=out)

    def _go_to(self, index: int) -> None:
        # A block is drawn after 1 is added to the counter. Arrays would take thrice the time.
        state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": (index >> 2, *self._at, 0), "key": self._key},
            "buffer": _NOTHING,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._bits.state = state
        if before := index & 3:
            self._bits.random_raw(before, False)


_NOTHING: Final = (0, 0, 0, 0)
_kept: Final = threading.local()


def _take_philox(words: Words) -> _Philox:
    """Return one that nobody else draws from, not even who interrupts; `_give_back` ends that."""
    found = getattr(_kept, "philox", None) or _Philox()
    _kept.philox = None
    found.aim(words)
    return found


def _give_back(philox: _Philox) -> None:
    _kept.philox = philox


# --- on a GPU ------------------------------------------------------------------------------------


def launch_kernel(
    out: Buffer, kind: str, words: Iterable[Any], geometry: Geometry, parameters: Iterable[Any]
) -> bool:
    """Fill a C-contiguous block in device memory, to the host's bits; tell whether it was done."""
    if not is_usable(out):
        return False
    if not out.size:
        return True
    by = load_kernels(f"{_KERNELS}_cuda").kernel(kind, out.dtype.name)
    corner, sizes, strides, _ = geometry
    *outer, width = sizes
    slots_of_row = (width + 6) // 4
    slots = out.size // width * slots_of_row
    entries = [slots, slots_of_row, width, corner, *map(int, words), len(outer)]
    for size, stride in zip(reversed(outer), reversed(strides[:-1]), strict=True):
        entries += [size, stride]
    table = wrap(upload(np.array(entries, np.uint64).view(np.int64)))
    return launch(by, -(-slots // threads()), wrap(out.reshape(-1)), table, *parameters)


# --- which numbers -------------------------------------------------------------------------------


def words_of(key: Key, call: int) -> Words:
    """Return the key, and the words of the counter that a call and its first turn fix."""
    return *key, call, 0


def turned(words: Words, turn: int) -> Words:
    """Return the words of another turn, or attempt, of the same call."""
    return *words[:3], words[3] + turn & _LOWER


@functools.lru_cache(maxsize=64)
def geometry_of(shape: Shape, box: Box) -> Geometry:
    """Return the index of a box's corner, and the fewest sizes and strides that reach it all.

    These come last as arrays.
    """
    corner, stride = 0, 1
    sizes: list[int] = []
    strides: list[int] = []
    for n, (start, stop) in zip(reversed(shape), reversed(box), strict=True):
        corner += start * stride
        if sizes and strides[-1] * sizes[-1] == stride:
            sizes[-1] *= stop - start
        else:
            sizes.append(stop - start)
            strides.append(stride)
        stride *= n
    if not sizes:
        sizes, strides = [1], [1]
    sizes.reverse()
    strides.reverse()
    return corner, sizes, strides, (np.array(sizes, np.int64), np.array(strides, np.int64))


def indices_of(geometry: Geometry, places: np.ndarray) -> np.ndarray:
    """Return the global linear indices of elements by their places in a box, in C order."""
    corner, sizes, strides, _ = geometry
    index: Any = corner
    for length, stride in zip(sizes[:0:-1], strides[:0:-1], strict=True):
        places, column = np.divmod(places, length)
        index = index + column * stride
    return (index + places * strides[0]).view(np.uint64)
