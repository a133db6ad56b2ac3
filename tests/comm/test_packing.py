"""Copies, packs and pads move every byte to where NumPy would, and none elsewhere."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distarray.comm import _packing
from distarray.comm._packing import copy_box
from distarray.comm.kernels import _loop_nest, _threads
from distarray.comm.kernels._loop_nest import fill, renew, write_lent
from tests import either_way

from .strided_arrays import shapes, views

DTYPES = ("i1", "i2", "f4", "f8", "c16", "S3", "S24", "f4,i2", "m8[s]")


@pytest.fixture
def kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no kernel lose to NumPy by the clock."""
    monkeypatch.setattr(_loop_nest, "run_faster", either_way.by_kernel)


@pytest.fixture
def kernels_for_all_sizes(kernels_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels serve where NumPy would, so that small arrays reach them."""
    monkeypatch.setattr(_packing, "_KERNEL_BYTES", 0)
    monkeypatch.setattr(_loop_nest, "_BYTES_PER_CALL", 0)


@pytest.mark.usefixtures("kernels_for_all_sizes")
@pytest.mark.parametrize("total", [0, 1 << 40], ids=["cached", "streaming"])
@settings(max_examples=250)
@given(data=st.data())
def test_copy_moves_what_numpy_moves_for_any_strides(total: int, data: st.DataObject) -> None:
    shape = data.draw(shapes())
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    bytes_from, src = data.draw(views(shape, dtype))
    bytes_to, dst = data.draw(views(shape, dtype))
    bytes_from[:] = np.random.default_rng(len(shape)).integers(1, 256, bytes_from.size)
    expected = bytes_to.copy()
    if dst.size:
        offset = dst.__array_interface__["data"][0] - bytes_to.__array_interface__["data"][0]
        np.ndarray(shape, dtype, expected, offset, dst.strides)[...] = src
    copy_box(dst, src, total=total)
    np.testing.assert_array_equal(bytes_to, expected)


LARGE: dict[str, tuple[Any, Any, bool]] = {
    "columns": (np.empty((1000, 700)), np.empty((1000, 1400))[:, 300:1000], True),
    "into columns": (np.empty((1000, 1400))[:, 300:1000], np.empty((1000, 700)), True),
    "one row": (np.empty(600_001)[1:], np.empty(600_000), True),
    "few rows": (np.empty((3, 300_000)), np.empty((3, 300_001))[:, 1:], True),
    "short rows": (np.empty((50_000, 5)), np.empty((50_000, 9))[:, 2:7], True),
    "triples": (np.empty((90_000, 3), "f4"), np.empty((90_000, 7), "f4")[:, 1:4], True),
    "transposed": (np.empty((700, 500)), np.empty((500, 700)).T, True),
    "transposed bytes": (np.empty((900, 800), "i1"), np.empty((800, 900), "i1").T, True),
    "transposed planes": (np.empty((5, 300, 200)), np.empty((5, 200, 300)).swapaxes(1, 2), True),
    "rotated": (np.empty((90, 80, 70)), np.empty((70, 90, 80)).transpose(1, 2, 0), True),
    "reversed rows": (np.empty((900, 700)), np.empty((900, 700))[::-1], True),
    "every other": (np.empty((900, 350)), np.empty((900, 700))[:, ::2], False),
    "repeated row": (np.empty((900, 700)), np.broadcast_to(np.empty(700), (900, 700)), True),
    "narrow transpose": (np.empty((5, 90_000)), np.empty((90_000, 5)).T, False),
}


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize("name", LARGE)
def test_kernel_serves_where_it_is_faster(name: str) -> None:
    dst, src, served = LARGE[name]
    base = src if src.base is None else src.base
    while base.base is not None:
        base = base.base
    base[...] = np.random.default_rng(0).integers(0, 100, base.shape)
    assert _loop_nest.copy_by_kernel(dst, src, streaming=True) == served
    if served:
        np.testing.assert_array_equal(dst, src)


@pytest.mark.parametrize("shape", [(64, 65), (3, 40, 50), (130_000,)])
def test_copy_converts_where_dtypes_differ(shape: tuple[int, ...]) -> None:
    src = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    dst = np.zeros(shape)
    copy_box(dst, src)
    np.testing.assert_array_equal(dst, src)


def test_copy_shared_by_threads_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_count", 3)
    monkeypatch.setattr(_threads, "_BYTES_PER_THREAD", 1 << 16)
    src = np.random.default_rng(1).random((5, 300, 211))
    dst = np.zeros_like(src)
    copy_box(dst, src)
    np.testing.assert_array_equal(dst, src)
    _threads._forget_pool()


def test_fill_sets_every_element_of_a_view() -> None:
    block = np.zeros((4, 6))
    fill(block[::2, 1:3], 7)
    assert block.sum() == 7 * 4


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["i1", "f2", "f4", "c16", "S3", "S32", "m8[s]", "f4,f4"])
def test_fill_past_the_caches_sets_what_an_assignment_sets(
    dtype: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_loop_nest, "STREAMING_BYTES", 0)
    monkeypatch.setattr(_threads, "_count", threads)
    monkeypatch.setattr(_threads, "_BYTES_PER_THREAD", 256)
    for size in (0, 1, 7, 63, 64, 65, 1000):
        for start in (0, 1, 3):
            whole = np.zeros(size + 10, dtype)
            expected = whole.copy()
            expected[start : start + size] = 5
            fill(whole[start : start + size], 5)
            np.testing.assert_array_equal(whole, expected)
    _threads._forget_pool()


@pytest.mark.usefixtures("kernels_for_all_sizes")
@pytest.mark.parametrize("start", [0, 1, 64, 100])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 200, 1000])
def test_memory_that_others_have_read_is_zero_when_it_is_written(
    size: int, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = np.full(1200, 7, np.uint8)
    part = whole[start : start + size]
    lines = part[-_loop_nest.address_of(part) % 64 :]
    lines = lines[: lines.size // 64 * 64]

    def write() -> None:
        assert not lines.any()
        part[...] = 5

    write_lent(part, write)
    assert (part == 5).all()
    chosen = {"numba": _loop_nest._kernel("stream_fill").load(), "numpy": None}
    for choice, filled in (("numpy", 5), ("numba", 0)):
        monkeypatch.setattr(_loop_nest, "is_chosen", lambda *_, by=chosen[choice]: by)
        renew(part)
        assert (lines == filled).all()
    assert (np.delete(whole, np.s_[start : start + size]) == 7).all()
