"""The GPU that is measured, or the stand-in of a rehearsal, and its clock."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Work = Callable[[], Any]

SAMPLE_SECONDS = 0.004
MOST_CALLS = 200


def library(rehearsal: bool) -> Any:
    """Return CuPy with a GPU; in a rehearsal what stands in for it.

    Raises
    ------
    SystemExit
        It is the wrong one of both, or there is none.
    """
    try:
        cupy = importlib.import_module("cupy")
        is_stand_in = hasattr(cupy, "operations")
        if is_stand_in == rehearsal and cupy.cuda.runtime.getDeviceCount() > 0:
            if rehearsal:
                _without_driver()
            return cupy
    except Exception as error:
        raise SystemExit(f"no GPU: {type(error).__name__}: {error}") from error
    raise SystemExit("no GPU: CuPy is a stand-in, or sees none; --rehearse runs without one")


def _without_driver() -> None:
    """Let the stand-in tell of its allocations what otherwise the driver tells."""
    from distarray.comm.cuda import _ipc

    find = importlib.import_module("cupy._device").allocation_of
    _ipc.allocation_of = lambda pointer: _ipc.Allocation(*find(pointer))


class Clock:
    """Times work on the current stream, by events on it: what the host does meanwhile is free."""

    def __init__(self, cupy: Any, rehearsal: bool) -> None:
        self._cuda = cupy.cuda
        self._rounds = 2 if rehearsal else 5

    def seconds(self, work: Work, *, calls: int = 0) -> float:
        """Return the median of warm rounds, a call.

        Parameters
        ----------
        work
            Starts something on the GPU.
        calls
            In a round, one right after the other; default: as many as take some milliseconds, so
            that the GPU has its next work before it ends the last.
        """
        work()
        first = self._round(work, 1)
        if not calls:
            calls = min(MOST_CALLS, 1 + int(SAMPLE_SECONDS / max(first, 1e-6)))
            calls = 2 if self._rounds == 2 else calls
        return statistics.median(self._round(work, calls) for _ in range(self._rounds))

    def _round(self, work: Work, calls: int) -> float:
        start, stop = self._cuda.Event(), self._cuda.Event()
        begun = time.perf_counter()
        start.record()
        for _ in range(calls):
            work()
        stop.record()
        stop.synchronize()
        on_host = time.perf_counter() - begun
        elapsed = self._cuda.get_elapsed_time(start, stop) / 1e3
        return (elapsed or on_host) / calls  # nothing takes any time on the stand-in


def copy_seconds(cupy: Any, clock: Clock, nbytes: int) -> float:
    """Return how long the driver's copy of device memory takes (``cudaMemcpyAsync``)."""
    source, target = cupy.zeros(nbytes, np.uint8), cupy.empty(nbytes, np.uint8)
    return clock.seconds(lambda: target.data.copy_from_device_async(source.data, nbytes))


def filled(cupy: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of bytes of which those next to each other differ."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    words = cupy.arange(-(-nbytes // 4), dtype=np.uint32)
    words *= np.uint32(2654435761)
    return words.view(np.uint8)[:nbytes].view(dtype).reshape(shape)


def same_bytes(found: Any, expected: Any) -> bool:
    """Tell whether two contiguous arrays have the same bytes."""
    there, wanted = (array.reshape(-1).view(np.uint8) for array in (found, expected))
    return bool((there == wanted).all())
