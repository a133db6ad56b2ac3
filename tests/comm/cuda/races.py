"""Which accesses to device memory nothing orders: streams are queues, and queues run side by side.

Two accesses to the same memory, one of which writes, race unless they are of one stream, or the
later one's stream has waited for an event after the earlier one, or the host has waited for the
earlier one before it asked for the later one. The stand-in for CuPy does all work at once and so
computes the same whatever is missing; but its streams know what they have waited for. Of an array
all bytes from its first to its last count.

That the host has waited holds for all threads from that moment on, also for one that did not wait
for the thread that did: such a race is found or not as the threads happen to run.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

UNIT = 512
"""Memory is looked up by pieces of so many bytes."""
LIBRARY = str(Path(__file__).resolve().parents[3] / "distarray")
PLACES = 4
"""Lines of the library that are told of an access, the innermost first."""


class Span(NamedTuple):
    """Some bytes of device memory."""

    address: int
    nbytes: int

    def units(self) -> range:
        """Return the numbers of the units that it touches."""
        if not self.nbytes:
            return range(0)
        return range(self.address // UNIT, (self.address + self.nbytes - 1) // UNIT + 1)

    def overlaps(self, other: Span) -> bool:
        """Tell whether a byte is in both."""
        return self.address < other.address + other.nbytes and (
            other.address < self.address + self.nbytes
        )

    def covers(self, other: Span) -> bool:
        """Tell whether all bytes of another one are in this one."""
        return self.address <= other.address and (
            other.address + other.nbytes <= self.address + self.nbytes
        )


class Access(NamedTuple):
    """What an operation did to memory; the number is that of the work on its stream."""

    stream: int
    number: int
    operation: str
    place: str

    def __str__(self) -> str:
        return f"{self.operation} on stream {self.stream:#x} at {self.place or 'the program'}"


class Touch(NamedTuple):
    """An access to some bytes."""

    access: Access
    span: Span
    is_write: bool

    def races_with(self, earlier: Touch) -> bool:
        """Tell whether the two must be ordered: one of them writes what the other one touches."""
        return (
            (self.is_write or earlier.is_write)
            and self.access is not earlier.access
            and self.span.overlaps(earlier.span)
        )

    def replaces(self, earlier: Touch) -> bool:
        """Tell whether what comes after this one comes after an earlier one too."""
        mine, theirs = self.access.stream, earlier.access.stream
        return self.span.covers(earlier.span) and (
            self.is_write or (mine == theirs and not earlier.is_write)
        )


class Race(NamedTuple):
    """Two accesses that nothing orders."""

    kind: str
    later: Access
    earlier: Access
    address: int
    thread: str

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.address:#x} [{self.thread}]\n"
            f"  {self.later}\n  is unordered after\n  {self.earlier}"
        )


class Checker:
    """Takes note of every access, and finds those that race with one before.

    Parameters
    ----------
    owner
        Tells whose memory an address is of: a negative number is nobody's that is kept account of.
    """

    def __init__(self, owner: Callable[[int], int]) -> None:
        self._owner = owner
        self._lock = threading.RLock()  # a collection of garbage may come in between
        self._fresh: deque[Span] = deque()
        self._completed: defaultdict[int, int] = defaultdict(int)
        self._past: dict[int, list[Touch]] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._first: dict[tuple[str, ...], Race] = {}
        self.accesses = 0

    def access(
        self, operation: str, stream: Any, reads: Iterable[Span], writes: Iterable[Span]
    ) -> None:
        """Let an operation that a stream has been given read and write memory.

        What is written need not be told apart from what is read: writes race with more.
        """
        place = _place()
        with self._lock:
            self._forget()
            self.accesses += 1
            number = stream.known[stream.ptr] = stream.known.get(stream.ptr, 0) + 1
            mine = Access(stream.ptr, number, operation, place)
            written = {span for span in writes if self._owner(span.address) >= 0}
            read = {span for span in reads if self._owner(span.address) >= 0}
            for span in read - written:
                self._touched(Touch(mine, span, False), stream)
            for span in written:
                self._touched(Touch(mine, span, True), stream)

    def completed(self, known: dict[int, int] | None) -> None:
        """Take note that the host has waited for the work of streams, up to these numbers."""
        with self._lock:
            for stream, number in (known or {}).items():
                self._completed[stream] = max(self._completed[stream], number)

    def allocated(self, memory: Span) -> None:
        """Take memory as new: the runtime gives none out that is in use.

        Nothing is waited for, because the pool that asks for memory has locked itself.
        """
        self._fresh.append(memory)

    def report(self, most: int = 20) -> str:
        """Return the races, those at the same places together, and their number at the end."""
        lines = [f"{n} times {self._first[key]}" for key, n in self._counts.most_common(most)]
        lines.append(f"races: {self._counts.total()} in {self.accesses} accesses")
        return "\n".join(lines)

    def _forget(self) -> None:
        while self._fresh:
            for unit in self._fresh.popleft().units():
                self._past.pop(unit, None)

    def _touched(self, touch: Touch, stream: Any) -> None:
        for unit in touch.span.units():
            past = self._past.get(unit, [])
            for earlier in past:
                if touch.races_with(earlier) and not self._is_ordered(earlier.access, stream):
                    self._found(touch, earlier)
            self._past[unit] = [one for one in past if not touch.replaces(one)]
            self._past[unit].append(touch)

    def _is_ordered(self, earlier: Access, stream: Any) -> bool:
        """Tell whether an access comes before what a stream is given now."""
        if earlier.stream == stream.ptr:
            return True
        known = stream.known.get(earlier.stream, 0)
        return max(known, self._completed[earlier.stream]) >= earlier.number

    def _found(self, touch: Touch, earlier: Touch) -> None:
        mine, theirs = touch.access, earlier.access
        told = ("write" if one.is_write else "read" for one in (touch, earlier))
        kind = " after ".join(told)
        key = (kind, mine.operation, mine.place, theirs.operation, theirs.place)
        self._counts[key] += 1
        if key not in self._first:
            thread = threading.current_thread().name
            self._first[key] = Race(kind, mine, theirs, touch.span.address, thread)


def _place() -> str:
    """Return the lines of the library that lead here."""
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < PLACES:
        path = frame.f_code.co_filename
        if path.startswith(LIBRARY):
            found.append(f"{path[len(LIBRARY) + 1 :]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)
