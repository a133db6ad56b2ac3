"""Samplers of whole numbers: counted events, successes, trials and ranks, and those between bounds.

Few are found by adding up probabilities until a uniform number is reached. Else Poisson and
binomial variates are made by the transformed rejection of W. Hoermann, "The transformed rejection
method for generating Poisson random variables", Insurance Math. Econom. 12 (1993), and "The
generation of binomial random variates", J. Stat. Comput. Simul. 46 (1993); hypergeometric ones by
the ratio of uniforms of E. Stadlober, "The ratio of uniforms approach for generating discrete
random variates", J. Comput. Appl. Math. 31 (1990). Probabilities are computed without
cancellation, by C. Loader, "Fast and accurate computation of binomial probabilities" (2000), so
that means up to 2**63 are as good as others. Logarithmic series: A. W. Kemp, "Efficient generation
of logarithmically distributed pseudo-random variables", J. R. Stat. Soc. C 30 (1981). Zipf: L.
Devroye, "Non-Uniform Random Variate Generation" (1986), chapter X.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from distarray.random._formulas import logarithm, scaled
from distarray.random._streams import Items, choose, pick, reject

_LEAST_REJECTION_MEAN: Final = 10
"""Means from which on rejection serves, whose constants hold from there on."""
_LARGEST_COUNT: Final = 2.0**63 - 1024
"""The largest double that is an int64."""


def count_up(u: Any, first: Any, ratio: Callable[[int], Any]) -> Any:
    """Return for uniform numbers the k at which the sum of probabilities exceeds them.

    Parameters
    ----------
    first
        The probability of 0.
    ratio
        Of the probability of k to that of k - 1; at last below 1.
    """
    found = np.zeros(u.shape)
    varies = np.ndim(first) > 0
    total, probability, k = first, first, 0
    while np.count_nonzero(above := u >= total):
        found += above
        k += 1
        probability = probability * ratio(k)
        # What is left, below a millionth of a step of u, belongs to the last one.
        counts = probability > 2.0**-74
        if varies:
            total = np.where(counts, total + probability, np.inf)
        else:
            total = total + probability if counts else np.inf
    return found


# --- logarithms of probabilities -----------------------------------------------------------------

_FACTORIALS: Final = [math.factorial(k) for k in range(16)]


def excess(k: Any) -> Any:
    """Return ``ln k! - k ln k + k`` of whole numbers, 0 or more: Stirling's series from 16 on."""
    big = np.maximum(k, 16)
    r = 1 / big
    s = r * r
    series = r * (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680))))
    few = np.minimum(k, 15).astype(np.int64)
    return np.where(k < 16, _EXCESSES[few], 0.5 * logarithm(2 * math.pi * big) + series)


_EXCESSES: Final = np.array(
    [math.log(f) - (k * math.log(k) if k else 0) + k for k, f in enumerate(_FACTORIALS)]
)


def deviance(x: Any, mean: Any) -> Any:
    """Return ``x ln(x / mean) + mean - x``, which is 0 where they are equal.

    Where they are near, by the series of artanh in v = (x - mean) / (x + mean).
    """
    difference = x - mean
    v = difference / np.maximum(x + mean, 1e-300)  # both may be 0
    square = v * v
    series = 1 / 21
    for divisor in (19, 17, 15, 13, 11, 9, 7, 5, 3):
        series = series * square + 1 / divisor
    near = difference * v + 2 * x * v * square * series
    far = x * logarithm(np.maximum(x, 1e-300) / mean) - difference
    return np.where(np.abs(v) < 0.1, near, far)


def _log_poisson(k: Any, lam: Any) -> Any:
    return -deviance(k, lam) - excess(k)


def _log_binomial(k: Any, n: Any, p: Any) -> Any:
    """Return the logarithm of a probability, less ``excess(n)``."""
    rest = np.maximum(n - k, 0)
    found = deviance(k, n * p) + deviance(rest, n * (1 - p)) + excess(k) + excess(rest)
    return np.where(k <= n, -found, -np.inf)


