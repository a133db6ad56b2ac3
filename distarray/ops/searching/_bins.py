"""Bins: the edges that a histogram has by the extent of all items, and the counts of one block.

Which bin an item falls into depends on its value and on the outer edges alone. So once all blocks
have the same edges, found from the least and the greatest of all items, their counts add up to
NumPy's; sums of weights do so but for rounding.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import count_numbers
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.typing import Buffer

_PIECE: Final = 1 << 15
"""So many points, or as many as there are bins, are counted at once."""

_MOST_BINS_TRIED: Final = 100
"""By Stone's rule, of few items; of many the square root of their number."""


class Sample(NamedTuple):
    """What the rules for a number of bins need to know of all items within the range."""

    dtype: np.dtype[Any]
    size: int
    low: Any
    """The least item, a NumPy scalar of `dtype`; of no items anything."""
    high: Any
    deviation: Callable[[], Any]
    """Return their standard deviation, as `np.std`."""
    skewness: Callable[[], Any]
    """Return the mean of the third power of (item - mean) / deviation."""
    quartiles: Callable[[], tuple[Any, Any]]
    """Return the 25th and the 75th percentile, as `np.percentile`."""
    counts: Callable[[int], np.ndarray]
    """Return the histogram of all items in a number of equal bins."""


def as_countable(block: Buffer) -> Buffer:
    """Return items of a histogram such that they can be subtracted: booleans as 0 and 1."""
    if block.dtype != bool:
        return block
    text = f"Converting input from {block.dtype} to {np.uint8} for compatibility."
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    return block.astype(np.uint8)


def outer_edges(size: int, low: Any, high: Any, limits: Any = None) -> tuple[Any, Any]:
    """Return where the first of equal bins begins and the last one ends.

    Parameters
    ----------
    size : int
        Of all items together.
    low, high : NumPy scalars
        The least and the greatest of all items, of their dtype; NaN where one of them is. Of no
        items anything.
    limits : (number, number), optional
        The argument `range`.

    Raises
    ------
    ArgumentError
        If the limits are in the wrong order, or they or the items are not finite.
    """
    if limits is not None:
        first, last = limits
        if first > last:
            raise ArgumentError(f"range=({first}, {last}): the first must not be the larger one")
        if not (np.isfinite(first) and np.isfinite(last)):
            raise ArgumentError(f"range=({first}, {last}): both must be finite")
    elif not size:
        first, last = 0, 1
    else:
        first, last = low, high
        if not (np.isfinite(first) and np.isfinite(last)):
            raise ArgumentError(
                f"the items are from {first} to {last}, which is no range of bins; give range="
            )
    return (first - 0.5, last + 0.5) if first == last else (first, last)


def check_bins(name: str, bins: Any) -> int | np.ndarray:
    """Return the argument `bins` as a number or as edges that ascend.

    Raises
    ------
    ArgumentTypeError
        If a number is no integer.
    ArgumentError
        If the number is below 1, or the edges descend or have several axes.
    """
    if np.ndim(bins) == 0:
        try:
            number = operator.index(bins)
        except TypeError:
            raise ArgumentTypeError(
                f"{name}: bins={bins!r} must be an integer or an array of edges"
            ) from None
        if number < 1:
            raise ArgumentError(f"{name}: bins={number} must be 1 or more")
        return number
    edges = np.asarray(bins)
    if edges.ndim != 1:
        raise ArgumentError(f"{name}: bins has {edges.ndim} axes; edges have one")
    if (edges[:-1] > edges[1:]).any():
        raise ArgumentError(f"{name}: bins must ascend, as edges do")
    return edges


