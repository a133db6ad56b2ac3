"""One verdict per test for all ranks of a run, and a record of it that survives a hang.

Under MPI every rank runs the same tests in the same order. After each test the ranks tell each
other how it went, over a communicator of their own, so that

* a test that fails on one rank fails, whatever the others saw, and rank 0 prints each distinct
  report;
* a rank that failed while its peers still wait in a collective for it ends the job after a short
  grace, instead of leaving everybody to the timeout;
* ranks that may be out of step (some failed, some did not) stop before the next test.

Each event is also written to one file per rank under ``DISTARRAY_TEST_RECORDS``, where `tests.run`
finds which test was running when a job was ended, and starts the rest again in a fresh job.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TextIO

import hypothesis
import pytest

from tests import on_device, pairwise

GRACE_SECONDS = 10.0
"""How long a rank that failed waits for the others to leave the same test."""

SWITCH_SECONDS = 0.0005
"""Simulated ranks are threads, which hand values to each other all the time."""

SIMULATED_SECONDS = 110.0
"""After which simulated ranks are given up: before the limit of a test, on a busy machine too."""

OUTSIDE_SECONDS = 240.0
"""How long a job of `tests.run` may collect tests, or end."""

PASSED, FAILED, SKIPPED = 0, 1, 2

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn wants it before SciPy is imported

hypothesis.settings.register_profile(
    "plain",
    deadline=None,
    print_blob=True,
    suppress_health_check=(hypothesis.HealthCheck.too_slow,),
)
hypothesis.settings.register_profile(  # of `tests.run`, which draws the same wherever it runs
    "suite", hypothesis.settings.get_profile("plain"), database=None, derandomize=True
)
hypothesis.settings.register_profile(
    "mpi",
    deadline=None,
    derandomize=True,  # every rank must draw the same examples, and none go on alone to shrink one
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(autouse=True, scope="session")
def _patience_with_simulated_ranks() -> None:
    """Let simulated ranks have the time of a test: they may compile kernels, or share a core."""
    from distarray.testing import simulate

    simulate.__kwdefaults__["timeout"] = SIMULATED_SECONDS


@pytest.fixture(autouse=True, scope="session")
def _kernels_from_the_first_byte() -> None:
    """Let kernels serve before they pay, and no other process say what is faster.

    Of all processes of the suite one compiles a kernel, while others that want one wait for it.
    """
    from distarray.comm.kernels import _choice, _jit

    def compile_once(kernel: Any) -> bytes | None:
        folder = os.open(Path(__file__).parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # of a file system without such locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            return kernel._find() or compile_it(kernel)
        finally:
            os.close(folder)

    compile_it = _jit.Kernel._compile
    _jit.Kernel._compile = compile_once  # type: ignore[method-assign]
    _jit._BYTES_BEFORE_LOADING = _jit._BYTES_BEFORE_COMPILING = 0  # type: ignore[misc]
    _choice._chosen = functools.cache(dict)


def pytest_configure(config: pytest.Config) -> None:
    """Record this rank's outcomes; under MPI also agree on them with the other ranks."""
    gc.disable()  # until the tests are collected
    on_device.prepare()
    sys.setswitchinterval(SWITCH_SECONDS)
    with_mpi = config.getoption("--with-mpi", False) or config.getoption("--only-mpi", False)
    records = os.environ.get("DISTARRAY_TEST_RECORDS")
    usual = "mpi" if with_mpi else "suite" if records else "plain"
    profile = os.environ.get("DISTARRAY_TEST_PROFILE", usual)
    hypothesis.settings.load_profile(profile)
    record = Record(records, _world_rank() if with_mpi else 0)
    config.pluginmanager.register(record, "distarray-record")
    if with_mpi:
        config.pluginmanager.register(Agreement(config, record), "distarray-agreement")


