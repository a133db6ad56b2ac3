"""Time several contenders in turn, so that whatever else the machine does falls on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from distarray.comm.kernels import cores, cores_of

Work = Callable[[], Any]


def _shares_cores(comm: MPI.Comm) -> bool:
    """Tell whether there are more ranks, of one node, than cores that one or another may use."""
    together = frozenset[int]().union(*comm.allgather(cores_of()))
    return comm.size > (len(together) or cores())


def _once(comm: MPI.Comm, work: Work, calls: int, shared: bool) -> float:
    """Time `calls` calls in seconds a call, on one node; the slowest rank counts.

    Where ranks have `shared` cores that is from the first start to the last end, as one may be done
    before another has its turn; those that are done sleep, and leave their core to the others.
    """
    meet = _meet_asleep if shared else MPI.Comm.Barrier
    meet(comm)
    start = time.perf_counter()
    for _ in range(calls):
        result = work()
    stop = time.perf_counter()
    del result
    if not shared:
        return comm.allreduce((stop - start) / calls, MPI.MAX)
    meet(comm)
    return (comm.allreduce(stop, MPI.MAX) - comm.allreduce(start, MPI.MIN)) / calls


def _meet_asleep(comm: MPI.Comm) -> None:
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)


def in_turn(
    comm: MPI.Comm,
    works: Mapping[str, Work],
    *,
    repeats: int,
    batch_seconds: float = 0.0,
    seconds: float = 60.0,
) -> dict[str, list[float]]:
    """Time every work `repeats` times, one after another in each round.

    Parameters
    ----------
    works
        The contenders; each returns its result, which is dropped before the next one runs.
    repeats
        Rounds. One more comes first and is not counted.
    batch_seconds
        Call a quick work again and again for about this long, and divide.
    seconds
        Fewer rounds, but three, where all of them take longer.

    Returns
    -------
    dict
        Seconds a call of every round, the slowest rank's.
    """
    calls, shared = {}, _shares_cores(comm)
    for name, work in works.items():
        _once(comm, work, 1, shared)
        first = _once(comm, work, 3 if batch_seconds else 1, shared)
        calls[name] = max(1, min(20_000, int(batch_seconds / max(first, 1e-9))))
    samples: dict[str, list[float]] = {name: [] for name in works}
    spent = 0.0
    for done in range(repeats):
        if done >= 3 and spent > seconds:
            break
        first = done % len(works)  # each follows another, whose caches and garbage it inherits
        order = list(works.items())
        for name, work in order[first:] + order[:first]:
            samples[name].append(_once(comm, work, calls[name], shared))
            spent += samples[name][-1] * calls[name]  # the same on every rank
    return samples


def summary(samples: list[float]) -> dict[str, float]:
    """Keep the median, and the quartiles as a measure of trust."""
    ordered = sorted(samples)
    if len(ordered) < 2:
        return {"median": ordered[0], "low": ordered[0], "high": ordered[0]}
    low, _, high = statistics.quantiles(ordered, n=4)
    return {"median": statistics.median(ordered), "low": low, "high": high}


def ratios(samples: Mapping[str, list[float]], baseline: str) -> dict[str, dict[str, float]]:
    """Divide by the baseline round by round, so that what slows a whole round down cancels."""
    base = samples[baseline]
    return {
        name: summary([one / unit for one, unit in zip(values, base, strict=True)])
        for name, values in samples.items()
        if name != baseline
    }
