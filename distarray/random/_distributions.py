"""The methods of `Generator` that draw item by item: one row each, by a formula or a sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.errors import OutOfRangeError
from distarray.random import _continuous, _counts
from distarray.random._continuous import LEAST
from distarray.random._parameters import WHOLE, Condition, Parameter, count_parameter
from distarray.random._row import POSITION, distribution
from distarray.random._streams import by_formula, by_sampler
from distarray.typing import Buffer

_MOST_EVENTS: Final = 2.0**63 - 10 * 2.0**31.5
"""The mean whose Poisson numbers, but for ten standard deviations, are int64."""

# --- parameters ----------------------------------------------------------------------------------


def _any(name: str, text: str, default: Any = None) -> Parameter:
    return Parameter(name, text, default=default)


def _scale(name: str, text: str, default: Any = None) -> Parameter:
    return Parameter(name, text, "0 or more", lambda x: x >= 0, default)


def _shape(name: str, text: str) -> Parameter:
    return Parameter(name, text, "above 0", lambda x: x > 0)


def _finite(name: str, text: str, least: float = 0.0) -> Parameter:
    must = f"above {least:g} and finite"
    return Parameter(name, text, must, lambda x: (x > least) & (x < np.inf))


def _finite_scale(name: str, text: str, most: float = np.inf, default: Any = None) -> Parameter:
    must = "0 or more and finite" if most == np.inf else f"0 or more and below {most:.8g}"
    return Parameter(name, text, must, lambda x: (x >= 0) & (x < most), default)


_PROBABILITY = "a probability, from 0 to 1"


_LOC = _any("loc", "Where its middle is.", 0.0)
_SCALE = _scale("scale", "How wide it is.", 1.0)
_GAMMA: Final = "By G. Marsaglia and W. W. Tsang, ACM Trans. Math. Softw. 26 (2000)."
_DF = _finite("df", "Degrees of freedom.")
_NONC = _finite_scale("nonc", "Noncentrality: the sum of the squares of the means.")

# --- formulas ------------------------------------------------------------------------------------


def _inside(numbers: Buffer) -> Buffer:
    """Return numbers of which none is 0."""
    return np.maximum(numbers, LEAST)


def _laplace(u: Buffer, loc: Any, scale: Any) -> Any:
    far = np.log(2.0 * np.minimum(_inside(u), 1.0 - u))
    return loc + scale * np.where(u < 0.5, far, -far)


def _triangular(u: Buffer, left: Any, mode: Any, right: Any) -> Any:
    width, before, after = right - left, mode - left, right - mode
    rising = left + width * np.sqrt(u * (before / width))
    falling = right - width * np.sqrt((1.0 - u) * (after / width))
    return np.where(u * width <= before, rising, falling)


def _geometric(e: Buffer, p: Any) -> Any:
    with np.errstate(divide="ignore"):  # of 1, which takes one trial
        return np.clip(np.ceil(e / -np.log1p(-p)), 1, 2.0**63 - 1024)


def _weibull(e: Buffer, a: Any) -> Any:
    return np.power(e, 1.0 / np.where(a > 0, a, 1.0)[()]) * (a > 0)


# --- rows ----------------------------------------------------------------------------------------


class Distributions:
    """Methods of `Generator` that draw of a distribution item by item."""

    __slots__ = ()

    _floats: Callable[..., Any]
    _sample: Callable[..., Any]

    uniform = distribution(
        "uniform",
        "Draw floats from [low, high), uniformly; rounding can reach `high`.",
        (_any("low", "The least.", 0.0), _any("high", "The end.", 1.0)),
        by_formula("uniform", lambda u, low, high: low + (high - low) * u),
        "-1.0, 1.0, 3",
        "[ 0.95613297 -0.94466093 -0.12491736]",
        condition=Condition(
            "so close that high - low is finite",
            lambda low, high: np.isfinite(high - low),
            OutOfRangeError,
            Condition("an interval: low not above high", lambda low, high: low <= high),
        ),
        affine=("uniform", lambda low, high: (low, high - low)),
    )
    standard_normal = distribution(
        "standard_normal",
        "Draw floats from the normal distribution of mean 0 and variance 1.",
        (),
        by_formula("normal", lambda n: n),
        "3",
        "[-2.72229575 -0.47810536 -0.89230705]",
        dtype=POSITION,
        affine=("normal", lambda: (0.0, 1.0)),
    )
    normal = distribution(
        "normal",
        "Draw floats from a normal distribution.",
        (_any("loc", "The mean.", 0.0), _scale("scale", "The standard deviation.", 1.0)),
        by_formula("normal", lambda n, loc, scale: loc + scale * n),
        "5.0, 2.0, 3",
        "[-0.4445915   4.04378928  3.21538591]",
        affine=("normal", lambda loc, scale: (loc, scale)),
    )
    lognormal = distribution(
        "lognormal",
        "Draw floats whose logarithms are normal.",
        (
            _any("mean", "The mean of the logarithms.", 0.0),
            _scale("sigma", "Their standard deviation.", 1.0),
        ),
        by_formula("normal", lambda n, mean, sigma: np.exp(mean + sigma * n)),
        "0.0, 0.5, 3",
        "[0.25636633 0.7873734  0.6400855 ]",
    )
    standard_exponential = distribution(
        "standard_exponential",
        "Draw floats from the exponential distribution of mean 1.",
        (),
        by_formula("exponential", lambda e: e),
        "3",
        "[3.81973944 0.02805955 0.5754376 ]",
        dtype=POSITION,
        affine=("exponential", lambda: (0.0, 1.0)),
    )
    exponential = distribution(
        "exponential",
        "Draw floats from the exponential distribution.",
        (_scale("scale", "The mean.", 1.0),),
        by_formula("exponential", lambda e, scale: scale * e),
        "2.0, 3",
        "[7.63947889 0.05611909 1.1508752 ]",
        affine=("exponential", lambda scale: (0.0, scale)),
    )
    rayleigh = distribution(
        "rayleigh",
        "Draw floats from the Rayleigh distribution: lengths of two normal coordinates.",
        (_scale("scale", "Their standard deviation.", 1.0),),
        by_formula("exponential", lambda e, scale: scale * np.sqrt(2.0 * e)),
        "2.0, 3",
        "[5.52792145 0.47378937 2.14557704]",
    )
    gumbel = distribution(
        "gumbel",
        "Draw floats from the Gumbel distribution of largest values.",
        (_LOC, _SCALE),
        by_formula("exponential", lambda e, loc, scale: loc + scale * -np.log(_inside(e))),
        "0.0, 2.0, 3",
        "[-2.68036442  7.14685278  1.10524896]",
    )
    laplace = distribution(
        "laplace",
        "Draw floats from the Laplace distribution, exponential to both sides.",
        (_LOC, _SCALE),
        by_formula("uniform", _laplace),
        "0.0, 2.0, 3",
        "[ 6.25318452 -5.78855236 -0.26687391]",
    )
    logistic = distribution(
        "logistic",
        "Draw floats from the logistic distribution.",
        (_LOC, _SCALE),
        by_formula("uniform", lambda u, loc, scale: loc + scale * np.log(_inside(u) / (1.0 - u))),
        "0.0, 2.0, 3",
        "[ 7.59512362 -7.11872763 -0.50229307]",
    )
    pareto = distribution(
        "pareto",
        "Draw floats from the Pareto II or Lomax distribution.",
        (_shape("a", "Its shape."),),
        by_formula("exponential", lambda e, a: np.expm1(e / a)),
        "3.0, 3",
        "[2.57243159 0.00939706 0.21144339]",
    )
    power = distribution(
        "power",
        "Draw floats from [0, 1] with a density of power `a - 1`.",
        (_shape("a", "Its shape."),),
        by_formula("exponential", lambda e, a: np.power(-np.expm1(-e), 1.0 / a)),
        "3.0, 3",
        "[0.99263471 0.30245953 0.75917114]",
    )
    weibull = distribution(
        "weibull",
        "Draw floats from the Weibull distribution of scale 1.",
        (_scale("a", "Its shape."),),
        by_formula("exponential", _weibull),
        "2.0, 3",
        "[1.95441537 0.16750984 0.75857604]",
    )
    triangular = distribution(
        "triangular",
        "Draw floats from a triangle over an interval.",
        (
            _any("left", "The beginning of the interval."),
            _any("mode", "Where the triangle is highest."),
            _any("right", "The end."),
        ),
        by_formula("uniform", _triangular),
        "0.0, 1.0, 4.0, 3",
        "[3.48696766 0.33268323 1.40201921]",
        condition=Condition(
            "in this order, left below right, and right - left finite",
            lambda left, mode, right: (
                (left <= mode) & (mode <= right) & (left < right) & np.isfinite(right - left)
            ),
        ),
    )
    standard_cauchy = distribution(
        "standard_cauchy",
        "Draw floats from the Cauchy distribution of location 0 and scale 1.",
        (),
        by_formula("uniform", lambda u: np.tan(np.pi * (u - 0.5))),
        "3",
        "[ 14.48951253 -11.47499466  -0.19877743]",
    )
    standard_gamma = distribution(
        "standard_gamma",
        "Draw floats from the gamma distribution of scale 1.",
        (_finite_scale("shape", "Its shape; 0 gives 0."),),
        by_sampler(_continuous.standard_gamma),
        "2.0, 3",
        "[1.73663946 1.12249488 0.7597248 ]",
        method=_GAMMA,
        dtype=POSITION,
    )
    gamma = distribution(
        "gamma",
        "Draw floats from the gamma distribution.",
        (
            _finite_scale("shape", "Its shape; 0 gives 0."),
            _scale("scale", "By what they are multiplied.", 1.0),
        ),
        by_sampler(_continuous.gamma),
        "2.0, 3.0, 3",
        "[5.20991839 3.36748465 2.2791744 ]",
        method=_GAMMA,
    )
    beta = distribution(
        "beta",
        "Draw floats from the beta distribution.",
        (_finite("a", "The shape at 0."), _finite("b", "The shape at 1.")),
        by_sampler(_continuous.beta),
        "2.0, 3.0, 3",
        "[0.34160911 0.32403446 0.25517933]",
        method="A ratio of gamma numbers, whose logarithms count where they are tiny.",
    )
    chisquare = distribution(
        "chisquare",
        "Draw floats from the chi-square distribution.",
        (_DF,),
        by_sampler(_continuous.chisquare),
        "3.0, 3",
        "[2.45073456 1.44540267 0.88781451]",
        method="Twice a gamma number.",
    )
    noncentral_chisquare = distribution(
        "noncentral_chisquare",
        "Draw floats from the noncentral chi-square distribution.",
        (_DF, _NONC),
        by_sampler(_continuous.noncentral_chisquare),
        "3.0, 2.0, 3",
        "[4.66160075 2.15067059 1.60161564]",
        method="A square of a shifted normal number and a chi-square number beside it; for `df` up "
        "to 1 a chi-square number of more degrees, twice a Poisson number of them.",
    )
    f = distribution(
        "f",
        "Draw floats from the F distribution.",
        (_finite("dfnum", "Degrees above."), _finite("dfden", "Degrees below.")),
        by_sampler(_continuous.f),
        "3.0, 5.0, 3",
        "[0.73328098 0.64238197 0.41930037]",
        method="A ratio of gamma numbers.",
    )
    noncentral_f = distribution(
        "noncentral_f",
        "Draw floats from the noncentral F distribution.",
        (_finite("dfnum", "Degrees above."), _finite("dfden", "Degrees below."), _NONC),
        by_sampler(_continuous.noncentral_f),
        "3.0, 5.0, 2.0, 3",
        "[2.62935041 2.5116412  0.24286792]",
        method="A ratio of chi-square numbers.",
    )
    standard_t = distribution(
        "standard_t",
        "Draw floats from Student's t distribution.",
        (_DF,),
        by_sampler(_continuous.standard_t),
        "3.0, 3",
        "[-2.60781685 -0.59876478 -1.16583018]",
        method="A normal number over the root of a gamma number.",
    )
    vonmises = distribution(
        "vonmises",
        "Draw angles in [-pi, pi] from the von Mises distribution.",
        (
            Parameter("mu", "The mean angle.", "finite", np.isfinite),
            _finite_scale("kappa", "The concentration."),
        ),
        by_sampler(_continuous.vonmises),
        "0.0, 2.0, 3",
        "[ 0.08780644 -0.03051621 -0.56079519]",
        method="By D. J. Best and N. I. Fisher, J. R. Stat. Soc. C 28 (1979).",
    )
    wald = distribution(
        "wald",
        "Draw floats from the Wald or inverse Gaussian distribution.",
        (_finite("mean", "The mean."), _finite("scale", "The shape, lambda.")),
        by_sampler(_continuous.wald),
        "2.0, 3.0, 3",
        "[0.29440364 1.35691389 0.98000532]",
        method="By J. R. Michael, W. R. Schucany and R. W. Haas, Am. Stat. 30 (1976).",
    )
    poisson = distribution(
        "poisson",
        "Draw numbers of events.",
        (_finite_scale("lam", "The mean.", _MOST_EVENTS, 1.0),),
        by_sampler(_counts.poisson),
        "4.0, 5",
        "[8 1 4 7 2]",
        method="By adding up probabilities, and from a mean of 10 on by W. Hoermann, Insurance "
        "Math. Econom. 12 (1993).",
        whole=True,
    )
    binomial = distribution(
        "binomial",
        "Draw how many of some trials succeed.",
        (
            count_parameter("n", "How many trials."),
            Parameter(
                "p", "The probability of success.", _PROBABILITY, lambda p: (p >= 0) & (p <= 1)
            ),
        ),
        by_sampler(_counts.binomial),
        "10, 0.3, 5",
        "[6 0 3 5 1]",
        method="By adding up probabilities, and from a mean of 10 on by W. Hoermann, J. Stat. "
        "Comput. Simul. 46 (1993).",
        whole=True,
    )
    negative_binomial = distribution(
        "negative_binomial",
        "Draw how many trials fail before `n` succeed.",
        (
            _finite("n", "How many successes; not only whole numbers."),
            Parameter(
                "p",
                "The probability of success.",
                "above 0 and at most 1",
                lambda p: (p > 0) & (p <= 1),
            ),
        ),
        by_sampler(_continuous.negative_binomial),
        "3, 0.4, 5",
        "[2 2 1 8 1]",
        method="A Poisson number of a gamma mean.",
        whole=True,
        condition=Condition(
            "such that n (1 - p) / p, and ten standard deviations, are below 2**63",
            lambda n, p: (n + 10 * np.sqrt(n)) * ((1 - p) / p) < _MOST_EVENTS,
        ),
    )
    geometric = distribution(
        "geometric",
        "Draw how many trials it takes to succeed.",
        (
            Parameter(
                "p",
                "The probability of success.",
                "above 0 and at most 1",
                lambda p: (p > 0) & (p <= 1),
            ),
        ),
        by_formula("exponential", _geometric),
        "0.2, 5",
        "[18  1  3 11  1]",
        whole=True,
    )
    hypergeometric = distribution(
        "hypergeometric",
        "Draw how many of a sample without replacement are good.",
        (
            count_parameter("ngood", "How many good items there are."),
            count_parameter("nbad", "How many others."),
            count_parameter("nsample", "How many are taken."),
        ),
        by_sampler(_counts.hypergeometric),
        "30, 20, 10, 5",
        "[3 9 6 4 8]",
        method="By adding up probabilities, and from a mean of 10 on by E. Stadlober, J. Comput. "
        "Appl. Math. 31 (1990).",
        whole=True,
        condition=Condition(
            "such that nsample is at most ngood + nbad, and this at most 2**53",
            lambda good, bad, sample: (sample <= good + bad) & (good + bad <= WHOLE),
        ),
    )
    logseries = distribution(
        "logseries",
        "Draw whole numbers from 1 on, k with a probability proportional to `p**k / k`.",
        (Parameter("p", "The base.", "0 or more and below 1", lambda p: (p >= 0) & (p < 1)),),
        by_sampler(_counts.logseries),
        "0.7, 5",
        "[9 1 1 2 1]",
        method="By A. W. Kemp, J. R. Stat. Soc. C 30 (1981).",
        whole=True,
    )
    zipf = distribution(
        "zipf",
        "Draw whole numbers from 1 to 2**63, k with a probability proportional to `k**-a`.",
        (_finite("a", "The exponent.", 1.0),),
        by_sampler(_counts.zipf),
        "2.0, 5",
        "[ 8  1  1 10  1]",
        method="By L. Devroye, Non-Uniform Random Variate Generation (1986), chapter X.6; numbers "
        "from 2**63 on are drawn again.",
        whole=True,
    )
