"""What is measured: redistributions and operations, without a word on how anyone performs them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Move:
    """One redistribution of a 2-d float64 array; placements are written S0, S1, R and P."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    mesh: tuple[int, ...]
    shape: tuple[int, int]

    @property
    def name(self) -> str:
        """Write the move as in the tables."""
        source, target = (
            names[0] if len(names) == 1 else f"[{', '.join(names)}]"
            for names in (self.source, self.target)
        )
        return f"{source} -> {target}"

    @property
    def ranks(self) -> int:
        """Count the ranks."""
        return math.prod(self.mesh)

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Locate `rank` on the mesh."""
        return tuple(int(i) for i in np.unravel_index(rank, self.mesh))

    def box(self, placements: tuple[str, ...], rank: int) -> tuple[slice, slice]:
        """Give the part of the array that `rank` holds; all sizes divide evenly."""
        bounds = [(0, size) for size in self.shape]
        for placement, position, count in zip(
            placements, self.coordinate(rank), self.mesh, strict=True
        ):
            if placement[0] == "S":
                axis = int(placement[1])
                start, stop = bounds[axis]
                step = (stop - start) // count
                bounds[axis] = (start + position * step, start + (position + 1) * step)
        return slice(*bounds[0]), slice(*bounds[1])

    def values(self, box: tuple[slice, slice]) -> np.ndarray:
        """Make the numbers of a part of the array: whole, so that sums are exact."""
        rows, columns = box
        return np.arange(rows.start, rows.stop, dtype=float)[:, None] * self.shape[1] + np.arange(
            columns.start, columns.stop, dtype=float
        )

    def block(self, rank: int) -> np.ndarray:
        """Make the block that `rank` starts from; partial ones add up to the values."""
        block = self.values(self.box(self.source, rank))
        if "P" in self.source:
            parts = self.mesh[self.source.index("P")]
            position = self.coordinate(rank)[self.source.index("P")]
            block *= 2.0 * (position + 1) / (parts * (parts + 1))
        return block

    def check(self, result: np.ndarray, rank: int) -> None:
        """Compare some rows of what `rank` ended with."""
        expected = self.values(self.box(self.target, rank))
        if result.shape != expected.shape:
            raise ValueError(f"{self.name}: shape {result.shape}, expected {expected.shape}")
        rows = np.linspace(0, len(expected) - 1, 50).astype(int)
        if not np.allclose(result[rows], expected[rows], rtol=1e-13):
            raise ValueError(f"{self.name}: wrong values")


def moves(ranks: int, size: int) -> list[Move]:
    """List the redistributions that are measured on this many ranks."""
    line = [("S0", "S1"), ("S0", "R"), ("P", "R"), ("P", "S0"), ("R", "S0")]
    listed = [Move((a,), (b,), (ranks,), (size, size)) for a, b in line]
    if ranks == 4:
        grid = [
            (("S0", "S1"), ("S1", "S0")),
            (("S0", "S1"), ("S0", "R")),
            (("S0", "R"), ("S1", "R")),
        ]
        listed += [Move(a, b, (2, 2), (size, size)) for a, b in grid]
    return listed


SMALL_OPERATIONS = (
    "x + y",
    "x * 2 + y",
    "x.T",
    "x[:, 3]",
    "x @ R",
    "float(x.sum())",
    "S0 -> S1",
    "x[i]",
    "x[i:]",
    "map_blocks",
    "halo",
)
SMALL_FUNCTIONS = (
    "xp.concat([x, y])", "xp.concat([x, y], axis=1)", "xp.stack([x, y])", "xp.tile(x, (1, 2))",
    "xp.roll(x, 1, 1)", "xp.roll(x, 1, 0)", "xp.split(x, 2, 1)", "xp.repeat(x, 2, axis=1)",
    "xp.roll(x, 1)", "xp.flip(x, axis=1)", "xp.flip(x, axis=0)", "xp.tile(x, (2, 1))",
    "xp.pad(x, ((0, 0), (1, 1)))", "xp.pad(x, 1)", "xp.diff(x, axis=0)",
    "xp.take(x, [1, 2], axis=1)", "xp.take(x, [1, 2], axis=0)", "x[x > 0.5]",
    "xp.nonzero(x > 0.5)", "put(x, x > 2, 0.0)",
    "x.reshape(-1)", "x.transpose()", "xp.swapaxes(x, 0, 1)", "xp.expand_dims(x, axis=0)",
    "xp.squeeze(x[:, :1], 1)", "xp.broadcast_to(x, (3, *x.shape))", "x[:, 2:5]", "x[2:5]",
    "x[3]", "x[3, 4]", "put(x, 3, 1.0)", "put(x, (slice(None), 3), 1.0)",
    "x + b", "x + 1", "1 - x", "x > 0.5", "-x", "xp.sqrt(x)", "xp.clip(x, 0.2, 0.8)",
    "xp.where(x > 0.5, x, y)", "xp.maximum(x, 0.5)", "xp.power(x, 2)", "xp.round(x, 2)",
    "xp.isnan(x)", "x.astype(np.float32)", "x.copy()", "put(x, ..., y)", "xp.allclose(x, y)",
    "x.sum(0)", "x.sum(1)", "x.mean(0)", "x.mean(1)", "x.max(1)", "x.std()", "x.std(0)",
    "x.std(1)", "x.var(0)", "x.argmax()", "x.argmax(0)", "x.argmax(1)", "x.cumsum(0)",
    "x.cumsum(1)", "xp.nansum(x, 1)", "xp.nanmean(x, 1)", "xp.median(x, 1)",
    "xp.percentile(x, 50, axis=1)", "xp.count_nonzero(x > 0.5)", "xp.sort(x, axis=1)",
    "xp.sort(x[:, 0])", "xp.argsort(x, axis=1)", "xp.argsort(x[:, 0])", "xp.median(x)",
    "xp.median(x, 0)", "xp.percentile(x, 30)", "xp.unique(x)", "xp.dot(x, r)", "xp.vdot(x, y)",
    "xp.einsum('ij,jk->ik', x, r)", "xp.einsum('ij->i', x)", "xp.outer(x[:, 1], r[0])",
    "xp.linalg.norm(x)", "xp.trace(x)",
    "xp.zeros(x.shape)", "xp.full(x.shape, 2.0)", "xp.ones_like(x)", "xp.arange(len(x))",
    "xp.arange(next(turns))", "xp.linspace(0, 1, len(x))", "xp.eye(len(x))",
    "float(xp.ones(next(turns) % 4096 + 1).sum())",
    "rng.random(3)", "rng.normal(size=3)", "rng.random(x.shape)", "rng.normal(size=x.shape)",
    "rng.integers(9, size=x.shape)",
)  # fmt: skip
"""What scripts call in loops, as text: `xp` is NumPy or the library, `b` a plain array of the
global shape, `turns` never the same number. Timed beside NumPy on one block, which is not compared,
and beside messages by hand (`small_by_hand`), which are."""
SMALL_ROWS = 16
"""Rows of one rank's block; every array is split over its rows, and R is held by all."""
LINE_SIZE = 1 << 20
"""Items of the array of one axis of `x[i]` and `x[i:]`, where every turn has another `i`."""

