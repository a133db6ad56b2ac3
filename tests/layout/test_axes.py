"""Axes as arguments name them."""

from __future__ import annotations

import numpy as np
import pytest

from distarray.errors import ArgumentTypeError, AxisError
from distarray.layout import normalize_axes, normalize_axis, read_axes


@pytest.mark.parametrize(
    ("axes", "counted"),
    [(-1, (2,)), ((0, -1), (0, 2)), ([2, 0], (2, 0)), (np.int8(1), (1,)), (None, (0, 1, 2))],
)
def test_axes_are_counted_from_the_first_in_their_order(axes, counted):
    assert normalize_axes(axes, 3) == counted


def test_one_axis_and_several_are_told_apart():
    assert read_axes(np.int64(-2)) == -2
    assert read_axes(np.array([0, -2])) == (0, -2)
    assert normalize_axis(np.int64(-2), 3) == 1
    for several in ((1,), [0, 1], (), None):
        with pytest.raises(ArgumentTypeError, match="one axis"):
            normalize_axis(several, 3)


@pytest.mark.parametrize("axis", [True, np.True_, 1.0, "0", (0, None), {}.items])
def test_what_is_no_integer_is_no_axis(axis):
    with pytest.raises(ArgumentTypeError, match="axes are integers"):
        normalize_axes(axis, 3)


@pytest.mark.parametrize(
    ("axes", "ndim", "message"),
    [
        (3, 3, "axis 3 of an array with 3 axes is out of range; use -3 to 2"),
        ((0, -4), 3, "axis -4 of"),
        (0, 0, "it has none"),
        ((0, -3), 3, "name axis 0 twice"),
    ],
)
def test_axes_out_of_range_or_named_twice_are_refused(axes, ndim, message):
    with pytest.raises(AxisError, match=message):
        normalize_axes(axes, ndim)
