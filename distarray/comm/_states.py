"""Exchange of small states: every rank's to all of them, in rank order, as one communication.

Ranks that are about to do different things find out in the exchange itself, from its token. What
went wrong on one rank travels with the words that it would have sent, so that nobody waits for it
and all raise alike.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from distarray.comm import _log, _memory
from distarray.comm._agreement import raise_failures
from distarray.comm._communicator import Communicator


def gather_states(
    comm: Communicator, mine: np.ndarray, token: int, what: object = ""
) -> np.ndarray:
    """Return every rank's bytes, one row for each, in rank order.

    ``mine`` is uint8 of the same length on all ranks. ``token`` and ``what`` are as in
    ``Communicator.views``. Nobody else writes to the result.
    """
    if comm.size == 1:
        return mine.reshape(1, -1).copy()
    started = perf_counter()
    small = comm.exchange_small(mine.data, token, what)
    if small is not None:
        everyone = np.frombuffer(bytearray().join(small), np.uint8).reshape(comm.size, -1)
    else:
        everyone = _memory.empty((comm.size, mine.size), np.uint8)
        with _log.unrecorded():
            if comm.reaches_all():
                with comm.views(mine, token, what) as views:
                    for row, view in zip(everyone, views, strict=True):
                        row[...] = view
            else:
                comm.agree(token, what)
                comm.all_gather(mine, everyone.reshape(-1))
    if _log.recording():
        nbytes = everyone.nbytes - mine.nbytes
        _log.record("all_gather", comm.name, nbytes, perf_counter() - started)
    return everyone


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
    started = perf_counter()
    small = comm.exchange_small(payload, token, what)
    if small is not None:
        told = [memoryview(one).cast("q").tolist() for one in small]
        if _log.recording():
            nbytes = (comm.size - 1) * len(payload)
            _log.record("all_gather", comm.name, nbytes, perf_counter() - started)
    else:
        states = gather_states(comm, np.frombuffer(payload, np.uint8), token, what)
        told = states.view(np.int64).tolist()
    for one in told:
        if one[0]:
            raise_failures(comm, error, what)
    return [one[1:] for one in told]