def equal_edges(bins: int, outer: tuple[Any, Any], dtype: Any) -> np.ndarray:
    """Return the edges of equal bins as `np.histogram` has them for items of a dtype.

    Raises
    ------
    ArgumentError
        If the numbers between the outer edges are too few for so many bins.
    """
    try:
        return np.histogram_bin_edges(np.empty(0, dtype), bins, outer)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def count_block(
    block: Buffer, bins: int | np.ndarray, outer: tuple[Any, Any] | None, weights: Any = None
) -> np.ndarray:
    """Return the counts (or sums of weights) of a block in the bins of all.

    Parameters
    ----------
    block : array
        As `as_countable` gives it.
    bins : int or ndarray
        Equal bins between the outer edges, or their edges.
    outer : (number, number) or None
        As `outer_edges` gives them; None for bins that are given by edges.
    weights : array, optional
        Of the block's shape.

    Returns
    -------
    ndarray
        intp, or of the dtype of the weights.
    """
    return np.histogram(block, bins, outer, weights=weights)[0]


def density(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the probability density in bins, given the counts of all items."""
    return counts / np.array(np.diff(edges), float) / counts.sum()


# --- several dimensions --------------------------------------------------------------------------


def edges_of_dimensions(
    bins: Any, limits: Any, size: int, lows: Sequence[Any], highs: Sequence[Any]
) -> list[np.ndarray]:
    """Return the edges of `np.histogramdd` along each dimension.

    Parameters
    ----------
    bins : int or sequence
        One for all, or for each dimension a number or edges.
    limits : sequence of (number, number) or None, or None
        The argument `range`.
    size : int
        How many items all ranks have together.
    lows, highs : sequence of NumPy scalars
        The least and the greatest coordinate along each dimension.

    Raises
    ------
    ArgumentError
        If a sequence is not as long as there are dimensions, or as of `check_bins`, `outer_edges`.
    """
    count = len(lows)
    try:
        each = list(bins)
    except TypeError:  # one number for all
        each = [bins] * count
    if len(each) != count:
        raise ArgumentError(f"histogramdd: bins is for {len(each)} dimensions of {count}")
    ranges = [None] * count if limits is None else list(limits)
    if len(ranges) != count:
        raise ArgumentError(f"histogramdd: range is for {len(ranges)} dimensions of {count}")
    edges = []
    for own, limit, low, high in zip(each, ranges, lows, highs, strict=True):
        own = check_bins("histogramdd", own)
        if type(own) is int:
            own = np.linspace(*outer_edges(size, low, high, limit), own + 1)
        assert isinstance(own, np.ndarray)
        edges.append(own)
    return edges


def count_block_of_dimensions(
    columns: Sequence[Buffer], edges: Sequence[np.ndarray], weights: Any = None
) -> np.ndarray:
    """Return the counts, float64, of a block in the bins of all, given each coordinate of items."""
    counts = np.zeros([len(own) - 1 for own in edges])
    at_once = max(_PIECE, counts.size)
    for start in range(0, len(columns[0]), at_once):
        piece = slice(start, start + at_once)
        own = np.stack([column[piece] for column in columns], -1)
        weighing = None if weights is None else weights[piece]
        counts += np.histogramdd(own, list(edges), weights=weighing)[0]
    return counts


def density_of_dimensions(counts: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    """Return the probability density in bins, given the counts of all items."""
    total = counts.sum()
    for axis, own in enumerate(edges):
        shape = [1] * len(edges)
        shape[axis] = -1
        counts = counts / np.diff(own).reshape(shape)
    return counts / total


# --- rules for a number of bins ------------------------------------------------------------------


def estimate_bins(rule: str, sample: Sample, outer: tuple[Any, Any]) -> int:
    """Return how many equal bins a rule of `np.histogram_bin_edges` gives.

    Parameters
    ----------
    rule : str
        The argument `bins`.
    sample : Sample
        Of the items from the first to the last edge.
    outer : (number, number)
        As `outer_edges` gives them.

    Raises
    ------
    ArgumentError
        If there is no such rule.
    """
    width_of = _RULES.get(rule)
    if width_of is None:
        raise ArgumentError(f"bins={rule!r} is no rule; there are {', '.join(sorted(_RULES))}")
    if not sample.size:
        return 1
    width = width_of(sample)
    if not width:
        return 1
    if sample.dtype.kind in "iu" and width < 1:
        width = 1
    return int(np.ceil(_distance(outer[0], outer[1]) / width))


def _distance(low: Any, high: Any) -> Any:
    """Return high - low; of signed integers as unsigned ones, which hold it."""
    dtype = np.result_type(low, high)
    if dtype.kind != "i":
        return np.subtract(high, low, dtype=dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    ends = np.asarray(high, dtype), np.asarray(low, dtype)
    return np.subtract(*ends, casting="unsafe", dtype=unsigned)


def _extent(sample: Sample) -> Any:
    return _distance(sample.low, sample.high)


def _sqrt(sample: Sample) -> Any:
    return _extent(sample) / np.sqrt(sample.size)


def _sturges(sample: Sample) -> Any:
    return _extent(sample) / (np.log2(sample.size) + 1.0)


def _stone(sample: Sample) -> Any:
    size, extent = sample.size, _extent(sample)
    if size <= 1 or extent == 0:
        return 0

    def risk(bins: int) -> Any:
        parts = sample.counts(bins) / size
        return (2 - (size + 1) * parts.dot(parts)) / (extent / bins)

    most = max(_MOST_BINS_TRIED, int(np.sqrt(size)))
    bins = min(range(1, most + 1), key=risk)
    if bins == most:
        warnings.warn(
            "The number of bins estimated may be suboptimal.", RuntimeWarning, stacklevel=4
        )
    return extent / bins


def _doane(sample: Sample) -> Any:
    size = sample.size
    if size <= 2 or not sample.deviation() > 0.0:
        return 0.0
    error = np.sqrt(6.0 * (size - 2) / ((size + 1.0) * (size + 3)))
    skewed = np.log2(1.0 + np.absolute(sample.skewness()) / error)
    return _extent(sample) / (1.0 + np.log2(size) + skewed)


def _freedman_diaconis(sample: Sample) -> Any:
    low, high = sample.quartiles()
    return 2.0 * np.subtract(high, low) * sample.size ** (-1.0 / 3.0)


def _auto(sample: Sample) -> Any:
    return min(max(_freedman_diaconis(sample), _sqrt(sample) / 2), _sturges(sample))


_RULES: Final[dict[str, Callable[[Sample], Any]]] = {
    "auto": _auto,
    "doane": _doane,
    "fd": _freedman_diaconis,
    "rice": lambda sample: _extent(sample) / (2.0 * sample.size ** (1.0 / 3)),
    "scott": lambda sample: (24.0 * np.pi**0.5 / sample.size) ** (1.0 / 3.0) * sample.deviation(),
    "sqrt": _sqrt,
    "stone": _stone,
    "sturges": _sturges,
}
"""By name, the width of a bin."""


# --- integers counted one by one -----------------------------------------------------------------


def check_countable(dtype: np.dtype[Any], weights: np.dtype[Any] | None) -> None:
    """Check the dtypes of `bincount`, as NumPy does.

    Raises
    ------
    DTypeError
        If the items are no integers, or the weights no real numbers that float64 holds.
    """
    if dtype.kind not in "biu":
        raise DTypeError(f"bincount counts integers, not items of {dtype}")
    if weights is not None and not np.can_cast(weights, np.float64):
        raise DTypeError(f"bincount adds up weights in float64, which does not hold {weights}")


def bincount_length(size: int, low: int, high: int, minlength: Any) -> int:
    """Return how many integers `bincount` counts, given the least and the greatest of all.

    Raises
    ------
    ArgumentTypeError
        If `minlength` is no integer.
    ArgumentError
        If an item or `minlength` is negative.
    """
    try:
        length = operator.index(minlength)
    except TypeError:
        raise ArgumentTypeError(f"bincount: minlength={minlength!r} is no integer") from None
    if length < 0:
        raise ArgumentError(f"bincount: minlength={length} must be 0 or more")
    if size and low < 0:
        raise ArgumentError(f"bincount: the items are from {low}; they must be 0 or more")
    return max(length, high + 1) if size else length


def bincount_block(block: Buffer, length: int, weights: Any = None) -> np.ndarray:
    """Return how often a block has each integer below a length, or the sums of its weights."""
    if weights is None:
        return count_numbers(block, length) if block.size else np.zeros(length, np.intp)
    return np.bincount(block.reshape(-1), weights, length)
