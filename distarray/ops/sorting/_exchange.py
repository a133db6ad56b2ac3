"""The exchange that sorts lines cut over ranks: every item moves once, to the rank of its place.

Each rank sorts what it has of a line. Exact splitters (`_multiselection`) then cut these runs so
that every rank gets as many items as it is to have, however many are equal, and the runs that it
gets are merged. Of equal items those of lower ranks come first, so that the sort is stable and the
same for any number of ranks. Descending lines are ascending ones of the ranks and items in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import Communicator, Parcels, _memory, gather_blocks, join_blocks, push_rows
from distarray.ops.sorting._block_sort import argsort_block, merge_order, merge_runs, sort_block
from distarray.ops.sorting._keys import KeyWords, longest
from distarray.ops.sorting._multiselection import Ranks, ranks_of, select_cuts
from distarray.typing import Buffer

GATHERED_BYTES: Final = 512 * 1024
"""So much of all ranks together every rank gets and orders: that takes one round, and not ten.

Of 128 KiB that took 60 us on two ranks of Zen 5, of 512 KiB 320, and to find where each rank's part
is cut, and to exchange, 370 and 645. Places go with their items: of 512 KiB of both, 450 and 610.
"""


def sort_across(
    comm: Communicator,
    given: list[Buffer],
    offsets: Any,
    token: int,
    what: object = "",
    *,
    first: int | None = None,
    total: int | None = None,
    descending: bool = False,
    stable: bool = True,
) -> tuple[Buffer, list[Buffer]]:
    """Return this rank's part of lines sorted over all ranks, and what travels with the items.

    Parameters
    ----------
    comm : Communicator
        Of the ranks that have parts of the lines, in the order of these.
    given : list of array
        This rank's part of each line, of which all ranks have alike many: 2-d, of a dtype that
        `KeyWords` takes, in native byte order and host memory; parts may be empty. Then what
        travels with the items, of the same first two axes. The list is left empty.
    offsets : sequence of int
        Where each rank's part of a sorted line begins, and the end of the last.
    token, what
        As in ``Communicator.views``.
    first : int, optional
        Where this rank's part of a line begins: then the places of the items travel with them.
    total : int, optional
        The length of a line; what comes after the last offset is dropped. Default: that offset.
    descending : bool
        Equal items stay in order, and NaN comes first.
    stable : bool
        As in `sort_block`; where anything travels along every sort is stable.

    Returns
    -------
    lines : array
        With the axes of those given; the last has the length that the offsets say.
    payload : list of array
        The places, int64, before the others, if they are asked for.

    Notes
    -----
    Distribution: counts of at most 64 KiB are reduced some times (8 of float64 at most), then every
    item and its payload moves to its place, once. Memory: a sorted copy and what arrives, twice.
    Lines of at most 512 KiB, payload included, are gathered instead, and sorted on every rank.
    """
    offsets = np.asarray(offsets, np.int64)
    total = int(offsets[-1]) if total is None else total
    count, own = len(given[0]), int(offsets[comm.rank + 1] - offsets[comm.rank])
    itemsize = sum(one.itemsize * prod(one.shape[2:]) for one in given)
    nbytes = total * count * (itemsize if first is None else itemsize + 8)
    if not nbytes or (given[0].itemsize and nbytes <= GATHERED_BYTES):
        if not nbytes:
            found, *carried = [np.zeros((count, own, *one.shape[2:]), one.dtype) for one in given]
            order = np.zeros((count, own), np.int64)
        else:
            whole = gather_lines(comm, given, nbytes, token, what)
            mine = slice(offsets[comm.rank], offsets[comm.rank + 1])
            if len(whole) == 1 and first is None:
                ordered = sort_block(whole[0], descending=descending, stable=stable)
                return np.ascontiguousarray(ordered[:, mine]), []
            order = argsort_block(whole[0], descending=descending)[:, mine]
            flat = order + np.arange(count)[:, None] * whole[0].shape[1]
            found, *carried = [one.reshape(-1, *one.shape[2:])[flat] for one in whole]
        if first is not None:  # the parts follow each other, so that these are the places
            carried.insert(0, order)
        return found, carried
    if descending:
        given[:] = [one[:, ::-1] for one in given]
    runs, carried = _sort_runs(given, first, descending, stable)
    cuts = _cut(comm, runs, (total - offsets)[::-1] if descending else offsets, total, descending)
    if descending:
        runs, carried = runs[:, ::-1], [one[:, ::-1] for one in carried]
        cuts = (runs.shape[1] - cuts)[:, ::-1]
    flat = [one.reshape(-1, *one.shape[2:]) for one in (runs, *carried)]
    del runs, carried
    if count == 1:
        flat, senders = push_rows(comm, flat, Parcels(cuts[0], None), token, what)
        senders = senders[None]
    else:
        flat, senders = _push_lines(comm, flat, cuts, token, what)
    if count == 1:
        found, *carried = [one[None] for one in _merge(flat, senders[0], descending, stable)]
        return found, carried
    merged = [
        _merge([one[i * own : (i + 1) * own] for one in flat], senders[i], descending, stable)
        for i in range(count)
    ]
    found, *carried = [np.stack(parts) for parts in zip(*merged, strict=True)]
    return found, carried


def gather_lines(
    comm: Communicator, parts: Sequence[Buffer], most: int, token: int, what: object = ""
) -> list[Buffer]:
    """Return whole lines of which each rank has a part, on every rank, by one exchange.

    Parameters
    ----------
    comm : Communicator
        Of the ranks that have parts, in the order of these.
    parts : sequence of array
        This rank's of lines that all ranks have alike many of, which is the first axis; along the
        second each may have another length, the same of all arrays. Items have bytes.
    most : int
        Bytes of all parts of a rank, or more, alike on all ranks.
    token, what
        As in ``Communicator.views``.
    """
    count = len(parts[0])
    if count == len(parts) == 1:
        (line,) = parts
        rest, dtype = line.shape[2:], line.dtype
        everything = join_blocks(comm, line.tobytes(), most, token, what)
        length = len(everything) // (dtype.itemsize * prod(rest))
        return [np.ndarray((1, length, *rest), dtype, everything)]
    flat = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in parts]
    own = flat[0] if len(flat) == 1 else np.concatenate(flat)
    widths = [count * one.itemsize * prod(one.shape[2:]) for one in parts]
    lines: list[list[Buffer]] = [[] for _ in parts]
    for received in gather_blocks(comm, own.data, most, token, what):
        length, start = len(received) // sum(widths), 0
        for found, one, width in zip(lines, parts, widths, strict=True):
            shape = (count, length, *one.shape[2:])
            found.append(np.ndarray(shape, one.dtype, received, start))
            start += length * width
    # `np.concatenate` would change another byte order.
    return [np.concatenate(found, axis=1, dtype=found[0].dtype) for found in lines]


def _sort_runs(
    given: list[Buffer], first: int | None, descending: bool, stable: bool
) -> tuple[Buffer, list[Buffer]]:
    """Return sorted lines, and in the same order their places and what else is given.

    The list is left empty.
    """
    if first is None and len(given) == 1:
        return sort_block(given.pop(), stable=stable), []
    count, length = given[0].shape
    order = argsort_block(given[0])
    places = []
    if first is not None:
        places.append(_memory.empty(order.shape, np.int64))
        if descending:
            np.subtract(first + length - 1, order, out=places[0])
        else:
            np.add(first, order, out=places[0])
    if count > 1:
        order += np.arange(count)[:, None] * length
    both = []
    while given:
        one = given.pop(0)
        rows = one.reshape(-1, *one.shape[2:])
        taken = _memory.empty((*order.shape, *rows.shape[1:]), one.dtype)  # which others read
        both.append(np.take(rows, order, axis=0, out=taken, mode="clip"))
        del one, rows  # makes room
    return both[0], places + both[1:]


def _cut(
    comm: Communicator, runs: Buffer, places: np.ndarray, total: int, reverse: bool
) -> np.ndarray:
    """Return for each line how many items of this rank's run come before each place."""
    length = None
    if runs.dtype.kind in "SU":
        length = int(comm.all_reduce(np.array([longest(runs)], np.int64), "max")[0])
    ranks = ranks_of(comm)
    if reverse:
        last = comm.size - 1
        ranks = Ranks(last - comm.rank, ranks.add, lambda block: ranks_of(comm).gather(block)[::-1])
    cuts = np.where(places <= 0, 0, runs.shape[1])
    cuts = np.tile(cuts, (len(runs), 1))
    inner = (places > 0) & (places < total)
    cuts[:, inner] = select_cuts(runs, places[inner], KeyWords(runs.dtype, length), ranks)
    return cuts


