"""Multiselection: the items at given places of sorted runs that no rank has all of.

Each round fixes some bits of the key of every wanted item: for each value of these bits the ranks
count what they have before it, by `np.searchsorted` in their own run, and add the counts up. What
is left are windows, one on every rank, of items with the same leading bits. Once all windows
together are few items, these are gathered and sorted; or all bits are fixed, and the windows hold
equal items. Equal items go by rank, as if their positions were part of the key. The outcome is
exact and the same for every number of ranks; it depends on no sample and no distribution.

After Saukas & Song (1999), with bits of the key in place of weighted medians, as in the histogram
sorts of Kale & Krishnan (1993) and Harsh, Kale & Solomonik (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import Communicator
from distarray.ops.sorting._keys import KeyWords
from distarray.typing import Buffer

_ROUND_BYTES: Final = 64 * 1024
"""Counts that a round adds up; less costs more rounds, more costs more than a round."""

_MOST_BITS: Final = 8
"""Of a key, in a round: for one place more would cost more searches than they spare."""

_PROBE_BYTES: Final = 1024 * 1024
"""Items that a round searches for; long texts, that is, are narrowed down by fewer bits."""

_FEW_BYTES: Final = 32 * 1024
"""Items that are gathered rather than narrowed down, which cost no more than a round."""


class Ranks(NamedTuple):
    """What a selection needs of the ranks; every call is one of all of them."""

    rank: int
    add: Callable[[Buffer], Buffer]
    """int64 counts of this rank -> their sums over all ranks."""
    gather: Callable[[Buffer], Sequence[Buffer]]
    """A 1-d block -> those of all ranks, in rank order; their lengths may differ."""


def ranks_of(comm: Communicator) -> Ranks:
    """Return what a selection needs of the ranks of a communicator."""

    def gather(block: Buffer) -> list[Buffer]:
        lengths = np.empty(comm.size, np.int64)
        comm.all_gather(np.array([len(block)], np.int64), lengths)
        dtype, width = block.dtype, block.dtype.itemsize
        if not width:
            return [np.empty(length, dtype) for length in lengths]
        raw = np.empty(int(lengths.sum()) * width, np.uint8)
        sent = np.ascontiguousarray(block).view(np.uint8)
        comm.all_gather(sent, raw, (lengths * width).tolist())
        return np.split(raw.view(dtype), lengths.cumsum()[:-1])

    return Ranks(comm.rank, comm.all_reduce, gather)


class Selected(NamedTuple):
    """Where the items at some places are; of several lines, a row for each."""

    cuts: np.ndarray
    """int64: how many items of this rank's run come before each place."""
    owners: np.ndarray
    """int64: the rank that has the item at each place, as the item at its cut; of the place after
    the last item: any."""


def select_cuts(run: Buffer, places: Any, keys: KeyWords, ranks: Ranks) -> np.ndarray:
    """Return how many items of this rank come before each of some places in the order of all.

    Parameters
    ----------
    run : array
        This rank's items, sorted as `np.sort` does, of the dtype of `keys`; may be empty. 1-d, or
        2-d: this rank's part of several lines, each sorted and selected from by itself.
    places : sequence of int
        From 0 to the number of all items of a line; the same on every rank, in any order.
    keys : KeyWords
    ranks : Ranks

    Returns
    -------
    ndarray
        int64; over all ranks they add up to `places`. Of equal items those of lower ranks come
        first. A row for each line, where there are several.
    """
    return select(run, places, keys, ranks).cuts


def select_values(run: Buffer, places: Any, keys: KeyWords, ranks: Ranks) -> Buffer:
    """Return the items at some places in the order of all, on every rank.

    Parameters are those of `select_cuts`, but that there is an item at every place, and one line.
    """
    cuts, owners = select(run, places, keys, ranks)
    values = np.empty(len(cuts), keys.dtype)
    if not len(cuts):
        return values
    parts = ranks.gather(run[cuts[owners == ranks.rank]])
    for rank, part in enumerate(parts):
        values[owners == rank] = part
    return values


def select(run: Buffer, places: Any, keys: KeyWords, ranks: Ranks) -> Selected:
    """Return where the items at some places are; see `select_cuts`."""
    wanted = np.asarray(places, np.int64).reshape(-1)
    shape = (*run.shape[:-1], len(wanted))
    lines = run if run.ndim > 1 else run[None]
    if not len(wanted) or not len(lines):
        return Selected(np.empty(shape, np.int64), np.empty(shape, np.int64))
    places, inverse = np.unique(wanted, return_inverse=True)
    # The lines as one after the other: in `places` so far apart that those of two never meet.
    line = np.repeat(np.arange(len(lines)), len(places))
    base = line * (places[-1] + 1)
    places = np.tile(places, len(lines)) + base
    run = lines.reshape(-1)
    windows = _narrow(lines, places, line, base, keys, ranks)
    sizes = np.stack(ranks.gather(windows.stops - windows.starts))
    if windows.are_equal:
        found = _cut_equal(windows, places, sizes, ranks.rank)
    else:
        found = _cut_gathered(run, windows, places, sizes, ranks)
    cuts = found.cuts - line * lines.shape[1]
    return Selected(
        cuts.reshape(len(lines), -1)[:, inverse].reshape(shape),
        found.owners.reshape(len(lines), -1)[:, inverse].reshape(shape),
    )


