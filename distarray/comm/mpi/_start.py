"""The start of MPI, which lets the threads of this process run meanwhile.

``MPI_Init`` returns when all ranks have called it. ``mpi4py`` calls it when it is imported, with
the interpreter's lock held, so that nothing of this process can tell that it waits. Unless the
program has said otherwise, or has imported ``mpi4py.MPI`` before, mpi4py is therefore imported
without starting MPI, and ``MPI_Init_thread`` is called through ctypes, which gives the lock back.
What mpi4py would have set up after it, the error handlers, is set here. A thread watches from
before the call (`_abort.watch`): this rank's wait is a meeting like others, to which ranks of the
node never come (`_liveness`) or come late (`_roll_call`).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

from distarray.comm._launcher import launched_place, started_by, started_mpi
from distarray.comm.failures import _abort
from distarray.comm.failures._forks import REMEDY, end_apart
from distarray.errors import CommunicationError

_lock = threading.Lock()


def import_mpi() -> Any:
    """Return ``mpi4py.MPI``; MPI is running then. A CommunicationError says why it is not."""
    other = started_by() if started_mpi() is None else None
    if other is not None:
        raise CommunicationError(
            f"this process was started by process {other}, which is {launched_place()}: {REMEDY}"
        )
    try:
        with _lock:
            mpi = sys.modules.get("mpi4py.MPI") or _import_unstarted()
            if not mpi.Is_initialized():
                _start(mpi)
    except (ImportError, RuntimeError) as error:
        raise CommunicationError(
            f"MPI does not start: {error}; install one with pip install 'distarray-mpi[mpich]', or "
            "load the module of this machine's MPI (and build mpi4py for it where it finds none)"
        ) from error
    end_apart()
    if mpi.Is_finalized():
        raise CommunicationError(
            "MPI has been finalized, and cannot start again in this process; leave MPI.Finalize() "
            "to the end of the program"
        )
    return mpi


def _import_unstarted() -> Any:
    """Import ``mpi4py.MPI`` without starting MPI; it ends MPI where it would have started it."""
    from mpi4py import rc

    told = rc.initialize, rc.finalize
    if told[0] in (True, "yes") and "MPI4PY_RC_INITIALIZE" not in os.environ:
        rc.initialize = False
        rc.finalize = True if told[1] is None else told[1]
    try:
        from mpi4py import MPI
    finally:
        rc.initialize, rc.finalize = told
    return MPI


def _start(mpi: Any) -> None:
    """Call ``MPI_Init_thread``."""
    from mpi4py import rc

    levels = {
        "single": mpi.THREAD_SINGLE,
        "funneled": mpi.THREAD_FUNNELED,
        "serialized": mpi.THREAD_SERIALIZED,
    }
    level = levels.get(rc.thread_level, mpi.THREAD_MULTIPLE) if rc.threads else mpi.THREAD_SINGLE
    try:
        initialize = ctypes.CDLL(mpi.__file__).MPI_Init_thread
    except (OSError, AttributeError):  # a library that hides it
        mpi.Init_thread(level)
        return
    with _abort.starting():
        code = initialize(None, None, level, ctypes.byref(ctypes.c_int()))
    if code:
        raise RuntimeError(f"MPI_Init_thread returned {code}")
    handlers = {
        "exception": mpi.ERRORS_RETURN,
        "fatal": mpi.ERRORS_ARE_FATAL,
        "abort": getattr(mpi, "ERRORS_ABORT", mpi.ERRORS_ARE_FATAL),
    }
    handler = handlers.get(rc.errors)
    if handler is not None:
        mpi.COMM_SELF.Set_errhandler(handler)
        mpi.COMM_WORLD.Set_errhandler(handler)
