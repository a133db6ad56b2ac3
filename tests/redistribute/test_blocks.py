"""The blocks that meet a box are found without looking at the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.layout import Layout
from distarray.layout import box as boxes
from distarray.redistribute._blocks import overlaps
from tests.layout.strategies import layouts


@given(layouts(), st.data())
@settings(max_examples=100)
def test_blocks_that_meet_a_box_tile_it(layout: Layout, data: Any) -> None:
    box = tuple(
        tuple(sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))))
        for n in layout.shape
    )
    held = np.zeros(layout.shape, int)
    unsharded = (*layout.partial_axes, *layout.replicated_axes)
    for coordinate, part, origin in overlaps(layout, box):
        assert all(coordinate[axis] == 0 for axis in unsharded)
        assert not boxes.is_empty(part)
        block = layout.local_box(coordinate)
        assert block is not None
        assert boxes.intersect(block, box) == part
        assert origin == tuple(start for start, _ in block)
        held[boxes.slices(part)] += 1
    inside = np.zeros(layout.shape, int)
    inside[boxes.slices(box)] = 1
    assert np.array_equal(held, inside)
