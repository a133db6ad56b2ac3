"""Speeds of a node, which all its ranks measure at once, as they share its memory."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import numpy as np

from distarray.comm import (
    Communicator,
    DeviceMesh,
    _memory,
    copy_box,
    init_device_mesh,
    reduce_into,
    world,
)
from distarray.errors import CommunicationError
from distarray.layout import Layout, Replicate, Shard
from distarray.redistribute import (
    Curve,
    MeasuredModel,
    forget_speeds,
    keep_speeds,
    pace,
    redistribute_local,
)

_SIZES: Final = tuple(1 << n for n in (12, 15, 17, 18, 19, 20, 21, 22, 23, 24, 26))
"""Bytes of the blocks that are copied: from the first cache's to more than the last one's."""
_SMALL: Final = tuple(1 << n for n in (9, 11, 13, 14, 15, 16))
"""Bytes of blocks that are copied for the others in each exchange, and of the first that is not."""
_RUN: Final = 256
"""Bytes of the runs whose beginning is measured."""
_RUNS: Final = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of all runs together, at most a half of the largest block."""
_SECONDS: Final = 0.05
"""For which each thing is repeated."""
_WORK: Final = 17 << 30
"""Bytes of each kind of work after which kernels have been compiled and chosen, if they serve."""
_SHORTEST: Final = 1e-10
"""Seconds that beginning a run takes at least: less is noise."""
_TOKEN: Final = 0x6D656173


def measure_and_keep() -> tuple[MeasuredModel, str]:
    """Measure the speeds of this node, and keep them for later processes; collective.

    Returns them, and on the first rank where they are kept: nothing where they cannot be.
    """
    comm = world()
    if not comm.reaches_all():
        raise CommunicationError(
            "the speeds of a node are measured by ranks that read each other's memory; start them "
            "on one node"
        )
    model = measure(init_device_mesh((comm.size,)))
    path = keep_speeds(model, comm.size) if comm.rank == 0 else ""
    comm.barrier()
    forget_speeds()
    return model, path


def measure(mesh: DeviceMesh) -> MeasuredModel:
    """Measure the speeds of the node that all ranks of a mesh of one axis are on; collective.

    All of them read each other's blocks in place. It takes some seconds, and memory for three
    blocks of 64 MiB on each rank.
    """
    comm = mesh.communicator()
    whole, rows, columns = (
        Layout(mesh, [placement], (2 * comm.size,) * 2)
        for placement in (Replicate(), Shard(0), Shard(1))
    )
    few = np.zeros(whole.shape)
    message = _slowest(comm, lambda: copy_box(few[:1], few[1:2]))
    step = _slowest(comm, lambda: redistribute_local(few, whole, rows)) - message
    part = few[: rows.local_shape()[0]]
    exchange = _slowest(comm, lambda: redistribute_local(part, rows, columns))
    round_ = max(exchange - step - comm.size * message, 0.0) if comm.size > 1 else 0.0
    own = _memory.zeros((_SIZES[-1] // 8,), np.float64)
    with comm.views(own, _TOKEN, "bench") as views:
        near = views[(comm.rank + 1) % comm.size]
        assert near is not None

        def curve(work: Callable[[np.ndarray, int], object], read: int) -> Curve:
            """Return how fast something is done to new blocks, of which others are kept."""
            found = []
            for nbytes in _SIZES:
                n = nbytes // read // 8
                kept: list[Any] = [None]

                def once(n: int = n, kept: list[Any] = kept) -> None:
                    out = _memory.empty((n,), np.float64)
                    work(out, n)
                    kept[0] = out  # the next one is not in its place

                taken = _slowest(comm, once)
                found.append((float(nbytes), nbytes / max(taken - message, taken / 4)))
            return tuple(found)

        def copy_halves(out: np.ndarray, n: int) -> None:
            copy_box(out[: n // 2], own[: n // 2], total=out.nbytes)
            copy_box(out[n // 2 :], near[n // 2 : n], total=out.nbytes)

        far = near.reshape(-1, 2 * _RUN // 8)[:, : _RUN // 8]
        target: Any = _memory.empty(own.shape, np.float64)
        narrow = target[: far.size].reshape(far.shape)
        for _ in range(_WORK // own.nbytes):
            copy_halves(target, target.size)
            reduce_into(target, [own, near], "sum")
            copy_box(narrow, far)
        copy = curve(copy_halves, 1)
        reduce = curve(lambda out, n: reduce_into(out, [own[:n], near[:n]], "sum"), 2)
        fill = curve(lambda out, n: out.fill(0.0), 1)  # noqa: ARG005
        model = MeasuredModel(
            round_near=round_, message_near=message, step=step, copy=copy, reduce=reduce, fill=fill
        )
        run: list[tuple[float, float]] = []
        reduced_run: list[tuple[float, float]] = []
        for nbytes in _RUNS:
            count = nbytes // _RUN
            here, there = (x.reshape(-1, 2 * _RUN // 8)[:count, : _RUN // 8] for x in (own, near))
            into = _memory.empty(here.shape, np.float64)
            for curve_of, begun, work in (
                (copy, run, functools.partial(copy_box, into, there)),
                (reduce, reduced_run, functools.partial(reduce_into, into, [here, there], "sum")),
            ):
                read = nbytes * (2 if begun is reduced_run else 1)
                extra = _slowest(comm, work) - read / pace(curve_of, read)
                runs = read // _RUN
                begun.append((float(read), runs / max(extra, runs * _SHORTEST)))
    fresh = []
    for nbytes in _SMALL if comm.size > 1 else ():
        block = np.zeros(nbytes // 8 - 1)

        def exchange_once(block: np.ndarray = block) -> None:
            with comm.views(block, _TOKEN, "bench") as views:
                copy_box(np.empty_like(block), views[(comm.rank + 1) % comm.size])

        taken = _slowest(comm, exchange_once)
        fresh.append((float(nbytes), nbytes / max(taken - round_ - message, taken / 8)))
    return replace(model, run=tuple(run), reduced_run=tuple(reduced_run), fresh=tuple(fresh))


def _slowest(comm: Communicator, work: Callable[[], object]) -> float:
    """Return the median time of a call, that of the slowest rank in each round; collective."""
    work()
    start = perf_counter()
    work()
    once = max(perf_counter() - start, 1e-7)
    calls = int(comm.all_reduce(np.array([max(1.0, _SECONDS / 9 / once)]), "min")[0])
    found = []
    for _ in range(9):
        comm.barrier()
        start = perf_counter()
        for _ in range(calls):
            work()
        taken = np.array([(perf_counter() - start) / calls])
        found.append(float(comm.all_reduce(taken, "max")[0]))
    return statistics.median(found)
