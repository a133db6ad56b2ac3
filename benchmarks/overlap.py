"""How much of a redistribution in the background is hidden behind what the program does meanwhile.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.overlap``. Beside a program that waits,
as for a disk or a device, all of it can be hidden. Beside one that computes the two share the
rank's core: more than nothing is hidden only where cores are left over.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import measure, record

BASELINE = "one after the other"
SIZE = 8192


def main() -> None:
    """Measure a move beside waiting, and beside computing."""
    options = record.options()
    comm = MPI.COMM_WORLD
    size = SIZE // 8 if options.quick else SIZE
    x = da.distribute_array(np.ones((size, size)) if comm.rank == 0 else None, None, [da.Shard(0)])
    rows = []
    seconds = min(measure.in_turn(comm, {"": lambda: _move(x)}, repeats=3)[""])
    factor = np.ones((512, 512))
    product = np.empty_like(factor)
    once = min(
        measure.in_turn(comm, {"": lambda: np.matmul(factor, factor, product)}, repeats=3)[""]
    )
    times = max(1, round(seconds / once))

    def compute() -> None:
        for _ in range(times):
            np.matmul(factor, factor, product)

    for name, work in (("waiting", lambda: time.sleep(seconds)), ("computing", compute)):
        works = {
            "move alone": lambda: _move(x),
            f"{name} alone": work,
            BASELINE: lambda work=work: (_move(x), work()),
            "in the background": lambda work=work: _beside(x, work),
        }
        samples = measure.in_turn(comm, works, repeats=3 if options.quick else 11)
        rows.append(
            {
                "ranks": comm.size,
                "case": f"S0 -> S1 beside {name}",
                "size": f"{size} x {size}",
                "seconds": {
                    key.replace(name, "work"): measure.summary(values)
                    for key, values in samples.items()
                },
            }
        )
        record.say(comm, rows[-1])
    record.write(comm, options.out, "overlap", rows, {})


def _move(x: da.DistArray) -> da.DistArray:
    return x.redistribute([da.Shard(1)])


def _beside(x: da.DistArray, work: measure.Work) -> da.DistArray:
    handle = x.redistribute([da.Shard(1)], async_op=True)
    work()
    return handle.wait()


if __name__ == "__main__":
    main()
