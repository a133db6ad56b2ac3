"""Ragged exchange of rows: every rank sends rows of its block to others, or takes rows of theirs.

How many go where only their sender knows, or only who asks for them. Where all ranks read each
other's blocks in place, every row is copied once, from its owner's block into the result; of small
blocks all of each travels, in one round, and so it does where most rows are wanted, of up to 2 MiB
or of no more bytes than these. Else rows travel packed, and what is asked of a rank several times
travels once; of few rows all ranks are told which each wants.

A call is one communication of the log, "rows", with the bytes of the rows taken from others, also
where more travels, of such blocks; numbers of rows are not counted. A rank that finds its own
arguments wrong passes the error instead of raising it: then all ranks raise it, before a row moves
(of small blocks, with them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend, _log, _memory
from distarray.comm._agreement import raise_failures
from distarray.comm._collectives import split_parts
from distarray.comm._communicator import Communicator
from distarray.comm._grouping import Blocks, Parcels, group_numbers, take_rows, take_rows_of_all
from distarray.comm._states import gather_words
from distarray.errors import OutOfMemoryError
from distarray.typing import Buffer

_PACKED_BYTES: Final = 16
"""Rows up to this size are put in order by their sender: with their numbers, of 8 bytes, receivers
would read as much, and from all over the block."""

_FAILED: Final = -1
"""In place of a count: this rank has an error."""

_HEADER_BYTES: Final = 16
"""Bytes before a small block in its message: so many suit all data types."""

_HEADERS: Final = bytes(_HEADER_BYTES), b"\1".ljust(_HEADER_BYTES, b"\0")
"""Of a rank without an error, and with one."""

_FEW_ROWS: Final = 4096
"""Between nodes all ranks are told which rows each wants, up to so many of all together.

Measured on two ranks of Zen 5 over MPICH 5: 200 take 52 us instead of 125, 4000 take 98 instead of
162, to ask only owners."""

_GATHERED_BYTES: Final = 2 << 20
"""Between nodes all blocks of so many bytes together may go to all ranks: a bound of memory, and of
what that costs on networks slower than the one of `_ASKED_BYTES`."""

_ASKED_BYTES: Final = 64
"""They do, where these are not that many times the rows wanted, and the bytes of these. So do more
bytes of rows that are not longer, where a rank wants as many as there are: in no more memory than
the result takes.

