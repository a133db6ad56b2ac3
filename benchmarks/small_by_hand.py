"""What a good engineer writes with mpi4py for one small operation: buffers and results reused.

Arrays are split over their rows, evenly, and every result is checked against the library's block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.measure import Work


def work(name: str, x: np.ndarray, y: np.ndarray, turns: Any) -> Work | None:
    """Return one call of what a row of `SMALL_FUNCTIONS` does; None where nothing is exchanged."""
    comm = MPI.COMM_WORLD
    rows = np.arange(len(x) * comm.size)
    match name:
        case "xp.concat([x, y])":
            return _rows(comm, [x, y], [*rows, *(rows + len(rows))])
        case "xp.tile(x, (2, 1))":
            return _rows(comm, [x], [*rows, *rows])
        case "xp.roll(x, 1, 0)":
            return _rows(comm, [x], [*np.roll(rows, 1)])
        case "xp.take(x, [1, 2], axis=0)":
            return _rows(comm, [x], [1, 2])
        case "xp.roll(x, 1)":
            return _roll_flat(comm, x)
        case "xp.flip(x, axis=0)":
            return _flip(comm, x)
        case "xp.diff(x, axis=0)":
            return _diff(comm, x)
        case "x[3]":
            return _row(comm, x, 3)
        case "x.mean(0)" | "x.std(0)" | "x.var(0)" | "x.std()":
            return _moment(comm, x, name)
        case "x.argmax()":
            return _argmax(comm, x.reshape(-1, 1))
        case "x.argmax(0)":
            return _argmax(comm, x)
        case "x.cumsum(0)":
            return _cumsum(comm, x)
        case "xp.linalg.norm(x)":
            return _total(comm, lambda: np.vdot(x, x), np.sqrt)
        case "float(xp.ones(next(turns) % 4096 + 1).sum())":
            return _total(comm, lambda: _part_of_ones(comm, next(turns) % 4096 + 1), float)
        case "x[x > 0.5]":
            return _select(comm, x)
        case "xp.sort(x[:, 0])":
            return _gathered(comm, x[:, 0], np.sort)
        case "xp.argsort(x[:, 0])":
            return _gathered(comm, x[:, 0], np.argsort)
        case "xp.unique(x)":
            return _gathered(comm, x, np.unique)
        case "xp.median(x)":
            return _gathered(comm, x, np.median)
        case "xp.percentile(x, 30)":
            return _gathered(comm, x, lambda whole: np.percentile(whole, 30))
    return None


def _rows(comm: MPI.Comm, blocks: Sequence[np.ndarray], order: Sequence[int]) -> Work:
    """Make an array of rows of several: rows that lie one after another go as one message."""
    share, length = -(-len(order) // comm.size), len(blocks[0])
    runs: list[list[int]] = []  # giver, taker, array, row there, row here, count
    for target, source in enumerate(order):
        array, row = divmod(int(source), length * comm.size)
        found = [row // length, target // share, array, row % length, target % share]
        if runs and runs[-1][:3] == found[:3] and runs[-1][3] + runs[-1][5] == found[3]:
            runs[-1][5] += 1
        else:
            runs.append([*found, 1])
    out = np.zeros((max(0, min(share, len(order) - share * comm.rank)), *blocks[0].shape[1:]))
    sends, receives, copies = [], [], []
    for tag, (giver, taker, array, row, place, count) in enumerate(runs):
        if giver == taker == comm.rank:
            copies.append((out[place : place + count], blocks[array][row : row + count]))
        elif giver == comm.rank:
            sends.append((blocks[array][row : row + count], taker, tag))
        elif taker == comm.rank:
            receives.append((out[place : place + count], giver, tag))

    def exchange() -> np.ndarray:
        requests = [comm.Irecv(*one) for one in receives]
        requests += [comm.Isend(*one) for one in sends]
        for target, source in copies:
            target[...] = source
        MPI.Request.Waitall(requests)
        return out

    return exchange


def _roll_flat(comm: MPI.Comm, x: np.ndarray) -> Work:
    out, flat = np.zeros_like(x), x.reshape(-1)
    line = out.reshape(-1)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def roll() -> np.ndarray:
        comm.Sendrecv(flat[-1:], after, 0, line[:1], before)
        line[1:] = flat[:-1]
        return out

    return roll


def _flip(comm: MPI.Comm, x: np.ndarray) -> Work:
    out, theirs, other = np.zeros_like(x), np.zeros_like(x), comm.size - 1 - comm.rank

    def flip() -> np.ndarray:
        comm.Sendrecv(x, other, 0, theirs, other)
        out[...] = theirs[::-1]
        return out

    return flip


def _diff(comm: MPI.Comm, x: np.ndarray) -> Work:
    """Subtract rows, the last one from the first of the next rank."""
    extended = np.zeros((len(x) + 1, x.shape[1]))
    before = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    after = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    rows = len(x) + (after != MPI.PROC_NULL)

    def diff() -> np.ndarray:
        extended[:-1] = x
        comm.Sendrecv(x[0], before, 0, extended[-1], after)
        return np.diff(extended[:rows], axis=0)

    return diff


def _row(comm: MPI.Comm, x: np.ndarray, row: int) -> Work:
    out = np.zeros_like(x[0])

    def bring() -> np.ndarray:
        if comm.rank == 0:
            out[...] = x[row]
        comm.Bcast(out)
        return out

    return bring


def _moment(comm: MPI.Comm, x: np.ndarray, name: str) -> Work:
    """Add up sums, then squares of differences from the mean."""
    axis = None if name == "x.std()" else 0
    count = (x.size if axis is None else len(x)) * comm.size
    total = np.zeros(() if axis is None else x.shape[1])

    def mean() -> np.ndarray:
        comm.Allreduce(np.asarray(x.sum(axis)), total)
        return total / count

    def variance() -> np.ndarray:
        difference = x - mean()
        difference *= difference
        comm.Allreduce(np.asarray(difference.sum(axis)), total)
        return total / count

    return {"mean": mean, "var": variance}.get(name[2:-3], lambda: np.sqrt(variance()))


def _argmax(comm: MPI.Comm, x: np.ndarray) -> Work:
    """Gather the greatest items and their places, and choose."""
    own = np.zeros((2, x.shape[1]))
    everyone = np.zeros((comm.size, *own.shape))
    columns = np.arange(x.shape[1])

    def argmax() -> np.ndarray:
        places = x.argmax(0)
        own[0], own[1] = x[places, columns], places + len(x) * comm.rank
        comm.Allgather(own, everyone)
        found = everyone[everyone[:, 0].argmax(0), 1, columns].astype(np.int64)
        return found if len(columns) > 1 else found[0]

    return argmax


def _cumsum(comm: MPI.Comm, x: np.ndarray) -> Work:
    before = np.zeros(x.shape[1])

    def cumsum() -> np.ndarray:
        sums = x.cumsum(0)
        comm.Exscan(sums[-1], before)
        sums += before  # of nothing on the first rank
        return sums

    return cumsum


def _total(comm: MPI.Comm, part: Work, finish: Callable[[Any], Any] = np.asarray) -> Work:
    total = np.zeros(())

    def reduce() -> Any:
        total[()] = part()
        comm.Allreduce(MPI.IN_PLACE, total)
        return finish(total)

    return reduce


def _part_of_ones(comm: MPI.Comm, count: int) -> float:
    share = -(-count // comm.size)
    return np.ones(max(0, min(share, count - share * comm.rank))).sum()


def _select(comm: MPI.Comm, x: np.ndarray) -> Work:
    counts = np.zeros(comm.size, np.int64)

    def select() -> np.ndarray:
        chosen = x[x > 0.5]
        comm.Allgather(np.array(len(chosen)), counts)
        return chosen

    return select


def _gathered(comm: MPI.Comm, block: np.ndarray, function: Callable[[Any], Any]) -> Work:
    """Gather all items, and take this rank's part of what a function makes of them."""
    whole = np.zeros((comm.size, block.size))

    def call() -> np.ndarray:
        comm.Allgather(np.ascontiguousarray(block), whole)
        result = function(whole.reshape(-1))
        if result.ndim == 0:
            return result
        share = -(-len(result) // comm.size)
        return result[share * comm.rank : share * (comm.rank + 1)]

    return call
