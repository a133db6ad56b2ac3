"""Quantile methods: between which sorted items a quantile lies, and how much of each it is.

The nine methods of Hyndman & Fan (1996) and NumPy's four further ones. All that they need of the
data is how many items there are, so that places can be told before anything is sorted, and the
items at these places be found by selection. The arithmetic is NumPy's step by step, because
another order of the same steps rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.typing import Buffer


class Quantiles(NamedTuple):
    """Which quantiles are wanted."""

    values: np.ndarray
    """From 0 to 1; integers or floating point numbers."""
    weak: bool
    """One Python number, which leaves the data's precision alone."""


class Places(NamedTuple):
    """Where quantiles lie in the sorted data; every array has the shape of the quantiles."""

    previous: np.ndarray
    """int64, from 0."""
    following: np.ndarray
    """int64; often the next item, and the same as `previous` at the ends."""
    weight: np.ndarray | None
    """How far a quantile is on the way from the previous to the following item; None: quantiles are
    the previous items. Where both are the same item it may be below 0 or above 1."""


def check_quantiles(name: str, q: Any, percent: bool = False) -> Quantiles:
    """Return the argument `q` of `quantile` or, with `percent`, of `percentile`.

    Raises
    ------
    ArgumentError
        If one is out of range, or they have more than two axes.
    ArgumentTypeError
        If they are no real numbers.
    """
    weak = type(q) in (int, float)
    if weak and 0 <= q <= (100 if percent else 1):
        return Quantiles(np.asarray(q / 100 if percent else q), weak)
    values = np.asarray(q)
    if values.dtype.kind not in "biuf":
        raise ArgumentTypeError(f"{name}: q has items of {values.dtype}, which are no real numbers")
    if percent:
        values = np.asarray(np.true_divide(values, 100))
    if not ((values >= 0) & (values <= 1)).all():
        raise ArgumentError(f"{name}: q must be from 0 to {100 if percent else 1}, but is {q}")
    if values.ndim > 2:
        raise ArgumentError(f"{name}: q has {values.ndim} axes; it is one number or an array of 1")
    return Quantiles(values, weak)


def find_places(method: str, count: int, q: np.ndarray) -> Places:
    """Return where quantiles of `count` sorted items lie.

    Parameters
    ----------
    method : str
        One of `METHODS`.
    count : int
        At least 1.
    q : ndarray
        As `check_quantiles` gives them.

    Examples
    --------
    >>> import numpy as np
    >>> find_places("linear", 4, np.array(0.5))[:2]
    (array(1), array(2))
    >>> find_places("lower", 4, np.array(0.5))
    Places(previous=array(1), following=array(1), weight=None)
    """
    exact = np.asarray(METHODS[method](count, q))
    if method in _DISCRETE or (method == "linear" and exact.dtype.kind in "iu"):
        places = exact.astype(np.int64)
        return Places(places, places, None)
    previous = np.asarray(np.floor(exact))
    following = np.asarray(previous + 1)
    for outside, place in ((~(exact < count - 1), -1), (exact < 0, 0)):
        previous[outside] = place
        following[outside] = place
    weight = exact - previous
    weight = np.asarray(_WEIGHTS.get(method, lambda weight, _: weight)(weight, exact), exact.dtype)
    # Negative places are those of the last items.
    previous, following = (np.asarray(x.astype(np.int64) % count) for x in (previous, following))
    return Places(previous, following, weight)


def interpolate(previous: Buffer, following: Buffer, places: Places, weak: bool) -> Buffer:
    """Return quantiles that lie between items.

    Parameters
    ----------
    previous, following : array
        The items at the places, of shape (*q.shape, ...), for each line of the data.
    places : Places
    weak : bool
        As in `Quantiles`.

    Returns
    -------
    array
        Of the dtype that NumPy gives, also where there are NaNs: there it gives that of the data.
    """
    weight: Any = places.weight
    if weight is None:
        return previous
    rest = np.ndim(previous) - weight.ndim
    weight = float(weight) if weak else weight.reshape(weight.shape + (1,) * rest)
    distance = np.subtract(following, previous)
    result = np.asarray(np.add(previous, distance * weight))
    # from the nearer item, so that the larger quantile never is the smaller number
    np.subtract(
        following,
        distance * (1 - weight),
        out=result,
        where=weight >= 0.5,
        casting="unsafe",
        dtype=type(result.dtype),
    )
    return result


def median_places(count: int) -> tuple[int, ...]:
    """Return the places of the one or two items in the middle, of which the median is the mean."""
    return (count // 2,) if count % 2 else (count // 2 - 1, count // 2)


def count_below(sums: np.ndarray, total: float, q: np.ndarray) -> np.ndarray:
    """Return how many items of a block come before weighted quantiles.

    Added up over all blocks of the sorted data, and at most the place of the last item, these are
    the places of the quantiles: the first items at which the weights, as a part of all, reach q.

    Parameters
    ----------
    sums : ndarray
        float64: the weights of all items up to each of the block's own, in sorted order.
    total : float
        Of all weights.
    q : ndarray

    Raises
    ------
    ArgumentError
        If the weights have no total that is positive and finite.
    """
    if not 0 < total < np.inf:
        raise ArgumentError(
            f"quantile: the weights add up to {total}; they must be 0 or more, not "
            "all 0, and finite"
        )
    parts = sums / total
    if q.dtype.kind == "f":
        parts = parts.astype(q.dtype)
    leading = np.searchsorted(parts, 0, "right")  # items without weight before all others
    return np.maximum(np.searchsorted(parts, q, "left"), leading)


# --- the methods ---------------------------------------------------------------------------------


def _between(alpha: float, beta: float) -> Callable[[int, Any], Any]:
    """Return the continuous method with these parameters of Hyndman & Fan."""
    return lambda count, q: count * q + (alpha + q * (1 - alpha - beta)) - 1


def _closest(count: int, q: Any) -> Any:
    exact = count * q - 1 - 0.5
    previous = np.floor(exact)
    return _above(previous, (exact - previous == 0) & (previous % 2 == 1))


def _reached(count: int, q: Any) -> Any:
    exact = count * q - 1
    previous = np.floor(exact)
    return _above(previous, exact - previous == 0)


def _above(previous: Any, stays: Any) -> Any:
    return np.maximum(np.where(stays, previous, previous + 1), 0)


METHODS: Final[dict[str, Callable[[int, Any], Any]]] = {
    "inverted_cdf": _reached,
    "averaged_inverted_cdf": lambda count, q: count * q - 1,
    "closest_observation": _closest,
    "interpolated_inverted_cdf": _between(0, 1),
    "hazen": _between(0.5, 0.5),
    "weibull": _between(0, 0),
    "linear": lambda count, q: (count - 1) * q,
    "median_unbiased": _between(1 / 3.0, 1 / 3.0),
    "normal_unbiased": _between(3 / 8.0, 3 / 8.0),
    "lower": lambda count, q: np.floor((count - 1) * q),
    "higher": lambda count, q: np.ceil((count - 1) * q),
    "midpoint": lambda count, q: 0.5 * (np.floor((count - 1) * q) + np.ceil((count - 1) * q)),
    "nearest": lambda count, q: np.around((count - 1) * q),
}
"""By name, the place of quantiles among `count` items, counted from 0 and perhaps between two."""

_DISCRETE: Final = {"inverted_cdf", "closest_observation", "lower", "higher", "nearest"}

_WEIGHTS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "averaged_inverted_cdf": lambda weight, _: np.where(weight == 0, 0.5, 1.0),
    "midpoint": lambda _, exact: np.where(exact % 1 == 0, 0.0, 0.5),
}