To ask for a row takes as long as to move 100 bytes: 20 ns on Zen 5 over MPICH 5, on two ranks."""

_TABLE_FACTOR: Final = 8
"""Row numbers that span at most so many times their count are deduplicated by a table."""


def push_rows(
    comm: Communicator,
    rows: Sequence[Buffer],
    parcels: Parcels,
    token: int,
    what: object = "",
    error: Exception | None = None,
    *,
    packed: int = 0,
    into: Buffer | None = None,
) -> tuple[list[Buffer], np.ndarray]:
    """Send rows to the ranks that they are for, and return what the others have sent.

    Parameters
    ----------
    comm : Communicator
    rows : sequence of Buffer
        At least one block of any strides, all of one length, on one device; the same parcels are
        cut of each.
    parcels : Parcels
        Of the rows for each rank.
    token, what
        As in ``Communicator.views``; below 2**62 less the number of blocks.
    error : Exception, optional
        What this rank has found wrong; then its parcels are not looked at.
    packed : int
        How many of the blocks, the first ones, lie in the order of the parcels already.
    into : Buffer, optional
        Where the rows received of the last block go, instead of to a new array: at the numbers,
        int64, that those of the first block are; the last of equal numbers wins. It is C-contiguous
        and shares no memory with any rank's `rows`: others may still read them.

    Returns
    -------
    received : list of Buffer
        For each block the rows received, by sender in rank order, and as each has sent them; but
        for the last one where they went `into` another.
    offsets : ndarray
        Where the rows of each sender begin, and the end of the last.
    """
    started = perf_counter()
    if error is not None:
        if comm.size == 1:
            raise error
        parcels = Parcels(np.zeros(comm.size + 1, np.int64), None)
    if comm.size == 1:
        received = [
            _copy_rows(block, slice(None) if i < packed else parcels.part(0))
            for i, block in enumerate(rows[: len(rows) - (into is not None)])
        ]
        if into is not None:
            take_rows(rows[-1], parcels.part(0), into, received[0])
        return received, np.array([0, parcels.size], np.int64)
    in_place = comm.reaches_all() and comm.reaches_all(_kind(rows))
    with _log.pause_logs():
        push = _push_in_place if in_place else _push_messages
        received, offsets = push(comm, rows, parcels, token, what, error, packed, into)
    own = int(offsets[comm.rank + 1] - offsets[comm.rank])
    nbytes = sum(_row_bytes(block) for block in rows) * (int(offsets[-1]) - own)
    comm.record("rows", nbytes, started)
    return received, offsets


def pull_rows(
    comm: Communicator,
    rows: Buffer,
    blocks: Blocks,
    number: np.ndarray,
    token: int,
    what: object = "",
    *,
    out: Buffer | None = None,
    error: Exception | None = None,
    alike: bool = False,
    known: Callable[[int], np.ndarray] | None = None,
    most: int | None = None,
) -> Buffer:
    """Return rows of all ranks' blocks.

    Parameters
    ----------
    comm : Communicator
    rows : Buffer
        This rank's block, of any strides; others' have as many axes and the same lengths but for
        the first.
    blocks : Blocks
        How many rows each rank has.
    number : ndarray
        int64: of the rows wanted, in the blocks of all ranks, one after another.
    token, what, error
        As for `push_rows`.
    out : Buffer, optional
        Where they go, on the device of the block; by default to a new array.
    alike : bool
        Whether no rank can find an error that others do not find: then none passes one.
    known : callable, optional
        Gives the numbers of the rows that a rank wants, where each rank can tell those of all: then
        no rank has to ask for its own.
    most : int, optional
        How many rows a rank wants at most, the same on all ranks, where that is known.
    """
    started, logs = perf_counter(), _log.recording()
    if error is not None:
        if comm.size == 1:
            raise error
        number = number[:0]
    if out is None:
        out = _memory.empty((len(number), *rows.shape[1:]), rows.dtype, _backend.device_of(rows))
    if comm.size == 1:
        take_rows(rows, number, out)
        return out
    pull = _Pull(comm, rows, blocks, number, out, token, what, error)
    if pull.of_small_blocks():
        if logs:
            comm.record("rows", pull.count_others(number) * _row_bytes(rows), started)
        return out
    kind = _kind([rows])
    in_place = comm.reaches_all() and (kind == "cpu" or comm.reaches_all(kind))
    gathers = not in_place and kind == "cpu" and pull.gathers(most or 0)
    with _log.pause_logs():
        if (in_place or gathers) and not alike:
            gather_words(comm, (), token, what, error)
        if in_place:
            with comm.views(rows, token + 1, what) as views:
                count = len(number) - take_rows_of_all(views, blocks, number, out, comm.rank)
        elif gathers:
            pull.of_all_blocks()
            count = pull.count_others(np.unique(number)) if logs else 0
        elif known is not None:
            count = pull.by_wants([known(rank) for rank in range(comm.size)], token)
        else:
            wants = pull.tell_all(most)
            count = pull.by_asking() if wants is None else pull.by_wants(wants, token + 1)
    comm.record("rows", count * _row_bytes(rows), started)
    return out


def ask_owners(
    comm: Communicator,
    questions: Sequence[Buffer],
    parcels: Parcels,
    answer: Callable[[list[Buffer]], Buffer],
    token: int,
    what: object = "",
) -> Buffer:
    """Return the owners' answers, one row for each question, in the order of the questions.

    Parameters
    ----------
    comm : Communicator
    questions : sequence of Buffer
        Arrays of one length, a row of each for a question.
    parcels : Parcels
        Of the questions for each rank: each goes to one.
    answer : callable
        Gives for questions, as in `push_rows`, as many rows, of one dtype and row shape on all
        ranks. What it raises all ranks raise.
    token, what
        As for `push_rows`.
    """
    received, offsets = push_rows(comm, questions, parcels, token, what)
    failed: Exception | None = None
    answers: Buffer = received[0][:0]
    try:
        answers = answer(received)
    except Exception as raised:
        failed = raised
    back = Parcels(offsets, None)
    (found,), _ = push_rows(comm, [answers], back, token + len(questions) + 1, what, failed)
    if parcels.order is None:
        return found
    out = _memory.empty(found.shape, found.dtype, _backend.device_of(found))
    take_rows(found, slice(None), out, parcels.order)
    return out


# --- in place ------------------------------------------------------------------------------------


def _push_in_place(
    comm: Communicator,
    rows: Sequence[Buffer],
    parcels: Parcels,
    token: int,
    what: object,
    error: Exception | None,
    packed: int,
    into: Buffer | None,
) -> tuple[list[Buffer], np.ndarray]:
    """Let every rank take what is for it from the others' blocks.

    Two contexts of ``views`` are never nested: what a slot holds is written again two rounds later.
    """
    size, rank = comm.size, comm.rank
    offered = list(rows)
    order = parcels.order
    packs = [i < packed or _row_bytes(block) <= _PACKED_BYTES for i, block in enumerate(rows)]
    try:
        if order is not None:
            for i, block in enumerate(rows):
                if packs[i] and i >= packed:
                    offered[i] = _copy_rows(block, order)
            if all(packs):
                order = None
        n = 0 if order is None else len(order)
        head = _memory.empty((size + 2 + n,), np.int64)
    except OutOfMemoryError as lacking:
        error, n = lacking, 0
        head = np.empty(size + 2, np.int64)
    head[0] = error is not None
    head[1 : size + 2] = 0 if error is not None else parcels.offsets
    if n:
        head[size + 2 :] = order
    cuts: list[slice] = []
    orders: list[np.ndarray | None] = []
    with comm.views(head, token, what, closing=False) as heads:
        failed = any(theirs[0] for theirs in heads)
        for theirs in heads:
            cut = slice(int(theirs[1 + rank]), int(theirs[2 + rank]))
            numbers = theirs[size + 2 :]
            cuts.append(cut)
            orders.append(numbers[cut].astype(np.intp) if len(numbers) else None)
    if failed:
        raise_failures(comm, error, what)
    offsets = _offsets([cut.stop - cut.start for cut in cuts])
    received = []
    for i, block in enumerate(offered):
        last = i == len(offered) - 1
        with comm.views(block, token + 1 + i, what, closing=last) as views:
            if into is not None and last:
                out: Buffer = into
            else:
                shape = (int(offsets[-1]), *block.shape[1:])
                out = _memory.empty(shape, block.dtype, _backend.device_of(block))
                received.append(out)
            for sender, view in enumerate(views):
                numbered = orders[sender]
                which = cuts[sender] if packs[i] or numbered is None else numbered
                stretch = slice(offsets[sender], offsets[sender + 1])
                if out is into:
                    take_rows(view, which, out, received[0][stretch])
                else:
                    take_rows(view, which, out[stretch])
    return received, offsets


# --- by messages ---------------------------------------------------------------------------------


def _push_messages(
    comm: Communicator,
    rows: Sequence[Buffer],
    parcels: Parcels,
    token: int,
    what: object,
    error: Exception | None,
    packed: int,
    into: Buffer | None,
) -> tuple[list[Buffer], np.ndarray]:
    """Send packed rows, after their counts."""
    counts = np.diff(parcels.offsets).astype(np.int64, copy=False)
    received_counts = _exchange_words(comm, counts[:, None], token, what, error)[:, 0].tolist()
    received = []
    for i, block in enumerate(rows):
        if parcels.order is None or i < packed:
            sent = _memory.make_contiguous(block[: parcels.size])
        else:
            sent = _copy_rows(block, parcels.order)
        received.append(_exchange_rows(comm, sent, counts.tolist(), received_counts))
    if into is not None:
        take_rows(received.pop(), slice(None), into, received[0])
    return received, _offsets(received_counts)


def _are_first(ordered: np.ndarray) -> np.ndarray:
    """Tell of sorted numbers which differ from the one before."""
    found = np.empty(len(ordered), bool)
    found[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=found[1:])
    return found


class _DistinctRows:
    """Row numbers of one owner's, each once.

    Attributes
    ----------
    count
        How many different ones they are.
    numbers
        These.
    inverse
        For each wanted row its place among these; None where they lie so.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        self.inverse: np.ndarray | None = None
        distinct = numbers
        if not (numbers[1:] > numbers[:-1]).all():
            span = int(numbers.max()) + 1
            if span <= _TABLE_FACTOR * numbers.size:
                flags = np.zeros(span, bool)
                flags[numbers] = True
                distinct = np.flatnonzero(flags)
                table = np.empty(span, np.intp)
                table[distinct] = np.arange(distinct.size)
                self.inverse = _copy_rows(table, numbers)
            else:
                distinct, self.inverse = np.unique(numbers, return_inverse=True)
        self.count, self.numbers = distinct.size, distinct

    def message(self) -> tuple[int, np.ndarray]:
        """Return the numbers as bytes, and what these are.

        That is 1 for one bit for each row of the block, 4 or 8 for integers of so many bytes.
        """
        numbers = self.numbers
        span = int(numbers[-1]) + 1 if self.count else 0
        form = 4 if span <= 1 << 32 else 8
        if (span + 7) // 8 < form * self.count:
            flags = np.zeros(span, bool)
            flags[numbers] = True
            return 1, np.packbits(flags)
        return form, numbers.astype(f"u{form}").view(np.uint8)


