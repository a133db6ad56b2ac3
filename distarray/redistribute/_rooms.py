"""Room for messages in the blocks that they are parts of.

What has been sent leaves room in the block before an exchange, and what has not come yet in the one
after it. Slabs of one of the two mostly lie one after another, so that in every round one of both
has room enough, and a rank needs no memory beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Span = tuple[int, int]
"""The first of some items of a block, in C order, and what follows the last."""

Room = tuple[int, Span]
"""Which block, the one before or the one after, and where in it."""

Rooms = list[Room | None]
"""Of what a round sends and receives; None where there is none."""


def span_of(view: np.ndarray, block: np.ndarray) -> Span:
    """Return where a view lies in a block in C order, with all in between."""
    if not view.size:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True)]
    start = stop = view.ctypes.data - block.ctypes.data
    start += sum([step for step in steps if step < 0])
    stop += sum([step for step in steps if step > 0]) + view.itemsize
    return start // view.itemsize, stop // view.itemsize


def find_rooms(
    blocks: Sequence[np.ndarray],
    rounds: Sequence[tuple[Sequence[Span], Sequence[Span]]],
    near: tuple[Sequence[Span], Sequence[Span]],
    last: int,
    counts: Sequence[tuple[int, int]],
) -> list[Rooms]:
    """Return where what each round sends, and what it receives, can lie: in which block, and where.

    Parameters
    ----------
    blocks
        Before and after, in C order; the one before may be overwritten.
    rounds
        What each sends of the block before, and fills of the one after.
    near
        What is read of the block before, and filled of the one after, without messages.
    last
        After which round that is done.
    counts
        Items that each round sends, and receives.
    """
    found: list[Rooms] = []
    for k, needed in enumerate(counts):
        kept = [span for leaving, _ in rounds[k:] for span in leaving]
        come = [span for _, arriving in rounds[: k + 1] for span in arriving]
        if k <= last:
            kept += near[0]
        else:
            come += near[1]
        found.append([])
        for count in needed:
            room: Room | None = None
            for side, taken in enumerate((kept, come)):
                # The block before empties from its beginning on, and the other fills.
                start = _gap(blocks[side].size, taken, count, side == 0)
                if start is not None:
                    room = side, (start, start + count)
                    taken.append(room[1])
                    break
            found[-1].append(room)
    return found


def _gap(size: int, taken: Iterable[Span], count: int, first: bool) -> int | None:
    """Return where so many items of a block lie in none of some spans, first or last."""
    at, found = 0, None
    for start, stop in [*sorted(taken), (size, size)]:
        if start - at >= count:
            if first:
                return at
            found = start - count
        at = max(at, stop)
    return found


def buffers(blocks: Sequence[np.ndarray], rooms: Rooms) -> list[np.ndarray | None]:
    """Return the stretches of blocks that rooms are, as arrays of one axis."""
    return [
        None if room is None else blocks[room[0]].reshape(-1)[slice(*room[1])] for room in rooms
    ]
