"""Kinds of data types that rows accept, and the dtypes that results have."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.errors import ArgumentTypeError, DTypeError

boolean = "b"
integer = "biu"
real = "biuf"
numeric = "biufc"
floating = "fc"
"""Integers are accepted and become floating point, as in NumPy."""
anything = "biufcmMSUV"

DEFAULT_DTYPE = np.dtype(np.float64)

PLAIN_SCALARS = (bool, int, float, complex)
"""Python's own numbers take the dtype of the array they meet (NEP 50)."""


def checked_dtype(dtype: Any, default: Any = DEFAULT_DTYPE) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype, `default` for None.

    Raises
    ------
    ArgumentTypeError
        If it names no data type.
    DTypeError
        If its items are Python objects.
    """
    try:
        found = np.dtype(default if dtype is None else dtype)
    except TypeError:
        raise ArgumentTypeError(
            f"dtype {dtype!r} is not a data type; pass e.g. distarray.float64"
        ) from None
    if found.hasobject:
        raise DTypeError(
            f"dtype {found} holds Python objects, which cannot be sent as memory; use a numeric, "
            "boolean, fixed-width string or structured dtype"
        )
    return found


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
