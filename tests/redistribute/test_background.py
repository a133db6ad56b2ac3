"""Work in the background comes out right, and its threads end."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import distarray as da
from distarray.testing import simulate


def test_threads_of_simulated_ranks_end_with_their_program():
    def program() -> None:
        x = da.distribute_array(np.arange(12.0).reshape(3, 4), src=None)
        handle = x.redistribute([da.Shard(1)], async_op=True)
        np.testing.assert_array_equal(handle.wait().full_array(), np.arange(12.0).reshape(3, 4))

    def workers() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("distarray background")}

    others = workers()  # of failures in other tests, until these are collected
    simulate(4, program)
    before = workers() - others
    assert len(before) == 4
    simulate(4, program)
    for thread in before:
        thread.join(timeout=10)
    assert not before & workers()


def test_work_begun_behind_a_failure_meets_no_later_call():
    """Only rank 0 has begun more before it hears of the failure, as where ranks are out of step."""

    def program() -> None:
        rank = da.init_device_mesh((2,)).coordinate[0]
        x = da.DistArray.from_local(np.full((2, 6), rank + 1.0), placements=[da.Shard(0)])
        handle = x.redistribute([[da.Shard(1)], [da.Replicate()]][rank], async_op=True)
        behind = [x.redistribute([da.Shard(1)], async_op=True) for _ in range(3 * (1 - rank))]
        with pytest.raises(da.errors.MismatchError):
            handle.wait()
        later = x.redistribute([da.Replicate()], async_op=True)
        np.testing.assert_array_equal(later.wait().to_local(), [[1.0] * 6] * 2 + [[2.0] * 6] * 2)
        for handle in behind:
            with pytest.raises(da.errors.MismatchError):
                handle.wait()

    for _ in range(20):
        simulate(2, program)
