"""Reductions over axes: sums, products, extremes, truth, counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.core import in_unit, reduce_block, reduction
from distarray.typing import Buffer

_SUMS = ("axis", "dtype", "out", "keepdims", "initial")
_EXTREMES = ("axis", "out", "keepdims", "initial")
_TRUTHS = ("axis", "out", "keepdims")


def by(ufunc: Any, always: Any = None) -> Any:
    """Return the local call of a ufunc's reduction; `always` is a fixed dtype."""

    def local(
        block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
    ) -> Buffer:
        dtype = always if dtype is None else dtype
        if extra:  # never on a GPU, whose reductions take no mask
            block, dtype = in_unit(block, dtype)
            return ufunc.reduce(block, axes, dtype, None, keepdims, **extra)
        return reduce_block(ufunc, block, axes, dtype, keepdims)

    return local


def _nonzero(
    block: Buffer, axes: tuple[int, ...], dtype: Any, keepdims: bool, **extra: Any
) -> Buffer:
    del dtype
    if extra:
        block = np.logical_and(block, extra["where"])
    if not _backend.is_numpy(block):
        return (block != 0).sum(axis=axes, dtype=np.intp, keepdims=keepdims)
    return np.asarray(np.count_nonzero(block, axis=axes, keepdims=keepdims), np.intp)


sum = reduction(
    "sum",
    "Sum items over axes; integers are summed at least in int64, as in NumPy.",
    by(np.add),
    "sum",
    _SUMS,
    ufunc=np.add,
)
prod = reduction(
    "prod",
    "Multiply items over axes; integers are multiplied at least in int64.",
    by(np.multiply),
    "prod",
    _SUMS,
    ufunc=np.multiply,
)
min = reduction(
    "min",
    "Return the smallest item over axes; NaN wins.",
    by(np.minimum),
    "min",
    _EXTREMES,
    ufunc=np.minimum,
)
max = reduction(
    "max",
    "Return the largest item over axes; NaN wins.",
    by(np.maximum),
    "max",
    _EXTREMES,
    ufunc=np.maximum,
)
any = reduction(
    "any",
    "Tell whether any item over axes is true.",
    by(np.logical_or, np.bool_),
    "any",
    _TRUTHS,
    ufunc=np.logical_or,
)
all = reduction(
    "all",
    "Tell whether all items over axes are true.",
    by(np.logical_and, np.bool_),
    "all",
    _TRUTHS,
    ufunc=np.logical_and,
)
count_nonzero = reduction(
    "count_nonzero",
    "Count items that are not zero.",
    _nonzero,
    "sum",
    ("axis", "keepdims"),
    rules=(),
)

amin, amax = min, max
