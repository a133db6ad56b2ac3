"""Items selected, sorted and counted, as a multiple of a plain copy of one rank's block.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.selections``. Memory is what the
resident sets of all ranks grow by at most during a call, the result included. Kernels are compiled
when they are first wanted, as for redistribution.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from benchmarks import by_hand, cases, contenders, measure
from distarray.comm.kernels import compiling_at_once

COPY = "plain copy"
ALONE = "NumPy alone"


def main() -> None:
    """Measure every selection with every contender."""
    with compiling_at_once():
        contenders.measure_all("selections", lambda *_: cases.SELECTIONS, _measure)


def _measure(comm: MPI.Comm, name: str, running: list, quick: bool) -> dict:
    """Measure one selection; the first rank compares what all of them give there."""
    length, *row = cases.SELECTIONS[name]
    shape = (length // comm.size // (8 if quick else 1), *row)
    random = np.random.default_rng(comm.rank)
    x, y = _values(name, random, shape), random.random(shape)
    copied = np.zeros_like(x)
    works: dict[str, measure.Work] = {COPY: lambda: np.copyto(copied, x)}
    trims: dict[str, Callable] = {}
    known = None
    for module in running:
        work = module.selection(name, x, y)
        if work is None:
            continue
        result = module.local(work())
        if comm.rank == 0:
            result = result.reshape(-1)
            known = result.copy() if known is None else known
            n = min(known.size, result.size)  # some blocks are longer
            if not np.allclose(result[:n], known[:n], rtol=1e-6):  # Heat may have float32
                raise ValueError(f"{module.NAME}: {name} differs from {running[0].NAME}")
        del result
        works[module.NAME] = work
        trims[module.NAME] = getattr(module, "trim", gc.collect)
    works[ALONE] = _alone(comm, name, (shape[0] * comm.size, *row))
    gc.collect()
    samples = measure.in_turn(comm, works, repeats=3 if quick else 9)
    fixed = (COPY, by_hand.NAME)  # whose memory is there before
    peaks = {
        key: _grown(comm, work, trims.get(key, gc.collect))
        for key, work in works.items()
        if key not in fixed
    }
    return {
        "ranks": comm.size,
        "case": name,
        "size": f"{x.nbytes * comm.size >> 20} MiB",
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
        "peaks": peaks,
    }


def _values(name: str, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Make a block of an array."""
    if name.startswith("bincount"):
        return random.integers(0, cases.bins(name), shape)
    return random.random(shape)


def _alone(comm: MPI.Comm, name: str, shape: tuple[int, ...]) -> measure.Work:
    """Let the first rank do all of it with NumPy while the others wait."""
    if comm.rank:
        return lambda: None
    random = np.random.default_rng(0)
    x, y = _values(name, random, shape), random.random(shape if "y" in name else 1)
    mask = random.random(shape) > 0.5 if "mask" in name else y > 0.5
    values = y[mask] if name == "x[mask] = y" else y
    order = cases.shuffled_rows(len(x)) if "rows" in name else x
    works: dict[str, measure.Work] = {
        "x[mask]": lambda: x[mask],
        "x[mask] = 0": lambda: x.__setitem__(mask, 0),
        "x[mask] = y": lambda: x.__setitem__(mask, values),
        "x[rows]": lambda: np.take(x, order, axis=0),
        "x[rows] = y": lambda: x.__setitem__(order, y),
        "sort": lambda: np.sort(x),
        "argsort": lambda: np.argsort(x),
        "bincount": lambda: np.bincount(x, minlength=cases.bins(name)),
    }
    return works[name.partition(",")[0]]


def _grown(comm: MPI.Comm, work: measure.Work, trim: Callable) -> int:
    """Return how many bytes the ranks' memory grows by at most during a call, all together."""
    result = work()  # maps what it reads of others
    del result
    gc.collect()
    trim()
    comm.Barrier()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is there
    result = work()
    grown = _resident("VmHWM") - before
    del result
    return comm.allreduce(max(grown, 0))


def _resident(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(which)).split()[1])


if __name__ == "__main__":
    main()
