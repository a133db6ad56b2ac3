"""Lines that are cut, and what the methods that transform them have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.fft._blocks import tile_lengths, transform
from distarray.fft._roots import roots
from distarray.fft._stages import Send, Task, crop, recut
from distarray.layout import Layout, chunk
from distarray.ops import replace_axes
from distarray.typing import Box, Buffer


class Line:
    """What both methods have in common.

    Attributes
    ----------
    after : Layout
    sends : tuple
    unevenness : float
        What a process holds at most, in parts of an even block.
    """

    unevenness: float
    sends: tuple[Send, ...]

    def __init__(self, before: Layout, axis: int, task: Task) -> None:
        self.before, self.axis, self.task = before, axis, task
        self.n = task.length(axis)
        self.is_real = axis == task.real_axis
        self.source = crop(before, axis, task.taken(axis))
        self.after = recut(before, axis, task.given(axis))
        self.what = f"{task.kind} of {before.abstract!r} along {axis}"

    def matrix(
        self,
        flat: Layout,
        rows: int,
        columns: int,
        place: int,
        offsets: tuple[int, ...] | None = None,
    ) -> Layout:
        """Return the layout of the lines as matrices of which one axis is cut, evenly or so."""
        axis = self.axis if flat.ndim == self.before.ndim else 0
        cutting = self.before.sharding_axes(self.axis)
        counts = tuple(flat.mesh.shape[m] for m in cutting)
        offsets = offsets or chunk((rows, columns)[place], counts).offsets
        return replace_axes(flat, range(axis, axis + 1), (rows, columns), place, cutting, offsets)

    def transform(self, tile: Buffer, axis: int, length: int, forward: bool, norm: Any) -> Buffer:
        """Return a tile transformed along an axis."""
        kind = "fft" if forward else "ifft"
        tile = self.task.prepare(tile)
        return transform(tile, (axis,), (length,), kind, norm, self.task.workers)

    def twiddles(
        self,
        order: int,
        shape: tuple[int, ...],
        whole: int,
        part: int,
        first: int,
        forward: bool,
        device: str,
    ) -> Callable[[Buffer, Box], Buffer]:
        """Return a function that multiplies a tile with exp(-2 pi i j k / order).

        Parameters
        ----------
        order : int
        shape : tuple of int
            Of the block.
        whole, part : int
            Axes of j, of which tiles have all, and of k.
        first : int
            The first k of the block.
        forward : bool
            Whether the sign is that one.
        device : str
            Of the block.
        """
        dtype = self.task.dtype if self.task.dtype.itemsize > 16 else np.dtype(np.complex128)
        index = np.arange(shape[whole])[:, None]
        width = tile_lengths(shape, self.task.dtype.itemsize, (whole,), device)[part]
        table = roots(index * np.arange(width), order, forward, dtype)

        def multiply(tile: Buffer, box: Box) -> Buffer:
            start, stop = box[part]
            factors = table[:, : stop - start] * roots(
                index * (first + start), order, forward, dtype
            )
            if part < whole:
                factors = factors.T
            factors = factors.reshape(
                [n if a in (whole, part) else 1 for a, n in enumerate(tile.shape)]
            ).astype(tile.dtype, copy=False)
            tile *= _backend.asarray(factors, device)
            return tile

        return multiply


def own_range(layout: Layout, axis: int) -> tuple[int, int]:
    """Return the stretch of an axis that this process has."""
    box = layout.local_box()
    assert box is not None  # only processes of the mesh have blocks
    return box[axis]


def own_images(n: int) -> tuple[int, ...]:
    """Return the frequencies that are their own mirror images."""
    return (0, n // 2) if n % 2 == 0 else (0,)
