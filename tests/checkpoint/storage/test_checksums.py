"""Checksums in checkpoints are CRC-32, as zlib computes it."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from distarray.checkpoint.storage import _chunks


@pytest.mark.parametrize("step", [1 << 20, (1 << 20) - 1, 1000, 5 << 20])
def test_checksums_are_those_of_zlib(step):
    data = memoryview(np.random.default_rng(0).bytes((3 << 20) + 12345))
    expected = "".join(f"{crc32(data[i : i + step]):08x}" for i in range(0, len(data), step))
    assert _chunks.checksums(data, step) == expected


def test_the_last_block_may_be_short_and_there_may_be_none():
    assert _chunks.checksums(memoryview(b""), 1 << 20) == ""
    assert _chunks.checksums(memoryview(b"abc"), 2) == f"{crc32(b'ab'):08x}{crc32(b'c'):08x}"
