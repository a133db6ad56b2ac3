"""The tables about reductions, held against NumPy's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distarray.layout import REDUCTIONS

UFUNCS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
    "any": np.logical_or,
    "all": np.logical_and,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
DTYPES = ["?", "i1", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "c16"]


def samples(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return ordinary and extreme values of a dtype."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, 0, 1, 5, info.max], dtype)
    values = np.array([-np.inf, -1.5, 0.0, 2.0, np.inf]).astype(dtype)
    return values if dtype.kind == "f" else np.array([-3 + 1j, 0, 2 - 5j, 1j], dtype)


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("name", UFUNCS)
def test_identity_changes_no_value(name: str, code: str) -> None:
    dtype = np.dtype(code)
    reduction = REDUCTIONS[name]
    identity = reduction.identity(dtype.kind, dtype.itemsize)
    if dtype.kind not in reduction.kinds:
        assert identity is None
        return
    values = samples(dtype)
    neutral = np.array(identity, dtype)
    assert np.array_equal(UFUNCS[name](values, neutral), values)
    assert np.array_equal(UFUNCS[name](neutral, values), values)


@pytest.mark.parametrize("name", UFUNCS)
def test_idempotent_tells_whether_copies_reduce_to_themselves(name: str) -> None:
    reduction = REDUCTIONS[name]
    dtype = np.dtype("?" if reduction.kinds == "b" else "i4")
    values = samples(dtype)[:4] if dtype.kind == "b" else np.array([0, 3, 5, -7], dtype)
    with np.errstate(over="ignore"):
        same = np.array_equal(UFUNCS[name](values, values), values)
    assert reduction.idempotent is same
    assert reduction.keeps_copies() is same


def test_average_has_no_identity_and_keeps_copies() -> None:
    average = REDUCTIONS["avg"]
    assert average.identity("f", 8) is None
    assert average.keeps_copies()
    assert not average.idempotent
    assert average.linear


def test_only_sum_and_average_are_linear() -> None:
    assert {name for name, row in REDUCTIONS.items() if row.linear} == {"sum", "avg"}
