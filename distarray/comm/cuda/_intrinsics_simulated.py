"""What stands for a GPU's instructions where Numba's simulator runs kernels, in host memory."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from typing import Any

import numpy as np


def _loading(kind: Any) -> Callable[[Any], Any]:
    return lambda address: kind.from_address(int(address)).value


def _storing(kind: Any) -> Callable[[Any, Any], None]:
    def store(address: Any, value: Any) -> None:
        kind.from_address(int(address)).value = int(value)

    return store


_kinds = (ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64)
load1, load2, load4, load8 = (_loading(kind) for kind in _kinds)
store1, store2, store4, store8 = (_storing(kind) for kind in _kinds)
entry = _loading(ctypes.c_int64)


def low(value: Any) -> Any:
    return value & 0xFFFFFFFF


def load16(address: Any) -> tuple[Any, Any]:
    if address % 16:
        raise ValueError(f"{address} is not aligned to 16 bytes")
    return load8(address), load8(address + 8)


def store16(address: Any, low: Any, high: Any) -> None:
    if address % 16:
        raise ValueError(f"{address} is not aligned to 16 bytes")
    store8(address, low)
    store8(address + 8, high)


plus, minus, times, root = operator.add, operator.sub, operator.mul, np.sqrt


def double_of(bits: Any) -> Any:
    return np.uint64(bits).view(np.float64)


def bits_of(double: Any) -> Any:
    return np.float64(double).view(np.uint64)


def single_of(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


def bits_of_single(single: Any) -> Any:
    return int(np.float32(single).view(np.uint32))


def single_of_half(bits: Any) -> Any:
    return np.float32(np.uint16(bits).view(np.float16))


def half_of_single(single: Any) -> Any:
    return int(np.float16(single).view(np.uint16))


def _signed(size: int) -> Callable[[Any], Any]:
    return lambda bits: np.float64(np.uint64(bits).view(np.int64).astype(f"i{size}"))


double_of_signed = {size: _signed(size) for size in (1, 2, 4, 8)}


def double_of_unsigned(bits: Any) -> Any:
    return np.float64(bits)


def device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call a function."""
    return function
