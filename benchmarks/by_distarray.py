"""The library itself."""

from __future__ import annotations

import numpy as np

import distarray as da
from benchmarks.cases import Move, shuffled_rows
from benchmarks.measure import Work

NAME = "distarray"

PLACEMENTS = {"S0": da.Shard(0), "S1": da.Shard(1), "R": da.Replicate(), "P": da.Partial()}


def start() -> str | None:
    """Get ready; say why not, if not."""
    return None


def _array(block: np.ndarray, mesh: da.DeviceMesh, placements: tuple[str, ...]) -> da.DistArray:
    """Make an array that lies where results of operations lie, not in the caller's memory."""
    given = da.DistArray.from_local(block, mesh, [PLACEMENTS[name] for name in placements])
    return da.asarray(given, copy=True)  # an operation would reduce partial sums


def move(case: Move, block: np.ndarray) -> Work | None:
    """Redistribute."""
    mesh = da.init_device_mesh(case.mesh)
    x = _array(block, mesh, case.source)
    target = [PLACEMENTS[name] for name in case.target]
    return lambda: x.redistribute(target)


def local(result: da.DistArray) -> np.ndarray:
    """Take the block out of a result."""
    return result.to_local()


def operation(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> Work | None:
    """Perform one operation on arrays that are split over their rows; `r` is on every rank."""
    mesh = da.default_mesh()
    dx, dy, dr = _array(x, mesh, ("S0",)), _array(y, mesh, ("S0",)), _array(r, mesh, ("R",))
    flat = dx.reshape(-1)
    rows, columns, everywhere = ([PLACEMENTS[name]] for name in ("S0", "S1", "R"))
    mask = dy > 0.5 if name == "x[mask]" else None
    order = da.asarray(shuffled_rows(dx.shape[0]))
    works: dict[str, Work] = {
        "x + y": lambda: dx + dy,
        "x * 2 + y": lambda: dx * 2 + dy,
        "x.T": lambda: dx.T,
        "x[:, 3]": lambda: dx[:, 3],
        "x @ R": lambda: dx @ dr,
        "float(x.sum())": lambda: float(dx.sum()),
        "S0 -> S1": lambda: dx.redistribute(columns),
        "x.std()": lambda: float(dx.std()),
        "x.mean(0)": lambda: dx.mean(axis=0).redistribute(everywhere),
        "x[mask]": lambda: dx[mask],
        "x[rows]": lambda: dx[order],
        "x[rows] = y": lambda: (dx.__setitem__(order, dy), dx)[1],
        "S0 @ R": lambda: dx @ dr,
        "S0 @ S0": lambda: (dx @ dy).redistribute(rows),
        "sort": lambda: da.sort(flat),
        "argsort": lambda: da.argsort(flat),
    }
    return works.get(name)
