"""Redistributions between ranks that share a GPU, by one way of moving values.

Run by the driver as ``mpiexec -n 2 python -m benchmarks.gpu.moves --way WAY``. What decides the way
is set in the environment. Every result is compared with known values, whole, on the device.
"""

from __future__ import annotations

import gc
import statistics
import time
from itertools import product
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks.by_distarray import PLACEMENTS
from benchmarks.gpu.device import Clock, Work, copy_seconds, library
from benchmarks.gpu.part import Part
from distarray.comm import _communicator, world
from distarray.comm.device_messages import _exchange

MOVES = (("S0", "S1"), ("S0", "R"), ("P", "S0"), ("P", "R"))
WAYS = {
    "in place": "read in place (CUDA's inter-process handles)",
    "staged": "through pinned host memory",
    "direct": "device memory passed to MPI",
}
PROMISED = 0.5
CONSTANTS = "Constants"
_REPEAT = 4096  # rows and columns after which values come again; sums stay exact in float32


class Ranks:
    """This rank among those that share the GPU, and what they time together."""

    def __init__(self, cupy: Any, comm: MPI.Comm, rehearsal: bool) -> None:
        self.cupy = cupy
        self.comm = comm
        self.mesh = da.init_device_mesh((comm.size,), device="cuda")
        self.rounds = 2 if rehearsal else 5

    def seconds(self, work: Work, calls: int = 1) -> float:
        """Return the median of warm rounds, a call: wall clock, of the slowest rank."""
        self._once(work, 1)
        return statistics.median(self._once(work, calls) for _ in range(self.rounds))

    def _once(self, work: Work, calls: int) -> float:
        stream = self.cupy.cuda.get_current_stream()
        stream.synchronize()
        self.comm.Barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            result = work()
        stream.synchronize()
        seconds = (time.perf_counter() - begun) / calls
        del result
        return float(self.comm.allreduce(seconds, MPI.MAX))


