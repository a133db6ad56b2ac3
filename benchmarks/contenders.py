"""Who takes part: a module each, with the same names."""

from __future__ import annotations

from types import ModuleType

from mpi4py import MPI

from benchmarks import by_dask, by_distarray, by_dtensor, by_hand, by_heat

ALL = (by_distarray, by_hand, by_dtensor, by_heat, by_dask)


def present(comm: MPI.Comm, without: str = "") -> tuple[list[ModuleType], dict[str, str]]:
    """Start every contender; return those that run here, and why the others do not."""
    running, absent = [], {}
    left_out = {f"benchmarks.by_{name}" for name in without.split(",")}
    for module in ALL:
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
