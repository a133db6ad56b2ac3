"""Arrays that lie in memory in every way that a view can, for hypothesis."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np

LONGEST = {0: 1, 1: 2000, 2: 90, 3: 24, 4: 10}


@st.composite
def shapes(draw: st.DrawFn, most: int = 4) -> tuple[int, ...]:
    ndim = draw(st.integers(0, most))
    return tuple(draw(st.integers(0, LONGEST[ndim])) for _ in range(ndim))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a buffer of bytes, and a view into it: padded, stepped, permuted, turned round."""
    dtype = np.dtype(dtype)
    order = draw(st.permutations(range(len(shape))))
    starts, steps, sizes = [], [], []
    for axis in order:
        start = draw(st.sampled_from((0, 0, 0, 1, 3)))
        step = draw(st.sampled_from((1, 1, 1, 2)))
        starts.append(start)
        steps.append(step)
        sizes.append(start + step * max(shape[axis] - 1, 0) + 1 + draw(st.sampled_from((0, 0, 2))))
    count = int(np.prod(sizes, dtype=int))
    gap = draw(st.sampled_from((0, 1, 5, 8))) * dtype.itemsize
    buffer = np.zeros(count * dtype.itemsize + gap + 64, np.uint8)
    whole = buffer[gap : gap + count * dtype.itemsize].view(dtype).reshape(sizes)
    for i, axis in enumerate(order):
        stop = starts[i] + steps[i] * (shape[axis] - 1) + 1 if shape[axis] else starts[i]
        whole = whole[(slice(None),) * i + (slice(starts[i], stop, steps[i]),)]
    view = whole.transpose(np.argsort(order)) if shape else whole.reshape(())
    for axis in range(len(shape)):
        if draw(st.integers(0, 7)) == 0:
            view = np.flip(view, axis)
    return buffer, view
