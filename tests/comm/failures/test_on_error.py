"""A program of several MPI ranks ends as a whole when one of its ranks ends by an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rank_programs import without_code

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60.0
PROGRAM = """
import sys, threading, time
from distarray.comm import world

c = world()
c.barrier()
if c.rank == {rank} or {rank} < 0:
    {fails}
{others}
print("came to its end")
"""
WAIT = "c.barrier(); time.sleep(600)"


def run(fails: str, rank: int, others: str = WAIT) -> tuple[int, str, float]:
    """Run a program whose rank ``rank`` (-1: every rank) does ``fails`` while others wait."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec beside this Python nor on PATH")
    program = PROGRAM.format(fails=fails, rank=rank, others=others)
    started = time.monotonic()
    # Not under this process's own MPI, where there is one.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI", "HYDRA"))}
    done = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, "-c", program],
        cwd=ROOT,
        env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = without_code(done.stdout + done.stderr, program)
    return done.returncode, said, time.monotonic() - started


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_exception_ends_all_ranks_with_one_traceback(rank):
    status, told, seconds = run("raise ValueError('broken on purpose')", rank)
    assert status != 0
    assert told.count("ValueError: broken on purpose") == 1
    assert "came to its end" not in told
    assert f"rank {max(rank, 0)} of 3 failed" in told
    assert seconds < 20


@pytest.mark.parametrize(
    "fails",
    [
        "sys.exit(3)",
        "sys.exit('a message')",
        "raise KeyboardInterrupt",
        "threading.Thread(target=lambda: 1 / 0).start(); time.sleep(600)",
        pytest.param(
            "raise SystemExit(3)",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 12), reason="Python 3.11 does not tell the exit status"
            ),
        ),
    ],
)
def test_other_ways_to_fail_end_all_ranks(fails):
    status, told, seconds = run(fails, 1)
    assert status != 0
    assert "rank 1 of 3" in told
    assert "came to its end" not in told
    assert seconds < 20


@pytest.mark.parametrize(
    "leaves",
    [
        "sys.exit(0)",
        "sys.exit()",
        "exec('try: sys.exit(3)\\nexcept SystemExit: pass')",
    ],
)
def test_leaving_without_an_error_ends_nobody_else(leaves):
    status, told, _ = run(leaves, 1, others="time.sleep(1.5)")
    assert status == 0
    assert told.count("came to its end") >= 2
    assert "ending all ranks" not in told


def test_processes_that_do_not_find_each_other_say_so():
    alone = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "PYTHONPATH": str(ROOT)}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI", "HYDRA"))}
    program = "from distarray.comm import world; print(world().size)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean | alone,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout == "1\n", done.stderr
    assert "the launcher started 4 processes, and MPI sees this one alone" in done.stderr
