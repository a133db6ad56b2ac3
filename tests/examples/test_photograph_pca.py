"""Patches of a photograph in blocks, and their components."""

from __future__ import annotations

import numpy as np
import pytest
from photograph_pca import components, distributed_patches, patches, photograph

import distarray as da
from distarray.testing import simulate

SIZE = 3


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_have_all_patches_of_the_whole(ranks: int) -> None:
    """On 8 ranks a block has 2 rows or none, and patches reach past the next one."""
    image = np.random.default_rng(0).random((11, 9))

    def program() -> None:
        rows = distributed_patches(da.distribute_array(image), SIZE)
        np.testing.assert_array_equal(rows.full_array(), patches(image, SIZE))

    simulate(ranks, program)


def test_components_are_those_of_the_covariance() -> None:
    image = photograph("china.jpg")[::4, ::4]
    rows = patches(image, SIZE)
    variances, vectors = np.linalg.eigh(np.cov(rows, rowvar=False))
    variances, vectors = variances[::-1] / variances.sum(), vectors[:, ::-1]

    def program() -> None:
        spread = distributed_patches(da.distribute_array(image), SIZE)
        with da.CommLog() as log:
            shares, waves, scores = components(spread)
        assert log.bytes() < 20 * 8 * (SIZE * SIZE) ** 2  # triangles and sums, and no row
        np.testing.assert_allclose(np.asarray(shares), variances, atol=1e-12)
        np.testing.assert_allclose(abs(np.asarray(waves) @ vectors), np.eye(SIZE**2), atol=1e-9)
        centred = rows - rows.mean(axis=0)
        np.testing.assert_allclose(scores.full_array(), centred @ np.asarray(waves).T, atol=1e-10)

    simulate(3, program)
