"""What MPI libraries say of GPU memory, and which switches they have."""

from __future__ import annotations

import types

import pytest

from distarray.comm.device_messages import _awareness
from distarray.comm.device_messages._awareness import ask, find_switch


@pytest.mark.parametrize(
    ("told", "switch"),
    [
        ("Open MPI v5.0.11, package: Open MPI builder", "OMPI_MCA_opal_cuda_support=true"),
        ("MPICH Version:      5.0.2\nMPICH Release date: ...", None),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.29 (ANL base)", "MPICH_GPU_SUPPORT_ENABLED=1"),
        ("Intel(R) MPI Library 2021.17 for Linux* OS\n", "I_MPI_OFFLOAD=1"),
        ("MVAPICH2 Version:\t2.3.7\nMVAPICH2 Release date: ...", "MV2_USE_CUDA=1"),
        ("MVAPICH-Plus Version:      4.0\nMVAPICH-Plus Release date: ...", None),
        ("MVAPICH Version:      4.1\nMVAPICH Release date: ...", "MVP_USE_CUDA=1"),
        ("HAL MPI 9000", None),
    ],
)
def test_switch_is_that_of_the_library(told, switch):
    found = find_switch(told)
    assert (found and found[0]) == switch


def gpu_query(answer):
    def call(kind, flag):
        assert kind == 0
        flag._obj.value = answer
        return 0

    return {"MPIX_GPU_query_support": call}


@pytest.mark.parametrize(
    ("functions", "answer", "says"),
    [
        (gpu_query(1), True, "takes device memory, says MPIX_GPU_query_support"),
        (gpu_query(0), False, "not built for CUDA, or has it switched off"),
        ({"MPIX_GPU_query_support": lambda kind, flag: 1}, False, "MPIX_GPU_query_support"),
        ({"MPIX_Query_cuda_support": lambda: 1}, True, "says MPIX_Query_cuda_support"),
        ({"MPIX_Query_cuda_support": lambda: 0}, False, "MPIX_Query_cuda_support"),
        ({}, None, "no function"),
    ],
)
def test_library_is_asked_by_the_function_that_it_has(monkeypatch, functions, answer, says):
    library = types.SimpleNamespace(**functions)
    monkeypatch.setattr(_awareness, "_find_libraries", lambda _: ["/opt/libmpi.so.12"])
    monkeypatch.setattr(_awareness.ctypes, "CDLL", lambda path: library)
    found = ask()
    assert found.answer is answer
    assert says in found.text


def test_library_without_a_function_that_tells_is_left_open(monkeypatch):
    monkeypatch.setattr(
        _awareness, "_find_libraries", lambda _: ["/nowhere/libmpi.so", "libc.so.6"]
    )
    assert ask().answer is None


def test_files_of_this_process_are_found():
    assert _awareness._find_libraries("libc.")
    assert _awareness._find_libraries("libnowhere") == []
