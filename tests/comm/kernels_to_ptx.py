"""Compile kernels for a GPU of compute capability 9.0, and write what they became as JSON.

    python tests/comm/kernels_to_ptx.py FILE [--all]

A program of its own, because it makes Numba believe in such a GPU. It ends with the status
``CANNOT`` and says why where the compiler for GPUs is not installed. Each function that a kernel
calls is in one of the kernels; all combinations of type and operation take minutes.
"""

from __future__ import annotations

import itertools
import json
import sys
import types as python_types
from typing import Any

CANNOT = 77
CAPABILITY = (9, 0)


SOME = (
    *("copy", "sum of f4", "prod of f8", "min of f4", "avg of 2 f2", "sum of 8 bf16"),
    *("max of bf16", "min of i1", "avg of i8", "avg of u4", "prod of c16", "max of c8"),
    *("bxor of u16", "normal float64", "uniform float32", "integers of 8 bytes"),
)


def kernels() -> dict[str, tuple[Any, int]]:
    """Return every kernel, and the number of its arguments."""
    from distarray.comm.cuda import _copy_kernel, _reduce_kernel
    from distarray.random import _kernels_cuda as _random

    found: dict[str, tuple[Any, int]] = {"copy": (_copy_kernel.copy_boxes, 3)}
    arithmetic = ("sum", "avg", "prod", "min", "max")
    reducing = _reduce_kernel.reducing
    for kind in ("f2", "bf16", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        for op in arithmetic:
            found[f"{op} of {kind}"] = reducing(kind, op), 4
    for kind, many in (("f2", (2, 8)), ("bf16", (2, 8)), ("f4", (4,)), ("f8", (2,))):
        for op, lanes in itertools.product(arithmetic, many):
            found[f"{op} of {lanes} {kind}"] = reducing(kind, op, lanes), 4
    for kind in ("c8", "c16"):
        for op in ("prod", "min", "max"):
            found[f"{op} of {kind}"] = reducing(kind, op), 4
    for size in (1, 2, 4, 8, 16):
        for op in ("band", "bor", "bxor"):
            found[f"{op} of u{size}"] = reducing(f"u{size}", op), 4
    for kind in ("uniform", "normal"):
        for dtype in ("float32", "float64"):
            found[f"{kind} {dtype}"] = _random.floats(kind, dtype), 3
    for size in (1, 2, 4, 8):
        found[f"integers of {size} bytes"] = _random.integers(size), 3
    return found


def believe_in_a_gpu() -> str:
    """Let Numba compile for a GPU that is not there; return why it cannot, if it cannot."""
    try:
        from numba.cuda import dispatcher
        from numba.cuda.cudadrv import nvvm

        nvvm.NVVM()
    except Exception as error:
        return f"no compiler for GPUs here: {error}"
    gpu = python_types.SimpleNamespace(compute_capability=CAPABILITY)
    dispatcher.get_current_device = lambda: gpu
    return ""


def main() -> None:
    why = believe_in_a_gpu()
    if why:
        print(why)
        sys.exit(CANNOT)
    from numba import cuda

    from distarray.comm.cuda._intrinsics_ptx import types

    made = {}
    found = kernels()
    for name in found if "--all" in sys.argv else SOME:
        kernel, arguments = found[name]
        signature = (types.int64,) * arguments
        ptx, _ = cuda.compile(
            kernel.py_func, signature, device=False, cc=CAPABILITY, abi="numba", output="ptx"
        )
        made[name] = ptx
    with open(sys.argv[1], "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main()
