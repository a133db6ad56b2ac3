"""Heat in a square plate on a 2-d mesh, written as for NumPy.

Run it as ``mpiexec -n 4 python examples/heat_equation.py``.

The plate's edge is held at its starting temperature. A slice such as ``u[:-2, 1:-1]`` is the plate
seen from one point further up; adding slices that are shifted against each other makes distarray
fetch the neighbours' edges, and nothing else.
"""

from __future__ import annotations

import argparse

import numpy as np

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


def advance(plate, steps: int, rate: float = 0.2):
    """Take explicit steps of the heat equation, on a NumPy array or a DistArray alike."""
    for _ in range(steps):
        inner = plate[1:-1, 1:-1]
        neighbours = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
        plate[1:-1, 1:-1] = inner + rate * (neighbours - 4 * inner)
    return plate


def main(arguments: list[str] | None = None) -> None:
    """Run both ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=512, help="grid points along a side")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(arguments)

    world = da.default_mesh()
    mesh = da.init_device_mesh(mesh_shape(world.size), ("down", "across"))
    plate = da.distribute_array(start(options.points), mesh, [da.Shard(0), da.Shard(1)])
    with da.CommLog() as log:
        plate = advance(plate, options.steps)
    mean, result = float(plate.mean()), np.asarray(plate)

    if mesh.rank == 0:
        expected = advance(start(options.points), options.steps)
        print(f"{plate.layout}, {options.steps} steps: mean temperature {mean:.6f}")
        print(f"largest difference from NumPy {np.abs(result - expected).max():.1e}")
        print(f"received by rank 0 in a step: {log.bytes() / options.steps / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
