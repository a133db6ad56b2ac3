"""Requests: what a communication returns that may still be under way."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from distarray.comm._log import Record
from distarray.errors import DistArrayError


class Handle(Protocol):
    """A transport's own token of an operation under way."""

    def wait(self) -> None:
        """Return when the operation is complete."""

    def test(self) -> bool:
        """Tell whether the operation is complete, and help it along."""


class Request(ABC):
    """A communication that may still be under way; its buffers belong to it until it is done."""

    @abstractmethod
    def wait(self) -> Any:
        """Return the result once it is complete; calling it again returns the same."""

    @abstractmethod
    def test(self) -> bool:
        """Tell, without waiting, whether the result is complete."""


class Completed(Request):
    """A communication that was over when it returned."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def wait(self) -> Any:
        """Return the result."""
        return self._value

    def test(self) -> bool:
        """Return True."""
        return True


DONE = Completed()
"""A completed communication without a result of its own."""


class Pending(Request):
    """A communication under way, by the transport's token of it or another request.

    ``buffers`` are what the transport reads or writes, held until the operation is complete;
    ``finish`` is called once then, and returns the result; to ``entry``, the record of the
    communication, the seconds spent waiting are added.
    """

    def __init__(
        self,
        handle: Handle | Request,
        buffers: Sequence[Any] = (),
        finish: Callable[[], Any] | None = None,
        entry: Record | None = None,
    ) -> None:
        self._handle: Handle | Request | None = handle
        self._buffers = tuple(buffers)
        self._finish = finish
        self._entry = entry
        self._value: Any = None
        self._lock = threading.RLock()
        if _abandoned:
            sweep()

    def wait(self) -> Any:
        """Return the result once it is complete."""
        with self._lock:
            if self._handle is not None:
                started = perf_counter()
                self._handle.wait()
                self._complete()
                if self._entry is not None:
                    self._entry.seconds += perf_counter() - started
            return self._value

    def test(self) -> bool:
        """Tell, without waiting, whether the result is complete."""
        with self._lock:
            if self._handle is not None and self._handle.test():
                self._complete()
            return self._handle is None

    def _complete(self) -> None:
        if self._finish is not None:
            self._value = self._finish()
        self._handle = self._finish = None
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

_abandoned: list[tuple[Handle | Request, tuple[Any, ...]]] = []


def sweep() -> None:
    """Let go of the buffers of requests that nobody waited for, where they are complete."""
    pending = list(_abandoned)
    del _abandoned[: len(pending)]
    _abandoned.extend(entry for entry in pending if not _is_over(entry[0]))


def _is_over(handle: Handle | Request) -> bool:
    try:
        return handle.test()
    except DistArrayError:
        return True  # its program has failed, which those who waited were told
