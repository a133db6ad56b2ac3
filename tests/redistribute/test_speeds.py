"""Plans tell how long they take by speeds that were measured, and are chosen without them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import distarray as da
from distarray import _bench, testing
from distarray.comm import store_measured, world
from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from distarray.redistribute import (
    CostModel,
    Grid,
    MeasuredModel,
    _speeds,
    forget_speeds,
    keep_speeds,
    look_up,
    plan,
)

R, P = Replicate(), Partial()
MESH = AbstractMesh((2,))
MIB = 1 << 20


def grid(pace: float, runs: int = 3) -> Grid:
    """Twice the time for each quarter of a run's length; 1 ms at least."""
    sizes = (1024.0, 64.0 * MIB)
    curves = [
        (run, tuple((n, 1e-3 + slow * n / pace) for n in sizes))
        for run, slow in [(64.0, 4.0), (256.0, 2.0), (0.0, 1.0)]
    ]
    return tuple(curves[-runs:])


def flat(seconds: float) -> Grid:
    return tuple((run, tuple((n, seconds) for n, _ in curve)) for run, curve in grid(1.0))


MODEL = MeasuredModel(
    ranks=2,
    cut=((2, grid(8e9)),),
    fill=((2, grid(4e9)),),
    keep=((2, grid(3e9, 1)),),
    exchange=((2, grid(2e9)),),
    exchange_small=((2, flat(2e-4)),),
    reduce=((2, grid(1e9)),),
    reduce_small=((2, flat(3e-4)),),
    all_reduce=((2, grid(5e8, 1)),),
)
SLOW = ((2, flat(1.0)),)


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    forget_speeds()
    yield
    monkeypatch.undo()
    forget_speeds()


def planned(src, dst, shape=(2048, 1024), mesh=MESH, **options):
    return plan(Layout(mesh, [src], shape), Layout(mesh, [dst], shape), "f8", **options)


def keep(model: MeasuredModel) -> None:
    assert keep_speeds(model)
    forget_speeds()


def test_times_are_interpolated_over_logarithms():
    grids = ((2, ((10.0, ((16.0, 1.0), (64.0, 4.0))), (0.0, ((16.0, 1.0), (256.0, 1.0))))),)
    of_runs = [look_up(grids, 2, n, 10.0) for n in (1, 40, 64, 128)]
    assert of_runs == pytest.approx([1, 2.5, 4, 8]), "beyond the last one by the bytes"
    between = [look_up(grids, 2, 512, run) for run in (1, 10, 40, 160, 1e9, 0)]
    assert between == pytest.approx([32, 32, 2 + 30 / 4, 2 + 30 / 16, 2, 2])
    assert look_up(grids, 2, 32, 10.0) == pytest.approx(1), "there are too few of them"


def test_times_of_fewer_ranks_are_interpolated():
    of_two, of_eight = ((0.0, ((16.0, seconds), (64.0, seconds))) for seconds in (1.0, 16.0))
    grids = ((2, (of_two,)), (8, (of_eight,)))
    assert [look_up(grids, n, 32, 0) for n in (1, 2, 4, 8, 16)] == pytest.approx([1, 1, 4, 16, 16])