def _push_lines(
    comm: Communicator, flat: list[Buffer], cuts: np.ndarray, token: int, what: object
) -> tuple[list[Buffer], np.ndarray]:
    """Send each rank its pieces of several lines.

    Returns
    -------
    list of array
        What arrives, line by line, and within a line by sender.
    ndarray
        For each line, where the pieces of the senders begin, and the end of the last.
    """
    lengths = np.diff(cuts)
    starts = cuts[:, :-1] + np.arange(len(cuts))[:, None] * (len(flat[0]) // len(cuts))
    parcels = Parcels(_offsets(lengths.sum(axis=0)), _join_spans(starts.T, lengths.T))
    each = np.arange(comm.size + 1)
    rows = [np.ascontiguousarray(lengths.T)]
    (pieces,), _ = push_rows(comm, rows, Parcels(each, None), token, what)
    flat, _ = push_rows(comm, flat, parcels, token + 1, what)
    ends = pieces.cumsum().reshape(pieces.shape)
    order = _join_spans((ends - pieces).T, pieces.T)
    return [one[order] for one in flat], np.stack([_offsets(line) for line in pieces.T])


def _merge(
    parts: list[Buffer], offsets: np.ndarray, descending: bool, stable: bool
) -> list[Buffer]:
    """Return the runs of one line merged, and what travels with their items; may be the same."""
    if descending:
        parts[:] = [np.ascontiguousarray(one[::-1]) for one in parts]
        offsets = (offsets[-1] - offsets)[::-1]
    if len(parts) < 3 and all(one.dtype == np.int64 and one.ndim == 1 for one in parts[1:]):
        found = merge_runs(parts[0], offsets, *parts[1:], stable=stable)
        parts = [one for one in found if one is not None]
    else:
        order = merge_order(parts[0], offsets)
        parts[:] = [one[order] for one in drain(parts)]
    return [np.ascontiguousarray(one[::-1]) for one in parts] if descending else parts


def drain(arrays: list[Buffer]) -> Iterator[Buffer]:
    """Yield arrays of which a list keeps none."""
    while arrays:
        yield arrays.pop(0)


def _join_spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of all items of some spans, one span after the other."""
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    ends = lengths.cumsum()
    shifts: np.ndarray = np.repeat(starts - (ends - lengths), lengths)
    return shifts + np.arange(len(shifts))


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], lengths.cumsum()])
