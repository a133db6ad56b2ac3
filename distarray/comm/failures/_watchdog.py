"""Say where this rank waits for others, when it waits for long: no program hangs without a word.

A wait is noted before it begins and forgotten when it ends; a thread looks twice a second how
long the oldest has lasted. After `SECONDS` it tells the line of the program that waits, once; after
``DISTARRAY_TIMEOUT`` seconds, by default `LIMIT`, it ends all ranks. It ends them at once where the
ranks of this node are known to wait in vain (`_in_vain`), or one of them has died (`_neighbours`).
Who keeps whom waiting the ranks of a node ask one another (`_whereabouts`).
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol

from distarray.comm._agreement import such_calls
from distarray.comm._settings import setting
from distarray.comm.failures._deadlock import Watch
from distarray.comm.failures._presence import START, Meeting, has_joined
from distarray.comm.failures._roll_call import Answers, Question, Whereabouts
from distarray.comm.failures._roll_call import late as late_ranks
from distarray.errors import ArgumentError

SECONDS = 30.0
"""How long a rank waits before it says so."""

LIMIT = 1800.0
"""How long a rank waits before that is an error, where ``DISTARRAY_TIMEOUT`` says nothing.

Of ranks on other nodes nothing tells that they have died: somebody has to give up. Reading a large
file on one rank takes less.
"""

_OFF = ("0", "none")  # what turns the limit off

_EVERY = 0.5  # seconds between looks
_GRACE = 2.0  # for those who watch the time themselves
_SECONDS_ENDING = 10.0  # that it takes a rank to end all others, at most
_SOON = 0.25  # seconds after which it is asked whether a wait is in vain
_LIBRARIES = ("distarray", "numpy", "torch")  # whose lines say nothing about the program

_BACKGROUND = "distarray background"
_OWN_THREADS = (
    *("distarray waits", "distarray-copy", "distarray checksums"),
    *(_BACKGROUND, "distarray checkpoint"),  # on communicators of their own
)
_AUTOGRAD_THREADS = "pt_autograd_"  # of torch: they work while the thread waits that wants it
_QUIET_MODULES = (  # of the functions or classes of threads of common tools
    *("multiprocessing.queues", "torch.utils.data._utils.pin_memory"),
    *("tqdm._monitor", "multiprocessing.resource_sharer"),
)


class _Wait(NamedTuple):
    """What a thread waits for, since when, and for whom, where that is known."""

    since: float
    what: object
    meeting: Meeting | None
    late: Callable[[], tuple[int, ...]] | None

    @property
    def question(self) -> Question:
        """What ranks are asked that it may wait for."""
        return self.meeting[:2] if self.meeting is not None else ("", 0)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that it may wait for."""
        if self.late is not None:
            return self.late()
        return self.meeting.ranks if self.meeting is not None else ()


_waits: dict[int, _Wait] = {}  # by thread


class waiting:  # noqa: N801 - reads as a verb: with waiting("for a communicator")
    """Note that this thread is about to wait for other ranks.

    Parameters
    ----------
    what
        ``str(what)`` says what it is about to do with them.
    meeting
        Where, if others can be told so.
    late
        Tells which ranks of the MPI world have not come; default: some of those of the meeting.
    """

    __slots__ = ("_late", "_meeting", "_outer", "_what")

    def __init__(
        self,
        what: object,
        meeting: Meeting | None = None,
        late: Callable[[], tuple[int, ...]] | None = None,
    ) -> None:
        self._what = what
        self._meeting = meeting
        self._late = late
        self._outer: _Wait | None = None

    def __enter__(self) -> None:
        own = threading.get_ident()
        outer = self._outer = _waits.get(own)
        # Else this is a part of what is known.
        if outer is None or self._meeting is not None or self._late is not None:
            _waits[own] = _Wait(time.monotonic(), self._what, self._meeting, self._late)

    def __exit__(self, *_: object) -> None:
        own = threading.get_ident()
        if self._outer is None:
            _waits.pop(own, None)
        else:
            _waits[own] = self._outer


class _BackgroundWork:
    """What is done in the background, by one thread that no other thread but the main one asks.

    Attributes
    ----------
    unfinished
        How many tasks it has been given and has not done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self.unfinished = 0

    def begin(self) -> None:
        """Note a task that is given to the thread."""
        with self._lock:
            self.unfinished += 1

    def end(self, _: object = None) -> None:
        """Note that a task is done."""
        with self._lock:
            self.unfinished -= 1

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Note that this thread waits for the one in the background."""
        own = threading.get_ident()
        self._held.add(own)
        try:
            yield
        finally:
            self._held.discard(own)

    def holds(self, thread: int) -> bool:
        """Tell whether a thread waits for the one in the background."""
        return thread in self._held


background_work = _BackgroundWork()


def timeout() -> float:
    """Return the seconds after which waiting is an error, infinity where it never is.

    Raises
    ------
    ArgumentError
        ``DISTARRAY_TIMEOUT`` is neither a positive number nor what turns the limit off.
    """
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


class End(Protocol):
    """Ends all ranks because of an error."""

    def __call__(self, message: str, frame: FrameType | None) -> None: ...


def watch(
    place: str, abort: Callable[[int], None], others: Watch | None = None, end: End | None = None
) -> threading.Event:
    """Start to look for long waits, and for those in vain.

    Parameters
    ----------
    place
        Which rank this is, for messages.
    abort
        Ends all ranks, with a status.
    others, end
        What the others are known to do, and what ends all ranks where they will not come.

    Returns
    -------
    threading.Event
        What stops it, set.
    """
    timeout()  # a wrong setting is an error at once, and here
    looking = _Looking(place, abort, others, end)
    # In a crash Python tells in what file every thread is: by this one's it names the rank.
    run = eval(compile("lambda run: run()", place, "eval"))
    threading.Thread(target=run, args=[looking.run], daemon=True, name="distarray waits").start()
    return looking.stop


