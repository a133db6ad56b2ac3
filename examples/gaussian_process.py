"""Gaussian process regression of a surface from scattered, noisy heights, by Cholesky's method.

Run it as ``mpiexec -n 4 python examples/gaussian_process.py --check``. It writes
``gaussian_process.png``. Each rank computes the rows of the kernel matrix that belong to its
points, and never holds more of it. The length over which heights are alike is the one that makes
the observations most probable (Rasmussen and Williams, 2006, algorithm 2.1).

`regress` is NumPy's code: given NumPy arrays it is its own twin. See docs/examples.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from arguments import at_least

import distarray as da


def surface(points: Any) -> Any:
    """Return the heights of Franke's two hills and a hollow (1979) in the unit square."""
    x, y = 9 * points.T
    return (
        0.75 * np.exp(-((x - 2) ** 2 + (y - 2) ** 2) / 4)
        + 0.75 * np.exp(-((x + 1) ** 2) / 49 - (y + 1) / 10)
        + 0.5 * np.exp(-((x - 7) ** 2 + (y - 3) ** 2) / 4)
        - 0.2 * np.exp(-((x - 4) ** 2) - (y - 7) ** 2)
    )


def observe(count: int, noise: float, **options: Any) -> tuple[da.DistArray, da.DistArray]:
    """Draw points of the unit square, and their heights with errors."""
    rng = da.random.default_rng(5)
    points = rng.random((count, 2), **options)
    return points, surface(points) + rng.normal(0, noise, count, **options)


def kernel(a: Any, b: np.ndarray, length: float) -> Any:
    """Return the covariances of heights at points a and b, cut as a is."""
    k = a @ (b.T / length**2)
    k -= (a**2).sum(axis=1)[:, None] / (2 * length**2)
    k -= (b**2).sum(axis=1) / (2 * length**2)
    return np.exp(k, out=k)


def regress(
    points: Any, heights: Any, at: np.ndarray, length: float, noise: float
) -> tuple[Any, Any, float]:
    """Predict heights.

    Parameters
    ----------
    points, heights
        Of shape (n, 2) and (n,), cut over n.
    at
        Where to predict, (m, 2), on every rank.
    length, noise
        Over which heights are alike, and the standard deviation of an observed height.

    Returns
    -------
    mean, variance, evidence
        Those of the heights there, (m,), and the logarithm of the density of what was observed.
    """
    count = len(points)
    covariance = kernel(points, np.asarray(points), length)
    np.fill_diagonal(covariance, 1 + noise**2)
    log_root = np.log(np.diagonal(np.linalg.cholesky(covariance))).sum()  # of the determinant
    across = kernel(points, at, length)
    sides = np.concatenate([heights[:, None], across], axis=1)
    solved = np.linalg.solve(covariance, sides)
    evidence = float(-heights @ solved[:, 0] / 2 - log_root) - count / 2 * np.log(2 * np.pi)
    return across.T @ solved[:, 0], 1 - (across * solved[:, 1:]).sum(axis=0), evidence


def draw(path: Path, at: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> None:
    """Draw the heights that are predicted, and how far they may be off."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, values, title in zip(
        figure.subplots(1, 2),
        (mean, np.sqrt(variance)),
        ("height", "its standard deviation"),
        strict=True,
    ):
        image = axes.tripcolor(*at.T, values, shading="gouraud")
        axes.set(xlabel="x", ylabel="y", title=title, aspect="equal")
        figure.colorbar(image)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Find the length, predict, and compare and draw on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--points", type=at_least(1), default=1500, help="where heights are observed"
    )
    parser.add_argument("--noise", type=at_least(1e-6, float), default=0.05, help="of the heights")
    parser.add_argument("--lengths", type=at_least(1e-6, float), nargs="+", default=[0.1, 0.2, 0.4])
    parser.add_argument("--grid", type=at_least(2), default=25, help="predictions along a side")
    parser.add_argument("--check", action="store_true", help="compare with the twin in NumPy")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    options = parser.parse_args(arguments)

    points, heights = observe(options.points, options.noise)
    ticks = np.linspace(0, 1, options.grid)
    at = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    found = {}
    for length in options.lengths:
        found[length] = regress(points, heights, at, length, options.noise)
        da.print0(f"length {length}: logarithm of the evidence {found[length][2]:.6f}")
    length = max(found, key=lambda one: found[one][2])
    mean, variance, evidence = found[length]
    mean, variance = mean.full_array(), variance.full_array()
    plain = [one.full_array(dst=0) for one in (points, heights)] if options.check else []
    if da.default_mesh().rank != 0:
        return
    print(f"{points.layout}: length {length} is the likeliest")
    print(f"error of the heights {np.sqrt(np.mean((mean - surface(at)) ** 2)):.4f}")
    print(f"as it is predicted   {np.sqrt(variance.mean()):.4f}")
    if options.check:
        alone = regress(*plain, at, length, options.noise)
        pairs = zip((mean, variance, evidence), alone, strict=True)
        differences = (f"{np.abs(a - b).max():.1e}" for a, b in pairs)
        print("largest differences from NumPy", *differences)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / "gaussian_process.png", at, mean, variance)
    except ImportError:
        print("no picture without matplotlib")


if __name__ == "__main__":
    main()
