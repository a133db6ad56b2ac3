"""End all ranks when one ends by an error, instead of leaving the others waiting for it.

An uncaught exception, in the main thread or another, prints its traceback and aborts MPI. So
does leaving the program with an exit status other than zero. Where all ranks fail alike the
traceback of one is enough: rank 0 prints at once and the others wait a moment, and of those on a
node one speaks. What was written is given time to leave before the abort, which would lose it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import dis
import errno
import importlib
import io
import os
import signal
import stat
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

from distarray.comm import _in_vain, _job, _presence, _waiting
from distarray.errors import CommunicationError

_SECONDS_BEFORE_OTHERS_PRINT = 1.0
_SECONDS_SILENT = 5.0
"""How long a rank waits to be ended by the one that speaks, before it speaks as well."""
_SECONDS_TO_LEAVE = 1.0
"""How long a rank that left with a status waits for the others to say what they have to say."""
_SECONDS_TO_READ = 3.0
"""How long the launcher has at most to read what a rank wrote."""
_SECONDS_TO_FORWARD = 0.2
"""How long it has then to pass it on."""
_SECONDS_TO_JOIN = 10
"""How long a rank that fails before MPI has started waits for the others to start it."""


def install() -> None:
    """Make an uncaught exception on this rank end all ranks, should MPI run with several of them.

    Done when the library is imported: MPI may run already, and be what the others wait in.
    """
    global _ending
    _ending = _Ending()
    sys.excepthook = _ending.on_exception
    threading.excepthook = _ending.on_thread_exception
    atexit.register(_say_that_gone, os.getpid())


def end(message: str, frame: FrameType | None) -> None:
    """End all ranks because one waits in vain, in a call that cannot be ended otherwise.

    Parameters
    ----------
    message
        Why.
    frame
        Where it waits.
    """
    if _ending is not None:
        _ending.on_wait_in_vain(message, frame)


def watch() -> None:
    """Look from now on for long waits of this rank, and for those in vain."""
    place = _place()
    if place is not None:
        others = None if _is_spawned() else _in_vain.Watch(_presence.Presence(place.rank))
        _waiting.watch(str(place), abort, others, end)


def _say_that_gone(process: int) -> None:
    """Tell those who wait for this rank that it has come to the end of the program."""
    place = _place()
    if place is None or process != os.getpid() or _is_spawned():
        return
    _presence.Presence(place.rank).go()


def _is_spawned() -> bool:
    """Tell whether another job of MPI started this one: these cannot be told apart here."""
    mpi = _mpi()
    told = os.environ.get("PMI_SPAWNED", "0") != "0"
    return told or (mpi is not None and mpi.Comm.Get_parent() != mpi.COMM_NULL)


def install_at_exit() -> None:
    """Make leaving with an exit status other than zero end all ranks as well."""
    leaving = _Leaving()
    # Before the threads are waited for, which may be in the middle of an exchange.
    getattr(threading, "_register_atexit", atexit.register)(leaving.on_exit)


def warn_if_alone() -> None:
    """Warn that MPI has found one rank only, where the launcher has started several processes.

    Each would run the whole program by itself, without an error.
    """
    told = _launched()
    if told is not None:
        warnings.warn(
            f"the launcher started {told.size} processes, and MPI sees this one alone, as a "
            "program of 1 rank: start with the mpiexec of the MPI that mpi4py uses, or under "
            "Slurm with the PMI that it speaks (srun --mpi=pmi2 for MPICH, --mpi=pmix for Open "
            "MPI)",
            RuntimeWarning,
            stacklevel=3,
        )


_LAUNCHED = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Where launchers say which rank of how many a process is."""


class _Place(NamedTuple):
    """Which of several ranks this is."""

    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


def _place() -> _Place | None:
    """Return which of several ranks this is; None where it is the only one, or is done with MPI."""
    mpi = _mpi()
    if mpi is not None:
        if mpi.Is_finalized():
            return None
        comm = mpi.COMM_WORLD
        place = _Place(comm.Get_rank(), comm.Get_size())
        return place if place.size > 1 else None
    return _launched()


def _launched() -> _Place | None:
    """Return which of several ranks the launcher says this is; None where it says nothing."""
    for rank, size in _LAUNCHED:
        told = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(map(str.isdecimal, told)) and int(told[1]) > 1:
            return _Place(*map(int, told))
    return None


