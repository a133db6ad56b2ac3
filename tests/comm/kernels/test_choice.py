"""Work is done by the faster of two functions, once each was timed, or as the user says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distarray.comm import _block_reduction, _packing
from distarray.comm.kernels import _choice, _jit, _loop_nest, _machine
from distarray.errors import ArgumentError

ROOT = Path(__file__).resolve().parents[3]


class Stand:
    """A kernel that is there, or is not yet."""

    def __init__(self, is_ready: bool = True) -> None:
        self.is_ready = is_ready
        self.asked: list[int] = []

    def pays(self, nbytes: int) -> bool:
        self.asked.append(nbytes)
        return self.is_ready

    def load(self) -> Any:
        return "code"


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.done: list[str] = []
        self.kernel = Stand()
        monkeypatch.setattr(_choice.time, "perf_counter", lambda: self.now)

    def work(self, name: str, seconds: list[float]) -> None:
        self.done.append(name)
        self.now += seconds.pop(0) if len(seconds) > 1 else seconds[0]

    def run(self, kernel: list[float], plain: list[float], job: str = "copy", dear: int = 1) -> str:
        def by_kernel(code: str) -> None:
            assert code == "code"
            self.work("kernel", kernel)

        def by_numpy() -> None:
            self.work("plain", plain)

        _choice.run_faster(job, 1, self.kernel, by_kernel, by_numpy, dear)  # type: ignore[arg-type]
        return self.done[-1]


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let each test begin as a process on a new machine does."""
    chosen: dict[str, str] = {}
    monkeypatch.setattr(_choice, "_chosen", lambda: chosen)
    monkeypatch.setattr(_choice, "_trials", {})
    monkeypatch.setattr(_choice, "_measured", {})
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for name in ("DISTARRAY_KERNELS", "DISTARRAY_NUMBA"):
        monkeypatch.delenv(name, raising=False)
    _jit.forced.cache_clear()
    yield
    _jit.forced.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "plain", "expected"),
    [
        ([9.0, 1.0], [1.2], "kernel"),  # its first call met fresh memory
        ([9.0, 1.0], [0.9], "plain"),
        ([9.0, 1.0], [3.0, 0.9], "kernel"),  # clearly slower at once: not tried again
        ([9.0, 4.0, 1.0], [1.1, 7.0], "kernel"),  # the best of several counts
        ([9.0, 4.0, 2.0], [2.1, 1.9, 5.0], "plain"),
    ],
)
def test_faster_function_does_the_rest(monkeypatch, kernel, plain, expected):
    clock = Clock(monkeypatch)
    for _ in range(12):
        clock.run(kernel, plain)
    assert len(clock.done) == 12
    assert set(clock.done[7:]) == {expected}
    assert _choice.choices() == {"copy, 1": "numba" if expected == "kernel" else "numpy"}


def test_choice_can_be_made_anew(monkeypatch):
    clock = Clock(monkeypatch)
    for _ in range(12):
        clock.run([9.0], [1.0])
    _choice.choose_anew()
    assert _choice.choices() == {}
    for _ in range(12):
        clock.run([1.0], [9.0])
    assert _choice.choices() == {"copy, 1": "numba"}


def test_numpy_works_until_the_kernel_is_there(monkeypatch):
    clock = Clock(monkeypatch)
    clock.kernel = Stand(is_ready=False)
    assert [clock.run([1.0], [9.0], dear=3) for _ in range(20)] == ["plain"] * 20
    assert clock.kernel.asked == [3] * 20
    assert _choice.choices() == {}
    clock.kernel.is_ready = True
    assert clock.run([1.0], [9.0]) == "kernel"


def test_numpy_is_not_tried_where_it_takes_many_times_as_long(monkeypatch):
    clock = Clock(monkeypatch)
    assert {clock.run([9.0], [1.0], dear=_choice.CERTAINLY_SLOWER) for _ in range(9)} == {"kernel"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("numpy", ["plain", "plain"]),
        ("numba", ["kernel", "kernel"]),
        ("copy:numpy, reduce:numba", ["plain", "kernel"]),
        ("numba,copy:numpy", ["plain", "kernel"]),
        ("reduce:numpy", ["kernel", "plain"]),  # the other is measured
    ],
)
def test_user_decides(monkeypatch, setting, expected):
    monkeypatch.setenv("DISTARRAY_KERNELS", setting)
    clock = Clock(monkeypatch)
    clock.kernel = Stand(is_ready="reduce:numpy" in setting)  # who forces a kernel gets it at once
    _choice._chosen()["copy f8, 1"] = "numba" if expected[0] == "kernel" else "numpy"
    for _ in range(3):
        assert [clock.run([1.0], [9.0], job) for job in ("copy f8", "reduce f8")] == expected
        _choice._chosen()["reduce f8, 1"] = "numba" if expected[1] == "plain" else "numpy"


