"""Processes that a rank starts do not send in its place."""

import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import distarray as da
from distarray.comm import world
from distarray.errors import CommunicationError

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here"),
]
WORDS = 100_000  # of a block in memory that the ranks of a node share


def forked(function: Callable[[], object]) -> int:
    """Return 0 if a forked process runs a function, 1 if it is told not to send, 2 otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of processes with threads
        child = os.fork()
    if child == 0:
        code = 2
        try:
            function()
            code = 0
        except CommunicationError as error:
            code = 1 if "was forked from a rank" in str(error) else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _ones_of(size: int) -> da.DistArray:
    """Return an array over a mesh that nobody has made before."""
    mesh = da.init_device_mesh((1, size), axis_names=("one", "all"))
    return da.ones(size, mesh=mesh, placements=[da.Replicate(), da.Shard(0)])


def test_a_forked_process_does_not_send() -> None:
    size = world().size
    x = da.arange(8 * size)
    total = 4 * size * (8 * size - 1)
    y = da.arange(3 * size).rebalance()
    assert float(x.sum()) == total
    meshes = [da.default_mesh(), da.init_device_mesh((size, 1))]
    calls: list[Callable[[], object]] = [
        lambda: float(x.sum()),
        lambda: float(da.ones(3).sum()),
        lambda: np.asarray(x),
        lambda: da.sort(y)[::-1] + da.roll(y, 1),
        lambda: y.redistribute([da.Replicate()]),
        lambda: world().barrier(),
        lambda: world().all_gather(np.zeros(9000), np.zeros(9000 * size)),
        lambda: meshes[1].comm().Barrier(),
        lambda: float(_ones_of(size).sum()),
    ]
    assert [forked(call) for call in calls] == [1] * len(calls)
    assert float(x.sum()) == total
    np.testing.assert_array_equal(np.asarray(y), np.arange(3 * size))


def test_a_forked_process_computes_on_its_block() -> None:
    x = da.arange(WORDS * world().size, dtype=np.float64)
    before = x.to_local().copy()

    def compute() -> None:
        np.testing.assert_array_equal((x + 1).to_local(), before + 1)
        x.to_local()[...] = -1
        assert x.to_local().max() == -1

    assert forked(compute) == 0
    np.testing.assert_array_equal(x.to_local(), before)
    assert float(x.sum()) == before.size * world().size * (before.size * world().size - 1) / 2


def _total(part: np.ndarray) -> float:
    return float(da.asarray(part).sum()) if part.size % 2 else float(part.sum())


def test_pools_say_that_they_do_not_send() -> None:
    x = da.arange(2 * world().size)
    total = float(x.to_local().sum())
    assert float(x.sum()) == world().size * (x.size - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = multiprocessing.get_context("fork").Pool(2)
    with pool:
        assert pool.map(_total, [x.to_local()] * 4) == [total] * 4
        with pytest.raises(CommunicationError, match="was forked from a rank"):
            pool.map(_total, [np.ones(3)] * 2)
    assert float(x.sum()) == world().size * (x.size - 1)


def test_a_program_that_a_rank_starts_is_no_rank() -> None:
    world()
    found = subprocess.run(
        [sys.executable, "-c", "import distarray as da; da.ones(3).sum()"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode
    assert f"was started by process {os.getpid()}, which is rank" in found.stderr
