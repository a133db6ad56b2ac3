"""Counts of blocks with common outer edges add up to NumPy's histograms, edges have its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.ops.searching import _bins as bins_
from distarray.ops.searching._bins import Sample

pytestmark = pytest.mark.host_only  # they make no blocks

DTYPES = ("?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "g")
RULES = ("auto", "doane", "fd", "rice", "scott", "sqrt", "stone", "sturges")


def values_of(rng: np.random.Generator, dtype: str, shape: Any) -> np.ndarray:
    if dtype == "?":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        wide = rng.random() < 0.5
        low, high = (info.min, info.max) if wide else (max(info.min, -5), 20)
        return rng.integers(low, high, shape, dtype, True)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3)
    return (np.round(values, 1) if rng.random() < 0.5 else values).astype(dtype)


def split(values: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(sizes)[:-1])


def extent(values: np.ndarray) -> tuple[int, Any, Any]:
    return (len(values), values.min(), values.max()) if len(values) else (0, 0, 0)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:Converting input")
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=30)
@given(data=st.data())
def test_histogram_of_blocks_is_numpys(dtype: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
    values = values_of(rng, dtype, sum(sizes))
    weights: Any = None
    if data.draw(st.booleans()):
        weights = (rng.integers(-8, 9, len(values)) / 4).astype(
            data.draw(st.sampled_from(("f8", "f4", "i8", "c16", "g")))
        )
    limits = data.draw(st.sampled_from((None, None, (-2, 7), (0.1, 0.7), (3, 3))))
    bins: Any = data.draw(st.integers(1, 12))
    if data.draw(st.booleans()):
        bins = np.sort(values_of(rng, "f8", 5))
        if data.draw(st.booleans()):
            bins = np.sort(rng.permutation(values)[:6])
    try:
        expected, edges = np.histogram(values, bins, limits, weights=weights)
    except ValueError:
        with pytest.raises(ArgumentError, match="Too many bins"):
            bins_.equal_edges(bins, bins_.outer_edges(*extent(values), limits), dtype)
        return
    wanted = bins_.check_bins("histogram", bins)
    countable = bins_.as_countable(values)
    outer = None
    if type(wanted) is int:
        outer = bins_.outer_edges(*extent(countable), limits)
        same(bins_.equal_edges(wanted, outer, countable.dtype), edges)
    else:
        same(wanted, edges)
    parts = split(countable, sizes)
    weighing = [None] * len(parts) if weights is None else split(weights, sizes)
    counts = [
        bins_.count_block(part, wanted, outer, own)
        for part, own in zip(parts, weighing, strict=True)
    ]
    total = np.add.reduce(counts, dtype=counts[0].dtype)
    same(total, expected)
    if weights is None and total.sum() and (np.diff(edges) > 0).all():
        same(bins_.density(total, edges), np.histogram(values, bins, limits, density=True)[0])


@settings(max_examples=40)
@given(data=st.data())
def test_histogram_of_dimensions_is_numpys(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    ndim = data.draw(st.integers(1, 3))
    dtype = data.draw(st.sampled_from(("f8", "f4", "i4", "u1")))
    sample = values_of(rng, dtype, (sum(sizes), ndim))
    weights = None if data.draw(st.booleans()) else rng.integers(-8, 9, len(sample)) / 4
    bins: Any = data.draw(st.sampled_from((3, "list", "mixed")))
    if bins == "list":
        bins = [int(n) for n in rng.integers(1, 6, ndim)]
    elif bins == "mixed":
        bins = [int(n) for n in rng.integers(1, 6, ndim)]
        bins[0] = np.sort(rng.standard_normal(4) * 5)
    limits = data.draw(st.sampled_from((None, "some")))
    if limits:
        limits = [None if rng.random() < 0.5 else (-1.5, 4) for _ in range(ndim)]
    expected, theirs = np.histogramdd(sample, bins, limits, weights=weights)
    lows, highs = ([0] * ndim, [0] * ndim)
    if len(sample):
        lows, highs = list(sample.min(axis=0)), list(sample.max(axis=0))
    edges = bins_.edges_of_dimensions(bins, limits, len(sample), lows, highs)
    for own, other in zip(edges, theirs, strict=True):
        same(own, other)
    weighing = [None] * len(sizes) if weights is None else split(weights, sizes)
    counts = sum(
        bins_.count_block_of_dimensions(part.T, edges, own)
        for part, own in zip(split(sample, sizes), weighing, strict=True)
    )
    same(counts, expected)
    if weights is None and counts.sum() and all((np.diff(own) > 0).all() for own in edges):
        found = bins_.density_of_dimensions(counts, edges)
        same(found, np.histogramdd(sample, bins, limits, density=True)[0])


def sample_of(values: np.ndarray, outer: tuple[Any, Any]) -> Sample:
    def skewness() -> Any:
        scaled = (values - np.mean(values)) / np.std(values)
        return np.mean(scaled**3)

    return Sample(
        values.dtype,
        len(values),
        *extent(values)[1:],
        deviation=lambda: np.std(values),
        skewness=skewness,
        quartiles=lambda: tuple(np.percentile(values, [25, 75])),
        counts=lambda bins: np.histogram(values, bins, outer)[0],
    )


@pytest.mark.filterwarnings("ignore:The number of bins estimated")
@pytest.mark.parametrize("rule", RULES)
def test_rules_give_numpys_number_of_bins(rule: str) -> None:
    rng = np.random.default_rng(3)
    for dtype in ("f8", "f4", "i4", "u1", "i1"):
        for count in (0, 1, 2, 3, 50, 700):
            for limits in (None, (-1.0, 3.5)):
                values = (rng.gamma(2, 3, count) + rng.integers(0, 2, count)).astype(dtype)
                if count == 3:
                    values[:] = 7
                outer = bins_.outer_edges(*extent(values), limits)
                inside = values[(values >= outer[0]) & (values <= outer[1])]
                expected = np.histogram_bin_edges(values, rule, limits)
                found = bins_.estimate_bins(rule, sample_of(inside, outer), outer)
                assert found == len(expected) - 1
                same(bins_.equal_edges(found, outer, values.dtype), expected)


@settings(max_examples=40)
@given(data=st.data())
def test_bincount_of_blocks_is_numpys(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    dtype = data.draw(st.sampled_from(("?", "u1", "i4", "i8", "u8")))
    values = rng.integers(0, 2 if dtype == "?" else 30, sum(sizes)).astype(dtype)
    kind = data.draw(st.sampled_from((None, "f8", "f4", "i4", "?")))
    weights = None if kind is None else (rng.integers(-8, 9, len(values)) / 4).astype(kind)
    minlength = data.draw(st.sampled_from((0, 3, 50)))
    expected = np.bincount(values, weights, minlength)
    bins_.check_countable(values.dtype, None if weights is None else weights.dtype)
    length = bins_.bincount_length(*extent(values), minlength)
    weighing = [None] * len(sizes) if weights is None else split(weights, sizes)
    counts = [
        bins_.bincount_block(part, length, own)
        for part, own in zip(split(values, sizes), weighing, strict=True)
    ]
    if weights is None or len(values):
        same(np.add.reduce(counts), expected)
    else:
        assert (np.add.reduce(counts) == expected).all()


@pytest.mark.parametrize("values", [[0.0, np.nan], [0.0, np.inf], [-np.inf]])
def test_items_that_are_not_finite_are_refused_as_in_numpy(values: list[float]) -> None:
    with pytest.raises(ValueError):
        np.histogram(values)
    with pytest.raises(ArgumentError, match="range="):
        bins_.outer_edges(len(values), np.min(values), np.max(values))


def test_arguments_are_refused_as_in_numpy() -> None:
    items = np.arange(5)
    for limits in ((3, 2), (0, np.inf), (np.nan, 1)):
        with pytest.raises(ValueError):
            np.histogram(items, range=limits)
        with pytest.raises(ArgumentError, match="range="):
            bins_.outer_edges(5, 0, 4, limits)
    for bins in (0, -2, [3, 2, 1], [[1, 2]]):
        with pytest.raises(ValueError):
            np.histogram(items, bins)
        with pytest.raises(ArgumentError, match="histogram: bins"):
            bins_.check_bins("histogram", bins)
    with pytest.raises(TypeError):
        np.histogram(items, 2.5)
    with pytest.raises(ArgumentTypeError):
        bins_.check_bins("histogram", 2.5)
    with pytest.raises(ArgumentError, match="auto, doane"):
        bins_.estimate_bins("best", sample_of(items, (0, 4)), (0, 4))
    for bins, limits in (([3, 3, 3], None), (3, [None] * 3)):
        with pytest.raises(ValueError):
            np.histogramdd(np.zeros((4, 2)), bins, limits)
        with pytest.raises(ArgumentError, match="for 3 dimensions of 2"):
            bins_.edges_of_dimensions(bins, limits, 4, [0, 0], [0, 0])
    for low, length, error in ((-1, 0, ArgumentError), (0, -1, ArgumentError)):
        with pytest.raises(ValueError):
            np.bincount([low], minlength=length)
        with pytest.raises(error):
            bins_.bincount_length(1, low, low, length)
    with pytest.raises(ArgumentTypeError):
        bins_.bincount_length(1, 0, 0, None)
    for dtype, weights in (("f8", None), ("i8", "c16"), ("i8", "g")):
        with pytest.raises(TypeError):
            np.bincount(np.ones(1, dtype), None if weights is None else np.ones(1, weights))
        with pytest.raises(DTypeError, match="bincount"):
            bins_.check_countable(np.dtype(dtype), weights and np.dtype(weights))