def test_older_setting_means_numpy_for_all(monkeypatch):
    monkeypatch.setenv("DISTARRAY_NUMBA", "0")
    assert _jit.forced() == dict.fromkeys(_jit.JOBS, "numpy")
    monkeypatch.setenv("DISTARRAY_KERNELS", "copy:numpy")
    _jit.forced.cache_clear()
    assert _jit.forced() == {"copy": "numpy"}


@pytest.mark.parametrize(
    "setting", ["fast", "copy", "copy:fast", "copies:numpy", "numpy,,", ":numpy"]
)
def test_words_that_nobody_knows_are_an_error(monkeypatch, setting):
    monkeypatch.setenv("DISTARRAY_KERNELS", setting)
    with pytest.raises(ArgumentError, match=r"numpy or numba.*copy, transpose"):
        _jit.forced()


def test_forcing_numba_without_it_is_an_error(monkeypatch):
    monkeypatch.setenv("DISTARRAY_KERNELS", "copy:numba")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(ArgumentError, match="install it"):
        _jit.forced()


def test_choices_are_kept_and_merged(monkeypatch):
    _choice._measured["copy, 1"] = "numba"
    _choice._keep()
    monkeypatch.setattr(_choice, "_measured", {"fill, 2": "numpy", "copy, 1": "numpy"})
    assert _choice._kept() == {"copy, 1": "numba"}
    _choice._keep()
    assert _choice._kept() == {"copy, 1": "numpy", "fill, 2": "numpy"}
    monkeypatch.setattr(_jit, "versions", lambda: "others")
    assert _choice._kept() == {}


@pytest.mark.parametrize(
    "choices", [None, [], {"copy, 1": "fast"}, {"copy, 1": 3}, {"copy, 1": ["numpy"]}]
)
def test_choices_that_are_none_are_left_out(choices):
    _machine.store(_choice._FILE, {"of": _jit.versions(), "choices": choices})
    assert _choice._kept() == {}


PROGRAM = """
import numpy as np
from distarray.comm import copy_box
from distarray.comm.kernels import _choice, _jit, choices
_jit._BYTES_BEFORE_LOADING = _jit._BYTES_BEFORE_COMPILING = 0
source = np.random.default_rng(0).random((300, 2000))
for _ in range(9):
    target = np.zeros((300, 1000))
    copy_box(target, source[:, 500:1500], total=1 << 40)
    assert (target == source[:, 500:1500]).all()
print(len(_choice._trials), choices())
"""


def test_later_process_measures_nothing(tmp_path: Path) -> None:
    def run() -> str:
        command = [sys.executable, "-W", "error", "-c", PROGRAM]
        return subprocess.check_output(command, cwd=ROOT, env=os.environ, text=True)

    first = run()
    kept = json.loads(next(tmp_path.glob("kernels-*.json")).read_text())["choices"]
    assert first == f"1 {kept}\n"
    assert list(kept) == ["copy rows 13, 22"]
    assert run() == f"0 {kept}\n"


def test_every_call_does_the_work_whoever_does_it(monkeypatch):
    monkeypatch.setattr(_packing, "_KERNEL_BYTES", 0)
    monkeypatch.setattr(_block_reduction, "_KERNEL_BYTES", 0)
    monkeypatch.setattr(_loop_nest, "STREAMING_BYTES", 0)
    monkeypatch.setattr(_block_reduction, "STREAMING_BYTES", 0)
    rng = np.random.default_rng(3)
    for turn in range(10):
        src = rng.random((61, 1400))
        dst = np.full((61, 700), -1.0)
        _packing.copy_box(dst, src[:, 300:1000], total=1 << 40)
        np.testing.assert_array_equal(dst, src[:, 300:1000])
        across = np.full((700, 61), -1.0)
        _packing.copy_box(across, src[:, 300:1000].T, total=1 << 40)
        np.testing.assert_array_equal(across, src[:, 300:1000].T)
        _loop_nest.fill(dst, turn)
        assert (dst == turn).all()
        _block_reduction.reduce_into(dst, [src[:, :700], src[:, 700:]], "sum")
        np.testing.assert_array_equal(dst, src[:, :700] + src[:, 700:])
    works = {name.split()[0] for name in _choice.choices()}
    assert {work.rstrip(",") for work in works} == {"copy", "transpose", "fill", "reduce"}
