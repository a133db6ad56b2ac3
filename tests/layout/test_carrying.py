"""Cuts carried to other axes make the description that all checks of a new layout make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distarray.errors import LayoutError, ShapeError
from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard, carry_cuts
from distarray.layout._canonical import describe, describe_carried

PARTS = ("mesh", "placements", "shape", "shard_order", "_boundaries", "frame", "_splits")


def some_offsets(random: np.random.Generator, size: int, count: int) -> tuple[int, ...]:
    """Return boundaries of so many blocks, now and then those of the default split."""
    step = -(-size // count)
    if random.random() < 0.3:
        return tuple(min(step * i, size) for i in range(count + 1))
    return (0, *np.sort(random.integers(0, size + 1, count - 1)).tolist(), size)


def count_of(mesh: Any, cut: tuple[int, ...]) -> int:
    return int(np.prod([mesh.shape[m] for m in cut]))


@pytest.mark.parametrize("seed", range(6))
def test_carried_cuts_are_described_as_checked_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(50):
        mesh = AbstractMesh(tuple(random.integers(1, 4, random.integers(1, 4)).tolist()))
        ndim = int(random.integers(1, 4))
        shape = tuple(random.integers(0, 9, ndim).tolist())
        choices = [Replicate(), Partial(), *map(Shard, range(ndim)), *map(Shard, range(ndim))]
        placements = [choices[random.integers(len(choices))] for _ in mesh.shape]
        order = random.permutation(mesh.ndim).tolist()
        plain = Layout(mesh, placements, shape, shard_order=order)
        cut = [axis for axis in range(ndim) if plain.sharding_axes(axis)]
        explicit = {
            axis: some_offsets(random, shape[axis], plain.partition(axis).count) for axis in cut
        }
        layout = plain.replace(boundaries=explicit or None)
        living = [axis for axis in range(ndim) if random.random() < 0.8]
        new = random.permutation(len(living) + 1)[: len(living)].tolist()
        axes = dict(zip(living, new, strict=True))
        sizes = random.integers(0, 9, len(living) + 1).tolist()
        offsets = {}
        for old, axis in axes.items():
            if old in (layout.boundaries or {}) and random.random() < 0.4:
                sizes[axis] = shape[old]  # keeps the boundaries that it has
            elif old in cut:
                count = count_of(mesh, layout.sharding_axes(old))
                offsets[axis] = some_offsets(random, sizes[axis], count)
        boundaries = dict(offsets)
        for old, own in (layout.boundaries or {}).items():
            if old in axes:
                boundaries.setdefault(axes[old], own)
        placed = [
            (Shard(axes[p.axis]) if p.axis in axes else Replicate()) if type(p) is Shard else p
            for p in layout.placements
        ]
        want = describe(mesh, placed, sizes, layout.shard_order, boundaries or None)
        got = describe_carried(layout, tuple(sizes), axes, offsets)
        for part in PARTS:
            assert getattr(got, part) == getattr(want, part), part
        carried = carry_cuts(layout, tuple(sizes), axes, offsets)
        assert carried is Layout(
            mesh, placed, sizes, shard_order=layout.shard_order, boundaries=boundaries or None
        )
        blocks = [p.length(i) for p in carried._partitions for i in range(p.count)]
        even = all(len({p.length(i) for i in range(p.count)}) == 1 for p in carried._partitions)
        assert carried.is_even == even
        assert min(blocks) >= 0


def test_boundaries_that_make_no_split_are_refused() -> None:
    layout = Layout(AbstractMesh((2,)), [Shard(0)], (6,), boundaries={0: (0, 1, 6)})
    for offsets, match in (
        ({0: (0, 1, 5)}, "end with 5"),
        ({0: (0, 3, 6)}, "end with 6"),
        ({0: (0, 1)}, "2 boundaries"),
        ({0: (0, 8, 7)}, "never decrease"),
    ):
        with pytest.raises(LayoutError, match=match):
            carry_cuts(layout, (7,), {0: 0}, offsets)
    with pytest.raises(LayoutError, match="end with 6"):
        carry_cuts(layout, (7,), {0: 0})
    with pytest.raises(ShapeError, match="64 bits"):
        carry_cuts(layout, (6, 1 << 62), {0: 0})
