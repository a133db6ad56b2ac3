"""Plans tell how long they take by speeds that were measured, and are chosen without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distarray import _bench, testing
from distarray.comm import init_device_mesh, store_measured
from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from distarray.redistribute import (
    CostModel,
    MeasuredModel,
    forget_speeds,
    keep_speeds,
    pace,
    plan,
)

R, P = Replicate(), Partial()
MESH = AbstractMesh((2,))
MODEL = MeasuredModel(
    round_near=1e-5,
    message_near=1e-6,
    step=1e-4,
    copy=((1e3, 2e9), (1e6, 1e9)),
    reduce=((1e3, 4e9),),
    fill=((1e3, 8e9),),
    fresh=((1e3, 1e8), (65536.0, 1e8)),
    run=((1e3, 1e6),),
    reduced_run=((1e3, 2e6),),
)


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    forget_speeds()
    yield
    monkeypatch.undo()
    forget_speeds()


def planned(src, dst, shape=(2048, 1024), mesh=MESH, **options):
    return plan(Layout(mesh, [src], shape), Layout(mesh, [dst], shape), "f8", **options)


def keep(model: MeasuredModel, ranks: int) -> None:
    assert keep_speeds(model, ranks)
    forget_speeds()


def test_pace_is_interpolated_over_the_logarithm_of_the_bytes():
    curve = ((16.0, 1.0), (64.0, 3.0), (256.0, 7.0))
    assert [pace(curve, n) for n in (1, 16, 32, 64, 128, 256, 1e9)] == [1, 1, 2, 3, 5, 7, 7]


BLOCK = 1024 * 1024 * 8  # bytes of half of the array
BEGUN = 1e-4 + 1e-5 + 1e-6


@pytest.mark.parametrize(
    ("src", "dst", "seconds"),
    [
        (Shard(0), R, BEGUN + 2 * BLOCK / 1e9 + 1e-6),  # one run: the pieces are not counted
        (Shard(0), Shard(1), BEGUN + BLOCK / 1e9 + 2048 / 1e6),
        (P, Shard(0), BEGUN + 2 * BLOCK / 4e9 + 1e-6),
        (R, Shard(1), 1e-4 + BLOCK / 1e9 + 2048 / 1e6),
        (Shard(0), P, 1e-4 + BLOCK / 1e9 + 2 * BLOCK / 8e9 + 1e-6),
    ],
)
def test_seconds_are_those_of_what_a_rank_does(src, dst, seconds):
    keep(MODEL, 2)
    assert planned(src, dst).seconds == pytest.approx(seconds, rel=1e-3)


def test_small_blocks_are_read_out_of_their_owners_caches():
    keep(MODEL, 2)
    small = planned(Shard(0), R, (512,))
    assert small.seconds == pytest.approx(BEGUN + 4096 / 1.8e9 + 2048 / 1e8 + 1e-6, rel=0.02)


def test_speeds_are_those_of_the_nearest_number_of_ranks_on_a_node():
    keep(MODEL, 2)
    keep(MeasuredModel(step=1.0), 8)
    assert planned(Shard(0), R).seconds < 1 < planned(Shard(0), R, mesh=AbstractMesh((6,))).seconds
    several = CostModel(ranks_per_node=2)
    far = planned(Shard(0), R, mesh=AbstractMesh((16,)), model=several)
    assert far.seconds < 1, "two of its ranks are on a node"
    assert far.speeds.bandwidth_far == several.bandwidth_far


def test_plans_are_chosen_without_them():
    before = planned(P, R), planned(P, R).cost
    keep(MeasuredModel(step=1.0, reduce=((1.0, 1.0),)), 2)
    assert (planned(P, R), planned(P, R).cost) == before
    assert planned(P, R).seconds > 1e6


def test_explain_says_what_its_times_are():
    assert "typical speeds; python -m distarray bench" in planned(P, R).explain()
    keep(MeasuredModel(step=1.0), 2)
    told = planned(Shard(0), R).explain()
    assert "measured on this machine, of one node" in told
    assert "1.0 s" in told
    assert "by the model of the plan" in planned(P, R, model=CostModel(message_near=1.0)).explain()
    far = planned(P, R, mesh=AbstractMesh((8,)), model=CostModel(ranks_per_node=2)).explain()
    assert "2 ranks on a node; between nodes 10.0 us a round" in far


@pytest.mark.parametrize(
    "content", [{"2": {}}, {"2": []}, {"x": 1}, {"2": {"copy": 1}}, {"0": {"copy": 1}}]
)
def test_what_another_version_has_kept_is_left_alone(content):
    store_measured("speeds", content)
    forget_speeds()
    found = planned(Shard(0), R)
    assert found.seconds == found.cost


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_speeds_are_measured(ranks, monkeypatch):
    monkeypatch.setattr(_bench, "_SIZES", (1 << 12, 1 << 16, 1 << 18))
    monkeypatch.setattr(_bench, "_RUNS", (1 << 14, 1 << 16))
    monkeypatch.setattr(_bench, "_WORK", 1 << 19)
    monkeypatch.setattr(_bench, "_SECONDS", 1e-4)
    found = testing.simulate(
        ranks, lambda: _bench.measure(init_device_mesh((ranks,))), ranks_per_node=ranks
    )
    for model in found:
        assert min(model.step, model.message_near, model.round_near + 1.0) > 0
        curves = [
            model.copy,
            model.reduce,
            model.fill,
            model.run,
            model.reduced_run,
            *([model.fresh] * (ranks > 1)),
        ]
        for curve in curves:
            assert np.diff([n for n, _ in curve]).min() > 0
            assert min(speed for _, speed in curve) > 0
    keep(found[0], ranks)
    assert planned(Shard(0), Shard(1), mesh=AbstractMesh((ranks,))).speeds.copy == found[0].copy
