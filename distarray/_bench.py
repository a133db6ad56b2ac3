"""Times of redistributions, which all ranks of a node measure at once, as they share its memory."""

from __future__ import annotations

import math
import os
import statistics
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np

from distarray.comm import Communicator, DeviceMesh, _memory, init_device_mesh, world
from distarray.comm.kernels import choose_anew, compiling_at_once, cores
from distarray.errors import CommunicationError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.redistribute import (
    Grid,
    MeasuredModel,
    forget_speeds,
    keep_speeds,
    redistribute_local,
)
from distarray.typing import Buffer

_SIZES: Final = tuple(1 << n for n in (10, 13, 15, 16, 17, 19, 20, 22, 24, 26))
"""Bytes of the moves: from the first cache's to more than the last one's."""
_RUNS: Final = (16, 64, 256, 1024)
"""Bytes of the runs that the values of a move lie in, beside those of whole blocks."""
_SECONDS: Final = 0.02
"""For which each move is repeated."""
_SECONDS_IN_TURNS: Final = 0.1
"""The same where ranks take turns, which last some milliseconds: several of each in a round."""
_ROUNDS: Final = 7
_TRIALS: Final = 8
"""Calls after which it is chosen, or NumPy."""
_ITEM: Final = 8

_R, _P, _S0, _S1 = Replicate(), Partial(), Shard(0), Shard(1)
_MOVES: Final[dict[str, tuple[tuple[Placement, Placement], tuple[Placement, Placement] | None]]] = {
    "exchange": ((_S0, _R), (_S0, _S1)),
    "reduce": ((_P, _S0), (_P, _S1)),
    "cut": ((_R, _S0), (_R, _S1)),
    "fill": ((_S0, _P), (_S1, _P)),
    "keep": ((_R, _P), None),
    "all_reduce": ((_P, _R), None),
}
"""Of whole blocks, and in runs, for each kind of step."""


def measure_and_keep() -> tuple[MeasuredModel, str, float]:
    """Measure the speeds of this node, and keep them for later processes; collective.

    Returns them, on the first rank where they are kept (nothing where they cannot be), and the
    part of the processors' time that other programs took meanwhile.
    """
    comm = world()
    if not comm.reaches_all():
        raise CommunicationError(
            "the speeds of a node are measured by ranks that read each other's memory; start them "
            "on one node"
        )
    choose_anew()
    before = _times()
    model = measure(init_device_mesh((comm.size,)))
    busy, own, wall = _times() - before
    own = float(comm.all_reduce(np.array([own]), "sum")[0])
    others = max(0.0, busy - own) / (wall * (os.cpu_count() or 1))
    path = keep_speeds(model) if comm.rank == 0 else ""
    comm.barrier()
    forget_speeds()
    return model, path, others


def busy_seconds() -> float:
    """Return how long all processors have worked, in seconds; 0 where Linux does not tell."""
    try:
        # user, nice, system, idle, iowait, irq, softirq, and what a virtual machine has not got
        ticks = [int(n) for n in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    except (OSError, ValueError):
        return 0.0
    return float((sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK"))


def _times() -> Any:
    """Return seconds: of work by all processors, of work by this process, and passed."""
    return np.array([busy_seconds(), process_time(), perf_counter()])


def measure(mesh: DeviceMesh) -> MeasuredModel:
    """Measure the moves of the node that all ranks of a mesh of one axis are on; collective.

    All of them read each other's blocks in place. It takes some ten seconds, and memory for
    three blocks of 64 MiB on each rank.
    """
    with compiling_at_once():
        grids: dict[str, Any] = {kind: _grid(mesh, kind) for kind in _MOVES}
    return MeasuredModel(ranks=mesh.size, **grids)


def _grid(mesh: DeviceMesh, kind: str) -> Grid:
    """Measure the moves of a kind, in runs and of whole blocks; collective."""
    whole, in_runs = _MOVES[kind]
    curves = []
    for run in (*_RUNS, 0) if in_runs else (0,):
        ends = (in_runs if run else None) or whole
        moves = [(n, _layouts(mesh, *ends, n, run)) for n in _SIZES]
        known = [(n, *layouts) for n, layouts in moves if layouts]
        times = [_slowest(mesh.communicator(), src, dst) for _, src, dst in known]
        # What takes longer than more bytes do was disturbed.
        least = np.minimum.accumulate(times[::-1])[::-1].tolist()
        curves.append((float(run), tuple(zip([float(n) for n, *_ in known], least, strict=True))))
    return tuple(curves)


def _layouts(
    mesh: DeviceMesh, src: Placement, dst: Placement, nbytes: int, run: int
) -> tuple[Layout, Layout] | None:
    """Return the ends of a move by which each rank reads or writes so many bytes, if it is one."""
    items = nbytes // _ITEM
    if type(dst) is Shard and type(src) is not Partial:
        items *= mesh.size  # of the array, of which a rank has a part at last
    row = run // _ITEM * mesh.size
    shape = (items // row, row) if run else (items,)
    ends = Layout(mesh, [src], shape), Layout(mesh, [dst], shape)
    most = max(math.prod(layout.local_shape((0,))) for layout in ends) * _ITEM
    return None if (run and shape[0] < mesh.size) or most > _SIZES[-1] else ends


def _slowest(comm: Communicator, src: Layout, dst: Layout) -> float:
    """Return the median time of a move, from the first start to the last end; collective.

    The ranks of a node have one clock. Where they share cores one may be done before another, which
    does as much, has its turn.
    """
    block = _memory.zeros(src.local_shape(), np.dtype(np.float64))
    begun, ended = _run(block, src, dst, _TRIALS)
    once = (ended - begun) / _TRIALS
    seconds = _SECONDS if comm.size <= cores() else _SECONDS_IN_TURNS
    calls = int(comm.all_reduce(np.array([max(1.0, seconds / _ROUNDS / once)]), "min")[0])
    found = []
    for _ in range(_ROUNDS):
        comm.barrier()
        begun, ended = _run(block, src, dst, calls)
        minus_first, last = comm.all_reduce(np.array([-begun, ended]), "max")
        found.append(float(last + minus_first) / calls)
    return statistics.median(found)


def _run(block: Buffer, src: Layout, dst: Layout, calls: int) -> tuple[float, float]:
    """Return when this rank begins and ends some moves; collective."""
    begun = perf_counter()
    for _ in range(calls):
        redistribute_local(block, src, dst)
    return begun, perf_counter()
