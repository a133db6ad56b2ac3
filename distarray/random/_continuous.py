"""Samplers of continuous distributions that no formula of one number gives.

Gamma variates are made by G. Marsaglia and W. W. Tsang, "A simple method for generating gamma
variables", ACM Trans. Math. Softw. 26 (2000), and what is made of them (beta, chi-square, F, t,
Dirichlet) goes through logarithms of those of tiny shapes, which are below the least double: so
ratios of them are right as well. Von Mises variates: D. J. Best and N. I. Fisher, "Efficient
simulation of the von Mises distribution", J. R. Stat. Soc. C 28 (1979). Inverse Gaussian ones:
J. R. Michael, W. R. Schucany and R. W. Haas, "Generating random variates using transformations
with multiple roots", Am. Stat. 30 (1976).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from distarray.random._counts import events, poisson
from distarray.random._formulas import cosine_and_sine, logarithm
from distarray.random._streams import Items, choose, reject

LEAST: Final = 2.0**-54
"""What stands for 0, which is as likely as any other uniform number, where it has no logarithm."""

_LAST: Final = (1 << 12) - 1
"""The last turn of a part, which no proposal reaches."""

_Pair = tuple[Any, Any]


def gamma_parts(items: Items, a: Any) -> _Pair:
    """Return variates of shape `a`, 0 or more, as ``g`` and ``l`` of ``g * exp(l)``.

    Of shapes below 1, g is one of a + 1, and l the logarithm of a uniform number over a.
    """
    a = a + 0.0  # of -0.0 a quotient would have the wrong sign
    small = a < 1
    d = np.where(small, a + 1, a)[()] - 1 / 3
    g = reject(items, _propose_gamma, d, 1 / np.sqrt(9 * d))
    if not np.any(small):
        return g, 0.0
    power = np.maximum(items.exponential(_LAST), LEAST) / a
    return g, np.where(small, -np.minimum(power, np.finfo(float).max), 0.0)


def _propose_gamma(items: Items, turn: int, d: Any, c: Any) -> _Pair:
    x, u = items.normal(turn), items.uniform(turn + 1)
    root = 1 + c * x
    v = root * root * root
    squares = x * x
    positive = v > 0
    accepted = positive & (u < 1 - 0.0331 * squares * squares)
    open_ = np.flatnonzero(positive & ~accepted)
    if open_.size:
        v_, d_ = v[open_], d[open_] if np.ndim(d) else d
        bound = 0.5 * squares[open_] + d_ * (1 - v_ + logarithm(v_))
        accepted[open_] = logarithm(np.maximum(u[open_], LEAST)) < bound
    return d * v, accepted


def standard_gamma(items: Items, shape: Any) -> Any:
    g, power = gamma_parts(items, shape)
    return g * np.exp(power)


def gamma(items: Items, shape: Any, scale: Any) -> Any:
    return scale * standard_gamma(items, shape)


def beta(items: Items, a: Any, b: Any) -> Any:
    return 1 / (1 + _ratio(items.part(1), items, b, a))


def _ratio(above: Items, below: Items, a: Any, b: Any) -> Any:
    """Return the ratio of two gamma variates, the second of which is never 0."""
    (x, more), (y, less) = gamma_parts(above, a), gamma_parts(below, b)
    return x / y * np.exp(more - less)


def chisquare(items: Items, df: Any) -> Any:
    return 2 * standard_gamma(items, df / 2)


def f(items: Items, dfnum: Any, dfden: Any) -> Any:
    # Of tiny degrees the ratio is 0, and is not to meet an infinity.
    scale = np.minimum(dfden / dfnum, np.finfo(float).max)
    return _ratio(items, items.part(1), dfnum / 2, dfden / 2) * scale


def standard_t(items: Items, df: Any) -> Any:
    g, power = gamma_parts(items.part(1), df / 2)
    return items.normal(0) * np.sqrt(df / 2 / g) * np.exp(-power / 2)


def noncentral_chisquare(items: Items, df: Any, nonc: Any) -> Any:
    return choose(items, df > 1, _shifted_square, _mixed_chisquare, df, nonc)


def _shifted_square(items: Items, df: Any, nonc: Any) -> Any:
    shifted = items.part(1).normal(0) + np.sqrt(nonc)
    return chisquare(items, df - 1) + shifted * shifted


def _mixed_chisquare(items: Items, df: Any, nonc: Any) -> Any:
    """Return variates of df + 2k degrees of freedom, k a Poisson one of mean nonc / 2."""
    return chisquare(items, df + 2 * events(items.part(1), nonc / 2))


def noncentral_f(items: Items, dfnum: Any, dfden: Any, nonc: Any) -> Any:
    below = np.maximum(chisquare(items.part(2), dfden), np.finfo(float).tiny) * dfnum
    return noncentral_chisquare(items, dfnum, nonc) * dfden / below


def wald(items: Items, mean: Any, scale: Any) -> Any:
    """Return one of the roots of a square of a normal number, each as often as it should be.

    With w = mean / (2 scale) times the square these are mean times 1 + w -+ sqrt(w (w + 2)),
    whose product is 1.
    """
    z = items.normal(0)
    w = mean / (2 * scale) * z * z
    root = 1 + w + np.sqrt(w) * np.sqrt(w + 2)  # the square of w may overflow
    smaller = items.uniform(1) * (1 + 1 / root) <= 1
    return np.where(smaller, mean / root, mean * root)


def negative_binomial(items: Items, n: Any, p: Any) -> Any:
    """Return Poisson variates of a gamma mean."""
    return poisson(items.part(1), gamma(items, n, (1 - p) / p))


# --- angles --------------------------------------------------------------------------------------

_FLAT_KAPPA: Final = 1e-8
"""Concentrations below which no double tells the density from a constant: its parts vary by less
than the probability of one of 2**53 numbers does."""
_NORMAL_KAPPA: Final = 1e6
"""Concentrations above which the angle is normal but for a relative error of 1 / (8 kappa)."""


def vonmises(items: Items, mu: Any, kappa: Any) -> Any:
    angle = mu + choose(items, kappa > _NORMAL_KAPPA, _normal_angle, _any_angle, kappa)
    size = np.abs(angle)
    size = np.where(size > np.pi, np.fmod(size + np.pi, 2 * np.pi) - np.pi, size)
    return np.where(angle < 0, -size, size)


def _normal_angle(items: Items, kappa: Any) -> Any:
    return items.normal(0) / np.sqrt(kappa)


def _any_angle(items: Items, kappa: Any) -> Any:
    kappa = np.maximum(kappa, _FLAT_KAPPA)
    root = 1 + np.sqrt(1 + 4 * kappa * kappa)
    rho = (root - np.sqrt(2 * root)) / (2 * kappa)
    # rho is kappa / 2 where it is small, and loses digits.
    s = np.where(kappa < 1e-5, 1 / kappa + kappa, (1 + rho * rho) / (2 * rho))[()]
    cosine = reject(items, _propose_cosine, kappa, s)
    angle = np.arccos(np.clip(cosine, -1, 1))
    return np.where(items.uniform(_LAST) < 0.5, -angle, angle)


def _propose_cosine(items: Items, turn: int, kappa: Any, s: Any) -> _Pair:
    z, _ = cosine_and_sine(items.uniform(turn) * 0.5)
    cosine = (1 + s * z) / (s + z)
    y = kappa * (s - cosine)
    v = np.maximum(items.uniform(turn + 1), LEAST)
    return cosine, (y * (2 - y) > v) | (logarithm(np.maximum(y, 1e-300) / v) + 1 >= y)
