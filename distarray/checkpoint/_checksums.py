"""Checksums of blocks, computed beside the writing or reading of others.

CRC-32 is what every language has at hand, finds all errors in up to 32 successive bits, and leaves
one in four thousand million of other damages unnoticed. zlib computes it; of much, a kernel that is
several times as fast (`_crc_kernel`), where the processor has what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from distarray.comm.kernels import load_kernels

T = TypeVar("T")
_LEAST_BYTES = 1 << 20
_LEAST_STEP = 32 << 10
"""Smaller blocks are left to zlib."""

_WARM_BYTES, _COLD_BYTES = 32 << 20, 1 << 30
"""After how many bytes the kernel is loaded, where Numba is loaded already, and where it is not."""

_done = 0


def checksums(data: memoryview, step: int) -> str:
    """Return the checksums of blocks of ``step`` bytes, as eight hexadecimal digits each."""
    if len(data) < _LEAST_STEP:
        return "".join([f"{crc32(data[i : i + step]):08x}" for i in range(0, len(data), step)])
    return "".join([f"{one:08x}" for one in _crcs(data, step)])


def _crcs(data: memoryview, step: int) -> list[int]:
    """Return the CRC-32 of blocks of ``step`` bytes; the last one may be shorter."""
    global _done
    _done += len(data)
    step = min(step, len(data))
    enough = _WARM_BYTES if "numba" in sys.modules else _COLD_BYTES
    kernel = _checked_kernel() if _done >= enough and step >= _LEAST_STEP else None
    if kernel is None:
        return [crc32(data[i : i + step]) for i in range(0, len(data), step)]
    return by_kernel(kernel, data, step)


def by_kernel(kernel: Any, data: memoryview, step: int) -> list[int]:
    """Return the CRC-32 of blocks of ``step`` bytes, a line or more; the last may be shorter."""
    count, lines = len(data) // step, step // kernel.LINE
    rests = np.empty((count, 16), np.uint8)
    address = np.frombuffer(data, np.uint8).ctypes.data
    kernel.fold_blocks(address, step, lines, count, rests.ctypes.data)
    # What is left of a block has its checksum, but for where that starts from: it is in there.
    found = [crc32(rest.data, 0xFFFFFFFF) for rest in rests]
    folded = lines * kernel.LINE
    if folded < step:
        ends = [data[i * step + folded : (i + 1) * step] for i in range(count)]
        found = [crc32(end, one) for end, one in zip(ends, found, strict=True)]
    if count * step < len(data):
        found.append(crc32(data[count * step :]))
    return found


@cache
def _checked_kernel() -> Any:
    """Return the kernel; None where it cannot be used, or does not give what zlib does."""
    if not _can_multiply():
        return None
    kernel = load_kernels("distarray.checkpoint._crc_kernel")
    if kernel is None:
        return None
    sample = memoryview(np.random.default_rng(0).bytes(3 * 1000))
    expected = [crc32(sample[i : i + 1000]) for i in range(0, 3000, 1000)]
    return kernel if by_kernel(kernel, sample, 1000) == expected else None


def _can_multiply() -> bool:
    """Tell whether the processor multiplies without carries."""
    try:
        from llvmlite import binding

        return bool(binding.get_host_cpu_features().get("pclmul"))
    except (ImportError, RuntimeError):
        return False


class Beside:
    """A thread that computes while the caller goes on; a context, which waits for it."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown()

    def start(self, function: Callable[[], T], nbytes: int) -> Callable[[], T]:
        """Start a computation on so many bytes, and return what waits for its result."""
        if nbytes >= _LEAST_BYTES:
            try:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(1, "distarray checksums")
                return self._executor.submit(function).result
            except RuntimeError:
                pass  # the interpreter is ending, and starts no threads any more
        result = function()
        return lambda: result
