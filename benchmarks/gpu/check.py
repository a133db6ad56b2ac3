"""What a machine needs for the run on a GPU, and what of it is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

NEEDS = {
    "cupy": "everything: pip install cupy-cuda13x (or 12x, as new as the driver)",
    "numba": "the kernels: pip install numba",
    "numba_cuda": "the kernels: pip install numba-cuda[cu13] (or [cu12])",
    "mpi4py": "everything on several ranks: pip install mpi4py",
    "torch": "the steps of models: a torch with CUDA",
    "pytest": "the suite: pip install pytest",
    "hypothesis": "the suite: pip install hypothesis",
    "pytest_timeout": "the suite: pip install pytest-timeout",
    "pytest_mpi": "the suite on several ranks: pip install pytest-mpi",
}
_KERNEL = """
import warnings
import cupy
from distarray.comm.cuda._boxes import launch_copies
warnings.simplefilter("error", RuntimeWarning)
source = cupy.arange(65536.0).reshape(256, 256)
target = cupy.empty((256, 256))
assert launch_copies([(target, source.T)]), "no kernel ran"
assert (target == source.T).all(), "a kernel copied wrongly"
"""
TOGETHER = "an mpiexec of mpi4py's MPI"
PROBES = {
    "a GPU": "import cupy; assert cupy.cuda.runtime.getDeviceCount() > 0",
    "numba.cuda on it": "from numba import cuda; assert cuda.is_available()",
    "a kernel of distarray": _KERNEL,
    "cuBLAS, for products": "from cupy_backends.cuda.libs import cublas",
    TOGETHER: "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2, 'each rank is alone'",
    "torch on it": "import torch; assert torch.cuda.is_available()",
}
REMEDY = "pip install mpich, or name the mpiexec of an unpacked one by --mpiexec"


def launcher(named: str | None) -> str | None:
    """Return the mpiexec to use: named, beside this Python, on PATH, or beside a package."""
    beside = [Path(sys.executable).parent, *(Path(folder) / "bin" for folder in sys.path if folder)]
    found = [named] if named else [str(folder / "mpiexec") for folder in beside]
    here = next((path for path in found if path and os.access(path, os.X_OK)), None)
    return here or (None if named else shutil.which("mpiexec"))


def with_library(environment: Mapping[str, str], mpiexec: str | None) -> dict[str, str]:
    """Let mpi4py take the library that came with a launcher, and no other MPI of the machine."""
    found = dict(environment)
    folder = Path(mpiexec).resolve().parent.parent / "lib" if mpiexec else None
    libraries = sorted(folder.glob("libmpi.so.*")) if folder is not None else []
    if libraries:
        before = found.get("LD_LIBRARY_PATH")
        found["LD_LIBRARY_PATH"] = f"{folder}:{before}" if before else str(folder)
        found.setdefault("MPI4PY_LIBMPI", str(libraries[0]))
    return found


def missing(mpiexec: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return what is not here, each with what it is for."""
    found = []
    for name, use in NEEDS.items():
        if importlib.util.find_spec(name) is None:
            found.append(f"{name} (for {use})")
    if mpiexec is None:
        found.append(f"mpiexec ({REMEDY})")
    for name, probe in PROBES.items():
        command = [sys.executable, "-c", probe]
        if name == TOGETHER:
            if mpiexec is None:
                continue
            command = [mpiexec, "-n", "2", *command]
        try:
            done = subprocess.run(
                command,
                env=dict(environment),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found.append(f"{name} (no answer in 60 s)")
            continue
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            last = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            found.append(f"{name} ({last})")
    return found
