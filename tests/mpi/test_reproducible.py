"""Random numbers and reproducible sums have these bits on any number of ranks."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

import distarray as da
from distarray.layout import Replicate, Shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

DIGEST = "e964fa61ecb65dca701b3f23176d4cfee9d034da289774c6290082a3d3649b3e"
"""Of all results; the same literal on 1, 2, 3, 4 and 8 ranks shows that none depends on them."""


def results(*placements: da.Placement) -> list[da.DistArray]:
    rng = da.random.default_rng(20)
    mesh = da.default_mesh()
    shape = (211, 97)
    x = rng.standard_normal(shape, mesh=mesh, placements=placements)
    exponents = rng.integers(-40, 40, shape, mesh=mesh, placements=placements)
    y = da.ldexp(x, exponents)  # exact, as powers of other bases are not on every processor
    z = y[::-1] - y * (1 + 2**-40) + x * 1e-30  # which cancels
    same = {"reproducible": True}
    return [
        x, y, z.sum(**same), y.sum(0, **same), z.sum(1, **same), (x * 1e300).sum(**same),
        y.mean(**same), y.var(0, **same), z.std(ddof=1, **same), z.astype(np.float32).sum(**same),
        da.vdot(y, z, **same), da.vecdot(x, z, **same), da.matmul(x, z.T, **same),
    ]  # fmt: skip


@pytest.mark.eight_ranks
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_bits_do_not_depend_on_the_ranks(placement: da.Placement) -> None:
    digest = hashlib.sha256()
    for result in results(placement):
        digest.update(np.ascontiguousarray(result.full_array()).tobytes())
    assert digest.hexdigest() == DIGEST


@pytest.mark.eight_ranks
def test_one_column_that_no_short_state_holds_makes_all_ranks_exchange_words() -> None:
    size = da.default_mesh().size
    x = np.random.default_rng(3).standard_normal((64, 6))
    x[0, 5], x[63, 5] = 1e200, 1e-200
    x[1, 5], x[62, 5] = -1e200, 3e-200
    exact = [math.fsum(column) for column in x.T]
    for shape in ((size,), (size // 2, 2)) if size % 2 == 0 else ((size,),):
        mesh = da.DeviceMesh(np.arange(size).reshape(shape))
        for other in (Shard(1), Replicate()):
            placements = [Shard(0), other][: len(shape)]
            y = da.distribute_array(x, mesh, placements, src=None)
            found = y.sum(0, reproducible=True)
            calm = y[:, :5].sum(0, reproducible=True)
            assert found.full_array().tolist() == exact
            assert calm.full_array().tolist() == exact[:5]