class _Looking:
    """Looks at the waits of this rank; see `watch`."""

    def __init__(
        self, place: str, abort: Callable[[int], None], others: Watch | None, end: End | None
    ) -> None:
        self._place = place
        self._abort = abort
        self._others = others
        self._end = end
        self._told: set[tuple[int, float]] = set()
        self.stop = threading.Event()

    def run(self) -> None:
        """Look every now and then, until the program ends or this is stopped."""
        rest = time.sleep if self._others is None else self._others.rest
        while not self.stop.is_set():
            rest(_EVERY)
            now = list(_waits.items())
            self._look_for_long(now)
            if self._others is not None:
                self._look_for_vain(dict(now), self._others)
                self._end_if(self._others.died(), threading.main_thread().ident or 0)

    def _look_for_long(self, now: list[tuple[int, _Wait]]) -> None:
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

    def _look_for_vain(self, now: dict[int, _Wait], others: Watch) -> None:
        main = threading.main_thread().ident or 0
        soon = time.monotonic() - _SOON
        for thread, one in now.items():
            if one.meeting is not None and one.since < soon:
                self._end_if(others.gone(one.meeting, one.what), thread)
        wait, is_behind = now.get(main), False
        if wait is None and background_work.holds(main):
            wait, is_behind = _wait_behind(now), True
        if wait is not None and wait.since < soon and not _other_threads():
            is_alone = is_behind or not background_work.unfinished
            why = others.elsewhere(wait.meeting, wait.what, wait.since, is_behind, is_alone)
            self._end_if(why, main)
        else:
            others.elsewhere(None, "", 0)

    def _end_if(self, why: str, thread: int) -> None:
        if why and self._end is not None and not self.stop.is_set():
            self._end(why, sys._current_frames().get(thread))


def _wait_behind(now: dict[int, _Wait]) -> _Wait | None:
    """Return what the thread in the background waits for."""
    for thread in threading.enumerate():
        if thread.name.startswith(_BACKGROUND) and thread.ident in now:
            return now[thread.ident]
    return None


def _other_threads() -> bool:
    """Tell whether the program has threads that may communicate as well."""
    main = threading.main_thread()
    return any(t is not main and not _keeps_apart(t) for t in threading.enumerate())


def _keeps_apart(thread: threading.Thread) -> bool:
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


_answers: Answers | None = None
_given_up: tuple[float, _Wait, str] | None = None
"""When the main thread has given up waiting, and for what, at which line."""


def answer(rank: int) -> None:
    """Tell other ranks of the node from now on where this one is, and ask them.

    Parameters
    ----------
    rank
        Its number in the MPI world.
    """
    global _answers
    _answers = Answers(rank, _here)
    _answers.begin()


def _here(question: Question) -> Whereabouts:
    """Return where this rank is; what it has just given up keeps others waiting, too."""
    place, number = question
    main = threading.main_thread().ident or 0
    now = dict(_waits)
    line = line_of(sys._current_frames().get(main))
    wait = now.get(main)
    if wait is None and background_work.holds(main):
        wait = _wait_behind(now)
    if wait is None and _given_up is not None and time.monotonic() - _given_up[0] < _SECONDS_ENDING:
        _, wait, line = _given_up
    joined = bool(place) and has_joined(place, number)
    if wait is None:
        return Whereabouts(joined, line, "", ("", 0), ())
    ranks = tuple(rank for rank in wait.ranks() if _answers is None or rank != _answers.rank)
    return Whereabouts(joined, line, str(wait.what), wait.question, ranks)


def given_up(rank: int) -> str:
    """Return what is wrong where this thread has waited for as long as it may, and gives up.

    Parameters
    ----------
    rank
        Its number in the MPI world.
    """
    global _given_up
    wait = _waits[threading.get_ident()]
    line = line_of(sys._getframe())
    if threading.current_thread() is threading.main_thread():
        _given_up = time.monotonic(), wait, line
    return _message(f"rank {rank} has waited {timeout():g} s", wait, line, True)


def _message(who: str, wait: _Wait, line: str, late: bool) -> str:
    whom, why = late_ranks(_answers, wait.question, wait.ranks(), wait.late is not None)
    limit = timeout()
    if late:
        then = f"That is more than DISTARRAY_TIMEOUT={limit:g} allows, and ends all ranks"
    elif math.isfinite(limit):
        then = f"If they do not come within DISTARRAY_TIMEOUT={limit:g} s, all ranks end"
    else:
        then = "If they never come there, it waits for ever: DISTARRAY_TIMEOUT sets no limit"
    because = f". {why[0].upper()}{why[1:]}" if why else ""
    if wait.question[0] == START:
        must = "come to its first mesh"
    else:
        must = f"make the same calls{such_calls(wait.what)}"
    return f"{who} for {whom}{line} ({wait.what}){because}. {then}: every rank must {must}"


def line_of(frame: FrameType | None) -> str:
    """Return the line of the program that a thread is in, for a message; empty where none is."""
    roots = [
        str(Path(module.__file__).parent) + os.sep
        for name in _LIBRARIES
        if (module := sys.modules.get(name)) is not None and module.__file__
    ]
    while frame is not None and frame.f_code.co_filename.startswith(tuple(roots)):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename == threading.__file__:
        return ""
    path, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, number).strip()
    return f" at {path}, line {number}{f': {text}' if text else ''}"