def pytest_collection_finish() -> None:
    """Look rarely for garbage among old objects, and never in what all tests are made of.

    It took a fifth of the time. Tests of what is left behind collect for themselves.
    """
    gc.freeze()
    gc.set_threshold(5000, 10, 20)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Collect what the tests have left, once: pytest and the interpreter look again."""
    gc.collect()
    gc.freeze()


def _world_rank() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.Get_rank())


class Record:
    """What this rank ran and how it ended, one JSON object a line, on disk at once."""

    def __init__(self, folder: str | None, rank: int) -> None:
        self._file: TextIO | None = None
        self._done: set[str] = set()
        self.failed = False
        self.skipped = False
        self.text = ""
        if folder:
            done = Path(folder) / "done"
            self._done = set(done.read_text().splitlines()) if done.exists() else set()
            self._file = open(Path(folder) / f"rank{rank}.jsonl", "a")  # noqa: SIM115 - open for the session
            self._log = open(Path(folder) / "log", "a")  # noqa: SIM115 - open for the session
            self._limit()

    def _limit(self) -> None:
        """End the job where it hangs outside of tests, each of which has a limit of its own."""
        faulthandler.dump_traceback_later(OUTSIDE_SECONDS, file=self._log, exit=True)

    def write(self, event: str, **facts: Any) -> None:
        """Append one event."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **facts}) + "\n")
            self._file.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what an earlier job of the same run has already settled."""
        every = [*items]
        on_device.adapt(items)
        chosen = pairwise.choose(items, 2 if on_device.DEVICE == "cpu" else 1)
        if len(chosen) < len(every):
            kept = set(map(id, chosen))
            config.hook.pytest_deselected(items=[x for x in every if id(x) not in kept])
            items[:] = chosen
        done = [item for item in items if item.nodeid in self._done]
        if done:
            items[:] = [item for item in items if item.nodeid not in self._done]
            config.hook.pytest_deselected(items=done)
        self.write("collected", tests=[item.nodeid for item in items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be imported."""
        if report.failed:
            self.write("unreadable", test=report.nodeid, text=report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test starts."""
        self.failed = self.skipped = False
        self.text = ""
        self.write("start", test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, call and tear-down."""
        self.failed |= report.failed
        self.skipped |= report.skipped
        if report.failed:
            self.text += f"{report.when}: {report.longreprtext}\n"

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note how a test ended."""
        outcome = "failed" if self.failed else "skipped" if self.skipped else "passed"
        self.write("end", test=nodeid, outcome=outcome, text=self.text)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note that the session came to its end by itself."""
        self.write("finish", exitstatus=int(exitstatus))
        if self._file is not None:
            self._limit()


class Agreement:
    """Keep the ranks of one job in step, and gather what they have to say on rank 0."""

    def __init__(self, config: pytest.Config, record: Record) -> None:
        from mpi4py import MPI

        self._config = config
        self._record = record
        self._comm = MPI.COMM_WORLD.Dup()
        self._patience = float(config.getini("timeout") or 120) * 2

    @property
    def _writer(self) -> Any:
        return self._config.get_terminal_writer()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Let rank 0 alone speak."""
        if self._comm.rank:
            self._writer._file = open(os.devnull, "w")  # noqa: SIM115 - open for the session

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Stop at once where ranks found different tests: nothing would match after that."""
        names = "\n".join(item.nodeid for item in session.items)
        digests = self._comm.allgather(hashlib.sha256(names.encode()).hexdigest())
        if len(set(digests)) > 1:
            pytest.exit("ranks collected different tests, or in a different order", returncode=3)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run one test and hear from every rank how it went."""
        result = yield
        record = self._record
        mine = FAILED if record.failed else SKIPPED if record.skipped else PASSED
        outcomes = self._exchange(mine, item.nodeid)
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome == FAILED]
        if failed:
            texts = self._comm.gather(record.text)
            if texts is not None:
                self._report(item.nodeid, failed, texts)
            if len(failed) < len(outcomes):
                item.session.shouldstop = (
                    f"{item.nodeid} failed on ranks {failed} of {len(outcomes)}: "
                    "the ranks may be out of step, so no further test is run"
                )
        return result

    def _exchange(self, mine: int, test: str) -> list[int]:
        outcomes = bytearray(self._comm.size)
        request = self._comm.Iallgather(bytearray([mine]), outcomes)
        limit = time.monotonic() + (GRACE_SECONDS if mine == FAILED else self._patience)
        pause = 2e-5
        while not request.Test():
            if time.monotonic() > limit:
                self._end_job(test)
            time.sleep(pause)
            pause = min(pause * 1.5, 2e-3)
        return list(outcomes)

    def _end_job(self, test: str) -> None:
        self._record.write("abandoned", test=test)
        capture = self._config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture(in_=True)
        os.write(
            2,
            f"\n[rank {self._comm.rank}] left {test} and waited in vain for the others; "
            f"the job ends here.\n{self._record.text}\n".encode(),
        )
        self._comm.Abort(3)

    def _report(self, test: str, failed: list[int], texts: list[str]) -> None:
        """Print each distinct report once; rank 0's own is in pytest's summary already."""
        told = {texts[0]} if 0 in failed else set()
        for rank in failed:
            if texts[rank] not in told:
                told.add(texts[rank])
                self._writer.line()
                self._writer.line(f"[rank {rank}] {test}\n{texts[rank]}", red=True)
