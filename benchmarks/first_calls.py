"""The first call of each operation in a fresh process, beside the first by hand.

Nothing is warm: memory is fresh, modules are imported and kernels loaded (or, with an empty cache,
compiled) when they are wanted. The operands lie in memory of NumPy's, which other ranks cannot map.
The driver runs this without ranks, as ``python -m benchmarks.first_calls``: it starts fresh ones
for every sample, of every contender in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS, COLUMNS = 4096, 8192
"""Of every rank's block of float64, 256 MiB; what all ranks hold whole is as large."""

CASES = (
    "S0 -> S1", "S0 -> R", "P -> S0", "P -> R", "R -> S0",
    "x + y", "x.sum()", "x.std()", "random", "sort", "x[mask]",
)  # fmt: skip
CONTENDERS: dict[str, dict[str, str]] = {
    "by hand": {},
    "distarray": {},
    "distarray, nothing kept": {},
    "distarray, NumPy alone": {"DISTARRAY_KERNELS": "numpy"},
}
"""Who takes part, and the settings of each; "nothing kept" finds an empty cache."""
IMPORTS = {
    "by hand": "import numpy",
    "mpi4py": "import numpy, mpi4py.MPI",
    "distarray": "import distarray",
}
"""What is imported; beside NumPy, which stands where others have what is written by hand."""


