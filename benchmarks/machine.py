"""The machine that numbers are measured on, and what else it does meanwhile."""

from __future__ import annotations

import datetime as dt
import os
import platform
import resource
import time
from importlib import metadata
from pathlib import Path

from distarray._bench import busy_seconds

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


class Others:
    """Processor time that other programs use, from now on.

    It is what the machine has worked (and, a virtual one, has not got from its host), less what the
    processes that this one has started and waited for have.
    """

    def __init__(self) -> None:
        self._start = self._now()

    def share(self) -> float:
        """Return which part of the time of all cores it was."""
        busy, own, wall = (b - a for a, b in zip(self._start, self._now(), strict=True))
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1))

    @staticmethod
    def _now() -> tuple[float, float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(one.ru_utime + one.ru_stime for one in used)
        return busy_seconds(), own, time.perf_counter()


def _after(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.split(":", 1)[1].strip()
    return None
