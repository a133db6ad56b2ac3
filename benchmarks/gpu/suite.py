"""The suite with its blocks on a GPU, on one rank and on several that share it.

Run by the driver as ``python -m benchmarks.gpu.suite --ranks 1,2,4``, a job for each core: first
the tests marked ``gpu`` and the job on two ranks.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import library
from benchmarks.gpu.part import Part

TABLE = "The suite with blocks on the GPU"
FIRST = 2  # the number of ranks that is tried first
TOLD = 20
LOTS = 3  # of files for each worker, as some take ten times as long as others
REHEARSED = (
    "tests/gpu/test_binding.py::test_a_number_fixes_the_gpu_of_all_ranks",
    "tests/mpi/test_random.py::test_seed_that_nobody_gave_is_the_first_process_s",
)


def main() -> None:
    """Run what there is time for, and write how each job went when it has ended."""
    part = Part(ranks="1,2,4", mpiexec="")
    library(part.rehearsal)  # the tests themselves would take the stand-in where there is no GPU
    absent = [
        name
        for name in ("pytest", "hypothesis", "pytest_timeout")
        if importlib.util.find_spec(name) is None
    ]
    counts = [int(text) for text in part.options.ranks.split(",")]
    promises = ["suite", *(f"suite on {count}" for count in counts)]
    if absent:
        part.note(TABLE, f"Not run: {', '.join(absent)} not installed.")
        for promise in promises:
            part.verdict(promise, None, f"{', '.join(absent)} not installed")
        return
    from tests import run

    root = run.ROOT
    marked, arrays, files = _paths(root, run, part.rehearsal)
    launcher = part.options.mpiexec
    workers = min(12, max(2, os.cpu_count() or 2))  # each takes some memory of the GPU
    number = min(LOTS * workers, len(arrays))
    lots = [arrays[i::number] for i in range(number)]
    jobs = [("suite", run.Run(0, lot, f"arrays, {i}", "cuda")) for i, lot in enumerate(lots, 1)]
    if marked:
        jobs.insert(0, ("suite", run.Run(0, marked, "marked gpu", "cuda")))
    if importlib.util.find_spec("pytest_mpi") is None:
        for promise in promises[1:]:
            part.verdict(promise, None, "pytest-mpi is not installed")
    elif launcher:
        for place, count in enumerate(sorted(counts, key=lambda count: (count != FIRST, -count))):
            one = run.Run(count, files, "on the GPU", "cuda", launcher)
            jobs.insert(1 + place, (f"suite on {count}", one))
    results: dict[str, list[Any]] = {}
    lock = threading.Lock()

    def perform(job: tuple[str, Any]) -> None:
        promise, one = job
        if time.monotonic() < part.end:
            run._perform(one, "", part.end)
        with lock:
            results.setdefault(promise, []).append(one)
            _tell(part, one)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(perform, jobs))
    for promise, runs in results.items():
        _judge(part, promise, runs)


def _paths(root: Path, run: Any, rehearsal: bool) -> tuple[list[str], list[str], list[str]]:
    """Return tests that need a GPU, tests of arrays, and tests under MPI."""
    if rehearsal:
        plain, mpi = (str(root / path) for path in REHEARSED)
        return [], [plain], [mpi]
    folder = root / "tests"
    marked = [
        str(path)
        for path in sorted(folder.rglob("test_*.py"))
        if "mark.gpu" in path.read_text() and folder / "mpi" not in path.parents
    ]
    # The inputs of sharded modules are in host memory there, which passes for a GPU's only on the
    # stand-in; tests/gpu has such tests of its own.
    chosen = [folder / name for name in run.ON_DEVICE if not name.startswith("torch/fsdp")]
    files = [
        file for path in chosen for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    ]
    arrays = sorted(map(str, files), key=lambda file: -Path(file).stat().st_size)
    return marked, arrays, [str(folder / name) for name in run.MPI_ON_DEVICE]


def _tell(part: Part, run: Any) -> None:
    counts = {name: ("n", run.count(name)) for name in ("passed", "failed", "skipped")}
    part.row(TABLE, run.name, **counts, time=("s", run.seconds))
    for test, report in list(run.reports.items())[:TOLD]:
        last = report.strip().splitlines()[-1:] or [""]
        part.row("Tests that failed", f"{test.split('/')[-1]}, {run.name}", end=("", last[0][:160]))
        print(f"\n=== {test} [{run.name}]\n{report.strip()[-3000:]}", flush=True)


def _judge(part: Part, promise: str, runs: list[Any]) -> None:
    passed = sum(run.count("passed") for run in runs)
    cut = sum(_is_cut(part, report) for run in runs for report in run.reports.values())
    failed = sum(run.count("failed") for run in runs) - cut
    holds = False if failed else None if cut or part.rehearsal or not passed else True
    text = f"{passed} passed, {failed} failed" + f", {cut} cut off by the end of the time" * (
        cut > 0
    )
    part.verdict(promise, holds, text if passed + failed + cut else "no time for it")


def _is_cut(part: Part, report: str) -> bool:
    """Tell whether a test counts as failed because the time of its job was over."""
    ended = ("not run: the jobs before it", "did not end on ranks", "ended at its time limit")
    return time.monotonic() > part.end - 1 and any(words in report for words in ended)


if __name__ == "__main__":
    main()
