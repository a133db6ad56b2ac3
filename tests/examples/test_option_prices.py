"""Monte Carlo: the same bits on any number of ranks, and prices that are known."""

from __future__ import annotations

import numpy as np
from option_prices import Market, estimate, estimate_alone, reproducible_total

import distarray as da
from distarray.testing import simulate

SIZES = 5000, 12, 1700
"""Paths, days, and paths of a batch: the last one is smaller."""


def test_prices_have_the_same_bits_on_any_number_of_ranks() -> None:
    def program() -> np.ndarray:
        draw = da.random.default_rng(3).standard_normal
        with da.CommLog() as log:
            found = estimate(Market(), draw, reproducible_total, *SIZES)
        assert log.bytes() < 100_000  # nothing of the paths
        return found

    expected = simulate(1, lambda: estimate_alone(Market(), 3, *SIZES))[0]
    for ranks in (1, 2, 3, 4, 8):
        for found in simulate(ranks, program):
            np.testing.assert_array_equal(found, expected)


def test_prices_are_those_that_are_known() -> None:
    market = Market(spot=100, strike=100, rate=0.05, volatility=0.2)

    def program() -> np.ndarray:
        draw = da.random.default_rng(4).standard_normal
        return estimate(market, draw, reproducible_total, 40_000, 12, 40_000)[-1]

    prices, errors = simulate(2, program)[0]
    assert abs(prices[0] - 10.450584) < 4 * errors[0]
    assert abs(prices[1] - prices[2]) < 4 * errors[1]
    assert errors[2] < errors[1] / 10
    np.testing.assert_allclose(market.european(), 10.450584, atol=1e-6)
    assert market.geometric(1) == market.european()


def test_geometric_average_has_the_price_of_its_simulation() -> None:
    """Its control variate would be biased otherwise: the arithmetic average is never smaller."""
    market, days = Market(), 12
    normals = np.random.default_rng(0).standard_normal((100_000, days))
    steps = normals * market.volatility / days**0.5
    path = np.cumsum(steps + (market.rate - market.volatility**2 / 2) / days, axis=1)
    paid = np.maximum(market.spot * np.exp(path.mean(axis=1)) - market.strike, 0)
    paid *= np.exp(-market.rate)
    assert abs(paid.mean() - market.geometric(days)) < 4 * paid.std() / len(paid) ** 0.5
