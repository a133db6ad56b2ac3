"""Fourier transforms of arrays that are cut along their first axis.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.transforms``. The baseline is the
version written by hand; SciPy alone does the whole on one process while the others wait.
"""

from __future__ import annotations

import gc

import numpy as np
from mpi4py import MPI

from benchmarks import (
    by_distarray,
    by_hand,
    by_heat,
    by_mpi4py_fft,
    cases,
    contenders,
    measure,
)

ALONE = "SciPy alone"


def main() -> None:
    """Measure every transform with every contender."""
    modules = (by_distarray, by_hand, by_mpi4py_fft, by_heat)
    contenders.measure_all("transforms", lambda *_: cases.TRANSFORMS, _measure, modules)


def _measure(comm: MPI.Comm, name: str, running: list, quick: bool) -> dict:
    """Measure one transform; norms, and blocks that lie alike, are compared first."""
    shape = cases.transform_shape(name, quick)
    block = _items(name, (shape[0] // comm.size, *shape[1:]), comm.rank)
    works: dict[str, measure.Work] = {}
    known: dict[tuple[int, ...], np.ndarray] = {}
    norm = None
    for module in running:
        work = module.transform(name, shape, block)
        if work is None:
            continue
        result = module.local(work())
        square = comm.allreduce(float(np.vdot(result, result).real))
        norm = norm or square
        other = known.setdefault(result.shape, result.copy())
        if not np.isclose(square, norm) or not np.allclose(result, other, atol=1e-12 * norm**0.5):
            raise ValueError(f"{module.NAME}: {name} differs from {running[0].NAME}")
        del result, other
        works[module.NAME] = work
    known.clear()
    works[ALONE] = _alone(comm, name, shape)
    gc.collect()
    samples = measure.in_turn(comm, works, repeats=3 if quick else 9)
    return {
        "ranks": comm.size,
        "case": name,
        "size": " x ".join(map(str, shape)),
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }


def _items(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    items = random.random(shape)
    return items if name.startswith("rfft") else items + 1j * random.random(shape)


def _alone(comm: MPI.Comm, name: str, shape: tuple[int, ...]) -> measure.Work:
    """Let the first rank do all of it with SciPy while the others wait."""
    if comm.rank:
        return lambda: None
    from scipy import fft

    function, x = (fft.rfftn if name.startswith("rfft") else fft.fftn), _items(name, shape, 0)
    return lambda: function(x)


if __name__ == "__main__":
    main()
