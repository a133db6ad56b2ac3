"""Abort: one rank that ends by an error ends all, instead of leaving the others waiting for it.

An uncaught exception, in the main thread or another, prints its traceback and aborts MPI. So
does leaving the program with an exit status other than zero, or by ``os._exit`` while others go on.
Where all ranks fail alike the traceback of one is enough: rank 0 prints at once and the others wait
a moment, and of those on a node one speaks. What was written is given time to leave before the
abort, which would lose it: the rank that aborts asks the others of its node to let out what they
hold back, and waits a second for them at most. Ranks of other nodes are not asked, and a rank that
the launcher kills, because another one was killed, has no time to.

A rank that comes to the end of the program says so (`_presence`). Where it has not started MPI, and
its process is all that there will be of it, it stays for some seconds until its neighbours know:
each of them that comes to ``MPI_Init`` meanwhile would hang there.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
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
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from distarray.comm._agreement import line_of
from distarray.comm._launcher import (
    Place,
    count_ranks_here,
    is_all_of_rank,
    job,
    launched_place,
    own_place,
    started_mpi,
)
from distarray.comm.failures._exit_status import watch_exit_status
from distarray.comm.failures._liveness import Start
from distarray.comm.failures._presence import Presence
from distarray.comm.failures._waits import START, join_next, waiting
from distarray.comm.failures._watchdog import Watchdog
from distarray.errors import CommunicationError

# Not measured: launchers on busy machines take tenths of a second, a person waits for some seconds.
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
_SECONDS_TO_FLUSH = 1.0
"""How long a rank that ends the job waits for what others of its node have printed."""
_SECONDS_TO_COME = 5.0
"""How long a rank that ends without starting MPI waits for those who would wait for it there."""
_FILES_OF_MPI = ("/dev/shm/mpich_shm_", "/dev/shm/Intel_MPI_")
"""Memory files of a job, which MPI removes when it ends well and leaves behind when it does not."""


def install() -> None:
    """Make an uncaught exception on this rank end all ranks.

    Done where a launcher has started several processes, when the library is imported: the others
    may wait in MPI already. Elsewhere nothing is done before MPI has found several ranks.
    """
    global _ending
    if _ending is not None:
        return
    _ending = _ErrorHooks()
    sys.excepthook = _ending.on_exception
    threading.excepthook = _ending.on_thread_exception
    atexit.register(_announce_end, os.getpid())
    if launched_place() is not None:
        with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
            if not faulthandler.is_enabled():  # a crash tells its line
                faulthandler.enable()
        if is_all_of_rank():
            install_at_exit()


def end(message: str, frame: FrameType | None) -> None:
    """End all ranks because one hangs, in a call that cannot be ended otherwise."""
    if _ending is not None:
        _ending.on_hang(message, frame)


def watch() -> None:
    """Look from now on for long waits of this rank, for hangs, and for dead neighbours.

    Called before MPI starts, where the launcher says which rank this is, and when MPI has said it.
    """
    global _watched
    place = own_place()
    if _watched is not None:
        before, watchdog = _watched
        if before == place:
            if not _is_spawned():
                watchdog.neighbours.look()
            return
        watchdog.stop()
        _present(before).close()
        _watched = None
    if place is None:
        return
    presence = None if _is_spawned() else _present(place)
    if presence is not None:
        presence.flush = _flush
    _watched = place, Watchdog(str(place), abort, presence, place.size, end)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Note that this rank starts MPI, which it does as soon as all others do."""
    global _is_starting
    place = launched_place()
    if place is None or _is_spawned():
        yield
        return
    watch()
    start = Start(_present(place), place.size)
    _is_starting = True
    try:
        meeting = join_next(START, start.ranks)
        with waiting(start, meeting, start.late):
            yield
    finally:
        _is_starting = False
    watch()


def _announce_end(process: int) -> None:
    """Tell those who wait for this rank that it has come to the end of the program."""
    place = own_place() if _watched is None else _watched[0]
    if place is None or process != os.getpid() or _is_spawned():
        return
    _present(place).go()
    ranks = range(place.size)
    with contextlib.suppress(OSError):  # no descriptor is left: nobody learns of it then
        if _watched is not None:
            _present(place).leave(ranks, 0, _SECONDS_TO_COME)
        elif started_mpi() is None and is_all_of_rank():
            others = count_ranks_here(*place) - 1
            _present(place).leave(ranks, others, _SECONDS_TO_COME, False)


