"""Run on the host what kernels are compiled to for a GPU.

    python tests/comm/ptx_on_host.py PATH...

Numba's simulator runs the Python of a kernel, with plain functions for a GPU's instructions. Here
the kernels become PTX, as for a GPU of compute capability 9.0, and then C (see `ptx_to_c`). The
tests at the paths (see `cuda_simulator`) run with these. Loads and stores at addresses that a GPU
refuses end the test; what goes beyond instructions, such as caches or the order of writes between
blocks, is not there. The program ends as `kernels_to_ptx` does where a compiler, for GPUs or of C,
is missing.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cupy_stand_in")]

from tests import on_device  # noqa: E402
from tests.comm import kernels_to_ptx  # noqa: E402
from tests.comm.ptx_to_c import to_c  # noqa: E402

REFUSED = {1: "a load or a store is not aligned", 2: "a load or a store is beyond shared memory"}


class Kernel:
    """A kernel as Numba would make it, launched on arrays in host memory."""

    folder: str
    level: str

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._launch: Any = None

    def __getitem__(self, configuration: tuple[int, ...]) -> Callable[..., None]:
        blocks, threads = configuration[:2]

        def run(*arguments: int) -> None:
            if self._launch is None:
                self._launch = self._compiled(len(arguments))
            status = self._launch(blocks, threads, (ctypes.c_int64 * len(arguments))(*arguments))
            assert not status, REFUSED[status]

        return run

    def _compiled(self, arguments: int) -> Any:
        from numba import cuda

        from distarray.comm.cuda._intrinsics_ptx import types

        ptx, _ = cuda.compile(
            self.py_func,
            (types.int64,) * arguments,
            device=False,
            cc=kernels_to_ptx.CAPABILITY,
            abi="numba",
            output="ptx",
        )
        path = Path(self.folder) / f"kernel_{id(self)}.c"
        path.write_text(to_c(ptx))
        options = [self.level, "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-w"]
        made = path.with_suffix(".so")
        subprocess.run(
            ["cc", *options, "-shared", "-fPIC", str(path), "-o", made, "-lm"], check=True
        )
        launch = ctypes.CDLL(str(made)).launch
        launch.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
        return launch


def main() -> int:
    why = kernels_to_ptx.believe_in_a_gpu()
    if not why and shutil.which("cc") is None:
        why = "no compiler of C here"
    if why:
        print(why)
        return kernels_to_ptx.CANNOT
    from distarray.comm.cuda import _intrinsics
    from distarray.comm.cuda import _launch as _device_launch

    _intrinsics.kernel = Kernel
    _device_launch.simulated = lambda: True
    _device_launch.SIMULATED_THREADS = 256
    on_device.has_gpu = lambda: True
    on_device.DEVICE, on_device.EXAMPLES = "cuda", 100
    with tempfile.TemporaryDirectory() as folder:
        Kernel.folder = folder
        # Large arrays are worth an optimizing compiler; for small ones it takes most of the time.
        Kernel.level = "-O2" if any("on_gpu" in path for path in sys.argv[1:]) else "-O0"
        return int(pytest.main(["-q", "-W", "ignore", "-p", "no:cacheprovider", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
