"""Lines whose lengths have factors that processes share, transformed in six steps.

A line of n = n1 * n2 items is a matrix, item n2 * j1 + j2 in row j1. Its columns are transformed,
multiplied with the roots exp(-2 pi i j2 k1 / n), and then its rows; frequency k1 + n1 * k2 is item
(k1, k2) of what comes out. This is the four- or six-step method (Bailey, "FFTs in external or
hierarchical memory", 1990). Three exchanges give each process columns, rows, and its stretch of
the result, of as many items as its block has.

Of columns of real items the frequencies k1 up to n1 / 2 are enough. Of those that their rows give
half are conjugates of the result's frequencies n1 - k1 + n1 * (n2 - 1 - k2), so that each process
has these as well: the matrix (k2, k1) of the result is folded in the middle of the second axis.
A real result takes the same way back. So no step holds more than real items would.

Errors are those of local transforms, as roots are accurate to about an ulp: of a few ulps times
log2(n), relative to the norm.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.fft._blocks import by_tiles, transform_real
from distarray.fft._line import Line, own_range
from distarray.fft._stages import Task, cut_off
from distarray.layout import Layout, chunk
from distarray.ops import from_flat, run_exchange, to_flat
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Buffer, Coordinate


class _SixSteps(Line):
    """What both directions have in common.

    The first of two factors is that of k1, of which real items and results need only half.
    """

    def __init__(self, before: Layout, axis: int, task: Task, sizes: tuple[int, int]) -> None:
        super().__init__(before, axis, task)
        self.unevenness = unevenness(sizes, before.partition(axis).count, self.is_real)
        self._sizes = rows, columns = sizes
        height = rows // 2 + 1 if self.is_real else rows
        self._columns = self.matrix(self.source, height, columns, 1)
        self._rows = self.matrix(self.source, height, columns, 0)

    def _folded(self, flat: Layout) -> Layout:
        """Return the layout of frequencies (k2, k1), cut as the rows are that k1 counts.

        Of real lines a process has the images of its columns next to them.
        """
        rows = self._sizes[0]
        offsets = self._rows.partition(self.axis).offsets
        if self.is_real:
            offsets = tuple(at + max(min(at, (rows + 1) // 2) - 1, 0) for at in offsets)
        return self.matrix(flat, -(-flat.shape[self.axis] // rows) or 1, rows, 1, offsets)

    def _images(self, coordinate: Coordinate | None = None) -> tuple[int, int, int]:
        """Return how many columns a process has, the first that has an image, and after the last.

        These are not 0 and n1 / 2, which are their own images, and counted from its first column.
        """
        box = self._rows.local_box(coordinate)
        assert box is not None  # only processes of the mesh have blocks
        (start, stop), half = box[self.axis], (self._sizes[0] + 1) // 2
        first = max(start, 1)
        return stop - start, first - start, max(min(stop, half), first) - start

    def _parts_of(self, depth: int) -> Callable[[Coordinate], list[tuple[Box, Box]]] | None:
        """Return what of the matrix (k2, k1), of so many k2, a block holds; see `to_flat`."""
        if not self.is_real:
            return None
        rows = self._sizes[0]

        def parts_of(coordinate: Coordinate) -> list[tuple[Box, Box]]:
            width, first, stop = self._images(coordinate)
            box = self._rows.local_box(coordinate)
            assert box is not None
            start = box[self.axis][0]
            own = (0, depth), (start, start + width)
            images = rows + 1 - start - stop, rows + 1 - start - first
            return [(own, own), (((0, depth), images), ((0, depth), (images[0] - width, 0)))]

        return parts_of

    def _image(self, block: Buffer, box: Box) -> tuple[Buffer, slice]:
        """Return the images of columns k1 in a folded block (k2, k1), and which of a tile they are.

        They are of the axes and in the order of the tile, k1 and k2.
        """
        width, first, stop = self._images()
        start, end = box[self.axis]
        low, high = max(start, first), max(min(end, stop), start, first)
        images = block.swapaxes(self.axis, self.axis + 1)
        images = images[(*(slice(None),) * self.axis, slice(width, None))]
        key = [slice(*part) for part in box]
        key[self.axis : self.axis + 2] = slice(None, None, -1), slice(None, None, -1)
        images = images[tuple(key)]
        key = [slice(None)] * self.axis + [slice(low - first, high - first)]
        return images[tuple(key)], slice(low - start, high - start)

    def _real(self, tile: Buffer) -> Buffer:
        """Return a tile of columns transformed from real items, or to a real result."""
        task, rows = self.task, self._sizes[0]
        return transform_real(
            task.prepare(tile), self.axis, rows, task.real_kind, task.norm, task.workers
        )


class SixSteps(_SixSteps):
    """A line of complex results."""

    def __init__(self, before: Layout, axis: int, task: Task, sizes: tuple[int, int]) -> None:
        super().__init__(before, axis, task, sizes)
        columns = sizes[1]
        here = -(-self.source.shape[axis] // columns) or 1  # rows with items
        self._first = self.matrix(self.source, here, columns, 1)
        self._last = self._folded(self.after)
        self.sends = (
            (self.source, self._first, False),
            (self._columns, self._rows, True),
            (self._last, self.after, False),
        )

    def bind(self, _: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block, which stays as it is.

        Beside it there are never more than two blocks: the one before and the one after a step.
        """
        axis, task = self.axis, self.task
        rows, columns = self._sizes
        matrix = range(axis, axis + 2)
        here, there = self._first.shape[axis], self._last.shape[axis]
        arrive = from_flat(self.source, self._first, matrix, self.what)
        leave = to_flat(self._last, matrix, self.after, self.what, self._parts_of(there))
        assert arrive is not None
        assert leave is not None
        is_padded = here * columns > self.source.shape[axis]
        lead = (slice(None),) * axis
        column_shape = self._columns.local_shape()
        first = own_range(self._columns, axis + 1)[0]
        width = self._images()[0] if self.is_real else None

        def transform_block(block: Any) -> Buffer:
            device = _backend.device_of(block)
            cropped = cut_off(block, self.source, axis)
            block = _memory.empty(self._first.local_shape(), cropped.dtype, device)
            if is_padded:
                block[(*lead, here - 1)] = 0
            run_exchange(arrive, cropped, block)
            multiply = self.twiddles(
                self.n, column_shape, axis, axis + 1, first, task.forward, device
            )

            def on_columns(tile: Buffer, place: Box) -> Buffer:
                if self.is_real:
                    return multiply(self._real(tile), place)
                return multiply(self.transform(tile, axis, rows, task.forward, task.norm), place)

            out = block
            if block.dtype != task.dtype or block.shape != column_shape:
                out = _memory.empty(column_shape, task.dtype, device)
            block = by_tiles(on_columns, block, out, (axis,))
            del out
            block = redistribute_local(block, self._columns, self._rows, is_free=True)
            out = _memory.empty(self._last.local_shape(), task.dtype, device)

            def on_rows(tile: Buffer, box: Box) -> Buffer:
                found = self.transform(tile, axis + 1, columns, task.forward, task.norm)
                if self.is_real:
                    images, own = self._image(out, box)
                    images[...] = found[(*lead, own, slice(columns - there, None))].conj()
                return found[(*lead, slice(None), slice(there))]

            own = out[(*lead, slice(None), slice(width))].swapaxes(axis, axis + 1)
            by_tiles(on_rows, block, own, (axis + 1,))
            block = own = None  # makes room
            block = _memory.empty(self.after.local_shape(), task.dtype, device)
            return run_exchange(leave, out, block, is_free=True)

        return transform_block


