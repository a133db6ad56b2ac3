"""A GPU that does everything as late as it may, in place of CuPy: who forgets to wait is wrong.

Copies and kernels are queued on streams. A queue runs up to a mark when somebody waits for that,
and a step of it now and then when somebody asks whether it has come there. Buffers lie in host
memory.
"""

from __future__ import annotations

import random
import threading
import types
from collections import Counter, deque
from typing import Any

import numpy as np

counts: Counter[str] = Counter()
streams: list[Stream] = []
"""Those that somebody made."""

_random = random.Random(5)
_local = threading.local()


class CUDARuntimeError(RuntimeError):
    pass


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.stream: Stream | None = None
        self.over = True

    def record(self, stream: Stream) -> None:
        self.stream, self.over = stream, False
        stream.queue.append(self._pass)

    def _pass(self) -> None:
        self.over = True

    @property
    def done(self) -> bool:
        if not self.over and _random.random() < 0.7:
            self.stream.step()
        return self.over

    def synchronize(self) -> None:
        counts["event.synchronize"] += 1
        self.reach()

    def reach(self) -> None:
        while not self.over:
            self.stream.step()


class Stream:
    def __init__(self, non_blocking: bool = False) -> None:
        self.queue: deque[Any] = deque()
        if non_blocking:
            streams.append(self)

    def step(self) -> None:
        self.queue.popleft()()

    def wait_event(self, event: Event) -> None:
        counts["stream.wait_event"] += 1
        self.queue.append(event.reach)

    def synchronize(self) -> None:
        counts["stream.synchronize"] += 1
        self.finish()

    def finish(self) -> None:
        while self.queue:
            self.step()


def current(device: int = 0) -> Stream:
    if not hasattr(_local, "stream"):
        _local.stream = Stream()
    return _local.stream


class Device:
    def __init__(self, id: int = 0) -> None:
        self.id = id

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ndarray:  # noqa: N801 - CuPy's name
    """What the transports use of `cupy.ndarray`."""

    __array_ufunc__ = None

    def __init__(self, memory: np.ndarray, carried: bool = False) -> None:
        self.memory = memory
        self.device = Device(0)
        self.carried = carried

    dtype = property(lambda self: self.memory.dtype)
    shape = property(lambda self: self.memory.shape)
    strides = property(lambda self: self.memory.strides)
    size = property(lambda self: self.memory.size)
    nbytes = property(lambda self: self.memory.nbytes)
    itemsize = property(lambda self: self.memory.itemsize)
    flags = property(lambda self: self.memory.flags)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(self.memory.reshape(*shape))

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self.memory.view(dtype))

    def __getitem__(self, where: Any) -> ndarray:
        return ndarray(self.memory[where])

    def __setitem__(self, where: Any, other: ndarray) -> None:
        target, source = self.memory[where], other.memory
        if other.carried:
            np.copyto(target, source)
        else:
            current().queue.append(lambda: np.copyto(target, source))

    def copy(self) -> ndarray:
        """Return what a message carries: whoever carries it knows of no stream."""
        return ndarray(self.memory.copy(), carried=True)

    def become(self, values: np.ndarray) -> None:
        """Get values by a kernel on the current stream."""
        current().queue.append(lambda: np.copyto(self.memory, values))

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> Any:
        out = np.empty(self.shape, self.dtype) if out is None else out
        assert out.shape == self.shape
        assert out.dtype == self.dtype
        stream = current() if stream is None else stream
        stream.queue.append(lambda: np.copyto(out, self.memory))
        if blocking:
            stream.finish()
        return out

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        assert values.shape == self.shape
        assert values.dtype == self.dtype
        later = current() if stream is None else stream
        later.queue.append(lambda: np.copyto(self.memory, values))
        if stream is None:
            later.finish()


LateArray = ndarray
LateArray.__module__ = "cupy"


def late(values: np.ndarray) -> LateArray:
    """Return an array that has its values when the current stream has come there."""
    made = LateArray(np.full(values.shape, 0, values.dtype))
    made.become(values.copy())
    return made


def empty(shape: Any, dtype: Any) -> LateArray:
    return LateArray(np.zeros(shape, dtype))


def _pinned(size: int) -> np.ndarray:
    counts["pinned"] += 1
    return np.full(size, 0xA5, np.uint8)


def module() -> types.ModuleType:
    """Return what takes the place of CuPy."""
    cupy = types.ModuleType("cupy")
    cupy.empty = empty
    cupy.ndarray = LateArray
    cupy.get_default_pinned_memory_pool = lambda: types.SimpleNamespace(free_all_blocks=int)
    cupy.cuda = types.SimpleNamespace(
        Device=Device,
        Event=Event,
        Stream=Stream,
        get_current_stream=current,
        alloc_pinned_memory=_pinned,
        runtime=types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError),
    )
    return cupy
