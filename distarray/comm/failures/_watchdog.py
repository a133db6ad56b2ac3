"""The watchdog: a thread that tells where this rank waits for long, and ends what hangs.

It looks twice a second at what the threads of this rank wait for (`_waits`). After `SECONDS` it
tells the line of the program that waits, once, and who keeps it waiting (`_roll_call`); after
``DISTARRAY_TIMEOUT`` seconds, by default `LIMIT`, it ends all ranks. It ends them at once where the
ranks of this node are in a deadlock (`_deadlock`), or one of them has died or gone (`_liveness`).
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from distarray.comm._agreement import calls_hint, line_of
from distarray.comm._settings import setting
from distarray.comm.failures._deadlock import DeadlockSearch
from distarray.comm.failures._liveness import Neighbours
from distarray.comm.failures._presence import Presence
from distarray.comm.failures._roll_call import (
    ANY_THREAD,
    BACKGROUND,
    NOBODY,
    Whereabouts,
    find_late,
)
from distarray.comm.failures._waits import (
    START,
    Question,
    Wait,
    background_work,
    has_joined,
    main_wait,
    waits,
)
from distarray.errors import ArgumentError

SECONDS = 30.0
"""How long a rank waits before it says so."""

LIMIT = 1800.0
"""How long a rank waits before that is an error, where ``DISTARRAY_TIMEOUT`` says nothing.

Of ranks on other nodes nothing tells that they have died: somebody has to give up. Reading a large
file on one rank takes less.
"""

_OFF = ("0", "none")  # what turns the limit off

# Not measured; any numbers of these sizes do.
_EVERY = 0.5  # seconds between looks
_GRACE = 2.0  # for those who watch the time themselves
_SECONDS_ENDING = 10.0  # that it takes a rank to end all others, at most
_FIRST_LOOK_SECONDS = 0.25  # seconds after which it is asked whether a wait is a hang

_OWN_THREADS = (
    *("distarray waits", "distarray-copy", "distarray checksums"),
    *("distarray background", "distarray checkpoint"),  # on communicators of their own
)
_AUTOGRAD_THREADS = "pt_autograd_"  # of torch: they work while the thread waits that wants it
_QUIET_MODULES = (  # of the functions or classes of threads of common tools
    *("multiprocessing.queues", "torch.utils.data._utils.pin_memory"),
    *("tqdm._monitor", "multiprocessing.resource_sharer"),
)


def timeout() -> float:
    """Return the seconds after which waiting is an error, infinity where it never is."""
    told = setting("DISTARRAY_TIMEOUT", str(LIMIT))
    if told in _OFF:
        return math.inf
    try:
        seconds = float(told)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ArgumentError(
            f"DISTARRAY_TIMEOUT={told!r} is not a time; set a positive number of seconds, 0 to "
            f"wait for ever, or unset it for {LIMIT:g}"
        )
    return seconds


class Watchdog:
    """Looks at the waits of this rank, in a thread, until it is stopped.

    ``place`` says in messages which rank this is. ``presence`` is this rank among those of its
    node, and ``size`` the number of all; None where they cannot be told apart from those of another
    job. ``abort`` ends all ranks with a status, ``end`` because of an error of a thread at a line.
    """

    def __init__(
        self,
        place: str,
        abort: Callable[[int], None],
        presence: Presence | None = None,
        size: int = 1,
        end: Callable[[str, FrameType | None], None] = lambda *_: None,
    ) -> None:
        timeout()  # a wrong setting is an error at once, and here
        self._place = place
        self._abort = abort
        self._end = end
        self._presence = presence
        self._told: set[tuple[int, float]] = set()
        self._stopped = threading.Event()
        if presence is not None:
            presence.listen()
            presence.answer = say_where
            self.neighbours = Neighbours(presence, size)
            self._deadlocks = DeadlockSearch(presence.rank, presence.ask)
        global _asking
        _asking = presence
        # In a crash Python tells in what file every thread is: by this one's it names the rank.
        run = eval(compile("lambda run: run()", place, "eval"))
        threading.Thread(target=run, args=[self._run], daemon=True, name="distarray waits").start()

    def stop(self) -> None:
        """End the thread, within a moment."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            (time.sleep if self._presence is None else self._presence.sleep)(_EVERY)
            now = list(waits.items())
            self._tell_long_waits(now)
            if self._presence is not None:
                with contextlib.suppress(OSError):  # no descriptor is left now: it looks again
                    self._end_hangs(now)

    def _tell_long_waits(self, now: list[tuple[int, Wait]]) -> None:
        self._told.intersection_update((thread, wait.since) for thread, wait in now)
        for thread, wait in now:
            seconds = time.monotonic() - wait.since
            # Those who watch the time themselves raise an error first, where the program can see.
            late = seconds > timeout() + _GRACE
            if not late and (seconds < SECONDS or (thread, wait.since) in self._told):
                continue
            self._told.add((thread, wait.since))
            line = line_of(sys._current_frames().get(thread))
            who = f"{self._place} has waited {seconds:.0f} s"
            sys.stderr.write(f"{_message(who, wait, line, late)}\n")
            sys.stderr.flush()
            if late:
                self._abort(1)

    def _end_hangs(self, now: list[tuple[int, Wait]]) -> None:
        main = threading.main_thread().ident or 0
        soon = time.monotonic() - _FIRST_LOOK_SECONDS
        for thread, one in now:
            if one.meeting is not None and one.since < soon:
                self._end_if(self.neighbours.gone(one.meeting, one.what), thread)
        here = say_where(("", 0), "")
        if here.may_join != ANY_THREAD and here.since < soon:
            seconds = time.monotonic() - here.since
            self._end_if(self._deadlocks.find(here, seconds), main)
        self._end_if(self.neighbours.find_dead(), main)

    def _end_if(self, why: str, thread: int) -> None:
        if why and not self._stopped.is_set():
            self._end(why, sys._current_frames().get(thread))