def _mpi() -> Any:
    """Return ``mpi4py.MPI`` where it has started MPI."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return mpi if getattr(mpi, "COMM_WORLD", None) is not None and mpi.Is_initialized() else None


def abort(code: int) -> None:
    """End all ranks with a status, once what this one wrote has left it."""
    _drain()
    if _mpi() is None:
        # The others may be starting MPI, and wait there for this rank: it joins, to end them.
        # If they do not come, the alarm ends this one.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS_TO_JOIN)
        with contextlib.suppress(ImportError, RuntimeError):
            importlib.import_module("mpi4py.MPI")
        signal.alarm(0)
    mpi = _mpi()
    if mpi is not None and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)


class _Leaving:
    """What it means for the others that this rank leaves with a status."""

    def __init__(self) -> None:
        self._status = _watch_exit_status()

    def on_exit(self) -> None:
        """Abort where the program is leaving with a status other than zero."""
        status, place = self._status.get(), _place()
        if status is None or status == 0 or place is None:
            return
        code = status if isinstance(status, int) else 1
        sys.stderr.write(f"{place} left with exit status {code}: ending all ranks\n")
        time.sleep(_SECONDS_TO_LEAVE)
        abort(code)


class _Ending:
    """What it means for the others that this rank fails."""

    def __init__(self) -> None:
        self._previous = sys.excepthook
        self._previous_in_threads = threading.excepthook
        self._voice: Any = None

    def on_exception(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        """Take the place of ``sys.excepthook``."""
        place = _place()
        if place is None or hasattr(sys, "ps1"):  # at a prompt the program goes on
            self._previous(kind, error, traceback)
            return
        with _in_one_piece():
            if self._announce(place):
                self._previous(kind, error, traceback)
        abort(1)

    def on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        """Take the place of ``threading.excepthook``."""
        place = _place()
        if place is None or _mpi() is None or issubclass(args.exc_type, SystemExit):
            self._previous_in_threads(args)
            return
        with _in_one_piece():
            self._announce(place)
            self._previous_in_threads(args)
        abort(1)

    def on_wait_in_vain(self, message: str, frame: FrameType | None) -> None:
        """Print as an uncaught error what a thread would raise if it could, and end all ranks."""
        place = _place()
        if place is None:
            return
        with _in_one_piece():
            if self._announce(place):
                stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
                sys.stderr.write(
                    f"Traceback (most recent call last):\n{stack}"
                    f"{CommunicationError.__module__}.CommunicationError: {message}\n"
                )
        abort(1)

    def _announce(self, place: _Place) -> bool:
        """Say that this rank fails; False where another one does, and waits for this to join."""
        if place.rank != 0:
            time.sleep(_SECONDS_BEFORE_OTHERS_PRINT)
        if not self._speaks():
            if _mpi() is None:
                return False
            time.sleep(_SECONDS_SILENT)
        sys.stderr.write(f"{place} failed: ending all ranks\n")
        return True

    def _speaks(self) -> bool:
        """Tell whether this rank is the first of its node to fail.

        The first takes a name that the system gives to one process at a time, and frees with it.
        """
        import socket

        name = f"\0distarray {os.getuid()} failing in {_job.job()}"
        self._voice = socket.socket(socket.AF_UNIX)
        try:
            self._voice.bind(name)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True


_ending: _Ending | None = None


# --- what was written ----------------------------------------------------------------------------


@contextlib.contextmanager
def _in_one_piece() -> Iterator[None]:
    """Write what is printed to stderr at once, so that ranks do not write into each other's."""
    stream, sys.stderr = sys.stderr, io.StringIO()
    try:
        yield
    finally:
        text, sys.stderr = sys.stderr.getvalue(), stream
        stream.write(text)


def _drain() -> None:
    """Wait until the launcher has what this rank wrote."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    limit = time.monotonic() + _SECONDS_TO_READ
    while any(map(_unread, (1, 2))) and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(_SECONDS_TO_FORWARD)


def _unread(file: int) -> int:
    """Return how many bytes lie in a pipe; 0 for other files."""
    with contextlib.suppress(OSError, ImportError, AttributeError):
        import fcntl
        import termios

        if stat.S_ISFIFO(os.fstat(file).st_mode):
            return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


# --- the exit status -----------------------------------------------------------------------------
# Python tells nobody that a SystemExit ends the program, nor its status.


def _outermost_frame() -> FrameType | None:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _watch_exit_status() -> _CalledExit | _UnwoundExit:
    outermost = _outermost_frame()
    if sys.version_info >= (3, 12) and outermost is not None:
        for tool in (4, 3):  # those that debuggers, coverage and profilers leave free
            if sys.monitoring.get_tool(tool) is None:
                return _UnwoundExit(outermost.f_code, tool)
    return _CalledExit(outermost)


class _UnwoundExit:
    """The status of the SystemExit that leaves the outermost frame, by ``sys.monitoring``."""

    def __init__(self, code: CodeType, tool: int) -> None:
        self._code = code
        self._status: object = None
        monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - Python 3.12 has it
        monitoring.use_tool_id(tool, "distarray")
        monitoring.register_callback(tool, monitoring.events.PY_UNWIND, self._unwound)
        monitoring.set_events(tool, monitoring.events.PY_UNWIND)

    def _unwound(self, code: CodeType, _: int, error: BaseException) -> None:
        if code is self._code and isinstance(error, SystemExit):
            self._status = error.code

    def get(self) -> object:
        """Return the status with which the program is ending; None without one."""
        return self._status


class _CalledExit:
    """The status of the last call of ``sys.exit``, if it is what ended the outermost frame.

    A status given to ``raise SystemExit(status)`` itself is not seen.
    """

    def __init__(self, outermost: FrameType | None) -> None:
        self._outermost = outermost
        self._status: object = None
        sys.exit = self._exit
        for name in ("exit", "quit"):  # absent under python -S
            if hasattr(builtins, name):
                setattr(builtins, name, self._exit)

    def _exit(self, status: Any = None, /) -> NoReturn:
        self._status = status
        raise SystemExit(status)

    def get(self) -> object:
        """Return the status with which the program is ending; None without one."""
        frame = self._outermost
        if frame is None:
            return self._status
        last = {step.offset: step.opname for step in dis.get_instructions(frame.f_code)}
        # The frame returned: somebody caught the exception, and the program came to its end.
        returned = last.get(frame.f_lasti, "").startswith("RETURN")
        return None if returned else self._status
