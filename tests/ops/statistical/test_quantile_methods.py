"""Quantiles by places in sorted items have NumPy's bits, for every method and dtype."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.ops.statistical._quantile_methods import (
    METHODS,
    check_quantiles,
    count_below,
    find_places,
    interpolate,
    median_places,
)

pytestmark = pytest.mark.host_only  # they make no blocks

DTYPES = ("f8", "f4", "f2", "g", "i8", "i4", "u1", "u8", "m8[s]")


def values_of(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -1000), min(info.max, 1000), shape).astype(dtype)
    if np.dtype(dtype).kind == "m":
        return rng.integers(-10_000, 10_000, shape).astype(dtype)
    zero = rng.choice([0.0, -0.0])  # not both: which of them np.partition puts first is left open
    special = rng.choice(np.array([zero, np.inf, -np.inf, 1.0]), shape)
    plain = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3)
    return np.where(rng.random(shape) < 0.1, special, plain).astype(dtype)


def quantile(values: np.ndarray, q: Any, axis: int | None, method: str, percent: bool) -> Any:
    """Sort, take the items at the places, and interpolate: what a selection does with few items."""
    wanted = check_quantiles("quantile", q, percent)
    lines = values.reshape(-1) if axis is None else np.moveaxis(values, axis, 0)
    ordered = np.sort(lines, axis=0)
    places = find_places(method, len(ordered), wanted.values)
    found = interpolate(ordered[places.previous], ordered[places.following], places, wanted.weak)
    return np.where(np.isnan(ordered[-1]), ordered[-1], found).astype(np.asarray(found).dtype)


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    if not (expected.ndim == 0 and np.isnan(expected)):  # one NaN has the dtype of the data
        assert found.dtype == expected.dtype
    assert np.array_equal(found, expected, equal_nan=True)
    if found.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        assert (np.signbit(found) == np.signbit(expected))[numbers].all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=5)
@given(data=st.data())
def test_quantile_has_numpys_bits(method: str, dtype: str, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = data.draw(st.sampled_from(((1,), (2,), (7,), (10,), (101,), (4, 5), (3, 1, 6))))
    values = values_of(rng, dtype, shape)
    if np.dtype(dtype).kind in "fm" and data.draw(st.integers(0, 3)) == 0:
        values[rng.random(shape) < 0.1] = "NaT" if dtype[0] == "m" else np.nan
    axis = data.draw(st.sampled_from((None, *range(len(shape)))))
    kind = data.draw(st.sampled_from(("float", "int", "f4", "f8", "0-d", "2-d", "list")))
    near = rng.integers(0, 11, 4) / 10  # where items lie exactly
    chosen = rng.choice(np.concatenate([near, rng.random(4), [0.0, 1.0, 0.5]]), (2, 3))
    q: Any = {
        "float": float(chosen[0, 0]),
        "int": int(rng.integers(2)),
        "f4": chosen[0].astype("f4"),
        "f8": chosen[0],
        "0-d": np.asarray(chosen[0, 0]),
        "2-d": chosen,
        "list": chosen[0].tolist(),
    }[kind]
    percent = data.draw(st.booleans())
    if percent:
        q = [100 * v for v in q] if kind == "list" else q * 100
        assert np.max(q) <= 100
    theirs = np.percentile if percent else np.quantile
    same(quantile(values, q, axis, method, percent), theirs(values, q, axis, method=method))


@pytest.mark.parametrize("method", METHODS)
def test_places_do_not_depend_on_the_data(method: str) -> None:
    q = np.linspace(0, 1, 41)
    for count in (1, 2, 3, 10, 40, 41, 1000):
        places = find_places(method, count, q)
        assert places.previous.dtype == places.following.dtype == np.int64
        for found in (places.previous, places.following):
            assert found.min() >= 0
            assert found.max() < count
        assert ((places.following - places.previous) <= 1).all()


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "g", "c16", "m8[s]"])
def test_median_is_the_mean_of_the_middle(dtype: str) -> None:
    rng = np.random.default_rng(2)
    for count in (1, 2, 3, 10, 11):
        values = (rng.integers(0, 200, count) / 2).astype("i8" if dtype == "m8[s]" else "f8")
        values = values.astype(dtype)
        items = np.sort(values)[list(median_places(count))]
        expected = np.median(values)
        found = np.mean(items, axis=0)
        assert found == expected
        assert np.asarray(found).dtype == np.asarray(expected).dtype


@settings(max_examples=50)
@given(data=st.data())
def test_weighted_places_add_up_over_blocks(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    values = rng.permutation(np.arange(100.0))[: sum(sizes)]
    weights = rng.choice([0.0, 0.0, 0.25, 0.5, 3.0], len(values))
    q = np.concatenate([rng.integers(0, 17, 5) / 16, rng.random(2), [0.0, 1.0]])
    q = q.astype(data.draw(st.sampled_from(("f8", "f4"))))
    order = np.argsort(values)
    if not weights.sum() > 0:
        with pytest.raises(ArgumentError, match="weights"):
            count_below(np.cumsum(weights), weights.sum(), q)
        return
    expected = np.quantile(values, q, method="inverted_cdf", weights=weights)
    sums = np.cumsum(weights[order])
    blocks = np.split(sums, np.cumsum(sizes)[:-1])
    counts = sum(count_below(block, sums[-1], q) for block in blocks)
    assert (values[order][np.minimum(counts, len(values) - 1)] == expected).all()


def test_nanquantile_has_the_places_of_what_is_left() -> None:
    values = np.array([3.0, np.nan, 1.0, 2.0, np.nan, 7.0])
    for method in METHODS:
        left = values[~np.isnan(values)]
        expected = np.nanquantile(values, [0.1, 0.5, 0.8], method=method)
        same(quantile(left, [0.1, 0.5, 0.8], 0, method, False), expected)


@pytest.mark.parametrize("q", [-0.1, 1.1, np.nan, [0.5, 2], np.full(20, np.nan), [[-1.0]]])
def test_quantiles_out_of_range_are_refused_as_in_numpy(q: Any) -> None:
    with pytest.raises(ValueError):
        np.quantile(np.arange(3.0), q)
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        check_quantiles("quantile", q)
    with pytest.raises(ArgumentError, match="from 0 to 100"):
        check_quantiles("percentile", np.asarray(q) * 100, True)


def test_other_arguments_are_refused_as_in_numpy() -> None:
    with pytest.raises(ValueError), warnings.catch_warnings():
        np.quantile(np.arange(3.0), np.full((1, 1, 1), 0.5))
    with pytest.raises(ArgumentError, match="3 axes"):
        check_quantiles("quantile", np.full((1, 1, 1), 0.5))
    with pytest.raises(ArgumentTypeError, match="real"):
        check_quantiles("quantile", [1j])
