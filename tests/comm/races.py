"""Which accesses to device memory nothing orders: streams are queues, and queues run side by side.

Two accesses to the same memory, one of which writes, race unless they are of one stream, or the
later one's stream has waited for an event after the earlier one, or the host has waited for the
earlier one before it asked for the later one. The stand-in for CuPy does all work at once and so
computes the same whatever is missing; but its streams know what they have waited for. Memory is
kept account of by the unit that allocations are cut in.

That the host has waited holds for all threads from that moment on, also for one that did not wait
for the thread that did: such a race is found or not as the threads happen to run.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

UNIT = 512
LIBRARY = str(Path(__file__).resolve().parents[2] / "distarray")
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


class Access(NamedTuple):
    """What an operation did to memory; the number is that of the work on its stream."""

    stream: int
    number: int
    operation: str
    place: str

    def __str__(self) -> str:
        return f"{self.operation} on stream {self.stream:#x} at {self.place or 'the program'}"


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
    """Takes note of every access, and finds those that race with one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._completed: defaultdict[int, int] = defaultdict(int)
        self._written: dict[int, Access] = {}
        self._read: defaultdict[int, dict[int, Access]] = defaultdict(dict)
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
            self.accesses += 1
            number = stream.known[stream.ptr] = stream.known.get(stream.ptr, 0) + 1
            mine = Access(stream.ptr, number, operation, place)
            written = _units(writes)
            for unit in _units(reads) - written:
                self._compare("read after write", mine, stream, self._written.get(unit), unit)
                self._read[unit][stream.ptr] = mine
            for unit in written:
                for earlier in self._read.pop(unit, {}).values():
                    self._compare("write after read", mine, stream, earlier, unit)
                self._compare("write after write", mine, stream, self._written.get(unit), unit)
                self._written[unit] = mine

    def completed(self, known: dict[int, int] | None) -> None:
        """Take note that the host has waited for the work of streams, up to these numbers."""
        with self._lock:
            for stream, number in (known or {}).items():
                self._completed[stream] = max(self._completed[stream], number)

    def forget(self, memory: Span) -> None:
        """Take memory as new: the runtime gives none out that is in use."""
        with self._lock:
            for unit in memory.units():
                self._written.pop(unit, None)
                self._read.pop(unit, None)

    def report(self, most: int = 20) -> str:
        """Return the races, those at the same places together, and their number at the end."""
        lines = [f"{n} times {self._first[key]}" for key, n in self._counts.most_common(most)]
        lines.append(f"races: {self._counts.total()} in {self.accesses} accesses")
        return "\n".join(lines)

    def _compare(
        self, kind: str, mine: Access, stream: Any, earlier: Access | None, unit: int
    ) -> None:
        if earlier is None or earlier.stream == stream.ptr:
            return
        told = max(stream.known.get(earlier.stream, 0), self._completed[earlier.stream])
        if told >= earlier.number:
            return
        key = (kind, mine.operation, mine.place, earlier.operation, earlier.place)
        self._counts[key] += 1
        if key not in self._first:
            thread = threading.current_thread().name
            self._first[key] = Race(kind, mine, earlier, unit * UNIT, thread)


def _units(spans: Iterable[Span]) -> set[int]:
    return {unit for span in spans for unit in span.units()}


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
