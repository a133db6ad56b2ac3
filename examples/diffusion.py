"""Heat that spreads through a cube: implicit steps, solved by conjugate gradients on halos.

Run it as ``mpiexec -n 4 python examples/diffusion.py``. It writes ``diffusion.png``.

The walls are held at 0. A step of the backward Euler method is stable however long it is, and
solves u - rate * laplacian(u) = (the temperature before). `da.linalg.cg` needs the left side alone,
as a function of arrays of three axes. NumPy's lines for the whole cube are right for each block, as
its halo has the neighbours' faces. `diffuse_alone` is its twin for one process, with SciPy's `cg`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from arguments import at_least

import distarray as da


def mesh_shape(ranks: int) -> tuple[int, int, int]:
    """Factor `ranks` into the grid whose blocks have the smallest faces."""
    grids = [
        (i, j, ranks // i // j)
        for i in range(1, ranks + 1)
        for j in range(1, ranks // i + 1)
        if ranks % i == 0 and ranks // i % j == 0
    ]
    return min(grids, key=lambda grid: (sum(grid), grid[::-1]))


def start(points: int) -> np.ndarray:
    """Make a cold cube with a hot ball off its centre and a warm rod."""
    x, y, z = np.meshgrid(*[(np.arange(points) + 0.5) / points] * 3, indexing="ij", sparse=True)
    ball = (x - 0.4) ** 2 + (y - 0.35) ** 2 + (z - 0.5) ** 2 < 0.2**2
    rod = (np.abs(x - 0.75) < 0.06) & (np.abs(y - 0.7) < 0.06) & (z > -1)
    return 100.0 * ball + 50.0 * rod


def apply(around: np.ndarray, out: np.ndarray, rate: float) -> None:
    """Put u - rate * laplacian(u) into `out`, of u inside of one more plane on each side.

    Plane by plane, so that what is added up stays in the cache.
    """
    scratch = np.empty(out.shape[1:])
    for i, plane in enumerate(out):
        here = around[i + 1]
        np.add(around[i, 1:-1, 1:-1], around[i + 2, 1:-1, 1:-1], out=plane)
        plane += here[:-2, 1:-1]
        plane += here[2:, 1:-1]
        plane += here[1:-1, :-2]
        plane += here[1:-1, 2:]
        plane *= -rate
        np.multiply(here[1:-1, 1:-1], 1 + 6 * rate, out=scratch)
        plane += scratch


class LeftSide:
    """The operator of an implicit step, with one halo and one result for all applications."""

    def __init__(self, like: da.DistArray, rate: float) -> None:
        self.halo = da.halo(like, 1, 0)
        self.result = da.empty_like(like)
        self.rate = rate

    def __call__(self, u: da.DistArray) -> da.DistArray:
        apply(self.halo.update(u).block, self.result.to_local(), self.rate)
        return self.result


def diffuse(
    u: da.DistArray, steps: int, rate: float, rtol: float
) -> tuple[da.DistArray, list[int]]:
    """Take steps on a distributed cube; return it, and how many iterations each took."""
    left = LeftSide(u, rate)
    iterations = []
    for _ in range(steps):
        count = [0]
        u, info = da.linalg.cg(left, u, x0=u, rtol=rtol, callback=lambda _, n=count: add_one(n))
        if info:
            raise RuntimeError(f"no solution: info={info}")
        iterations += count
    return u, iterations


def diffuse_alone(
    u: np.ndarray, steps: int, rate: float, rtol: float
) -> tuple[np.ndarray, list[int]]:
    """Take steps on a whole cube."""
    from scipy.sparse.linalg import LinearOperator, cg

    around, result = np.zeros([n + 2 for n in u.shape]), np.empty_like(u)

    def multiply(flat: np.ndarray) -> np.ndarray:
        around[1:-1, 1:-1, 1:-1] = flat.reshape(u.shape)
        apply(around, result, rate)
        return result.reshape(-1)

    left = LinearOperator((u.size, u.size), multiply, dtype=u.dtype)
    iterations = []
    for _ in range(steps):
        count = [0]
        flat = u.reshape(-1)
        flat, info = cg(left, flat, x0=flat, rtol=rtol, callback=lambda _, n=count: add_one(n))
        if info:
            raise RuntimeError(f"no solution: info={info}")
        u = flat.reshape(u.shape)
        iterations += count
    return u, iterations


def add_one(count: list[int]) -> None:
    """Count an iteration."""
    count[0] += 1


def draw(path: Path, slices: dict[str, np.ndarray]) -> None:
    """Draw planes of the cube side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(slices), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(slices), squeeze=False)[0]
    for panel, (title, plane) in zip(panels, slices.items(), strict=True):
        image = panel.imshow(plane.T, origin="lower", cmap="inferno", vmin=0)
        panel.set(title=title, xlabel="x", ylabel="y", xticks=[], yticks=[])
        figure.colorbar(image, ax=panel, shrink=0.9)
    figure.suptitle("Temperature in the middle plane")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Run both ways, compare, and draw the middle plane."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=at_least(1), default=64, help="grid points along an edge")
    parser.add_argument("--steps", type=at_least(1), default=10)
    parser.add_argument(
        "--rate",
        type=at_least(0, float),
        default=2.0,
        help="diffusivity * time of a step / spacing**2",
    )
    parser.add_argument(
        "--rtol", type=at_least(0, float), default=1e-10, help="of each system of equations"
    )
    parser.add_argument("--check", action="store_true", help="compare with the twin in SciPy")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    options = parser.parse_args(arguments)

    world = da.default_mesh()
    mesh = da.init_device_mesh(mesh_shape(world.size), ("x", "y", "z"))
    how = options.rate, options.rtol
    u = da.distribute_array(
        start(options.points), mesh, [da.Shard(0), da.Shard(1), da.Shard(2)], src=None
    )
    middle = options.points // 2
    slices = {"start": u[:, :, middle].full_array(dst=0)}
    done, iterations = 0, []
    for until in (options.steps // 2, options.steps):
        u, more = diffuse(u, until - done, *how)
        slices[f"after {until} steps"] = u[:, :, middle].full_array(dst=0)
        done, iterations = until, iterations + more
    heat = float(u.mean())
    whole = u.full_array(dst=0) if options.check else None

    if mesh.rank == 0:
        print(f"{u.layout}, {options.steps} steps: mean temperature {heat:.6f}")
        print(f"iterations: {sum(iterations)}, {iterations[-1]} in the last step")
        if options.check:
            expected, alone = diffuse_alone(start(options.points), options.steps, *how)
            print(
                f"SciPy took {sum(alone)}; largest difference {np.abs(whole - expected).max():.1e}"
            )
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / "diffusion.png", slices)


if __name__ == "__main__":
    main()
