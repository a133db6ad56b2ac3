"""Transforms of blocks: SciPy's pocketfft where it is installed, else NumPy's; CuPy's on a GPU.

In host memory they go tile by tile: what a tile needs between its first axis and its last stays in
the cache, and no second copy of the block is made.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.typing import Box, Buffer, Shape

TILE_BYTES: Final = 1 << 20
"""Of a tile, as the complex numbers that come out. Measured on Zen 1, whose second cache has 512
KiB: 256 KiB and 4 MiB take a sixth to a third longer."""

PLANE_BYTES: Final = 4 << 20
"""Of axes that a tile has all of: up to so many they are transformed together, beyond one after
another, each in tiles. Of the processor's last cache half."""
DEVICE_TILE_BYTES: Final = 64 << 20
"""The same on a GPU, where it bounds what a library allocates; not measured."""

_PAGE_BYTES: Final = 4096
"""Items so far apart, or a multiple of it, share a set of the first cache."""
_SPACING: Final = 4
"""Items between rows of a copy: a cache line of complex128."""

OnTile = Callable[[Buffer, Box], Buffer]
"""Function of a tile and of its place in the block: along axes that are transformed it is all."""


@functools.cache
def _host() -> tuple[Any, bool]:
    """Return the module that transforms NumPy's arrays, and whether it has threads."""
    try:
        return importlib.import_module("scipy.fft"), True
    except ImportError:
        return np.fft, False


def transform_real(
    block: Buffer, axis: int, length: int, kind: str, norm: str | None, workers: int | None
) -> Buffer:
    """Return `block` transformed along an axis; `kind` is "rfft", "irfft", "hfft" or "ihfft".

    Real items are copied as `transform` does where those of a line lie whole pages apart. Measured
    on Zen 5, "rfft" of float64 along the first axis: of 4096 x 1024 it takes 19 ms instead of 41,
    of 256 x 16384 17 instead of 25. "irfft" of such lines gains little, and loses of short ones.
    """
    function, options = _function(block, kind, workers)
    is_real = _backend.is_numpy(block) and block.dtype.kind != "c"
    if is_real and block.strides[axis] % _PAGE_BYTES == 0:
        block = _spaced_copy(block, {}, block.dtype)
    found: Buffer = function(block, n=length, axis=axis, norm=norm, **options)
    return found


def transform(
    block: Buffer,
    axes: Sequence[int],
    lengths: Sequence[int],
    kind: str,
    norm: str | None,
    workers: int | None,
) -> Buffer:
    """Return `block` transformed along axes; `kind` is "fft" or "ifft".

    It is copied first, to rows that do not begin a power of two apart: lines across these would
    keep throwing each other out of the cache. Measured on Zen 1, 256**3 complex128 on two
    processes: 139 ms instead of 188 for two axes, 92 instead of 147 for the first.
    """
    function, options = _function(block, f"{kind}n", workers)
    if not _backend.is_numpy(block) or tuple(axes) == (block.ndim - 1,):
        return function(block, s=[*lengths], axes=[*axes], norm=norm, **options)
    dtype = np.result_type(block.dtype, np.complex64)
    copy = _spaced_copy(block, dict(zip(axes, lengths, strict=True)), dtype)
    options |= {"overwrite_x": True} if _host()[1] else {"out": copy}
    return function(copy, axes=[*axes], norm=norm, **options)


def _spaced_copy(block: Buffer, lengths: Mapping[int, int], dtype: np.dtype[Any]) -> Buffer:
    """Return a copy of a block in a dtype, cut off or continued by zeros along axes."""
    shape = [lengths.get(axis, size) for axis, size in enumerate(block.shape)]
    room = np.empty((*shape[:-1], shape[-1] + _SPACING), dtype)
    copy = room[..., : shape[-1]]
    kept = tuple(map(min, shape, block.shape))
    if kept != copy.shape:
        copy[...] = 0
    key = tuple(map(slice, kept))
    copy[key] = block[key]
    return copy


def _function(block: Buffer, name: str, workers: int | None) -> tuple[Any, dict[str, Any]]:
    if not _backend.is_numpy(block):
        return getattr(importlib.import_module("cupy").fft, name), {}
    module, has_threads = _host()
    if has_threads and workers is not None:
        return getattr(module, name), {"workers": min(workers, os.cpu_count() or 1)}
    return getattr(module, name), {}


def by_tiles(function: OnTile, source: Buffer, out: Buffer, whole: Sequence[int]) -> Buffer:
    """Fill `out` with what `function` makes of tiles of `source`, and return it.

    Parameters
    ----------
    function : callable
        What it returns has the shape of the tile but along `whole`, where it is as long as `out`.
    source, out : buffer
        May be the same; of any strides.
    whole : sequence of int
        Axes that tiles have all of.
    """
    if not out.size:
        return out
    if not source.size:  # of nothing but zeros that are appended
        out[...] = 0
        return out
    for box in _tiles(out.shape, out.itemsize, whole, _backend.device_of(out)):
        key = tuple(slice(None) if axis in whole else slice(*part) for axis, part in enumerate(box))
        out[key] = function(source[key], box)
    return out


def tile_lengths(shape: Shape, itemsize: int, whole: Sequence[int], device: str) -> list[int]:
    """Return the lengths of tiles; the innermost axes, whose items lie together, come first."""
    nbytes = TILE_BYTES if device == "cpu" else DEVICE_TILE_BYTES
    left = nbytes // max(itemsize * prod(shape[axis] for axis in whole), 1)
    lengths = [*shape]
    for axis in reversed(range(len(shape))):
        if axis not in whole:
            lengths[axis] = max(min(left, shape[axis]), 1)
            left //= lengths[axis]
    return lengths


def _tiles(shape: Shape, itemsize: int, whole: Sequence[int], device: str) -> Iterator[Box]:
    steps = tile_lengths(shape, itemsize, whole, device)
    ranges = [
        [(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape, steps, strict=True)
    ]
    return iter(product(*ranges))
