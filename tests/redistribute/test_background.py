"""Work in the background comes out right, and its threads end."""

from __future__ import annotations

import threading

import numpy as np

import distarray as da
from distarray.testing import simulate


def test_threads_of_simulated_ranks_end_with_their_program():
    def program() -> None:
        x = da.distribute_array(np.arange(12.0).reshape(3, 4), src=None)
        handle = x.redistribute([da.Shard(1)], async_op=True)
        np.testing.assert_array_equal(handle.wait().full_array(), np.arange(12.0).reshape(3, 4))

    def workers() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("distarray background")}

    simulate(4, program)
    before = workers()
    assert len(before) >= 4
    simulate(4, program)
    for thread in before:
        thread.join(timeout=10)
    assert not before & workers()
