"""The kernel's checksums are zlib's."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.checkpoint import _checksums


@pytest.fixture(scope="module")
def kernel():
    found = _checksums._checked_kernel()
    if found is None:
        pytest.skip("the processor lacks the multiplication, or Numba is switched off")
    return found


@settings(max_examples=200)
@given(st.integers(0, 5000), st.integers(64, 1500), st.integers(0, 63), st.integers(0, 9))
def test_kernel_gives_what_zlib_gives(kernel, size, step, start, seed):
    fills = {0: bytes(size + start), 1: b"\xff" * (size + start)}
    data = memoryview(fills.get(seed) or np.random.default_rng(seed).bytes(size + start))[start:]
    found = _checksums.by_kernel(kernel, data, step)
    assert found == [crc32(data[i : i + step]) for i in range(0, size, step)]


@pytest.mark.parametrize("done", [0, 1 << 40])
def test_checksums_are_the_same_by_either_way(monkeypatch, done):
    monkeypatch.setattr(_checksums, "_done", done)
    data = memoryview(np.random.default_rng(0).bytes((3 << 20) + 12345))
    for step in (1 << 20, (1 << 20) - 1, 1000, 5 << 20):
        expected = "".join(f"{crc32(data[i : i + step]):08x}" for i in range(0, len(data), step))
        assert _checksums.checksums(data, step) == expected
    assert _checksums.checksums(memoryview(b""), 1 << 20) == ""
    assert _checksums.checksums(memoryview(b"abc"), 2) == f"{crc32(b'ab'):08x}{crc32(b'c'):08x}"
