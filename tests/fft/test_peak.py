"""Transforms of large arrays on real ranks need three blocks: before, meanwhile, and after."""

from __future__ import annotations

import pytest

from tests.rank_programs import run_on_four_ranks

PROGRAM = """
import numpy as np
import distarray as da

n = 128
transforms = [
    ("rfftn", (n, n, n), float), ("irfftn", (n, n, n // 2 + 1), complex),
    ("fftn", (n, n, n), complex), ("ifftn", (n, n, n), complex),
]
for name, shape, dtype in transforms:  # the peak only grows, and the larger blocks come last
    for grid, axes in (((4,), (0,)), ((2, 2), (0, 1))):
        mesh = da.init_device_mesh(grid)
        x = da.ones(shape, dtype=dtype, mesh=mesh, placements=[da.Shard(axis) for axis in axes])
        y = getattr(da.fft, name)(x)
        block = max(x.to_local().nbytes, y.to_local().nbytes)
        assert da.memory.stats().in_use >= 1.9 * block
        peak = da.memory.stats().peak / block
        assert peak < 3.5, (name, grid, peak)  # of at least 4 MiB; tiles have 1 MiB
        del x, y
print("three blocks")
"""


@pytest.mark.host_only
def test_peak_memory_is_three_blocks() -> None:
    told = run_on_four_ranks(
        PROGRAM,
        DISTARRAY_SHARED_MEMORY="",  # messages would be packed
        DISTARRAY_RANKS_PER_NODE="",
        DISTARRAY_POOL_LIMIT="0",
    )
    assert told.count("three blocks") == 4
