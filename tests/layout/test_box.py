"""Boxes, against sets of indices."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.layout import box as boxes
from distarray.typing import Box

interval = st.tuples(st.integers(0, 5), st.integers(0, 5))


@st.composite
def pairs(draw: Any) -> tuple[Box, Box]:
    ndim = draw(st.integers(0, 3))
    one = st.lists(interval, min_size=ndim, max_size=ndim).map(tuple)
    return draw(one), draw(one)


def indices(box: Box) -> set[tuple[int, ...]]:
    """Return all indices in a box."""
    return set(product(*(range(start, stop) for start, stop in box)))


@given(pairs())
@settings(max_examples=200)
def test_operations_agree_with_sets_of_indices(pair: tuple[Box, Box]) -> None:
    a, b = pair
    common = boxes.intersect(a, b)
    shared = indices(a) & indices(b)
    assert (common is None) is (not shared)
    assert common is None or indices(common) == shared
    assert boxes.volume(a) == len(indices(a))
    assert boxes.is_empty(a) is (not indices(a))
    assert boxes.contains(a, b) is (indices(b) <= indices(a))


@given(pairs())
@settings(max_examples=60)
def test_shift_and_slices_find_the_same_elements_in_a_block(pair: tuple[Box, Box]) -> None:
    block, other = pair
    common = boxes.intersect(block, other)
    if common is None:
        return
    array = np.arange(6 ** len(block)).reshape((6,) * len(block))
    local = array[boxes.slices(block)]
    assert local.shape == boxes.shape(block)
    inside = local[boxes.slices(boxes.shift(common, block))]
    assert np.array_equal(inside, array[boxes.slices(common)])


def test_boxes_of_scalars_hold_one_element() -> None:
    assert boxes.intersect((), ()) == ()
    assert boxes.volume(()) == 1
    assert not boxes.is_empty(())


def test_different_numbers_of_axes_raise() -> None:
    with pytest.raises(ValueError):
        boxes.intersect(((0, 1),), ())


@given(st.lists(st.integers(0, 4), max_size=4), st.data())
@settings(max_examples=200)
def test_runs_tile_a_stretch_of_an_array_in_c_order(lengths: list[int], data: Any) -> None:
    array = np.arange(np.prod(lengths, dtype=int)).reshape(lengths)
    start = data.draw(st.integers(0, array.size))
    stop = data.draw(st.integers(start, array.size))
    found = list(boxes.runs(array.shape, start, stop))
    assert len(found) < max(2, 2 * len(lengths))
    items = [int(item) for box in found for item in array[(*boxes.slices(box), ...)].reshape(-1)]
    assert items == list(range(start, stop))
