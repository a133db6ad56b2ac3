"""One rank of a mesh of 100,000 is planned for without looking at the others.

Counts of elementary questions stand in for time.
"""

from __future__ import annotations

import gc
import random
import tracemalloc

import numpy as np
import pytest

from distarray.layout import (
    AbstractMesh,
    Layout,
    Mesh,
    Partial,
    Partition,
    Replicate,
    Shard,
    counted,
)
from distarray.redistribute import estimate, plan
from distarray.redistribute._schedule import receives, sends
from distarray.redistribute._steps import ExchangeStep

R, P = Replicate(), Partial()
LARGE = AbstractMesh((100, 1000), ("dp", "tp"))
FLAT = AbstractMesh((100_000,))
HALF = AbstractMesh((50, 1000), ranks=range(50_000, 100_000))
SHAPE = (200_000, 300_000)
TENTH = {
    LARGE: AbstractMesh((100, 100), ("dp", "tp")),
    FLAT: AbstractMesh((10_000,)),
    HALF: AbstractMesh((50, 100), ranks=range(5000, 10_000)),
}

PAIRS = {
    "rows to columns": (FLAT, [Shard(0)], FLAT, [Shard(1)]),
    "gather": (FLAT, [Shard(0)], FLAT, [R]),
    "slice": (FLAT, [R], FLAT, [Shard(0)]),
    "reduce": (FLAT, [P], FLAT, [R]),
    "reduce-scatter": (FLAT, [P], FLAT, [Shard(0)]),
    "swap": (LARGE, [Shard(0), Shard(1)], LARGE, [Shard(1), Shard(0)]),
    "swap of copies": (LARGE, [Shard(0), R], LARGE, [R, Shard(0)]),
    "nested to nested": (LARGE, [Shard(0), Shard(0)], LARGE, [Shard(1), Shard(1)]),
    "nested gather": (LARGE, [Shard(0), Shard(0)], LARGE, [Shard(0), R]),
    "partial and shard": (LARGE, [P, Shard(0)], LARGE, [R, Shard(1)]),
    "partial twice": (LARGE, [P, P], LARGE, [Shard(0), R]),
    "other mesh": (LARGE, [Shard(0), Shard(1)], HALF, [Shard(1), Shard(0)]),
    "other mesh, copies": (LARGE, [Shard(0), R], HALF, [R, Shard(0)]),
}


@pytest.fixture
def questions(monkeypatch):
    """Count what is asked of meshes and partitions."""
    asked = {"count": 0}

    def counted(owner, name):
        plain = getattr(owner, name)

        def method(*args, **kwargs):
            asked["count"] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, method)

    for partition in {type(Layout(FLAT, [Shard(0)], SHAPE).partition(0)), Partition}:
        counted(partition, "bounds")
    counted(Layout, "local_box")
    counted(Mesh, "coordinate_of")
    counted(Mesh, "rank_at")
    return asked


@pytest.mark.parametrize("name", PAIRS)
def test_planning_for_one_rank_asks_few_questions(name, questions):
    before, placements, after, wanted = PAIRS[name]
    src, dst = Layout(before, placements, SHAPE), Layout(after, wanted, SHAPE)
    found = plan(src, dst, "f4")
    for rank in (50_000, 77_777):
        assert found.bytes_received(rank) >= found.bytes_lower_bound(rank)
        assert found.bytes_sent(rank) >= 0
        assert found.messages(rank) >= 0
        assert found.peak_bytes(rank) > 0
    transfers = sum(
        len(sends(step.src, step.dst, rank))
        for step in found.steps
        if isinstance(step, ExchangeStep) and name in ("swap of copies", "other mesh, copies")
        for rank in (50_000, 77_777)
    )
    assert 10 < questions["count"] <= 400 + 12 * transfers


@pytest.mark.parametrize("name", [n for n in PAIRS if n not in ("reduce", "slice")])
def test_listing_transfers_asks_in_proportion_to_their_number(name, questions):
    """Shown by a tenth of the ranks."""
    before, placements, after, wanted = PAIRS[name]
    before, after = TENTH[before], TENTH[after]
    src, dst = Layout(before, placements, SHAPE), Layout(after, wanted, SHAPE)
    step = plan(src, dst, "f4").steps[0]
    assert isinstance(step, ExchangeStep)
    questions["count"] = 0
    found = len(receives(step.src, step.dst, 5000)) + len(sends(step.src, step.dst, 5000))
    assert found > 0
    assert questions["count"] <= 50 + 5 * found


def test_plans_of_boundaries_that_depend_on_values_do_not_pile_up():
    draw = random.Random(5)
    mesh = AbstractMesh((1024,))

    def use_once():
        lengths = [draw.randrange(2000) for _ in range(mesh.size)]
        layout = counted(Layout(mesh, [Shard(0)], (0, 8)), 0, lengths)
        default = layout.replace(boundaries=None)
        assert estimate(layout, default, 8) > 0
        for found in (plan(layout, default, np.float64), plan(default, layout, np.float64)):
            for step in found.steps:
                assert isinstance(step, ExchangeStep)
                receives(step.src, step.dst, 500)
                sends(step.src, step.dst, 500)
        assert plan(layout, default, np.float64) is plan(layout, default, np.float64)

    use_once()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(60):  # which would leave 2.5 MiB and more
            use_once()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
