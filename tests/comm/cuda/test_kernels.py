"""Kernels for GPUs without one: what Numba's simulator makes of them, and what their code is."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from math import prod
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from distarray.comm.cuda import _boxes, _kernels, _launch
from distarray.comm.cuda._boxes import make_table, parts, widest_word

from .compiled_kernels import CANNOT

pytestmark = pytest.mark.timeout(240)  # examples take 10 to 20 s of a core

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def child(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run Python by itself, with settings in its environment."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "cupy_stand_in")])
    kept = {key: value for key, value in os.environ.items() if key != "DISTARRAY_TEST_RECORDS"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=230,
        env={**kept, "PYTHONPATH": path, **settings},
    )


@pytest.mark.skipif(importlib.util.find_spec("numba.cuda") is None, reason="no numba.cuda")
@pytest.mark.parametrize("folder", ["comm/cuda", "random"])
def test_kernels_do_on_a_simulated_gpu_what_the_host_does(folder: str) -> None:
    path = ROOT / "tests" / folder / "simulated_kernels.py"
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider"]
    done = child("-m", "pytest", *options, str(path), NUMBA_ENABLE_CUDASIM="1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the code of kernels for a GPU of compute capability 9.0."""
    path = tmp_path_factory.mktemp("ptx") / "kernels.json"
    done = child(str(HERE / "compiled_kernels.py"), str(path), NUMBA_ENABLE_CUDASIM="0")
    if done.returncode == CANNOT:
        pytest.skip(f"{done.stdout.strip()[:300]}; pip install numba-cuda[cu13]")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(path.read_text()))


def test_nothing_is_fused_that_the_host_rounds_twice(ptx: dict[str, str]) -> None:
    """Neither in the code nor by the assembler, which fuses what has no mode of rounding."""
    for name, code in ptx.items():
        assert not re.findall(r"\b(?:fma|mad)\S*\.f\d+", code), name
        assert not (re.search(r"\bmul\.f", code) and re.search(r"\b(?:add|sub)\.f", code)), name
        assert not re.findall(r"\.(?:ftz|approx|full)\b", code), name


def test_kernels_need_no_functions_and_no_memory_of_their_own(ptx: dict[str, str]) -> None:
    for name, code in ptx.items():
        assert ".local" not in code, name
        assert not re.findall(r"\.extern|\bcall\b", code), name


def test_no_item_is_found_by_a_division(ptx: dict[str, str]) -> None:
    for name in ("sum f4", "rows"):
        assert not re.findall(r"\b(?:div|rem)\.[su]\d+", ptx[name]), name
    assert not re.findall(r"\b(?:div|rem)\.[su]64", ptx["copy u8"])


def test_rows_are_stored_16_bytes_at_a_time(ptx: dict[str, str]) -> None:
    assert "st.global.v2.u64" in ptx["rows"]
    assert "ld.global.u64" in ptx["rows"]


def test_copies_move_8_bytes_at_a_time_and_transpose_in_shared_memory(ptx: dict[str, str]) -> None:
    assert "st.global.u64" in ptx["copy u8"]
    assert "ld.shared.u64" in ptx["copy u8"]


# --- tables --------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 5), *[st.integers(-50, 50)] * 2), min_size=1, max_size=5),
    st.integers(1, 4),
    st.integers(1, 20),
)
def test_parts_make_up_the_whole(axes: list[tuple[int, int, int]], most: int, items: int) -> None:
    def places(where: tuple[int, ...], box: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        index = np.indices([n for n, _, _ in box]).reshape(len(box), -1)
        strides = np.array([axis[1:] for axis in box])
        return [tuple(place) for place in (index.T @ strides + np.array(where)).tolist()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_boxes, "_MOST_ITEMS", items)
        found = list(parts(axes, most))
    assert all(len(box) <= most and prod(n for n, _, _ in box) <= items for _, box in found)
    together = [place for where, box in found for place in places(where, list(box))]
    assert sorted(together) == sorted(places((0, 0), axes))


def test_tables_tell_where_the_tiles_of_a_box_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    made, counts = make_table([[2, 10, 11], [7, 20, 21], [1, 30, 31]])
    assert counts == (3, 10)
    assert made.tolist() == [0, 2, 9, 10, 10, 11, 20, 21, 30, 31]
    assert make_table([])[1] == (0, 0)
    monkeypatch.setattr(_boxes, "_MOST_BOXES", 2)
    assert make_table([[1, 1]] * 3)[1] is None


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_divisors_divide(n: int, i: int) -> None:
    factor, shift = _kernels.divisor(n)
    assert factor < 2**32
    for number in (i, i // n * n, max(0, i // n * n - 1), 2**31 - 1):
        assert (2 * number * factor >> 32) >> shift == number // n


def test_widest_word_divides_every_length() -> None:
    assert widest_word(32, 48, -16) == 8
    assert widest_word(0, 24, 4) == 4
    assert widest_word(5, 0) == 1


def test_kernels_serve_only_where_there_is_a_gpu() -> None:
    """Arrays in host memory go to NumPy."""
    assert not _launch.is_usable(np.zeros(3))
