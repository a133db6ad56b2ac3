"""mpi4py-fft: FFTW's plans for blocks of numpy arrays, and MPI's own datatypes between them."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from benchmarks.measure import Work

NAME = "mpi4py-fft"


def start() -> str | None:
    """Get ready; say why not, if not."""
    try:
        import mpi4py_fft  # noqa: F401 - is it there
    except ImportError as missing:
        return str(missing)
    return None


def local(result) -> np.ndarray:
    """Take the block out of a result."""
    return np.asarray(result)


def transform(name: str, shape: tuple[int, ...], block: np.ndarray) -> Work | None:  # noqa: ARG001
    """Transform all axes of an array that is cut along the first; result and plans are kept."""
    if len(shape) == 1:  # nor can it
        return None
    from mpi4py_fft import PFFT, newDistArray

    plans = PFFT(MPI.COMM_WORLD, shape, axes=(0, 1, 2), dtype=block.dtype, slab=True)
    x, out = newDistArray(plans, False), newDistArray(plans, True)
    x[...] = block
    return lambda: plans.forward(x, out, normalize=False)
