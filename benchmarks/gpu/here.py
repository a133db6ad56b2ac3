"""What the numbers are measured on: GPU, driver, CUDA, CuPy and the machine around them.

Run by the driver as ``python -m benchmarks.gpu.here``.
"""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
from importlib import metadata
from typing import Any

from benchmarks import machine
from benchmarks.gpu.device import library
from benchmarks.gpu.part import Part

PACKAGES = ("numba", "numba-cuda", "torch", "cupy-cuda13x", "cupy-cuda12x")
QUERIED = (
    "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,mig.mode.current"
)


def main() -> None:
    """Write what can be found out; what cannot is told, too."""
    part = Part()
    part.fact("date", dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"))
    part.fact("nvidia-smi", _driver())
    try:
        for name, value in machine.facts().items():
            if name != "date":
                part.fact(name, value)
    except Exception as error:  # mpi4py without an MPI, for one
        part.fact("MPI", f"{type(error).__name__}: {error}")
    for package in PACKAGES:
        try:
            part.fact(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    for name, value in _device(library(part.rehearsal)).items():
        part.fact(name, value)


def _driver() -> str:
    found = shutil.which("nvidia-smi")
    if found is None:
        return "not found"
    command = [found, f"--query-gpu={QUERIED}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return (done.stdout or done.stderr).strip().replace("\n", "; ")


def _device(cupy: Any) -> dict[str, str]:
    runtime = cupy.cuda.runtime
    told = runtime.getDeviceProperties(0)
    free, total = cupy.cuda.Device(0).mem_info
    return {
        "GPU": f"{told['name'].decode()}, {told.get('multiProcessorCount', '?')} multiprocessors",
        "GPU memory": f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of it free",
        "GPUs seen": str(runtime.getDeviceCount()),
        "CUDA driver": str(runtime.driverGetVersion()),
        "CUDA runtime": str(runtime.runtimeGetVersion()),
        "CuPy": cupy.__version__,
    }


if __name__ == "__main__":
    main()
