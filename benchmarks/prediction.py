"""How long plans were said to take, and how long they take: random ones, in host memory.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.prediction``. The speeds are measured
first, as by ``python -m distarray bench``. Then all plans have their turn in each of some rounds:
what times of one plan differ by from round to round no prediction can tell, and the last line says
how many do so. Each move is repeated, so that its memory is warm, with the kernels that were
measured: they are loaded and chosen before it is timed.
"""

from __future__ import annotations

from functools import cache
from itertools import chain
from math import exp, log, prod
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import measure, record
from distarray import _bench
from distarray.comm.kernels import compiling_at_once, cores
from distarray.redistribute import redistribute_local

BASELINE = "measured"
PLANS = 50
TRIALS = 7
"""Calls after which a kernel is chosen, or NumPy."""
ROUNDS, SAMPLES = 3, 3
WITHIN = 1.5
LEAST, MOST = 1 << 10, 1 << 27
"""Bytes of the larger of a rank's two blocks."""


def main() -> None:
    """Measure the speeds of the node, then random plans."""
    options = record.options()
    comm = MPI.COMM_WORLD
    unsteady = _bench.measure_and_keep().unsteady
    random = np.random.default_rng(options.seed)
    plans: list[da.Plan] = []
    while len(plans) < (5 if options.quick else PLANS):
        plan = _draw(random, comm.size, LEAST << 6 if options.quick else MOST)
        if plan.steps:
            plans.append(plan)
    with compiling_at_once():
        rounds = [[_measure(comm, plan, i) for plan in plans] for i in range(ROUNDS)]
    rows: list[dict[str, Any]] = []
    for plan, *samples in zip(plans, *rounds, strict=True):
        rows.append(
            {
                "ranks": comm.size,
                "case": str(plan).rpartition(":")[0],
                "size": "random plans",
                "seconds": {
                    BASELINE: measure.summary([*chain.from_iterable(samples)]),
                    "predicted": measure.summary([plan.seconds]),
                },
            }
        )
        record.say(comm, rows[-1])
    if comm.rank == 0:
        ratios = sorted(_ratio(row) for row in rows)
        shown = " ".join(f"{one:.2f}" for one in ratios)
        changes = [
            median(last) / median(first) for first, last in zip(rounds[0], rounds[-1], strict=True)
        ]
        print(
            f"{comm.size} ranks: predicted/measured {shown}; within {WITHIN}: {_share(ratios)}; "
            f"measured again at the end: {_share(changes)}; unsteady speeds: {unsteady:.0%}",
            flush=True,
        )
    record.write(comm, options.out, "prediction", rows, {})


def _measure(comm: MPI.Comm, plan: da.Plan, i: int) -> list[float]:
    """Return samples of the seconds of a plan in the i-th round; collective."""
    mesh = _mesh(plan.src.mesh.shape)
    src, dst = (layout.replace(mesh=mesh) for layout in (plan.src, plan.dst))
    block = np.ones(src.local_shape(), plan.dtype)
    x = da.DistArray.from_local(block, src.mesh, src.placements, shape=src.shape)
    local = x.copy().to_local()
    work = {BASELINE: lambda: redistribute_local(local, src, dst)}
    for _ in range(1 if i else TRIALS):
        work[BASELINE]()
    batch = 0.01 if comm.size <= cores() else 0.04  # ranks that take turns have several
    return measure.in_turn(comm, work, repeats=SAMPLES, batch_seconds=batch)[BASELINE]


_mesh = cache(da.init_device_mesh)


def _share(ratios: list[float]) -> str:
    """Return how many ratios are close to 1."""
    return f"{sum(1 / WITHIN <= one <= WITHIN for one in ratios)} of {len(ratios)}"


def _ratio(row: dict[str, Any]) -> float:
    return row["seconds"]["predicted"]["median"] / row["seconds"][BASELINE]["median"]


def _draw(random: np.random.Generator, ranks: int, most: int) -> da.Plan:
    """Draw a plan between two layouts of one shape on one mesh, the same on every rank."""
    shapes = [(ranks,), *[(n, ranks // n) for n in range(2, ranks) if ranks % n == 0]]
    mesh = da.AbstractMesh(shapes[random.integers(len(shapes))])
    ndim = int(random.integers(1, 4))
    dtype = np.dtype(random.choice(["f4", "f8", "i4", "c16"]))
    while True:
        nbytes = exp(random.uniform(log(LEAST), log(most)))
        parts = random.dirichlet(np.full(ndim, 2.0)) * log(nbytes * ranks / dtype.itemsize)
        shape = tuple(max(1, round(exp(part))) for part in parts)
        src, dst = (
            da.Layout(mesh, [_placement(random, ndim) for _ in mesh.shape], shape) for _ in "sd"
        )
        boxes = [layout.local_box((0,) * mesh.ndim) or () for layout in (src, dst)]
        sizes = [prod(stop - start for start, stop in box) * dtype.itemsize for box in boxes]
        plan = da.plan(src, dst, dtype)
        if max(sizes) >= LEAST and plan.peak_bytes(0) <= 6 * most:
            return plan


def _placement(random: np.random.Generator, ndim: int) -> Any:
    kind = random.integers(4)
    if kind == 0:
        return da.Replicate()
    return da.Partial("sum") if kind == 1 else da.Shard(int(random.integers(ndim)))


if __name__ == "__main__":
    main()
