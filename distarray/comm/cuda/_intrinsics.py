"""What kernels on a GPU do at raw addresses, and arithmetic that is rounded after each operation.

Addresses are int64, as in the kernels of the host (``_intrinsics``). Numba's device arrays would
need a typed array for every size of word and every peer, and have no words of 16 bytes; a load from
an address is one instruction. Where the CUDA simulator of Numba runs the kernels, plain functions
of the same names stand for the instructions.

The compiler for GPUs contracts ``a * b + c`` into one fused operation, with one rounding instead of
two, and ``cuda.jit`` has no switch for that. ``plus``, ``minus`` and ``times`` are instructions of
their own, which nothing contracts, so that values come out as on the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import numba

from distarray.comm.cuda import _numba

cuda: Any = _numba.cuda()

SIMULATED: Final = bool(numba.config.ENABLE_CUDASIM)
"""Whether Numba's simulator runs the kernels, in host memory."""

_found: Any = importlib.import_module(
    f"distarray.comm.cuda._intrinsics_{'simulated' if SIMULATED else 'ptx'}"
)

load1: Callable[[Any], Any] = _found.load1
"""Return the byte at an address as uint64; ``load2`` to ``load8`` more, aligned to their size."""
load2: Callable[[Any], Any] = _found.load2
load4: Callable[[Any], Any] = _found.load4
load8: Callable[[Any], Any] = _found.load8
load16: Callable[[Any], tuple[Any, Any]] = _found.load16
"""Return two words of 8 bytes, of an address that is aligned to 16."""
store1: Callable[[Any, Any], None] = _found.store1
"""Store the lowest byte of a uint64; ``store2`` to ``store8`` more."""
store2: Callable[[Any, Any], None] = _found.store2
store4: Callable[[Any, Any], None] = _found.store4
store8: Callable[[Any, Any], None] = _found.store8
store16: Callable[[Any, Any, Any], None] = _found.store16
entry: Callable[[Any], Any] = _found.entry
"""Return the int64 at an address."""
low: Callable[[Any], Any] = _found.low
"""Return the lower 32 bits of an int64, so that the compiler knows that there are no others."""
plus: Callable[[Any, Any], Any] = _found.plus
minus: Callable[[Any, Any], Any] = _found.minus
times: Callable[[Any, Any], Any] = _found.times
root: Callable[[Any], Any] = _found.root
"""Return the square root of a double, correctly rounded."""
double_of: Callable[[Any], Any] = _found.double_of
"""Return the float64 of 64 bits; ``bits_of`` is its inverse, and so on for the other types."""
bits_of: Callable[[Any], Any] = _found.bits_of
single_of: Callable[[Any], Any] = _found.single_of
bits_of_single: Callable[[Any], Any] = _found.bits_of_single
single_of_half: Callable[[Any], Any] = _found.single_of_half
"""Return the float32 of a float16's bits; ``half_of_single`` rounds to nearest, ties to even."""
half_of_single: Callable[[Any], Any] = _found.half_of_single

double_of_signed: dict[int, Callable[[Any], Any]] = _found.double_of_signed
"""By size: return the float64 of the lowest bytes of a uint64, a signed integer."""
double_of_unsigned: Callable[[Any], Any] = _found.double_of_unsigned
device: Callable[[Callable[..., Any]], Callable[..., Any]] = _found.device
"""Let kernels call a function."""


def kernel(function: Callable[..., Any]) -> Any:
    """Return a kernel, compiled when it is first launched; its arguments are int64."""
    return cuda.jit(function)
