"""End a process with everything that it started, in sessions of their own too."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path


def end(process: subprocess.Popen[bytes], grace: float = 2.0) -> None:
    """Ask the leader of a session and all its descendants to end, and then make them.

    Parameters
    ----------
    grace
        Seconds for each of the two.
    """
    doomed = _family(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        doomed |= _family(process.pid)
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + grace
        while any(map(lives, doomed)) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.02)
    process.wait()


def lives(pid: int) -> bool:
    """Tell whether there is such a process, and it has not ended."""
    fields = _stat(Path("/proc") / str(pid))
    return bool(fields) and fields[0] != "Z"


def _family(leader: int) -> set[int]:
    """Return the processes of a leader's session, and all that these started."""
    parents: dict[int, int] = {}
    family = {leader} if lives(leader) else set()
    for entry in Path("/proc").iterdir():
        fields = _stat(entry) if entry.name.isdigit() else []
        if fields:
            parents[int(entry.name)] = int(fields[1])
            if fields[0] != "Z" and int(fields[3]) == leader:
                family.add(int(entry.name))
    grown = bool(family)
    while grown:
        children = {pid for pid, parent in parents.items() if parent in family} - family
        family |= children
        grown = bool(children)
    return family


def _stat(folder: Path) -> list[str]:
    """Return what the system says of a process, from its state on; empty where there is none."""
    try:
        return (folder / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []
