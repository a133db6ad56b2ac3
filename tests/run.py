"""Run the whole suite: ``python -m tests.run``.

First everything that needs no MPI, with simulated ranks, in processes at the same time:
tests/torch in two, arrays, their operations, what compiles kernels, what starts jobs and waits for
them, the rest, and once more what is about arrays, with their blocks on GPUs or, where there is
none, on a stand-in.
``tests/mpi`` on 1 rank runs beside them; then it runs on 2, 3 and 4 ranks under mpiexec, its tests
marked ``eight_ranks`` on 8, and a few on 3 with their blocks on a device. Every run has a hard
limit, and so has the suite; after it all processes are ended, and tests that hung are named. A test
that hangs or kills its job counts as failed, and the rest of its run goes on in a fresh job. The
last line is the sum over all runs, ``N passed, N failed``; the exit status is 0 only if tests ran
and none failed.

SIGTERM, SIGINT and SIGHUP end all of that before they end this.

Give paths or ``-k`` to run less, ``--ranks 2,3`` to choose the jobs (0 is the run without MPI).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import on_device, processes

ROOT = Path(__file__).resolve().parent.parent
SUITE_SECONDS = 1800.0
"""Two cores of an EPYC of Zen 5 take 530 s; of Zen 1, or a slow Zen 3, two to three times that."""
RUN_SECONDS = {0: 1600.0, 1: 480.0, 2: 240.0, 3: 240.0, 4: 300.0, 8: 240.0}
TEST_SECONDS = 120
AT_A_TIME = 5
"""Runs beside each other, one of which mostly waits: on two cores the longest should not share
theirs with all others."""
MOST_RESTARTS = 6
LOG_LINES = 40
JOBS = (
    "comm/failures/test_first_calls.py",
    "comm/failures/test_on_error.py",
    "comm/failures/test_presence.py",
    "comm/failures/test_waiting.py",
    "test_abort.py",
    "test_command_line.py",
)
"""Files that start jobs of some ranks, and wait for them more than they compute."""
COMPUTE = ("benchmarks", "comm")
"""Folders, but for those files, that compile kernels or run programs."""
OPERATIONS = ("ops",)
ARRAYS = ("array", "core", "fft", "linalg")
ON_DEVICE = (
    "gpu",
    "array",
    "core",
    "ops",
    "redistribute/test_background.py",
    "random/test_generator.py",
    "torch/test_buffers.py",
    "torch/training/test_norms.py",
    "torch/test_full.py",
    "torch/test_moves.py",
    "torch/test_moves_autograd.py",
    "torch/test_moves_errors.py",
    "torch/data_parallel/test_replicate.py",
    "torch/data_parallel/test_replicate_autograd.py",
    "torch/data_parallel/test_replicate_buckets.py",
    "torch/data_parallel/test_replicate_errors.py",
    "torch/fsdp/test_extensions.py",
    "torch/fsdp/gradients/test_precision.py",
    "checkpoint/torch/test_modules.py",
    "checkpoint/torch/test_fused_weights.py",
    "checkpoint/torch/test_tensors.py",
)
"""Files and folders that run once more with blocks, or tensors, on a device."""
EXAMPLES_ON_DEVICE = 3
MPI_ON_DEVICE = (
    "mpi/test_engine.py",
    "mpi/test_shapes.py",
    "mpi/test_random.py",
    "mpi/test_redistribute.py",
    "mpi/torch/test_moves.py",
    "gpu/test_torch_on_gpu.py",
)
RANKS_ON_DEVICE = 3


_stopped = threading.Event()
"""Set by a signal: jobs are ended, and no other is started."""


@dataclass
class Run:
    """All jobs of some paths and one rank count (0: plain pytest); what is known of each test."""

    ranks: int
    paths: list[str]
    title: str = "plain"
    device: str = "cpu"
    launcher: str = ""
    """The mpiexec; default: `mpiexec`."""
    outcomes: dict[str, str] = field(default_factory=dict)
    reports: dict[str, str] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    seconds: float = 0.0
    used: float = 0.0
    """Seconds of a core."""

    @property
    def name(self) -> str:
        """Say what the run is, for a person."""
        if self.ranks == 0:
            return self.title
        return f"mpiexec -n {self.ranks}" + (f", {self.title}" if self.device != "cpu" else "")

    def fail(self, test: str, report: str) -> None:
        """Count `test` as failed, and keep the first report of it."""
        self.outcomes[test] = "failed"
        self.reports.setdefault(test, report)

    def count(self, outcome: str) -> int:
        """Count the tests with this outcome."""
        return Counter(self.outcomes.values())[outcome]


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.run", description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", help="files or folders (default: all)")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="as in pytest")
    parser.add_argument(
        "--ranks", default="0,1,2,3,4,8", help="rank counts; 0 is the run without MPI"
    )
    options = parser.parse_args(arguments)
    caught: list[int] = []

    def stop(number: int, _: Any) -> None:
        caught.append(number)
        _stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    counts = [int(part) for part in options.ranks.split(",")]
    end = time.monotonic() + SUITE_SECONDS
    runs = []
    alone = [ranks for ranks in counts if ranks <= 1]  # take a core each
    for together in [
        [run for ranks in alone for run in _runs(options.paths, ranks)],
        *(_runs(options.paths, ranks) for ranks in counts if ranks > 1),
        _again(options.paths, counts),
    ]:
        if together:
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                runs += pool.map(lambda run: _perform(run, options.k, end), together)
        if caught:
            print(f"stopped by {signal.Signals(caught[0]).name}", flush=True)
            return 128 + caught[0]
    passed, failed, skipped = (
        sum(r.count(o) for r in runs) for o in ("passed", "failed", "skipped")
    )
    for run in runs:
        for test, report in run.reports.items():
            print(f"\n=== {test}  [{run.name}]\n{report.strip()}")
    print(f"\nskipped: {skipped} (tests that ask for more ranks or another package)")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0 if passed else 5


def _runs(paths: list[str], ranks: int) -> list[Run]:
    """Return what runs at the same time."""
    folder = ROOT / "tests"
    if ranks > 4 and not paths:  # every rank collects what it is given
        files = sorted((folder / "mpi").rglob("test_*.py"))
        paths = [str(file) for file in files if "eight_ranks" in file.read_text()]
    if ranks or paths:
        chosen = _select(paths, ranks)
        return [Run(ranks, chosen)] if chosen else []
    sharded, on_device, jobs = (_below(names) for names in (("torch/fsdp",), ON_DEVICE, JOBS))
    torch = sorted(map(str, (folder / "torch").rglob("test_*.py")))
    compute = sorted({str(path) for name in COMPUTE for path in (folder / name).rglob("test_*.py")})
    others = sorted(
        str(path)
        for path in folder.iterdir()
        if path.name not in ("torch", "mpi", *COMPUTE, *OPERATIONS, *ARRAYS)
        and (path.name.startswith("test_") or (path.is_dir() and path.name[0] not in "._"))
    )
    # The longest first: each takes a core where there is one, but for that which waits.
    return [
        Run(0, jobs, "plain, jobs of some ranks"),
        Run(0, [path for path in compute if path not in jobs], "plain, kernels and programs"),
        Run(0, _below(OPERATIONS), "plain, operations"),
        Run(0, _below(ARRAYS), "plain, arrays"),
        Run(0, sharded, "plain, torch, sharded"),
        Run(0, on_device, f"plain, on {_device()}", "cuda"),
        Run(0, [path for path in others if path not in jobs], "plain, the rest"),
        Run(0, [path for path in torch if "fsdp" not in Path(path).parts], "plain, torch"),
    ]


def _below(names: Sequence[str]) -> list[str]:
    return [str(ROOT / "tests" / name) for name in names]


def _again(paths: list[str], counts: list[int]) -> list[Run]:
    """Return what runs once more under MPI with its blocks on a device."""
    if paths or RANKS_ON_DEVICE not in counts:
        return []
    return [Run(RANKS_ON_DEVICE, _below(MPI_ON_DEVICE), f"on {_device()}", "cuda")]


def _device() -> str:
    return "the GPU" if on_device.has_gpu() else "the stand-in for CuPy"


def _select(paths: list[str], ranks: int) -> list[str]:
    """Choose from `paths` those that belong to a run on `ranks` ranks."""
    mpi = ROOT / "tests" / "mpi"
    if not paths:
        return [str(mpi)] if ranks else [str(ROOT / "tests")]
    chosen = []
    for path in paths:
        file = Path(path.split("::")[0]).resolve()
        inside = file == mpi or mpi in file.parents
        if inside == bool(ranks):
            chosen.append(path)
        elif ranks and file in mpi.parents:
            chosen.append(str(mpi))
    return chosen


def _perform(run: Run, expression: str, end: float) -> Run:
    """Start jobs until every test of the run is settled or its time is spent."""
    start = time.monotonic()
    limit = min(start + RUN_SECONDS.get(run.ranks, 240.0), end)
    with tempfile.TemporaryDirectory(prefix="distarray-tests-") as folder:
        for attempt in range(MOST_RESTARTS + 1):
            if _stopped.is_set():
                return run
            records = Path(folder) / f"job{attempt}"
            records.mkdir()
            (records / "done").write_text("\n".join(run.outcomes))
            log = records / "log"
            command = _command(run, run.paths, expression)
            status, used = _run_job(command, records, log, limit, run.device)
            run.used += used
            settled = len(run.outcomes)
            finished = _read(run, records, log, status)
            left = [test for test in run.expected if test not in run.outcomes]
            if finished or not left or len(run.outcomes) == settled or time.monotonic() > limit:
                break
        for test in run.expected:
            if test not in run.outcomes:
                run.fail(test, "not run: the jobs before it took too long, or ended too often")
    run.seconds = time.monotonic() - start
    told = ", ".join(
        f"{run.count(outcome)} {outcome}" for outcome in ("passed", "failed", "skipped")
    )
    print(f"{run.name}: {told} in {run.seconds:.0f} s, {run.used:.0f} s of a core", flush=True)
    return run


def _command(run: Run, paths: list[str], expression: str) -> list[str]:
    """Write the command line of one job."""
    ranks = run.ranks
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:zarr",  # which imports all of zarr for tests of its own
        "-p",
        "no:logging",  # what is logged nobody looks at
        f"--timeout={TEST_SECONDS}",
    ]
    if ranks == 0:
        command += [f"--ignore={ROOT / 'tests' / 'mpi'}"]
    else:
        command = [run.launcher or mpiexec(), "-n", str(ranks), *command, "--with-mpi"]
        if ranks > 4:
            command += ["-m", "eight_ranks"]
    if expression:
        command += ["-k", expression]
    return command + paths


def mpiexec() -> str:
    """Find the launcher that belongs to this Python, else the site's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        raise SystemExit(
            "no mpiexec beside this Python nor on PATH; install an MPI (the extra 'mpich') "
            "or load the site's, or pass --ranks 0"
        )
    return found


