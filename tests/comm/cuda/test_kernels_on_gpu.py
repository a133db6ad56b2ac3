"""The kernels on a real GPU against the host, at sizes that the simulator cannot take."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distarray.comm import _block_reduction
from distarray.comm.cuda import _launch
from distarray.comm.cuda._boxes import launch_copies
from distarray.random._blocks import fill_floats, fill_integers
from tests.comm.cuda.simulated_kernels import (
    KINDS,
    bits,
    expected_of,
    left_to_cupy,
    ops_of,
    typed,
    values,
)
from tests.comm.strided_arrays import shapes, views

pytestmark = pytest.mark.gpu

LARGE = {
    "columns": ((4000, 700), lambda x: x[:, 100:650]),
    "columns of bytes": ((4000, 1401), lambda x: x[:, 3:1304]),
    "transposed": ((1300, 900), lambda x: x.T),
    "narrow": ((90_000, 5), lambda x: x.T),
    "rotated": ((70, 90, 80), lambda x: x.transpose(1, 2, 0)),
    "reversed": ((900, 700), lambda x: x[::-1, ::-1]),
    "every other": ((900, 700), lambda x: x[:, ::2]),
    "seven axes": (
        (4, 5, 4, 5, 4, 5, 4),
        lambda x: x[:, :4, :, :4, 1:, ::2].transpose(range(6, -1, -1)),
    ),
}


@pytest.fixture(scope="module")
def cupy() -> Any:
    found = pytest.importorskip("cupy")
    try:
        probe = found.zeros(1)
    except Exception as error:
        pytest.skip(f"no GPU: {error}")
    if not _launch.is_usable(probe):
        pytest.skip("Numba reaches no GPU")
    return found


def moved(cupy: Any, held: np.ndarray, view: np.ndarray) -> tuple[Any, Any]:
    """Return bytes and a view of them, alike in device memory."""
    there = cupy.asarray(held)
    turn = tuple(slice(None, None, -1 if stride < 0 else 1) for stride in view.strides)
    ahead = view[(*turn, ...)]
    offset = ahead.__array_interface__["data"][0] - held.__array_interface__["data"][0]
    pointer = there.data + offset
    array = cupy.ndarray(view.shape, view.dtype, memptr=pointer, strides=ahead.strides)
    return there, array[(*turn, ...)]


@settings(max_examples=300)
@given(data=st.data())
def test_copies_move_what_numpy_moves(cupy: Any, data: st.DataObject) -> None:
    found, expected, pairs = [], [], []
    for seed in range(data.draw(st.integers(1, 4))):
        shape = data.draw(shapes())
        dtype = np.dtype(data.draw(st.sampled_from(("i1", "i2", "f4", "f8", "c16"))))
        bytes_from, src = data.draw(views(shape, dtype))
        bytes_to, dst = data.draw(views(shape, dtype))
        bytes_from[:] = np.random.default_rng(seed).integers(1, 256, bytes_from.size)
        there, target = moved(cupy, bytes_to, dst)
        pairs.append((target, moved(cupy, bytes_from, src)[1]))
        dst[...] = src
        found.append(there)
        expected.append(bytes_to)
    if launch_copies(pairs):
        for there, here in zip(found, expected, strict=True):
            np.testing.assert_array_equal(there.get(), here)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "c16"])
@pytest.mark.parametrize("name", LARGE)
def test_large_boxes_are_copied(cupy: Any, name: str, dtype: str) -> None:
    shape, part = LARGE[name]
    host = (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)
    src = part(cupy.asarray(host))
    whole = cupy.zeros((*src.shape[:-1], src.shape[-1] + 3), dtype)
    empty = whole[..., :0]
    assert launch_copies([(whole[..., 1:-2], src), (cupy.zeros(1), cupy.zeros(1)), (empty, empty)])
    expected = np.zeros(whole.shape, dtype)
    expected[..., 1:-2] = part(host)
    np.testing.assert_array_equal(whole.get(), expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_reductions_give_the_bits_of_numpy(cupy: Any, kind: str, data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(ops_of(kind)))
    dtype = np.dtype("u2" if kind == "bf16" else kind)
    boxes, expected = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        shape = data.draw(shapes())
        sources, there = [], []
        for seed in range(data.draw(st.integers(1, 4))):
            held, source = data.draw(views(shape, dtype))
            source[...] = values(kind, shape, seed)
            sources.append(source)
            there.append(moved(cupy, held, source)[1])
        dst = cupy.zeros(shape, np.dtype("f8") if op == "avg" and kind[0] in "iu?" else dtype)
        boxes.append((dst, there))
        with np.errstate(all="ignore"):
            expected.append(expected_of(kind, op, sources))
    done = _block_reduction._by_device_kernel(typed(kind, boxes), op)
    assert done or left_to_cupy(kind, op, boxes)
    for (dst, _), wanted in zip(boxes, expected, strict=True) if done else ():
        np.testing.assert_array_equal(bits(kind, dst.get()), bits(kind, wanted))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_random_floats_are_those_of_the_host(cupy: Any, kind: str, dtype: str) -> None:
    shape, box = (1001, 37, 53), ((3, 900), (0, 37), (1, 52))
    sizes = [stop - start for start, stop in box]
    host, there = np.empty(sizes, dtype), cupy.empty(sizes, dtype)
    for out in (host, there):
        fill_floats(out, kind, (5, 6), 2**33, shape, box, 0.25, 1.5)
    np.testing.assert_array_equal(host.view("u1"), there.get().view("u1"))


@pytest.mark.parametrize("among", [10, 2**64, 2**63 + 1, 1000])
def test_random_integers_are_those_of_the_host(cupy: Any, among: int) -> None:
    host, there = np.empty(300_001, "u8"), cupy.empty(300_001, "u8")
    for out in (host, there):
        fill_integers(out, (5, 6), 1, (10**6,), ((17, 300_018),), 0, among)
    np.testing.assert_array_equal(host, there.get())