@lru_cache(maxsize=1)
def _present(place: Place) -> Presence:
    return Presence(place.rank)


def _is_spawned() -> bool:
    """Tell whether another job of MPI started this one: these cannot be told apart here."""
    mpi = started_mpi()
    if os.environ.get("PMI_SPAWNED", "0") != "0":
        return True
    return mpi is not None and not mpi.Is_finalized() and mpi.Comm.Get_parent() != mpi.COMM_NULL


def install_at_exit() -> None:
    """Make leaving with an exit status other than zero, or at once, end all ranks as well."""
    global _leaving
    if _leaving is None:
        _leaving = _ExitHooks()
        # Before the threads are waited for, which may be in the middle of an exchange: the last to
        # register is called first, and the module of pools registers when it is imported.
        importlib.import_module("concurrent.futures.thread")
        getattr(threading, "_register_atexit", atexit.register)(_leaving.on_exit)
        os._exit = _leaving.at_once


def warn_if_alone() -> None:
    """Warn that MPI has found one rank only, where the launcher has started several processes.

    Each would run the whole program by itself, without an error.
    """
    told = launched_place()
    if told is not None:
        warnings.warn(
            f"the launcher started {told.size} processes, and MPI sees this one alone, as a "
            "program of 1 rank: start with the mpiexec of the MPI that mpi4py uses, or under "
            "Slurm with the PMI that it speaks (srun --mpi=pmi2 for MPICH, --mpi=pmix for Open "
            "MPI)",
            RuntimeWarning,
            stacklevel=3,
        )


def abort(code: int) -> None:
    """End all ranks with a status, once what they wrote has left them."""
    place = own_place()
    if place is not None and not _is_spawned():
        _present(place).let_flush(range(place.size), _SECONDS_TO_FLUSH)
    _flush(_SECONDS_TO_READ)
    time.sleep(_SECONDS_TO_FORWARD)
    if started_mpi() is None and not _is_starting:
        # The others may be starting MPI, and wait there for this rank: it joins, to end them.
        # If they do not come, the alarm ends this one.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS_TO_JOIN)
        with contextlib.suppress(ImportError, RuntimeError):
            joined: Any = importlib.import_module("mpi4py.MPI")
            if not joined.Is_initialized():
                joined.Init_thread()
        signal.alarm(0)
    _remove_files()
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and (_is_starting or mpi.Is_initialized()) and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    if _is_starting:  # a library that cannot abort yet
        time.sleep(_SECONDS_SILENT)
        _exit(code)


