"""Lines of any length, transformed as convolutions with a chirp.

Where a length has no factors that the processes can share, the line is convolved with a chirp
(Bluestein, "A linear filtering approach to the computation of the discrete Fourier transform",
1970), by transforms of a length L that has them, at least of n and of the items of the result
together. Their frequencies may stay in the matrix's order.

Long lines are convolved in q passes, each with every q-th of these frequencies, which a line of
L / q items has: segments of so many, times roots, are added up, and what comes back is part of
all segments of the result. So the chirp, and what is before and after a step, are q times smaller
than L; each pass receives the operand, and makes its chirp. Factors are products of roots: of item
C r + c in row r the square is that of C r, and of c, and 2 C r c, of which tiles have a table.
Errors are some times those of six steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import ceil, isqrt
from typing import Any, Final

import numpy as np

from distarray.comm import _backend, _memory
from distarray.fft._blocks import by_tiles
from distarray.fft._line import Line, own_images, own_range
from distarray.fft._roots import roots, squares
from distarray.fft._stages import Send, Task, cut_off
from distarray.layout import Layout, Replicate, Shard
from distarray.ops import from_flat, run_exchange, to_flat
from distarray.redistribute import redistribute_local
from distarray.typing import Box, Buffer

PASS_BYTES: Final = 1 << 20
"""What a process has in a pass at least, where there are several. Chosen: exchanges of so many
bytes take longer than they take to begin."""
SHARE: Final = 0.5
"""Of a block, what a process has in a pass of a long line. Three times as much is needed at once:
the chirp, and what is before and after a step. Less would not help, as there the operand arrives
beside a pass's first part; and each pass receives it once more."""

