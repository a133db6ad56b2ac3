"""Streams of work in the background, and what is found out before kernels run on a GPU."""

from __future__ import annotations

import contextlib
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from distarray.comm import _backend, _block_reduction
from distarray.comm.cuda import _device, _launch, _streams
from distarray.comm.cuda import _numba as numba_part
from tests import on_device


@pytest.fixture
def xp() -> Any:
    """Return the stand-in for CuPy, which knows what a stream waits for."""
    found = on_device.stand_in()
    if not hasattr(found, "operations"):
        pytest.skip("a real GPU does not tell what streams wait for")
    _device.bind("cuda:0", 0)
    return found


def _allocated_by_us(xp: Any) -> None:
    _device.empty((64,), np.int64, "cuda:0")


def _uploaded(xp: Any) -> None:
    _launch.upload(np.arange(64))


def _allocated_by_cupy(xp: Any) -> None:
    xp.empty(64) + 1


def _reduced(xp: Any) -> None:
    values = [_backend.asarray(np.ones(64, "f2"), "cuda:0") for _ in range(2)]
    _block_reduction.reduce_into(values[0], values, "sum")


@pytest.mark.parametrize("work", [_allocated_by_us, _uploaded, _allocated_by_cupy, _reduced])
def test_whatever_the_background_allocates_comes_after_what_the_program_still_reads(
    xp: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launch, "is_simulated", lambda: False)
    program = xp.cuda.get_current_stream()

    def task() -> int:
        own = xp.cuda.get_current_stream()
        with ThreadPoolExecutor(1) as beside:  # meanwhile the program is given more to do
            beside.submit(_given_more, xp, program).result()
        work(xp)
        return own.known.get(program.ptr, 0)

    fork = _streams.fork_stream()
    assert fork is not None
    with ThreadPoolExecutor(1) as background:
        waited_for = background.submit(fork.run, task).result()
    assert waited_for == program.known[program.ptr]


def _given_more(xp: Any, program: Any) -> None:
    with program:
        xp.zeros(3) + 1


def test_memory_is_the_programs_again_after_the_background(xp: Any) -> None:
    before = xp.cuda.get_allocator()
    with ThreadPoolExecutor(1) as background:
        background.submit(_streams.Fork(xp.cuda).run, _allocated_by_cupy, xp).result()
        after = background.submit(xp.cuda.get_allocator).result()
    assert after is before


def test_a_new_thread_is_made_known_to_cuda_once(xp: Any, monkeypatch: Any) -> None:
    made = []
    runtime = xp.cuda.runtime
    setting = runtime.setDevice
    monkeypatch.setattr(runtime, "setDevice", lambda n: (made.append(n), setting(n)))

    def twice() -> None:
        _device.use(0)
        _device.use(0)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(twice).result()
    assert made == [0]


def test_a_block_without_items_decides_nothing(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = types.SimpleNamespace(is_available=lambda: True)
    found = types.SimpleNamespace(SIMULATED=False, cuda=numba)
    monkeypatch.setattr(_launch, "_usable", None)
    monkeypatch.setattr(_launch, "load_kernels", lambda name: found)
    _launch.is_usable(xp.empty((0, 4)))
    assert _launch._usable is None
    assert _launch.is_usable(xp.empty((4, 4)))


@pytest.mark.parametrize("trouble", ["no GPU", "no import"])
def test_kernels_that_do_not_serve_are_told_of_once(
    xp: Any, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def without(name: str) -> Any:
        if trouble == "no import":
            raise AttributeError("module 'numpy' has no attribute 'row_stack'")
        numba = types.SimpleNamespace(is_available=lambda: False, cuda_error=lambda: "no driver")
        return types.SimpleNamespace(SIMULATED=False, cuda=numba)

    monkeypatch.setattr(_launch, "_usable", None)
    monkeypatch.setattr(_launch, "load_kernels", without)
    block = xp.empty(4)
    why = "no driver" if trouble == "no GPU" else "row_stack"
    with pytest.warns(RuntimeWarning, match=rf"{why}.*CuPy's own functions serve") as told:
        found = [_launch.is_usable(block) for _ in range(2)]
    assert found == [False, False]
    assert len(told) == 1


def test_what_numpy_has_no_more_is_lent_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_part, "_REMOVED", {"no_such_name": np.vstack, "vstack": None})
    kept = np.vstack
    with contextlib.suppress(KeyError), numba_part._restore_removed_names():
        assert np.no_such_name is np.vstack is kept
        raise KeyError
    assert not hasattr(np, "no_such_name")
    assert np.vstack is kept
