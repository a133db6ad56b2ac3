"""Heat in a square plate on a 2-d mesh: a stencil on blocks with the edges of their neighbours.

Run it as ``mpiexec -n 4 python examples/heat_equation.py``.

The plate's edge is held at its starting temperature. A slice such as ``u[:-2, 1:-1]`` is the plate
seen from one point further up. A halo gives each process its block with one more row or column
wherever it has a neighbour, so that NumPy's lines for the whole plate are right for each block.
"""

from __future__ import annotations

import argparse

import numpy as np
from arguments import at_least

import distarray as da


def mesh_shape(ranks: int) -> tuple[int, int]:
    """Factor `ranks` into the squarest grid."""
    rows = max(i for i in range(1, int(ranks**0.5) + 1) if ranks % i == 0)
    return rows, ranks // rows


def start(points: int) -> np.ndarray:
    """Make a cold plate with a hot edge and a warm spot off the centre."""
    plate = np.zeros((points, points))
    plate[0] = 100.0
    plate[points // 2 : points // 2 + points // 8, points // 4 : points // 2] = 60.0
    return plate


def advance(u: np.ndarray, scratch: np.ndarray, rate: float = 0.2) -> None:
    """Take an explicit step of the heat equation at all points that have four neighbours."""
    inner = u[1:-1, 1:-1]
    np.add(u[:-2, 1:-1], u[2:, 1:-1], out=scratch)
    scratch += u[1:-1, :-2]
    scratch += u[1:-1, 2:]
    scratch *= rate
    inner *= 1 - 4 * rate
    inner += scratch


def diffuse(plate: da.DistArray, steps: int) -> da.DistArray:
    """Take steps on a distributed plate, each process on its block."""
    u = da.halo(plate, 1)  # nothing lies past the edge of the plate
    scratch = np.empty_like(u.block[1:-1, 1:-1])
    for _ in range(steps):
        advance(u.block, scratch)
        u.update()
    return u.array


def diffuse_alone(plate: np.ndarray, steps: int) -> np.ndarray:
    """Take steps on a whole plate."""
    scratch = np.empty_like(plate[1:-1, 1:-1])
    for _ in range(steps):
        advance(plate, scratch)
    return plate


def main(arguments: list[str] | None = None) -> None:
    """Run both ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=at_least(1), default=512, help="grid points along a side")
    parser.add_argument("--steps", type=at_least(1), default=100)
    options = parser.parse_args(arguments)

    world = da.default_mesh()
    mesh = da.init_device_mesh(mesh_shape(world.size), ("down", "across"))
    plate = da.distribute_array(start(options.points), mesh, [da.Shard(0), da.Shard(1)])
    with da.CommLog() as log:
        plate = diffuse(plate, options.steps)
    mean, result = float(plate.mean()), np.asarray(plate)

    if mesh.rank == 0:
        expected = diffuse_alone(start(options.points), options.steps)
        print(f"{plate.layout}, {options.steps} steps: mean temperature {mean:.6f}")
        print(f"largest difference from NumPy {np.abs(result - expected).max():.1e}")
        print(f"received by rank 0 in a step: {log.bytes() / options.steps / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
