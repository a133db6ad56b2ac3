"""Waits of this rank's threads for others: in what, since when, and for whom.

Ranks wait for each other at *meetings*, of which each has a place, which names a series of them
alike on its ranks, and a number in that series: the calls through a communicator, the rounds of a
channel, the first call of some ranks together. So ranks can tell each other beside MPI at which
meeting they wait, and which they have joined. A wait is noted before it begins and forgotten when
it ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

START: Final = "the start of MPI"
"""The place of the first meeting."""

_BACKGROUND: Final = "distarray background"

Question = tuple[str, int]
"""A meeting, by its place and number."""


class Meeting(NamedTuple):
    """One of several things that some ranks do together, where each waits for all.

    ``place`` names the series that it is of, alike on these ranks, ``number`` counts from 1 in it,
    and ``ranks`` are their numbers in the MPI world.
    """

    place: str
    number: int
    ranks: tuple[int, ...]


class Rounds(Protocol):
    """A series of meetings that counts them itself."""

    finds_gone: bool
    """Whether a rank that waits for the next one finds out by itself who has gone without it."""

    @property
    def joined(self) -> int:
        """The number of those that this rank has joined."""


joined: dict[str, int] = {}
"""How many meetings of each series this rank has joined."""

_rounds: weakref.WeakValueDictionary[str, Rounds] = weakref.WeakValueDictionary()
_over: set[str] = set()  # places that counted themselves, and are no more
_lock = threading.Lock()


def join_next(place: str, ranks: tuple[int, ...]) -> Meeting:
    """Return the next meeting at a place, which this rank joins now."""
    with _lock:
        number = joined[place] = joined.get(place, 0) + 1
    return Meeting(place, number, ranks)


def count_by(place: str, rounds: Rounds) -> None:
    """Let something count the meetings at a place itself."""
    with _lock:
        _rounds[place] = rounds
    weakref.finalize(rounds, _over.add, place).atexit = False


def rounds_of(place: str) -> Rounds | None:
    """Return what counts the meetings at a place itself, if something does."""
    return _rounds.get(place)


def count_joined() -> dict[str, int]:
    """Return how many meetings of each series this rank has joined, for those who wait there."""
    with _lock:  # other threads may make communicators
        known = list(_rounds.items())
    counted = {place: rounds.joined for place, rounds in known if not rounds.finds_gone}
    return joined | counted


def has_joined(place: str, number: int) -> bool:
    """Tell whether this rank has joined a meeting."""
    rounds = _rounds.get(place)
    if place in _over:  # others may have said earlier what is read now
        return True
    return (rounds.joined if rounds is not None else joined.get(place, 0)) >= number


class Wait(NamedTuple):
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


waits: dict[int, Wait] = {}
"""By thread."""


class waiting:  # noqa: N801 - reads as a verb: with waiting("for a communicator")
    """Note that this thread is about to wait for other ranks.

    ``str(what)`` says what it is about to do with them, ``meeting`` where, if others can be told
    so, and ``late`` which ranks have not come; by default some of those of the meeting.
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
        self._outer: Wait | None = None

    def __enter__(self) -> None:
        own = threading.get_ident()
        outer = self._outer = waits.get(own)
        # Else this is a part of what is known.
        if outer is None or self._meeting is not None or self._late is not None:
            waits[own] = Wait(time.monotonic(), self._what, self._meeting, self._late)

    def __exit__(self, *_: object) -> None:
        own = threading.get_ident()
        if self._outer is None:
            waits.pop(own, None)
        else:
            waits[own] = self._outer


class _BackgroundWork:
    """What one thread does in the background, which no other thread but the main one waits for.

    ``unfinished`` counts the tasks that it has been given and has not done.
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
    def waiting(self) -> Iterator[None]:
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


def main_wait() -> tuple[Wait | None, bool]:
    """Return what the main thread waits for, and whether its thread in the background does that."""
    main = threading.main_thread().ident or 0
    wait = waits.get(main)
    if wait is not None or not background_work.holds(main):
        return wait, False
    for thread in threading.enumerate():
        if thread.name.startswith(_BACKGROUND) and thread.ident in waits:
            return waits.get(thread.ident), True
    return None, True
