"""One implicit step of diffusion in a cube, as in examples/diffusion.py: conjugate gradients.

Run by the driver as ``mpiexec -n RANKS python -m benchmarks.diffusion``. The baseline is written by
hand with mpi4py: faces by Sendrecv, conjugate gradients in NumPy with two reductions an iteration.
Both apply the same lines of NumPy to their blocks, and take the same number of iterations.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import distarray as da
from benchmarks import by_distarray, by_hand, measure, record

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # which import one another

import diffusion

POINTS, RATE, ITERATIONS = (128, 32), 10.0, 10
"""The first number of points is measured, the second only tried."""


class ByHand:
    """A block inside of one more plane on each side, and its neighbours."""

    def __init__(self, comm: MPI.Comm, grid: tuple[int, ...], block: np.ndarray) -> None:
        self.comm = comm.Create_cart(grid)
        self.around = np.zeros([n + 2 for n in block.shape])
        self.inner = self.around[1:-1, 1:-1, 1:-1]
        self.result = np.empty_like(block)
        self.faces = []
        for axis in range(3):
            low, high = self.comm.Shift(axis, 1)
            for source, target, give, take in ((low, high, -2, 0), (high, low, 1, -1)):
                places = [[slice(1, -1)] * 3 for _ in range(2)]
                places[0][axis], places[1][axis] = give, take
                views = [self.around[tuple(place)] for place in places]
                self.faces.append((source, target, *views, np.zeros((2, *views[0].shape))))

    def apply(self, u: np.ndarray) -> np.ndarray:
        """Return the left side of an implicit step."""
        self.inner[...] = u
        for source, target, give, take, (send, receive) in self.faces:
            send[...] = give
            self.comm.Sendrecv(send, target, 0, receive, source)
            if source != MPI.PROC_NULL:
                take[...] = receive
        diffusion.apply(self.around, self.result, RATE)
        return self.result

    def dot(self, x: np.ndarray, y: np.ndarray) -> float:
        """Return the product of two vectors."""
        return self.comm.allreduce(float(np.vdot(x, y)))

    def solve(self, b: np.ndarray, iterations: int) -> np.ndarray:
        """Take iterations of conjugate gradients."""
        x, r, p, scratch = np.zeros_like(b), b.copy(), b.copy(), np.empty_like(b)
        square = self.dot(r, r)
        for _ in range(iterations):
            q = self.apply(p)
            alpha = square / self.dot(p, q)
            np.multiply(p, alpha, out=scratch)
            x += scratch
            np.multiply(q, alpha, out=scratch)
            r -= scratch
            before, square = square, self.dot(r, r)
            p *= square / before
            p += r
        return x


def main() -> None:
    """Measure both."""
    options = record.options()
    comm = MPI.COMM_WORLD
    points = POINTS[options.quick]
    grid = diffusion.mesh_shape(comm.size)
    mesh = da.init_device_mesh(grid)
    placements = [da.Shard(0), da.Shard(1), da.Shard(2)]
    b = da.distribute_array(diffusion.start(points), mesh, placements, src=None)
    left, hand = diffusion.LeftSide(b, RATE), ByHand(comm, grid, b.to_local())
    works: dict[str, measure.Work] = {
        by_distarray.NAME: lambda: da.linalg.cg(left, b, rtol=0, maxiter=ITERATIONS)[0],
        by_hand.NAME: lambda: hand.solve(b.to_local(), ITERATIONS),
    }
    found = works[by_distarray.NAME]().to_local()
    np.testing.assert_allclose(found, works[by_hand.NAME](), atol=1e-9)
    gc.collect()
    samples = measure.in_turn(comm, works, repeats=3 if options.quick else 7)
    row = {
        "ranks": comm.size,
        "case": f"{ITERATIONS} iterations of cg",
        "size": " x ".join([str(points)] * 3),
        "seconds": {key: measure.summary(values) for key, values in samples.items()},
    }
    record.say(comm, row)
    record.write(comm, options.out, "diffusion", [row], {})


if __name__ == "__main__":
    main()
