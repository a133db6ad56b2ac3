"""A few singular values are found by products with few columns; the matrix stays where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError
from distarray.layout import Replicate, Shard
from tests.array.strategies import on_ranks


def low(rows: int, columns: int, dtype: Any) -> np.ndarray:
    """Return a matrix of rank 3 and a little more."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(rows, 3)), rng.normal(size=(3, columns))
    noise = rng.normal(size=(rows, columns))
    return np.asarray(first * [9, 3, 1] @ second + 1e-9 * noise, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("shape", [(60, 25), (25, 60)])
def test_first_singular_values_and_vectors_are_those_of_the_matrix(
    dtype: Any, shape: tuple[int, int]
) -> None:
    value = low(*shape, dtype)
    expected = np.linalg.svdvals(value)[:5]
    tolerance = 1e-7 if dtype == np.float64 else 1e-4

    def program() -> None:
        for ranks, placement in ((4, Shard(0)), (3, Shard(1)), (2, Replicate())):
            mesh = da.init_device_mesh((ranks,))
            x = da.distribute_array(value, mesh, [placement], src=None)
            u, s, vh = da.linalg.svd_lowrank(x, 5)
            if mesh.coordinate is None:
                continue
            u, s, vh = np.asarray(u), np.asarray(s), np.asarray(vh)
            assert [one.dtype for one in (u, s, vh)] == [dtype, expected.dtype, dtype]
            np.testing.assert_allclose(s, expected, atol=tolerance)
            np.testing.assert_allclose((u * s) @ vh, value, atol=tolerance * 10)
            for one in (u, vh.mT):
                np.testing.assert_allclose(one.mT.conj() @ one, np.eye(5), atol=tolerance)

    on_ranks(program)


def test_batches_are_approximated_one_by_one() -> None:
    value = np.stack([low(30, 12, np.float64), 2 * low(30, 12, np.float64)])

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(value, mesh, [Shard(0), Shard(1)], src=None)
        u, s, vh = (np.asarray(one) for one in da.linalg.svd_lowrank(x, 4, seed=3))
        np.testing.assert_allclose((u * s[:, None]) @ vh, value, atol=1e-6)

    on_ranks(program)


def test_few_columns_are_sent() -> None:
    rows, columns, q, niter = 400, 80, 4, 1
    value = low(rows, columns, np.float64)

    def program() -> None:
        x = da.distribute_array(value, placements=[Shard(0)], src=None)
        with CommLog() as log:
            da.linalg.svd_lowrank(x, q, niter)
        # Sums of products with the adjoint, and rows of them that come back; triangles beside them.
        assert log.bytes() < 8 * ((2 * niter + 2) * columns * q + (2 * niter + 2) * 3 * q * q) + 200

    on_ranks(program)


def test_wrong_numbers_are_refused() -> None:
    def program() -> None:
        for q, niter in ((0, 1), (6, 1), (2, -1)):
            with pytest.raises(ArgumentError, match=f"q={q} and niter={niter}"):
                da.linalg.svd_lowrank(da.ones((8, 5)), q, niter)
        with pytest.raises(np.linalg.LinAlgError, match="2 axes"):
            da.linalg.svd_lowrank(da.ones(8))

    on_ranks(program)
