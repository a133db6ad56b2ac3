"""Who holds what, and what it takes to change it: ``python examples/hello_layout.py``.

Nothing here needs MPI: a layout and a plan are arithmetic, on a mesh without processes behind it.
Under mpiexec the last part moves a real array along the same plan.
"""

from __future__ import annotations

import itertools

import numpy as np

import distarray as da

SHAPE = (10, 6)


def show(layout: da.Layout) -> None:
    """Print the block of every rank of a layout."""
    print(f"\n{layout}")
    for coordinate in itertools.product(*(range(n) for n in layout.mesh.shape)):
        box = ", ".join(f"{start}:{stop}" for start, stop in layout.local_box(coordinate))
        print(f"  rank {layout.mesh.rank_at(coordinate)} at {coordinate} holds [{box}]")


def main() -> None:
    """Print a few layouts, the plan between two of them, and a real move."""
    mesh = da.AbstractMesh((2, 2), axis_names=("dp", "tp"))
    rows = da.Layout(mesh, [da.Shard(0), da.Replicate()], SHAPE)
    tiles = da.Layout(mesh, [da.Shard(0), da.Shard(1)], SHAPE)
    fine = da.Layout(mesh, [da.Shard(0), da.Shard(0)], SHAPE)
    turned = da.Layout(mesh, [da.Shard(1), da.Shard(0)], SHAPE)

    world = da.default_mesh()
    if world.rank == 0:
        print("The same array of 10 x 6, on a mesh of 2 x 2 ranks:")
        for layout in (rows, tiles, fine, turned):
            show(layout)
        print("\nFrom the second to the third:")
        print(da.plan(tiles, fine, np.float64).explain(), flush=True)

    value = np.arange(60.0).reshape(SHAPE)
    x = da.distribute_array(value, world, [da.Shard(0)])
    y = x.redistribute([da.Shard(1)])
    same = np.array_equal(y.full_array(), value)
    if world.rank == 0:
        print(f"\nA real array on {world.size} rank(s), first by rows, then by columns:")
        for rank in range(world.size):
            shapes = [layout.local_shape((rank,)) for layout in (x.layout, y.layout)]
            print(f"  rank {rank} held {shapes[0]} and now holds {shapes[1]}")
        print("  and the values are the same" if same else "  but the values have changed")


if __name__ == "__main__":
    main()