def _decoded(data: np.ndarray, form: int) -> np.ndarray:
    """Return the row numbers of a message."""
    if form == 1:
        return np.flatnonzero(np.unpackbits(data).view(bool))
    return np.frombuffer(data.tobytes(), f"u{form}").astype(np.intp)


def _exchange_words(
    comm: Communicator, words: np.ndarray, token: int, what: object, error: Exception | None
) -> np.ndarray:
    """Return each rank's row for this one, of counts first; raise alike where one has an error."""
    if error is not None:
        words = np.full_like(words, _FAILED)
    theirs = np.empty_like(words)
    comm.all_to_all(np.ascontiguousarray(words), theirs, token=token, what=what)
    if (theirs[:, 0] == _FAILED).any():
        raise_failures(comm, error, what)
    return theirs


def _exchange_rows(
    comm: Communicator,
    packed: Buffer,
    sent: Sequence[int],
    received: Sequence[int],
    token: int | None = None,
    what: object = "",
) -> Buffer:
    """Send packed rows, so many to each rank, and return what comes, so many of each."""
    width = prod(packed.shape[1:])
    shape = (sum(received), *packed.shape[1:])
    out = _memory.empty(shape, packed.dtype, _backend.device_of(packed))
    if token is not None and comm.sends_parts and _backend.is_numpy(packed):
        comm.all_to_all_parts(split_parts(packed, sent), split_parts(out, received), token, what)
        return out
    counts = [n * width for n in sent], [n * width for n in received]
    comm.all_to_all(packed.reshape(-1), out.reshape(-1), *counts, token=token, what=what)
    return out


