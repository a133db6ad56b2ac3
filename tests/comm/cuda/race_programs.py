"""Programs over the stand-in for CuPy whose accesses to memory are checked for races.

``python -m tests.comm.cuda.race_programs NAME ...`` runs one and tells what it found; the exit
status is 1 where something races. ``--careless`` takes away what orders the memory of work in the
background after the program's use of it.
"""

from __future__ import annotations

import os

os.environ["DISTARRAY_TEST_DEVICE"] = "cuda"

import argparse
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import distarray as da
from distarray.comm import _communicator
from distarray.comm.cuda import _device, _launch, _streams
from distarray.comm.device_messages import _exchange
from distarray.testing import simulate
from tests import on_device
from tests.comm.cuda.races import Checker
from tests.comm.cuda.watched_stand_in import watch

CHUNK_BYTES = 600
"""Few enough for messages that are staged to be cut."""
STEPS = 40
LAYERS, FEATURES, TRAINING_STEPS = 4, 24, 3


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="one after another")
    parser.add_argument("--ranks-per-node", type=int, default=None)
    parser.add_argument("--dtypes", nargs="+", default=["float64"], help="one after another")
    parser.add_argument("--by-host", action="store_true", help="small messages, as by default")
    parser.add_argument("--careless", action="store_true")
    options = parser.parse_args(arguments)
    checker = watch(on_device.stand_in())
    on_device.prepare()
    _exchange.CHUNK_BYTES = CHUNK_BYTES
    if not options.by_host:
        _communicator.ON_HOST_BYTES = -1
    if options.careless:
        _streams._allocate_after = lambda cuda, program, own: cuda.get_allocator()
    PROGRAMS[options.program](checker, options)
    report = checker.report()
    print(report)
    return 0 if "races: 0 " in report else 1


def _on_ranks(function: Callable[..., Any], options: argparse.Namespace) -> None:
    """Run a function on simulated ranks, each on a stream of its own, as processes are."""
    cuda = on_device.stand_in().cuda

    def on_rank(ranks: int) -> None:
        mesh = da.init_device_mesh((ranks,), device="cuda")
        with cuda.Stream(non_blocking=True):
            function(mesh)

    for ranks in options.ranks:
        simulate(ranks, on_rank, ranks, ranks_per_node=options.ranks_per_node)


# --- arrays --------------------------------------------------------------------------------------


def arrays(checker: Checker, options: argparse.Namespace) -> None:
    """Redistribute in the background, drop the sources, and wait out of order."""
    _on_ranks(_redistributed, options)


def _redistributed(mesh: Any) -> None:
    chosen, values = random.Random(5), np.random.default_rng(5)
    pending: list[tuple[Any, np.ndarray]] = []
    for _ in range(STEPS):
        shape = chosen.choice([(24, 20), (7, 5), (64, 3), (0, 4), (9,)])
        kinds = [da.Replicate(), *(da.Shard(axis) for axis in range(len(shape)))]
        wanted = (values.random(shape) * 100).astype(chosen.choice(["f8", "f4", "i4", "c8"]))
        array = da.distribute_array(wanted, mesh, [chosen.choice(kinds)], src=None)
        if chosen.random() < 0.4:
            array, wanted = array + array, wanted + wanted
        if chosen.random() < 0.3:
            block = array.redistribute([da.Replicate()]).to_local()
            array = da.DistArray.from_local(block, mesh, [da.Partial()])
            wanted = sum([wanted] * (mesh.size - 1), wanted)
        target = [chosen.choice(kinds)]
        if chosen.random() < 0.7:
            pending.append((array.redistribute(target, async_op=True), wanted))
        else:
            most = chosen.choice([None, 64, 1000])
            _compared(array.redistribute(target, max_bytes=most), wanted)
        del array
        if pending and chosen.random() < 0.5:
            handle, wanted = pending.pop(chosen.randrange(len(pending)))
            moved = handle.wait()
            _compared(moved + moved, wanted + wanted)
            del handle, moved
    for handle, _ in pending:
        handle.wait()


def _compared(array: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(on_device.host(array.full_array()), wanted, rtol=1e-6)


# --- modules -------------------------------------------------------------------------------------


def modules(checker: Checker, options: argparse.Namespace) -> None:
    """Train a fully sharded and a replicated module for some steps."""
    import torch

    import distarray.torch as dt
    from tests import torch_on_device
    from tests.comm.cuda.watched_torch import watch_torch

    cupy = on_device.stand_in()
    torch_on_device.prepare(cupy)
    watch_torch(cupy, checker)
    torch.manual_seed(0)
    inputs = torch.randn(3, FEATURES)

    def stack(dtype: Any) -> Any:
        return torch.nn.Sequential(
            *(torch.nn.Linear(FEATURES, FEATURES, dtype=dtype) for _ in range(LAYERS))
        )

    def steps(module: Any, x: Any) -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(TRAINING_STEPS):
            module(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def train(mesh: Any) -> None:
        for name in options.dtypes:
            dtype = getattr(torch, name)
            x = (inputs + mesh.rank).to(dtype)
            sharded = stack(dtype)
            for module in (*sharded, sharded):
                dt.fully_shard(module, mesh)
            steps(sharded, x)
            steps(dt.replicate(stack(dtype), mesh), x)

    _on_ranks(train, options)


# --- memory --------------------------------------------------------------------------------------


def table(checker: Checker, options: argparse.Namespace) -> None:
    """Let the background upload a table while the program drops what it still reads.

    The program reads and drops a result of the background, whose memory goes back to the pool of
    the background's stream, between the moment at which the next task there was asked for and the
    upload in it.
    """
    cupy = on_device.stand_in()
    _device.bind("cuda:0", 0)
    _launch.simulated = lambda: False
    begun, dropped = threading.Event(), threading.Event()

    def upload() -> None:
        begun.set()
        dropped.wait()
        _launch.upload(np.arange(64))

    with ThreadPoolExecutor(1) as background:
        make = _forked(_device.empty, (64,), np.int64, "cuda:0")
        result = background.submit(make).result()
        under_way = background.submit(_forked(upload))
        begun.wait()
        cupy.add(result, 1)
        del result
        dropped.set()
        under_way.result()


def _forked(work: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Return work for another thread that comes after what this one's stream has now."""
    fork = _streams.fork_stream()
    assert fork is not None
    return lambda: fork.run(work, *arguments)


def taken(checker: Checker, options: argparse.Namespace) -> None:
    """Race on purpose: give memory to a stream that another one still reads."""
    cupy = on_device.stand_in()
    other = cupy.cuda.Stream(non_blocking=True)
    with other:
        lent = cupy.ones(64)
        other.synchronize()
    cupy.add(lent, 1)
    del lent
    if not options.careless:
        other.wait_event(cupy.cuda.get_current_stream().record())
    with other:
        cupy.zeros(64)


PROGRAMS: dict[str, Callable[[Checker, argparse.Namespace], None]] = {
    one.__name__: one for one in (arrays, modules, table, taken)
}


if __name__ == "__main__":
    sys.exit(main())