class _Windows(NamedTuple):
    """Items whose leading bits are those of the wanted items."""

    starts: np.ndarray
    """int64: where they begin in this rank's run, for each place."""
    stops: np.ndarray
    before: np.ndarray
    """int64: how many items of all ranks come before those of the window."""
    are_equal: bool


def _narrow(
    lines: Buffer,
    places: np.ndarray,
    line: np.ndarray,
    base: np.ndarray,
    keys: KeyWords,
    ranks: Ranks,
) -> _Windows:
    count = len(places)
    own_base = line * lines.shape[1]
    starts, stops = own_base, own_base + lines.shape[1]
    before, after = base, None  # of all ranks
    words = np.zeros((count, len(keys.bits)), np.uint64)
    itemsize = max(keys.dtype.itemsize, 1)
    probed = min(_ROUND_BYTES // (8 * count), _PROBE_BYTES // (itemsize * count))
    width = max(1, min(_MOST_BITS, (probed + 1).bit_length() - 1))
    for place, size in enumerate(keys.bits):
        left = size
        while left:
            if after is not None and _items(before, after) * itemsize <= _FEW_BYTES:
                return _Windows(starts, stops, before, False)
            step = min(width, left)
            left -= step
            digits = np.arange(1 << step, dtype=np.uint64) << np.uint64(left)
            probes = np.repeat(words[:, None], len(digits), axis=1)
            probes[..., place] |= digits
            found = _count_before(lines, keys.decode(probes[:, 1:]))
            own = np.empty((count, len(digits) + 1), np.int64)
            own[:, 0], own[:, -1] = starts, stops
            own[:, 1:-1] = found + own_base[:, None]
            first = after is None  # when nobody has counted all items
            counts = (own[:, 1:] if first else own[:, 1:-1]) - own_base[:, None]
            total = own.copy()
            total[:, 0] = before
            total[:, -1] = 0 if after is None else after
            summed = ranks.add(counts).reshape(counts.shape) + base[:, None]
            total[:, 1 : 1 + summed.shape[1]] = summed
            digit = (total[:, 1:-1] <= places[:, None]).sum(axis=1)
            rows = np.arange(count)
            starts, stops = own[rows, digit], own[rows, digit + 1]
            before, after = total[rows, digit], total[rows, digit + 1]
            words[:, place] |= digits[digit]
    return _Windows(starts, stops, before, True)


def _count_before(lines: Buffer, probes: Buffer) -> np.ndarray:
    """Return how many items of a line come before each probe; there are as many for each line."""
    each = probes.reshape(len(lines), -1)
    found = [np.searchsorted(line, one, "left") for line, one in zip(lines, each, strict=True)]
    return np.concatenate(found).reshape(probes.shape)


def _items(before: np.ndarray, after: np.ndarray) -> int:
    """Return how many items are in windows; several places may share one."""
    _, first = np.unique(before, return_index=True)
    return int((after - before)[first].sum())


def _cut_equal(windows: _Windows, places: np.ndarray, sizes: np.ndarray, rank: int) -> Selected:
    """Cut windows of equal items by rank."""
    ends = sizes.cumsum(axis=0)  # of each rank's items within the window
    within = places - windows.before
    cuts = windows.starts + np.clip(within - (ends[rank] - sizes[rank]), 0, sizes[rank])
    owners = np.minimum((ends <= within).sum(axis=0), len(sizes) - 1)
    return Selected(cuts, owners.astype(np.int64))


def _cut_gathered(
    run: Buffer, windows: _Windows, places: np.ndarray, sizes: np.ndarray, ranks: Ranks
) -> Selected:
    """Cut windows of few items, by sorting those of all ranks."""
    cuts = windows.starts.copy()
    owners = np.zeros(len(places), np.int64)
    _, first, window = np.unique(windows.before, return_index=True, return_inverse=True)
    spans = zip(windows.starts[first], windows.stops[first], strict=True)
    parts = ranks.gather(np.concatenate([run[start:stop] for start, stop in spans]))
    ends = sizes[:, first].cumsum(axis=1)  # of each window in each rank's part
    for k in np.flatnonzero(sizes[:, first].sum(axis=0)):
        own = [
            part[end - size : end]
            for part, end, size in zip(parts, ends[:, k], sizes[:, first[k]], strict=True)
        ]
        origin = np.repeat(np.arange(len(own)), sizes[:, first[k]])
        origin = origin[np.argsort(np.concatenate(own), kind="stable")]
        for place in np.flatnonzero(window == k):
            within = int(places[place] - windows.before[place])
            cuts[place] += np.count_nonzero(origin[:within] == ranks.rank)
            owners[place] = origin[min(within, len(origin) - 1)]
    return Selected(cuts, owners)
