"""Choice between a kernel and NumPy, by the clock, for work that both do to the same bits.

How fast streaming stores are depends on the processor: on one they save a third of the traffic,
on another they lose to its own `memcpy`. So the first calls of each kind of work take turns, and
whoever needed less time for a byte, at best, does the rest. Nothing is measured beside the
program's own work, and no rank needs to agree with another. What was chosen is kept on disk for
this processor, so that later processes measure nothing; other versions of Numba, NumPy or the
kernels choose anew.
"""

from __future__ import annotations

import atexit
import functools
import time
from collections.abc import Callable
from typing import Any, Final

from distarray.comm.kernels import _jit, _machine
from distarray.comm.kernels._jit import Kernel

_ROUNDS: Final = 3
"""Timed calls of each; the best of three is not disturbed by what else the machine does."""

_CLEARLY_SLOWER: Final = 1.5
"""So many times slower than the kernel's best is NumPy's first call, and it has no second.

More than calls of one kind differ from one another on a quiet machine; not measured further.
"""

CERTAINLY_SLOWER: Final = 16
"""Where NumPy takes so many times as long as for a copy it is not tried: kernels take at most 3."""

_FILE: Final = "kernels"


class _Trial:
    """The calls of one kind of work so far."""

    def __init__(self) -> None:
        self.calls = 0
        self.kernel = self.plain = float("inf")  # seconds for a byte, at best

    def note(self, of_kernel: bool, pace: float) -> str:
        """Take in one call; return who is chosen, or nothing yet."""
        self.calls += 1
        if of_kernel:
            self.kernel = min(self.kernel, pace)
        else:
            self.plain = min(self.plain, pace)
        clear = _CLEARLY_SLOWER * self.kernel < self.plain < float("inf")
        if not clear and self.calls <= 2 * _ROUNDS:
            return ""
        return "numba" if self.kernel <= self.plain else "numpy"


_trials: dict[str, _Trial] = {}
_measured: dict[str, str] = {}  # by this process


def choices() -> dict[str, str]:
    """Return what is chosen for each job, "numba" or "numpy", on this processor.

    A job's name ends with the binary logarithm of the bytes, rounded up. What was measured in this
    process is there beside what earlier ones have kept; what ``DISTARRAY_KERNELS`` forces is not.
    """
    return dict(sorted(_chosen().items()))


def choose_anew() -> None:
    """Time the next calls of each job again: those before ran beside other work, perhaps."""
    _trials.clear()
    _chosen().clear()


def run_faster(
    job: str,
    nbytes: int,
    kernel: Kernel,
    by_kernel: Callable[[Callable[..., Any]], object],
    plain: Callable[[], object],
    dear: int = 1,
) -> None:
    """Do some work by whichever of two functions is faster on this machine; both do all of it.

    ``job`` names the kind of work, beginning with one of `JOBS`: calls of one kind and of about one
    size, ``nbytes``, cost as much for a byte. ``by_kernel`` gets what runs the kernel. NumPy, which
    needs about ``dear`` times as long as for a plain copy, serves until loading the kernel pays.
    """
    decided = _jit.forced()
    choice = decided.get(job.partition(" ")[0]) if decided else None
    if not choice and kernel.pays(dear * nbytes):
        name = _name_of(job, nbytes)
        choice = _chosen().get(name, "")  # none yet
    run = None if choice in ("numpy", None) else kernel.load()
    if run is None:
        plain()
    elif choice or dear >= CERTAINLY_SLOWER:
        by_kernel(run)
    else:
        trial = _trials.get(name) or _trials.setdefault(name, _Trial())
        of_kernel = trial.calls in (0, 1, 3, 5)
        start = time.perf_counter()
        if of_kernel:
            by_kernel(run)
        else:
            plain()
        found = trial.note(of_kernel, (time.perf_counter() - start) / max(nbytes, 1))
        if found:
            _chosen()[name] = _measured[name] = found


def is_chosen(job: str, nbytes: int, kernel: Kernel, dear: int = 1) -> Callable[..., Any] | None:
    """Return what runs the kernel that `run_faster` has chosen for such work; None where not."""
    choice = _jit.forced().get(job.partition(" ")[0]) or _chosen().get(_name_of(job, nbytes))
    if choice != "numba" or not (_jit.forced() or kernel.pays(dear * nbytes)):
        return None
    return kernel.load()


def _name_of(job: str, nbytes: int) -> str:
    return f"{job}, {nbytes.bit_length()}"


@functools.cache
def _chosen() -> dict[str, str]:
    """Return what earlier processes have chosen; what this one does is added."""
    atexit.register(_keep)
    return _kept()


def _kept() -> dict[str, str]:
    """Return what is on disk and still holds."""
    content = _machine.load(_FILE)
    found = content.get("choices")
    if content.get("of") != _jit.versions() or not isinstance(found, dict):
        return {}
    return {name: choice for name, choice in found.items() if choice in ("numba", "numpy")}


def _keep() -> None:
    """Put what this process has measured beside what is on disk; of several the last one stays."""
    if _measured:
        choices = dict(sorted((_kept() | _measured).items()))
        _machine.store(_FILE, {"of": _jit.versions(), "choices": choices})
