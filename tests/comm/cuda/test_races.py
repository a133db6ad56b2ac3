"""Nothing races on a GPU: programs over the stand-in, whose accesses to memory are checked.

Each is a process of its own, because what watches the stand-in changes it for good.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import on_device

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    on_device.has_gpu(), reason="a real GPU does not tell what streams wait for"
)
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def found_in(*arguments: str, aware: str = "0") -> tuple[int, str]:
    """Return the exit status of a program of `race_programs`, and its last words."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DISTARRAY_CUDA_AWARE": aware}
    done = subprocess.run(
        [sys.executable, "-m", "tests.comm.cuda.race_programs", *arguments],
        cwd=ROOT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout or done.stderr


def assert_nothing_races(*arguments: str, accesses: int, aware: str = "0") -> None:
    """Let a program run, and see that the checker has seen as many accesses at least."""
    status, told = found_in(*arguments, aware=aware)
    assert status == 0, told
    assert told.startswith("races: 0 in ")
    assert int(told.split()[3]) >= accesses, told


@pytest.mark.parametrize(
    "way",
    [(), ("--ranks-per-node", "1"), ("--ranks-per-node", "1", "--by-host")],
    ids=["read in place", "staged", "by host"],
)
def test_redistributions_in_the_background(way: tuple[str, ...]) -> None:
    assert_nothing_races("arrays", "--ranks", "2", "3", *way, accesses=800)


def test_messages_of_device_memory_between_simulated_ranks() -> None:
    assert_nothing_races("arrays", "--ranks", "3", "--ranks-per-node", "1", accesses=400, aware="1")


@with_torch
@pytest.mark.parametrize("way", [(), ("--ranks-per-node", "1")], ids=["read in place", "staged"])
def test_steps_of_sharded_and_replicated_modules(way: tuple[str, ...]) -> None:
    assert_nothing_races("modules", "--dtypes", "float64", "bfloat16", *way, accesses=1600)


def test_memory_of_the_background_comes_after_the_programs_use_of_it() -> None:
    assert_nothing_races("table", accesses=2)


def test_without_that_order_the_upload_of_a_table_races() -> None:
    status, told = found_in("table", "--careless")
    assert status == 1
    assert "write after read" in told
    assert "set on stream" in told
    assert "comm/cuda/_launch.py" in told


def test_a_race_on_purpose_is_found_and_an_event_mends_it() -> None:
    status, told = found_in("taken", "--careless")
    assert status == 1
    assert "write after read" in told
    assert "races: 1 in 3 accesses" in told
    assert_nothing_races("taken", accesses=3)
