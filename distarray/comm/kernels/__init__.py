"""Kernels of Numba for host memory: copies, reductions, when they pay, and on how many threads."""

from distarray.comm.kernels._jit import Kernel, are_loaded, load_kernels
from distarray.comm.kernels._loop_nest import address_of
from distarray.comm.kernels._threads import run_in_threads, thread_count

__all__ = ["Kernel", "address_of", "are_loaded", "load_kernels", "run_in_threads", "thread_count"]
