"""Peak memory of simulated ranks: they take turns, so that what each allocates is told apart.

A rank runs until it waits for another, and then the next one does. So what `tracemalloc` counts
meanwhile is that rank's own, and the same in every run.
"""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.lib import NumpyVersion

import distarray as da
from distarray.comm import _memory, world
from distarray.comm.simulated._rendezvous import Group
from distarray.testing import simulate

COUNTS_LAPACK = NumpyVersion(np.__version__) >= "2.5.0"
"""Whether NumPy tells `tracemalloc` of its copies for LAPACK, and of the work space there."""


class Turns:
    """Which simulated rank runs, and the bytes that each has allocated since it was asked."""

    def __init__(self, size: int) -> None:
        self._turns = [threading.Semaphore(rank == 0) for rank in range(size)]
        self._running = list(range(size))
        self._held = [0] * size
        self._peak = [0] * size
        self._start = 0

    @contextmanager
    def taken(self, rank: int) -> Iterator[None]:
        """Run a rank's program in its turns."""
        self._await(rank)
        try:
            yield
        finally:
            after = self._count(rank)
            self._running.remove(rank)
            if self._running:
                self._turns[after].release()

    def pass_on(self, rank: int) -> None:
        """Let the other ranks run, until it is this one's turn again."""
        self._turns[self._count(rank)].release()
        self._await(rank)

    def peak(self, rank: int) -> int:
        """Return the most bytes that a rank has held since it was last asked."""
        self._count(rank)
        peak = self._peak[rank]
        self._held[rank] = self._peak[rank] = 0
        self._begin()
        return peak

    def _await(self, rank: int) -> None:
        self._turns[rank].acquire()
        self._begin()

    def _begin(self) -> None:
        tracemalloc.reset_peak()
        self._start, _ = tracemalloc.get_traced_memory()

    def _count(self, rank: int) -> int:
        """Count what a rank has allocated in this turn; return which rank is next."""
        now, peak = tracemalloc.get_traced_memory()
        self._peak[rank] = max(self._peak[rank], self._held[rank] + peak - self._start)
        self._held[rank] += now - self._start
        place = self._running.index(rank)
        return self._running[(place + 1) % len(self._running)]


def scratch(
    call: Callable[[Any], Any],
    value: np.ndarray,
    size: int,
    mesh_shape: tuple[int, ...] | None = None,
    placements: Sequence[da.Placement] = (da.Shard(0),),
    timeout: float = 60.0,
) -> float:
    """Return the most memory that a rank needs beside the array and the result, in blocks.

    A block is a rank's largest one, of the array or of a result. Plans and compiled code are there
    from an earlier call.
    """
    turns = Turns(size)
    await_round, fetch = Group.await_round, Group.fetch

    def await_in_turn(group: Group, rank: int, entered: Any) -> Any:
        while not entered.complete.is_set():
            group.check_for_leavers(entered)
            turns.pass_on(group.ranks[rank])
        return await_round(group, rank, entered)

    def fetch_in_turn(group: Group, key: Any, number: int, wait: bool) -> Any:
        gone = group.program.finished
        while wait and (key, number) not in group.mail and group.ranks[key[0]] not in gone:
            group.program.check()
            turns.pass_on(group.ranks[key[1]])
        return fetch(group, key, number, wait)

    def program() -> float:
        rank = world().rank
        with turns.taken(rank):
            mesh = da.init_device_mesh(mesh_shape or (size,))
            x = da.distribute_array(value, mesh, placements, src=None)
            call(x)
            turns.peak(rank)
            result = call(x)
            peak = turns.peak(rank)
            made = [one for one in blocks_of(result) if not np.may_share_memory(one, x.to_local())]
            block = max(one.nbytes for one in (x.to_local(), *made))
            return (peak - sum(one.nbytes for one in made)) / block

    gc.disable()
    tracemalloc.start()
    try:
        with (
            mock.patch.object(_memory, "POOLED_BYTES", 1 << 62),  # all is NumPy's, which tells it
            mock.patch.object(Group, "await_round", await_in_turn),
            mock.patch.object(Group, "fetch", fetch_in_turn),
        ):
            return max(simulate(size, program, timeout=timeout))
    finally:
        tracemalloc.stop()
        gc.enable()


def blocks_of(result: Any) -> Iterator[np.ndarray]:
    """Yield the blocks of the arrays of a result."""
    if isinstance(result, (tuple, list)):
        for one in result:
            yield from blocks_of(one)
    elif isinstance(result, da.DistArray):
        yield result.to_local()
    elif isinstance(result, np.ndarray):
        yield result
