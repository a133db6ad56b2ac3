"""Kinds of data types that rows compute with, and the dtypes that results have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    DTypeError,
    OutOfRangeError,
)
from distarray.layout import REDUCTIONS

integer = "biu"
real = "biuf"
numeric = "biufc"
floating = "fc"

REFUSALS = (TypeError, ValueError, OverflowError)
"""What NumPy's functions raise for dtypes and values that they do not take."""


def refusal(error: Exception) -> type[DistArrayError]:
    """Return the kind of error for a value that NumPy did not take."""
    if isinstance(error, OverflowError):
        return OutOfRangeError
    return ArgumentTypeError if isinstance(error, TypeError) else ArgumentError


def overflow_error(name: str, error: OverflowError) -> OutOfRangeError:
    """Return the error for dates and durations that 64 bits of their unit do not hold."""
    return OutOfRangeError(f"{name}: {error}; convert to a coarser unit, as x.astype('m8[s]')")


DEFAULT_DTYPE = np.dtype(np.float64)

PLAIN_SCALARS = (bool, int, float, complex)
"""Python's own numbers take the dtype of the array they meet (NEP 50)."""


KINDS = {
    "b": "booleans",
    "i": "integers",
    "u": "unsigned integers",
    "f": "floating point",
    "c": "complex",
    "m": "time spans",
    "M": "dates",
    "S": "bytes",
    "U": "text",
}


def check_kinds(name: str, dtypes: Sequence[Any], kinds: str) -> None:
    """Refuse dtypes of other kinds than a function computes with."""
    if any(dtype.kind not in kinds for dtype in dtypes):
        raise DTypeError(
            f"{name} of {', '.join(map(str, dtypes))}: takes "
            f"{', '.join(KINDS[kind] for kind in kinds)}; convert with astype"
        )


def loop_kinds(ufunc: np.ufunc) -> str:
    """Return the kinds of dtype for which a ufunc has loops, by its first operand."""
    kinds = {np.dtype(loop[0]).kind for loop in ufunc.types}
    return "".join(kind for kind in "biufcmM" if kind in kinds)


def normalize_dtype(dtype: Any, default: Any = DEFAULT_DTYPE) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype, `default` for None.

    Raises
    ------
    ArgumentTypeError
        If it names no data type.
    DTypeError
        If its items are Python objects.
    """
    if dtype is None and default is DEFAULT_DTYPE:
        return DEFAULT_DTYPE
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


def with_length(dtype: np.dtype[Any], source: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype; text without a length (`"S"`, `"U"`) as long as items of `source` need."""
    if dtype.kind not in "SU" or dtype.itemsize:
        return dtype
    return np.empty(0, source).astype(dtype).dtype


def stays_partial(op: str, before: Any, after: Any) -> bool:
    """Tell whether blocks under `Partial(op)` may be computed with before they are reduced.

    Where a rule allows it, and from dtype `before` to `after`: the result must be that of the
    reduced values. An extreme is one of the items, and integers wrap around in any order, at their
    own width. Parts of floating point may overflow, or meet an infinity, where their sum does not.
    """
    return bool(before == after and (REDUCTIONS[op].idempotent or before.kind in integer))


def dtype_key(operand: Any) -> Any:
    """Return what decides an operand's part in promotion: a dtype, or a Python number's class."""
    dtype = getattr(operand, "dtype", None)
    return operand.__class__ if dtype is None else dtype


def stand_in(key: Any) -> Any:
    """Return an empty 1-d block of a dtype, or a number: itself, or one of a class."""
    if isinstance(key, np.dtype):
        return np.empty((0,), key)
    if isinstance(key, type):
        return key(1)
    return key