_DIGIT: Final = 8
"""A table has products of roots of so many columns, and of every column of so many: of up to 64
columns no more than a quarter are computed."""


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
        self._taken, self._given = taken, given = self.source.shape[axis], self.after.shape[axis]
        least = max(taken + given - 1, 1)
        # Real items have half of the bytes.
        block = max(taken / (1 + (self.is_real and not self.weighs)), given / (1 + self.weighs))
        mine = least * self.source.largest_block / max(taken, 1) * task.dtype.itemsize
        self.passes = max(min(int(mine / PASS_BYTES), ceil(least / (SHARE * block))), 1)
        rows, columns = self.sizes = _sizes(-(-least // self.passes), count)
        self.unevenness = self.passes * rows * columns / self.n
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
        one_pass: tuple[Send, ...] = (
            (self.source, self._first, False),
            (self._columns, self._rows, True),
            (self._chirp[0], self._chirp[1], True),
            (self._rows, self._columns, True),
        )
        self.sends = (*one_pass * self.passes, (self._last, self.after, False))

    def bind(self, _: bool) -> Callable[[Buffer], Buffer]:
        """Return the function of a block, which stays as it is.

        Beside it there are the result and one and a half blocks, where the line is long, or else
        the result and six.
        """
        axis, task = self.axis, self.task
        rows, columns = self.sizes
        matrix = range(axis, axis + 2)
        arrive = from_flat(self.source, self._first, matrix, self.what)
        leave = to_flat(self._last, matrix, self.after, self.what)
        assert arrive is not None  # only processes of the mesh bind
        assert leave is not None
        is_padded = self._first.shape[axis] * columns > self._taken
        lead = (slice(None),) * axis
        shape, row_shape = self._columns.local_shape(), self._rows.local_shape()
        first_column = own_range(self._columns, axis + 1)[0]
        first_row = own_range(self._rows, axis)[0]

        def transform_block(block: Any) -> Buffer:
            device = _backend.device_of(block)
            source = cut_off(block, self.source, axis)
            factors = _Factors(self, first_column, device)
            into = self.twiddles(rows * columns, shape, axis, axis + 1, first_column, True, device)
            back = self.twiddles(
                rows * columns, row_shape, axis + 1, axis, first_row, False, device
            )
            twiddle = self.twiddles(
                rows * columns, self._chirp[0].local_shape(), 0, 1, first_column, True, device
            )
            total = _memory.empty(self._last.local_shape(), self.result, device)
            for number in range(self.passes):
                block = _memory.empty(self._first.local_shape(), source.dtype, device)
                if is_padded:
                    block[(*lead, -1)] = 0
                run_exchange(arrive, source, block)

                def on_columns(tile: Buffer, box: Box, number: int = number) -> Buffer:
                    tile = self._fold(tile, box, factors, number)
                    return into(self.transform(tile, axis, rows, True, "ortho"), box)

                out = _memory.empty(shape, task.dtype, device)
                block = by_tiles(on_columns, block, out, (axis,))
                del out
                block = redistribute_local(block, self._columns, self._rows, is_free=True)
                chirp: Any = self._transform_chirp(factors, number, twiddle, device)

                def on_rows(tile: Buffer, box: Box, chirp: Buffer = chirp) -> Buffer:
                    tile = self.transform(tile, axis + 1, columns, True, "ortho")
                    part = chirp[slice(*box[axis])]
                    tile *= part.reshape(part.shape + (1,) * (tile.ndim - axis - 2))
                    return back(self.transform(tile, axis + 1, columns, False, "ortho"), box)

                by_tiles(on_rows, block, block, (axis + 1,))
                del on_rows, chirp  # makes room
                block = redistribute_local(block, self._rows, self._columns, is_free=True)

                def on_columns_again(tile: Buffer, box: Box, number: int = number) -> Buffer:
                    found = self.transform(tile, axis, rows, False, "ortho")
                    found = self._unfold(found, box, factors, number)
                    if number:
                        found += total[tuple([slice(*part) for part in box])]
                    return found

                by_tiles(on_columns_again, block, total, (axis,))
                del block
            out = _memory.empty(self.after.local_shape(), self.result, device)
            return run_exchange(leave, total, out, is_free=True)

        return transform_block

    def _fold(self, tile: Buffer, box: Box, factors: _Factors, number: int) -> Buffer:
        """Return the sum of the segments of a tile of columns of the operand, times factors."""
        axis, (rows, columns) = self.axis, self.sizes
        start, stop = factors.columns_of(box[axis + 1])
        tile = self.task.prepare(tile)
        lead = (slice(None),) * axis
        if self.weighs:
            for row, column in (divmod(at, columns) for at in own_images(self.n)):
                if row < tile.shape[axis] and start <= column < stop:
                    key = (*lead, row, column - start)
                    tile[key] = tile[key].real / 2
        found: Any = None
        for segment in range(-(-tile.shape[axis] // rows)):
            part = tile[(*lead, slice(segment * rows, (segment + 1) * rows))]
            part = part * factors.beside(part, segment, number, start, stop, 1 + self.weighs)
            if found is None:
                found = part
            else:
                found[(*lead, slice(part.shape[axis]))] += part
        return found

    def _unfold(self, tile: Buffer, box: Box, factors: _Factors, number: int) -> Buffer:
        """Return the segments of the result of which a tile of columns is part, times factors."""
        axis, rows, last = self.axis, self.sizes[0], self._last.shape[self.axis]
        start, stop = factors.columns_of(box[axis + 1])
        lead = (slice(None),) * axis
        shape = (*tile.shape[:axis], last, *tile.shape[axis + 1 :])
        found: Buffer = np.empty_like(tile, self.result, order="C", shape=shape)  # also CuPy's
        scale = _scale(self.n, self.task, self.passes)
        for segment in range(-(-last // rows)):
            target = found[(*lead, slice(segment * rows, (segment + 1) * rows))]
            part = tile[(*lead, slice(target.shape[axis]))]
            part = part * factors.beside(part, segment, -number, start, stop, scale)
            target[...] = part.real if self.weighs else part
        return found

    def _transform_chirp(
        self, factors: _Factors, number: int, twiddle: Callable[[Buffer, Box], Buffer], device: str
    ) -> Buffer:
        """Return this process's rows of the transform of exp(pi i j * j / n), j of both signs."""
        by_columns, by_rows = self._chirp
        rows, columns = self.sizes
        size, taken, given = rows * columns, self._taken, self._given
        block = _memory.empty(by_columns.local_shape(), self.task.dtype, device)

        def on_columns(_: Buffer, box: Box) -> Buffer:
            start, stop = factors.columns_of(box[1])
            tile: Any = 0
            for segment in range(-(taken - 1) // size, -(-given // size)):
                part = factors(segment, -number, start, stop)
                low, high = -taken - segment * size, given - segment * size
                if low >= 0 or high < size:
                    places = np.arange(rows)[:, None] * columns + np.arange(start, stop)
                    part[(places <= low) | (places >= high)] = 0
                tile = tile + part
            tile = _backend.asarray(tile.conj().astype(self.task.dtype, copy=False), device)
            return twiddle(self.transform(tile, 0, rows, True, None), box)

        by_tiles(on_columns, block, block, (0,))
        block = redistribute_local(block, by_columns, by_rows, is_free=True)
        return by_tiles(
            lambda tile, _: self.transform(tile, 1, columns, True, None), block, block, (1,)
        )


class _Factors:
    """Roots of unity beside the columns of a line's matrix, of which a segment has all rows.

    Item j has exp(-pi i j * j / n), with + for inverse transforms, times exp(-2 pi i j k / L) where
    k is the number of a pass.

    Parameters
    ----------
    line
    first
        The first column that this process has.
    device
        Of its block.
    """

    def __init__(self, line: Chirp, first: int, device: str) -> None:
        self._line, self._first, self._device = line, first, device
        wide = line.task.dtype.itemsize > 16
        self._dtype = line.task.dtype if wide else np.dtype(np.complex128)
        rows, columns = line.sizes
        self._at = np.arange(rows) * columns
        self._table = np.empty((rows, 0))
        self._phases: dict[tuple[int, int], np.ndarray] = {}

    def columns_of(self, part: tuple[int, int]) -> tuple[int, int]:
        """Return which columns of the matrix a tile has."""
        return self._first + part[0], self._first + part[1]

    def __call__(
        self, segment: int, number: int, start: int, stop: int, scale: Any = 1
    ) -> np.ndarray:
        """Return the factors of a segment in a stretch of columns, times a scale."""
        n, forward, dtype = self._line.n, self._line.task.forward, self._dtype
        size = self._at.size * self._line.sizes[1]
        order, first = self._line.passes * size, segment * size
        steps = np.arange(stop - start)
        if self._table.shape[1] < steps.size:
            ones, tens = np.arange(_DIGIT), np.arange(0, steps.size, _DIGIT)
            at = (self._at % n)[:, None]
            each = [roots(at * digit, n, forward, dtype) for digit in (tens, ones)]
            self._table = (each[0][..., None] * each[1][:, None]).reshape(len(at), -1)
        at, across = first + self._at, start + steps
        if (segment, number) not in self._phases:
            self._phases[segment, number] = roots(at * number, order, True, dtype)
        left = roots(squares(abs(at), 2 * n) + 2 * (at % n * start % n), 2 * n, forward, dtype)
        left *= self._phases[segment, number] * scale
        right = roots(squares(across, 2 * n) + 2 * (first % n * steps % n), 2 * n, forward, dtype)
        right *= roots(across * number, order, True, dtype)
        found = self._table[:, : steps.size] * right
        found *= left[:, None]
        return found

    def beside(
        self, tile: Buffer, segment: int, number: int, start: int, stop: int, scale: Any
    ) -> Buffer:
        """Return factors to multiply the first rows of a tile with."""
        axis = self._line.axis
        found = self(segment, number, start, stop, scale)[: tile.shape[axis]]
        found = found.reshape(found.shape + (1,) * (tile.ndim - axis - 2))
        return _backend.asarray(found.astype(self._line.task.dtype, copy=False), self._device)


def _sizes(least: int, count: int) -> tuple[int, int]:
    """Return the least matrix of so many items that processes can share, rows and columns.

    Both are about as many, multiples of `count`, and have no prime factors but 2, 3 and 5 else.
    """
    parts = -(-least // count**2)
    root = isqrt(parts)
    smooth = [1]
    for prime in (2, 3, 5):
        powers = [prime**i for i in range((4 * root + 8).bit_length())]
        smooth = sorted(a * b for a in smooth for b in powers if a * b <= 4 * root + 8)
    pairs = [
        (one, smooth[bisect_left(smooth, -(-parts // one))])
        for one in smooth[bisect_left(smooth, root // 2) : bisect_left(smooth, 2 * root + 2)]
    ]
    rows, columns = min(pairs, key=lambda pair: (pair[0] * pair[1], abs(pair[0] - pair[1])))
    return count * rows, count * columns


def _scale(n: int, task: Task, passes: int) -> Any:
    """Return the factor of a transform's result, of so many passes, as a real of its precision."""
    wide, real = np.longdouble(n), np.empty(0, task.dtype).real.dtype.type
    if task.norm == "ortho":
        return real(wide**-0.5 / passes)
    return real((1 / wide if (task.norm == "forward") == task.forward else 1) / passes)
