"""Names of data types in checkpoints: NumPy's, those that NumPy lacks, and safetensors'."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np

from distarray.core._arguments import check_travels
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
def spelled(dtype: np.dtype[Any]) -> Spec:
    """Return how a dtype is written in a manifest.

    Raises
    ------
    DTypeError
        It holds Python objects, or its items have no bytes.
    """
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


def parsed(spec: Any) -> np.dtype[Any]:
    """Return the NumPy dtype that holds items of a written one.

    Raises
    ------
    CheckpointError
        It names none that this version knows.
    """
    if isinstance(spec, str):
        if spec in _PLAIN:
            return np.dtype(spec)
        if spec in _BITS:
            return np.dtype([(spec, f"u{_BITS[spec]}")])
    elif isinstance(spec, dict) and isinstance(spec.get("numpy"), str):
        try:
            found = np.lib.format.descr_to_dtype(ast.literal_eval(spec["numpy"]))
        except (ValueError, TypeError, SyntaxError) as error:
            raise CheckpointError(f"dtype {spec['numpy']!r} cannot be read: {error}") from None
        if not found.hasobject:
            return found
    raise CheckpointError(f"dtype {spec!r} is not known to this version")


def code_of(spec: Spec) -> str:
    """Return safetensors' code of a dtype; U8, that is bytes, where it has none."""
    return _CODES.get(spec, "U8") if isinstance(spec, str) else "U8"


def is_coded(spec: Spec) -> bool:
    """Tell whether safetensors has a dtype."""
    return isinstance(spec, str) and spec in _CODES


def spec_of_code(code: Any) -> str | None:
    """Return the dtype that a code of safetensors means; None for one that is not known."""
    return _NAMES.get(code)


def shown(spec: Spec) -> str:
    """Return a dtype for messages."""
    return spec if isinstance(spec, str) else spec["numpy"]
