"""Programs on ranks of their own, for what a whole process has: its memory, its limits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run_on_four_ranks(program: str, **environment: str) -> str:
    """Return what a program prints on four ranks under mpiexec, one thread each."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("no mpiexec beside this Python nor on PATH")
    told = subprocess.run(
        [mpiexec, "-n", "4", sys.executable, "-c", program],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-3000:]
    return told.stdout


def without_code(said: str, program: str) -> str:
    """Return what was said of a program's lines without their text, which Python has from 3.13 on.

    Only of a program after ``-c``, as those here are; else it has been there always.
    """
    for number, line in enumerate(program.splitlines(), 1):
        place = f"at <string>, line {number}"
        said = said.replace(f"{place}: {line.strip()}", place)
    return said