def _log_hypergeometric(k: Any, good: Any, bad: Any, sample: Any) -> Any:
    """Return the logarithm but for a constant: of two binomial numbers with a given sum."""
    p = sample / (good + bad)
    return _log_binomial(k, good, p) + _log_binomial(sample - k, bad, p)


# --- events and successes ------------------------------------------------------------------------


def _transformed_rejection(
    items: Items, log_mass: Callable[..., Any], hat: tuple[Any, ...], *parameters: Any
) -> Any:
    """Return whole numbers by Hoermann's algorithms PTRS and BTRS.

    `hat` is a, b, the center, alpha and v_r of the papers.
    """

    def propose(items: Items, turn: int, *both: Any) -> tuple[Any, Any]:
        a, b, center, alpha, v_r, *_ = both
        u, v = items.uniform(turn) - 0.5, 1 - items.uniform(turn + 1)
        near = 0.5 - np.abs(u)
        k = np.floor((2 * a / near + b) * u + center)
        accepted = (near >= 0.07) & (v <= v_r)
        open_ = np.flatnonzero(~accepted & (k >= 0) & ((near >= 0.013) | (v <= near)))
        if open_.size:
            a, b, center, alpha, v_r, *those = pick(both, open_)
            near, k_ = near[open_], k[open_]
            height = logarithm(v[open_] * alpha / (a / (near * near) + b))
            accepted[open_] = height <= log_mass(k_, *those)
        return k, accepted

    return reject(items, propose, *hat, *parameters)


def poisson(items: Items, lam: Any) -> Any:
    return np.minimum(events(items, lam), _LARGEST_COUNT)


def events(items: Items, lam: Any) -> Any:
    """Return Poisson variates that may be more than an int64 holds."""
    return choose(items, lam < _LEAST_REJECTION_MEAN, _few_events, _many_events, lam)


def _few_events(items: Items, lam: Any) -> Any:
    return count_up(items.uniform(0), np.exp(-lam), lambda k: lam / k)


def _many_events(items: Items, lam: Any) -> Any:
    b = 0.931 + 2.53 * np.sqrt(lam)
    a = -0.059 + 0.02483 * b
    hat = a, b, lam + 0.43, 1.1239 + 1.1328 / (b - 3.4), 0.9277 - 3.6224 / (b - 2)
    return _transformed_rejection(items, _log_poisson, hat, lam)


def binomial(items: Items, n: Any, p: Any) -> Any:
    failures = p > 0.5
    rarer = np.where(failures, 1 - p, p)[()]
    k = choose(items, n * rarer < _LEAST_REJECTION_MEAN, _few_successes, _many_successes, n, rarer)
    return np.where(failures, n - k, k)


def _few_successes(items: Items, n: Any, p: Any) -> Any:
    odds = p / (1 - p)
    none = np.exp(n * np.log1p(-p))
    return count_up(items.uniform(0), none, lambda k: np.maximum(n - k + 1, 0) / k * odds)


def _many_successes(items: Items, n: Any, p: Any) -> Any:
    deviation = np.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    hat = a, b, n * p + 0.5, (2.83 + 5.1 / b) * deviation, 0.92 - 4.2 / b
    of_most = _log_binomial(np.floor((n + 1) * p), n, p)

    def log_mass(k: Any, n: Any, p: Any, of_most: Any) -> Any:
        return _log_binomial(k, n, p) - of_most

    return _transformed_rejection(items, log_mass, hat, n, p, of_most)


# --- samples without replacement -----------------------------------------------------------------


def hypergeometric(items: Items, good: Any, bad: Any, sample: Any) -> Any:
    """Return how many of a sample are good, by the fewer of both kinds and the smaller part."""
    total = good + bad
    fewer, part = np.minimum(good, bad), np.minimum(sample, total - sample)
    mean = fewer * (part / np.maximum(total, 1))
    k = choose(
        items,
        mean < _LEAST_REJECTION_MEAN,
        _few_of_sample,
        _many_of_sample,
        fewer,
        total - fewer,
        part,
    )
    k = np.where(good > bad, part - k, k)
    return np.where(part < sample, good - k, k)


