"""Transforms of lines that are cut, by all processes that cut them; nothing is gathered.

A line of n = n1 * n2 items is a matrix, item n2 * j1 + j2 in row j1. Its columns are transformed,
multiplied with the roots exp(-2 pi i j2 k1 / n), and then its rows; frequency k1 + n1 * k2 is item
(k1, k2) of what comes out. This is the four- or six-step method (Bailey, "FFTs in external or
hierarchical memory", 1990). Three exchanges give each process columns, rows, and its stretch of
the result, of as many items as its block has.

Where n has no such factors, so that some processes would be left with much more than others, the
line is convolved with a chirp (Bluestein, "A linear filtering approach to the computation of the
discrete Fourier transform", 1970), by transforms of a length that has them, at least of n and of
the items of the result together. Their frequencies may stay in the matrix's order: of four
exchanges of the line two have twice its items, and so has one of the chirp.

Errors are those of local transforms, as roots are accurate to about an ulp: of a few ulps times
log2(n), relative to the norm; some times more with a chirp.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.fft._blocks import by_tiles, tile_lengths, transform
from distarray.fft._roots import roots, squares
from distarray.fft._stages import Send, Task, crop, cut_off, recut
from distarray.layout import Layout, Replicate, Shard, chunk
from distarray.ops import from_flat, replace_axes, run_exchange, to_flat
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Buffer

EVEN: Final = 1.5
"""Largest block, in even parts, up to which factors of the length are taken as they are. Chosen: a
chirp moves and computes more, but twice a block on one of two processes is the whole line."""


def make_line(layout: Layout, axis: int, task: Task) -> SixSteps | Chirp:
    """Return the stage that transforms an axis that is cut."""
    n = task.length(axis)
    count = layout.partition(axis).count
    rows, columns = _factors(n, count)
    if _unevenness(rows, columns, count) <= EVEN:
        return SixSteps(layout, axis, task, rows, columns)
    return Chirp(layout, axis, task)


def _factors(n: int, count: int) -> tuple[int, int]:
    """Return two factors of n of which `count` processes can share both, else the best."""
    best, least = (1, n), float("inf")
    for low in range(isqrt(n), 0, -1):
        if n % low == 0:
            uneven = _unevenness(low, n // low, count)
            if uneven < least:
                best, least = (low, n // low), uneven
            if uneven <= 1.25:  # others would be further from the root
                break
    return best


def _unevenness(rows: int, columns: int, count: int) -> float:
    """Return the largest block of columns or of rows, in even parts."""
    return max(chunk(size, (count,)).largest * count / size for size in (rows, columns))


class _Line:
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
        is_real = axis == task.real_axis
        self.n = task.length(axis)
        self.weighs = is_real and task.real == "out"
        """Of a real result half of the frequencies are known: these count twice, but for those
        that are their own mirror image, and the real part is taken at the end."""
        self.source = crop(before, axis, task.taken(axis))
        self.after = recut(before, axis, task.given(axis))
        self.result = task.real_dtype if self.weighs else task.dtype
        self.what = f"{task.kind} of {before.abstract!r} along {axis}"

    def matrix(self, flat: Layout, rows: int, columns: int, place: int) -> Layout:
        """Return the layout of the lines as matrices of which one axis is cut."""
        axis = self.axis if flat.ndim == self.before.ndim else 0
        cutting = self.before.sharding_axes(self.axis)
        counts = tuple(flat.mesh.shape[m] for m in cutting)
        offsets = chunk((rows, columns)[place], counts).offsets
        return replace_axes(flat, range(axis, axis + 1), (rows, columns), place, cutting, offsets)

    def transform(self, tile: Buffer, axis: int, length: int, forward: bool, norm: Any) -> Buffer:
        """Return a tile transformed along an axis."""
        kind = "fft" if forward else "ifft"
        tile = self.task.prepare(tile)
        return transform(tile, (axis,), (length,), kind, norm, self.task.workers)

    def weigh(self, block: Buffer, places: list[tuple[Any, ...]]) -> None:
        """Count all frequencies twice but those at `places`."""
        kept = [block[place].copy() for place in places]
        block *= 2
        for place, items in zip(places, kept, strict=True):
            block[place] = items

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


class SixSteps(_Line):
    """A line whose length has factors that the processes can share."""

    def __init__(self, before: Layout, axis: int, task: Task, rows: int, columns: int) -> None:
        super().__init__(before, axis, task)
        count = before.partition(axis).count
        self.unevenness = _unevenness(rows, columns, count)
        self._sizes = rows, columns
        here = -(-self.source.shape[axis] // columns) or 1  # rows with items
        there = -(-self.after.shape[axis] // rows)  # rows of the result, of the frequencies
        self._first = self.matrix(self.source, here, columns, 1)
        self._columns = self.matrix(self.source, rows, columns, 1)
        self._rows = self.matrix(self.source, rows, columns, 0)
        self._last = self.matrix(self.after, there, rows, 1)
        self.sends = (
            (self.source, self._first, False),
            (self._columns, self._rows, True),
            (self._last, self.after, False),
        )

    def bind(self, _: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block, which stays as it is.

        Beside it there are never more than two blocks: the one before and the one after a step.
        """
        axis, task, n = self.axis, self.task, self.n
        rows, columns = self._sizes
        matrix = range(axis, axis + 2)
        first, stop = _own_range(self._first, axis + 1)
        here, there = self._first.shape[axis], self._last.shape[axis]
        arrive = from_flat(self.source, self._first, matrix, self.what)
        leave = to_flat(self._last, matrix, self.after, self.what)
        assert arrive is not None
        assert leave is not None
        is_padded = here * columns > self.source.shape[axis]
        lead = (slice(None),) * axis
        own = [  # frequencies that are their own mirror image
            (*lead, k // columns, k % columns - first)
            for k in _own_images(n)
            if k < self.source.shape[axis] and first <= k % columns < stop
        ]
        column_shape = self._columns.local_shape()

        def transform_block(block: Any) -> Buffer:
            device = _backend.device_of(block)
            cropped = cut_off(block, self.source, axis)
            block = _memory.empty(self._first.local_shape(), cropped.dtype, device)
            if is_padded:
                block[(*lead, here - 1)] = 0
            run_exchange(arrive, cropped, block)
            if self.weighs:
                if block.dtype != task.dtype:
                    block = block.astype(task.dtype)
                self.weigh(block, own)
            multiply = self.twiddles(n, column_shape, axis, axis + 1, first, task.forward, device)

            def on_columns(tile: Buffer, place: Box) -> Buffer:
                found = self.transform(tile, axis, rows, task.forward, task.norm)
                return multiply(found, place)

            out = block
            if block.dtype != task.dtype or block.shape != column_shape:
                out = _memory.empty(column_shape, task.dtype, device)
            block = by_tiles(on_columns, block, out, (axis,))
            del out
            block = redistribute_local(block, self._columns, self._rows, is_free=True)

            def on_rows(tile: Buffer, _: Box) -> Buffer:
                found = self.transform(tile, axis + 1, columns, task.forward, task.norm)
                found = found[(*lead, slice(None), slice(there))]
                return found.real if self.weighs else found

            out = _memory.empty(self._last.local_shape(), self.result, device)
            by_tiles(on_rows, block, out.swapaxes(axis, axis + 1), (axis + 1,))
            block = None  # makes room
            block = _memory.empty(self.after.local_shape(), self.result, device)
            return run_exchange(leave, out, block, is_free=True)

        return transform_block


class Chirp(_Line):
    """A line of any length, as a convolution with a chirp.

    Its transforms are those of norm "ortho": what is in between is no larger than items and result
    are, where sums of all items times the chirp's transform overflowed.
    """

    def __init__(self, before: Layout, axis: int, task: Task) -> None:
        super().__init__(before, axis, task)
        count = before.partition(axis).count
        taken, given = self.source.shape[axis], self.after.shape[axis]
        least = max(taken + given - 1, 1)
        rows = count * _smooth(-(-isqrt(least) // count))
        columns = count * _smooth(-(-least // (rows * count)))
        self._sizes = rows, columns
        self.unevenness = rows * columns / self.n
        cutting = before.sharding_axes(axis)
        chirp = Layout(
            before.mesh,
            [Shard(0) if m in cutting else Replicate() for m in range(before.mesh.ndim)],
            (rows * columns,),
            shard_order=cutting,
        )
        self._chirp = tuple(self.matrix(chirp, rows, columns, place) for place in (1, 0))
        self._first = self.matrix(self.source, -(-taken // columns) or 1, columns, 1)
        self._last = self.matrix(self.after, -(-given // columns), columns, 1)
        self._columns = self.matrix(self.source, rows, columns, 1)
        self._rows = self.matrix(self.source, rows, columns, 0)
        self.sends = (
            (self._chirp[0], self._chirp[1], True),
            (self.source, self._first, False),
            (self._columns, self._rows, True),
            (self._rows, self._columns, True),
            (self._last, self.after, False),
        )

    def bind(self, _: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block, which stays as it is.

        Beside it there are up to six blocks: the chirp, and what is before and after a step, have
        twice the items of a line.
        """
        axis, n, last = self.axis, self.n, self._last.shape[self.axis]
        rows, columns = self._sizes
        matrix = range(axis, axis + 2)
        arrive = from_flat(self.source, self._first, matrix, self.what)
        leave = to_flat(self._last, matrix, self.after, self.what)
        assert arrive is not None  # only processes of the mesh bind
        assert leave is not None
        lead = (slice(None),) * axis
        start, stop = _own_range(self.source, axis)
        own = [(*lead, k - start) for k in _own_images(n) if start <= k < stop]
        first_column, first_row = (
            _own_range(self._columns, axis + 1)[0],
            _own_range(self._rows, axis)[0],
        )
        shape, row_shape = self._columns.local_shape(), self._rows.local_shape()
        scale = _scale(n, self.task)

        def transform_block(block: Any) -> Buffer:
            device = _backend.device_of(block)
            chirp: Any = self._transform_chirp(device)
            modulate = self._modulation(start, 1.0)
            cropped = cut_off(block, self.source, axis)
            block = _memory.empty(cropped.shape, self.task.dtype, device)
            by_tiles(modulate, cropped, block, ())
            if self.weighs:
                self.weigh(block, own)
            out = _memory.empty(self._first.local_shape(), block.dtype, device)
            out[(*lead, -1)] = 0  # its row may be filled in part
            block = run_exchange(arrive, block, out)
            del cropped
            out = _memory.empty(shape, block.dtype, device)
            twiddle = self.twiddles(
                rows * columns, shape, axis, axis + 1, first_column, True, device
            )

            def on_columns(tile: Buffer, box: Box) -> Buffer:
                return twiddle(self.transform(tile, axis, rows, True, "ortho"), box)

            block = by_tiles(on_columns, block, out, (axis,))
            del out
            block = redistribute_local(block, self._columns, self._rows, is_free=True)
            back = self.twiddles(
                rows * columns, row_shape, axis + 1, axis, first_row, False, device
            )

            def on_rows(tile: Buffer, box: Box) -> Buffer:
                tile = self.transform(tile, axis + 1, columns, True, "ortho")
                part = chirp[slice(*box[axis])]
                tile *= part.reshape(part.shape + (1,) * (tile.ndim - axis - 2))
                return back(self.transform(tile, axis + 1, columns, False, "ortho"), box)

            by_tiles(on_rows, block, block, (axis + 1,))
            chirp = None  # makes room
            block = redistribute_local(block, self._rows, self._columns, is_free=True)
            out = _memory.empty(self._last.local_shape(), block.dtype, device)

            def on_columns_again(tile: Buffer, _: Box) -> Buffer:
                found = self.transform(tile, axis, rows, False, "ortho")
                return found[(*lead, slice(last))]

            block = by_tiles(on_columns_again, block, out, (axis,))
            out = _memory.empty(self.after.local_shape(), block.dtype, device)
            block = run_exchange(leave, block, out, is_free=True)
            out = block if self.result == block.dtype else None
            if out is None:
                out = _memory.empty(block.shape, self.result, device)
            demodulate = self._modulation(_own_range(self.after, axis)[0], scale, True)
            return by_tiles(demodulate, block, out, ())

        return transform_block

    def _modulation(
        self, first: int, scale: Any, is_last: bool = False
    ) -> Callable[[Buffer, Box], Buffer]:
        """Return a function that multiplies stretches of lines with exp(-pi i j * j / n)."""
        axis, n, task = self.axis, self.n, self.task

        def multiply(tile: Buffer, box: Box) -> Buffer:
            low, high = box[axis]
            places = squares(np.arange(first + low, first + high), 2 * n)
            factors = scale * roots(places, 2 * n, task.forward, task.dtype)
            factors = factors.reshape(-1, *(1,) * (tile.ndim - axis - 1))
            found = task.prepare(tile) * _backend.asarray(factors, _backend.device_of(tile))
            return found.real if is_last and self.weighs else found

        return multiply

    def _transform_chirp(self, device: str) -> Buffer:
        """Return this process's rows of the transform of exp(pi i j * j / n), j of both signs."""
        by_columns, by_rows = self._chirp
        rows, columns = self._sizes
        taken, given = self.source.shape[self.axis], self.after.shape[self.axis]
        n, task, length = self.n, self.task, rows * columns
        first, _ = _own_range(by_columns, 1)
        block = _memory.empty(by_columns.local_shape(), task.dtype, device)
        twiddle = self.twiddles(length, block.shape, 0, 1, first, True, device)

        def on_columns(_: Buffer, box: Box) -> Buffer:
            start, stop = box[1]
            places = np.arange(rows)[:, None] * columns + np.arange(first + start, first + stop)
            negative = places > length - taken
            places = np.where(negative, length - places, places)
            tile = roots(squares(places, 2 * n), 2 * n, not task.forward, task.dtype)
            tile[(places >= given) & ~negative] = 0
            found = self.transform(_backend.asarray(tile, device), 0, rows, True, None)
            return twiddle(found, box)

        by_tiles(on_columns, block, block, (0,))
        block = redistribute_local(block, by_columns, by_rows, is_free=True)
        return by_tiles(
            lambda tile, _: self.transform(tile, 1, columns, True, None), block, block, (1,)
        )


def _own_range(layout: Layout, axis: int) -> tuple[int, int]:
    """Return the stretch of an axis that this process has."""
    box = layout.local_box()
    assert box is not None  # only processes of the mesh have blocks
    return box[axis]


def _own_images(n: int) -> tuple[int, ...]:
    """Return the frequencies that are their own mirror images."""
    return (0, n // 2) if n % 2 == 0 else (0,)


def _scale(n: int, task: Task) -> Any:
    """Return the factor of a transform's result, as a real number of its precision."""
    wide, real = np.longdouble(n), np.empty(0, task.dtype).real.dtype.type
    if task.norm == "ortho":
        return real(wide**-0.5)
    return real(1 / wide if (task.norm == "forward") == task.forward else 1)


def _smooth(least: int) -> int:
    """Return the next number that has no prime factors but 2, 3 and 5."""
    found = max(least, 1)
    while True:
        rest = found
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return found
        found += 1
