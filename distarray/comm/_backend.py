"""Which array library a buffer belongs to: NumPy, or CuPy, loaded when a GPU is used."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from distarray.errors import DeviceError
from distarray.typing import Buffer


def module(device: str | None) -> Any:
    """Return the array module for a device: ``numpy`` for None and "cpu", ``cupy`` for "cuda"."""
    if device is None or device == "cpu":
        return np
    if device.partition(":")[0] != "cuda":
        raise DeviceError(f"device {device!r} is not known; use 'cpu' or 'cuda'")
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceError(
            f"device {device!r} needs CuPy, which does not import here ({error}); install "
            "distarray-mpi[cuda12] or [cuda13], or use device='cpu'"
        ) from error


def is_numpy(array: Any) -> bool:
    """Tell whether ``array`` is a NumPy array."""
    return isinstance(array, np.ndarray)


def is_cupy(array: Any) -> bool:
    """Tell whether ``array`` is a CuPy array, without importing CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy"


def is_buffer(array: Any) -> bool:
    """Tell whether ``array`` can be a local block."""
    return is_numpy(array) or is_cupy(array)


def namespace_of(array: Buffer) -> Any:
    """Return the module whose functions work on ``array``."""
    return np if is_numpy(array) else importlib.import_module("cupy")


def device_of(array: Buffer) -> str:
    """Return "cpu" or "cuda"."""
    return "cuda" if is_cupy(array) else "cpu"


def asarray(value: Any, device: str | None = None, dtype: Any = None) -> Buffer:
    """Return ``value`` as a buffer on ``device``, copied only where it must be."""
    return module(device).asarray(value, dtype=dtype)


def synchronize(array: Buffer) -> None:
    """Wait for the work queued on the current stream of a CuPy array's device."""
    if is_cupy(array):
        importlib.import_module("cupy").cuda.get_current_stream().synchronize()
