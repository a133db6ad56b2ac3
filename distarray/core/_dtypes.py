"""Kinds of data types that rows accept, and the dtypes that results have."""

from __future__ import annotations

from typing import Any

import numpy as np

boolean = "b"
integer = "biu"
real = "biuf"
numeric = "biufc"
floating = "fc"
"""Integers are accepted and become floating point, as in NumPy."""
anything = "biufcmMSUV"

PLAIN_SCALARS = (bool, int, float, complex)
"""Python's own numbers take the dtype of the array they meet (NEP 50)."""


def keeps_sums(before: Any, after: Any) -> bool:
    """Tell whether blocks of dtype `before` may be reduced after they became `after`.

    Integers wrap around at their own width, so only the very same dtype will do; inexact types may
    widen.
    """
    if before == after:
        return True
    return before.kind in floating and after.kind in floating and np.can_cast(before, after, "safe")


def dtype_key(operand: Any) -> Any:
    """Return what decides an operand's part in promotion: a dtype, or a Python number's class."""
    dtype = getattr(operand, "dtype", None)
    return operand.__class__ if dtype is None else dtype


def stand_in(operand: Any) -> Any:
    """Return an empty 1-d block of an operand's dtype, or the Python number itself."""
    dtype = getattr(operand, "dtype", None)
    return operand if dtype is None else np.empty((0,), dtype)
