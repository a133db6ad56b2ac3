"""Random numbers for a local block, each a function of key, call and global index alone.

Numba's kernels serve for blocks of 16,384 elements and more, and for all once they are loaded;
NumPy runs the same formulas otherwise, and gives the same bits. Measured per value on one core,
beside NumPy's default generator: uniform floats 1.3 times its time, integers 1.3 to 1.7 times,
normal floats half of it. The formulas in NumPy take 10 to 15 times as long as the load_kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from distarray.comm.kernels import _threads, are_loaded, load_kernels
from distarray.random import _formulas
from distarray.random._device_blocks import launch_floats, launch_integers
from distarray.typing import Box, Shape

_KERNEL_SIZE: Final = 16_384
_PIECE: Final = 16_384
"""Elements that NumPy makes at a time."""

_KERNELS: Final = "distarray.random._kernels"

Key = tuple[int, int]


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
        "uniform" in [0, 1) or standard "normal".
    key
        Two words of 32 bits, from the seed.
    call
        Number of the call.
    shape, box
        Of the global array, and the part of it that the block is.
    """
    words = _words(key, call)
    if not isinstance(out, np.ndarray):
        if not launch_floats(out, kind, words, _geometry(shape, box), float(loc), float(scale)):
            host = np.empty(out.shape, out.dtype)
            fill_floats(host, kind, key, call, shape, box, loc, scale)
            out.set(host)
        return
    module = _module(out)
    if module is not None:
        run = module.floats(kind, out.dtype.name).run
        _by_kernel(run, out.reshape(-1), shape, box, words, float(loc), float(scale))
        return
    single = out.dtype == np.float32
    for piece, index in _pieces(out.reshape(-1), shape, box):
        x0, x1 = _formulas.philox(index >> _ONE, *words[2:4], *words[:2])
        second = (index & _ONE) == _ONE
        if kind == "normal":
            a, b = _formulas.normal_pair(x0, x1)
            number = np.where(second, b, a)
        else:
            x = np.where(second, x1, x0)
            number = _formulas.unit_single(x) if single else _formulas.unit_double(x)
        with np.errstate(over="ignore"):  # float32 has its infinities, as in the kernels
            piece[:] = loc + scale * number


def fill_integers(
    out: Any, key: Key, call: int, shape: Shape, box: Box, least: int, among: int
) -> None:
    """Fill a block of integers or truth values with the numbers from ``least`` on.

    Parameters
    ----------
    among
        How many different ones there are, 1 to 2**64; each is as likely as the others.
    """
    words = _words(key, call)
    start, count = np.uint64(least % 2**64), np.uint64(among % 2**64)
    bound = np.uint64(2**64 % among)
    if not isinstance(out, np.ndarray):
        if not launch_integers(out, words, _geometry(shape, box), (start, count, bound)):
            host = np.empty(out.shape, out.dtype)
            fill_integers(host, key, call, shape, box, least, among)
            out.set(host)
        return
    flat = out.view(f"u{out.itemsize}").reshape(-1)
    module = _module(out)
    if module is not None:
        _by_kernel(
            module.integers(flat.dtype.name).run, flat, shape, box, words, start, count, bound
        )
        return
    for piece, index in _pieces(flat, shape, box):
        piece[:] = start + _drawn(index, words, count, bound)


_ONE: Final = np.uint64(1)


def _drawn(index: np.ndarray, words: np.ndarray, count: np.uint64, bound: np.uint64) -> np.ndarray:
    """Return integers below ``count``, drawn again until they are unbiased."""
    second = (index & _ONE) == _ONE
    x = np.where(second, *_formulas.philox(index >> _ONE, *words[2:4], *words[:2])[::-1])
    if count == 0:
        return x
    value, low = _formulas.scaled(x, count)
    attempt = 0
    while (again := low < bound).any():
        attempt += 1
        c3 = words[3] + np.uint64(attempt << 16)
        x0, x1 = _formulas.philox(index[again] >> _ONE, words[2], c3, *words[:2])
        value[again], low[again] = _formulas.scaled(np.where(second[again], x1, x0), count)
    return value


def _words(key: Key, call: int) -> np.ndarray:
    """Return the key, and the words of the counter that a call fixes."""
    return np.array([*key, call & 0xFFFFFFFF, (call >> 32) & 0xFFFF], np.uint64)


def _module(out: np.ndarray) -> Any:
    return load_kernels(_KERNELS) if out.size >= _KERNEL_SIZE or are_loaded(_KERNELS) else None


def _by_kernel(
    run: Callable[..., None],
    flat: np.ndarray,
    shape: Shape,
    box: Box,
    words: np.ndarray,
    *parameters: Any,
) -> None:
    corner, sizes, strides = _geometry(shape, box)
    parts = _threads.thread_count(4 * flat.nbytes)

    def part(cut: tuple[int, int]) -> None:
        start, stop = cut
        run(flat[start:stop], start, sizes, strides, corner, words, *parameters)

    if parts == 1:
        part((0, flat.size))
    else:
        cuts = [flat.size * i // parts for i in range(parts + 1)]
        _threads.run_in_threads(part, itertools.pairwise(cuts))


def _geometry(shape: Shape, box: Box) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the index of a box's corner, and the fewest sizes and strides that reach it all."""
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
    return corner, np.array(sizes[::-1], np.int64), np.array(strides[::-1], np.int64)


def _pieces(flat: np.ndarray, shape: Shape, box: Box) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield stretches of a block with the global linear indices of their elements."""
    corner, sizes, strides = _geometry(shape, box)
    for start in range(0, flat.size, _PIECE):
        piece = flat[start : start + _PIECE]
        rest = np.arange(start, start + piece.size, dtype=np.int64)
        index = np.full(piece.size, corner, np.int64)
        for size, stride in zip(sizes[::-1], strides[::-1], strict=True):
            rest, column = np.divmod(rest, size)
            index += column * stride
        yield piece, index.view(np.uint64)
