"""Whether MPI takes device memory: what a child process finds, and what may not happen to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from distarray.comm import world
from distarray.comm.device_messages import _awareness, _selftest
from distarray.comm.device_messages._awareness import Finding, child, setting
from distarray.errors import ArgumentError, MismatchError
from distarray.testing import simulate

pytestmark = pytest.mark.timeout(90)
ROOT = Path(__file__).resolve().parents[3]
STAND_IN = ROOT / "tests" / "cupy_stand_in"


@pytest.fixture
def cupy_is(monkeypatch, tmp_path):
    """Set the source of what children import as CuPy."""

    def become(source: str) -> None:
        (tmp_path / "cupy.py").write_text(source)
        path = [str(tmp_path), str(STAND_IN)]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    return become


FAKE = """
import types
import numpy as np
class Array:
    def __init__(self, n):
        self.memory = np.zeros(n, np.uint8)
        self.data = types.SimpleNamespace(ptr={ptr})
    def set(self, values):
        self.memory[:] = values
    def get(self):
        return {get}
def empty(n, dtype):
    return Array(n)
def synchronize():
    {synchronize}
cuda = types.SimpleNamespace(
    Device=lambda n: types.SimpleNamespace(use=lambda: None),
    get_current_stream=lambda: types.SimpleNamespace(synchronize=synchronize),
)
"""
GOOD = {"ptr": "self.memory.ctypes.data", "get": "self.memory", "synchronize": "pass"}


def test_child_says_yes_where_the_values_arrive(cupy_is):
    found = child(0)
    assert found == Finding("child", True, "a process has sent device memory to itself")
    cupy_is(FAKE.format(**GOOD))
    assert child(0).answer is True


def test_child_that_crashes_says_no(cupy_is):
    cupy_is(FAKE.format(**GOOD | {"ptr": "16"}))  # no address of this process
    found = child(0)
    assert found.answer is False
    assert "SIG" in found.text or "failed" in found.text


def test_child_that_gets_wrong_values_says_no(cupy_is):
    cupy_is(FAKE.format(**GOOD | {"get": "self.memory ^ 1"}))
    found = child(0)
    assert found.answer is False
    assert "WRONG" in found.text


def test_child_that_hangs_is_ended_and_says_no(cupy_is, monkeypatch, tmp_path):
    monkeypatch.setattr(_awareness, "CHILD_SECONDS", 4.0)
    started = tmp_path / "started"
    start = "__import__('subprocess').Popen(['sleep', '60']).pid"
    hang = f"[open({str(started)!r}, 'w').write(str({start})), __import__('time').sleep(60)]"
    cupy_is(FAKE.format(**GOOD | {"get": hang}))
    before = time.monotonic()
    found = child(0)
    assert time.monotonic() - before < 20
    assert found.answer is False
    assert "within 4 s" in found.text
    state = Path(f"/proc/{started.read_text()}/stat")  # of what it had started
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() - before < 30
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ImportError('no libcuda.so.1 here')", "no libcuda.so.1 here"),
        (FAKE.format(**GOOD | {"synchronize": "raise RuntimeError('no GPU')"}), "no GPU"),
    ],
)
def test_child_that_does_not_come_so_far_says_neither(cupy_is, source, says):
    cupy_is(source)
    found = child(0)
    assert found.answer is None
    assert says in found.text
    assert "DISTARRAY_CUDA_AWARE=1" in found.text


def test_child_is_no_rank_of_the_job(cupy_is, monkeypatch):
    launcher = {
        "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "9", "PMIX_RANK": "1", "HYDI_CONTROL_FD": "7",
        "OMPI_COMM_WORLD_RANK": "1", "OMPI_MCA_ess_base_jobid": "1", "SLURM_PROCID": "1",
        "MPI_LOCALRANKID": "1", "PALS_RANKID": "1", "I_MPI_HYDRA_UUID": "1",
        "MV2_COMM_WORLD_RANK": "1", "PRTE_LAUNCHED": "1",
    }  # fmt: skip
    kept = {
        "OMPI_MCA_opal_cuda_support": "true", "OMPI_MCA_pml": "ucx", "I_MPI_OFFLOAD": "1",
        "MPICH_GPU_SUPPORT_ENABLED": "1", "MV2_USE_CUDA": "1", "UCX_TLS": "all", "PATH": "/bin",
        "OPAL_PREFIX": "/opt", "CUDA_VISIBLE_DEVICES": "3", "MPI4PY_MPIABI": "mpich",
        "LD_PRELOAD": "libmpi.so", "I_MPI_ROOT": "/opt", "MPIR_CVAR_ENABLE_GPU": "1",
    }  # fmt: skip
    assert _awareness._without_launcher(launcher | kept) == kept
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert child(0).answer is True


def test_program_of_the_child_imports_nothing_of_this_package():
    text = Path(_selftest.__file__).read_text()
    assert "from distarray" not in text
    assert "import distarray" not in text


# --- settings ------------------------------------------------------------------------------------


def test_setting_is_auto_unless_set(monkeypatch):
    monkeypatch.delenv(_awareness.VARIABLE, raising=False)
    assert setting() == "auto"
    for value in ("auto", "1", "0"):
        monkeypatch.setenv(_awareness.VARIABLE, value)
        assert setting() == value
    monkeypatch.setenv(_awareness.VARIABLE, "True")
    with pytest.raises(ArgumentError, match=r"'True'.*auto .*1 .*0 "):
        setting()


def test_setting_that_differs_between_ranks_is_an_error_on_all(monkeypatch):
    monkeypatch.setattr(_awareness, "setting", lambda: str(world().rank % 2))

    def run():
        with pytest.raises(MismatchError, match="ranks 0, 2: 0; rank 1: 1"):
            _awareness.verdict(world())
        return world().all_gather_object(world().rank)

    assert simulate(3, run) == [[0, 1, 2]] * 3


def test_wrong_setting_of_one_rank_is_an_error_on_all(monkeypatch):
    usual = setting

    def one_wrong():
        if world().rank == 1:
            raise ArgumentError("wrong here")
        return usual()

    monkeypatch.setattr(_awareness, "setting", one_wrong)

    def run():
        with pytest.raises(ArgumentError, match="wrong here"):
            _awareness.verdict(world())

    simulate(3, run)


@pytest.mark.parametrize("value", ["auto", "1", "0"])
def test_simulated_ranks_have_no_mpi_to_ask_and_are_told_by_the_setting(monkeypatch, value):
    monkeypatch.setenv(_awareness.VARIABLE, value)
    monkeypatch.setattr(_awareness, "child", None)
    verdicts = simulate(2, lambda: _awareness.verdict(world()))
    assert [found.direct for found in verdicts] == [value == "1"] * 2
    text = verdicts[0].findings[0].text
    assert ("threads" in text) if value == "auto" else (f"={value}" in text)
