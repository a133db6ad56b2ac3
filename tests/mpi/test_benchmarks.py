"""What the benchmarks time is right, so that they compare like with like."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import distarray as da
from benchmarks import by_distarray, by_hand, cases, large, overhead

pytestmark = pytest.mark.mpi(min_size=2)

SIZE = 16
COMM = MPI.COMM_WORLD


def _even() -> None:
    if SIZE % COMM.size:
        pytest.skip(f"the benchmarks divide {SIZE} rows evenly, {COMM.size} ranks cannot")


def _two() -> None:
    if COMM.size > 2:
        pytest.skip("more ranks time the same on two cores, and take their time")


@pytest.mark.parametrize("module", [by_distarray, by_hand], ids=lambda module: module.NAME)
def test_moves_give_every_rank_its_block(module) -> None:
    _even()
    for case in cases.moves(COMM.size, SIZE):
        work = module.move(case, case.block(COMM.rank))
        assert work is not None
        with da.CommLog() as log:
            for _ in range(2):
                case.check(module.local(work()), COMM.rank)
        if module is by_distarray:  # what is timed starts from the placements that it names
            assert log.count() == (0 if case.source == ("R",) else 2), case.name


def test_small_and_large_operations_are_checked_before_they_are_timed(monkeypatch) -> None:
    _two()
    monkeypatch.setattr(cases, "LARGE_SIZE", SIZE * 8)
    monkeypatch.setattr(cases, "MATMUL_SIZE", SIZE * 8)
    rows = [
        overhead._measure(COMM, name, [by_distarray, by_hand], True)
        for name in ("x @ R", "x.std(0)")
    ]
    rows += [
        large._measure(COMM, name, [by_distarray, by_hand], True) for name in cases.LARGE_OPERATIONS
    ]
    for row in rows:
        assert by_distarray.NAME in row["seconds"]
        assert all(seconds["median"] > 0 for seconds in row["seconds"].values())


def test_sharded_contenders_compute_the_same_and_hold_their_share() -> None:
    pytest.importorskip("torch")
    from benchmarks import fsdp, fsdp_memory

    _two()
    for reshard in (True, False):
        rows = fsdp._measured(COMM, (128, 2, 8), reshard, peer=False, quick=True)
        assert len(rows) == 2
        for row in rows:
            assert set(row["seconds"]) == {
                fsdp.BASELINE,
                by_distarray.NAME,
                by_hand.NAME,
                fsdp.COLLECTIVES,
            }
            assert row["shares"]["hidden"]["median"] < 1
        held = fsdp_memory._held(COMM, 128, 4, reshard)
        group, shared = held[fsdp_memory.GROUP], 4 * held[fsdp_memory.GROUP] // COMM.size
        assert held["parameters"] == held["gradients"] == shared
        assert held["optimizer"] - 2 * shared < 1000
        # The pool rounds up by an eighth at most. All groups, or one and the one that comes next,
        # which a thread in the background begins to gather when it gets a core. Between nodes the
        # last to be gathered arrives in a second buffer of its size:
        fewest, most = (1, 2) if reshard else (4, 4)
        most += not da.default_mesh().communicator().reaches_all("cpu")
        assert fewest * group <= held[fsdp_memory.FORWARD] <= most * group * 9 / 8


def test_checkpoints_are_the_same_by_all_contenders(tmp_path) -> None:
    from benchmarks import checkpoint

    _two()
    folder = COMM.bcast(tmp_path)
    rows = checkpoint.measured(COMM, folder, 1 << 20, peer=False, repeats=1)
    assert [row["case"] for row in rows] == ["save", "load", "load columns of rows"]
    for row in rows:
        assert {checkpoint.BASELINE, checkpoint.OURS, checkpoint.BY_HAND} <= set(row["seconds"])


def test_what_is_hidden_is_found_round_by_round() -> None:
    from benchmarks import fsdp

    samples = {
        fsdp.BASELINE: [1.0, 2.0],
        by_distarray.NAME: [1.5, 2.0],
        fsdp.COLLECTIVES: [1.0, 0.5],
    }
    assert fsdp.hidden(samples) == [0.5, 1.0]


def test_wrong_block_is_not_timed() -> None:
    _even()
    case = cases.moves(COMM.size, SIZE)[0]
    rows, columns = case.box(case.target, COMM.rank)
    wrong = np.zeros((rows.stop - rows.start, columns.stop - columns.start))
    with pytest.raises(ValueError, match="wrong values"):
        case.check(wrong, COMM.rank)
