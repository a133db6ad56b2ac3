"""Index boxes: one half-open interval per array axis, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from distarray.typing import Box, Shape


def intersect(a: Box, b: Box) -> Box | None:
    """Return the indices in both boxes, or None where there are none.

    Boxes of a 0-d array are ``()``; two of them meet in ``()``, which holds one element.
    """
    out = []
    for (a_start, a_stop), (b_start, b_stop) in zip(a, b, strict=True):
        start = a_start if a_start > b_start else b_start
        stop = a_stop if a_stop < b_stop else b_stop
        if start >= stop:
            return None
        out.append((start, stop))
    return tuple(out)


def contains(a: Box, b: Box) -> bool:
    """Tell whether box `a` holds every index of box `b` (always, where `b` is empty)."""
    if is_empty(b):
        return True
    return all(
        a_start <= b_start and b_stop <= a_stop
        for (a_start, a_stop), (b_start, b_stop) in zip(a, b, strict=True)
    )


def is_empty(box: Box) -> bool:
    """Tell whether the box holds no index; the box ``()`` of a 0-d array holds one."""
    return any(start >= stop for start, stop in box)


def shape(box: Box) -> Shape:
    """Return the extent of the box along every axis."""
    return tuple(stop - start if stop > start else 0 for start, stop in box)


def volume(box: Box) -> int:
    """Return the number of indices in the box; 1 for a 0-d array's ``()``."""
    return prod(shape(box))


def shift(box: Box, origin: Box) -> Box:
    """Return the box in the local indices of a block that lies at `origin`."""
    return tuple(
        (start - first, stop - first) for (start, stop), (first, _) in zip(box, origin, strict=True)
    )


def slices(box: Box) -> tuple[slice, ...]:
    """Return the box as slices, to index an array with."""
    return tuple(slice(start, stop) for start, stop in box)


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all indices of an array."""
    return tuple([(0, size) for size in shape])


def runs(shape: Shape, start: int, stop: int) -> Iterator[Box]:
    """Yield, in order, boxes that tile items ``start`` to ``stop`` of an array in C order.

    They are fewer than twice the number of axes.
    """
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    inner = prod(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    if first == last or head:
        for rest in runs(shape[1:], head, tail if first == last else inner):
            yield ((first, first + 1), *rest)
        if first == last:
            return
        first += 1
    if first < last:
        yield ((first, last), *whole(shape[1:]))
    for rest in runs(shape[1:], 0, tail):
        yield ((last, last + 1), *rest)
