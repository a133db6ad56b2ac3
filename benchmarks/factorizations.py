"""Factorizations of one matrix that is cut over its rows, float64.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.factorizations``. Square matrices have
4096 rows, tall ones 4 Mi or 1 Mi of 32 columns. The baseline is NumPy in one process, which has all
of the matrix, while the others wait. ScaLAPACK has its matrices in its own blocks beforehand.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import by_distarray, by_heat, by_scalapack, contenders, measure

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
    """Measure every factorization with every contender."""
    modules = (by_distarray, by_scalapack, by_heat)
    contenders.measure_all("factorizations", _cases, _measure, modules)


def _cases(_ranks: int, quick: bool) -> Iterable[tuple[str, tuple[int, int]]]:
    return (QUICK if quick else SHAPES).items()


def _measure(
    comm: MPI.Comm, case: tuple[str, tuple[int, int]], running: list[ModuleType], quick: bool
) -> dict:
    """Measure one factorization; a residual and what the factors come to are compared first."""
    name, shape = case
    x = da.random.default_rng(0).standard_normal(shape)
    if name == "cholesky":
        x = x + x.T + 4 * shape[0] ** 0.5 * da.eye(shape[0])
    right = da.ones(shape[0])
    works: dict[str, measure.Work] = {}
    known = None
    for module in running:
        found = module.factorization(name, x, right)
        if found is None:
            continue
        work, told = found
        result = work()
        if module is by_distarray:
            _check(name, x, right, result)
        number = told(result)
        del result
        known = known or number
        if not np.isclose(number, known, rtol=1e-6):
            raise ValueError(f"{module.NAME}: {name} comes to {number}, not to {known}")
        works[module.NAME] = work
    whole, ones = x.full_array(dst=0), np.ones(shape[0])
    is_first = comm.rank == 0
    works[ALONE] = lambda: by_distarray.factorize(np, name, whole, ones) if is_first else None
    gc.collect()
    samples = measure.in_turn(comm, works, repeats=3 if quick else 7)
    return {
        "ranks": comm.size,
        "case": name,
        "size": f"{shape[0]} x {shape[1]}",
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }


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
