"""What a part of the run finds: rows in a file, each there at once, whatever happens next."""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

MOST_TOLD = 6
Cell = tuple[str, Any]
"""A unit ("s", "share", "B/s", "n" or "" for text) and a value."""


class Part:
    """The options of a part, its time, and the file of its rows.

    Parameters
    ----------
    comm
        Of the ranks that run it together: the first one decides and writes. None for one process.
    arguments
        Further options of its own, as names and defaults.
    """

    def __init__(self, comm: Any = None, **arguments: str) -> None:
        gc.freeze()  # modules: they collect garbage after every case
        parser = argparse.ArgumentParser()
        parser.add_argument("--rows", type=Path, required=True, help="file for what is found")
        parser.add_argument("--seconds", type=float, required=True, help="begin nothing after that")
        parser.add_argument("--rehearse", action="store_true", help="tiny, without a GPU")
        for name, default in arguments.items():
            parser.add_argument(f"--{name}", default=default)
        self.options = parser.parse_args()
        self.rehearsal: bool = self.options.rehearse
        self.end = time.monotonic() + self.options.seconds
        self._comm = comm
        self._writes = comm is None or comm.rank == 0
        self._left_out: list[str] = []

    def row(self, table: str, case: str, **cells: Cell | None) -> None:
        """Write one line of a table; underscores in names of columns are spaces."""
        found = {
            name.replace("_", " "): list(cell) for name, cell in cells.items() if cell is not None
        }
        self._write({"table": table, "case": case, "cells": found})

    def failed(self, table: str, case: str, error: Exception) -> None:
        """Write that a case came to an error."""
        said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self.row(table, case, trouble=("", said))

    def attempt(self, table: str, case: str, work: Callable[[], T]) -> T | None:
        """Return what comes of a case; None where it came to an error, which is written.

        An error of one rank alone leaves the others waiting, until they give up.
        """
        try:
            return work()
        except Exception as error:
            traceback.print_exc()
            self.failed(table, case, error)
            return None

    def note(self, table: str, text: str) -> None:
        """Write a line above a table."""
        self._write({"table": table, "note": text})

    def verdict(self, promise: str, holds: bool | None, text: str) -> None:
        """Write whether a promise holds; None where that was not found out."""
        self._write({"promise": promise, "holds": holds, "text": text})

    def fact(self, name: str, value: str) -> None:
        """Write something about the machine."""
        self._write({"fact": name, "value": value})

    def has_time(self, what: str) -> bool:
        """Tell whether something may begin; the ranks get one answer. What may not is noted."""
        found = time.monotonic() < self.end
        if self._comm is not None:
            found = self._comm.bcast(found)
        if not found:
            self._left_out.append(what)
        return bool(found)

    def close(self, table: str) -> None:
        """Say what was left out."""
        if self._left_out:
            told = ", ".join(self._left_out[:MOST_TOLD])
            more = len(self._left_out) - MOST_TOLD
            told += f" and {more} more" * (more > 0)
            self.note(table, f"Left out, for want of time: {told}.")

    def _write(self, row: dict[str, Any]) -> None:
        if self._writes:
            with self.options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
