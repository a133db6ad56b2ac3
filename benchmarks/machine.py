"""What the numbers were measured on."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("numpy", "mpi4py", "numba", "torch", "heat", "dask")


def facts() -> dict[str, str]:
    """Collect processor, memory, system and versions."""
    from mpi4py import MPI

    found = {
        "date": dt.date.today().isoformat(),
        "processor": _after("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "MPI": MPI.Get_library_version().split("\n")[0].strip().rstrip("\0"),
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _after(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return None
