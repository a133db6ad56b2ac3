"""What the process keeps of memory can be seen, bounded and given back."""

from __future__ import annotations

import gc
import operator
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import _memory, simulate
from distarray.comm.cuda import _pinned
from distarray.comm.shared_memory import _arena
from distarray.errors import ArgumentError, DeviceError
from tests.on_device import stand_in

MEBIBYTE = 1 << 20

needs_pool = pytest.mark.skipif(not _arena.HAS_MEMORY_FILES, reason="there is no memfd_create")


@needs_pool
def test_what_an_array_leaves_stays_until_it_is_given_back() -> None:
    block = _memory.empty((3 * MEBIBYTE,), np.uint8)
    assert da.memory.stats().in_use >= block.nbytes
    da.memory.trim()
    assert da.memory.stats().idle == 0
    del block
    assert da.memory.stats().idle >= 3 * MEBIBYTE
    da.memory.trim(keep=2 * MEBIBYTE)
    assert da.memory.stats().idle <= 2 * MEBIBYTE


@needs_pool
@pytest.mark.parametrize("nbytes", [65 << 10, (3 << 20) + 1, (17 << 20) + 5, (26 << 20) + 4097])
def test_blocks_take_little_more_than_they_have(nbytes: int) -> None:
    before = da.memory.stats().in_use
    block = _memory.empty((nbytes,), np.uint8)
    taken = da.memory.stats().in_use - before
    assert block.nbytes <= taken <= nbytes * 33 / 32 + 8192  # of pages


@needs_pool
def test_what_is_kept_is_bounded() -> None:
    before = da.memory.stats().limit
    assert before is not None
    try:
        da.memory.set_limit(MEBIBYTE)
        _memory.empty((3 * MEBIBYTE,), np.uint8)
        found = da.memory.stats()
        assert found.limit == MEBIBYTE
        assert found.idle <= MEBIBYTE
    finally:
        da.memory.set_limit(before)


@pytest.mark.parametrize("nbytes", [-1, 1.5, True, "1", None])
def test_numbers_of_bytes_are_checked(nbytes: Any) -> None:
    for function in (da.memory.trim, da.memory.set_limit):
        with pytest.raises(ArgumentError, match="number of bytes"):
            function(nbytes)


def test_other_kinds_of_memory_are_refused() -> None:
    for device in ("tpu", "cuda:x", "cuda:"):
        with pytest.raises(ArgumentError, match="'pinned'"):
            da.memory.stats(device)


def test_memory_on_gpus_is_counted_and_given_back() -> None:
    cupy = stand_in()

    def program() -> None:
        x = da.ones((MEBIBYTE,), mesh=da.init_device_mesh((1,), device="cuda"))
        held = da.memory.stats("cuda").in_use
        assert held >= x.nbytes
        del x
        found = da.memory.stats("cuda:0")
        assert found.in_use <= held - 8 * MEBIBYTE
        assert found.idle >= 8 * MEBIBYTE
        _pinned.pool.take(cupy, MEBIBYTE)
        assert da.memory.stats("pinned").idle >= MEBIBYTE
        da.memory.trim()
        assert da.memory.stats("cuda").idle == 0
        assert da.memory.stats("pinned").idle == 0
        with pytest.raises(DeviceError, match="is not there"):
            da.memory.stats("cuda:99")

    simulate(1, program)


def test_the_stand_in_takes_memory_back_while_it_hands_some_out() -> None:
    cupy = stand_in()
    if not hasattr(cupy, "operations"):
        pytest.skip("there is a GPU")

    def program() -> None:
        cycle: list[Any] = [cupy.cuda.memory.Memory(512)]
        cycle.append(cycle)
        del cycle
        with cupy._device.heap(0)._lock:  # what is allocated inside may collect garbage
            gc.collect()

    thread = threading.Thread(target=program, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_operators_in_place_and_out_take_no_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, take = [], _arena.take
    monkeypatch.setattr(_arena, "take", lambda n: (taken.append(n), take(n))[1])
    rows = 512

    def program() -> None:
        x = da.distribute_array(np.random.default_rng(3).random((rows, 512)))
        m, s, r = x.mean(0), x.std(0), x.redistribute([da.Replicate()])
        y = da.empty_like(x)
        for work in (
            lambda: operator.isub(x, m),
            lambda: operator.itruediv(x, s),
            lambda: operator.iadd(x, r),
            lambda: da.sqrt(y, out=y),
            lambda: da.add(x, r, out=y),
            lambda: da.multiply(x, 2.0, where=x.to_local()[:1] > 0, out=y),
            lambda: da.clip(x, 0.2, r, out=y),
            lambda: da.round(y, 2, out=y),
        ):
            work()  # what is kept for the layouts is made
            before = len(taken)
            tracemalloc.start()
            work()
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(taken) == before
            assert peak < x.to_local().nbytes / 4  # NumPy's buffers, and Python's objects

    simulate(1, program)


@needs_pool
@pytest.mark.parametrize("function", [np.sqrt, lambda x: np.clip(x, 0.2, 0.8), np.round])
def test_large_results_item_by_item_lie_in_the_pool(function: Callable[..., Any]) -> None:
    x = da.ones((512, 512))
    assert _memory.is_shared(function(x).to_local())
    assert _memory.is_shared(da.fuse(lambda x: function(x + 1))(x).to_local())