def prepared(environment: dict[str, str]) -> dict[str, str]:
    """Ask for one thread a process, compiled modules, and more ranks than cores of Open MPI.

    A run starts hundreds of processes. Where images say that Python shall write no bytecode, each
    would compile all of the package anew: 0.4 of the 0.6 s that its import takes.
    """
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ):
        environment.setdefault(name, "1")
    environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
    return environment


def _environment(records: Path, device: str) -> dict[str, str]:
    """Set what a job needs to know."""
    environment = dict(os.environ, DISTARRAY_TEST_RECORDS=str(records))
    if device != "cpu":
        environment["DISTARRAY_TEST_DEVICE"] = device
        environment.setdefault("DISTARRAY_TEST_EXAMPLES", str(EXAMPLES_ON_DEVICE))
    return prepared(environment)


def _run_job(
    command: list[str], records: Path, log: Path, limit: float, device: str = "cpu"
) -> tuple[int | None, float]:
    """Run one job in a session of its own; return its status and the time of cores that it used.

    The status is None where the job had to be ended; that time is not known then.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(records, device),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return _await(process, max(limit - time.monotonic(), 1.0))
        finally:
            processes.end(process)


def _await(process: subprocess.Popen[bytes], seconds: float) -> tuple[int | None, float]:
    """Wait for a process; return its status, and for how long it and its children ran."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not _stopped.is_set():
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime
        time.sleep(0.05)
    return None, 0.0