@pytest.mark.parametrize(
    ("src", "dst", "shape", "seconds"),
    [
        (R, Shard(0), (8 * MIB, 2), 1e-3 + 64 * MIB / 8e9),
        (R, Shard(1), (MIB, 16), 1e-3 + 4 * 64 * MIB / 8e9),
        (R, Shard(1), (MIB // 4, 64), 1e-3 + 2 * 64 * MIB / 8e9),
        (R, P, (8 * MIB,), 1e-3 + 64 * MIB / 3e9),
        (Shard(0), P, (8 * MIB,), 1e-3 + 64 * MIB / 4e9),
        (Shard(1), P, (MIB // 2, 16), 1e-3 + 4 * 64 * MIB / 4e9),
        (Shard(0), R, (8 * MIB,), 1e-3 + 64 * MIB / 2e9),
        (Shard(0), Shard(1), (MIB, 16), 1e-3 + 4 * 64 * MIB / 2e9),
        (P, Shard(0), (8 * MIB,), 1e-3 + 64 * MIB / 1e9),
        (P, Shard(1), (MIB // 2, 16), 1e-3 + 4 * 64 * MIB / 1e9),
        (P, R, (8 * MIB,), 1e-3 + 64 * MIB / 5e8),
        (Shard(0), R, (8192,), 2e-4),
        (P, Shard(0), (4096,), 3e-4),
    ],
)
def test_seconds_are_those_of_such_a_move(src, dst, shape, seconds):
    keep(MODEL)
    assert planned(src, dst, shape).seconds == pytest.approx(seconds, rel=1e-3)


def test_network_and_further_ranks_come_on_top():
    keep(MODEL)
    mesh = AbstractMesh((4,))
    more = planned(Shard(0), R, (1024,), mesh).seconds - planned(Shard(0), R, (1024,)).seconds
    assert 0 < more < 1e-4
    far = CostModel(ranks_per_node=2, bandwidth_far=1e6, round_far=2e-3, message_far=1e-6)
    there = planned(Shard(0), R, (MIB,), mesh, model=far).seconds
    assert there > 4 * MIB / 1e6
    small = planned(Shard(0), R, (16,), mesh, model=far).seconds
    assert small == pytest.approx(2.2e-3, rel=0.1), "a round, and a small block"


def test_ranks_that_wait_for_each_other_count_whoever_sends():
    keep(replace(MODEL, ranks=4, reduce_small=((2, flat(2e-4)), (4, flat(4e-4)))))
    mesh = AbstractMesh((2, 2))
    src, dst = (Layout(mesh, p, (64, 64)) for p in ([Shard(1), P], [Shard(0), Shard(0)]))
    assert plan(src, dst, "f8").seconds == pytest.approx(4e-4), "two reduce, four exchange"


def test_sums_that_all_ranks_want_are_one_kind():
    keep(replace(MODEL, all_reduce=((2, flat(7e-4)),)))
    step = planned(P, R, (16,)).steps[0]
    assert type(step).__name__ == "DirectAllReduceStep", "every rank reads all blocks"
    assert planned(P, R, (16,)).seconds == pytest.approx(7e-4)


def test_speeds_are_those_of_the_nearest_number_of_ranks_on_a_node():
    keep(MODEL)
    keep(replace(MODEL, ranks=8, exchange=SLOW))
    assert (
        planned(Shard(0), R).seconds < 0.5 < planned(Shard(0), R, mesh=AbstractMesh((6,))).seconds
    )
    several = CostModel(ranks_per_node=2)
    far = planned(Shard(0), R, mesh=AbstractMesh((16,)), model=several)
    assert far.seconds < 1, "two of its ranks are on a node"
    assert far.speeds.bandwidth_far == several.bandwidth_far


def test_plans_are_chosen_without_them():
    before = planned(P, R), planned(P, R).cost
    keep(replace(MODEL, all_reduce=SLOW))
    assert (planned(P, R), planned(P, R).cost) == before
    assert planned(P, R).seconds > 100 * before[1]


def test_one_rank_alone_tells_nothing_of_several():
    keep(replace(MODEL, ranks=1))
    assert planned(P, R).seconds == planned(P, R).cost


def test_one_rank_copies_what_only_changes_its_name():
    keep(replace(MODEL, ranks=1))
    found = planned(Shard(0), R, (8 * MIB,), mesh=AbstractMesh((1,))).seconds
    assert found == pytest.approx(1e-3 + 64 * MIB / 8e9, rel=1e-3)


def test_latency_is_no_more_than_the_whole_time():
    of_whole = (*grid(2e9)[:-1], *flat(1.0)[-1:])  # short moves take longer
    whole = replace(MODEL, exchange=((2, of_whole),))
    keep(whole)
    found = planned(Shard(0), Shard(1))
    assert found.seconds < 1
    spent = da.layout.seconds_text(found.seconds)
    assert f"estimated time {spent}, of it latency {spent}" in found.explain()


def test_explain_says_what_its_times_are():
    assert "typical speeds; python -m distarray bench" in planned(P, R).explain()
    keep(replace(MODEL, exchange=SLOW))
    told = planned(Shard(0), R).explain()
    assert "measured on this machine, all 2 ranks on one node" in told
    assert "1.0 s" in told
    assert "by the model of the plan" in planned(P, R, model=CostModel(message_near=1.0)).explain()
    far = planned(P, R, mesh=AbstractMesh((8,)), model=CostModel(ranks_per_node=2)).explain()
    assert "2 ranks on a node; between nodes 10.0 us a round" in far


@pytest.mark.parametrize(
    "content",
    [{"2": {}}, {"2": []}, {"x": 1}, {"2": {"cut": 1}}, {"2": dict.fromkeys(_speeds._GRIDS, 1)}],
)
def test_what_another_version_has_kept_is_left_alone(content):
    store_measured("speeds", content)
    forget_speeds()
    found = planned(Shard(0), R)
    assert found.seconds == found.cost


@pytest.mark.parametrize(("ranks", "turns"), [(1, 1), (2, 1), (3, 4), (8, 8)])
def test_ranks_that_share_cores_are_measured_for_turns_of_each(ranks, turns, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = testing.simulate(ranks, lambda: _bench.least_seconds(world()))
    assert set(found) == {turns * _bench._SECONDS}


def test_ranks_with_cores_of_their_own_share_none(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {world().rank})
    assert set(testing.simulate(4, lambda: _bench.least_seconds(world()))) == {_bench._SECONDS}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_moves_are_measured(ranks, monkeypatch):
    monkeypatch.setattr(_bench, "_SIZES", (1 << 14, 1 << 18))
    monkeypatch.setattr(_bench, "_SECONDS", 1e-4)
    found = testing.simulate(ranks, lambda: _bench.measure(ranks), ranks_per_node=ranks)
    groups = [2, ranks] if ranks == 4 else [ranks]
    for model, unsteady in found:
        assert 0 <= unsteady <= 1
        for name in _speeds._GRIDS:
            grids = getattr(model, name)
            assert [n for n, _ in grids] == (groups[:1] if name == "cut" else groups)
            for _, grid in grids:
                runs = [run for run, _ in grid]
                assert runs[-1] == 0, "whole blocks come last"
                assert runs[:-1] == sorted({*runs} - {0})
                assert (len(runs) > 1) == (name not in ("keep", "all_reduce"))
                for _, curve in grid:
                    assert np.diff([n for n, _ in curve]).min(initial=1) > 0
                    assert min(seconds for _, seconds in curve) > 0
    keep(found[0][0])
    assert planned(Shard(0), Shard(1), mesh=AbstractMesh((ranks,))).speeds.cut == found[0][0].cut
