"""Plans, carried out rank by rank, give the destination blocks and cost what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import currently_in_test_context, example, given, note, settings

import distarray.errors
from distarray.errors import ArgumentError, DTypeError, MeshError, ShapeError
from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from distarray.layout import box as boxes
from distarray.redistribute import CostModel, plan
from distarray.redistribute._intermediate_layouts import intermediate_layout
from distarray.redistribute._steps import (
    AllGatherStep,
    AllReduceStep,
    AllToAllStep,
    DirectAllReduceStep,
    ExchangeStep,
    LocalStep,
    ReduceScatterStep,
    Step,
)
from tests.redistribute.interpreter import global_value, random_blocks, run
from tests.redistribute.strategies import Move, moves

FAR = CostModel(ranks_per_node=2)


def check_result(move: Move, **options) -> None:
    src, dst, dtype = move
    moves_it = plan(src, dst, dtype, **options)
    if currently_in_test_context():
        note(moves_it.explain())
    blocks = random_blocks(src, dtype, seed=7)
    expected = global_value(src, blocks)
    found = run(moves_it, blocks)
    assert set(found) == set(dst.mesh.flat_ranks)
    if dst.size == 0:
        return
    value = global_value(dst, found)
    assert {block.dtype for block in found.values()} == {moves_it.result_dtype}
    if not any(p.is_partial("avg") for p in dst.placements):
        assert value.dtype == expected.dtype
    if {"avg", "sum"} & {p.op for p in (*src.placements, *dst.placements) if p.is_partial()}:
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(value, expected)
    if not dst.has_partial:
        for rank, block in found.items():
            box = dst.local_box(dst.mesh.coordinate_of(rank))
            np.testing.assert_array_equal(block, value[boxes.slices(box)])


@given(moves())
@settings(max_examples=100)
def test_plan_gives_the_destination_blocks_for_any_two_layouts(move):
    check_result(move)


@given(moves())
@settings(max_examples=100)
def test_plan_gives_the_destination_blocks_for_any_two_layouts_between_nodes(move):
    check_result(move, model=FAR)


@given(moves())
@settings(max_examples=100)
def test_plan_gives_the_destination_blocks_in_rounds(move):
    check_result(move, max_bytes=3 * move.dtype.itemsize)


@given(moves(partial=False))
@example(
    Move(  # gathers along one mesh axis while another one slices
        Layout(AbstractMesh((3, 2, 2)), (Shard(0), Replicate(), Shard(1)), (3, 2, 1)),
        Layout(AbstractMesh((3, 2, 2)), (Replicate(), Shard(0), Replicate()), (3, 2, 1)),
        np.dtype(float),
    )
)
@settings(max_examples=100)
def test_no_rank_receives_more_than_it_lacks_without_reductions(move):
    src, dst, dtype = move
    for model in (CostModel(), FAR):
        found = plan(src, dst, dtype, model=model)
        for rank in {*src.mesh.flat_ranks, *dst.mesh.flat_ranks}:
            assert found.bytes_received(rank) == found.bytes_lower_bound(rank)


@given(moves())
@settings(max_examples=100)
def test_lower_bound_is_one_for_any_two_layouts(move):
    src, dst, dtype = move
    found = plan(src, dst, dtype)
    for rank in {*src.mesh.flat_ranks, *dst.mesh.flat_ranks}:
        assert found.bytes_received(rank) >= found.bytes_lower_bound(rank) >= 0
        assert found.peak_bytes(rank) >= 0


@given(moves())
@settings(max_examples=100)
def test_every_byte_sent_is_received(move):
    found = plan(*move)
    ranks = {*move.src.mesh.flat_ranks, *move.dst.mesh.flat_ranks}
    sent = sum(found.bytes_sent(rank) for rank in ranks)
    assert sent == sum(found.bytes_received(rank) for rank in ranks)


@given(moves())
@settings(max_examples=100)
def test_steps_follow_one_another(move):
    found = plan(*move)
    layouts = [found.src, *(step.dst for step in found.steps)]
    assert [step.src for step in found.steps] == layouts[:-1]
    assert layouts[-1] is found.dst
    assert found.cost >= 0
    assert str(found.dst) in found.explain()


def kinds(src, dst, shape=(4096, 4096), mesh_shape=None, **options) -> list[type[Step]]:
    mesh = AbstractMesh(mesh_shape or ((4,) if len(src) == 1 else (2, 4)), None)
    found = plan(Layout(mesh, src, shape), Layout(mesh, dst, shape), "f8", **options)
    return [type(step) for step in found.steps]


R, P = Replicate(), Partial()


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        ([Shard(0)], [Shard(0)], []),
        ([Shard(0)], [Shard(1)], [AllToAllStep]),
        ([Shard(0)], [R], [AllGatherStep]),
        ([R], [Shard(1)], [LocalStep]),
        ([R], [P], [LocalStep]),
        ([R], [Partial("max")], [LocalStep]),
        ([Shard(0)], [P], [LocalStep]),
        ([P], [Shard(1)], [ReduceScatterStep]),
        ([P], [R], [AllReduceStep]),
        ([P], [P], []),
        ([P], [Partial("max")], [ReduceScatterStep, LocalStep]),
        ([Partial("max")], [Partial("avg")], [AllReduceStep, LocalStep]),
        ([Shard(0), Shard(1)], [Shard(1), Shard(0)], [ExchangeStep]),
        ([Shard(0), Shard(1)], [R, R], [ExchangeStep]),
        ([Shard(0), Shard(0)], [R, R], [AllGatherStep]),
        ([Shard(0), Shard(0)], [Shard(0), R], [AllGatherStep]),
        ([Shard(0), R], [Shard(0), Shard(0)], [LocalStep]),
        ([R, P], [R, R], [AllReduceStep]),
        ([P, P], [R, R], [AllReduceStep]),
        ([P, P], [Shard(0), Shard(1)], [ReduceScatterStep]),
        ([Shard(1), P], [Shard(1), Shard(0)], [ReduceScatterStep]),
        ([P, Shard(0)], [P, Shard(1)], [AllToAllStep]),
        ([P, R], [P, Shard(1)], [LocalStep]),
    ],
)
def test_plan_takes_the_natural_steps(src, dst, expected):
    found = kinds(src, dst)
    if expected == [ExchangeStep] and src == [Shard(0), Shard(1)] and dst == [R, R]:
        expected = [AllGatherStep]
    assert found == expected


def test_small_reduction_takes_one_round_where_latency_wins():
    assert kinds([P], [R], shape=(4, 4)) == [DirectAllReduceStep]
    mesh = AbstractMesh((4,))
    found = plan(Layout(mesh, [P], (4, 4)), Layout(mesh, [R], (4, 4)), "f8")
    assert "all-reduce first" in found.explain()


def test_reduction_over_nodes_goes_within_then_across():
    model = CostModel(ranks_per_node=4)
    mesh = AbstractMesh((2, 4), ("dp", "tp"))
    found = plan(
        Layout(mesh, [P, P], (4096, 64)), Layout(mesh, [R, R], (4096, 64)), "f8", model=model
    )
    assert [step.mesh_axes for step in found.steps] == [(1,), (0,), (1,)]
    across = found.steps[1]
    assert isinstance(across, AllReduceStep)
    assert across.bytes_received(0) * 4 == 4096 * 64 * 8


def test_gathers_between_nodes_go_across_with_few_bytes_and_then_within():
    mesh = AbstractMesh((2, 4), ("dp", "tp"))
    src = Layout(mesh, [Shard(0), Shard(1)], (1024, 1024))
    dst = src.replace(placements=[R, R])
    assert len(plan(src, dst, "f8").steps) == 1
    found = plan(src, dst, "f8", model=CostModel(ranks_per_node=4))
    assert [step.mesh_axes for step in found.steps] == [(0,), (1,)]
    assert found.steps[0].bytes_received(0) == 1024 * 1024


def test_layout_on_the_way_has_the_shard_order_of_the_goal_or_else_of_the_source():
    placements = (Shard(0), Shard(0), R)
    straight = Layout(AbstractMesh((2, 2, 2)), [Shard(0), Shard(0), P], (8, 4))
    inverse = straight.replace(shard_order=(1, 0, 2))
    elsewhere = straight.replace(placements=[Shard(0), R, Shard(1)])
    same = straight.replace(placements=[Shard(0), Shard(0), Shard(1)], shard_order=(1, 0, 2))
    assert intermediate_layout(inverse, elsewhere, placements).sharding_axes(0) == (1, 0)
    assert intermediate_layout(straight, same, placements).sharding_axes(0) == (1, 0)


def test_swap_of_shards_is_one_message_per_rank():
    mesh = AbstractMesh((4, 4))
    layout = Layout(mesh, [Shard(0), Shard(1)], (64, 64))
    found = plan(layout, layout.replace(placements=[Shard(1), Shard(0)]), "f4")
    assert len(found.steps) == 1
    assert [found.messages(rank) for rank in range(16)] == [int(r // 4 != r % 4) for r in range(16)]


def test_changed_shard_order_is_one_exchange():
    mesh = AbstractMesh((2, 2))
    src = Layout(mesh, [Shard(0), Shard(0)], (8,))
    dst = src.replace(shard_order=(1, 0))
    found = plan(src, dst, "f8")
    assert len(found.steps) == 1
    assert [found.bytes_received(rank) for rank in range(4)] == [0, 16, 16, 0]


def test_reduction_before_moved_boundaries_leaves_blocks_where_they_are():
    mesh = AbstractMesh((8, 2))
    src = Layout(mesh, [P, Shard(0)], (4000, 100), boundaries={0: (0, 1000, 4000)})
    dst = src.replace(placements=[R, Shard(0)], boundaries=None)
    found = plan(src, dst, "f8")
    assert [type(step) for step in found.steps] == [AllReduceStep, ExchangeStep]
    assert found.steps[0].dst.boundaries == src.boundaries
    check_result(Move(src, dst, np.dtype("f8")))


def test_partial_created_within_explicit_boundaries_spreads_the_values_evenly():
    one, other = AbstractMesh((4,)), AbstractMesh((2, 3), ranks=range(4, 10))
    src = Layout(one, [Shard(0)], (12,))
    dst = Layout(other, [Shard(0), P], (12,), boundaries={0: (0, 3, 12)})
    assert [plan(src, dst, "f8").bytes_received(r) // 8 for r in range(4, 10)] == [1, 1, 1, 3, 3, 3]


def test_average_over_a_single_rank_still_makes_floats():
    mesh = AbstractMesh((1, 2))
    src = Layout(mesh, [Partial("avg"), Shard(0)], (4,))
    found = plan(src, src.replace(placements=[R, Shard(0)]), "i4")
    assert found.result_dtype == np.float64
    assert found.bytes_received(0) == 0
    assert plan(src, src.replace(placements=[R, Shard(0)]), "f4").result_dtype == np.float32


def test_equal_layouts_need_nothing():
    layout = Layout(AbstractMesh((4,)), [Shard(0)], (10,))
    found = plan(layout, layout, "f8")
    assert found.steps == ()
    assert found.bytes_received(3) == found.messages(3) == 0
    assert found.peak_bytes(0) == 24
    assert "nothing to do" in found.explain()


def test_mesh_axes_of_one_rank_cost_nothing():
    mesh = AbstractMesh((1, 4))
    src = Layout(mesh, [Shard(1), Shard(0)], (8, 8))
    for placements in ([R, Shard(0)], [P, Shard(0)], [Shard(0), Shard(0)]):
        found = plan(src, src.replace(placements=placements), "f8")
        assert [step.kind for step in found.steps if isinstance(step, LocalStep)] == ["relabel"]
        assert len(found.steps) == 1
        assert kinds(placements, [Shard(1), Shard(0)], (8, 8), (1, 4)) == [LocalStep]


def test_broadcast_to_another_mesh_spreads_over_its_receivers():
    one, many = AbstractMesh((1,)), AbstractMesh((8,), ranks=range(1, 9))
    found = plan(Layout(one, [R], (1 << 20,)), Layout(many, [R], (1 << 20,)), "f8")
    assert [type(step) for step in found.steps] == [ExchangeStep, AllGatherStep]
    assert found.bytes_sent(0) == 8 << 20
    assert all(
        found.bytes_received(r) == found.bytes_lower_bound(r) == 8 << 20 for r in range(1, 9)
    )


def test_other_mesh_on_the_same_ranks_moves_only_what_lacks():
    src = Layout(AbstractMesh((2, 4)), [Shard(0), R], (16, 16))
    dst = Layout(AbstractMesh((4, 2)), [R, Shard(0)], (16, 16))
    found = plan(src, dst, "f8")
    for rank in range(8):
        assert found.bytes_received(rank) == (0 if rank // 4 == rank % 2 else 8 * 16 * 8)


def test_average_of_integers_becomes_float64():
    mesh = AbstractMesh((2, 2))
    src = Layout(mesh, [Partial("avg"), Partial("avg")], (4,))
    found = plan(src, src.replace(placements=[R, R]), "i2")
    assert found.result_dtype == np.float64
    assert plan(src, src, "i2").result_dtype == np.int16
    assert found.peak_bytes(0) >= 4 * 2 + 4 * 8


def test_peak_counts_source_result_and_packed_messages():
    mesh = AbstractMesh((2,))
    src, dst = Layout(mesh, [Shard(0)], (8, 8)), Layout(mesh, [Shard(1)], (8, 8))
    # 32 values before, 32 after; 16 sent and 16 received
    assert plan(src, dst, "f8").peak_bytes(0) == (32 + 32 + 32) * 8
    assert (32 + 32) * 8 < plan(src, dst, "f8", max_bytes=128).peak_bytes(0) <= (32 + 32) * 8 + 128


def test_plan_is_cached():
    mesh = AbstractMesh((4,))
    src, dst = Layout(mesh, [Shard(0)], (10, 10)), Layout(mesh, [Shard(1)], (10, 10))
    assert plan(src, dst, "f8") is plan(src, dst, np.float64)


def test_every_process_finds_the_same_plan_whatever_its_hashes():
    program = (
        "import distarray as da\n"
        "src = da.Layout(da.AbstractMesh((2, 2)), [da.Partial('sum'), da.Partial('avg')], (6,))\n"
        "dst = src.replace(placements=[da.Replicate()] * 2)\n"
        "print(*da.plan(src, dst, 'f8').steps)\n"
    )
    root = str(Path(distarray.errors.__file__).parents[1])
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(6)
    }
    assert len(found) == 1


def test_different_shapes_are_refused():
    mesh = AbstractMesh((4,))
    with pytest.raises(ShapeError, match=r"\(4,\).*\(5,\)"):
        plan(Layout(mesh, [R], (4,)), Layout(mesh, [R], (5,)), "f8")


def test_operation_that_the_dtype_lacks_is_refused():
    mesh = AbstractMesh((4,))
    with pytest.raises(DTypeError, match=r"Partial\('bor'\) of float64"):
        plan(Layout(mesh, [Partial("bor")], (4,)), Layout(mesh, [R], (4,)), "f8")


def test_averages_of_truth_values_beside_other_reductions_are_refused():
    layout = Layout(AbstractMesh((2, 2)), [Partial("sum"), Partial("avg")], (4,))
    for dst in (layout.replace(placements=[R, R]), layout.replace(placements=[Shard(0), R])):
        with pytest.raises(DTypeError, match="order matters"):
            plan(layout, dst, "?")
    assert plan(layout, layout.replace(placements=[R, layout.placements[1]]), "?").steps
    assert plan(layout, layout.replace(placements=[R, R]), "i4").steps


def test_rank_outside_both_meshes_is_refused():
    layout = Layout(AbstractMesh((4,)), [R], (4,))
    with pytest.raises(MeshError, match="rank 4"):
        plan(layout, layout.replace(placements=[Shard(0)]), "f8").bytes_received(4)


def test_max_bytes_must_be_positive():
    layout = Layout(AbstractMesh((4,)), [R], (4,))
    with pytest.raises(ArgumentError, match="max_bytes=0"):
        plan(layout, layout.replace(placements=[Shard(0)]), "f8", max_bytes=0)
