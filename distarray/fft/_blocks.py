"""Transforms of blocks: SciPy's pocketfft where it is installed, else NumPy's; CuPy's on a GPU.

In host memory they go tile by tile: what a tile needs between its first axis and its last stays in
the cache, and no second copy of the block is made.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import _backend
from distarray.typing import Box, Buffer, Shape

TILE_BYTES: Final = 1 << 20
"""Of a tile, as the complex numbers that come out. Measured on Zen 1, whose second cache has 512
KiB: 256 KiB to 4 MiB differ by less than a tenth."""

DEVICE_TILE_BYTES: Final = 64 << 20
"""The same on a GPU, where it bounds what a library allocates; not measured."""

OnTile = Callable[[Buffer, Box], Buffer]
"""Function of a tile and of its place in the block: along axes that are transformed it is all."""


@functools.cache
def _host() -> tuple[Any, bool]:
    """Return the module that transforms NumPy's arrays, and whether it has threads."""
    try:
        return importlib.import_module("scipy.fft"), True
    except ImportError:
        return np.fft, False


def lines(
    block: Buffer, axis: int, length: int, kind: str, norm: str | None, workers: int | None
) -> Buffer:
    """Return `block` transformed along one axis; `kind` is "fft", "ifft", "rfft", ..., "ihfft"."""
    function, options = _function(block, kind, workers)
    found: Buffer = function(block, n=length, axis=axis, norm=norm, **options)
    return found


def planes(
    block: Buffer,
    axes: Sequence[int],
    lengths: Sequence[int],
    kind: str,
    norm: str | None,
    workers: int | None,
) -> Buffer:
    """Return `block` transformed along several axes; `kind` is "fft" or "ifft"."""
    if len(axes) == 1:
        return lines(block, axes[0], lengths[0], kind, norm, workers)
    function, options = _function(block, f"{kind}n", workers)
    found: Buffer = function(block, s=[*lengths], axes=[*axes], norm=norm, **options)
    return found


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
