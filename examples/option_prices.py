"""Prices of options by Monte Carlo, with the same digits on any number of ranks.

Run it as ``mpiexec -n 4 python examples/option_prices.py --check``, and with another number than
4: what it prints is the same to the last digit, since random numbers depend on the seed and their
place alone, and reproducible sums on the items alone. It writes ``option_prices.png``.

A stock follows geometric Brownian motion. A European call pays by how much the stock ends above
the strike, and has Black and Scholes' price. An Asian call pays by how much the stock's average
over the year is above it, and has none in closed form. That of the geometric average has one: as
a control variate it takes away most of the noise (Kemna and Vorst, 1990). See docs/examples.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from arguments import at_least

import distarray as da

NAMES = "European call", "Asian call", "Asian call, controlled"


@dataclass(frozen=True)
class Market:
    """A stock, the rate of interest, and options on it that end after a year."""

    spot: float = 100.0
    strike: float = 100.0
    rate: float = 0.05
    volatility: float = 0.2

    def call(self, mean_time: float, variance: float) -> float:
        """Return the price of a call on exp of a normal variable (Black and Scholes, 1973)."""
        drift = (self.rate - self.volatility**2 / 2) * mean_time
        forward, deviation = self.spot * math.exp(drift + variance / 2), math.sqrt(variance)
        d = math.log(forward / self.strike) / deviation + deviation / 2
        cdf = NormalDist().cdf
        value = forward * cdf(d) - self.strike * cdf(d - deviation)
        return math.exp(-self.rate) * value

    def european(self) -> float:
        """Return the price of the European call."""
        return self.call(1.0, self.volatility**2)

    def geometric(self, days: int) -> float:
        """Return the price of the call on the geometric average over `days`."""
        share = (days + 1) * (2 * days + 1) / (6 * days**2)
        return self.call((days + 1) / (2 * days), self.volatility**2 * share)

    def payoffs(self, normals: Any) -> Any:
        """Return what the options pay, discounted, (3, paths), of numbers (paths, days).

        These become the steps of the logarithm of the price.
        """
        days = normals.shape[1]
        normals *= self.volatility / math.sqrt(days)
        normals += (self.rate - self.volatility**2 / 2) / days
        growth = np.cumsum(normals, axis=1)
        path = np.exp(growth)

        def pay(share: Any) -> Any:
            return math.exp(-self.rate) * np.maximum(self.spot * share - self.strike, 0.0)

        european, asian = pay(path[:, -1]), pay(path.mean(axis=1))
        controlled = asian - pay(np.exp(growth.mean(axis=1))) + self.geometric(days)
        return np.stack([european, asian, controlled])


def estimate(
    market: Market,
    draw: Callable[..., Any],
    total: Callable[..., Any],
    paths: int,
    days: int,
    batch: int,
) -> np.ndarray:
    """Return the prices and their standard errors after each batch: batches x 2 x 3."""
    sums, found = np.zeros((2, 3)), []
    for start in range(0, paths, batch):
        paid = market.payoffs(draw((min(batch, paths - start), days)))
        sums += np.stack([total(paid), total(paid * paid)])
        count = min(start + batch, paths)
        mean = sums[0] / count
        found.append([mean, np.sqrt((sums[1] / count - mean**2) / (count - 1))])
    return np.array(found)


def reproducible_total(paid: da.DistArray) -> np.ndarray:
    """Add up rows exactly, and round once: the sum has the same bits wherever the items lie."""
    return np.asarray(da.sum(paid, axis=1, reproducible=True))


def estimate_alone(market: Market, seed: int, *sizes: int) -> np.ndarray:
    """Estimate with NumPy arrays of the same random numbers, and sums that Python rounds once."""
    rng = da.random.default_rng(seed)

    def draw(size: tuple[int, int]) -> np.ndarray:
        return rng.standard_normal(size, placements=[da.Replicate()]).to_local()

    return estimate(market, draw, lambda paid: [math.fsum(row) for row in paid], *sizes)


def draw_errors(path: Path, found: np.ndarray, batch: int, exact: float) -> None:
    """Draw how the estimates close in."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    paths = batch * np.arange(1, len(found) + 1)
    for axes, price in ((left, 0), (right, 1), (right, 2)):
        mean, error = found[:, :, price].T
        axes.fill_between(paths, mean - 2 * error, mean + 2 * error, alpha=0.3)
        axes.plot(paths, mean, label=NAMES[price])
    left.axhline(exact, color="black", linestyle=":", label="Black and Scholes")
    for axes in (left, right):
        axes.set(xlabel="paths", ylabel="price, with two standard errors")
        axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Estimate, and compare and draw on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--paths", type=at_least(2), default=1_000_000)
    parser.add_argument(
        "--days", type=at_least(1), default=52, help="on which the average is taken"
    )
    parser.add_argument(
        "--batch", type=at_least(2), default=100_000, help="paths at a time, of all ranks"
    )
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--check", action="store_true", help="compare with the twin in NumPy")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    options = parser.parse_args(arguments)

    market, sizes = Market(), (options.paths, options.days, options.batch)
    draw = da.random.default_rng(options.seed).standard_normal
    found = estimate(market, draw, reproducible_total, *sizes)
    alone = estimate_alone(market, options.seed, *sizes) if options.check else None
    if da.default_mesh().rank != 0:
        return
    for name, price, error in zip(NAMES, *found[-1], strict=True):
        print(f"{name:22s} {float(price)!r} +- {error:.5f}")
    print(f"{'Black and Scholes':22s} {market.european()!r}")
    if alone is not None:
        same = np.array_equal(found, alone, equal_nan=True)  # of paths that all end at 0
        print("NumPy and math.fsum give", "the same bits" if same else "other bits")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        draw_errors(options.out / "option_prices.png", found, options.batch, market.european())
    except ImportError:
        print("no picture without matplotlib")


if __name__ == "__main__":
    main()
