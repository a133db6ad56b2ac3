"""Kernels compile on first use, from any number of processes at once, wherever they may be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distarray.comm.kernels import _jit, _threads

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import sys
import numpy as np
from distarray.comm import copy_box, reduce_into
source = np.random.default_rng(0).random((300, 2000))
target = np.zeros((300, 1000))
copy_box(target, source[:, 500:1500], total=1 << 40)
assert (target == source[:, 500:1500]).all()
total = np.zeros((300, 2000))
reduce_into(total, [source, source, source], "sum")
assert (total == source + source + source).all()
print("numba" in sys.modules)
"""


def start(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    return output.strip()


def test_processes_with_a_cold_cache_compile_each_kernel_once(tmp_path: Path) -> None:
    together = [start(NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(3)]
    assert [finish(process) for process in together] == ["True"] * 3
    compiled = sorted(tmp_path.rglob("*.nbc"))
    assert len(compiled) == 2, "one file of machine code for each of the two kernels"
    written = [path.stat().st_mtime_ns for path in compiled]
    assert finish(start(NUMBA_CACHE_DIR=str(tmp_path))) == "True"
    assert [path.stat().st_mtime_ns for path in compiled] == written


def test_kernels_work_where_nothing_can_be_kept() -> None:
    assert finish(start(NUMBA_CACHE_DIR=os.devnull + "/nowhere")) == "True"


@pytest.mark.parametrize(
    "environment",
    [{"DISTARRAY_NUMBA": "0"}, {"NUMBA_DISABLE_JIT": "1"}],
    ids=lambda e: next(iter(e)),
)
def test_numpy_serves_where_numba_is_switched_off(environment: dict[str, str]) -> None:
    assert finish(start(**environment)) == str("NUMBA_DISABLE_JIT" in environment)


def double(x: int) -> int:
    return x + x


def test_kernel_is_kept_in_the_first_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [Path(os.devnull) / "nowhere", tmp_path / "kept", tmp_path / "not needed"]
    monkeypatch.setattr(_jit, "_folders", lambda *args: folders)
    assert _jit.compile_function(double, "int64(int64)")(21) == 42
    assert len(list(folders[1].rglob("*.nbc"))) == 1
    assert not folders[2].exists()


def test_kernel_with_another_closure_has_a_folder_of_its_own() -> None:
    def adding(n: int) -> Any:
        return lambda x: x + n

    names = [_jit._folders(adding(n), "int64(int64)", ())[0].name for n in (1, 2, 1)]
    assert names[0] == names[2] != names[1]
    assert names[0] != _jit._folders(adding(1), "float64(float64)", ())[0].name
    assert names[0] != _jit._folders(adding(1), "int64(int64)", (_jit,))[0].name


def test_kernels_of_rows_hold_nothing_that_differs_between_processes() -> None:
    """Numba finds nothing on disk of a function whose closure holds an intrinsic."""
    kernels = pytest.importorskip("distarray.comm.kernels._rows")
    tables = (kernels.COMPRESS, kernels.COUNT, kernels.GROUP, kernels.MERGE, kernels.MOVE_ROWS)
    for kernel in (kernel for table in tables for kernel in table.values()):
        held = [cell.cell_contents for cell in kernel._function.__closure__ or ()]
        assert all(type(one) in (int, bool) for one in held), held


def test_threads_are_as_many_as_configured_and_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_count", None)
    monkeypatch.setenv("DISTARRAY_NUM_THREADS", "5")
    assert _threads.thread_count(1 << 10) == 1
    assert _threads.thread_count(1 << 25) == 4
    assert _threads.thread_count(1 << 40) == 5


def test_what_a_thread_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(part: int) -> None:
        raise KeyError(part)

    with pytest.raises(KeyError, match="3"):
        _threads.run_in_threads(fail, [3])
