"""A stand-in for CuPy on machines without a GPU: its names, arguments and refusals.

Arrays lie in memory of make-believe devices and mix with NumPy arrays no more than CuPy's do. The
names, the signatures and the types that ufuncs take are those of the real package (`data.json`,
made by `extract.py`); a name that it has and this lacks raises NotImplementedError when called.
`operations` counts launches, copies and waits.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import numpy as np

from cupy import _functions, _methods, cuda
from cupy._array import ndarray
from cupy._data import NAMES, SIGNATURES, UFUNCS, VERSION
from cupy._device import operations
from cupy._ufunc import ufunc

__version__ = VERSION
__all__ = ["cuda", "ndarray", "operations", "ufunc"]

_methods.install()
_THERE = ("array", "asarray", "asanyarray", "ascontiguousarray", "asnumpy", "from_dlpack")


def found(module: str, name: str) -> Any:
    """Return what the real module has by that name, or raise AttributeError."""
    if name not in NAMES[module]:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    full = f"{module}.{name}"
    if full in NAMES:
        return importlib.import_module(full)
    if full in UFUNCS:
        return ufunc(name, UFUNCS[full])
    own = getattr(_functions, name, None) if module == "cupy" else None
    if own is not None and full in SIGNATURES:
        return own
    theirs = np
    for part in module.split(".")[1:]:
        theirs = getattr(theirs, part, None)  # type: ignore[assignment]
    there = getattr(theirs, name, None)
    if full in SIGNATURES and callable(there) and not isinstance(there, type):
        return _functions.wrapped(module, name, there)
    if there is not None and not isinstance(there, types.ModuleType):
        return there  # data types and constants

    def lacking(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"the stand-in for CuPy has no {full}")

    return lacking


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    value = found("cupy", name)
    globals()[name] = value
    return value
