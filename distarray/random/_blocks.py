"""Random numbers for a local block, each a function of key, call and global index alone.

Numba's kernels serve as soon as NumPy has taken as long as loading, or compiling, them does. NumPy
runs the same formulas otherwise, and gives the same bits. Measured per value on one core, beside
NumPy's default generator: uniform floats 1.3 times its time, integers 1.3 to 1.7 times, normal
floats half of it. The formulas in NumPy take 5 to 10 times as long as the kernels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
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
from distarray.random import _formulas
from distarray.typing import Box, Buffer, Shape

_DEAR: Final = 45
"""So many times as long as for a plain copy NumPy takes, as measured on Zen 4: 35 ns a value for
0.8."""
_CALL_BYTES: Final = 24 * 1024
"""As long as for so many bytes NumPy takes for no value: 60 to 130 us."""
BATCH: Final = 256
"""Words of each of a kernel's six scratch memories: 12 KiB, which the first-level cache holds."""
PIECE: Final = 16_384
"""Elements that NumPy makes at a time: their temporaries are in the second-level cache. A block of
2**19 takes 17 ms by any number from 4,096 to 32,768."""

_FEW: Final = 12
"""Up to so many elements are made one by one, of Python's numbers."""
_FEWER: Final = 4
"""Up to so many are worth no kernel that is not loaded: two take 9 us, by a kernel 7."""
_FEWER_BYTES: Final = 3 * 1024
"""As long as for so many bytes NumPy takes for them, see `_CALL_BYTES`."""

_KERNELS: Final = "distarray.random._kernels"

Key = tuple[int, int]
Geometry = tuple[int, np.ndarray, np.ndarray, tuple[int, int]]


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
        Two words of 32 bits, from the seed.
    call
        Number of the call.
    shape, box
        Of the global array, and the part of it that the block is.
    """
    fill(out, kind, words_of(key, call), geometry_of(shape, box), float(loc), float(scale))


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
    parameters = np.uint64(least % 2**64), np.uint64(among % 2**64), np.uint64(2**64 % among)
    bits = out.view(f"u{out.itemsize}")
    _fill(bits, "integer", words_of(key, call), geometry_of(shape, box), parameters)


def fill(
    out: Any,
    kind: str,
    words: np.ndarray,
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
    parameters = (_ZERO,) * 3 if kind == "integer" else (loc, scale, 0.0)
    _fill(out, kind, words, geometry, parameters, first)


def _fill(
    out: Any,
    kind: str,
    words: np.ndarray,
    geometry: Geometry,
    parameters: tuple[Any, ...],
    first: int = 0,
) -> None:
    if isinstance(out, np.ndarray):
        _fill_on_host(out.reshape(-1), kind, words, geometry, parameters, first)
    elif not launch_kernel(out, kind, words, geometry, parameters):
        host = np.empty(out.shape, out.dtype)
        _fill(host, kind, words, geometry, parameters)
        out.set(host)


# --- on the host ---------------------------------------------------------------------------------


def _fill_on_host(
    flat: np.ndarray,
    kind: str,
    words: np.ndarray,
    geometry: Geometry,
    parameters: tuple[Any, ...],
    first: int,
) -> None:
    corner, sizes, _, addresses = geometry
    is_integer = kind == "integer"
    name = _name_of(flat.dtype)
    by = kernel(_KERNELS, "fill", kind, name)
    if flat.size <= _FEWER and not is_integer and not by.pays(_DEAR * _FEWER_BYTES):
        loc, scale, _ = parameters
        numbers = _few(kind, few_indices_of(geometry, first, flat.size), words, flat.dtype)
        moved = [loc + scale * one for one in numbers]
        if flat.itemsize == 8:
            flat[:] = moved
        else:
            with np.errstate(over="ignore"):
                flat[:] = moved
        return
    given = (0.0, 0.0, *map(int, parameters)) if is_integer else (*parameters[:2], 0, 0, 0)

    def by_kernel(run: Any) -> None:
        items, of_words = address_of(flat), address_of(words)

        def fill_part(cut: tuple[int, int]) -> None:
            start, stop = cut
            scratch = np.empty((6, BATCH), np.uint64)
            memory = address_of(scratch)
            run(
                items + start * flat.itemsize, stop - start,
                *range(memory, memory + scratch.nbytes, 8 * BATCH),
                first + start, *addresses, sizes.size, corner, of_words, *given,
            )  # fmt: skip

        parts = thread_count(4 * flat.nbytes)
        if parts == 1:
            fill_part((0, flat.size))
        else:
            cuts = [flat.size * i // parts for i in range(parts + 1)]
            run_in_threads(fill_part, itertools.pairwise(cuts))

    def by_numpy() -> None:
        for start in range(0, flat.size, PIECE):
            piece = flat[start : start + PIECE]
            places = np.arange(first + start, first + start + piece.size)
            index = indices_of(geometry, places)
            with np.errstate(over="ignore"):  # float32 has its infinities, as in the kernels
                piece[:] = _draw(kind, index, words, piece.dtype, *parameters, ascends=True)

    nbytes = max(flat.nbytes, _CALL_BYTES)
    run_faster(f"random {kind} {name}", nbytes, by, by_kernel, by_numpy, _DEAR)


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy takes 5 us to find."""
    return dtype.name