def _read(run: Run, records: Path, log: Path, status: int | None) -> bool:
    """Take in what the ranks of one job recorded; return whether it came to its end by itself."""
    started: dict[str, set[int]] = {}
    ended: dict[str, dict[int, str]] = {}
    finishes = []
    collected = False
    known = set(run.expected)
    tail = _tail(log)
    for rank in range(max(run.ranks, 1)):
        file = records / f"rank{rank}.jsonl"
        where = f"[rank {rank}] " if run.ranks else ""
        for line in file.read_text().splitlines() if file.exists() else ():
            fact = json.loads(line)
            test = fact.get("test", "")
            match fact["event"]:
                case "collected":
                    collected = True
                    run.expected += [name for name in fact["tests"] if name not in known]
                    known.update(fact["tests"])
                case "unreadable":
                    run.fail(test, fact["text"])
                case "start":
                    started.setdefault(test, set()).add(rank)
                case "end":
                    ended.setdefault(test, {})[rank] = fact["outcome"]
                    if fact["outcome"] == "failed":
                        run.fail(test, where + fact["text"])
                case "finish":
                    finishes.append(fact["exitstatus"])
    for test, ranks in started.items():
        missing = sorted(ranks - set(ended.get(test, ())))
        if missing:
            run.fail(test, f"did not end on ranks {missing}; the last lines of the job:\n{tail}")
        elif test not in run.outcomes:
            run.outcomes[test] = "passed" if "passed" in ended[test].values() else "skipped"
    finished = len(finishes) == max(run.ranks, 1)
    sound = finished and set(finishes) <= {0, 1, 5} and (status == 0) == (set(finishes) == {0})
    if not sound and "failed" not in run.outcomes.values():
        how = "was ended at its time limit" if status is None else f"ended with status {status}"
        run.fail(f"job[{run.name}]", f"the job {how}; its last lines:\n{tail}")
    return finished and collected and all(test in run.outcomes for test in run.expected)


def _tail(log: Path) -> str:
    """Take the end of a job's output, without the test runner's own frames in the stacks."""
    kept: list[str] = []
    frame = False
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('  File "'):
            frame = any(f"/{package}/" in line for package in ("_pytest", "pluggy", "pytest"))
        elif not line.startswith("    "):
            frame = False
        if not frame:
            kept.append(line)
    return "\n".join(kept[-LOG_LINES:])


if __name__ == "__main__":
    sys.exit(main())
