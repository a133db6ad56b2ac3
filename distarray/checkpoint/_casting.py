"""Values of one dtype from bytes of another, also for those that NumPy lacks."""

from __future__ import annotations

import numpy as np

from distarray.checkpoint._dtypes import Spec, shown
from distarray.comm import widen_bfloat16
from distarray.errors import DTypeError


def can_cast(source: Spec, target: Spec) -> bool:
    """Tell whether values may be converted: between numbers, and not from complex to real."""
    a, b = _kind(source), _kind(target)
    if source == target:
        return True
    if a is None or b is None or (target not in _NARROW and not _is_numpy(target)):
        return False
    return bool(np.can_cast(a, b, "same_kind"))


def cast(values: np.ndarray, source: Spec, target: np.ndarray, target_spec: Spec) -> None:
    """Fill ``target`` with converted values; items are the bits of dtypes that NumPy lacks.

    Raises
    ------
    DTypeError
        There is no such conversion.
    """
    if not can_cast(source, target_spec):
        raise DTypeError(f"{shown(source)} cannot be converted to {shown(target_spec)}")
    plain = widened(values, source)
    if target_spec == "bfloat16":
        bits = plain.astype(np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
        nan = np.isnan(plain)
        target.view(np.uint16)[...] = np.where(nan, np.uint16(0x7FC0), rounded)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        target[...] = plain.astype(target.dtype)


def widened(values: np.ndarray, spec: Spec) -> np.ndarray:
    """Return the values that bits stand for, exactly: bfloat16 and float8 as float32."""
    if spec == "bfloat16":
        return widen_bfloat16(values.view(np.uint16))
    if spec == "float8_e5m2":
        return (
            (values.view(np.uint8).astype(np.uint16) << np.uint16(8)).view(np.float16).astype("f4")
        )
    if spec == "float8_e4m3fn":
        return _e4m3fn()[values.view(np.uint8)]
    if isinstance(spec, str) and spec.startswith("float8"):
        raise DTypeError(f"values of {spec} cannot be converted here; read them as bits")
    return values


_NARROW = ("bfloat16",)


def _is_numpy(spec: Spec) -> bool:
    return isinstance(spec, str) and not spec.startswith(("bfloat16", "float8"))


def _kind(spec: Spec) -> np.dtype | None:
    """Return a dtype of NumPy of the same kind; None where there is no conversion."""
    if not isinstance(spec, str):
        return None
    if spec in ("bfloat16", "float8_e5m2", "float8_e4m3fn"):
        return np.dtype(np.float32)
    return None if spec.startswith("float8") else np.dtype(spec)


def _e4m3fn() -> np.ndarray:
    """Return the values of all bytes: a sign, four bits of exponent, three of mantissa."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    value = np.where(
        exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(float) - 10)
    )
    value[(byte & 127) == 127] = np.nan
    return np.where(byte & 128, -value, value).astype(np.float32)
