"""Gaussian process regression, against scikit-learn and in whole matrices and tiles."""

from __future__ import annotations

import numpy as np
import pytest
from gaussian_process import observe, regress, surface

import distarray as da
from distarray.linalg import _tiles
from distarray.testing import simulate

LENGTH, NOISE = 0.3, 0.05
AT = np.random.default_rng(0).random((17, 2))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("tiles", [False, True])
def test_predictions_are_those_of_scikit_learn(
    ranks: int, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = pytest.importorskip("sklearn.gaussian_process")
    if tiles:
        monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
        monkeypatch.setattr(_tiles, "WIDTH", 16)
        da.testing.reset()

    def program() -> None:
        points, heights = observe(70, NOISE)
        found = regress(points, heights, AT, LENGTH, NOISE)
        twin = process.GaussianProcessRegressor(
            process.kernels.RBF(LENGTH), alpha=NOISE**2, optimizer=None
        ).fit(np.asarray(points), np.asarray(heights))
        mean, deviation = twin.predict(AT, return_std=True)
        evidence = twin.log_marginal_likelihood_value_
        np.testing.assert_allclose(found[0].full_array(), mean, atol=1e-10)
        np.testing.assert_allclose(found[1].full_array(), deviation**2, atol=1e-10)
        np.testing.assert_allclose(found[2], evidence, rtol=1e-10)
        assert abs(mean - surface(AT)).max() < 6 * deviation.max()

    simulate(ranks, program)
    da.testing.reset()