def _few_of_sample(items: Items, good: Any, bad: Any, sample: Any) -> Any:
    total = np.maximum(good + bad, 1)
    mass = _log_hypergeometric(np.float64(0), good, bad, sample)
    of_sum = _log_binomial(sample, total, sample / total)
    none = np.exp(mass + excess(good) + excess(bad) - of_sum - excess(total))

    def ratio(k: int) -> Any:
        left = np.maximum(good - k + 1, 0) * np.maximum(sample - k + 1, 0)
        return left / (k * (bad - sample + k))

    return count_up(items.uniform(0), none, ratio)


_D1, _D2 = 2 * math.sqrt(2 / math.e), 3 - 2 * math.sqrt(3 / math.e)


def _many_of_sample(items: Items, good: Any, bad: Any, sample: Any) -> Any:
    total = good + bad
    p = good / total
    center = sample * p + 0.5
    variance = sample * p * (1 - p) * ((total - sample) / (total - 1))
    width = _D1 * np.sqrt(variance + 0.5) + _D2
    of_most = _log_hypergeometric(
        np.floor((sample + 1) * ((good + 1) / (total + 2))), good, bad, sample
    )
    return reject(items, _propose_of_sample, center, width, of_most, good, bad, sample)


def _propose_of_sample(
    items: Items,
    turn: int,
    center: Any,
    width: Any,
    of_most: Any,
    good: Any,
    bad: Any,
    sample: Any,
) -> tuple[Any, Any]:
    u = 1 - items.uniform(turn)
    k = np.floor(center + width * (items.uniform(turn + 1) - 0.5) / u)
    inside = (k >= 0) & (k <= np.minimum(good, sample))
    mass = _log_hypergeometric(np.where(inside, k, 0), good, bad, sample)
    return k, inside & (2 * logarithm(u) <= mass - of_most)


# --- trials, series and ranks --------------------------------------------------------------------


def logseries(items: Items, p: Any) -> Any:
    v = 1 - items.uniform(0)
    rest = np.exp(np.log1p(-p) * items.uniform(1))
    q = 1 - rest
    k = np.floor(1 + np.log(v) / np.log1p(-rest))
    return np.where(v >= q, 1, np.where(v > q * q, 2, np.clip(k, 1, _LARGEST_COUNT)))


def zipf(items: Items, a: Any) -> Any:
    # From a - 1 = 1000 on a double does not tell the probability of 1 from 1.
    return reject(items, _propose_rank, np.minimum(a - 1, 1000))


def _propose_rank(items: Items, turn: int, power: Any) -> tuple[Any, Any]:
    least = np.exp(-63 * math.log(2) * power)
    u = 1 - items.uniform(turn) * (1 - least)
    k = np.floor(np.exp(-np.log(u) / power))
    more, most = np.expm1(power * np.log1p(1 / k)), np.expm1(math.log(2) * power)
    v = items.uniform(turn + 1)
    return k, (k <= _LARGEST_COUNT) & (v * k * (more / most) <= (1 + more) / (1 + most))


# --- between bounds that are arrays: as between numbers ------------------------------------------


def integers_between(endpoint: bool, items: Items, low: Any, high: Any) -> Any:
    """Return uint64, modulo 2**64, as `fill_integers` gives it."""
    least, most = (_modulo(one) for one in (low, high))
    among = most - least + np.uint64(bool(endpoint))

    def propose(items: Items, turn: int, among: Any) -> tuple[Any, Any]:
        x = items.bits(turn // 2)
        value, low = scaled(x, among)
        every = among == 0  # 2**64 of them
        bound = (~among + np.uint64(1)) % np.where(every, np.uint64(1), among)
        return np.where(every, x, value), every | (low >= bound)

    return least + reject(items, propose, among)


def _modulo(bound: Any) -> Any:
    """Return integers modulo 2**64."""
    return bound.astype(np.uint64) if np.ndim(bound) else np.uint64(bound % 2**64)