_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)


def draw(kind: str, index: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the numbers of elements, given by their global linear indices.

    Float64 as of `fill`; of kind "integer" 64 random bits, as uint64.
    """
    is_integer = kind == "integer"
    out = np.empty(index.shape, np.uint64 if is_integer else np.float64)
    index = np.ascontiguousarray(index)

    def by_kernel(run: Any) -> None:
        run(address_of(out), out.size, address_of(index), address_of(words))

    def by_numpy() -> None:
        parameters = (_ZERO,) * 3 if is_integer else (0.0, 1.0, 0.0)
        out[...] = _draw(kind, index, words, out.dtype, *parameters, ascends=False)

    nbytes = max(out.nbytes, _CALL_BYTES)
    by = kernel(_KERNELS, "draw", kind)
    run_faster(f"random draw {kind}", nbytes, by, by_kernel, by_numpy, _DEAR)
    return out


def _draw(
    kind: str, index: np.ndarray, words: np.ndarray, dtype: Any, *parameters: Any, ascends: bool
) -> np.ndarray:
    """Return the numbers of elements, by NumPy; their indices may ascend."""
    found: Any
    if index.size > _FEW:
        found = _standard(kind, index, words, dtype, ascends)
    else:
        numbers = _few(kind, index.reshape(-1).tolist(), words, dtype)
        found = np.array(numbers, np.uint64 if kind == "integer" else np.float64)
        found = found.reshape(index.shape)
    if kind == "integer":
        least, count, bound = parameters
        return least + _redraw(found, index, words, count, bound)
    loc, scale, _ = parameters
    return loc + scale * found


def _standard(
    kind: str, index: np.ndarray, words: np.ndarray, dtype: Any, ascends: bool
) -> np.ndarray:
    """Return the numbers of elements before they are scaled; or their random bits."""
    n = index.size
    start = int(index[0]) if ascends else 0
    follow = ascends and int(index[-1]) - start == n - 1  # so that two share a block
    blocks = _blocks_of(start, n) if follow else index >> _ONE
    a, b = _formulas.philox(blocks, *words[2:4], *words[:2])
    if kind == "normal":
        a, b = _formulas.normal_pair(a, b)
    if follow:
        found = np.stack((a, b), axis=-1).reshape(-1)[start & 1 :][:n]
    else:
        found = np.where((index & _ONE) == _ONE, b, a)
    finish = _finish(_formulas, kind, dtype)
    return found if finish is None else finish(found)


def _blocks_of(start: int, count: int) -> np.ndarray:
    """Return the counter blocks of elements that follow each other, each once."""
    return np.arange(start >> 1, (start + count + 1) >> 1, dtype=np.uint64)


def _few(kind: str, index: Iterable[int], words: np.ndarray, dtype: Any) -> list[Any]:
    """Return what `_standard` does of a few elements, as Python's numbers."""
    k0, k1, c2, c3 = words.tolist()
    formulas = _formulas.of_numbers
    block, pair = -1, (0, 0)
    found: list[Any] = []
    for one in index:
        if one >> 1 != block:
            block = one >> 1
            pair = formulas.philox(block, c2, c3, k0, k1)
            if kind == "normal":
                pair = formulas.normal_pair(*pair)
        found.append(pair[one & 1])
    finish = _finish(formulas, kind, dtype)
    return found if finish is None else [finish(x) for x in found]


def _finish(formulas: Any, kind: str, dtype: Any) -> Callable[[Any], Any] | None:
    """Return what makes random bits numbers of a kind; None where they are made."""
    if kind == "exponential":
        return formulas.exponential
    if kind == "uniform":
        return formulas.unit_single if dtype == np.float32 else formulas.unit_double
    return None


def _redraw(
    x: np.ndarray, index: np.ndarray, words: np.ndarray, count: np.uint64, bound: np.uint64
) -> np.ndarray:
    """Return integers below ``count``, drawn again until they are unbiased."""
    if count == 0:
        return x
    value, low = _formulas.scaled(x, count)
    attempt = 0
    while (again := low < bound).any():
        attempt += 1
        c3 = words[3] + np.uint64(attempt << 16)
        x0, x1 = _formulas.philox(index[again] >> _ONE, words[2], c3, *words[:2])
        second = (index[again] & _ONE) == _ONE
        value[again], low[again] = _formulas.scaled(np.where(second, x1, x0), count)
    return value


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
    *outer, width = sizes.tolist()
    slots_of_row = width // 2 + 1
    slots = out.size // width * slots_of_row
    entries = [slots, slots_of_row, width, corner, *map(int, words), len(outer)]
    for size, stride in zip(reversed(outer), reversed(strides.tolist()[:-1]), strict=True):
        entries += [size, stride]
    table = wrap(upload(np.array(entries, np.int64)))
    return launch(by, -(-slots // threads()), wrap(out.reshape(-1)), table, *parameters)


# --- which numbers -------------------------------------------------------------------------------


def words_of(key: Key, call: int) -> np.ndarray:
    """Return the key, and the words of the counter that a call fixes."""
    return np.array([*key, call & 0xFFFFFFFF, (call >> 32) & 0xFFFF], np.uint64)


def turned(words: np.ndarray, turn: int) -> np.ndarray:
    """Return the words of another turn, or attempt, of the same call."""
    return words + np.array([0, 0, 0, turn << 16], np.uint64)


@functools.lru_cache(maxsize=64)
def geometry_of(shape: Shape, box: Box) -> Geometry:
    """Return the index of a box's corner, and the fewest sizes and strides that reach it all.

    The addresses of these come last.
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
    arrays = np.array(sizes[::-1], np.int64), np.array(strides[::-1], np.int64)
    return corner, *arrays, (address_of(arrays[0]), address_of(arrays[1]))


def indices_of(geometry: Geometry, places: np.ndarray) -> np.ndarray:
    """Return the global linear indices of elements by their places in a box, in C order."""
    corner, sizes, strides, _ = geometry
    index: Any = corner
    for length, stride in zip(sizes[:0:-1], strides[:0:-1], strict=True):
        places, column = np.divmod(places, length)
        index = index + column * stride
    return (index + places * strides[0]).view(np.uint64)


def few_indices_of(geometry: Geometry, first: int, count: int) -> list[int]:
    """Return the indices of `count` elements from `first` on, as `indices_of`."""
    corner, sizes, *_ = geometry
    if sizes.size > 1:
        return indices_of(geometry, np.arange(first, first + count)).tolist()
    return [*range(corner + first, corner + first + count)]
