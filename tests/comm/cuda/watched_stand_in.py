"""Let a checker of races see what a program does to memory of the stand-in's devices.

For a process of its own: the stand-in is changed for good. Every function, method and ufunc that
launches something reads the arrays that it is given, and writes those that it returns. Not seen:
kernels of Numba, what MPI does with memory of the host or of a device, and memory of torch's own.
"""

from __future__ import annotations

import functools
import importlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.comm.cuda.races import Checker, Span

METHODS_IN_PLACE = ("_take", "__setitem__", "fill", "sort", "put")
FUNCTIONS_IN_PLACE = ("copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis")
"""They write their first argument."""
UNCOUNTED = ("fill", "copy", "dot", "nonzero")
"""Methods that write memory though they may launch nothing that is counted."""
UNCHANGED = ("get", "set", "data", "_view", "_key")


class _Thread(threading.local):
    launches = 0


_thread = _Thread()


def watch(cupy: Any) -> Checker:
    """Return a checker that sees what the stand-in does from now on.

    Parameters
    ----------
    cupy
        The stand-in, of which nothing has been used yet.
    """
    checker = Checker(importlib.import_module("cupy._device").owner)
    streams = importlib.import_module("cupy.cuda.stream")

    def launched(what: str) -> None:
        _thread.launches += 1
        counted(what)

    counted = streams.launched
    for name in ("_array", "_functions", "_methods", "_ufunc"):
        importlib.import_module(f"cupy.{name}").launched = launched

    def seen(call: Callable[..., Any], name: str, in_place: bool = False) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            before = _thread.launches
            result = call(*args, **kwargs)
            if _thread.launches != before or name in UNCOUNTED:
                given = list(_arrays((args, kwargs)))
                made = [
                    one
                    for one in _arrays(result)
                    if one.base is None or any(one is other for other in given)
                ]
                if in_place:
                    made.append(args[0])
                stream = streams.get_current_stream()
                checker.access(name, stream, map(_span, given), map(_span, made))
            return result

        return watched

    for name, method in list(vars(cupy.ndarray).items()):
        plain = isinstance(method, types.FunctionType) and name not in UNCHANGED
        if plain and (not name.startswith("__") or name == "__setitem__"):
            setattr(cupy.ndarray, name, seen(method, name, name in METHODS_IN_PLACE))
    _watch_ufuncs_and_functions(cupy, seen)
    _watch_copies(cupy, checker, streams)
    _watch_waiting(checker, streams)
    _watch_allocations(cupy, checker)
    return checker


def _watch_ufuncs_and_functions(cupy: Any, seen: Any) -> None:
    call, found = cupy.ufunc.__call__, cupy.found

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return seen(functools.partial(call, self), self.name)(*args, **kwargs)

    def watched(module: str, name: str) -> Any:
        function = found(module, name)
        if not isinstance(function, types.FunctionType):
            return function
        return seen(function, name, name in FUNCTIONS_IN_PLACE)

    cupy.ufunc.__call__, cupy.found = called, watched


def _watch_copies(cupy: Any, checker: Checker, streams: Any) -> None:
    getting, setting = cupy.ndarray.get, cupy.ndarray.set

    def get(
        self: Any, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> Any:
        stream = streams.get_current_stream() if stream is None else stream
        checker.access("get", stream, [_span(self)], [])
        result = getting(self, stream, order, out, blocking)
        if blocking:
            checker.completed(dict(stream.known))
        return result

    def set(self: Any, arr: Any, stream: Any = None) -> None:
        setting(self, arr, stream)
        stream = streams.get_current_stream() if stream is None else stream
        checker.access("set", stream, [], [_span(self)])

    cupy.ndarray.get, cupy.ndarray.set = get, set


def _watch_waiting(checker: Checker, streams: Any) -> None:
    """Let the host know what it has waited for, or found done."""
    of_streams, of_events = streams._BaseStream.synchronize, streams.Event.synchronize

    def stream_synchronized(self: Any) -> None:
        of_streams(self)
        checker.completed(dict(self.known))

    def event_synchronized(self: Any) -> None:
        of_events(self)
        checker.completed(self.recorded)

    def is_done(self: Any) -> bool:
        checker.completed(self.recorded)
        return True

    streams._BaseStream.synchronize = stream_synchronized
    streams.Event.synchronize, streams.Event.done = event_synchronized, property(is_done)


def _watch_allocations(cupy: Any, checker: Checker) -> None:
    allocate = cupy.cuda.runtime.malloc

    def malloc(size: int) -> int:
        address: int = allocate(size)
        checker.allocated(Span(address, size))
        return address

    cupy.cuda.runtime.malloc = malloc


def _arrays(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield the device arrays in a value."""
    if type(value).__module__ == "cupy" and hasattr(value, "_host"):
        yield value
    elif depth and isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _arrays(one, depth - 1)


def _span(array: Any) -> Span:
    """Return the memory from the first byte of a device array to its last."""
    host: np.ndarray = array._host
    if not host.size:
        return Span(0, 0)
    low, high = np.lib.array_utils.byte_bounds(host)
    return Span(low, high - low)