def _is_independent(thread: threading.Thread) -> bool:
    """Tell whether it is known that a thread never joins what main threads wait for."""
    if thread.name.startswith(_OWN_THREADS):
        return True
    if isinstance(thread, threading._DummyThread):  # not started by Python
        return _system_name(thread).startswith(_AUTOGRAD_THREADS)
    runs = getattr(thread, "_target", None)  # deleted when it ends
    home = getattr(runs, "__module__", None) if runs is not None else type(thread).__module__
    return home in _QUIET_MODULES


def _system_name(thread: threading.Thread) -> str:
    """Return the name that the system has for a thread; empty where it tells none."""
    try:
        return Path(f"/proc/self/task/{thread.native_id}/comm").read_text()
    except OSError:
        return ""


_asking: Presence | None = None
"""This rank among those of its node, who can be asked."""

_given_up: tuple[float, Wait, str] | None = None
"""When the main thread has given up waiting, and for what, at which line."""


def say_where(question: Question, line: str | None = None) -> Whereabouts:
    """Return where this rank is; what it has just given up keeps others waiting, too.

    ``question`` is the meeting that it is asked about; ``line`` where the main thread is, if that
    is not to be found out.
    """
    wait, is_behind = main_wait()
    if line is None:
        line = line_of(sys._current_frames().get(threading.main_thread().ident or 0))
    may_join = ANY_THREAD
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    if wait is not None and all(map(_is_independent, others)):
        may_join = BACKGROUND if background_work.unfinished and not is_behind else NOBODY
    if wait is None and _given_up is not None and time.monotonic() - _given_up[0] < _SECONDS_ENDING:
        _, wait, line = _given_up
    place, number = question
    joined = bool(place) and has_joined(place, number)
    if wait is None:
        return Whereabouts(joined, line, "", ("", 0), ())
    own = -1 if _asking is None else _asking.rank
    ranks = tuple(rank for rank in wait.ranks() if rank != own)
    return Whereabouts(
        joined, line, str(wait.what), wait.question, ranks, wait.since, may_join, is_behind
    )


def timeout_message(rank: int) -> str:
    """Return what is wrong where this thread has waited for as long as it may, and gives up."""
    global _given_up
    wait = waits[threading.get_ident()]
    line = line_of(sys._getframe())
    if threading.current_thread() is threading.main_thread():
        _given_up = time.monotonic(), wait, line
    return _message(f"rank {rank} has waited {timeout():g} s", wait, line, True)


def _message(who: str, wait: Wait, line: str, late: bool) -> str:
    is_start = wait.question[0] == START
    asking = None if is_start else _asking
    ask, me = (None, -1) if asking is None else (asking.ask, asking.rank)
    whom, why = find_late(ask, me, wait.question, wait.ranks(), wait.late is not None)
    limit = timeout()
    if late:
        then = f"That is more than DISTARRAY_TIMEOUT={limit:g} allows, and ends all ranks"
    elif math.isfinite(limit):
        then = f"If they do not come within DISTARRAY_TIMEOUT={limit:g} s, all ranks end"
    else:
        then = "If they never come there, it waits for ever: DISTARRAY_TIMEOUT sets no limit"
    because = f". {why[0].upper()}{why[1:]}" if why else ""
    must = "come to its first mesh" if is_start else f"make the same calls{calls_hint(wait.what)}"
    return f"{who} for {whom}{line} ({wait.what}){because}. {then}: every rank must {must}"
