"""dask: arrays of NumPy blocks in one process, a thread for each rank that the others have."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from benchmarks.cases import Move, bins, shuffled_rows
from benchmarks.measure import Work

NAME = "dask"


def start() -> str | None:
    """Get ready; say why not, if not."""
    try:
        import dask.array
        import dask.dataframe  # noqa: F401 - is it there
    except ImportError as missing:
        return str(missing)
    return None


def move(case: Move, block: np.ndarray) -> Work | None:  # noqa: ARG001
    """Redistribute nothing: threads of one process have it all."""
    return None


def operation(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> Work | None:  # noqa: ARG001
    """Perform nothing: what is measured here are selections."""
    return None


def local(result) -> np.ndarray | None:
    """Take the first block out of a result, on the rank that has it."""
    if result is None:
        return None
    return np.asarray(result.partitions[0].compute(scheduler="synchronous"))


def selection(name: str, x: np.ndarray, y: np.ndarray) -> Work | None:
    """Select, sort or count items of arrays in as many blocks as there are ranks."""
    import dask.array as dask
    import dask.dataframe as frames

    kind, length = name.partition(",")[0], bins(name)
    works: dict[str, Callable] = {
        "x[mask]": lambda x, _, mask: x[mask],
        "x[mask] = 0": lambda x, _, mask: dask.where(mask, 0, x),
        "x[rows]": lambda x, order, _: x[order],
        "sort": lambda x, *_: frames.from_dask_array(x, "x").to_frame().sort_values("x"),
        "bincount": lambda x, *_: dask.bincount(x, minlength=length),
    }
    if kind not in works:
        return None
    comm = MPI.COMM_WORLD
    whole = [_gather(comm, block) for block in (x, y if "mask" in name else x[:0])]
    if comm.rank:
        return lambda: _rest(comm)
    given, other = (dask.from_array(one, (len(x), *x.shape[1:])).persist() for one in whole)
    order, mask = shuffled_rows(len(whole[0])), (other > 0.5).persist()
    threads = {"scheduler": "threads", "num_workers": comm.size}
    return lambda: (works[kind](given, order, mask).persist(**threads), _rest(comm))[0]


def _gather(comm: MPI.Comm, block: np.ndarray) -> np.ndarray:
    """Return all ranks' blocks on the first."""
    whole = np.empty((len(block) * comm.size * (comm.rank == 0), *block.shape[1:]), block.dtype)
    comm.Gather(block, whole)
    return whole


def _rest(comm: MPI.Comm) -> None:
    """Wait until all are here, and leave the cores to those who work meanwhile."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)
