"""Saves in the background: what they write, in which order, and how their errors are told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import distarray as da
from distarray.checkpoint.storage import _files
from distarray.testing import simulate


def test_values_are_those_at_the_call_whatever_happens_after(tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(_files, "hook", lambda *_: gate.wait(30))

    def program() -> None:
        x, n = da.ones((600, 500)), np.ones(3)
        handle = da.checkpoint.save(tmp_path / "x", {"x": x, "n": n}, async_op=True)
        assert not handle.test()
        x += 5
        n += 5
        assert x.sum() == 6 * 300000  # the foreground communicates meanwhile
        gate.set()
        handle.wait()
        assert handle.test()
        found = da.checkpoint.load(tmp_path / "x")
        assert (found["x"].full_array() == 1).all()
        assert found["n"].tolist() == [1, 1, 1]

    simulate(3, program)


def test_second_save_waits_for_the_first(tmp_path):
    def program() -> None:
        for value in range(4):
            da.checkpoint.save(tmp_path / "x", {"v": value}, step=value, keep_last=2, async_op=True)
        da.checkpoint.save(tmp_path / "x", {"v": 4}, step=4, keep_last=2)
        assert da.checkpoint.steps(tmp_path / "x") == [3, 4]

    simulate(2, program)


def fail(operation: str, where: str) -> None:
    if operation == "sync":
        raise OSError(errno.EIO, os.strerror(errno.EIO), where)


def test_errors_are_raised_by_wait_or_by_the_next_save(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "hook", fail)

    def program() -> None:
        handle = da.checkpoint.save(tmp_path / "x", {"v": np.ones(3)}, async_op=True)
        with pytest.raises(da.errors.CheckpointError, match="Input/output"):
            handle.wait()
        da.checkpoint.save(tmp_path / "x", {"v": np.ones(3)}, async_op=True)
        with pytest.raises(da.errors.CheckpointError, match="Input/output"):
            da.checkpoint.save(tmp_path / "x", {"v": np.ones(3)})

    simulate(2, program)
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import sys, time
import numpy as np
import distarray as da
from distarray.checkpoint.storage import _files

def hook(operation, where):
    time.sleep(0.02)
    if sys.argv[2] == "fail" and operation == "sync":
        raise OSError(28, "No space left on device")

_files.hook = hook
da.checkpoint.save(sys.argv[1], {"v": np.ones(3), "large": np.ones(300_000)}, async_op=True)
"""


@pytest.mark.parametrize("ending", ["whole", "fail"])
def test_a_program_that_ends_finishes_its_save_or_says_why_not(tmp_path, ending):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "x"), ending]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    if ending == "whole":
        assert done.stderr == ""
        assert da.checkpoint.load(tmp_path / "x")["v"].tolist() == [1, 1, 1]
    else:
        assert "in the background failed" in done.stderr
        assert "No space left" in done.stderr
        assert list(tmp_path.iterdir()) == []
