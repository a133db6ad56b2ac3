"""Lines of any length, transformed as convolutions with a chirp.

Where a length has no factors that the processes can share, the line is convolved with a chirp
(Bluestein, "A linear filtering approach to the computation of the discrete Fourier transform",
1970), by transforms of a length that has them, at least of n and of the items of the result
together. Their frequencies may stay in the matrix's order: of four exchanges of the line two have
twice its items, and so has one of the chirp. Errors are some times those of six steps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

import numpy as np

from distarray.comm import _backend, _memory
from distarray.fft._blocks import by_tiles
from distarray.fft._line import Line, own_images, own_range
from distarray.fft._roots import roots, squares
from distarray.fft._stages import Task, cut_off
from distarray.layout import Layout, Replicate, Shard
from distarray.ops import from_flat, run_exchange, to_flat
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Buffer


class Chirp(Line):
    """A line of any length, as a convolution with a chirp.

    Its transforms are those of norm "ortho": what is in between is no larger than items and result
    are, where sums of all items times the chirp's transform overflowed.
    """

    def __init__(self, before: Layout, axis: int, task: Task) -> None:
        super().__init__(before, axis, task)
        self.weighs = self.is_real and task.real == "out"
        """Of a real result half of the frequencies are known: these count twice, but for those
        that are their own mirror image, and the real part is taken at the end."""
        self.result = task.real_dtype if self.weighs else task.dtype
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
        start, stop = own_range(self.source, axis)
        own = [
            ((*lead, slice(k, k + 1)), ((0, 0),) * axis + ((k, k + 1),))
            for k in (image - start for image in own_images(n) if start <= image < stop)
        ]
        first_column, first_row = (
            own_range(self._columns, axis + 1)[0],
            own_range(self._rows, axis)[0],
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
                block *= 2
                for key, box in own:
                    block[key] = modulate(cropped[key].real, box)
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
            demodulate = self._modulation(own_range(self.after, axis)[0], scale, True)
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
        first, _ = own_range(by_columns, 1)
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