class RealSixSteps(_SixSteps):
    """A line of a real result: the steps of real items, backwards."""

    def __init__(self, before: Layout, axis: int, task: Task, sizes: tuple[int, int]) -> None:
        super().__init__(before, axis, task, sizes)
        self._first = self._folded(self.source)
        self._last = self.matrix(self.after, *sizes, 1)
        self.sends = (
            (self.source, self._first, False),
            (self._rows, self._columns, True),
            (self._last, self.after, False),
        )

    def bind(self, _: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block, which stays as it is.

        Beside it there are never more than two blocks: the one before and the one after a step.
        """
        axis, task = self.axis, self.task
        rows, columns = self._sizes
        matrix = range(axis, axis + 2)
        here = self._first.shape[axis]
        arrive = from_flat(self.source, self._first, matrix, self.what, self._parts_of(here))
        leave = to_flat(self._last, matrix, self.after, self.what)
        assert arrive is not None
        assert leave is not None
        is_padded = here * rows > self.source.shape[axis]
        lead, row_shape = (slice(None),) * axis, self._rows.local_shape()
        width, first = self._images()[0], own_range(self._rows, axis)[0]

        def transform_block(block: Any) -> Buffer:
            device = _backend.device_of(block)
            cropped = cut_off(block, self.source, axis)
            folded: Any = _memory.empty(self._first.local_shape(), cropped.dtype, device)
            if is_padded:
                folded[(*lead, here - 1)] = 0
            run_exchange(arrive, cropped, folded)
            multiply = self.twiddles(self.n, row_shape, axis + 1, axis, first, task.forward, device)

            def on_rows(tile: Buffer, box: Box) -> Buffer:
                line = self._unfold(tile, *self._image(folded, box), first + box[axis][0])
                found = self.transform(line, axis + 1, columns, task.forward, task.norm)
                return multiply(found, box)

            own = folded[(*lead, slice(None), slice(width))].swapaxes(axis, axis + 1)
            out = _memory.empty(row_shape, task.dtype, device)
            block = by_tiles(on_rows, own, out, (axis + 1,))
            del out
            folded = own = None  # makes room
            block = redistribute_local(block, self._rows, self._columns, is_free=True)
            out = _memory.empty(self._last.local_shape(), task.result, device)
            block = by_tiles(lambda tile, _: self._real(tile), block, out, (axis,))
            out = _memory.empty(self.after.local_shape(), task.result, device)
            return run_exchange(leave, block, out, is_free=True)

        return transform_block

    def _unfold(self, tile: Buffer, images: Buffer, which: slice, start: int) -> Buffer:
        """Return all k2 of rows k1 from `start` on; `images` are those of the rows `which`."""
        rows, columns = self._sizes
        lead, have = (slice(None),) * self.axis, tile.shape[self.axis + 1]
        shape = (*tile.shape[: self.axis + 1], columns, *tile.shape[self.axis + 2 :])
        found: Buffer = np.empty_like(tile, self.task.dtype, order="C", shape=shape)  # also CuPy's
        half = columns // 2
        if have <= half:
            found[...] = 0
        own = (*lead, slice(None), slice(min(columns - half, have)))
        found[own] = tile[own]
        count = min(half, have)
        key = (*lead, which, slice(columns - count, None))
        found[key] = images[(*lead, slice(None), slice(have - count, None))].conj()
        # The middle row, and the first one, are their own images.
        middle = rows // 2 - start
        if rows % 2 == 0 and middle < tile.shape[self.axis]:
            back = tile[(*lead, middle, slice(count))][(*lead, slice(None, None, -1))]
            found[(*lead, middle, slice(columns - count, None))] = back.conj()
            if columns % 2:
                found.imag[(*lead, middle, half)] = 0
        if start == 0:
            zeroth = (*lead, 0, slice(min(half + 1, have)))
            found[zeroth] = tile[zeroth]
            back = tile[(*lead, 0, slice(1, (columns + 1) // 2))][(*lead, slice(None, None, -1))]
            found[(*lead, 0, slice(columns - back.shape[self.axis], None))] = back.conj()
            found.imag[(*lead, 0, 0)] = 0
            if columns % 2 == 0:
                found.imag[(*lead, 0, half)] = 0
        return found


def factors(n: int, count: int, is_real: bool) -> tuple[int, int]:
    """Return two factors of n of which `count` processes can share both, else the best.

    Of real lines the first is that of which half is needed.
    """
    best, least = (1, n), float("inf")
    for low in range(isqrt(n), 0, -1):
        if n % low == 0:
            for sizes in ((n // low, low), (low, n // low))[not is_real :]:
                uneven = unevenness(sizes, count, is_real)
                if uneven < least:
                    best, least = sizes, uneven
            if least <= 1.25:  # others would be further from the root
                break
    return best


def unevenness(sizes: tuple[int, int], count: int, is_real: bool) -> float:
    """Return the largest block of columns or of rows, in even parts."""
    rows, columns = sizes
    height, half = (rows // 2 + 1, rows / 2) if is_real else (rows, rows)
    high, wide = (chunk(size, (count,)).largest * count for size in (height, columns))
    return max(high / half, wide / columns * height / half)
