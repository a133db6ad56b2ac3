"""What MPI libraries say of GPU memory, and which switches they have."""

from __future__ import annotations

import pytest

from distarray.comm.device_messages import _awareness
from distarray.comm.device_messages._awareness import Finding, ask, find_library

OPEN_MPI = "Open MPI v5.0.11, package: Open MPI builder, ident: 5.0.11, repo rev: v5.0.11"
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: ...\nMPICH ABI:          18:0:6"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base 3.4a2)\nMPI BUILD INFO : ..."
INTEL = "Intel(R) MPI Library 2021.17 for Linux* OS\n"
MVAPICH2 = "MVAPICH2 Version:\t2.3.7\nMVAPICH2 Release date: ...\nMVAPICH2 ABI: 13:8:1"
PLUS = "MVAPICH-Plus Version:      4.0\nMVAPICH-Plus Release date: ..."
MVAPICH = "MVAPICH Version:      4.1\nMVAPICH Release date: ..."


@pytest.fixture
def loaded(monkeypatch):
    """Set which libraries are loaded, and what the query answers."""
    files = {"libmpi_gtl_cuda": ["/opt/libmpi_gtl_cuda.so.0"]}
    monkeypatch.setattr(_awareness, "_loaded", lambda beginning: files.get(beginning, []))
    monkeypatch.setattr(
        _awareness, "_query", lambda name: Finding("library", True, f"{name} was asked")
    )
    return files


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (OPEN_MPI, ("Open MPI", (5, 0, 11))),
        (MPICH, ("MPICH", (5, 0, 2))),
        (CRAY, ("Cray MPICH", (8, 1, 28, 29))),
        (INTEL, ("Intel MPI", (2021, 17))),
        (MVAPICH2, ("MVAPICH2", (2, 3, 7))),
        (PLUS, ("MVAPICH-Plus", (4, 0))),
        (MVAPICH, ("MVAPICH", (4, 1))),
        ("HAL MPI 9000", ("", ())),
    ],
)
def test_library_is_known_by_what_it_says(told, found):
    assert find_library(told)[:2] == found


@pytest.mark.parametrize(
    ("told", "environment", "answer", "says"),
    [
        (OPEN_MPI, {}, True, "asked"),
        (OPEN_MPI, {"OMPI_MCA_opal_cuda_support": "false"}, False, "OMPI_MCA_opal_cuda_support"),
        (MPICH, {}, True, "asked"),
        (MPICH, {"MPIR_CVAR_ENABLE_GPU": "0"}, False, "MPIR_CVAR_ENABLE_GPU=1"),
        (CRAY, {}, False, "MPICH_GPU_SUPPORT_ENABLED=1"),
        (CRAY, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True, "asked"),
        (INTEL, {}, False, "I_MPI_OFFLOAD=1"),
        (INTEL, {"I_MPI_OFFLOAD": "0"}, False, "I_MPI_OFFLOAD=1"),
        (INTEL, {"I_MPI_OFFLOAD": "1"}, None, "says no more"),
        (INTEL.replace("21.17", "21.9"), {"I_MPI_OFFLOAD": "1"}, False, "2021.9 knows no"),
        (MVAPICH2, {}, False, "MV2_USE_CUDA=1"),
        (MVAPICH2, {"MV2_USE_CUDA": "1"}, True, "asked"),
        (MVAPICH, {}, False, "MVP_USE_CUDA=1"),
        (PLUS, {}, True, "asked"),
        (PLUS, {"MVP_ENABLE_GPU": "off"}, False, "MVP_ENABLE_GPU=1"),
        ("HAL MPI 9000", {}, True, "this MPI library was asked"),
    ],
)
def test_switch_that_is_off_is_named_before_the_library_is_asked(
    loaded, told, environment, answer, says
):
    found = ask(told, environment)
    assert found.answer is answer
    assert says in found.text


def test_cray_without_its_gpu_library_is_said_to_be(loaded):
    loaded.clear()
    found = ask(CRAY, {"MPICH_GPU_SUPPORT_ENABLED": "1"})
    assert found.answer is False
    assert "libmpi_gtl_cuda" in found.text


def test_library_without_a_function_that_tells_is_left_open(monkeypatch):
    monkeypatch.setattr(_awareness, "_loaded", lambda _: ["/nowhere/libmpi.so", "libc.so.6"])
    assert ask(MPICH, {}).answer is None


def test_files_of_this_process_are_found():
    assert _awareness._loaded("libc.")
    assert _awareness._loaded("libnowhere") == []
