"""Processes of their own for the parts of a run, each with a deadline."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import processes

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
            processes.end(process, GRACE_SECONDS)
    printed = log.read_bytes()[start:].decode(errors="replace")
    return Ended(status, time.monotonic() - begun, printed)
