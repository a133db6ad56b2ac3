"""Compile kernels for a GPU of compute capability 9.0, and write what they became as JSON.

    python tests/comm/cuda/compiled_kernels.py FILE

A program of its own, because it makes Numba believe in such a GPU. It ends with the status
``CANNOT`` and says why where the compiler for GPUs is not installed. Each function that a kernel
calls is in one of the kernels.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numba

CANNOT = 77
CAPABILITY = (9, 0)
REDUCTIONS = (
    *(("f4", "sum"), ("f8", "prod"), ("f4", "min"), ("f2", "avg"), ("bf16", "max")),
    *(("i1", "min"), ("i8", "avg"), ("u4", "avg"), ("u1", "bxor"), ("i4", "sum")),
)
FLAT = (("f4", "sum"), ("f8", "prod"), ("bf16", "max"), ("i8", "avg"))
"""Of flat boxes items are found otherwise, several at a time, and reduced alike."""


def kernels() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return kernels, and the types of their arguments."""
    from distarray.comm.cuda import _kernels
    from distarray.comm.cuda._numba import cuda
    from distarray.random import _kernels_cuda as _random

    # The package numba-cuda has types of its own, Numba's own target those of Numba.
    types = cuda.types if hasattr(cuda.types, "uint64") else numba.types
    arrays = {
        name: getattr(types, long)[::1]
        for name, long in (
            *(("f2", "float16"), ("f4", "float32"), ("f8", "float64"), ("i1", "int8")),
            *(("i4", "int32"), ("i8", "int64"), ("u1", "uint8"), ("u2", "uint16")),
            *(("u4", "uint32"), ("u8", "uint64")),
        )
    }
    table, counts = arrays["i8"], (types.int64, types.int64)
    found = {
        f"copy {word}": (_kernels.copy_boxes, (arrays[word], table, *counts))
        for word in ("u1", "u8")
    }
    found["rows"] = _kernels.copy_rows, (table, *counts)
    for kind, op in REDUCTIONS:
        source = arrays["u2" if kind == "bf16" else kind]
        out = arrays["f8"] if op == "avg" and kind[0] in "iu" else source
        arguments = out, source, table, *counts, types.int64
        found[f"{op} {kind}"] = _kernels.reducing(kind, op, False), arguments
        if (kind, op) in FLAT:
            found[f"{op} {kind}, flat"] = _kernels.reducing(kind, op, True), arguments
    for kind, dtype, out in (("normal", "float64", "f8"), ("uniform", "float32", "f4")):
        arguments = arrays[out], table, *[types.float64] * 3
        found[f"{kind} {dtype}"] = _random.kernel(kind, dtype), arguments
    found["integers"] = (
        _random.kernel("integer", "uint16"),
        (arrays["u2"], table, *[types.uint64] * 3),
    )
    return found


def believe_in_a_gpu() -> str:
    """Let Numba compile for a GPU that is not there; return why it cannot, if it cannot."""
    try:
        from numba.cuda import dispatcher
        from numba.cuda.cudadrv import nvvm

        nvvm.NVVM()
    except Exception as error:
        return f"no compiler for GPUs here: {error}"
    gpu = SimpleNamespace(compute_capability=CAPABILITY)
    dispatcher.get_current_device = lambda: gpu
    return ""


def main() -> None:
    why = believe_in_a_gpu()
    if why:
        print(why)
        sys.exit(CANNOT)
    from numba import cuda

    made = {}
    for name, (kernel, arguments) in kernels().items():
        made[name], _ = cuda.compile_ptx(kernel.py_func, arguments, cc=CAPABILITY)
    with open(sys.argv[1], "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main()
