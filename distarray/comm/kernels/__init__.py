"""Kernels of Numba for host memory: copies, reductions, when they pay, and on how many threads."""

from distarray.comm.kernels._choice import CERTAINLY_SLOWER, choices, choose_anew, run_faster
from distarray.comm.kernels._jit import Source, compiling_at_once, kernel, load_kernels
from distarray.comm.kernels._loop_nest import address_of
from distarray.comm.kernels._threads import (
    cores,
    cores_of,
    limit_openblas,
    run_in_threads,
    share_cores,
    thread_count,
)

__all__ = [
    "CERTAINLY_SLOWER",
    "Source",
    "address_of",
    "choices",
    "choose_anew",
    "compiling_at_once",
    "cores",
    "cores_of",
    "kernel",
    "limit_openblas",
    "load_kernels",
    "run_faster",
    "run_in_threads",
    "share_cores",
    "thread_count",
]
