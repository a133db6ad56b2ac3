"""Processes of their own for the parts of a run, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

GRACE_SECONDS = 4.0
LINES = 30


class Ended(NamedTuple):
    """How a job ended.

    Attributes
    ----------
    status
        Of its first process; None where it was ended at its deadline.
    seconds
        It took.
    output
        All that it printed.
    """

    status: int | None
    seconds: float
    output: str

    @property
    def why(self) -> str:
        """Say what went wrong; empty where nothing did."""
        if self.status == 0:
            return ""
        how = f"ended with status {self.status}" if self.status else "was ended at its deadline"
        return f"it {how} after {self.seconds:.0f} s"

    @property
    def last_lines(self) -> str:
        """The end of what it printed."""
        return "\n".join(self.output.splitlines()[-LINES:])


def run(
    command: Sequence[str], environment: Mapping[str, str], seconds: float, log: Path, folder: Path
) -> Ended:
    """Run a command, and end it with all its descendants at the deadline.

    Parameters
    ----------
    seconds
        Until then.
    log
        File to which its output is appended.
    folder
        In which it runs.
    """
    begun = time.monotonic()
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(command)}\n".encode())
        output.flush()
        start = output.tell()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    printed = log.read_bytes()[start:].decode(errors="replace")
    return Ended(status, time.monotonic() - begun, printed)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a job to end, and then make it."""
    family = _family(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        family |= _family(process.pid)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        limit = time.monotonic() + GRACE_SECONDS
        while any(_parent(pid) is not None for pid in family) and time.monotonic() < limit:
            process.poll()
            time.sleep(0.02)
    process.wait()


def _family(leader: int) -> set[int]:
    """Return the processes that a process started, and those that these did; and itself."""
    parents = {
        int(entry.name): _parent(int(entry.name))
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    }
    family = {leader} if parents.get(leader) is not None else set()
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in family} - family
        family |= children
        grown = bool(children)
    return family


def _parent(pid: int) -> int | None:
    """Return the parent of a process that lives."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[1])
