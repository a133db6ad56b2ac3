"""Ranks multiply and factorize matrices that one of them could not hold."""

from __future__ import annotations

from tests.rank_programs import run_on_four_ranks

PROGRAM = """
import resource
import numpy as np
import distarray as da

ROWS, ROOM = 1536, 48 << 20


def work(rows):
    x = da.random.default_rng(0).standard_normal((rows, rows))
    product = x @ x.T.redistribute([da.Shard(0)])
    factor = da.linalg.cholesky(product + rows * da.eye(rows))
    return x, product, factor


work(1100)  # libraries map what they need once
size = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if "VmSize" in line)
resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, resource.RLIM_INFINITY))
x, product, factor = work(ROWS)
line = np.asarray(x[5])
assert np.allclose(np.asarray(product[:, 5]), np.asarray(x @ line))
found = np.asarray(factor @ np.asarray(factor[7]))
assert np.allclose(found, np.asarray(product[:, 7]) + ROWS * (np.arange(ROWS) == 7))
del x, product, factor
try:
    [np.ones((ROWS, ROWS)) for _ in range(3)]
except MemoryError:
    print("could not hold them")
"""


def test_four_ranks_work_on_matrices_that_one_could_not_hold() -> None:
    told = run_on_four_ranks(
        PROGRAM,
        # Blocks are NumPy's, which count, and not parts of a large mapping, which does once.
        DISTARRAY_SHARED_MEMORY="0",
        DISTARRAY_POOL_LIMIT="0",
        DISTARRAY_KERNELS="numpy",
        OPENBLAS_NUM_THREADS="1",
    )
    assert told.count("could not hold them") == 4
