"""Transforms of large arrays on real ranks need three blocks: before, meanwhile, and after."""

from __future__ import annotations

import pytest

from tests.rank_programs import run_on_four_ranks

PROGRAM = """
import numpy as np
import distarray as da
from distarray.comm import _packing

n = 128
_packing._ROUND_BYTES = 1 << 20  # as for blocks of a hundred times these
transforms = [
    ("rfftn", (n, n, n), float), ("irfftn", (n, n, n // 2 + 1), complex),
    ("fftn", (n, n, n), complex), ("ifftn", (n, n, n), complex), ("fft", (n**3,), complex),
]
for name, shape, dtype in transforms:  # the peak only grows, and the larger blocks come last
    for grid, axes in (((4,), (0,)), ((4,), (2,)), ((2, 2), (0, 1))):
        if max(axes) >= len(shape):
            continue
        mesh = da.init_device_mesh(grid)
        mesh.comm(mesh.axis_names[0]).Barrier()
        idle = da.memory.stats().in_use  # in messages of communicators
        x = da.ones(shape, dtype=dtype, mesh=mesh, placements=[da.Shard(axis) for axis in axes])
        y = getattr(da.fft, name)(x)
        both = x.to_local().nbytes, y.to_local().nbytes
        block = max(both)
        assert da.memory.stats().in_use - idle >= 0.95 * sum(both)
        peak = (da.memory.stats().peak - idle) / block
        assert peak < 3.5, (name, grid, peak)  # of at least 4 MiB; tiles have 1 MiB
        del x, y
print("three blocks")
"""


@pytest.mark.host_only
@pytest.mark.parametrize("per_node", ["", "1", "2"])
def test_peak_memory_is_three_blocks(per_node: str) -> None:
    told = run_on_four_ranks(
        PROGRAM,
        DISTARRAY_SHARED_MEMORY="",
        DISTARRAY_RANKS_PER_NODE=per_node,
        DISTARRAY_POOL_LIMIT="0",
    )
    assert told.count("three blocks") == 4
