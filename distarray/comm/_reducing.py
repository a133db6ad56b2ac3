"""What a reduction does to values: how they combine, and in which dtype they are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from distarray.errors import ArgumentError, DTypeError

_NUMBERS: Final = "biufc"
REDUCIBLE: Final[dict[str, str]] = {
    "sum": _NUMBERS,
    "prod": _NUMBERS,
    "avg": _NUMBERS,
    "min": _NUMBERS,
    "max": _NUMBERS,
    "any": "b",
    "all": "b",
    "band": "biu",
    "bor": "biu",
    "bxor": "biu",
}
"""Kinds of dtype that each reduction takes."""

_ON_BOOL: Final = {
    "sum": "any",
    "prod": "all",
    "min": "all",
    "max": "any",
    "band": "all",
    "bor": "any",
}
"""What the arithmetic reductions are among truth values, as in NumPy."""

_COMBINE: Final[dict[str, np.ufunc]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def combine(target: np.ndarray, other: np.ndarray, op: str) -> None:
    """Set ``target`` to ``target op other``, by NumPy's rules (NaN propagates in min and max)."""
    with np.errstate(all="ignore"):
        _COMBINE[op](target, other, out=target)


def reduce_in_order(sources: Sequence[np.ndarray], op: str, out: np.ndarray) -> None:
    """Set ``out`` to ``sources[0] op sources[1] op ...``, evaluated in that order."""
    out[...] = sources[0]
    function = _COMBINE[op]
    with np.errstate(all="ignore"):
        for source in sources[1:]:
            function(out, source, out=out)


def plain_ufunc(op: str, dtype: np.dtype[Any]) -> np.ufunc | None:
    """Return what reduces values of a dtype as they are; None where ``prepare_reduction`` must.

    For "avg" the sum, still to be divided.
    """
    if dtype.kind not in REDUCIBLE.get(op, "") or not dtype.isnative:
        return None
    if (dtype.kind == "f" and dtype.itemsize == 2) or (op == "avg" and dtype.kind in "biu"):
        return None
    op = "sum" if op == "avg" else op
    return _COMBINE[_ON_BOOL.get(op, op) if dtype.kind == "b" else op]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction as the transports see it.

    Attributes
    ----------
    wire
        The values to send: native byte order, a dtype that holds the sum, C-contiguous, 1-d.
    op
        One of the ops of ``combine``.
    dtype
        Of the result.
    finish
        Makes the result out of the reduced wire values; None where they are the result.
    """

    wire: np.ndarray
    op: str
    dtype: np.dtype[Any]
    finish: Callable[[np.ndarray], np.ndarray] | None


def prepare_reduction(array: np.ndarray, op: str, n: int, bfloat16: bool = False) -> Reduction:
    """Return how to reduce ``array`` over ``n`` ranks.

    Sums of float16 and bfloat16 accumulate in float32 and are rounded once. Averages of integers
    and truth values are float64, as ``np.mean``'s are.

    Raises
    ------
    ArgumentError
        ``op`` is not a reduction.
    DTypeError
        The dtype has no such reduction.
    """
    dtype = array.dtype
    if is_bfloat16(dtype):
        array, bfloat16 = array.view(np.uint16), True
    kinds = REDUCIBLE.get(op)
    if kinds is None:
        raise ArgumentError(f"op={op!r} is not a reduction; choose from {', '.join(REDUCIBLE)}")
    kind = "f" if bfloat16 else dtype.kind
    if bfloat16 and array.dtype != np.uint16:
        raise DTypeError(f"bfloat16 values travel as uint16, not as {dtype}; view them as uint16")
    if kind not in kinds:
        raise DTypeError(
            f"{dtype} values cannot be reduced by {op!r}, which takes dtypes of kind "
            f"{' '.join(kinds)}; convert the array first"
        )
    flat = array.reshape(-1)
    if bfloat16:
        return Reduction(
            widen_bfloat16(flat),
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
        return Reduction(flat, _ON_BOOL.get(op, op), dtype, None)
    if kind == "f" and dtype.itemsize == 2:
        return Reduction(flat.astype(np.float32), op, dtype, lambda sums: _narrow(sums, dtype))
    if not dtype.isnative:
        native = flat.astype(dtype.newbyteorder("="))
        return Reduction(native, op, dtype, lambda values: values.astype(dtype))
    return Reduction(flat, op, dtype, None)


def divide(sums: np.ndarray, n: int) -> np.ndarray:
    """Divide sums by a number of ranks, in place: the parts of complex values each by itself."""
    with np.errstate(all="ignore"):
        if sums.dtype.kind == "c":
            sums.real /= n
            sums.imag /= n
        else:
            sums /= n
    return sums


def _narrow(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return values.astype(dtype)


BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
"""bfloat16 without a package that registers it: the bits, in a structure of that name."""


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is `BFLOAT16`, or the one that ``ml_dtypes`` registers with NumPy."""
    return dtype.kind == "V" and (dtype.name == "bfloat16" or dtype == BFLOAT16)


def widen_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return float32 values of bfloat16 bits held as uint16."""
    widened: np.ndarray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return widened


def narrow_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return float32 values rounded to bfloat16 (to nearest, ties to even), as uint16 bits."""
    bits = values.view(np.uint32)
    # Half a unit less one, plus the last kept bit: a tie goes up only from an odd value.
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    nan = np.isnan(values)
    if nan.any():  # the addition could carry a NaN over to an infinity or to zero
        rounded = np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded)
    return rounded.astype(np.uint16)
