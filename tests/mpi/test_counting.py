"""Quantiles, different items, places and counts under real MPI: in a node, and between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import as_communicator
from distarray.layout import Partial

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["one node", "nodes of 1", "nodes of 2"])
def mesh(request: pytest.FixtureRequest) -> Iterator[da.DeviceMesh]:
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            if MPI.COMM_WORLD.size <= request.param:
                pytest.skip("all ranks are on one such node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", str(request.param))
        made = MPI.COMM_WORLD.Dup()
        yield da.init_device_mesh((MPI.COMM_WORLD.size,), comm=as_communicator(made))
        made.Barrier()


def same(result: Any, expected: Any) -> None:
    assert result.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(result.full_array(), expected)


def test_functions_of_large_arrays_are_those_of_numpy(mesh: da.DeviceMesh) -> None:
    rng = np.random.default_rng(7)
    n = 30_000 * mesh.size
    values = rng.normal(size=n)
    numbers = rng.integers(0, n, n)
    x, k = da.asarray(values, mesh=mesh), da.asarray(numbers, mesh=mesh)
    same(da.quantile(x, [0.01, 0.5]), np.quantile(values, [0.01, 0.5]))
    same(da.median(x), np.median(values))
    weights = np.arange(n) % 5
    found = da.quantile(k, 0.3, method="inverted_cdf", weights=weights)
    same(found, np.quantile(numbers, 0.3, method="inverted_cdf", weights=weights))
    for one, other in zip(
        da.unique(k, True, True, True), np.unique(numbers, True, True, True), strict=True
    ):
        same(one, other)
    ordered = np.sort(values)
    same(
        da.searchsorted(da.asarray(ordered, mesh=mesh), x * 1.5),
        np.searchsorted(ordered, values * 1.5),
    )
    same(da.isin(k, k[: n // 2] * 2), np.isin(numbers, numbers[: n // 2] * 2))
    same(da.setxor1d(k, k * 3), np.setxor1d(numbers, numbers * 3))
    same(da.bincount(k), np.bincount(numbers))
    counts, edges = da.histogram(x, 50)
    if mesh.size > 1:
        assert counts.placements == (Partial("sum"),)
    same(counts, np.histogram(values, 50)[0])
    same(edges, np.histogram(values, 50)[1])


def test_weights_that_one_rank_finds_wrong_are_refused_on_all(mesh: da.DeviceMesh) -> None:
    x = da.arange(40.0, mesh=mesh).reshape(8 * 5)
    lines = da.asarray(np.ones((40, 40)), mesh=mesh)
    weights = np.ones((40, 40))
    weights[3] = 0
    with pytest.raises(da.errors.ArgumentError):
        da.quantile(lines, 0.5, axis=1, method="inverted_cdf", weights=weights)
    with pytest.raises(da.errors.ArgumentError, match="0 or more"):
        da.bincount(da.astype(x, int) - 1)
    same(da.median(x), 19.5)
