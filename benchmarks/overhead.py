"""What one operation costs on blocks so small that the work itself is nothing.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.overhead``. Every rank has a block of
16 x 16 float64; NumPy does the same on the block alone. `x[i]` and `x[i:]` are turns of a loop over
a long array of one axis: no cache knows the next one.
"""

from __future__ import annotations

import gc
import itertools

import numpy as np
from mpi4py import MPI

from benchmarks import cases, contenders, measure

BASELINE = "NumPy"


def main() -> None:
    """Measure every small operation with every contender."""
    contenders.measure_all("overhead", lambda *_: cases.SMALL_OPERATIONS, _measure)


def _numpy(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> measure.Work:
    line, turns = np.arange(float(cases.LINE_SIZE)), itertools.cycle(range(cases.LINE_SIZE))
    works: dict[str, measure.Work] = {
        "x + y": lambda: x + y,
        "x * 2 + y": lambda: x * 2 + y,
        "x.T": lambda: x.T,
        "x[:, 3]": lambda: x[:, 3],
        "x @ R": lambda: x @ r,
        "float(x.sum())": lambda: float(x.sum()),
        "S0 -> S1": x.copy,
        "x[i]": lambda: line[next(turns)],
        "x[i:]": lambda: line[next(turns) :],
        "map_blocks": lambda: np.negative(x),
    }
    return works[name]


def _measure(comm: MPI.Comm, name: str, running: list, quick: bool) -> dict:
    """Measure one operation; check every contender's result first."""
    random = np.random.default_rng(comm.rank)
    rows = cases.SMALL_ROWS
    x, y = random.random((rows, rows)), random.random((rows, rows))
    r = np.random.default_rng(100).random((rows, rows))
    works = {BASELINE: _numpy(name, x, y, r)}
    expected = works[BASELINE]()
    if name == "float(x.sum())":
        expected = comm.allreduce(expected)
    for module in running:
        work = module.operation(name, x, y, r)
        if work is not None:
            result = work()
            if name not in ("S0 -> S1", "x[i:]"):
                result = result if isinstance(result, float) else module.local(result)
                if not np.allclose(result, expected, rtol=1e-12):
                    raise ValueError(f"{module.NAME}: wrong value of {name}")
            works[module.NAME] = work
    gc.collect()
    samples = measure.in_turn(
        comm, works, repeats=5 if quick else 21, batch_seconds=0.005 if quick else 0.02
    )
    return {
        "ranks": comm.size,
        "case": name,
        "size": f"{rows} x {rows} a rank",
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }


if __name__ == "__main__":
    main()
