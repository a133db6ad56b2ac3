"""The numbers look as random as they should: moments, distribution functions, independence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distarray.random._blocks import fill_floats, fill_integers

SIZE = 200_000
KEY = (2024, 11)


def floats(
    kind: str, dtype: str = "float64", call: int = 0, key: tuple[int, int] = KEY
) -> np.ndarray:
    out = np.empty(SIZE, dtype)
    fill_floats(out, kind, key, call, (SIZE,), ((0, SIZE),))
    return out.astype(np.float64)


def kolmogorov_smirnov(values: np.ndarray, distribution: np.ndarray) -> float:
    """Return the largest distance from a distribution function, times sqrt(n); 1.95 is p = 0.001.

    ``distribution`` holds the function's value at the sorted values.
    """
    n = len(values)
    above = np.arange(1, n + 1) / n - distribution
    below = distribution - np.arange(n) / n
    return math.sqrt(n) * max(above.max(), below.max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kind", "moments"),
    [("uniform", (1 / 2, 1 / 3, 1 / 4, 1 / 5)), ("normal", (0, 1, 0, 3, 0, 15))],
)
def test_moments_are_those_of_the_distribution(
    kind: str, moments: tuple[float, ...], dtype: str
) -> None:
    values = floats(kind, dtype)
    for power, moment in enumerate(moments, 1):
        powers = values**power
        error = abs(powers.mean() - moment) / (powers.std() / math.sqrt(SIZE))
        assert error < 4.5, f"moment {power} is {error:.1f} standard errors off"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distribution_functions_are_met(dtype: str) -> None:
    uniform = np.sort(floats("uniform", dtype))
    assert kolmogorov_smirnov(uniform, uniform) < 1.95
    normal = np.sort(floats("normal", dtype))
    cumulated = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in normal])
    assert kolmogorov_smirnov(normal, cumulated) < 1.95


def test_neighbours_streams_and_seeds_are_uncorrelated() -> None:
    limit = 4.5 / math.sqrt(SIZE)
    for kind in ("uniform", "normal"):
        values = floats(kind)
        others = [values[lag:] for lag in (1, 2, 3, 1000)]
        others += [floats(kind, call=1), floats(kind, key=(KEY[0] + 1, KEY[1]))]
        for other in others:
            assert abs(np.corrcoef(values[: len(other)], other)[0, 1]) < limit
            squares = np.corrcoef(values[: len(other)] ** 2, other**2)[0, 1]
            assert abs(squares) < limit


@pytest.mark.parametrize("among", [2, 7, 100])
def test_integers_are_equally_likely(among: int) -> None:
    out = np.empty(SIZE, np.int64)
    fill_integers(out, KEY, 0, (SIZE,), ((0, SIZE),), 0, among)
    counts = np.bincount(out, minlength=among)
    squares = ((counts - SIZE / among) ** 2 / (SIZE / among)).sum()
    assert abs(squares - (among - 1)) < 4.5 * math.sqrt(2 * (among - 1))


def test_every_bit_of_an_integer_is_fair() -> None:
    out = np.empty(SIZE, np.uint64)
    fill_integers(out, KEY, 0, (SIZE,), ((0, SIZE),), 0, 2**64)
    bits = np.unpackbits(out.view(np.uint8)).reshape(SIZE, 64).sum(axis=0)
    assert abs(bits - SIZE / 2).max() < 4.5 * math.sqrt(SIZE) / 2


def test_single_and_double_values_agree() -> None:
    np.testing.assert_array_equal(
        floats("normal", "float32"), floats("normal").astype(np.float32).astype(np.float64)
    )
    assert abs(floats("uniform", "float32") - floats("uniform")).max() < 2.0**-24
