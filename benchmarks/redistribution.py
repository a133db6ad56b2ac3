"""Redistribution from layout to layout, as a multiple of a plain copy of one rank's block.

The limit is the faster of two loops, NumPy's and the streaming kernels', that read and write as
many bytes in the rank's own memory: what is left of a move where neighbours cost nothing. Kernels
are compiled and chosen before anything is timed; `first_calls` times what comes before. Run by the
driver as ``mpiexec -n RANKS python -m benchmarks.redistribution``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from benchmarks import by_distarray, by_hand, cases, contenders, measure
from distarray.comm import copy_box, reduce_into
from distarray.comm.kernels import compiling_at_once

SMALL_SIZES = (16, 64)
LARGE_SIZE = 8192
BASELINE = "plain copy"
LIMIT = "limit"
_TRIALS = 7
"""Calls after which a kernel is chosen, or NumPy."""


def main() -> None:
    """Measure every move at every size with every contender."""
    with compiling_at_once():
        contenders.measure_all("redistribution", _moves, _measure)


def _moves(ranks: int, quick: bool) -> list[cases.Move]:
    sizes = (*SMALL_SIZES, LARGE_SIZE // 8 if quick else LARGE_SIZE)
    return [case for size in sizes for case in cases.moves(ranks, size)]


def _measure(comm: MPI.Comm, case: cases.Move, running: list, quick: bool) -> dict:
    """Measure one move; check every contender's result first."""
    block = case.block(comm.rank)
    piece = np.ones(case.shape[0] * case.shape[1] // comm.size)
    copied = np.zeros_like(piece)
    works = {BASELINE: lambda: np.copyto(copied, piece)}
    for module in running:
        work = module.move(case, block)
        if work is not None:
            case.check(module.local(work()), comm.rank)
            for _ in range(_TRIALS if module is by_distarray else 0):
                work()
            works[module.NAME] = work
    large = case.shape[0] > max(SMALL_SIZES)
    if large:
        works[LIMIT] = _fastest(comm, _in_own_memory(case, comm.rank))
    gc.collect()
    samples = measure.in_turn(
        comm,
        works,
        repeats=3 if quick else 11,
        batch_seconds=0.0 if large else 0.02,
    )
    return {
        "ranks": comm.size,
        "case": case.name,
        "size": f"{case.shape[0]} x {case.shape[1]}",
        "seconds": {name: measure.summary(values) for name, values in samples.items()},
    }


def _in_own_memory(case: cases.Move, rank: int) -> list[measure.Work]:
    """List loops that read and write what a move does: results, and all parts of a rank's share."""
    rows, columns = case.box(case.target, rank)
    out = np.zeros((rows.stop - rows.start) * (columns.stop - columns.start))
    parts = case.ranks if "P" in case.source else 1
    share = len(out) // parts if "R" in case.target else len(out)
    sources = [np.ones(share) for _ in range(parts)]
    source = np.ones(len(out) - share if parts > 1 else len(out))

    def run(reduce: Callable[..., object], copy: Callable[..., object]) -> np.ndarray:
        if parts > 1:
            reduce(out[:share], sources)
        if len(source):
            copy(out[-len(source) :], source)
        return out

    def reduce_by_kernel(dst: np.ndarray, sources: list[np.ndarray]) -> None:
        reduce_into(dst, sources, "sum", total=out.nbytes)

    def copy_by_kernel(dst: np.ndarray, source: np.ndarray) -> None:
        copy_box(dst, source, total=out.nbytes)

    return [lambda: run(_add, np.copyto), lambda: run(reduce_by_kernel, copy_by_kernel)]


def _add(out: np.ndarray, sources: list[np.ndarray]) -> None:
    """Add up by NumPy, in pieces that stay in a core's own cache."""
    for start in range(0, len(out), by_hand.PIECE):
        piece = slice(start, start + by_hand.PIECE)
        np.add(sources[0][piece], sources[1][piece], out=out[piece])
        for source in sources[2:]:
            out[piece] += source[piece]


def _fastest(comm: MPI.Comm, works: list[measure.Work]) -> measure.Work:
    """Choose the work that takes least time, the same on every rank."""
    samples = measure.in_turn(comm, {str(at): work for at, work in enumerate(works)}, repeats=3)
    return works[int(min(samples, key=lambda at: min(samples[at])))]


if __name__ == "__main__":
    main()
