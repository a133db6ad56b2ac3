"""Numba's part for GPUs: decorators, and the functions of libdevice that kernels need.

The compiler contracts ``a * b + c`` into one fused operation, with one rounding instead of two, and
`cuda.jit` has no switch for that. It leaves products of libdevice's ``dmul_rn`` alone, so that
values come out as on the host. Numba's simulator has no libdevice: NumPy's functions stand for it.
"""

# ruff: noqa: ARG001 - what makes code has the parameters that Numba gives it

from __future__ import annotations

import contextlib
import ctypes
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


# --- memory by its address -----------------------------------------------------------------------


def _words_by_address() -> tuple[Any, Any, Any]:
    """Return functions for kernels that load 8 bytes, store a word of any size, and store 16 bytes.

    Numba stores one item of an array at a time; a vector of LLVM becomes one instruction.
    """
    from llvmlite import ir

    types = cuda.types if hasattr(cuda.types, "uint64") else numba.types  # numba-cuda has its own
    try:
        intrinsic = importlib.import_module("numba.cuda.extending").intrinsic
    except (ImportError, AttributeError):
        intrinsic = importlib.import_module("numba.extending").intrinsic
    word = ir.IntType(64)

    def place(builder: Any, address: Any, kind: Any) -> Any:
        return builder.inttoptr(address, kind.as_pointer(1))  # in global memory

    def load_word(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(place(builder, arguments[0], word), align=8)

        return types.uint64(types.uint64), generate

    def store(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to = place(builder, arguments[0], arguments[1].type)
            builder.store(arguments[1], to, align=value.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(types.uint64, value), generate

    def store_two(typing: Any, address: Any, first: Any, second: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            both = ir.Constant(ir.VectorType(word, 2), ir.Undefined)
            for i, value in enumerate(arguments[1:]):
                both = builder.insert_element(both, value, ir.Constant(ir.IntType(32), i))
            builder.store(both, place(builder, arguments[0], both.type), align=16)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.uint64), generate

    return intrinsic(load_word), intrinsic(store), intrinsic(store_two)


def _load_word(address: Any) -> Any:
    return np.frombuffer(ctypes.string_at(int(address), 8), np.uint64)[0]


def _store(address: Any, value: Any) -> None:
    ctypes.memmove(int(address), value.tobytes(), value.nbytes)


def _store_two(address: Any, first: Any, second: Any) -> None:
    _store(address, first)
    _store(address + np.uint64(8), second)


load_word, store, store_two = (_load_word, _store, _store_two) if SIMULATED else _words_by_address()
