"""Redistribution from layout to layout, as a multiple of a plain copy of one rank's block.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.redistribution``.
"""

from __future__ import annotations

import gc

import numpy as np
from mpi4py import MPI

from benchmarks import cases, contenders, measure

SMALL_SIZES = (16, 64)
LARGE_SIZE = 8192
BASELINE = "plain copy"


def main() -> None:
    """Measure every move at every size with every contender."""
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
            works[module.NAME] = work
    gc.collect()
    large = case.shape[0] > max(SMALL_SIZES)
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


if __name__ == "__main__":
    main()
