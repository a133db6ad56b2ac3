"""Where the smallest or largest item is: the first in global C order, NaN before all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.core._base import BaseArray
from distarray.core._dispatch import as_block
from distarray.core._states import State, StateReduction, Step
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.layout import Layout
from distarray.typing import Box, Buffer

_LAST = np.iinfo(np.int64).max


class Extreme(StateReduction):
    """The place of an extreme: a state is its value and its global index."""

    def __init__(self, name: str, place: Callable[..., Any], extreme: Callable[..., Any]) -> None:
        super().__init__(name)
        self.place = place
        self.extreme = extreme

    def check(self, layout: Layout, dtype: Any, axes: tuple[int, ...]) -> None:
        """Refuse axes without items, several axes, and dtypes without order."""
        if any(layout.shape[axis] == 0 for axis in axes):
            raise ArgumentError(
                f"{self.name} over axes {axes} of an array of shape {layout.shape}: there is no "
                "item to find; check x.size first"
            )
        if dtype.kind not in "biufcmM":
            raise DTypeError(f"{self.name} of {dtype}: items must be ordered numbers or times")

    def state_dtypes(self, dtype: Any) -> tuple[Any, ...]:
        """Return the dtypes of value and index."""
        return dtype, np.dtype(np.int64)

    def state(self, block: Buffer, step: Step) -> State:
        """Return value and global index of the first extreme of a block."""
        box = step.source.local_box()
        assert box is not None, "only processes of the mesh have items"
        if len(step.axes) == 1 and block.ndim > 1:
            axis = step.axes[0]
            index = self.place(block, axis=axis, keepdims=True)
            return np.take_along_axis(block, index, axis), index + box[axis][0]
        flat = int(self.place(block))
        local = np.unravel_index(flat, block.shape) if block.ndim else ()
        place = tuple(start + int(i) for (start, _), i in zip(box, local, strict=True))
        first = np.ravel_multi_index(place, step.source.shape) if place else 0
        value = as_block(block[local]).reshape(step.shape)
        return value, np.full(step.shape, first, np.int64)

    def merge(self, states: Sequence[State], boxes: Sequence[Box], step: Step) -> State:
        """Take the best value, and of equal ones the lowest index."""
        del boxes, step
        values = np.stack([value for value, _ in states])
        indices = np.stack([index for _, index in states])
        best = self.extreme(values, axis=0)
        matches = (values == best) | (np.isnan(values) if values.dtype.kind in "fcmM" else False)
        return best, np.where(matches, indices, _LAST).min(axis=0)

    def find(self, x: BaseArray, axis: Any, keepdims: bool) -> BaseArray:
        """Return the indices, int64."""
        if isinstance(axis, (tuple, list)):
            raise ArgumentTypeError(
                f"{self.name}(axis={axis!r}): takes one axis, or None for all; reshape first"
            )
        (_, index), step = self.run(x, axis, keepdims)
        return x._new(index, step.output)
