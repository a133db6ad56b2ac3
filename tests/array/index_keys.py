"""Hypothesis strategies for basic indices and for the values written through them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st


@st.composite
def slices(draw: Any, size: int) -> slice:
    """Draw a slice of an axis, also with bounds beyond it and negative steps."""
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.sampled_from((None, None, 1, 2, 3, -1, -1, -2, -3, 7))
    return slice(draw(bound), draw(bound), draw(step))


@st.composite
def keys(draw: Any, shape: tuple[int, ...]) -> Any:
    """Draw a key of integers, slices, `...` and None that is valid for a shape."""
    entries: list[Any] = []
    dots = draw(st.booleans())
    used = draw(st.integers(0, len(shape)))
    front = draw(st.integers(0, used)) if dots else used
    axes = [*range(front), *range(len(shape) - (used - front), len(shape))]
    for place, axis in enumerate(axes):
        if dots and place == front:
            entries.append(Ellipsis)
        if draw(st.integers(0, 5)) == 0:
            entries.append(None)
        if shape[axis] and draw(st.integers(0, 2)) == 0:
            index = draw(st.integers(-shape[axis], shape[axis] - 1))
            entries.append(draw(st.sampled_from((index, np.int64(index)))))
        else:
            entries.append(draw(slices(shape[axis])))
    if dots and Ellipsis not in [e for e in entries if e is Ellipsis]:
        entries.append(Ellipsis)
    if draw(st.integers(0, 5)) == 0:
        entries.append(None)
    if len(entries) == 1 and draw(st.booleans()):
        return entries[0]
    return tuple(entries)


@st.composite
def fitting(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to another, as a value in an assignment may."""
    kept = draw(st.integers(0, len(shape)))
    tail = shape[len(shape) - kept :]
    own = tuple(1 if draw(st.integers(0, 3)) == 0 else size for size in tail)
    if kept == len(shape) and draw(st.integers(0, 4)) == 0:
        own = (1, *own)
    return own
