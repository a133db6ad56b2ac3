"""Operations on arrays far larger than any cache, repeated as a program would.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.large``. The arrays have 64 Mi float64
(8192 x 8192) over all ranks; the matrix products are of 4096 x 4096. Kernels are compiled before
anything is timed, as for redistribution. The baseline is the version written by hand; NumPy alone
does the whole on one process while the others wait.
"""

from __future__ import annotations

import gc

import numpy as np
from mpi4py import MPI

from benchmarks import by_hand, cases, contenders, measure
from distarray.comm.kernels import compiling_at_once

BASELINE = "by hand"
FRESH = "by hand, fresh memory"
ALONE = "NumPy alone"
PLAIN = {
    "x + y": lambda x, y: x + y,
    "sqrt(x) * y + 1": lambda x, y: np.sqrt(x) * y + 1,
    "((x - 0.5) ** 2).sum()": lambda x, _: ((x - 0.5) ** 2).sum(),
}
"""NumPy's expressions of blocks, which take fresh memory for each step."""


def main() -> None:
    """Measure every large operation with every contender."""
    with compiling_at_once():
        contenders.measure_all("large", lambda *_: cases.LARGE_OPERATIONS, _measure)


def _measure(comm: MPI.Comm, name: str, running: list, quick: bool) -> dict:
    """Measure one operation; scalars and vectors are checked against each other first."""
    size = cases.large_size(name) // (8 if quick else 1)
    random = np.random.default_rng(comm.rank)
    x, y = random.random((size // comm.size, size)), random.random((size // comm.size, size))
    r = np.random.default_rng(100).random((size, size)) if name == "S0 @ R" else np.zeros((1, 1))
    works: dict[str, measure.Work] = {}
    known = None
    for module in running:
        work = module.operation(name, x, y, r)
        if work is None:
            continue
        result = work()
        if name.startswith("rng."):
            result = 0.0  # each has numbers of its own
        if not isinstance(result, float):
            result = module.local(result).reshape(-1)
            result = result[:: max(1, result.size // 1000)].copy()
        known = result if known is None else known
        if not np.allclose(result, known, rtol=1e-6):  # Heat's means are float32
            raise ValueError(f"{module.NAME}: {name} differs from {running[0].NAME}")
        works[module.NAME] = work
    if name in PLAIN:
        works[FRESH] = lambda: PLAIN[name](x, y)
    if name == "7-point stencil":  # a function of blocks returns a new one each time
        works[FRESH] = lambda: by_hand.operation(name, x, y, r)()  # noqa: PLW0108
    if name == "x + y":
        works[ALONE] = _alone(comm, size)
    gc.collect()
    samples = measure.in_turn(comm, works, repeats=3 if quick else 9)
    return {
        "ranks": comm.size,
        "case": name,
        "size": f"{size} x {size}",
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }


def _alone(comm: MPI.Comm, size: int) -> measure.Work:
    if comm.rank:
        return lambda: None
    random = np.random.default_rng(0)
    whole, other = random.random((size, size)), random.random((size, size))
    return lambda: np.add(whole, other)


if __name__ == "__main__":
    main()
