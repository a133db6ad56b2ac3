"""Factorizations of one matrix that is cut over its rows, float64.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.factorizations``. Square matrices have
4096 rows, tall ones 4 Mi or 1 Mi of 32 columns. The baseline is NumPy in one process, which has all
of the matrix, while the others wait.
"""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import by_distarray, measure, record

ALONE = "NumPy alone"
SHAPES = {
    "cholesky": (4096, 4096),
    "solve": (4096, 4096),
    "qr": (4 << 20, 32),
    "svd": (1 << 20, 32),
    "qr, square": (4096, 4096),
}
QUICK = {
    "cholesky": (1100, 1100),
    "solve": (1100, 1100),
    "qr": (4096, 32),
    "svd": (4096, 32),
    "qr, square": (1100, 1100),
}
"""More than 8 MiB where they are square, so that they are factorized in tiles as well."""


def main() -> None:
    """Measure every factorization."""
    options = record.options()
    comm = MPI.COMM_WORLD
    rows = []
    for name, shape in (QUICK if options.quick else SHAPES).items():
        rows.append(_measure(comm, name, shape, 3 if options.quick else 7))
        record.say(comm, rows[-1])
    record.write(comm, options.out, "factorizations", rows, {})


def _measure(comm: MPI.Comm, name: str, shape: tuple[int, int], repeats: int) -> dict:
    """Measure one factorization; its residual is checked first."""
    x = da.random.default_rng(0).standard_normal(shape)
    if name == "cholesky":
        x = x + x.T + 4 * shape[0] ** 0.5 * da.eye(shape[0])
    right = da.ones(shape[0])
    works: dict[str, measure.Work] = {by_distarray.NAME: lambda: _factorize(da, name, x, right)}
    _check(name, x, right, works[by_distarray.NAME]())
    whole, ones = x.full_array(dst=0), np.ones(shape[0])
    is_first = comm.rank == 0
    works[ALONE] = lambda: _factorize(np, name, whole, ones) if is_first else None
    gc.collect()
    samples = measure.in_turn(comm, works, repeats=repeats)
    return {
        "ranks": comm.size,
        "case": name,
        "size": f"{shape[0]} x {shape[1]}",
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }


def _factorize(library: ModuleType, name: str, x: Any, right: Any) -> Any:
    if name == "solve":
        return library.linalg.solve(x, right)
    if name == "svd":
        return library.linalg.svd(x, full_matrices=False)
    return getattr(library.linalg, name.partition(",")[0])(x)


def _check(name: str, x: Any, right: Any, result: Any) -> None:
    """Compare what the factors come to with the matrix, or the right-hand side."""
    wanted = right if name == "solve" else x
    if name == "solve":
        found = x @ result
    elif name == "svd":
        found = (result.U * result.S) @ result.Vh
    else:
        found = result @ result.T if name == "cholesky" else result.Q @ result.R
    if float(da.linalg.norm(found - wanted)) > 1e-9 * float(da.linalg.norm(x)):
        raise ValueError(f"{name}: wrong values")


if __name__ == "__main__":
    main()
