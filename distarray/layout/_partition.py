"""Partitions of one array axis into blocks: the one home of count, offset and owner arithmetic."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from operator import gt
from typing import Any, NoReturn, final

from distarray.errors import LayoutError


class _Parts:
    """The attributes of a partition, assigned before its class forbids it: that is quicker."""

    __slots__ = ("_offsets", "count", "counts", "size")
    size: int
    count: int
    counts: tuple[int, ...]
    _offsets: tuple[int, ...]


class Partition(_Parts):
    """A contiguous split of ``range(size)`` into `count` blocks, some of them perhaps empty.

    Attributes
    ----------
    size : int
        Length of the axis.
    count : int
        Number of blocks.
    """

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    @property
    def is_even(self) -> bool:
        """Whether all blocks have the same length."""
        first = self.offsets[1]
        return all(stop - start == first for start, stop in pairwise(self.offsets))

    @property
    def largest(self) -> int:
        """The length of the longest block."""
        return max(stop - start for start, stop in pairwise(self.offsets))

    @property
    def smallest(self) -> int:
        """The length of the shortest block."""
        return min(stop - start for start, stop in pairwise(self.offsets))

    @property
    def offsets(self) -> tuple[int, ...]:
        """The `count` + 1 boundaries; block i is ``range(offsets[i], offsets[i + 1])``."""
        return self._offsets

    def bounds(self, index: int) -> tuple[int, int]:
        """Return start and stop of block `index`, ``0 <= index < count``."""
        offsets = self.offsets
        return offsets[index], offsets[index + 1]

    def length(self, index: int) -> int:
        """Return the length of block `index`."""
        start, stop = self.bounds(index)
        return stop - start

    def owners(self, start: int, stop: int) -> Sequence[int]:
        """Return, in increasing order, the blocks that hold part of ``range(start, stop)``."""
        offsets = self.offsets
        start, stop = max(start, 0), min(stop, self.size)
        if start >= stop:
            return ()
        first = bisect_right(offsets, start) - 1
        last = bisect_left(offsets, stop)
        return [i for i in range(first, last) if offsets[i] < offsets[i + 1]]

    def owner(self, position: int) -> int:
        """Return the block that holds `position`, ``0 <= position < size``."""
        return self.owners(position, position + 1)[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        return self is other or (
            self.size == other.size
            and self.count == other.count
            and self.bounds(0) == other.bounds(0)  # differs mostly, and all offsets take longer
            and self.offsets == other.offsets
        )

    def __hash__(self) -> int:
        return hash((self.size, self.count))

    def __reduce__(self) -> tuple[Any, ...]:
        return explicit, (self.offsets,)

    def __repr__(self) -> str:
        return f"explicit({self.offsets})"


@final
class _Chunked(Partition):
    """torch.chunk's split, nested once per count: every query costs the depth, not the count."""

    __slots__ = ()

    @property
    def is_even(self) -> bool:
        return self.size % self.count == 0

    @property
    def largest(self) -> int:
        return self.bounds(0)[1]  # ceil-sized blocks come first

    @property
    def smallest(self) -> int:
        return shortest(self.size, self.counts)

    @property
    def offsets(self) -> tuple[int, ...]:
        # Not kept: `chunk` keeps many of these for long.
        if len(self.counts) == 1:
            step = -(-self.size // self.count) or 1
            inner = range(step, self.size, step)
            return 0, *inner, *(self.size,) * (self.count - len(inner))
        found: Sequence[int] = (0, self.size)
        for count in self.counts:
            finer = [0]
            for start, stop in pairwise(found):
                step = -(-(stop - start) // count) or 1
                inner = range(start + step, stop, step)
                finer += inner
                finer += [stop] * (count - len(inner))
            found = finer
        return tuple(found)

    def bounds(self, index: int) -> tuple[int, int]:
        start, stop, below = 0, self.size, self.count
        if len(self.counts) == 1:
            step = -(-stop // below)
            start = min(index * step, stop)
            return start, min(start + step, stop)
        for count in self.counts:
            below //= count
            digit, index = divmod(index, below)
            step = -(-(stop - start) // count)
            start = min(start + digit * step, stop)
            stop = min(start + step, stop)
        return start, stop

    def owners(self, start: int, stop: int) -> Sequence[int]:
        start, stop = max(start, 0), min(stop, self.size)
        if start >= stop:
            return ()
        if len(self.counts) == 1:
            step = -(-self.size // self.counts[0])
            return range(start // step, (stop - 1) // step + 1)
        found: list[int] = []
        _collect(found, self.size, self.counts, self.count, start, stop, 0)
        return tuple(found)

    def owner(self, position: int) -> int:
        if len(self.counts) == 1:
            return position // -(-self.size // self.count)
        return super().owner(position)

    def __reduce__(self) -> tuple[Any, ...]:
        return chunk, (self.size, self.counts)

    def __repr__(self) -> str:
        return f"chunk({self.size}, {self.counts})"


def length(size: int, parts: Sequence[tuple[int, int]]) -> int:
    """Return the length of a block of ``chunk(size, counts)``: pairs of a count and which part."""
    for count, digit in parts:
        longest = -(-size // count)
        size -= digit * longest
        if size > longest:
            size = longest
        elif size < 0:
            size = 0
    return size


def interval(size: int, parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the bounds of a block of ``chunk(size, counts)``: pairs of a count and which part."""
    start, stop = 0, size
    for count, digit in parts:
        longest = -(-(stop - start) // count)
        start += digit * longest
        if start + longest < stop:
            stop = start + longest
        elif start > stop:
            start = stop
    return start, stop


def shortest(size: int, counts: tuple[int, ...]) -> int:
    """Return ``chunk(size, counts).smallest``, for which nothing is made."""
    if not counts:
        return size
    longest = -(-size // counts[0])
    last = size - longest * (counts[0] - 1)  # of blocks in between all are as long
    last = last if last > 0 else 0
    rest = counts[1:]
    return min(shortest(longest, rest), shortest(last, rest)) if rest else last


def _collect(
    found: list[int],
    size: int,
    counts: tuple[int, ...],
    below: int,
    start: int,
    stop: int,
    base: int,
) -> None:
    """Append the nested blocks of ``range(size)`` that meet ``range(start, stop)``."""
    if not counts:
        found.append(base)
        return
    below //= counts[0]
    step = -(-size // counts[0])
    for digit in range(start // step, (stop - 1) // step + 1):
        first = digit * step
        length = min(step, size - first)
        _collect(
            found,
            length,
            counts[1:],
            below,
            max(start - first, 0),
            min(stop - first, length),
            base + digit * below,
        )


@lru_cache(maxsize=1024)
def chunk(size: int, counts: tuple[int, ...]) -> Partition:
    """Return the split that ``torch.chunk`` makes, once per entry of `counts`.

    Blocks have the length ``ceil(size / count)``, the trailing ones are shorter or empty. Every
    further count cuts each block made so far in the same way.

    Parameters
    ----------
    size : int
        Length of the axis.
    counts : tuple of int
        Number of parts of each cut, the first cut first; ``()`` leaves the axis whole.

    Examples
    --------
    >>> chunk(10, (4,)).offsets
    (0, 3, 6, 9, 10)
    >>> chunk(10, (2, 2)).offsets
    (0, 3, 5, 8, 10)
    """
    if size < 0 or (counts and min(counts) < 1):
        raise LayoutError(
            f"chunk({size}, {counts}): the size must not be negative and every count be at least 1"
        )
    made: Any = _Parts()
    made.size, made.count, made.counts = size, prod(counts), counts
    made.__class__ = _Chunked
    return made  # type: ignore[no-any-return]


def is_chunk(offsets: Sequence[int], counts: tuple[int, ...]) -> bool:
    """Tell whether offsets of as many blocks are those of `chunk`."""
    first = offsets[-1]
    for count in counts:
        first = -(-first // count)
    # The first block differs mostly, and all offsets take longer; it says all of two.
    if offsets[0] or offsets[1] != first:
        return False
    return len(offsets) <= 3 or chunk(offsets[-1], counts).offsets == tuple(offsets)


def explicit(offsets: Sequence[int]) -> Partition:
    """Return the contiguous split with the given boundaries.

    Parameters
    ----------
    offsets : sequence of int
        Starts with 0, never decreases, ends with the length of the axis.
    """
    values = tuple(offsets)
    if len(values) < 2 or values[0] != 0 or any(map(gt, values, values[1:])):
        shown = str(values) if len(values) <= 12 else f"({str(values[:8])[1:-1]}, ...)"
        raise LayoutError(
            f"boundaries {shown}: they must start with 0, never decrease and end with the length "
            "of the axis, with one entry more than there are blocks"
        )
    made: Any = _Parts()
    made.size, made.count, made._offsets = values[-1], len(values) - 1, values
    made.__class__ = Partition
    return made  # type: ignore[no-any-return]