def main() -> None:
    """Measure every case with every contender, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file for the numbers (JSON)")
    parser.add_argument("--quick", action="store_true", help="small and few, to see that it runs")
    parser.add_argument("--without", default="", help="ignored: there are no peers")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", default="mpiexec")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes for each median")
    parser.add_argument("--cases", default="", help="some of them, between semicolons")
    parser.add_argument("--who", default="", help="some of the contenders, between semicolons")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _measure(options.one, options.who, options.quick)
        return
    rounds = 1 if options.quick else options.rounds
    chosen = [case for case in options.cases.split(";") if case] or ["import", *CASES]
    rows = []
    for case in chosen:
        rows.append(_row(case, options, rounds))
        told = ", ".join(f"{k} {1e3 * v['median']:.0f}" for k, v in rows[-1]["seconds"].items())
        print(f"{options.ranks} ranks  {case:10}  ms: {told}", flush=True)
    if options.out:
        from benchmarks import machine

        content = {"suite": "first_calls", "machine": machine.facts(), "absent": {}, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


def _row(case: str, options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """Measure one case in fresh processes, all contenders in each round."""
    everyone = IMPORTS if case == "import" else CONTENDERS
    names = [
        name for name in everyone if name in (options.who.split(";") if options.who else everyone)
    ]
    samples: dict[str, list[float]] = {name: [] for name in names}
    for done in range(rounds + 1):
        for name in names:
            of_import = case == "import"
            taken = _import(IMPORTS[name]) if of_import else _start(case, name, options, done == 0)
            if done or options.quick:
                samples[name].append(taken)
    from benchmarks import measure

    seconds = {name: measure.summary(values) for name, values in samples.items()}
    if case == "import":
        return {"ranks": 1, "case": case, "size": "Modules", "seconds": seconds}
    size = "256 MiB a rank"
    return {"ranks": options.ranks, "case": case, "size": size, "seconds": seconds}


def _import(statement: str) -> float:
    program = (
        f"import time; start = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    )
    return float(subprocess.check_output([sys.executable, "-c", program], text=True))


def _start(case: str, name: str, options: argparse.Namespace, is_first: bool) -> float:
    """Run one case once on fresh ranks; return the seconds of the slowest.

    The first run of all, which is not counted, brings files to memory and compiles kernels.
    """
    command = [
        options.launcher,
        "-n",
        str(options.ranks),
        sys.executable,
        "-m",
        "benchmarks.first_calls",
    ]
    command += ["--one", case, "--who", name, *(["--quick"] if options.quick else [])]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, **CONTENDERS[name]}
        if name.endswith("nothing kept"):
            environment["NUMBA_CACHE_DIR"] = empty
        elif is_first and name == "distarray":
            environment["DISTARRAY_KERNELS"] = "numba"
        _touch_memory(options.quick)
        said = subprocess.check_output(command, env=environment, text=True)
    return float(said.split()[-1])


def _touch_memory(quick: bool) -> None:
    """Use as much memory as any sample does, and free it.

    The host of a virtual machine takes free pages back, and gives each again at a cost that is ten
    times that of a usual first touch. Whoever came after one who used less memory would pay it.
    """
    import numpy as np

    np.empty((1 if quick else 24) << 27, np.uint8).fill(0)


def _measure(case: str, who: str, quick: bool) -> None:
    """Make the operands, then time the first call; the slowest rank tells."""
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    shape = (ROWS // 8, COLUMNS // 8) if quick else (ROWS, COLUMNS)
    if case in ("random", "sort", "x[mask]"):
        shape = (shape[0] * shape[1],)
    rng = np.random.default_rng(comm.rank)
    block = rng.random(shape)
    other = rng.random(shape) if case in ("x + y", "x[mask]") else block
    make = _by_hand if who == "by hand" else _by_distarray
    work = make(case, block, other, comm)
    comm.Barrier()
    start = time.perf_counter()
    result = work()
    taken = comm.allreduce(time.perf_counter() - start, MPI.MAX)
    del result
    if comm.rank == 0:
        print(taken, flush=True)


def _by_distarray(case: str, block: Any, other: Any, comm: Any) -> Callable[[], Any]:
    import distarray as da

    mesh = da.init_device_mesh((comm.size,))
    placements = {"S0": da.Shard(0), "S1": da.Shard(1), "R": da.Replicate(), "P": da.Partial()}
    source, _, target = case.partition(" -> ")
    x = da.DistArray.from_local(block, mesh, [placements[source] if target else da.Shard(0)])
    y = da.DistArray.from_local(other, mesh, [da.Shard(0)])
    mask = None
    if case == "x[mask]":
        mask = da.DistArray.from_local(other > 0.5, mesh, [da.Shard(0)])
    works: dict[str, Callable[[], Any]] = {
        "x + y": lambda: x + y,
        "x.sum()": lambda: float(x.sum()),
        "x.std()": lambda: float(x.std()),
        "random": lambda: da.random.default_rng(3).random(x.shape, mesh=mesh),
        "sort": lambda: da.sort(x),
        "x[mask]": lambda: x[mask],
    }
    return works.get(case) or (lambda: x.redistribute([placements[target]]))


def _by_hand(case: str, block: Any, other: Any, comm: Any) -> Callable[[], Any]:
    """Return what one writes with mpi4py, of blocks that are split evenly."""
    import numpy as np
    from mpi4py import MPI

    ranks, me = comm.size, comm.rank
    rows, columns = len(block), block.size // len(block)
    mask = other > 0.5

    def to_columns() -> Any:
        width = columns // ranks
        send = np.ascontiguousarray(block.reshape(rows, ranks, width).swapaxes(0, 1))
        out = np.empty((ranks * rows, width))
        comm.Alltoall(send, out)
        return out

    def to_all() -> Any:
        out = np.empty((ranks * rows, columns))
        comm.Allgather(block, out)
        return out

    def reduced() -> Any:
        out = np.empty((rows, columns))
        comm.Allreduce(block, out)
        return out

    def reduced_rows() -> Any:
        out = np.empty((rows // ranks, columns))
        comm.Reduce_scatter_block(block, out)
        return out

    def total(value: float) -> float:
        return float(comm.allreduce(value))

    def std() -> float:
        flat, count, piece = block.reshape(-1), block.size * ranks, 1 << 15
        mean = total(float(flat.sum())) / count
        squares = 0.0
        for first in range(0, flat.size, piece):
            centred = flat[first : first + piece] - mean
            squares += float(centred @ centred)
        return (total(squares) / count) ** 0.5

    def select() -> Any:
        found = block[mask]
        comm.allgather(len(found))
        return found

    def sort() -> Any:
        """Sort, cut at regular samples, exchange, and sort what has come as runs."""
        mine = np.sort(block)
        samples = np.empty(ranks * 64)
        comm.Allgather(mine[:: rows // 64][:64].copy(), samples)
        samples.sort()
        cuts = [0, *np.searchsorted(mine, samples[64::64]).tolist(), rows]
        counts = np.diff(cuts)
        theirs = np.empty_like(counts)
        comm.Alltoall(counts, theirs)
        out = np.empty(int(theirs.sum()))
        comm.Alltoallv([mine, counts], [out, theirs])
        out.sort(kind="stable")
        return out

    works: dict[str, Callable[[], Any]] = {
        "S0 -> S1": to_columns,
        "S0 -> R": to_all,
        "P -> R": reduced,
        "P -> S0": reduced_rows,
        "R -> S0": block[me * rows // ranks : (me + 1) * rows // ranks].copy,
        "x + y": lambda: block + other,
        "x.sum()": lambda: total(float(block.sum())),
        "x.std()": std,
        "random": lambda: np.random.default_rng([3, me]).random(rows),
        "sort": sort,
        "x[mask]": select,
    }
    assert MPI.Is_initialized()
    return works[case]


if __name__ == "__main__":
    main()