def main() -> None:
    """Measure the moves of the largest array first."""
    comm = MPI.COMM_WORLD
    part = Part(comm, way="in place")
    way = part.options.way
    cupy = library(part.rehearsal)
    ranks = Ranks(cupy, comm, part.rehearsal)
    side = _side(ranks, part.rehearsal)
    table = f"Moves: {side} x {side} float32, {comm.size} ranks, {WAYS[way]}"
    _notes(part, table, ranks, way)
    unit, both = _units(part, table, ranks, 4 * side * side // comm.size)
    found: dict[str, float] = {}
    for source, target in MOVES:
        if not part.has_time(f"{source} -> {target}"):
            continue
        name = f"{source} -> {target}"
        measured = part.attempt(table, name, lambda s=source, t=target: _moved(ranks, side, s, t))
        if measured is None:
            found[name] = 0.0
            continue
        seconds, nbytes = measured
        share = nbytes / seconds / unit
        found[name] = share
        part.row(
            table,
            name,
            time=("s", seconds),
            bytes=("n", nbytes),
            read_and_written=("B/s", nbytes / seconds),
            share_of_a_copy=("share", share),
            of_copies_by_all=("share", nbytes / seconds / both),
        )
        gc.collect()
    if way == "in place":
        _judge(part, ranks, side, found)
    part.attempt(table, "small ones", lambda: _small(part, ranks, way))
    if way == "staged":
        part.attempt(table, "chunks", lambda: _chunks(part, ranks, side))
        part.attempt(table, "small collectives", lambda: _on_host(part, ranks))
    part.close(table)


def _side(ranks: Ranks, rehearsal: bool) -> int:
    """Return the side of the square: of 4 GiB, where so much fits a dozen times."""
    if rehearsal:
        return 64
    free = ranks.comm.allreduce(ranks.cupy.cuda.Device().mem_info[0], MPI.MIN)
    side = 1 << 15
    while side > 1024 and 12 * 4 * side * side > free:
        side //= 2
    return side


def _notes(part: Part, table: str, ranks: Ranks, way: str) -> None:
    reached = ranks.mesh.communicator().reaches_all("cuda")
    if reached != (way == "in place"):
        part.note(table, f"CAUTION: blocks are {'' if reached else 'not '}read in place here.")
    part.note(
        table,
        "The ranks share one GPU without MPS: their kernels take turns, so that all of them "
        "together reach the bandwidth of one at best. Bytes are of all ranks: each reads what it "
        "needs once, and writes its result.",
    )


def _units(part: Part, table: str, ranks: Ranks, nbytes: int) -> tuple[float, float]:
    """Return bytes a second of device copies of a block, by one rank and by all at once."""
    alone = 0.0
    if ranks.comm.rank == 0:
        alone = copy_seconds(ranks.cupy, Clock(ranks.cupy, part.rehearsal), nbytes)
    alone = ranks.comm.bcast(alone)
    source, target = (ranks.cupy.zeros(nbytes, np.uint8) for _ in range(2))
    together = ranks.seconds(lambda: target.data.copy_from_device_async(source.data, nbytes))
    for told, seconds, count in (
        ("device copy of one block, by one rank", alone, 1),
        ("device copies of a block each, at once", together, ranks.comm.size),
    ):
        moved = 2 * nbytes * count
        part.row(
            table,
            told,
            time=("s", seconds),
            bytes=("n", moved),
            read_and_written=("B/s", moved / seconds),
        )
    return 2 * nbytes / alone, 2 * nbytes * ranks.comm.size / together


# --- moves ---------------------------------------------------------------------------------------


def _moved(ranks: Ranks, side: int, source: str, target: str) -> tuple[float, int]:
    """Check a move and time it; return seconds, and the bytes that ranks read and write."""
    x = _array(ranks, side, source)
    placements = [PLACEMENTS[target]]
    result = x.redistribute(placements)
    _check(ranks, side, target, result.to_local())
    nbytes = result.to_local().nbytes
    read = nbytes * (ranks.comm.size if source == "P" else 1)
    del result
    seconds = ranks.seconds(lambda: x.redistribute(placements))
    return seconds, (read + nbytes) * ranks.comm.size


def _vectors(ranks: Ranks, side: int) -> tuple[Any, Any]:
    """Return of which the values are the sums: one number a row, and one a column."""
    along = ranks.cupy.arange(side, dtype=np.float32) % _REPEAT
    return along[:, None] * _REPEAT, along[None, :]


def _box(ranks: Ranks, side: int, placement: str) -> tuple[slice, slice]:
    whole, step = slice(0, side), side // ranks.comm.size
    own = slice(ranks.comm.rank * step, (ranks.comm.rank + 1) * step)
    return {"S0": (own, whole), "S1": (whole, own)}.get(placement, (whole, whole))


def _array(ranks: Ranks, side: int, placement: str) -> da.DistArray:
    rows, columns = _vectors(ranks, side)
    of_rows, of_columns = _box(ranks, side, placement)
    shape = len(range(side)[of_rows]), len(range(side)[of_columns])
    block = ranks.cupy.zeros(shape, np.float32)
    if placement != "P" or ranks.comm.rank == 0:
        block += rows[of_rows]
    if placement != "P" or ranks.comm.rank == ranks.comm.size - 1:
        block += columns[:, of_columns]
    return da.DistArray.from_local(block, ranks.mesh, [PLACEMENTS[placement]])


def _check(ranks: Ranks, side: int, placement: str, found: Any) -> None:
    rows, columns = _vectors(ranks, side)
    of_rows, of_columns = _box(ranks, side, placement)
    rows, columns = rows[of_rows], columns[:, of_columns]
    right = found.shape == (len(rows), columns.shape[1])
    for start in range(0, len(rows), max(1, len(rows) // 16)):
        part = slice(start, start + max(1, len(rows) // 16))
        right = right and bool((found[part] == rows[part] + columns).all())
    if not ranks.comm.allreduce(right, MPI.LAND):
        raise ValueError(f"WRONG VALUES: {placement} of {side} x {side}")


def _judge(part: Part, ranks: Ranks, side: int, found: dict[str, float]) -> None:
    share = found.get("S0 -> S1")
    if share is None:
        part.verdict("moves", None, "no time for it")
        return
    if not ranks.mesh.communicator().reaches_all("cuda"):
        part.verdict("moves", None, "CUDA does not let ranks read each other's blocks here")
        return
    gib = 4 * side * side / 2**30
    others = ", ".join(f"{name} {100 * value:.0f} %" for name, value in found.items())
    is_it = gib >= 4 and ranks.comm.size == 2 and not part.rehearsal
    part.verdict("moves", share >= PROMISED if is_it else None, f"{gib:.3g} GiB: {others}")


# --- small ones, and constants -------------------------------------------------------------------


def _small(part: Part, ranks: Ranks, way: str) -> None:
    table = f"Latency, {ranks.comm.size} ranks, {WAYS[way]}"
    calls = 2 if part.rehearsal else 50
    for side, (source, target) in product((64, 1024), MOVES):
        if part.has_time(f"{source} -> {target} of {side}"):
            x = _array(ranks, side, source)
            placements = [PLACEMENTS[target]]
            _check(ranks, side, target, x.redistribute(placements).to_local())
            seconds = ranks.seconds(lambda x=x, to=placements: x.redistribute(to), calls)
            part.row(table, f"{source} -> {target}, {side} x {side}", time=("s", seconds))


def _chunks(part: Part, ranks: Ranks, side: int) -> None:
    """Time S0 -> S1 through host memory with chunks of several sizes, and several under way."""
    table = "Chunks of the staged way: S0 -> S1"
    x = _array(ranks, side // 2, "S0")
    best: tuple[float, int, int] = (float("inf"), 0, 0)
    before = _exchange.CHUNK_BYTES, _exchange.DEPTH
    for depth, chunk in product((before[1], 2, 4, 6), (2, 4, 8, 16)):
        told = f"chunks of {chunk} MiB, {depth} under way each way"
        if (depth == before[1] or chunk in (4, 8)) and part.has_time(told):
            _exchange.CHUNK_BYTES, _exchange.DEPTH = chunk << 20, depth
            seconds = ranks.seconds(lambda: x.redistribute([PLACEMENTS["S1"]]))
            part.row(table, told, time=("s", seconds), of_values=("B/s", side * side / seconds))
            best = min(best, (seconds, chunk << 20, depth))
    _exchange.CHUNK_BYTES, _exchange.DEPTH = before
    if best[1]:
        names = ("CHUNK_BYTES", "DEPTH")
        for name, now, suggested in zip(names, before, best[1:], strict=True):
            constant = f"distarray.comm.device_messages._exchange.{name}"
            part.row(CONSTANTS, constant, now=("n", now), suggested=("n", suggested))


def _on_host(part: Part, ranks: Ranks) -> None:
    """Time collectives by way of host memory at once, and as exchanges of chunks."""
    table = "Small collectives: by way of host memory at once, or as for large ones"
    now = _communicator.ON_HOST_BYTES
    rows = []
    for size in (1 << n for n in range(12, 23, 2)):
        if not part.has_time(f"all-reduce of {size} bytes"):
            break
        seconds = {
            told: _collectives(part, ranks, size, limit)
            for told, limit in (("at once", 1 << 40), ("exchanged", -1))
        }
        cells = {told: ("s", value) for told, value in seconds.items()}
        part.row(table, f"all-reduce and all-gather of {size} bytes", **cells)
        rows.append((size, seconds["at once"] <= seconds["exchanged"]))
    _set_on_host(now)
    better = [size for i, (size, _) in enumerate(rows) if all(ok for _, ok in rows[: i + 1])]
    if rows:
        constant = "distarray.comm._communicator.ON_HOST_BYTES"
        part.row(CONSTANTS, constant, now=("n", now), suggested=("n", max(better, default=0)))


def _set_on_host(limit: int) -> None:
    _communicator.ON_HOST_BYTES = limit


def _collectives(part: Part, ranks: Ranks, size: int, limit: int) -> float:
    _set_on_host(limit)
    communicator = world()
    send = ranks.cupy.ones(size // 4, np.float32)
    received = ranks.cupy.empty((ranks.comm.size, size // 4), np.float32)

    def work() -> None:
        communicator.all_reduce(send, "max")
        communicator.all_gather(send, received)

    seconds = ranks.seconds(work, 2 if part.rehearsal else 20)
    if not (received == 1).all():
        raise ValueError(f"WRONG VALUES: all-gather of {size} bytes")
    return seconds


if __name__ == "__main__":
    main()
