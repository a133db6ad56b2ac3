"""How long plans were said to take, and how long they take: random ones, in host memory.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.prediction``. The speeds are measured
as by ``python -m distarray bench``, and between its rounds all plans have their turn: other
machines of a host slow this one down for seconds or minutes, and so it falls on both. What the two
halves of the rounds differ by no prediction can tell, and the last line says how many do so. Each
move is repeated, so that its memory is warm, with the kernels that were measured: they are loaded
and chosen before it is timed. The clock is that of the bench, from the first start to the last end.
"""

from __future__ import annotations

from functools import cache, partial
from math import exp, log, prod
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import measure, record
from distarray import _bench
from distarray.comm import world
from distarray.redistribute import redistribute_local

BASELINE = "measured"
PLANS = 50
TRIALS = 7
"""Calls after which a kernel is chosen, or NumPy."""
TURNS = 2
"""Rounds of the plans after each of the bench."""
LONGER = 3
"""So many times as long as a move of the bench is measured."""
WITHIN = 1.5
LEAST, MOST = 1 << 10, 1 << 27
"""Bytes of the larger of a rank's two blocks."""


def main() -> None:
    """Measure the speeds of the node, then random plans."""
    options = record.options()
    comm = MPI.COMM_WORLD
    random = np.random.default_rng(options.seed)
    plans: list[da.Plan] = []
    while len(plans) < (5 if options.quick else PLANS):
        plan = _draw(random, comm.size, LEAST << 6 if options.quick else MOST)
        if plan.steps:
            plans.append(plan)
    rounds: list[list[float]] = []
    seconds = LONGER * _bench.least_seconds(world())

    def measure_plans() -> None:
        for _ in range(TURNS):
            rounds.append([_measure(plan, seconds, is_first=not rounds) for plan in plans])

    unsteady = _bench.measure_and_keep(measure_plans).unsteady
    rows: list[dict[str, Any]] = []
    for plan, *samples in zip(plans, *rounds, strict=True):
        rows.append(
            {
                "ranks": comm.size,
                "case": str(plan).rpartition(":")[0],
                "size": "random plans",
                "seconds": {
                    BASELINE: measure.summary(samples),
                    "predicted": measure.summary([plan.seconds]),
                },
            }
        )
        record.say(comm, rows[-1])
    if comm.rank == 0:
        ratios = sorted(_ratio(row) for row in rows)
        shown = " ".join(f"{one:.2f}" for one in ratios)
        half = len(rounds) // 2
        changes = [
            median(samples[-half:]) / median(samples[:half])
            for samples in zip(*rounds, strict=True)
        ]
        print(
            f"{comm.size} ranks: predicted/measured {shown}; within {WITHIN}: {_share(ratios)}; "
            f"second half of the rounds, of the first: {_share(changes)}; "
            f"unsteady speeds: {unsteady:.0%}",
            flush=True,
        )
    record.write(comm, options.out, "prediction", rows, {})


def _measure(plan: da.Plan, seconds: float, *, is_first: bool) -> float:
    """Return the seconds of a plan in a round; collective."""
    mesh = _mesh(plan.src.mesh.shape)
    src, dst = (layout.replace(mesh=mesh) for layout in (plan.src, plan.dst))
    block = np.ones(src.local_shape(), plan.dtype)
    x = da.DistArray.from_local(block, src.mesh, src.placements, shape=src.shape)
    local = x.copy().to_local()
    work = partial(redistribute_local, local, src, dst)
    for _ in range(TRIALS if is_first else 1):
        work()
    return _bench.time_calls(world(), work, seconds)


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