class _Pull(NamedTuple):
    """One call of `pull_rows`, and the ways in which rows come by messages."""

    comm: Communicator
    rows: Buffer
    blocks: Blocks
    number: np.ndarray
    out: Buffer
    token: int
    what: object
    error: Exception | None

    def count_others(self, number: np.ndarray) -> int:
        """Return how many rows are those of other ranks."""
        return int(np.count_nonzero(self.blocks.divide(number)[0] != self.comm.rank))

    def _exchange_small(self, mine: np.ndarray, most: int) -> Sequence[Any] | None:
        """Return what all ranks tell, after a header, in messages of so many bytes at most.

        None where these are too long; raise alike where one has an error.
        """
        payload = _HEADERS[self.error is not None] + mine.tobytes()
        nbytes = _HEADER_BYTES + most
        told = self.comm.exchange_small(payload, self.token, self.what, nbytes)
        if told is not None and any(map(itemgetter(0), told)):
            with _log.pause_logs():
                raise_failures(self.comm, self.error, self.what)
        return told

    def of_small_blocks(self) -> bool:
        """Take rows of blocks that travel whole, each in one message to all; False of others."""
        rows, blocks = self.rows, self.blocks
        most = blocks.longest * _row_bytes(rows)
        if not _backend.is_numpy(rows) or _HEADER_BYTES + most > self.comm.short_bytes:
            return False
        told = self._exchange_small(rows, most)
        if told is None:
            return False
        if self.out.size:
            shape = blocks.size, *rows.shape[1:]
            everything = b"".join([one[_HEADER_BYTES:] for one in told])
            np.take(np.ndarray(shape, rows.dtype, everything), self.number, 0, self.out, "clip")
        return True

    def gathers(self, most: int) -> bool:
        """Tell whether all rows go to all ranks, as to ask for so many of them takes longer."""
        row = _row_bytes(self.rows)
        count = self.blocks.size
        if row <= _ASKED_BYTES and count <= most:
            return True
        return count * row <= min(_GATHERED_BYTES, most * (_ASKED_BYTES + row))

    def of_all_blocks(self) -> None:
        """Gather all blocks, and take rows of them."""
        row = self.rows.shape[1:]
        everything = _memory.empty((self.blocks.size, *row), self.rows.dtype)
        counts = (self.blocks.lengths * prod(row)).tolist()
        own, flat = _memory.make_contiguous(self.rows).reshape(-1), everything.reshape(-1)
        self.comm.all_gather(own, flat, counts, token=self.token + 1, what=self.what)
        take_rows(everything, self.number, self.out)

    def tell_all(self, most: int | None) -> list[np.ndarray] | None:
        """Return which rows all ranks want, where they are few; None of others."""
        if most is None or most * self.comm.size > _FEW_ROWS:
            return None
        told = self._exchange_small(self.number, self.number.itemsize * most)
        if told is None:
            return None
        return [np.frombuffer(one, self.number.dtype, offset=_HEADER_BYTES) for one in told]

    def by_wants(self, everyone: list[np.ndarray], token: int) -> int:
        """Send each rank what it is known to want, once; return how many rows come."""
        rank, blocks, number = self.comm.rank, self.blocks, self.number
        order = number.argsort(kind="stable")
        ordered = number[order]
        are_first = _are_first(ordered)
        which = np.empty_like(order)
        which[order] = are_first.cumsum() - 1
        distinct = ordered[are_first]
        ends = distinct.searchsorted(blocks.offsets).tolist()
        counts = [b - a for a, b in pairwise(ends)]
        start, stop = blocks.offsets[rank : rank + 2].tolist()
        asked = []
        for i, theirs in enumerate(everyone):
            if i == rank:
                here = distinct[ends[rank] : ends[rank + 1]]
            else:
                here = theirs[(theirs >= start) & (theirs < stop)]
                here.sort()
                here = here[_are_first(here)]
            asked.append(here - start)
        packed = _copy_rows(self.rows, np.concatenate(asked))
        got = _exchange_rows(self.comm, packed, [*map(len, asked)], counts, token, self.what)
        take_rows(got, which, self.out)
        return len(distinct) - counts[rank]

    def by_asking(self) -> int:
        """Send what is wanted of each rank, once, and get that; return how many rows come."""
        size, rank = self.comm.size, self.comm.rank
        parcels, place = group_numbers(self.blocks, self.number)
        nothing = _DistinctRows(np.empty(0, np.intp))
        wanted = [nothing if i == rank else _DistinctRows(parcels.part(i)) for i in range(size)]
        counts = [one.count for one in wanted]
        asked = self._ask(wanted)
        packed = _copy_rows(self.rows, np.concatenate(asked))
        got = _exchange_rows(self.comm, packed, [*map(len, asked)], counts)
        starts = _offsets(counts)
        for i, one in enumerate(wanted):
            source, which = got[starts[i] : starts[i + 1]], one.inverse
            if i == rank:
                source, which = self.rows, parcels.part(i)
            there = place[slice(*parcels.bounds(i))]
            take_rows(source, slice(None) if which is None else which, self.out, there)
        return sum(counts)

    def _ask(self, wanted: Sequence[_DistinctRows]) -> list[np.ndarray]:
        """Tell each rank which of its rows are wanted, and return which the others want."""
        messages = [one.message() for one in wanted]
        words = np.array([(data.size, form) for form, data in messages], np.int64)
        asked = _exchange_words(self.comm, words, self.token, self.what, self.error)
        data = np.concatenate([data for _, data in messages])
        sizes = asked[:, 0].tolist()
        requests = np.empty(sum(sizes), np.uint8)
        self.comm.all_to_all(data, requests, words[:, 0].tolist(), sizes)
        parts = zip(split_parts(requests, sizes), asked[:, 1].tolist(), strict=True)
        return [_decoded(*one) for one in parts]


# --- rows of one block ---------------------------------------------------------------------------


def _kind(rows: Sequence[Buffer]) -> str:
    return _backend.kind_of(_backend.device_of(rows[0]))


def _row_bytes(block: Buffer) -> int:
    return block.itemsize * prod(block.shape[1:])


def _offsets(counts: Any) -> np.ndarray:
    """Return where each part begins, and the end of the last."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _copy_rows(block: Buffer, which: Any) -> Buffer:
    """Return a copy of rows, given by a slice or their numbers."""
    count = len(range(*which.indices(len(block)))) if isinstance(which, slice) else len(which)
    out = _memory.empty((count, *block.shape[1:]), block.dtype, _backend.device_of(block))
    take_rows(block, which, out)
    return out
