"""Times of redistributions, which all ranks of a node measure at once, as they share its memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import Communicator, DeviceMesh, _memory, init_device_mesh, world
from distarray.comm.kernels import choose_anew, compiling_at_once, cores_of
from distarray.errors import CommunicationError
from distarray.layout import Layout, Partial, Placement, Replicate, Shard
from distarray.redistribute import (
    MeasuredModel,
    are_small,
    forget_speeds,
    keep_speeds,
    redistribute_local,
)

_SIZES: Final = (
    1000, 8000, 30_000, 40_000, 65_000, 66_000, 260_000, 270_000, 1_000_000,
    4_000_000, 9_000_000, 16_000_000, 17_000_000, 33_000_000, 34_000_000, 70_000_000,
)  # fmt: skip
"""Bytes of the moves: close to each other where the way changes, at 32, 64 and 256 KiB, 16 and
32 MiB. Two ranks that want a sum go another way from 256 KiB of each on, two that reduce parts from
32 MiB, which are 16 of each part. What is copied there has a kernel for each power of two."""
_MOST_BYTES: Final = 100_000_000
"""Bytes of a block: of cut ones a rank has more than it moves."""
_RUNS: Final = (16, 72, 264, 2056)
"""Bytes of the runs that the values of a move lie in, beside those of whole blocks.

For each there is another way to copy large blocks: a kernel moves halves of a row, or lines of it;
NumPy; a kernel that goes past the caches.
"""
_SECONDS: Final = 0.003
"""For which each move is repeated in a round; twice for each rank of a core that several share.

