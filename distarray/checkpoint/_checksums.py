"""Checksums of blocks, computed beside the writing or reading of others.

CRC-32 is what every language has at hand, finds all errors in up to 32 successive bits, and leaves
one in four thousand million of other damages unnoticed. ISA-L computes it several times as fast as
zlib (34 and 6 GB/s on one core of a Zen 3), which serves where there is no wheel of it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

T = TypeVar("T")
_LEAST_BYTES = 1 << 20
"""Fewer are not worth handing to a thread."""


def checksums(data: memoryview, step: int) -> str:
    """Return the checksums of blocks of ``step`` bytes, as eight hexadecimal digits each."""
    return "".join([f"{crc32(data[i : i + step]):08x}" for i in range(0, len(data), step)])


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
