"""What the numbers were measured on."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
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


def label() -> str:
    """Name the processor, by its model name, family and model, for a folder of results."""
    name = _after("/proc/cpuinfo", "model name") or platform.machine()
    words = [word.lower() for word in re.findall(r"[A-Za-z0-9]+", re.sub(r"\([^)]*\)", "", name))]
    numbers = [_after("/proc/cpuinfo", key) for key in ("cpu family", "model\t")]
    words += [f"{key}{number}" for key, number in zip("fm", numbers, strict=True) if number]
    return "-".join(words)


def _after(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return None
