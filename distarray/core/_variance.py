"""Variance and standard deviation: one pass over the data, states merged in rank order."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.core._base import BaseArray
from distarray.core._dispatch import as_block
from distarray.core._float_errors import alike
from distarray.core._moments import Moments, merge, moments, state_dtype
from distarray.core._reduce import reduced_count
from distarray.core._states import State, StateReduction, Step
from distarray.errors import DTypeError
from distarray.layout import Layout
from distarray.typing import Box, Buffer


class Variance(StateReduction):
    """The mean squared deviation from the mean."""

    def check(self, layout: Layout, dtype: Any, axes: tuple[int, ...]) -> None:
        """Refuse dtypes without arithmetic."""
        del layout, axes
        if dtype.kind not in "biufc":
            raise DTypeError(f"{self.name} of {dtype}: only numbers vary; convert with astype")

    def state_dtypes(self, dtype: Any) -> tuple[Any, ...]:
        """Return the dtypes of mean and sum of squared deviations."""
        mean = state_dtype(dtype)
        return mean, np.empty(0, mean).real.dtype

    def state(self, block: Buffer, step: Step) -> State:
        """Return mean and sum of squared deviations of a block."""
        if not step.axes:
            mean = block.astype(state_dtype(block.dtype))
            return mean, np.abs(mean - mean)  # not 0 where an item is not finite
        found = moments(block, step.axes)
        return found.mean, found.m2

    def merge(self, states: Sequence[State], boxes: Sequence[Box], step: Step) -> State:
        """Merge in rank order."""
        total = Moments(0, None, None)
        for (mean, m2), box in zip(states, boxes, strict=True):
            count = reduced_count(tuple(stop - start for start, stop in box), step.axes)
            total = merge(total, Moments(count, mean, m2))
        return total.mean, total.m2

    def variance(self, x: BaseArray, axis: Any, keepdims: bool, correction: float) -> BaseArray:
        """Return the variance, with `count - correction` as divisor."""
        (_, m2), step = self.run(x, axis, keepdims)
        count = reduced_count(x.shape, step.axes)
        divisor = count - correction
        if divisor <= 0:
            warnings.warn("Degrees of freedom <= 0 for slice", RuntimeWarning, stacklevel=4)
            divisor = 0
        dtype = m2.dtype if x.dtype.char != "e" else np.dtype(np.float16)

        def finished() -> Buffer:
            with np.errstate(divide="ignore", invalid="ignore"):
                result = (m2 if count else m2 * np.nan) / m2.dtype.type(divisor)
            return as_block(result.astype(dtype, copy=False))

        return x._new(alike(step.output.mesh, self.name, finished), step.output)
