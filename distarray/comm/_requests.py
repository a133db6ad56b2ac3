"""Requests: what a communication returns that may still be under way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final, Protocol

from distarray.comm._log import Record
from distarray.errors import DistArrayError


class Request(Protocol):
    """A communication that may still be under way; its buffers belong to it until it is done."""

    def wait(self) -> None:
        """Return when it is complete."""

    def test(self) -> bool:
        """Tell whether it is complete, and help it along."""


class _Completed:
    """A communication that was over when it returned."""

    def wait(self) -> None:
        """Do nothing."""

    def test(self) -> bool:
        """Return True."""
        return True


DONE: Final = _Completed()


class Pending:
    """A communication under way, by the transport's token of it or another request.

    ``buffers`` are what the transport reads or writes, held until the operation is complete; to
    ``entry``, the record of the communication, the seconds spent waiting are added.
    """

    def __init__(
        self, handle: Request, buffers: Sequence[Any] = (), entry: Record | None = None
    ) -> None:
        self._handle: Request | None = handle
        self._buffers = tuple(buffers)
        self._entry = entry
        self._lock = threading.RLock()
        if _abandoned:
            sweep()

    def wait(self) -> None:
        """Return when it is complete."""
        with self._lock:
            if self._handle is not None:
                started = perf_counter()
                self._handle.wait()
                self._let_go()
                if self._entry is not None:
                    self._entry.seconds += perf_counter() - started

    def test(self) -> bool:
        """Tell whether it is complete, and help it along."""
        with self._lock:
            if self._handle is not None and self._handle.test():
                self._let_go()
            return self._handle is None

    def _let_go(self) -> None:
        self._handle = None
        self._buffers = ()

    def __del__(self) -> None:
        # The transport still writes to the buffers of a request that nobody waited for.
        handle = getattr(self, "_handle", None)
        if handle is not None and not sys.is_finalizing():
            _abandoned.append((handle, self._buffers))


progress: Callable[[], object] = bool
"""Lets messages under way get on, while this rank waits for others in memory that they share.

Else a rank that waits for a request would wait for ever where those who began it with it wait for
that rank meanwhile: an MPI library does nothing unless it is called. Set where MPI runs.
"""

_abandoned: list[tuple[Request, tuple[Any, ...]]] = []


def sweep() -> None:
    """Let go of the buffers of requests that nobody waited for, where they are complete."""
    pending = list(_abandoned)
    del _abandoned[: len(pending)]
    _abandoned.extend(entry for entry in pending if not _is_over(entry[0]))


def _is_over(handle: Request) -> bool:
    try:
        return handle.test()
    except DistArrayError:
        return True  # its program has failed, which those who waited were told