# A product's result is split over its rows, whatever layout a contender would choose for it.
LARGE_OPERATIONS = (
    "x + y",
    "sqrt(x) * y + 1",
    "((x - 0.5) ** 2).sum()",
    "x.std()",
    "float(x.sum())",
    "x.sum(reproducible=True)",
    "x.mean(0)",
    "heat step",
    "7-point stencil",
    "rng.normal",
    "rng.permutation",
    "S0 @ R",
    "S0 @ S0",
)
LARGE_SIZE = 8192
MATMUL_SIZE = 4096

WIDE, LONG = (8192, 8192), (8 << 20,)
SELECTIONS: dict[str, tuple[int, ...]] = {
    "x[mask]": WIDE,
    "x[mask] = 0": WIDE,
    "x[mask] = y": WIDE,
    "x[rows], 64 KiB": WIDE,
    "x[rows], 4 KiB": (1 << 17, 512),
    "x[rows], 256 B": (1 << 21, 32),
    "x[rows], 64 B": (1 << 23, 8),
    "x[rows], 8 B": LONG,
    "x[rows] = y, 64 KiB": WIDE,
    "x[rows] = y, 64 B": (1 << 23, 8),
    "x[rows] = y, 8 B": LONG,
    "sort": LONG,
    "argsort": LONG,
    "bincount, 4096 bins": LONG,
    "bincount, 8 Mi bins": LONG,
}
"""Selections, and the shapes of their arrays: the mask takes every other item, the rows are all
rows in random order; the items that are counted are integers."""

TRANSFORMS = ("fft 256^3", "rfft 256^3", "fft 2^24")


def transform_shape(name: str, quick: bool) -> tuple[int, ...]:
    """Give the shape of the array of a transform."""
    if name.endswith("^3"):
        return (64 if quick else 256,) * 3
    return (1 << (16 if quick else 24),)


def heat_step(u: np.ndarray, scratch: np.ndarray) -> np.ndarray:
    """Take a step of the heat equation in a block with edges, and return the block without."""
    inner = u[1:-1, 1:-1]
    np.add(u[:-2, 1:-1], u[2:, 1:-1], out=scratch)
    scratch += u[1:-1, :-2]
    scratch += u[1:-1, 2:]
    scratch *= 0.2
    inner *= 0.2
    inner += scratch
    return inner


def seven_points(u: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Add up the neighbours of each item along three axes, by planes; 0 where one is missing."""
    out = np.zeros_like(u) if out is None else out
    inner = slice(1, -1)
    for above, plane, below, total in zip(u[:-2], u[1:-1], u[2:], out[1:-1], strict=True):
        part = total[inner, inner]
        np.add(above[inner, inner], below[inner, inner], out=part)
        part += plane[:-2, inner]
        part += plane[2:, inner]
        part += plane[inner, :-2]
        part += plane[inner, 2:]
    return out


def cube(x: np.ndarray) -> np.ndarray:
    """See a block of rows as planes, whose sides are a sixteenth of a row."""
    return x.reshape(-1, *[x.shape[1] // 16] * 2)


def bins(name: str) -> int:
    """Give the bins of a case of `bincount`."""
    return 4096 if name.endswith("4096 bins") else LONG[0]


def large_size(name: str) -> int:
    """Give the rows and columns of the arrays of a large operation."""
    return MATMUL_SIZE if "@" in name else LARGE_SIZE


def shuffled_rows(count: int) -> np.ndarray:
    """Order the rows of an array at random."""
    return np.random.default_rng(7).permutation(count)
