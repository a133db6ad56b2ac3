"""Numba kernels for host memory: copies, reductions, and when they pay."""
