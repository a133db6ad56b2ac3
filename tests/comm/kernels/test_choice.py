"""Work is done by the faster of two functions, once each was timed."""

from __future__ import annotations

import numpy as np
import pytest

from distarray.comm import _block_reduction, _packing
from distarray.comm.kernels import _choice, _loop_nest


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.done: list[str] = []
        monkeypatch.setattr(_choice.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(_choice, "_trials", {})

    def work(self, name: str, seconds: list[float]) -> None:
        self.done.append(name)
        self.now += seconds.pop(0) if len(seconds) > 1 else seconds[0]


@pytest.mark.parametrize(
    ("kernel", "plain", "expected"),
    [
        ([9.0, 1.0], [1.2], "kernel"),  # its first call compiled it
        ([9.0, 1.0], [0.9], "plain"),
        ([9.0, 1.0], [3.0, 0.9], "kernel"),  # clearly slower at once: not tried again
        ([9.0, 4.0, 1.0], [1.1, 7.0], "kernel"),  # the best of several counts
        ([9.0, 4.0, 2.0], [2.1, 1.9, 5.0], "plain"),
    ],
)
def test_faster_function_does_the_rest(monkeypatch, kernel, plain, expected):
    clock = Clock(monkeypatch)
    for _ in range(12):
        _choice.run_faster(
            "work", 1, lambda: clock.work("kernel", kernel), lambda: clock.work("plain", plain)
        )
    assert len(clock.done) == 12
    assert set(clock.done[7:]) == {expected}


def test_every_call_does_the_work_whoever_does_it(monkeypatch):
    monkeypatch.setattr(_choice, "_trials", {})
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
        _loop_nest.fill(dst, turn)
        assert (dst == turn).all()
        _block_reduction.reduce_into(dst, [src[:, :700], src[:, 700:]], "sum")
        np.testing.assert_array_equal(dst, src[:, :700] + src[:, 700:])
    works = {work for work, _ in _choice._trials}
    assert {work[0] for work in works if work != "fill"} == {"rows", "reduce"}
    assert "fill" in works
    assert all(trial.settled for trial in _choice._trials.values())
