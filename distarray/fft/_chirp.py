"""Lines of any length, transformed as convolutions with a chirp.

Where a length has no factors that the processes can share, the line is convolved with a chirp
(Bluestein, "A linear filtering approach to the computation of the discrete Fourier transform",
1970), by transforms of a length L that has them, at least of n and of the items of the result
together. Their frequencies may stay in the matrix's order.

Lines are convolved in q passes, each with every q-th of these frequencies, which a line of L / q
items has: segments of so many, times roots, are added up, and what comes back is part of all
segments of the result. So the chirp, and what is before and after a step, are q times smaller than
L; each pass receives the operand, some columns at a time, and makes its chirp. The square of item
j = S s + C r + c, of row r in segment s, is that of S s + C r, and c c + 2 S s c, and 2 C r c: so
its factor is one of each row times one of each column times one that is the same in all segments,
of which tiles have a table; and a chirp's segments are added up as a product of matrices. Errors
are some times those of six steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
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
from distarray.typing import Box, Buffer, Coordinate

PASS_BYTES: Final = 256 << 10
"""What a process has in a pass at least: of smaller ones the roots of rows and columns, and
exchanges, take longer than products and transforms. Measured on 2 ranks of a Xeon: with 80 KiB
lines of 65537 items take a third longer."""
SHARE: Final = 1 / 3
"""Of a block, what a process has in a pass at most. Three times as much is needed at once: the
chirp, and what is before and after a step; so that is a block, as what the last exchange takes."""
_ARRIVALS: Final = 2
"""Exchanges in which the operand arrives in a pass: half of it and the sum of its segments are
less than a block."""

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
        # Real items have half of the bytes.
        block = max(taken / (1 + (self.is_real and not self.weighs)), given / (1 + self.weighs))
        mine = (taken + given) * self.source.largest_block / max(taken, 1) * task.dtype.itemsize
        passes = min(int(mine / PASS_BYTES), ceil((taken + given - 1) / (SHARE * block)))
        self.passes, self.before_zero, size = _segments(taken, given, max(passes, 2))
        rows, columns = self.sizes = _sizes(size, count)
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

        Beside it there are the result and one block.
        """
        axis, task = self.axis, self.task
        rows, columns = self.sizes
        matrix = range(axis, axis + 2)
        arrivals = self._arrivals()
        leave = to_flat(self._last, matrix, self.after, self.what)
        assert leave is not None  # only processes of the mesh bind
        here = self._first.shape[axis]
        is_padded = here * columns > self._taken
        lead = (slice(None),) * axis
        shape, row_shape = self._columns.local_shape(), self._rows.local_shape()
        own_columns = own_range(self._columns, axis + 1)
        first_column = own_columns[0]
        first_row = own_range(self._rows, axis)[0]

        def transform_block(block: Any) -> Buffer:
            device = _backend.device_of(block)
            source = cut_off(block, self.source, axis)
            factors = _Factors(self, *own_columns, device)
            into = self.twiddles(rows * columns, shape, axis, axis + 1, first_column, True, device)
            back = self.twiddles(
                rows * columns, row_shape, axis + 1, axis, first_row, False, device
            )
            twiddle = self.twiddles(
                rows * columns, self._chirp[0].local_shape(), 0, 1, first_column, True, device
            )
            total = _memory.empty(self._last.local_shape(), self.result, device)
            for number in range(self.passes):
                block = _memory.empty(shape, task.dtype, device)
                for arrive, low, high in arrivals:

                    def on_columns(
                        tile: Buffer, box: Box, number: int = number, low: int = low
                    ) -> Buffer:
                        start, stop = box[axis + 1]
                        box = (*box[: axis + 1], (low + start, low + stop), *box[axis + 2 :])
                        tile = self._fold(tile, box, factors, number)
                        return into(self.transform(tile, axis, rows, True, "ortho"), box)

                    part: Any = block[(*lead, slice(None), slice(low, high))]
                    some = (*part.shape[:axis], here, *part.shape[axis + 1 :])
                    arrived: Any = _memory.empty(some, source.dtype, device)
                    if is_padded:
                        arrived[(*lead, -1)] = 0
                    run_exchange(arrive, source, arrived)
                    by_tiles(on_columns, arrived, part, (axis,))
                    arrived = part = None  # makes room
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

    def _arrivals(self) -> list[tuple[Any, int, int]]:
        """Return exchanges that bring some of each process's columns, from where on to where."""
        axis = self.axis
        width = self._first.local_shape()[axis + 1]
        step = -(-width // _ARRIVALS)
        found = []
        for low in range(0, width, step):
            high = min(low + step, width)

            def parts_of(at: Coordinate, low: int = low, high: int = high) -> Sequence[Any]:
                box = self._first.local_box(at)
                assert box is not None
                rows, (first, _) = box[axis : axis + 2]
                return [((rows, (first + low, first + high)),) * 2]

            matrix = range(axis, axis + 2)
            arrive = from_flat(self.source, self._first, matrix, self.what, parts_of)
            found.append((arrive, low, high))
        return found

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
        sides = factors(number, start, stop, np.longdouble(1 + self.weighs) / self.passes)
        found: Any = None
        for segment in range(-(-tile.shape[axis] // rows)):
            part = tile[(*lead, slice(segment * rows, (segment + 1) * rows))]
            part = factors.times(part, segment, sides)
            if found is None:
                found = part
            else:
                found[(*lead, slice(part.shape[axis]))] += part
        found *= factors.beside(tile, factors.table(stop - start)[: found.shape[axis]])
        return found

    def _unfold(self, tile: Buffer, box: Box, factors: _Factors, number: int) -> Buffer:
        """Return the segments of the result of which a tile of columns is part, times factors."""
        axis, rows, last = self.axis, self.sizes[0], self._last.shape[self.axis]
        start, stop = factors.columns_of(box[axis + 1])
        lead = (slice(None),) * axis
        shape = (*tile.shape[:axis], last, *tile.shape[axis + 1 :])
        found: Buffer = np.empty_like(tile, self.result, order="C", shape=shape)  # also CuPy's
        sides = factors(-number, start, stop, _scale(self.n, self.task))
        tile *= factors.beside(tile, factors.table(stop - start))
        for segment in range(-(-last // rows)):
            target = found[(*lead, slice(segment * rows, (segment + 1) * rows))]
            part = factors.times(tile[(*lead, slice(target.shape[axis]))], segment, sides)
            target[...] = part.real if self.weighs else part
        return found

    def _transform_chirp(
        self, factors: _Factors, number: int, twiddle: Callable[[Buffer, Box], Buffer], device: str
    ) -> Buffer:
        """Return this process's rows of the transform of exp(pi i j * j / n), j of both signs."""
        by_columns, by_rows = self._chirp
        rows, columns = self.sizes
        block = _memory.empty(by_columns.local_shape(), self.task.dtype, device)

        def on_columns(_: Buffer, box: Box) -> Buffer:
            start, stop = factors.columns_of(box[1])
            left, right = (sides[: self.passes] for sides in factors(-number, start, stop))
            tile = (left.T @ right).astype(self.task.dtype, copy=False)
            tile = _backend.asarray(tile, device) * factors.table(stop - start)
            return twiddle(self.transform(tile.conj(), 0, rows, True, None), box)

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
    first, stop
        The columns that this process has.
    device
        Of its block.
    """

    def __init__(self, line: Chirp, first: int, stop: int, device: str) -> None:
        self._line, self._first, self._device = line, first, device
        wide = line.task.dtype.itemsize > 16
        self._dtype = line.task.dtype if wide else np.dtype(np.complex128)
        self._real = np.empty(0, self._dtype).real.dtype.type
        (rows, columns), n = line.sizes, line.n
        self._at, self._across = np.arange(rows) * columns, np.arange(first, stop)
        self._segments = np.arange(-line.before_zero, line.passes)[:, None]
        ahead = self._segments * (rows * columns)
        self._rows = self._roots(squares(abs(ahead + self._at), 2 * n), 2 * n)
        self._columns = self._roots(ahead % n * self._across, n)
        self._columns *= self._roots(squares(self._across, 2 * n), 2 * n)
        self._number: int | None = None
        self._table: Any = np.empty((rows, 0))

    def columns_of(self, part: tuple[int, int]) -> tuple[int, int]:
        """Return which columns of the matrix a tile has."""
        return self._first + part[0], self._first + part[1]

    def __call__(
        self, number: int, start: int, stop: int, scale: Any = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of each segment's rows and of its columns, of which `table` has more.

        They are for some columns of a pass, times a scale.
        """
        line, n = self._line, self._line.n
        if number != self._number:
            self._number, order = number, line.passes * line.sizes[0] * line.sizes[1]
            self._left = self._rows * self._phases(self._at * number, order)
            self._right = self._columns * self._phases(self._across * number, order)
            self._right *= self._phases(self._segments * number, line.passes)
        left = self._left * (self._roots(self._at % n * start % n, n) * self._real(scale))
        return left, self._right[:, start - self._first : stop - self._first]

    def table(self, width: int) -> Buffer:
        """Return factors exp(-2 pi i C r c / n) of all rows and so many columns from c = 0 on."""
        if self._table.shape[1] < width:
            ones, tens = np.arange(_DIGIT), np.arange(0, width, _DIGIT)
            at, n = (self._at % self._line.n)[:, None], self._line.n
            each = [self._roots(at * digit, n) for digit in (tens, ones)]
            table = (each[0][..., None] * each[1][:, None]).reshape(len(at), -1)
            self._table = _backend.asarray(table.astype(self._line.task.dtype), self._device)
        return self._table[:, :width]

    def _roots(self, exponents: Any, order: int) -> np.ndarray:
        return roots(exponents, order, self._line.task.forward, self._dtype)

    def _phases(self, exponents: Any, order: int) -> np.ndarray:
        return roots(exponents, order, True, self._dtype)

    def times(self, tile: Buffer, segment: int, sides: tuple[np.ndarray, np.ndarray]) -> Buffer:
        """Return some rows of a segment's tile times the factors of its rows and columns."""
        left, right = (side[self._line.before_zero + segment] for side in sides)
        found = tile * self.beside(tile, right[None])
        found *= self.beside(tile, left[: tile.shape[self._line.axis], None])
        return found

    def beside(self, tile: Buffer, factors: Any) -> Buffer:
        """Return factors of rows and columns to multiply a tile with."""
        factors = factors.reshape(factors.shape + (1,) * (tile.ndim - self._line.axis - 2))
        return _backend.asarray(factors.astype(self._line.task.dtype, copy=False), self._device)


def _segments(taken: int, given: int, passes: int) -> tuple[int, int, int]:
    """Return how many passes to make, how many segments of a chirp come before item 0, and a size.

    So many segments have all of a chirp. Of up to two passes more those are chosen that have the
    fewest items in all.
    """
    ways = [
        (q, before, max(-(-(taken - 1) // before), -(-given // (q - before)), 1))
        for q in range(passes, passes + 3)
        for before in range(1, q)
    ]
    return min(ways, key=lambda way: way[0] * (way[2] + taken / 8))


def _sizes(least: int, count: int) -> tuple[int, int]:
    """Return the least matrix of so many items that processes can share, rows and columns.

    Both are about as many, multiples of `count`, and have no prime factors above 11 else.
    """
    parts = -(-least // count**2)
    root = isqrt(parts)
    smooth = [1]
    for prime in (2, 3, 5, 7, 11):
        powers = [prime**i for i in range((4 * root + 8).bit_length())]
        smooth = sorted(a * b for a in smooth for b in powers if a * b <= 4 * root + 8)
    pairs = [
        (one, smooth[bisect_left(smooth, -(-parts // one))])
        for one in smooth[bisect_left(smooth, root // 2) : bisect_left(smooth, 2 * root + 2)]
    ]
    rows, columns = min(pairs, key=lambda pair: (pair[0] * pair[1], abs(pair[0] - pair[1])))
    return count * rows, count * columns


def _scale(n: int, task: Task) -> Any:
    """Return the factor of a transform's result."""
    wide = np.longdouble(n)
    if task.norm == "ortho":
        return wide**-0.5
    return 1 / wide if (task.norm == "forward") == task.forward else 1
