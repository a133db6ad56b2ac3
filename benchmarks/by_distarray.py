"""The library itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import distarray as da
from benchmarks.cases import (
    LINE_SIZE,
    Move,
    bins,
    cube,
    heat_step,
    seven_points,
    shuffled_rows,
)
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


def arrays(x: np.ndarray, y: np.ndarray, r: np.ndarray) -> list[da.DistArray]:
    """Make two arrays that are split over their rows, and one that is on every rank."""
    mesh = da.default_mesh()
    return [_array(x, mesh, ("S0",)), _array(y, mesh, ("S0",)), _array(r, mesh, ("R",))]


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
    dx, dy, dr = arrays(x, y, r)
    rows, columns, everywhere = ([PLACEMENTS[name]] for name in ("S0", "S1", "R"))
    line = da.arange(float(LINE_SIZE)) if name in ("x[i]", "x[i:]") else dx
    turns = itertools.cycle(range(LINE_SIZE))
    rng = da.random.default_rng(0)
    works: dict[str, Work] = {
        "x + y": lambda: dx + dy,
        "x * 2 + y": lambda: dx * 2 + dy,
        "x.T": lambda: dx.T,
        "x[:, 3]": lambda: dx[:, 3],
        "x @ R": lambda: dx @ dr,
        "float(x.sum())": lambda: float(dx.sum()),
        "S0 -> S1": lambda: dx.redistribute(columns),
        "x.sum(reproducible=True)": lambda: float(dx.sum(reproducible=True)),
        "x.std()": lambda: float(dx.std()),
        "x.mean(0)": lambda: dx.mean(axis=0).redistribute(everywhere),
        "sqrt(x) * y + 1": lambda: _scale(dx, dy),
        "((x - 0.5) ** 2).sum()": lambda: float(_sum_of_squares(dx)),
        "S0 @ R": lambda: dx @ dr,
        "S0 @ S0": lambda: (dx @ dy).redistribute(rows),
        "x[i]": lambda: line[next(turns)],
        "x[i:]": lambda: line[next(turns) :],
        "rng.normal": lambda: rng.normal(size=dx.shape),
        "rng.permutation": lambda: rng.permutation(dx.size // 8),
        "map_blocks": lambda: da.map_blocks(np.negative, dx),
    }
    if name in ("halo", "heat step"):
        return _with_edges(dx, name == "heat step")
    if name == "7-point stencil":
        planes = _array(cube(x), da.default_mesh(), ("S0",))
        return lambda: da.map_overlap(seven_points, planes, width=1, interior_first=True)
    return works.get(name)


def _with_edges(x: da.DistArray, step: bool) -> Work:
    """Exchange edges, and perhaps take a step of the heat equation; there is 0 around the whole."""
    u, scratch = da.halo(x, 1, 0), np.zeros_like(x.to_local())

    def work() -> da.DistArray:
        u.update()
        if step:
            heat_step(u.block, scratch)
        return u.array

    return work


@da.fuse
def _scale(x: da.DistArray, y: da.DistArray) -> da.DistArray:
    return da.sqrt(x) * y + 1


@da.fuse
def _sum_of_squares(x: da.DistArray) -> da.DistArray:
    return ((x - 0.5) ** 2).sum()


def selection(name: str, x: np.ndarray, y: np.ndarray) -> Work | None:
    """Select, sort or count items of arrays that are split over their first axis."""
    mesh = da.default_mesh()
    dx, dy = _array(x, mesh, ("S0",)), _array(y, mesh, ("S0",))
    mask = dy > 0.5 if "mask" in name else dy
    values = dy[mask] if name == "x[mask] = y" else dy
    order = _index(dx.shape[0], mesh) if "rows" in name else dx
    length = bins(name)
    works: dict[str, Work] = {
        "x[mask]": lambda: dx[mask],
        "x[mask] = 0": lambda: (dx.__setitem__(mask, 0), dx)[1],
        "x[mask] = y": lambda: (dx.__setitem__(mask, values), dx)[1],
        "x[rows]": lambda: dx[order],
        "x[rows] = y": lambda: (dx.__setitem__(order, dy), dx)[1],
        "sort": lambda: da.sort(dx),
        "argsort": lambda: da.argsort(dx),
        "bincount": lambda: da.bincount(dx, minlength=length).redistribute([da.Shard(0)]),
    }
    return works.get(name.partition(",")[0])


def transform(name: str, shape: tuple[int, ...], block: np.ndarray) -> Work:
    """Transform all axes of an array that is cut along the first."""
    x = _array(block, da.init_device_mesh((shape[0] // len(block),)), ("S0",))
    function = da.fft.rfftn if name.startswith("rfft") else da.fft.fftn
    return lambda: function(x)


def _index(count: int, mesh: da.DeviceMesh) -> da.DistArray:
    """Order rows at random; the index is split as the array is."""
    return da.distribute_array(shuffled_rows(count), mesh, [da.Shard(0)], src=None)


def trim() -> None:
    """Give back the memory that earlier calls have left."""
    da.memory.trim()


def factorization(
    name: str, x: da.DistArray, right: da.DistArray
) -> tuple[Work, Callable[[Any], float]]:
    """Factorize a matrix whose rows are cut, or solve with it.

    The second function gives the sum of absolute values of what is the same for all contenders: of
    a triangle, of singular values or of a solution.
    """

    def told(result: Any) -> float:
        found = result.R if name.startswith("qr") else result.S if name == "svd" else result
        return float(da.sum(da.abs(found)))

    return lambda: factorize(da, name, x, right), told


def factorize(library: ModuleType, name: str, x: Any, right: Any) -> Any:
    """Call the function of NumPy's name."""
    if name == "solve":
        return library.linalg.solve(x, right)
    if name == "svd":
        return library.linalg.svd(x, full_matrices=False)
    return getattr(library.linalg, name.partition(",")[0])(x)
