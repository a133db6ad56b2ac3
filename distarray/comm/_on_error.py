"""End all ranks when one ends by an error, instead of leaving the others waiting for it.

An uncaught exception, in the main thread or another, prints its traceback and aborts MPI. So
does leaving the program with an exit status other than zero. Once a rank has failed for a reason
that all share, the traceback of one is enough: the others wait a moment before they print.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

_SECONDS_BEFORE_OTHERS_PRINT = 0.3


def install(comm: MPI.Intracomm) -> None:
    """Make an error on this rank end all ranks of ``comm``."""
    handler = _Handler(comm)
    handler.previous = sys.excepthook
    handler.previous_in_threads = threading.excepthook
    sys.excepthook = handler.on_exception
    threading.excepthook = handler.on_thread_exception


class _Handler:
    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._rank: int = comm.Get_rank()
        self._size: int = comm.Get_size()
        self.previous = sys.excepthook
        self.previous_in_threads = threading.excepthook

    def on_exception(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        self._announce()
        self.previous(kind, error, traceback)
        if not hasattr(sys, "ps1"):  # at a prompt the program goes on
            self.abort(1)

    def on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        self._announce()
        self.previous_in_threads(args)
        self.abort(1)

    def _announce(self) -> None:
        if self._rank:
            time.sleep(_SECONDS_BEFORE_OTHERS_PRINT)
        print(f"rank {self._rank} of {self._size} ends all ranks:", file=sys.stderr)

    def abort(self, code: int) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._comm.Abort(code)
