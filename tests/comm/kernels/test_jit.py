"""Kernels compile on first use, from any number of processes at once, wherever they may be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distarray.comm.kernels import _jit, _machine, _threads

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


HALF_PROGRAM = """
import numpy as np
from distarray.comm import reduce_into
source = (np.arange(1 << 17) % 1000).astype(np.float16)
total = np.empty_like(source)
reduce_into(total, [source, source], "sum")
assert (total == source + source).all()
"""


def start(program: str = PROGRAM, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DISTARRAY_KERNELS": "numba", **environment},
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    return output.strip()


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel"))


def test_processes_with_a_cold_cache_leave_whole_files_and_mend_broken_ones(tmp_path: Path) -> None:
    together = [start(NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [finish(process) for process in together] == ["True"] * 2
    assert len(kept(tmp_path)) == 2
    assert len(list(tmp_path.iterdir())) == 2, "no file is left half written"
    written = [path.stat().st_mtime_ns for path in kept(tmp_path)]
    assert finish(start(NUMBA_CACHE_DIR=str(tmp_path))) == "False", "it needs no Numba"
    assert [path.stat().st_mtime_ns for path in kept(tmp_path)] == written
    for path in kept(tmp_path):
        path.write_bytes(path.read_bytes()[:-9] + b"no machine")
    assert finish(start(NUMBA_CACHE_DIR=str(tmp_path))) == "True"
    assert len(kept(tmp_path)) == 2
    assert finish(start(NUMBA_CACHE_DIR=str(tmp_path))) == "False"


def test_numpy_reduces_float16_where_kernels_are_for_processors_without_it(tmp_path: Path) -> None:
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    finish(start(HALF_PROGRAM, **generic))


def test_kernels_work_where_nothing_can_be_kept() -> None:
    assert finish(start(NUMBA_CACHE_DIR=os.devnull + "/nowhere")) == "True"


@pytest.mark.parametrize(
    "environment",
    [
        {"DISTARRAY_NUMBA": "0", "DISTARRAY_KERNELS": ""},
        {"DISTARRAY_KERNELS": "numpy"},
        {"NUMBA_DISABLE_JIT": "1", "DISTARRAY_KERNELS": ""},
    ],
    ids=lambda e: next(iter(e)),
)
def test_numpy_serves_where_numba_is_switched_off(environment: dict[str, str]) -> None:
    assert finish(start(**environment)) == "False"


def test_no_kernel_is_loaded_or_compiled_before_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_jit, "_BYTES_BEFORE_COMPILING", 1000)
    monkeypatch.setattr(_jit, "_BYTES_BEFORE_LOADING", 100)
    monkeypatch.setattr(_jit, "_linked", [])
    fresh = [_jit.Kernel("distarray.comm.kernels._copy", "stream_fill") for _ in range(3)]
    assert [fresh[0].pays(300) for _ in range(4)] == [False, False, False, True]
    assert fresh[0].load() is not None
    monkeypatch.setattr(_jit, "_linked", [])
    assert [fresh[1].pays(n) for n in (100, 1)] == [False, True]
    assert fresh[1].load() is not None
    assert fresh[2].pays(1), "the library that loads them is there"


def test_function_that_needs_the_interpreter_is_no_kernel() -> None:
    pytest.importorskip("numba")

    def print_it(n: int) -> None:
        print(n)

    with pytest.raises(TypeError, match="print_it calls"):
        _jit._machine_code(print_it, "void(int64)")


def test_kernel_answers_and_takes_all_kinds_of_arguments() -> None:
    pytest.importorskip("numba")

    def add_up(numbers: Any, n: int, factor: float, least: int) -> int:
        total = 0.0
        for i in range(n):
            total += numbers[i] * factor
        return int(total) + int(least)

    signature = "int64(CPointer(float64), int64, float64, uint64)"
    code = _jit._machine_code(add_up, signature)
    run = _jit._link(signature.encode() + b"\0" + code)
    numbers = np.arange(5.0)
    assert run(numbers.ctypes.data, 5, -2.5, 2**63 + 3) == 2**63 - 22


def test_kernel_that_fails_says_so() -> None:
    pytest.importorskip("numba")
    run = _jit._link(b"int64(int64)\0" + _jit._machine_code(lambda n: 7 // n, "int64(int64)"))
    assert run(-2) == -4
    with pytest.raises(ArithmeticError):
        run(0)


def test_name_of_a_file_depends_on_sources_versions_and_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def digest() -> str:
        return _jit._digest.__wrapped__("distarray.random._kernels")

    names = {digest()}
    assert names == {digest()}
    names.add(_jit._digest.__wrapped__("distarray.comm.kernels._copy"))
    monkeypatch.setattr(_jit, "_version", lambda package: b"another")
    names.add(digest())
    monkeypatch.setattr(_machine, "features", lambda: "sse2")
    names.add(digest())
    monkeypatch.setattr(_machine, "label", lambda: "another")
    names.add(digest())
    assert len(names) == 5


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
