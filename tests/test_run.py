"""A run of the suite that is ended leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).resolve().parent.parent
SLEEPS = """
import os, subprocess, sys, time
from pathlib import Path

def test_that_sleeps():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    here = Path(__file__)
    here.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
    here.with_suffix(".part").rename(here.with_suffix(".pids"))
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_jobs_of_a_run(number: signal.Signals, tmp_path: Path) -> None:
    test = tmp_path / "test_sleeping.py"
    test.write_text(SLEEPS)
    command = [sys.executable, "-m", "tests.run", "--ranks", "0", str(test)]
    started: list[int] = []
    run = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while not test.with_suffix(".pids").exists() and time.monotonic() < end:
            time.sleep(0.05)
        started += [int(pid) for pid in test.with_suffix(".pids").read_text().split()]
        assert all(map(processes.lives, started))
        os.kill(run.pid, number)
        output, _ = run.communicate(timeout=60)
        assert run.returncode == 128 + number
        assert output.decode().endswith(f"stopped by {number.name}\n")
        assert not any(map(processes.lives, started))
    finally:
        processes.end(run)
        for pid in filter(processes.lives, started):
            os.kill(pid, signal.SIGKILL)
