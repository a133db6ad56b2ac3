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
