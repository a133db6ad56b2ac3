"""Memory that this job may use on its node.

It is bounded by the control groups that a process is in, each of which has part of what the
one above it has: Slurm's ``--mem`` bounds that of the step or job, far above the process's own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple


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
