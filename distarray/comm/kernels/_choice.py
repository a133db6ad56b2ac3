"""Choice between a kernel and NumPy, by the clock, for work that both do to the same bits.

How fast streaming stores are depends on the processor: on one they save a third of the traffic,
on another they lose to its own `memcpy`. So the first calls of each kind of work take turns, and
whoever needed less time for a byte, at best, does the rest. Nothing is measured beside the
program's own work, and no rank needs to agree with another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

_ROUNDS: Final = 3
"""Timed calls of each; the best of three is not disturbed by what else the machine does."""

_CLEAR: Final = 1.5
"""So many times slower than the kernel's best is NumPy's first call, and it has no second.

More than calls of one kind differ from one another on a quiet machine; not measured further.
"""


class _Trial:
    """The calls of one kind of work so far."""

    __slots__ = ("calls", "kernel", "plain", "settled")

    def __init__(self) -> None:
        self.calls = 0
        self.kernel = self.plain = float("inf")  # seconds for a byte, at best
        self.settled = False

    def note(self, of_kernel: bool, pace: float) -> None:
        """Take in one call; the first was the kernel's, which may have compiled it."""
        self.calls += 1
        if of_kernel:
            self.kernel = min(self.kernel, pace)
        else:
            self.plain = min(self.plain, pace)
        clear = _CLEAR * self.kernel < self.plain < float("inf")
        self.settled = clear or self.calls > 2 * _ROUNDS


_trials: dict[Hashable, _Trial] = {}


def run_faster(
    work: Hashable, nbytes: int, kernel: Callable[[], object], plain: Callable[[], object]
) -> None:
    """Do some work by whichever of two functions is faster on this machine; both do all of it.

    ``work`` names the kind of work: calls of one kind and of about one size, ``nbytes``, cost as
    much for a byte.
    """
    kind = (work, nbytes.bit_length())
    trial = _trials.get(kind)
    if trial is None:
        trial = _trials.setdefault(kind, _Trial())
    by_kernel = trial.kernel <= trial.plain if trial.settled else trial.calls in (0, 1, 3, 5)
    if trial.settled:
        (kernel if by_kernel else plain)()
        return
    start = time.perf_counter()
    (kernel if by_kernel else plain)()
    trial.note(by_kernel, (time.perf_counter() - start) / max(nbytes, 1))
