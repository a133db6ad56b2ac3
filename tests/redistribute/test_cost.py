"""The cost model orders plans as machines do, and `estimate` is a cheap look at it."""

from __future__ import annotations

import pytest

from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from distarray.redistribute import CostModel, estimate, plan
from distarray.redistribute._cost import Traffic

R, P = Replicate(), Partial()
MESH = AbstractMesh((4,))


def between(src, dst, shape=(1024, 1024), mesh=MESH):
    return Layout(mesh, src, shape), Layout(mesh, dst, shape)


def test_estimate_is_the_cost_of_the_plan():
    for src, dst in ([[Shard(0)], [Shard(1)]], [[P], [R]], [[R], [P]]):
        pair = between(src, dst)
        assert estimate(*pair, 8) == plan(*pair, "f8").cost > 0


def test_estimate_is_zero_where_nothing_is_to_do():
    layout = Layout(MESH, [Shard(0)], (10,))
    assert estimate(layout, layout, 8) == 0.0


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "prod", "any", "all", "bor", "bxor"])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16, 3])
def test_estimate_takes_every_operation_and_size(op, itemsize):
    assert estimate(*between([Partial(op)], [R]), itemsize) > 0
    assert estimate(*between([Shard(0)], [Partial(op)]), itemsize) > 0


def test_more_bytes_cost_more():
    exchange = estimate(*between([Shard(0)], [Shard(1)]), 8)
    assert exchange < estimate(*between([Shard(0)], [R]), 8)
    assert exchange < estimate(*between([Shard(0)], [Shard(1)], (2048, 1024)), 8)
    assert estimate(*between([R], [Shard(0)]), 8) < exchange


def test_moved_boundaries_cost_something():
    src = Layout(MESH, [Shard(0)], (1000, 100))
    dst = src.replace(boundaries={0: (0, 100, 200, 300, 1000)})
    assert estimate(src, dst, 8) > 3e-6


def test_remote_fraction_counts_peers_on_other_nodes():
    mesh = AbstractMesh((4, 8))
    model = CostModel(ranks_per_node=8)
    assert model.remote_fraction(mesh, (1,)) == 0.0
    assert model.remote_fraction(mesh, (0,)) == 1.0
    assert model.remote_fraction(mesh, (0, 1)) == 24 / 31
    assert CostModel(ranks_per_node=4).remote_fraction(mesh, (1,)) == 4 / 7
    assert CostModel().remote_fraction(mesh, (0, 1)) == 0.0


def test_far_bytes_cost_more_than_near_ones():
    model = CostModel()
    near, far = Traffic(received=1000, messages=1), Traffic(received=1000, messages=1, remote=1.0)
    assert model.seconds(near, 8) < model.seconds(far, 8)
    assert model.latency(near) < model.seconds(near, 8)
    assert model.seconds(Traffic(sent=4000), 8) > model.seconds(Traffic(received=1000), 8)


def test_gather_over_nodes_crosses_each_link_once():
    mesh = AbstractMesh((2, 4), ("dp", "tp"))
    model = CostModel(ranks_per_node=4)
    src = Layout(mesh, [Shard(0), Shard(1)], (4096, 4096))
    found = plan(src, src.replace(placements=[R, R]), "f8", model=model)
    for rank in range(8):
        assert found.bytes_received(rank) == found.bytes_lower_bound(rank)
    assert [step.mesh_axes for step in found.steps] in ([(0,), (1,)], [(0, 1)])
