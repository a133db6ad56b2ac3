"""Transforms of large arrays on real ranks need three blocks: before, meanwhile, and after."""

from __future__ import annotations

import pytest

from tests.rank_programs import run_on_four_ranks

PROGRAM = """
import distarray as da
from mpi4py import MPI
from distarray.comm import _packing

n = 128
_packing._ROUND_BYTES = 1 << 20  # as for blocks of a hundred times these
slabs, pencils = [((4,), (0,)), ((4,), (1,)), ((4,), (2,))], [((2, 2), (0, 1)), ((2, 2), (1, 2))]
transforms = [
    ("rfftn", (n, n, n), {}, float, slabs + pencils),
    ("irfftn", (n, n, n // 2 + 1), {}, complex, slabs + pencils),
    ("rfft", (n**3,), {}, float, slabs[:1]),
    ("irfft", (n**3 // 2 + 1,), {}, complex, slabs[:1]),
    ("hfft", (n**3 // 2 + 1,), {}, complex, slabs[:1]),
    ("ihfft", (n**3,), {}, float, slabs[:1]),
    ("fftn", (n, n, n), {}, complex, slabs + pencils),
    ("ifftn", (n, n, n), {}, complex, slabs + pencils),
    ("fftn", (4, n, n, n // 4), {"axes": (1, 2, 3)}, complex, [((4,), (1,)), ((2, 2), (1, 2))]),
    ("fft", (n**3,), {}, complex, slabs[:1]),
]
prime = 2 * n**3 + 15
primes = [
    ("rfft", (prime,), {}, float, slabs[:1]),
    ("irfft", (prime // 2 + 1,), {"n": prime}, complex, slabs[:1]),
    ("fft", (prime,), {}, complex, slabs[:1]),
]
# The peak only grows: large blocks come last.
for name, shape, kwargs, dtype, placed in transforms + primes:
    for grid, cut in placed:
        mesh = da.init_device_mesh(grid)
        mesh.comm(mesh.axis_names[0]).Barrier()
        idle = da.memory.stats().in_use  # in messages of communicators
        x = da.ones(shape, dtype=dtype, mesh=mesh, placements=[da.Shard(axis) for axis in cut])
        before = da.memory.stats().in_use - idle
        y = getattr(da.fft, name)(x, **kwargs)
        after = da.memory.stats().in_use - idle - before
        assert before >= x.to_local().nbytes and after >= y.to_local().nbytes
        block = MPI.COMM_WORLD.allreduce(max(before, after), MPI.MAX)  # 65 items for four ranks
        peak = (da.memory.stats().peak - idle) / block
        # In between two processes share 65 of real lines, and memory is rounded up by 1/32.
        most = 3.1 if prime in (x.size, y.size) or set(name) & {"r", "h"} else 3.02
        assert peak < most, (name, shape, grid, cut, peak)
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
