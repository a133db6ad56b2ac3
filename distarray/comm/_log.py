"""The log of communication: collective, mesh axis, bytes and seconds of each.

Bytes are those of values that this rank takes from other ranks, so that they add up over ranks and
compare with ``Plan.bytes_received``. For n ranks and an array of b bytes: an all-reduce counts 2 b
(n - 1) / n (each rank reduces its part and gathers the others'), a broadcast b on every rank but
the root, point to point b where it is received. Nothing is recorded for a communicator of one rank,
because nothing moves. Of blocks that travel whole because they are small it is what the rank needs.
An "agreement" is the one collective that moves no values: the all-reduce of 16 bytes by which many
ranks on several nodes compare what they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Self


class Record:
    """One communication of this rank."""

    __slots__ = ("collective", "mesh_axis", "nbytes", "seconds")

    def __init__(self, collective: str, mesh_axis: str, nbytes: int, seconds: float) -> None:
        self.collective = collective
        self.mesh_axis = mesh_axis
        self.nbytes = nbytes
        self.seconds = seconds

    def __repr__(self) -> str:
        return (
            f"Record({self.collective!r}, {self.mesh_axis!r}, nbytes={self.nbytes}, "
            f"seconds={self.seconds:.3g})"
        )


_active: ContextVar[tuple[CommLog, ...] | None] = ContextVar("distarray_comm_logs", default=None)
_paused: ContextVar[tuple[CommLog, ...]] = ContextVar("distarray_comm_logs_paused", default=())
_open: dict[Any, tuple[CommLog, ...]] = {}
"""By rank, what its own thread has opened."""

_worker_tests: list[Callable[[], bool]] = []


def register_worker_test(works: Callable[[], bool]) -> None:
    """Let a test tell whether another library has this thread work for the one that called it.

    What such a thread sends is recorded in the logs of the rank.
    """
    _worker_tests.append(works)


def recording() -> tuple[CommLog, ...]:
    """Return the logs that record in this thread: false where there is none."""
    logs = _active.get()
    if logs is not None:
        return logs
    if not _open or not any(works() for works in _worker_tests):
        return ()
    return _open.get(_rank(), ())


def copy_log_context() -> Context:
    """Return a copy of this thread's context, for another thread that is to record in its logs."""
    context = copy_context()
    if _open and _active.get() is None:
        context.run(_active.set, recording())
    return context


ranks: list[Callable[[], Any]] = []
"""What tells the ranks of one process apart, where there are several."""


def _rank() -> Any:
    return ranks[0]() if ranks else None


@contextmanager
def pause_logs() -> Iterator[None]:
    """Keep what runs inside out of the logs: a part of a communication that is recorded whole."""
    paused = _paused.set(recording() or _paused.get())
    token = _active.set(())
    try:
        yield
    finally:
        _active.reset(token)
        _paused.reset(paused)


class CommLog:
    """Record the communication of this rank inside a ``with`` block.

    Logs nest: each records what runs inside it. A log belongs to the thread that opened it, so
    every simulated rank has its own; the threads in which torch goes backward on GPUs, and those of
    work in the background, record for it. What `DISTARRAY_CHECK=1` compares is not recorded.

    Examples
    --------
    >>> from distarray.comm import CommLog, world
    >>> with CommLog() as log:
    ...     objects = world().all_gather_object("here")
    >>> log.bytes("all_reduce")
    0
    """

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __enter__(self) -> Self:
        own: tuple[CommLog, ...] = (*(_active.get() or ()), self)
        _active.set(own)
        _open[_rank()] = own
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logs = list(_active.get() or ())
        # The innermost entry of this log: a log may be entered again while it records.
        for i in reversed(range(len(logs))):
            if logs[i] is self:
                del logs[i]
                break
        _active.set(tuple(logs) or None)
        if logs:
            _open[_rank()] = tuple(logs)
        else:
            _open.pop(_rank(), None)

    def count(self, collective: str | None = None, mesh_axis: str | None = None) -> int:
        """Return how many communications ran, of one kind or on one mesh axis where given."""
        return len(self._select(collective, mesh_axis))

    def bytes(self, collective: str | None = None, mesh_axis: str | None = None) -> int:
        """Return how many bytes this rank took from others."""
        return sum(record.nbytes for record in self._select(collective, mesh_axis))

    def seconds(self, collective: str | None = None, mesh_axis: str | None = None) -> float:
        """Return the seconds that this rank spent in them, waiting for others included."""
        return sum(record.seconds for record in self._select(collective, mesh_axis))

    def _select(self, collective: str | None, mesh_axis: str | None) -> list[Record]:
        return [
            record
            for record in self.records
            if collective in (None, record.collective) and mesh_axis in (None, record.mesh_axis)
        ]

    def table(self) -> str:
        """Return a table with one line per collective and mesh axis."""
        groups: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in self.records:
            groups[record.collective, record.mesh_axis].append(record)
        lines = [("collective", "mesh axis", "count", "bytes", "seconds")]
        for (collective, mesh_axis), records in sorted(groups.items()):
            nbytes = sum(record.nbytes for record in records)
            seconds = sum(record.seconds for record in records)
            lines.append(
                (collective, mesh_axis, str(len(records)), f"{nbytes:,}", f"{seconds:.6f}")
            )
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<CommLog: {self.count()} communications, {self.bytes():,} bytes>"


def record_agreement(mesh_axis: str, nbytes: int, seconds: float) -> None:
    """Add a collective that moves no values, also where logs are paused."""
    _record(recording() or _paused.get(), "agreement", mesh_axis, nbytes, seconds)


def record(collective: str, mesh_axis: str, nbytes: int, seconds: float) -> Record | None:
    """Add a communication to the logs that are active in this thread.

    Returns the record, for a communication still under way to add its seconds to; None where
    nothing records.
    """
    return _record(recording(), collective, mesh_axis, nbytes, seconds)


def _record(
    logs: tuple[CommLog, ...], collective: str, mesh_axis: str, nbytes: int, seconds: float
) -> Record | None:
    if not logs:
        return None
    entry = Record(collective, mesh_axis, nbytes, seconds)
    for i, log in enumerate(logs):
        if log not in logs[:i]:
            log.records.append(entry)
    return entry
