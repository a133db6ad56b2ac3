"""Hypothesis strategies for keys with index arrays, distributed ones among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.array.index_keys import fitting, slices
from tests.array.strategies import Case, cases


@st.composite
def indices(draw: Any, size: int, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> Any:
    """Draw an index array for an axis: a `Case`, an array or a list."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    low = draw(st.sampled_from((-size, 0)))
    dtype = draw(st.sampled_from((np.int64, np.int64, np.int32, np.uint8 if low == 0 else np.int8)))
    values = rng.integers(low, size, size=shape).astype(dtype)
    kind = draw(st.sampled_from(("distributed", "distributed", "plain", "list")))
    if kind == "plain" or (kind == "list" and values.ndim > 1 and not values.size):
        return values  # lists without items do not tell their shape
    if kind == "list":
        return values.tolist()
    case: Case = draw(cases((dtype,), (), mesh_shape, shape))
    case.values[0] = values
    return case


@st.composite
def array_keys(draw: Any, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draw a key with at least one index array, for a shape that has an axis with items."""
    together = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 5, 0, 9)), min_size=1, max_size=2)))
    places = [axis for axis, size in enumerate(shape) if size]
    first = draw(st.sampled_from(places))
    used = draw(st.integers(first + 1, len(shape)))
    dots = draw(st.integers(0, used)) if draw(st.booleans()) else None
    after = 0 if dots is None else used - dots
    axes = [*range(used - after), *range(len(shape) - after, len(shape))]
    axes = axes if first in axes else list(range(len(shape)))
    key: list[Any] = []
    for place, axis in enumerate(axes):
        if place == dots:
            key.append(Ellipsis)
        if draw(st.integers(0, 5)) == 0:
            key.append(None)
        kind = draw(st.sampled_from(("array", "slice", "integer")))
        if axis == first or (kind == "array" and shape[axis]):
            own = together if axis == first else draw(fitting(together))
            own = own[max(len(own) - len(together), 0) :]
            key.append(draw(indices(shape[axis], own or (1,), mesh_shape)))
        elif kind == "integer" and shape[axis]:
            key.append(draw(st.integers(-shape[axis], shape[axis] - 1)))
        else:
            key.append(draw(slices(shape[axis])))
    if dots == len(axes):
        key.append(Ellipsis)
    return tuple(key)


def mapped(key: Any, use: Callable[[Case], Any]) -> Any:
    """Return a key with its cases made arrays, lists and others as they are."""
    if isinstance(key, tuple):
        return tuple(use(one) if isinstance(one, Case) else one for one in key)
    return use(key) if isinstance(key, Case) else key


def on_numpy(key: Any) -> Any:
    """Return a key for NumPy's arrays: empty lists are of integers."""
    key = mapped(key, lambda case: case.value)
    return tuple(np.asarray(e, np.int64) if isinstance(e, list) else e for e in key)


def on_ranks(key: Any) -> Any:
    """Return a key for distributed arrays."""
    return mapped(key, lambda case: case.build())
