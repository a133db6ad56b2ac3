"""The node as launcher and system describe it: its ranks, and the memory that this job may use.

Memory is bounded by the control groups that a process is in, each of which has part of what the
one above it has: Slurm's ``--mem`` bounds that of the step or job, far above the process's own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_LOCAL_SIZES: Final = (
    "MPI_LOCALNRANKS",  # MPICH and Intel MPI
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)
"""Where launchers say how many ranks they started on this node."""

_SLURM_SIZES: Final = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
"""Where Slurm says it of every node of the step, or of the job: ``2(x3),1`` is 2, 2, 2, 1."""

_WORLD_SIZES: Final = ("PMI_SIZE", "PMIX_SIZE")
"""Where launchers say how many ranks they started in all."""


class _Names(NamedTuple):
    """What the files of a kind of control group are called."""

    mount: str
    limit: str
    used: str
    cached: tuple[str, str]  # in memory.stat: file pages, which the system can take back


_V1: Final = _Names(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2: Final = _Names(
    "sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")
)


def ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher says it started on this node, 1 if it says nothing.

    Where it says less, the number is not too small: the most ranks of any node, or all of them.
    """
    told = [_number(environment.get(name, "")) for name in _LOCAL_SIZES]
    told += [_of_slurm(environment.get(name, ""), environment) for name in _SLURM_SIZES]
    told += [_number(environment.get(name, "")) for name in _WORLD_SIZES]
    return next(filter(None, told), 1)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _of_slurm(tasks: str, environment: Mapping[str, str]) -> int:
    """Return this node's entry of a list of tasks per node; the largest where it is unknown."""
    sizes: list[int] = []
    for part in tasks.split(","):
        entry = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if entry is None:
            return 0
        sizes += [int(entry[1])] * int(entry[2] or 1)
    node = environment.get("SLURM_NODEID", "")
    here = _number(node)
    return sizes[here] if node.isdecimal() and here < len(sizes) else max(sizes)


def memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this job may use on the node."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *(limit for limit, *_ in _limits(root))])


def available(root: Path = Path("/")) -> int:
    """Return the bytes of memory that can still be had, by the system and by control groups."""
    free = _numbers(root / "proc/meminfo").get("MemAvailable:", 1 << 52) * 1024
    for limit, folder, names in _limits(root):
        with contextlib.suppress(OSError, ValueError):
            used = int((folder / names.used).read_text())
            stat = _numbers(folder / "memory.stat")
            free = min(free, limit - used + sum(stat.get(name, 0) for name in names.cached))
    return free


def _limits(root: Path) -> Iterator[tuple[int, Path, _Names]]:
    """Return the limits of the control groups of this process, from its own up, where they are."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number != "0" and "memory" not in controllers.split(","):
                continue
            names = _V2 if number == "0" else _V1
            own = PurePosixPath(path.lstrip("/"))
            # Inside of a container the path may be that outside of it: then only the top is found.
            for group in (own, *own.parents):
                folder = root / names.mount / group
                with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                    yield int((folder / names.limit).read_text()), folder, names


def _numbers(path: Path) -> dict[str, int]:
    """Return the first number of every line of a file, by the line's first word."""
    found = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) > 1 and words[1].isdigit():
                found[words[0]] = int(words[1])
    return found
