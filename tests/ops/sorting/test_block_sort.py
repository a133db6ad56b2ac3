"""Sorts of blocks are those of NumPy, bit by bit where they are stable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.ops.sorting import _block_sort
from distarray.ops.sorting._block_sort import argsort_block, merge_order, merge_runs, sort_block
from tests.ops.sorting.items import DTYPES, draw_items, identical

pytestmark = pytest.mark.host_only  # they make no blocks

NATIVE = tuple(dtype for dtype in map(np.dtype, DTYPES) if dtype.isnative)
SHAPES = ((0,), (1,), (7,), (60,), (3, 20), (20, 3), (2, 9, 4), (0, 5), (5, 0), (2, 40))


@pytest.fixture(params=[4, 10**9], ids=["fast", "short"])
def _short(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the way of long lines for short ones, too, or never."""
    monkeypatch.setattr(_block_sort, "_NUMPY_ITEMS", request.param)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_stable_sort_and_argsort_are_numpys(dtype: np.dtype[Any], descending: bool) -> None:
    rng = np.random.default_rng(5)
    for shape in SHAPES:
        values = draw_items(rng, dtype, int(np.prod(shape)), bool(len(shape) % 2)).reshape(shape)
        for axis in range(len(shape)):
            lines = np.moveaxis(values, axis, -1)
            source = lines[..., ::-1] if descending else lines
            order = np.argsort(source, kind="stable")
            expected = np.take_along_axis(source, order, -1)
            if descending:
                order, expected = (lines.shape[-1] - 1 - order)[..., ::-1], expected[..., ::-1]
            found = argsort_block(lines, descending=descending)
            assert found.dtype == np.int64
            assert (found == order).all()
            found = sort_block(lines, descending=descending)
            assert identical(found, expected)
            assert found.flags.c_contiguous
            assert not np.shares_memory(found, values)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_sort_of_other_strides_and_not_stable_compares_as_equal(dtype: np.dtype[Any]) -> None:
    values = draw_items(np.random.default_rng(6), dtype, 240, True).reshape(4, 60)[:, ::2]
    for block in (values, values.T, values[::-1, ::-3]):
        for lines in (block, block.T):
            before = lines.copy()
            found = sort_block(lines, stable=False)
            assert identical(lines.copy(), before)
            expected = np.sort(lines)
            if dtype.kind in "fc":
                assert np.array_equal(found, expected, equal_nan=True)
            else:
                both = np.stack([found, expected]).reshape(2, -1)
                ranks = np.searchsorted(np.sort(both, axis=None), both)
                assert (ranks[0] == ranks[1]).all()
            assert identical(sort_block(lines), np.sort(lines, kind="stable"))


@pytest.mark.parametrize("length", [10_000, 500, 16])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_signs_of_zeros_and_payloads_of_nans_stay_in_order(dtype: str, length: int) -> None:
    rng = np.random.default_rng(7)
    values = rng.choice(np.array([0.0, -0.0, 1.0, -np.inf, np.nan, -np.nan]), 10_000).astype(dtype)
    if dtype == "f8":
        payloads = rng.integers(1, 2**50, 10_000) | 0x7FF8 << 48
        values = np.where(np.isnan(values), payloads.view("f8"), values)
    values[5000:] = np.where(values[5000:] == values[5000:], rng.random(5000), values[5000:])
    values = values.reshape(-1, length)
    expected = np.sort(values, kind="stable")
    assert identical(sort_block(values), expected)
    assert (np.signbit(sort_block(values)) == np.signbit(expected)).all()


@pytest.mark.parametrize("shape", [(50_000,), (3, 10_000), (10_000, 3)])
@pytest.mark.parametrize("descending", [False, True])
def test_numbers_of_half_precision_are_in_order(
    shape: tuple[int, ...], descending: bool
) -> None:  # of which NumPy's vector instructions leave some out of it
    rng = np.random.default_rng(0)
    values = rng.choice([0, -0.0, 1, -1, 2, np.nan, -np.nan, np.inf, -np.inf], shape).astype("f2")
    for axis in range(len(shape)):
        lines = np.moveaxis(values, axis, -1)
        expected = np.sort(lines.astype("f4"), kind="stable")
        expected = np.flip(expected, -1) if descending else expected
        for stable in (True, False):
            found = sort_block(lines, stable=stable, descending=descending)
            assert found.dtype == values.dtype
            assert np.array_equal(found, expected, equal_nan=True)
    for count in (2, 9):
        offsets = np.linspace(0, values.size, count + 1).astype(int)
        runs = np.split(values.reshape(-1), offsets[1:-1])
        joined = np.concatenate([sort_block(run) for run in runs])
        found, _ = merge_runs(joined, offsets, stable=False)
        assert np.array_equal(found, np.sort(values.astype("f4"), axis=None), equal_nan=True)


def test_words_that_do_not_fit_beside_positions_are_sorted_to_the_end() -> None:
    rng = np.random.default_rng(8)
    near = 1.0 + np.arange(5000) * 2.0**-52  # apart in the lowest bits alone
    values = rng.permutation(np.concatenate([near, near, rng.standard_normal(5000) * 1e300, [-1]]))
    assert (argsort_block(values) == np.argsort(values, kind="stable")).all()
    large = rng.integers(-(2**63), 2**63 - 1, 20_000)
    large[::3] = large[0]
    assert (argsort_block(large) == np.argsort(large, kind="stable")).all()


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@settings(max_examples=10)
@given(sizes=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 2**32))
def test_merges_are_stable_sorts(dtype: np.dtype[Any], sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = [sort_block(draw_items(rng, dtype, size, True)) for size in sizes]
    whole = np.concatenate([np.zeros(0, dtype), *runs])
    offsets = np.cumsum([0, *sizes])
    assert (merge_order(whole, offsets) == np.argsort(whole, kind="stable")).all()
    expected = np.sort(whole, kind="stable")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_block_sort, "_NUMPY_ITEMS", 16)
        assert identical(merge_runs(whole.copy(), offsets)[0], expected)
        order = np.argsort(whole, kind="stable")
        items, words = merge_runs(whole.copy(), offsets, np.arange(len(whole)))
        assert identical(items, expected)
        assert (words == order).all()
        assert (merge_order(whole, offsets) == np.argsort(whole, kind="stable")).all()
