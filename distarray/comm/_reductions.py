"""Reductions of values: what combines two, in which dtype they add up, how bfloat16 rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.errors import ArgumentError, DTypeError
from distarray.layout import REDUCTIONS
from distarray.typing import Buffer

ON_BOOL: Final = {
    "sum": "any",
    "prod": "all",
    "min": "all",
    "max": "any",
    "band": "all",
    "bor": "any",
}
"""What the arithmetic reductions are among truth values, as in NumPy."""

UFUNCS: Final = {
    "sum": "add",
    "avg": "add",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
    "any": "logical_or",
    "all": "logical_and",
    "band": "bitwise_and",
    "bor": "bitwise_or",
    "bxor": "bitwise_xor",
}
"""What combines two values, in NumPy and in CuPy; an average is a sum, divided once."""

COMBINE: Final[dict[str, np.ufunc]] = {op: getattr(np, name) for op, name in UFUNCS.items()}


class _SilentCalls(threading.local):
    """Calls, one at a time in a thread, of which floating-point errors are not told.

    `np.errstate` sets what a context has, which takes twice as long as to add up some hundred
    numbers (2.4 us, as measured on Zen 3); to call in a context that has it takes a tenth.
    """

    def __init__(self) -> None:
        context = Context()
        context.run(np.seterr, all="ignore")
        self.call = context.run


unheard = _SilentCalls()


def plain_ufunc(op: str, dtype: np.dtype[Any]) -> np.ufunc | None:
    """Return what reduces values of a dtype as they are; None where ``prepare_reduction`` must.

    For "avg" the sum, still to be divided.
    """
    if dtype.kind not in _kinds(op) or not dtype.isnative:
        return None
    if (dtype.kind == "f" and dtype.itemsize == 2) or (op == "avg" and dtype.kind in "biu"):
        return None
    return COMBINE[ON_BOOL.get(op, op) if dtype.kind == "b" else op]


def _kinds(op: str) -> str:
    """Return the kinds of dtype that a reduction takes; none where there is no such reduction."""
    return REDUCTIONS[op].kinds if op in REDUCTIONS else ""


class Reduction(NamedTuple):
    """A reduction as the transports see it.

    ``wire`` has the values to send: 1-d, C-contiguous, in native byte order and a dtype that holds
    the sum, to be reduced by ``op``, one of the ops of ``COMBINE``. ``finish`` makes the result, of
    ``dtype``, out of them; it is None where they are the result.
    """

    wire: np.ndarray
    op: str
    dtype: np.dtype[Any]
    finish: Callable[[np.ndarray], np.ndarray] | None


def prepare_reduction(array: np.ndarray, op: str, n: int) -> Reduction:
    """Return how to reduce ``array`` over ``n`` ranks.

    Sums of float16 and bfloat16 accumulate in float32 and are rounded once. Averages of integers
    and truth values are float64, as ``np.mean``'s are. An ArgumentError says that ``op`` is no
    reduction, a DTypeError that the dtype has no such one.
    """
    dtype = array.dtype
    kinds = _kinds(op)
    if not kinds:
        raise ArgumentError(f"op={op!r} is not a reduction; choose from {', '.join(REDUCTIONS)}")
    bfloat16 = is_bfloat16(dtype)
    kind = "f" if bfloat16 else dtype.kind
    if kind not in kinds:
        raise DTypeError(
            f"{dtype} values cannot be reduced by {op!r}, which takes dtypes of kind "
            f"{' '.join(kinds)}; convert the array first"
        )
    flat = array.reshape(-1)
    if bfloat16:
        return Reduction(
            widen_bfloat16(flat.view(np.uint16)),
            "sum" if op == "avg" else op,
            dtype,
            lambda sums: narrow_bfloat16(divide(sums, n) if op == "avg" else sums).view(dtype),
        )
    if op == "avg":
        result = np.dtype(np.float64) if kind in "biu" else dtype
        wire = result.newbyteorder("=") if result.itemsize > 2 else np.dtype(np.float32)
        flat = flat.astype(wire, copy=False)
        return Reduction(flat, "sum", result, lambda sums: divide(sums, n).astype(result))
    if kind == "b":
        return Reduction(flat, ON_BOOL.get(op, op), dtype, None)
    if kind == "f" and dtype.itemsize == 2:
        return Reduction(flat.astype(np.float32), op, dtype, lambda sums: _narrow(sums, dtype))
    if not dtype.isnative:
        native = flat.astype(dtype.newbyteorder("="))
        return Reduction(native, op, dtype, lambda values: values.astype(dtype))
    return Reduction(flat, op, dtype, None)


@lru_cache(maxsize=256)
def reduced_dtype(dtype: np.dtype[Any], op: str) -> np.dtype[Any]:
    """Return the dtype of a reduction's result; the errors are those of ``prepare_reduction``."""
    return prepare_reduction(np.empty(0, dtype), op, 1).dtype


def divide(sums: Buffer, n: int) -> Buffer:
    """Divide sums by a number of ranks, in place.

    Real and imaginary parts are divided apart: a complex division makes NaN of infinities.
    """
    with np.errstate(all="ignore"):
        for values in (sums.real, sums.imag) if sums.dtype.kind == "c" else (sums,):
            values /= n
    return sums


def _narrow(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return values.astype(dtype)


BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""bfloat16 without a package that registers it: the bits, in a structure of that name."""


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is `BFLOAT16`, or the one that ``ml_dtypes`` registers with NumPy."""
    return dtype.kind == "V" and (dtype.name == "bfloat16" or dtype == BFLOAT16)


def widen_bfloat16(bits: Buffer, xp: Any = np) -> Buffer:
    """Return float32 values of bfloat16 bits held as uint16, in the array library ``xp``."""
    return (bits.astype(xp.uint32) << 16).view(xp.float32)


def narrow_bfloat16(values: Buffer, xp: Any = np) -> Buffer:
    """Return float32 values rounded to bfloat16 (to nearest, ties to even), as uint16 bits."""
    bits = values.view(xp.uint32)
    # Half a unit less one, plus the last kept bit: a tie goes up only from an odd value.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # The addition could carry a NaN over to an infinity or to zero.
    return xp.where(xp.isnan(values), (bits >> 16) | 0x40, rounded).astype(xp.uint16)
