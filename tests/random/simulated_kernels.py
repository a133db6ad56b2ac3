"""Random numbers of a GPU's kernels against the host's, where Numba simulates the GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distarray.comm.cuda import _launch
from distarray.random import _blocks
from distarray.random._blocks import fill_floats, fill_integers

from .test_blocks import FLOATS, INTEGERS, KEY

MANY_DRAWN_AGAIN = ("uint64", 0, 2**63 + 1)


@pytest.fixture(scope="module", autouse=True)
def for_small_arrays() -> Iterator[None]:
    assert _launch.is_simulated()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return a global shape, large or small, and a box of few elements."""
    ndim = draw(st.integers(0, 4))
    shape, box = [], []
    for _ in range(ndim):
        n = draw(st.one_of(st.integers(1, 9), st.integers(1, 2 ** min(60 // ndim, 40))))
        start = draw(st.integers(0, n - 1))
        shape.append(n)
        box.append((start, draw(st.integers(start, min(n, start + (20 if ndim == 1 else 4))))))
    return tuple(shape), tuple(box)


def host_and_device(what: Any, shape: Any, box: Any, call: int) -> list[np.ndarray]:
    """Return what the host and the kernel make of a block, which begins at an odd element."""
    sizes = [stop - start for start, stop in box]
    dtype = np.dtype(what[-1] if len(what) == 2 else what[0])
    count = int(np.prod(sizes, dtype=int))
    host, whole = np.empty(sizes, dtype), np.zeros(count + 2, dtype)
    device = whole[1 : 1 + count].reshape(sizes)
    words, geometry = _blocks.words_of(KEY, call), _blocks.geometry_of(shape, box)
    if len(what) == 2:
        fill_floats(host, what[0], KEY, call, shape, box, 0.25, 1.5)
        assert _blocks.launch_kernel(device, what[0], words, geometry, (0.25, 1.5, 0.0))
    else:
        least, among = what[1:]
        fill_integers(host, KEY, call, shape, box, least, among)
        parameters = [np.uint64(n) for n in (least % 2**64, among % 2**64, 2**64 % among)]
        bits = device.view(f"u{device.itemsize}")
        assert _blocks.launch_kernel(bits, "integer", words, geometry, parameters)
    assert not whole[0]
    assert not whole[-1]
    return [array.reshape(-1).view(np.uint8) for array in (host, device)]


@pytest.mark.parametrize("what", FLOATS + INTEGERS, ids=str)
@settings(max_examples=12)
@given(data=st.data())
def test_kernel_gives_the_bits_of_the_host_for_any_box(what: Any, data: st.DataObject) -> None:
    shape, box = data.draw(boxes())
    call = data.draw(st.sampled_from((0, 3, 2**33 + 5)))
    np.testing.assert_array_equal(*host_and_device(what, shape, box, call))


@pytest.mark.parametrize("what", [*FLOATS, MANY_DRAWN_AGAIN], ids=str)
def test_kernel_gives_the_bits_of_the_host_for_many_numbers(what: Any) -> None:
    np.testing.assert_array_equal(*host_and_device(what, (5000,), ((17, 917),), 1))
