"""Threads of this rank that work on one large block: how many, and the pool they come from.

OpenBLAS has threads of its own, as many as there are cores in every rank. Those of ranks that share
cores wait for each other: two ranks on two cores took 28 ms for a product of 256 rows, and take 0.5
with a thread each. So it gets as many as a rank has cores.

The kernels and NumPy's loops leave the interpreter lock, so that plain threads serve; Numba's own
parallel loops would end the process where two threads (simulated ranks) start one at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from distarray.comm._launcher import count_local_ranks
from distarray.comm._settings import setting
from distarray.typing import Shape

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_BYTES_PER_THREAD: Final = 8 << 20  # a millisecond of copying; to hand it out takes tens of us
_MOST: Final = 8  # a few cores use up what the memory of a node can give; not measured
_OPENBLAS_SETTINGS: Final = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_OPENBLAS_NAMES: Final = [
    f"{before}openblas_{{}}_num_threads{after}"
    for before in ("scipy_", "")
    for after in ("64_", "")
]
"""What OpenBLAS calls its function in NumPy's and SciPy's wheels, and elsewhere."""

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()
_count: int | None = None
_share: int | None = None
"""Cores for each rank of the node, once ranks have told each other theirs."""


def count() -> int:
    """Return how many threads this rank may use.

    ``DISTARRAY_NUM_THREADS``, ``NUMBA_NUM_THREADS`` or ``OMP_NUM_THREADS`` where set, else the
    cores this process may run on, shared with the other ranks of the node.
    """
    global _count
    if _count is None:
        _count = _read_setting() or min(_MOST, _share or max(1, cores() // count_local_ranks()))
    return _count


def share_cores(own: frozenset[int], ranks: Collection[frozenset[int]]) -> None:
    """Take this rank's share of the cores that ranks of the node may run on, itself among them."""
    global _count, _share
    if len(ranks) == 1 or not own:
        return
    users = Counter(core for of_rank in ranks for core in of_rank)
    share = max(1, int(sum(1 / users[core] for core in own) + 1e-9))
    if _share is None or share < _share:
        _share, _count = share, None
        limit_openblas()


def limit_openblas() -> None:
    """Leave each OpenBLAS that is loaded this rank's share of threads, unless a variable is set."""
    if _share is not None and not any(map(setting, _OPENBLAS_SETTINGS)):
        for count_threads, set_threads in _openblas_threads():
            if count_threads() > _share:
                set_threads(_share)


def _openblas_threads() -> Iterator[tuple[Any, Any]]:
    """Yield what tells and what sets the number of threads of each OpenBLAS that is loaded."""
    mapped = b""
    with contextlib.suppress(OSError):  # systems without such a file
        mapped = Path("/proc/self/maps").read_bytes()
    # Names of other files that are mapped may be in any encoding.
    for path in sorted(set(re.findall(r"/.*openblas.*", os.fsdecode(mapped)))):
        # Data or a program of that name, or a library that is gone.
        with contextlib.suppress(OSError, UnicodeError):
            library = ctypes.CDLL(path)
            for name in _OPENBLAS_NAMES:
                if hasattr(library, name.format("set")):
                    yield tuple(getattr(library, name.format(verb)) for verb in ("get", "set"))
                    break


def thread_count(nbytes: int) -> int:
    """Return how many threads should share the work on a block of ``nbytes``."""
    if nbytes < 2 * _BYTES_PER_THREAD:
        return 1
    return max(1, min(count(), nbytes // _BYTES_PER_THREAD))


def run_on_parts(function: Callable[[Any], None], shape: Shape, nbytes: int) -> None:
    """Call ``function`` on indices that cut a block of ``nbytes`` into parts, one for each thread.

    What is too short to share is one part.
    """
    parts = thread_count(nbytes)
    if parts == 1:
        function(...)
        return
    axis = shape.index(max(shape))
    cuts = [shape[axis] * i // parts for i in range(parts + 1)]
    before = (slice(None),) * axis
    run_in_threads(function, [(*before, slice(start, stop)) for start, stop in pairwise(cuts)])


def run_in_threads(function: Callable[[Any], None], parts: Iterable[Any]) -> None:
    """Call ``function`` on every part, each on a thread of the pool; raise what one raised."""
    for _ in _threads().map(function, parts):
        pass


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            from concurrent.futures import ThreadPoolExecutor

            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_forget_pool)
            _pool = ThreadPoolExecutor(count(), "distarray-copy")
        return _pool


def _read_setting() -> int:
    for name in ("DISTARRAY_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        value = setting(name).split(",")[0].strip()
        if value.isdigit() and int(value) > 0:
            return int(value)
    return 0


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(cores_of()) or os.cpu_count() or 1


def cores_of(process: int = 0) -> frozenset[int]:
    """Return the cores that a process may use, by default this one; none where that is unknown."""
    try:
        return frozenset(os.sched_getaffinity(process))
    except (OSError, AttributeError):
        return frozenset()


def _forget_pool() -> None:
    """Leave the parent's threads to the parent: a forked child has none of them."""
    global _pool, _pool_lock
    _pool = None
    _pool_lock = threading.Lock()
