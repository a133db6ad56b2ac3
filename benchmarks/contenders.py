"""Who takes part: a module each, with the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from mpi4py import MPI

from benchmarks import by_dask, by_distarray, by_dtensor, by_hand, by_heat, record

ALL = (by_distarray, by_hand, by_dtensor, by_heat, by_dask)


def measure_all(
    suite: str,
    cases: Callable[[int, bool], Iterable[Any]],
    measure: Callable[[MPI.Comm, Any, list, bool], dict],
    modules: Iterable[ModuleType] = ALL,
) -> None:
    """Measure every case with every contender, and write the rows.

    `cases(ranks, quick)` gives what `measure(comm, case, contenders, quick)` makes a row of.
    """
    options = record.options()
    comm = MPI.COMM_WORLD
    running, absent = present(comm, options.without, modules)
    rows = []
    for case in cases(comm.size, options.quick):
        rows.append(measure(comm, case, running, options.quick))
        record.say(comm, rows[-1])
    record.write(comm, options.out, suite, rows, absent)
    leave(comm, running)


def present(
    comm: MPI.Comm, without: str = "", modules: Iterable[ModuleType] = ALL
) -> tuple[list[ModuleType], dict[str, str]]:
    """Start every contender; return those that run here, and why the others do not."""
    running, absent = [], {}
    left_out = {f"benchmarks.by_{name}" for name in without.split(",")}
    for module in modules:
        reason = "left out" if module.__name__ in left_out else module.start()
        reasons = [reason for reason in comm.allgather(reason) if reason]
        if reasons:
            absent[module.NAME] = reasons[0]
        else:
            running.append(module)
    return running, absent


def leave(comm: MPI.Comm, modules: list[ModuleType]) -> None:
    """Let those that hold something let it go, all ranks together."""
    for module in modules:
        comm.Barrier()
        if hasattr(module, "stop"):
            module.stop()
    comm.Barrier()
