"""Exchange of states: every rank's to all of them, a part to each, or what those before come to.

Every call is one communication of the log. Ranks that are about to do different things find out in
the exchange itself, from its token. What went wrong on one rank travels with the words that it
would have sent, so that nobody waits for it and all raise alike.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from time import perf_counter
from typing import Any, Final

import numpy as np

from distarray.comm import _log, _memory
from distarray.comm._agreement import raise_failures
from distarray.comm._collectives import Counts, offsets
from distarray.comm._communicator import SMALL_BYTES, Communicator
from distarray.layout import chunk

FOLDED_BY_ALL: Final = 512 * 1024
"""Up to so many bytes of all ranks together, every rank folds whole states by itself, in one round.

Not measured for scans: what redistribution lets all ranks read, which was."""

_FEW_RANKS: Final = 3
"""So many ranks take no more by that, two states, than by folding a part of all states each."""


def join_states(comm: Communicator, mine: bytes, token: int, what: object = "") -> Any:
    """Return every rank's bytes, one after another in rank order, as memory.

    ``mine`` is of the same length on all ranks. ``token`` and ``what`` are as in
    ``Communicator.views``. Nobody else writes to the result.
    """
    if comm.size == 1:
        return bytearray(mine)
    started = perf_counter()
    small = comm.exchange_small(mine, token, what)
    if small is None:
        counts = [len(mine)] * comm.size
        return gather_parts(comm, np.frombuffer(mine, np.uint8), counts, token, what)
    if _log.recording():  # else what is known here would take a call more
        comm.record("all_gather", (comm.size - 1) * len(mine), started)
    return bytearray().join(small)


def gather_lengths(comm: Communicator, length: int, token: int, what: object = "") -> list[int]:
    """Return every rank's number from 0 on, in rank order; the rest is as for `join_states`."""
    if comm.size == 1:
        return [length]
    found: list[int] = np.frombuffer(
        join_states(comm, length.to_bytes(8, "little"), token, what), "<i8"
    ).tolist()
    return found


def join_blocks(
    comm: Communicator, mine: bytes, most: int, token: int, what: object = ""
) -> bytearray:
    """Return what `gather_blocks` does, one after another."""
    return bytearray().join(gather_blocks(comm, mine, most, token, what))


def gather_blocks(
    comm: Communicator, mine: bytes | memoryview, most: int, token: int, what: object = ""
) -> Sequence[Any]:
    """Return every rank's bytes, in rank order, of which each may have another number.

    ``most`` is as many as any rank has at most, alike on all of them. What is returned is valid
    until the next exchange. The rest is as for ``join_states``.
    """
    if comm.size == 1:
        return [mine]
    started = perf_counter()
    found: Sequence[Any] | None = comm.exchange_small(mine, token, what, most)
    if found is None:
        with _log.pause_logs():
            sizes = [size for (size,) in gather_words(comm, [len(mine)], token, what)]
            everything: np.ndarray = _memory.empty((sum(sizes),), np.uint8)
            comm.all_gather(np.frombuffer(mine, np.uint8), everything, sizes)
        found = [everything[a:b].data for a, b in pairwise(offsets(sizes))]
    comm.record("all_gather", sum(map(len, found)) - len(mine), started)
    return found


def scatter_states(
    comm: Communicator, mine: np.ndarray, counts: Counts, token: int, what: object = ""
) -> np.ndarray:
    """Return this rank's part of every rank's items, one row for each, in rank order.

    ``mine`` has one axis, as many items on all ranks, of which ``counts`` go to each. ``token`` and
    ``what`` are as in ``Communicator.views``. Nobody else writes to the result.
    """
    started = perf_counter()
    own = counts[comm.rank]
    parts: np.ndarray = _memory.empty((comm.size, own), mine.dtype)
    with _log.pause_logs():
        if comm.reaches_all():
            start = sum(counts[: comm.rank])
            with comm.views(_as_bytes(mine), token, what) as views:
                for row, view in zip(parts, views, strict=True):
                    row[...] = view.view(mine.dtype)[start : start + own]
        else:
            comm.all_to_all(
                _as_bytes(mine),
                _as_bytes(parts.reshape(-1)),
                [n * mine.itemsize for n in counts],
                [own * mine.itemsize] * comm.size,
                token=token,
                what=what,
            )
    comm.record("all_to_all", (comm.size - 1) * own * mine.itemsize, started)
    return parts


def gather_parts(
    comm: Communicator, part: np.ndarray, counts: Counts, token: int, what: object = ""
) -> np.ndarray:
    """Return the items of all ranks one after another, of which each has ``counts``.

    ``part`` has one axis and the same dtype on all ranks; the rest is as for ``scatter_states``.
    """
    started = perf_counter()
    whole: np.ndarray = _memory.empty((sum(counts),), part.dtype)
    with _log.pause_logs():
        if comm.reaches_all():
            cuts = pairwise(offsets(counts))
            with comm.views(_as_bytes(part), token, what) as views:
                for (start, stop), view in zip(cuts, views, strict=True):
                    whole[start:stop] = view.view(part.dtype)
        else:
            sizes = [n * part.itemsize for n in counts]
            comm.all_gather(_as_bytes(part), _as_bytes(whole), sizes, token=token, what=what)
    comm.record("all_gather", whole.nbytes - part.nbytes, started)
    return whole


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return _memory.make_contiguous(array).view(np.uint8)


