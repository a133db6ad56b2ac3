"""Cut an exchange into rounds, so that the bytes under way at a time stay bounded.

Round ``k`` of ``n`` moves the ``k``-th of ``n`` equal parts of every box that passes between two
ranks: both sides know that box, so they agree without talking, and all pairs are busy in every
round. A part is a run of the box in C order, that is, a few boxes.
"""

from __future__ import annotations

from math import prod

from distarray.typing import Box

Part = tuple[int, int]
"""Index and count of a part."""

WHOLE: Part = (0, 1)


def cut(box: Box, part: Part) -> list[Box]:
    """Return one part of a box as boxes, in C order.

    Parameters
    ----------
    box
        Not empty.
    part
        ``(index, count)``. Parts differ by at most one value in size and follow one another; where
        there are fewer values than parts, some are empty.

    Returns
    -------
    list of Box
        At most ``2 * ndim - 1`` boxes.
    """
    index, count = part
    if count == 1:
        return [box]
    extents = [stop - start for start, stop in box]
    size = prod(extents)
    return _run(box, extents, index * size // count, (index + 1) * size // count)


def _run(box: Box, extents: list[int], start: int, stop: int) -> list[Box]:
    """Return the run ``start..stop`` of a box's values in C order as boxes."""
    if start >= stop:
        return []
    if not box:
        return [box]
    below = prod(extents[1:])
    first, skipped = divmod(start, below)
    last, used = divmod(stop, below)
    lower = box[0][0]
    if first == last:
        return [
            ((lower + first, lower + first + 1), *rest)
            for rest in _run(box[1:], extents[1:], skipped, used)
        ]
    found: list[Box] = []
    if skipped:
        found += [
            ((lower + first, lower + first + 1), *rest)
            for rest in _run(box[1:], extents[1:], skipped, below)
        ]
        first += 1
    if first < last:
        found.append(((lower + first, lower + last), *box[1:]))
    if used:
        found += [
            ((lower + last, lower + last + 1), *rest)
            for rest in _run(box[1:], extents[1:], 0, used)
        ]
    return found
