"""Numba's part for GPUs: decorators, and the functions of libdevice that kernels need.

The compiler contracts ``a * b + c`` into one fused operation, with one rounding instead of two, and
`cuda.jit` has no switch for that. It leaves products of libdevice's ``dmul_rn`` alone, so that
values come out as on the host. Numba's simulator has no libdevice: NumPy's functions stand for it.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import numba
import numpy as np

SIMULATED: Final = bool(numba.config.ENABLE_CUDASIM)
"""Whether Numba's simulator runs the kernels, in host memory."""

_LATE: Final = ("numba.cuda.np.arrayobj", "numba.cuda.cudaimpl")
_REMOVED: Final = {"row_stack": np.vstack}


def _import_cuda() -> Any:
    """Import ``numba.cuda`` whole, also where its version and NumPy's are of different times.

    What it imports when a kernel is first compiled may name what NumPy has no longer (numba-cuda
    0.30 has ``np.row_stack``, which NumPy 2.5 has not), or warn where programs make errors of
    warnings. Imported here, both concern nobody else.
    """
    with warnings.catch_warnings(), _restore_removed_names():
        warnings.simplefilter("ignore")
        found = importlib.import_module("numba.cuda")
        if not SIMULATED:
            for name in _LATE:
                with contextlib.suppress(ModuleNotFoundError):  # not in all versions
                    importlib.import_module(name)
    return found


@contextlib.contextmanager
def _restore_removed_names() -> Iterator[None]:
    """Lend NumPy the names that it has no more."""
    lent = [name for name in _REMOVED if not hasattr(np, name)]
    for name in lent:
        setattr(np, name, _REMOVED[name])
    try:
        yield
    finally:
        for name in lent:
            delattr(np, name)


cuda: Any = _import_cuda()


def device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call a function."""
    return function if SIMULATED else cuda.jit(device=True)(function)  # type: ignore[no-any-return]


libdevice: Any = (
    SimpleNamespace(
        dmul_rn=operator.mul,
        dsqrt_rn=np.sqrt,
        longlong_as_double=lambda bits: bits.view(np.float64),
        double_as_longlong=lambda double: double.view(np.int64),
        int_as_float=lambda bits: bits.view(np.float32),
        float_as_int=lambda single: single.view(np.int32),
    )
    if SIMULATED
    else importlib.import_module("numba.cuda.libdevice")
)


@device
def double_of(bits: Any) -> Any:
    """Return the float64 of 64 bits."""
    return libdevice.longlong_as_double(np.int64(bits))


@device
def bits_of(double: Any) -> Any:
    """Return the 64 bits of a float64."""
    return np.uint64(libdevice.double_as_longlong(np.float64(double)))


@device
def single_of(bits: Any) -> Any:
    """Return the float32 of 32 bits."""
    return libdevice.int_as_float(np.int32(bits))


@device
def bits_of_single(single: Any) -> Any:
    """Return the 32 bits of a float32."""
    return np.uint32(libdevice.float_as_int(np.float32(single)))
