"""How long plans were said to take, and how long they take: random ones, in host memory.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.prediction``. The speeds are measured
first, as by ``python -m distarray bench``. Each move is repeated, so that its memory is warm, with
the kernels that were measured: they are loaded and chosen before it is timed.
"""

from __future__ import annotations

from math import exp, log, prod
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
LEAST, MOST = 1 << 10, 1 << 27
"""Bytes of the larger of a rank's two blocks."""


def main() -> None:
    """Measure the speeds of the node, then random plans."""
    options = record.options()
    comm = MPI.COMM_WORLD
    _bench.measure_and_keep()
    batch = 0.01 if comm.size <= cores() else 0.04  # ranks that take turns have several
    random = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    while len(rows) < (5 if options.quick else PLANS):
        src, dst, dtype = _draw(random, comm.size, LEAST << 6 if options.quick else MOST)
        plan = da.plan(src, dst, dtype)
        if not plan.steps or all(getattr(step, "kind", "") == "relabel" for step in plan.steps):
            continue
        block = np.ones(src.local_shape(), dtype)
        x = da.DistArray.from_local(block, src.mesh, src.placements, shape=src.shape)
        local = x.copy().to_local()
        work = {BASELINE: lambda local=local, src=src, dst=dst: redistribute_local(local, src, dst)}
        with compiling_at_once():
            for _ in range(TRIALS):
                work[BASELINE]()
            samples = measure.in_turn(comm, work, repeats=9, batch_seconds=batch)
        rows.append(
            {
                "ranks": comm.size,
                "case": f"{src} -> {dst} of {dtype}",
                "size": "random plans",
                "seconds": {
                    BASELINE: measure.summary(samples[BASELINE]),
                    "predicted": measure.summary([plan.seconds]),
                },
            }
        )
        record.say(comm, rows[-1])
    if comm.rank == 0:
        ratios = sorted(_ratio(row) for row in rows)
        within = sum(1 / 1.5 <= one <= 1.5 for one in ratios) / len(ratios)
        shown = " ".join(f"{one:.2f}" for one in ratios)
        print(
            f"{comm.size} ranks: predicted/measured {shown}; within 1.5: {within:.0%}", flush=True
        )
    record.write(comm, options.out, "prediction", rows, {})


def _ratio(row: dict[str, Any]) -> float:
    return row["seconds"]["predicted"]["median"] / row["seconds"][BASELINE]["median"]


def _draw(
    random: np.random.Generator, ranks: int, most: int
) -> tuple[da.Layout, da.Layout, np.dtype[Any]]:
    """Draw two layouts of one shape on one mesh, the same on every rank."""
    shapes = [(ranks,), *[(n, ranks // n) for n in range(2, ranks) if ranks % n == 0]]
    mesh = da.init_device_mesh(shapes[random.integers(len(shapes))])
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
        held = da.plan(src, dst, dtype).peak_bytes(0)
        if max(sizes) >= LEAST and held <= 6 * most:
            return src, dst, dtype


def _placement(random: np.random.Generator, ndim: int) -> Any:
    kind = random.integers(4)
    if kind == 0:
        return da.Replicate()
    return da.Partial("sum") if kind == 1 else da.Shard(int(random.integers(ndim)))


if __name__ == "__main__":
    main()