def _remove_files() -> None:
    """Remove the memory files of this job: those that this process has in its memory."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        for path in {line.split(maxsplit=5)[-1] for line in lines}:
            if path.startswith(_FILES_OF_MPI):
                with contextlib.suppress(OSError):  # another rank has
                    os.unlink(path)


class _ExitHooks:
    """What is called when this rank leaves with a status, or at once."""

    def __init__(self) -> None:
        self._status = watch_exit_status()
        self._process = os.getpid()

    def on_exit(self) -> None:
        """Abort where the program is leaving with a status other than zero."""
        status, place = self._status.get(), own_place()
        if status is None or status == 0 or place is None:
            return
        code = status if isinstance(status, int) else 1
        how = f"{place} left with exit status {code}{self._status.where}"
        sys.stderr.write(f"{how}: ending all ranks\n")
        time.sleep(_SECONDS_TO_LEAVE)
        abort(code)

    def at_once(self, status: int) -> NoReturn:
        """Take the place of ``os._exit``: abort unless all the others are seen to leave as well.

        Launchers take a process that ends with status 0 for a good one, even while others wait.
        """
        place = own_place()
        if place is None or os.getpid() != self._process or _is_spawned():
            _exit(status)
        line = line_of(sys._getframe(1))
        presence = _present(place)
        presence.go()
        ranks = range(place.size)
        end = time.monotonic() + _SECONDS_TO_LEAVE
        while (stay := presence.here(ranks) - presence.gone(ranks)) and time.monotonic() < end:
            time.sleep(_SECONDS_TO_LEAVE / 50)
        # Of ranks on other nodes nothing is known.
        alone = started_mpi() is not None and len(presence.gone(ranks)) + 1 < place.size
        if stay or alone or status:
            how = f"{place} left by os._exit({status}) without MPI.Finalize(){line}"
            sys.stderr.write(f"{how}: ending all ranks\n")
            abort(status or 1)
        _announce_end(self._process)
        _exit(status)


class _ErrorHooks:
    """What is called when this rank fails by an error."""

    def __init__(self) -> None:
        self._previous = sys.excepthook
        self._previous_in_threads = threading.excepthook
        self._claim: Any = None

    def on_exception(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        """Take the place of ``sys.excepthook``."""
        place = own_place()
        if place is None or hasattr(sys, "ps1"):  # at a prompt the program goes on
            self._previous(kind, error, traceback)
            return
        with _buffer_stderr():
            if self._announce(place):
                self._previous(kind, error, traceback)
        abort(1)

    def on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        """Take the place of ``threading.excepthook``."""
        place = own_place()
        if place is None or started_mpi() is None or issubclass(args.exc_type, SystemExit):
            self._previous_in_threads(args)
            return
        with _buffer_stderr():
            self._announce(place)
            self._previous_in_threads(args)
        abort(1)

    def on_hang(self, message: str, frame: FrameType | None) -> None:
        """Print as an uncaught error what a thread would raise if it could, and end all ranks."""
        place = own_place()
        if place is None:
            return
        with _buffer_stderr():
            if self._announce(place):
                stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
                sys.stderr.write(
                    f"Traceback (most recent call last):\n{stack}"
                    f"{CommunicationError.__module__}.CommunicationError: {message}\n"
                )
        abort(1)

    def _announce(self, place: Place) -> bool:
        """Say that this rank fails; False where another one does, and waits for this to join."""
        if place.rank != 0:
            _sleep(place, _SECONDS_BEFORE_OTHERS_PRINT)
        if not self._is_first_to_fail():
            if started_mpi() is None and not _is_starting:
                return False
            _sleep(place, _SECONDS_SILENT)
        sys.stderr.write(f"{place} failed: ending all ranks\n")
        return True

    def _is_first_to_fail(self) -> bool:
        """Tell whether this rank is the first of its node to fail.

        The first takes a name that the system gives to one process at a time, and frees with it.
        """
        import socket

        name = f"\0distarray {os.getuid()} failing in {job()}"
        self._claim = socket.socket(socket.AF_UNIX)
        try:
            self._claim.bind(name)
        except OSError as error:
            return error.errno != errno.EADDRINUSE
        return True


def _sleep(place: Place, seconds: float) -> None:
    """Sleep, and let out meanwhile what was printed if another rank asks for it."""
    (time.sleep if _is_spawned() else _present(place).sleep)(seconds)


_ending: _ErrorHooks | None = None
_leaving: _ExitHooks | None = None
_watched: tuple[Place, Watchdog] | None = None
_is_starting = False
_exit = os._exit


# --- what was written ----------------------------------------------------------------------------


@contextlib.contextmanager
def _buffer_stderr() -> Iterator[None]:
    """Write what is printed to stderr at once, so that ranks do not write into each other's."""
    stream, sys.stderr = sys.stderr, io.StringIO()
    try:
        yield
    finally:
        text, sys.stderr = sys.stderr.getvalue(), stream
        stream.write(text)


def _flush(seconds: float = _SECONDS_TO_FLUSH / 2) -> None:
    """Write what is held back, and wait for the launcher to read it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or none
            stream.flush()
    limit = time.monotonic() + seconds
    while any(map(_unread, (1, 2))) and time.monotonic() < limit:
        time.sleep(0.01)


def _unread(file: int) -> int:
    """Return how many bytes lie in a pipe; 0 for other files."""
    with contextlib.suppress(OSError, ImportError, AttributeError):
        import fcntl
        import termios

        if stat.S_ISFIFO(os.fstat(file).st_mode):
            return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0