def gather_words(
    comm: Communicator,
    words: Sequence[int],
    token: int,
    what: object = "",
    error: Exception | None = None,
) -> list[list[int]]:
    """Return every rank's integers of 64 bits, in rank order; raise alike where a rank failed.

    All ranks have as many. A rank that has found an error passes it, with words that nobody reads,
    instead of raising it; then all ranks raise it. ``token`` and ``what`` are as in
    ``Communicator.views``.
    """
    n = len(words) + 1
    payload = struct.pack(f"{n}q", error is not None, *words)
    if comm.size == 1:
        if error is not None:
            raise error
        return [list(words)]
    everyone = np.frombuffer(join_states(comm, payload, token, what), np.int64)
    told = everyone.reshape(comm.size, n).tolist()
    for one in told:
        if one[0]:
            raise_failures(comm, error, what)
    return [one[1:] for one in told]


def exclusive_scan(
    comm: Communicator,
    state: np.ndarray,
    combine: np.ufunc,
    filled: Sequence[int],
    token: int,
    what: object = "",
) -> np.ndarray | None:
    """Return what the states of the ranks before this one come to; None where there are none.

    They are combined from left to right, so that the same states give the same bits whatever the
    number of bytes. ``filled`` are the ranks whose states count, ascending; the others' are not
    looked at. All have one shape and dtype, which ``combine`` keeps. ``token`` and ``what`` are as
    in ``Communicator.views``. What ``combine`` raises is raised once nothing is to be sent any
    more: where ranks may differ in it, they have to tell each other.
    """
    if comm.size == 1:
        return None
    before = [rank for rank in filled if rank < comm.rank]
    started = perf_counter()
    fold = _Fold(combine)
    result: np.ndarray | None
    with _log.pause_logs() if _log.recording() else nullcontext():
        if comm.size > _FEW_RANKS and state.nbytes * comm.size > FOLDED_BY_ALL:
            result, nbytes = _fold_parts(comm, state, fold, filled, token, what)
        elif state.nbytes > SMALL_BYTES and comm.reaches_all():
            with comm.views(state, token, what) as views:
                result = fold([views[rank] for rank in before])
            nbytes = len(before) * state.nbytes
        else:
            everyone, n = join_states(comm, state.tobytes(), token, what), state.nbytes
            places = [rank * n for rank in before]
            result = fold([np.ndarray(state.shape, state.dtype, everyone, i) for i in places])
            nbytes = (comm.size - 1) * state.nbytes
    comm.record("exclusive_scan", nbytes, started)
    if fold.error is not None:
        raise fold.error
    return result if before else None


class _Fold:
    """Combines states from left to right; what that raises is kept for the end of the exchange."""

    def __init__(self, combine: np.ufunc) -> None:
        self.combine = combine
        self.error: Exception | None = None

    def __call__(self, states: Sequence[np.ndarray]) -> np.ndarray | None:
        """Return a new array of what the states come to."""
        if len(states) < 2:
            return states[0].copy() if states else None
        return functools.reduce(self.pair, states)

    def pair(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return what two states come to."""
        try:
            return np.asarray(self.combine(a, b))
        except (ArithmeticError, Warning) as error:  # where np.errstate or a filter raises
            self.error = self.error or error
            with np.errstate(all="ignore"):
                return np.asarray(self.combine(a, b))

    def table(self, parts: Sequence[np.ndarray], filled: Sequence[int]) -> np.ndarray:
        """Return a row for each rank: what the parts of the ranks before it come to."""
        rows: np.ndarray = _memory.empty((len(parts), parts[0].size), parts[0].dtype)
        total: np.ndarray | None = None
        for rank, part in enumerate(parts):
            if total is not None:
                rows[rank] = total
            if rank in filled:
                total = part if total is None else self.pair(total, part)
        return rows


def _fold_parts(
    comm: Communicator,
    state: np.ndarray,
    fold: _Fold,
    filled: Sequence[int],
    token: int,
    what: object,
) -> tuple[np.ndarray, int]:
    """Fold one part of all states, for every rank, and take the others' parts of the own result.

    Returns that and the bytes taken from others.
    """
    flat = _memory.make_contiguous(state).reshape(-1)
    cuts = list(pairwise(chunk(flat.size, (comm.size,)).offsets))
    counts = [stop - start for start, stop in cuts]
    own = counts[comm.rank]
    result: np.ndarray = _memory.empty(state.shape, state.dtype)
    out = result.reshape(-1)
    if comm.reaches_all():
        mine = slice(*cuts[comm.rank])
        with comm.views(flat, token, what, closing=False) as views:
            table = fold.table([view[mine] for view in views], filled)
        with comm.views(table, token + 1, what) as tables:
            for (start, stop), rows in zip(cuts, tables, strict=True):
                out[start:stop] = rows[comm.rank]
    else:
        parts = _memory.empty((comm.size, own), state.dtype)
        owns = [own] * comm.size
        comm.all_to_all(flat, parts.reshape(-1), counts, owns, token=token, what=what)
        table = fold.table(list(parts), filled)
        comm.all_to_all(table.reshape(-1), out, owns, counts)
    return result, ((comm.size - 2) * own + flat.size) * state.itemsize
