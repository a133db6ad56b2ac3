"""Samplers: what they draw has the distribution that their names say, at any parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distarray.comm import simulate
from distarray.random import default_rng
from tests.on_device import host

SIZE = 40_000

CONTINUOUS: list[tuple[str, tuple[float, ...], str, Any]] = [
    *[("standard_gamma", (a,), "gamma", (a,)) for a in (0.05, 0.5, 1.0, 1.5, 20.0, 1e5)],
    ("gamma", (2.0, 3.0), "gamma", (2.0, 0.0, 3.0)),
    *[("beta", ab, "beta", ab) for ab in ((0.1, 0.2), (0.5, 3.0), (2.0, 3.0), (100.0, 0.3))],
    *[("chisquare", (df,), "chi2", (df,)) for df in (0.5, 7.0)],
    *[("f", df, "f", df) for df in ((1.0, 1.0), (3.0, 5.0), (0.5, 20.0))],
    *[("standard_t", (df,), "t", (df,)) for df in (0.5, 3.0, 100.0)],
    *[("noncentral_chisquare", c, "ncx2", c) for c in ((0.5, 2.0), (1.0, 1.0), (3.0, 2.0))],
    *[("noncentral_f", c, "ncf", c) for c in ((3.0, 5.0, 2.0), (0.5, 4.0, 1.0))],
    *[("vonmises", (0.0, k), "vonmises", (k,)) for k in (1e-6, 0.5, 4.0, 1e5, 1e7)],
    *[("wald", (m, s), "invgauss", (m / s, 0.0, s)) for m, s in ((1.0, 1.0), (2.0, 3.0))],
    ("wald", (10.0, 0.1), "invgauss", (100.0, 0.0, 0.1)),
]
WHOLE: list[tuple[str, tuple[float, ...], str, Any]] = [
    *[("poisson", (lam,), "poisson", (lam,)) for lam in (0.01, 3.0, 9.9, 10.0, 50.0, 1e4, 1e9)],
    *[("binomial", np_, "binom", np_) for np_ in ((1, 0.5), (10, 0.9), (30, 0.4), (50, 0.7))],
    *[("binomial", np_, "binom", np_) for np_ in ((1000, 0.01), (10**6, 0.3), (10**12, 0.999))],
    *[("negative_binomial", c, "nbinom", c) for c in ((1.0, 0.5), (0.5, 0.01), (100.0, 0.9))],
    *[
        ("hypergeometric", (g, b, s), "hypergeom", (g + b, g, s))
        for g, b, s in ((5, 5, 5), (20, 30, 40), (18, 18, 18), (100, 200, 150), (1000, 50, 600))
    ],
    *[("logseries", (p,), "logser", (p,)) for p in (0.1, 0.7, 0.99)],
    *[("zipf", (a,), "zipf", (a,)) for a in (1.1, 2.0, 4.0)],
]


def drawn(name: str, *args: Any, seed: int = 11) -> np.ndarray:
    (values,) = simulate(1, lambda: getattr(default_rng(seed), name)(*args).full_array())
    return host(values)


@pytest.mark.parametrize(("name", "args", "theirs", "parameters"), CONTINUOUS, ids=str)
def test_floats_pass_kolmogorov_and_smirnov(
    name: str, args: Any, theirs: str, parameters: Any
) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = drawn(name, *args, SIZE)
    assert np.isfinite(values).all()
    assert stats.kstest(values, getattr(stats, theirs)(*parameters).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("name", "args", "theirs", "parameters"), WHOLE, ids=str)
def test_whole_numbers_pass_chi_square(name: str, args: Any, theirs: str, parameters: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    distribution = getattr(stats, theirs)(*parameters)
    values = drawn(name, *args, SIZE)
    assert values.dtype == np.int64
    ends = (
        np.arange(1.0, 30.0)  # SciPy does not find quantiles of the heaviest tails
        if name in ("zipf", "logseries")
        else np.unique(distribution.ppf(np.linspace(0, 1, 42)[1:-1]))
    )
    chances = np.diff([0.0, *distribution.cdf(ends), 1.0])
    counts = np.bincount(np.searchsorted(ends, values), minlength=len(chances))
    rare = chances * SIZE < 5
    chances = [*chances[~rare], chances[rare].sum()]
    counts = [*counts[~rare], counts[rare].sum()]
    if chances[-1] * SIZE < 1:
        assert counts.pop() < 10
        chances.pop()
    if len(counts) > 1:
        expected = np.array(chances) / sum(chances) * sum(counts)
        assert stats.chisquare(counts, expected).pvalue > 1e-3


MOMENTS: list[tuple[str, tuple[Any, ...], float, float]] = [
    ("standard_gamma", (3.5,), 3.5, 3.5),
    ("beta", (2.0, 3.0), 0.4, 0.04),
    ("poisson", (7.0,), 7.0, 7.0),
    ("poisson", (1e17,), 1e17, 1e17),
    ("binomial", (100, 0.3), 30.0, 21.0),
    ("binomial", (2**53, 0.5), 2.0**52, 2.0**51),
    ("negative_binomial", (4.0, 0.25), 12.0, 48.0),
    ("hypergeometric", (60, 40, 50), 30.0, 50 * 0.6 * 0.4 * 50 / 99),
    ("hypergeometric", (2**51, 2**51, 2**40), 2.0**39, 2.0**38 * (1 - 2.0**-12)),
    ("wald", (2.0, 4.0), 2.0, 2.0),
    ("noncentral_chisquare", (3.0, 2.0), 5.0, 14.0),
]


@pytest.mark.parametrize(("name", "args", "mean", "variance"), MOMENTS, ids=str)
def test_moments_are_those_of_the_distribution(
    name: str, args: Any, mean: float, variance: float
) -> None:
    # Less the mean, which has no place beside the deviations of a double.
    values = (drawn(name, *args, SIZE) - np.array(mean).astype("i8" if mean > 1e9 else "f8")) * 1.0
    assert abs(values.mean()) < 4.5 * np.sqrt(variance / SIZE)
    squares = values**2
    assert abs(squares.mean() - variance) < 4.5 * squares.std() / np.sqrt(SIZE)


def test_extreme_parameters_have_the_values_of_their_limits() -> None:
    def program() -> None:
        rng = default_rng(1)
        n = 500

        def draw(name: str, *args: Any) -> np.ndarray:
            values = host(getattr(rng, name)(*args, n).full_array())
            assert not np.isnan(values).any()
            return values

        for name, args, value in [
            ("standard_gamma", (0.0,), 0.0),
            ("standard_gamma", (1e-300,), 0.0),
            ("standard_gamma", (-0.0,), 0.0),
            ("f", (1e-320, 5.0), 0.0),
            ("gamma", (5.0, 0.0), 0.0),
            ("poisson", (0.0,), 0),
            ("poisson", (1e-300,), 0),
            ("binomial", (0, 0.5), 0),
            ("binomial", (2**53, 0.0), 0),
            ("binomial", (2**53, 1.0), 2**53),
            ("binomial", (7, 1.0), 7),
            ("negative_binomial", (5.0, 1.0), 0),
            ("geometric", (1.0,), 1),
            ("hypergeometric", (0, 9, 5), 0),
            ("hypergeometric", (9, 0, 5), 5),
            ("hypergeometric", (3, 4, 7), 3),
            ("hypergeometric", (3, 4, 0), 0),
            ("hypergeometric", (0, 0, 0), 0),
            ("logseries", (0.0,), 1),
            ("zipf", (1e9,), 1),
        ]:
            assert (draw(name, *args) == value).all(), name
        for shapes in ((1e-9, 1e-9), (1e-300, 1e-300), (1e-3, 1e-3)):
            zeros_and_ones = draw("beta", *shapes)  # none of them NaN
            assert abs((zeros_and_ones > 0.5).mean() - 0.5) < 4.5 * 0.5 / np.sqrt(n)
        assert np.allclose(draw("standard_gamma", 1e300), 1e300, rtol=1e-12)
        assert np.allclose(draw("beta", 1e200, 1e200), 0.5)
        assert (draw("poisson", 9.2e18) > 9.1e18).all()
        assert (draw("zipf", 1.0 + 1e-12) >= 1).all()
        assert (draw("logseries", 1.0 - 2.0**-53) >= 1).all()
        assert abs(draw("vonmises", 10.0, 0.0)).max() <= np.pi
        assert np.isfinite(draw("wald", 1e150, 1e-150)).all()
        for name, args in (("f", (1e-3, 1e-3)), ("noncentral_f", (1e-3, 1e-3, 0.0))):
            assert (draw(name, *args) >= 0).all()

    simulate(1, program)


def test_scales_beyond_roots_and_squares_of_doubles_change_the_scale_alone() -> None:
    def quantiles(values: Any) -> Any:
        return np.quantile(values, [0.1, 0.5, 0.9])

    triangle = quantiles(drawn("triangular", 0.0, 0.25, 1.0, SIZE))
    for scale in (2.0**-900, 2.0**900):
        scaled = drawn("triangular", 0.0, 0.25 * scale, scale, SIZE)
        assert np.allclose(quantiles(scaled) / scale, triangle, rtol=1e-12)
    angles = quantiles(drawn("vonmises", 0.0, 2.0**40, SIZE))
    for kappa in (2.0**80, 2.0**1000):
        narrow = quantiles(drawn("vonmises", 0.0, kappa, SIZE))
        assert np.allclose(narrow * np.sqrt(kappa / 2.0**40), angles, rtol=1e-12)
    levy = quantiles(drawn("wald", 2.0**400, 1.0, SIZE))  # of an infinite mean
    assert np.allclose(quantiles(drawn("wald", 2.0**1000, 1.0, SIZE)), levy, rtol=1e-12)
    for nonc in (1e19, 1e21, 1e300):
        many = drawn("noncentral_chisquare", 0.5, nonc, 1000) / nonc
        assert abs(many - 1).max() < 12 / np.sqrt(nonc) + 1e-15


def test_tails_are_found_where_few_items_lie() -> None:
    values = drawn("poisson", 2.0, 400_000)
    assert values.max() >= 11  # of a probability of 1e-5 to 1e-6
    assert drawn("binomial", 40, 0.5, 400_000).min() <= 8
