"""Work on a GPU in a thread of its own, beside the program's: which stream waits for which.

A thread in the background has a stream of its own. What it begins waits for all that the program's
stream had been given when the work was asked for, and the thread waits until its stream is empty
before the result counts as done: so nobody else has to wait for events. CuPy's pool hands memory
that an array has left to the next array of the same stream, and the program may still be reading
it: whatever the thread allocates, its stream waits for that first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


followers: list[Callable[[int], contextlib.AbstractContextManager[Any]]] = []
"""Each returns a context in which another library works on the stream of this address as well."""


class _Thread(threading.local):
    """The streams of a thread in the background, by device."""

    def __init__(self) -> None:
        self.streams: dict[int, Any] = {}


_thread = _Thread()
_is_used = False


class Fork:
    """Where the program's stream is now, for work that another thread is to do after it."""

    def __init__(self, cuda: Any) -> None:
        self._device = cuda.Device()
        self._program = cuda.get_current_stream()
        self._event = _record_event(cuda, self._program)

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do the work in the calling thread, on its stream, and wait until the GPU has done it."""
        cuda = sys.modules["cupy"].cuda
        self._device.use()
        own = _thread.streams.get(self._device.id)
        if own is None:
            own = _thread.streams[self._device.id] = cuda.Stream(non_blocking=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(own)
            for follower in followers:
                stack.enter_context(follower(own.ptr))
            own.wait_event(self._event)
            stack.enter_context(cuda.using_allocator(_allocate_after(cuda, self._program, own)))
            try:
                return work(*arguments)
            finally:
                own.synchronize()


def fork_stream() -> Fork | None:
    """Return where the program's stream is; None where this process works on no GPU."""
    return Fork(sys.modules["cupy"].cuda) if _is_used else None


def note_use() -> None:
    """Take note that this process works on a GPU."""
    global _is_used
    _is_used = True


def _allocate_after(cuda: Any, program: Any, own: Any) -> Callable[[int], Any]:
    """Return an allocator whose memory a stream uses after the program's has done with it."""
    take = cuda.get_allocator()

    def allocate(nbytes: int) -> Any:
        memory = take(nbytes)
        own.wait_event(_record_event(cuda, program))
        return memory

    return allocate


def _record_event(cuda: Any, stream: Any) -> Any:
    event = cuda.Event(disable_timing=True)
    event.record(stream)
    return event