So all of them have their turns, which last 3 to 4 ms on Linux (a slice, rounded up to a tick of the
clock). 8 ranks on two cores measured for 6 ms, less than a turn of each, moves among pairs seemed
to take up to twice as long, by the turns of others, and differed by half from time to time.
"""
_ROUNDS: Final = 5
"""The median of them counts: others of a host slow this machine down for seconds at a time."""
_UNSTEADY: Final = 1.5
_TRIALS: Final = 3
"""Calls before the first round. After the second a kernel is chosen, or NumPy."""
_MOST_TIMES: Final = 16
"""By which calls that have taken too little time become more, at a time."""
_ITEM: Final = 8

_R, _P, _S0, _S1 = Replicate(), Partial(), Shard(0), Shard(1)
_MOVES: Final[dict[str, tuple[tuple[Placement, Placement], tuple[Placement, Placement] | None]]] = {
    "cut": ((_R, _S0), (_R, _S1)),
    "fill": ((_S0, _P), (_S1, _P)),
    "keep": ((_R, _P), None),
    "exchange": ((_S0, _R), (_S0, _S1)),
    "reduce": ((_P, _S0), (_P, _S1)),
    "all_reduce": ((_P, _R), None),
}
"""Of whole blocks, and in runs, for each kind of step."""
_SENT_WHOLE: Final = ("exchange", "reduce")
"""Kinds whose small blocks travel whole, and are measured apart."""


class Measured(NamedTuple):
    """What was measured.

    Attributes
    ----------
    model
        The speeds.
    path
        Where they are kept; nothing where they cannot be, and on all ranks but the first.
    others
        Part of the processors' time that other programs took meanwhile.
    unsteady
        Part of the times that were half as long again, or more, in another round: so other
        machines of the same host show, and ranks that take turns.
    """

    model: MeasuredModel
    path: str
    others: float
    unsteady: float


def measure_and_keep(between: Callable[[], object] = lambda: None) -> Measured:
    """Measure the speeds of this node, and keep them for later processes; collective.

    ``between`` is called after each round.
    """
    comm = world()
    if not comm.reaches_all():
        raise CommunicationError(
            "the speeds of a node are measured by ranks that read each other's memory; start them "
            "on one node"
        )
    choose_anew()
    before = _times()
    model, unsteady = measure(comm.size, between)
    busy, own, wall = _times() - before
    own = float(comm.all_reduce(np.array([own]), "sum")[0])
    others = max(0.0, busy - own) / (wall * (os.cpu_count() or 1))
    path = keep_speeds(model) if comm.rank == 0 else ""
    comm.barrier()
    forget_speeds()
    return Measured(model, path, others, unsteady)


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


class _Move(NamedTuple):
    """One that is measured: its kind, among how many ranks, the bytes of a run and of all."""

    kind: str
    group: int
    run: float
    nbytes: float
    src: Layout
    dst: Layout


def measure(
    ranks: int, between: Callable[[], object] = lambda: None
) -> tuple[MeasuredModel, float]:
    """Measure the moves of the node that all ranks are on, and tell how unsteady; collective.

    All of them read each other's blocks in place. All moves have their turn in each round, so that
    what disturbs one round is outvoted. It takes some ten seconds, more where ranks share cores
    (four on two a minute, eight two), and memory for a block of 100 MB and its parts on each rank.
    """
    groups = [2, ranks] if ranks > 2 and ranks % 2 == 0 else [ranks]
    meshes = [init_device_mesh((ranks // n, n)) for n in groups]
    moves = [
        move
        for mesh in meshes
        for kind in _MOVES
        if mesh is meshes[0] or kind != "cut"  # which a rank does alone, whoever has the rest
        for move in _moves(mesh, kind)
    ]
    comm = world()
    least = least_seconds(comm)
    rounds: list[list[float]] = []
    with compiling_at_once():
        for _ in range(_ROUNDS):
            known = rounds[0] if rounds else [0.0] * len(moves)
            rounds.append([_time(comm, *one, least) for one in zip(moves, known, strict=True)])
            between()
    found: dict[str, dict[int, dict[float, list[tuple[float, float]]]]] = {}
    for move, seconds in zip(moves, np.median(rounds, axis=0).tolist(), strict=True):
        grid = found.setdefault(move.kind, {}).setdefault(move.group, {})
        grid.setdefault(move.run, []).append((move.nbytes, seconds))
    grids: Any = {
        kind: tuple(
            (group, tuple((run, tuple(curve)) for run, curve in grid.items()))
            for group, grid in of_groups.items()
        )
        for kind, of_groups in found.items()
    }
    unsteady = np.max(rounds, axis=0) > _UNSTEADY * np.min(rounds, axis=0)
    return MeasuredModel(ranks=ranks, **grids), float(unsteady.mean())


def _moves(mesh: DeviceMesh, kind: str) -> list[_Move]:
    """Return the moves of a kind along the second axis of a mesh, in runs and of whole blocks."""
    whole, in_runs = _MOVES[kind]
    found = []
    for run in (*_RUNS, 0) if in_runs else (0,):
        for n in _SIZES:
            ends = _layouts(mesh, *((in_runs if run else None) or whole), n, run)
            if ends:
                is_small = kind in _SENT_WHOLE and are_small([(ends[0], np.dtype(np.float64))])
                name = f"{kind}_small" if is_small else kind
                found.append(_Move(name, mesh.shape[1], float(run), float(n), *ends))
    return found


def _layouts(
    mesh: DeviceMesh, src: Placement, dst: Placement, nbytes: int, run: int
) -> tuple[Layout, Layout] | None:
    """Return the ends of a move by which each rank reads or writes so many bytes, if it is one."""
    group = mesh.shape[1]
    items = nbytes // _ITEM
    if type(dst) is Shard and type(src) is not Partial:
        items *= group  # of the array, of which a rank has a part at last
    row = run // _ITEM * group
    shape = (items // row, row) if run else (items,)
    ends = Layout(mesh, [_R, src], shape), Layout(mesh, [_R, dst], shape)
    most = max(math.prod(layout.local_shape((0, 0))) for layout in ends) * _ITEM
    return None if (run and shape[0] < group) or most > _MOST_BYTES else ends


def _time(comm: Communicator, move: _Move, once: float, seconds: float) -> float:
    """Return the time of a move, of whose last measurement `once` tells; collective."""
    # Not of zeros: on Zen 5 it takes half as long to write these over others.
    block = _memory.full(move.src.local_shape(), 1.0, np.dtype(np.float64))
    work = partial(redistribute_local, block, move.src, move.dst)
    for _ in range(1 if once else _TRIALS):
        work()
    return time_calls(comm, work, seconds, once)


def least_seconds(comm: Communicator) -> float:
    """Return for how long calls are to be repeated, so that each rank has its turn; collective."""
    cores = frozenset().union(*comm.all_gather_object(cores_of()))
    sharing = math.ceil(comm.size / (len(cores) or 1))
    return _SECONDS if sharing == 1 else 2 * sharing * _SECONDS


def time_calls(
    comm: Communicator, work: Callable[[], object], seconds: float, once: float = 0.0
) -> float:
    """Return the time of a call, of so many that they take some seconds; collective.

    It is that from the first start to the last end, as the ranks of a node have one clock: where
    they share cores one may be done before another, which does as much, has its turn. Who is done
    waits as in a program, without work, and leaves its core to the others. ``once`` is about what
    a call takes, if that is known.
    """
    calls = max(1, math.ceil(seconds / once)) if once else 1
    while True:
        comm.barrier()
        begun = perf_counter()
        for _ in range(calls):
            work()
        minus_first, last = comm.all_reduce(np.array([-begun, perf_counter()]), "max")
        spent = float(last + minus_first)
        if 2 * spent >= seconds:
            return spent / calls
        calls *= min(math.ceil(seconds / spent), _MOST_TIMES)
