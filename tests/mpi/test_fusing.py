"""Fused functions on ranks of MPI: what they give, what they send, what memory they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Shard
from distarray.comm import CommLog, world

pytestmark = pytest.mark.mpi


def block(seed: int, rows: int = 40) -> Any:
    """Return a block of this rank's own, of a length of its own; the last rank has none."""
    rank, size = world().rank, world().size
    rows = 0 if size > 1 and rank == size - 1 else rows + 7 * rank
    return np.random.default_rng([seed, rank]).normal(size=(rows, 1000))


def test_fused_functions_are_those_that_are_not() -> None:
    mesh = da.init_device_mesh((world().size,))
    x = da.DistArray.from_local(block(0), mesh, [Shard(0)])
    y = da.DistArray.from_local(block(1), mesh, [Shard(0)])
    z = y.redistribute([Shard(1)])
    part = da.DistArray.from_local(np.full(1000, 1.0 + mesh.rank), mesh, [Partial("sum")])

    def expressions(x: Any, y: Any, z: Any, part: Any) -> Any:
        scaled = (x - x.mean(0)) / (1 + abs(y)) + np.linspace(0, 1, 1000)
        return np.sqrt(abs(x)) * z + 1, scaled > part, da.where(y > 0, x, y).astype("f4")

    def reductions(x: Any, y: Any, z: Any, part: Any) -> Any:
        return [((x - 0.5) ** 2).sum(), (x * y).max(1), (x * part).mean(0), (z + 1 > 0).all()]

    for call, exact in ((expressions, True), (reductions, False)):
        with CommLog() as plain_log:
            plain = call(x, y, z, part)
        with CommLog() as log:
            fused = da.fuse(call)(x, y, z, part)
        assert log.bytes() == plain_log.bytes()
        assert log.count() == plain_log.count()
        for one, other in zip(fused, plain, strict=True):
            assert one.layout is other.layout
            assert one.dtype == other.dtype
            if exact:
                np.testing.assert_array_equal(one, other)
            else:
                np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_pass_takes_memory_for_its_results_and_a_mebibyte() -> None:
    x = da.random.default_rng(0).random(size=(world().size << 20, 8))
    y = da.random.default_rng(1).random(size=(world().size << 20, 8))
    m = x.mean(0)

    def held(call: Any) -> tuple[int, Any]:
        """Return by how much the memory in use, with what became idle, has grown."""
        da.memory.trim()
        before = da.memory.stats().in_use
        result = call()
        stats = da.memory.stats()
        return stats.in_use + stats.idle - before, result

    size = x.to_local().nbytes
    slack = 4 << 20
    assert held(lambda: da.fuse(lambda x, y: np.sqrt(x) * y + 1)(x, y))[0] < size + slack
    assert held(lambda: da.fuse(lambda x: ((x - 0.5) ** 2).sum())(x))[0] < slack
    assert held(lambda: da.fuse(lambda x, m: ((x - m) ** 2).sum(1))(x, m))[0] < size // 8 + slack

    def in_place(x: Any) -> Any:
        x -= m
        x /= 2.0
        x *= y
        da.add(x, y, out=x)
        np.sqrt(y, out=y)

    assert held(lambda: in_place(x))[0] < slack
