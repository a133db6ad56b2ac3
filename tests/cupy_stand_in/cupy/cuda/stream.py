"""Streams and events of the stand-in: all work is done at once; who waited for what is kept.

Work on a stream is numbered. A stream knows up to which number of every other stream it is ordered
(by events), and so does the host (by waiting). Tests look at `operations` and at `Stream.ordered`.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from typing import Any

from cupy._device import operations
from cupy.cuda import runtime

_numbers = itertools.count(0x1000)
_thread = threading.local()


class Event:
    """A mark in the work of a stream."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self.ptr = next(_numbers)
        self.recorded: dict[int, int] | None = None
        """Up to where each stream's work comes before it."""

    @property
    def done(self) -> bool:
        """True: all work is done at once."""
        return True

    def record(self, stream: Any = None) -> None:
        """Mark what a stream, by default the current one, has been given so far."""
        stream = get_current_stream() if stream is None else stream
        operations["eventRecord"] += 1
        self.recorded = dict(stream.known)

    def synchronize(self) -> None:
        """Wait on the host."""
        operations["eventSynchronize"] += 1


class _BaseStream:
    """What streams have in common."""

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id
        self.known: dict[int, int] = {ptr: 0}
        """Up to where each stream's work comes before what this one is given next."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def _checked(self) -> None:
        if self.device_id not in (-1, runtime.getDevice()):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({runtime.getDevice()})"
            )

    def __enter__(self) -> Any:
        self._checked()
        _stack().append(get_current_stream())
        _thread.current = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.current = _stack().pop()

    def use(self) -> Any:
        """Make this the current stream of the thread."""
        self._checked()
        _thread.current = self
        return self

    @property
    def done(self) -> bool:
        """True: all work is done at once."""
        return True

    def synchronize(self) -> None:
        """Wait on the host for the work given so far."""
        operations["streamSynchronize"] += 1

    def record(self, event: Event | None = None) -> Event:
        """Mark what this stream has been given so far."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Put further work after an event."""
        operations["streamWaitEvent"] += 1
        for ptr, number in (event.recorded or {}).items():
            self.known[ptr] = max(self.known.get(ptr, 0), number)

    def add_callback(self, callback: Any, arg: Any) -> None:
        """Call a function when the work so far is done."""
        callback(self, 0, arg)

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        """Call a function when the work so far is done."""
        callback(arg)


class Stream(_BaseStream):
    """A queue of work."""

    null: Stream
    ptds: Stream

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if null:
            super().__init__(0, -1)
        elif ptds:
            super().__init__(2, -1)
        else:
            super().__init__(next(_numbers), runtime.getDevice())
        self.is_non_blocking = non_blocking
        self.priority = priority or 0

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        """Return somebody else's stream."""
        version, pointer = obj.__cuda_stream__()
        if version != 0:
            raise TypeError("The version of the protocol must be 0")
        stream = cls(null=True)
        stream.ptr, stream.known = pointer, {pointer: 0}
        return stream


class ExternalStream(_BaseStream):
    """Somebody else's stream."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn("use Stream.from_external", DeprecationWarning, stacklevel=2)
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


def _stack() -> list[Any]:
    if not hasattr(_thread, "stack"):
        _thread.stack = []
    return _thread.stack


def get_current_stream(device_id: int = -1) -> Any:
    """Return the current stream of this thread."""
    return getattr(_thread, "current", Stream.null)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return milliseconds: nothing takes any."""
    return 0.0


def launched(what: str) -> None:
    """Count one operation on the current stream."""
    stream = get_current_stream()
    stream.known[stream.ptr] = stream.known.get(stream.ptr, 0) + 1
    operations[what] += 1
