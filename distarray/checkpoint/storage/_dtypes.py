"""Data types in checkpoints: their names in manifests and in safetensors files, and casts.

Items of dtypes that NumPy lacks are kept as bits, and cast by the values that these stand for.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np

from distarray.comm import narrow_bfloat16, widen_bfloat16
from distarray.core import check_travels, parsing
from distarray.errors import CheckpointError, DTypeError

Spec = str | dict[str, str]
"""How a dtype is written: a name, or ``{"numpy": description}`` for what has none."""

_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
_NAMES = {code: name for name, code in _CODES.items()}
_BITS = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
}
"""Types that NumPy lacks, by bytes an item. Their bits are held in a structure of that name."""

_PLAIN = frozenset(name for name in (*_CODES, "complex128") if name not in _BITS)


@lru_cache(maxsize=256)
def spec_of_dtype(dtype: np.dtype[Any]) -> Spec:
    """Return how a dtype is written in a manifest."""
    check_travels(dtype)
    if not dtype.itemsize:
        raise DTypeError(
            f"items of dtype {dtype} have no bytes, of which a checkpoint could hold them; leave "
            "the array out, or convert it"
        )
    if dtype.name in _PLAIN and dtype.isnative:
        return dtype.name
    if dtype.kind == "V":
        if dtype.name in _BITS:  # as registered by ml_dtypes
            return dtype.name
        if dtype.names is not None and len(dtype.names) == 1 and dtype.names[0] in _BITS:
            return dtype.names[0]
    return {"numpy": repr(np.lib.format.dtype_to_descr(dtype))}


def dtype_of_spec(spec: Any) -> np.dtype[Any]:
    """Return the NumPy dtype that holds items of a written one."""
    if isinstance(spec, str):
        if spec in _PLAIN:
            return np.dtype(spec)
        if spec in _BITS:
            return np.dtype([(spec, f"u{_BITS[spec]}")])
    elif isinstance(spec, dict) and isinstance(spec.get("numpy"), str):
        try:
            with parsing:
                found = np.lib.format.descr_to_dtype(ast.literal_eval(spec["numpy"]))
        except (ValueError, TypeError, SyntaxError) as error:
            raise CheckpointError(f"dtype {spec['numpy']!r} cannot be read: {error}") from None
        if not found.hasobject:
            return found
    raise CheckpointError(f"dtype {spec!r} is not known to this version")


def has_filling(dtype: np.dtype[Any]) -> bool:
    """Tell whether items have bytes that mean nothing, and may differ between equal ones."""
    dtype = dtype.base
    if dtype.names is None:
        return dtype.char in "gG"
    fields = [dtype[name] for name in dtype.names]
    return sum(one.itemsize for one in fields) < dtype.itemsize or any(map(has_filling, fields))


def code_of(spec: Spec) -> str | None:
    """Return safetensors' code of a dtype; None where it has none."""
    return _CODES.get(spec) if isinstance(spec, str) else None


def spec_of_code(code: Any) -> str | None:
    """Return the dtype that a code of safetensors means; None for one that is not known."""
    return _NAMES.get(code)


def describe(spec: Spec) -> str:
    """Return a dtype for messages."""
    return spec if isinstance(spec, str) else spec["numpy"]


def can_cast(source: Spec, target: Spec) -> bool:
    """Tell whether values may be converted: between numbers, and not from complex to real."""
    if source == target:
        return True
    a, b = _kind(source), _kind(target)
    if a is None or b is None or str(target).startswith("float8"):
        return False
    return bool(np.can_cast(a, b, "same_kind"))


def cast(values: np.ndarray, source: Spec, target: np.ndarray, target_spec: Spec) -> None:
    """Fill ``target`` with converted values; items are the bits of dtypes that NumPy lacks."""
    if not can_cast(source, target_spec):
        raise DTypeError(f"{describe(source)} cannot be converted to {describe(target_spec)}")
    plain = widen(values, source)
    with np.errstate(over="ignore", invalid="ignore"):
        if target_spec == "bfloat16":
            target.view(np.uint16)[...] = narrow_bfloat16(plain.astype(np.float32))
        else:
            target[...] = plain.astype(target.dtype)


def widen(values: np.ndarray, spec: Spec) -> np.ndarray:
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
