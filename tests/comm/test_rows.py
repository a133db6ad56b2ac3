"""Ragged exchanges of rows against NumPy, on simulated ranks and nodes; and the local orders."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.comm import (
    Blocks,
    CommLog,
    Parcels,
    _backend,
    ask_owners,
    compress,
    count_numbers,
    expand,
    group_numbers,
    group_rows,
    merge_runs,
    pull_rows,
    push_rows,
    simulate,
    simulated_world,
    token,
)
from distarray.comm import _grouping as grouping
from distarray.comm.kernels import _choice
from distarray.comm.simulated._ranks import SimulatedCommunicator
from distarray.errors import ArgumentError, CommunicationError, IndexingError, MismatchError
from tests import either_way, on_device
from tests.comm import rows_checks as checks
from tests.comm.rows_checks import CALL

NODES = pytest.mark.parametrize("ranks_per_node", [None, 1, 2], ids=["one node", "1", "2"])
RANKS = st.integers(1, 4)
SEED = st.integers(0, 2**32)
DEVICE = on_device.DEVICE.replace("cuda", "cuda:0")
EXAMPLES = settings(max_examples=60, deadline=None)


def world() -> Any:
    return simulated_world()


@NODES
@EXAMPLES
@given(n=RANKS, seed=SEED)
def test_pushed_rows_are_those_of_numpy(n, seed, ranks_per_node):
    simulate(n, lambda: checks.check_push(world(), seed, DEVICE), ranks_per_node=ranks_per_node)


@NODES
@EXAMPLES
@given(n=RANKS, seed=SEED)
def test_pulled_rows_are_those_of_numpy(n, seed, ranks_per_node):
    simulate(n, lambda: checks.check_pull(world(), seed, DEVICE), ranks_per_node=ranks_per_node)


@NODES
@settings(max_examples=20, deadline=None)
@given(n=RANKS, seed=SEED)
def test_answers_are_those_of_the_owners(n, seed, ranks_per_node):
    simulate(n, lambda: checks.check_ask(world(), seed), ranks_per_node=ranks_per_node)


def everyones(n: int, count: int) -> Parcels:
    """Return parcels of `count` rows for each of n ranks, in turns."""
    return group_rows(np.arange(n * count) % n, n)


def of_all(n: int, length: int, count: int) -> tuple[Blocks, np.ndarray]:
    """Return blocks of one length, and the numbers of the first `count` rows of each, in turns."""
    numbers = np.arange(n) * length + np.arange(count)[:, None]
    return Blocks(np.arange(n + 1) * length), numbers.reshape(-1)


def block(rows: int, width: int) -> Any:
    return _backend.asarray(np.ones((rows, width)), DEVICE)


@NODES
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_only_rows_of_others_are_counted(n, width, ranks_per_node):
    def program():
        with CommLog() as log:
            push_rows(world(), [block(6 * n, width)], everyones(n, 6), CALL)
        assert (log.count(), log.bytes("rows")) == ((n > 1), (n - 1) * 6 * width * 8)
        with CommLog() as log:
            pull_rows(world(), block(6 * n, width), *of_all(n, 6 * n, 6), CALL)
        assert (log.count(), log.bytes("rows")) == ((n > 1), (n - 1) * 6 * width * 8)

    simulate(n, program, ranks_per_node=ranks_per_node)


@NODES
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("n", [1, 3])
def test_rows_go_into_an_array_at_the_numbers_that_come_first(n, width, ranks_per_node):
    def program():
        comm = world()
        rng = np.random.default_rng(comm.rank)
        every = [np.random.default_rng(rank) for rank in range(n)]
        numbers = [one.integers(0, 7, 5 * n) for one in every]
        values = [one.random((5 * n, width)) for one in every]
        expected = np.full((7, width), -1.0)
        for sent, rows in zip(numbers, values, strict=True):  # in rank order, the last one wins
            for i in range(comm.rank, 5 * n, n):
                expected[sent[i]] = rows[i]
        mine = [_backend.asarray(rng.integers(0, 7, 5 * n), DEVICE)]
        mine.append(_backend.asarray(rng.random((5 * n, width)), DEVICE))
        out = np.full((7, width), -1.0)
        if DEVICE == "cpu":
            (got,), _ = push_rows(comm, mine, everyones(n, 5), CALL, into=out)
            assert len(got) == 5 * n
            np.testing.assert_array_equal(out, expected)

    simulate(n, program, ranks_per_node=ranks_per_node)


@pytest.mark.parametrize("width", [8, 512])
def test_small_blocks_of_a_node_travel_whole_in_one_round(width, monkeypatch):
    views: list[int] = []
    usual = SimulatedCommunicator.views

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        views.append(self.rank)
        return usual(self, *args, **options)

    monkeypatch.setattr(SimulatedCommunicator, "views", counted)

    def program():
        mine = np.arange(3.0 * width).reshape(3, width) + 10_000 * world().rank
        got = pull_rows(world(), mine, Blocks([0, 3, 6]), np.array([5, 0, 5]), CALL)
        assert got[:, 1].tolist() == [10_001 + 2 * width, 1, 10_001 + 2 * width]

    simulate(2, program)
    assert sorted(views) == ([] if width == 8 else [0, 1])


def test_between_nodes_a_row_travels_once():
    def program():
        n = world().size
        numbers = np.repeat(np.arange(n) * 5, 200)
        with CommLog() as log:
            got = pull_rows(world(), block(5, 64), Blocks(np.arange(n + 1) * 5), numbers, CALL)
        assert got.shape == (600, 64)
        assert log.bytes() == (n - 1) * 64 * 8

    simulate(3, program, ranks_per_node=1)


@NODES
@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("width", [1, 8])
def test_error_of_one_rank_is_raised_on_all(failing, width, ranks_per_node):
    def program():
        comm = world()
        rows, parcels = block(9, width), everyones(3, 3)
        error = IndexingError("index 9 is out of range") if comm.rank == failing else None
        for _ in range(3):
            with pytest.raises(IndexingError, match=f"on rank {failing}: index 9 is out"):
                push_rows(comm, [rows, rows], parcels, CALL, "x[i] = y", error)
            with pytest.raises(IndexingError, match=f"on rank {failing}: index 9 is out"):
                pull_rows(comm, rows, *of_all(3, 9, 3), CALL, "x[i]", error=error)
        (got,), _ = push_rows(comm, [rows], parcels, CALL)
        assert len(got) == 9

    simulate(3, program, ranks_per_node=ranks_per_node)


@pytest.mark.parametrize("call", [push_rows, pull_rows])
def test_error_of_a_single_rank_is_raised(call):
    def program():
        error = IndexError("no such row")
        if call is push_rows:
            push_rows(world(), [block(1, 1)], everyones(1, 1), CALL, error=error)
        pull_rows(world(), block(1, 1), *of_all(1, 1, 1), CALL, error=error)

    with pytest.raises(IndexError, match="no such row"):
        simulate(1, program)


@NODES
def test_answers_that_fail_on_one_rank_fail_on_all(ranks_per_node):
    def program():
        comm = world()

        def answer(questions):
            if comm.rank == 1:
                raise ValueError("no answer")
            return questions[0]

        with pytest.raises(ValueError if comm.rank == 1 else CommunicationError, match="no answer"):
            ask_owners(comm, [np.arange(9)], everyones(3, 3), answer, CALL, "ask")

    simulate(3, program, ranks_per_node=ranks_per_node)


@NODES
def test_ranks_that_disagree_all_raise(ranks_per_node):
    def program():
        call = token("something else") if world().rank == 1 else CALL
        for rows in (block(9, 1), block(3000, 8)):
            with pytest.raises(MismatchError, match="different things"):
                push_rows(world(), [rows], everyones(3, len(rows) // 3), call, "push")
            with pytest.raises(MismatchError, match="different things"):
                pull_rows(world(), rows, *of_all(3, len(rows), len(rows) // 3), call, "pull")

    simulate(3, program, ranks_per_node=ranks_per_node)


# --- on one rank ---------------------------------------------------------------------------------


@pytest.fixture(params=["kernel", "numpy", "as usual"])
def way(request, monkeypatch):
    """Let the kernels do everything, or nothing, or what is large."""
    if request.param != "as usual":
        monkeypatch.setattr(grouping, "_KERNEL_BYTES", 0)
        by_kernel = request.param == "kernel"
        run = either_way.by_kernel if by_kernel else either_way.by_numpy
        monkeypatch.setattr(grouping, "run_faster", run)
    monkeypatch.setattr(_choice, "_trials", {})


LENGTHS = [0, 1, 2, 7, 1000, 70_000]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", "bhilBHIL")
def test_groups_are_those_of_a_stable_sort(dtype):
    for n in LENGTHS:
        for size in (1, 2, 100):
            owner = np.random.default_rng(n).integers(0, size, n).astype(dtype)
            offsets, order = group_rows(owner, size)
            np.testing.assert_array_equal(order, np.argsort(owner, kind="stable"))
            np.testing.assert_array_equal(np.diff(offsets), np.bincount(owner, minlength=size))
            assert (offsets.dtype, order.dtype) == (np.int64, np.intp)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [*"bhilBHIL", ">i4"])
def test_counted_numbers_are_those_of_numpy(dtype):
    for n in (1, 7, 70_000):
        for length in (1, 100, 70_000):
            numbers = np.random.default_rng(n).integers(0, min(length, 100), n).astype(dtype)
            found = count_numbers(numbers, length)
            np.testing.assert_array_equal(found, np.bincount(numbers, minlength=length))
            assert found.dtype == np.intp


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("wrong", [3, -1])
def test_rows_of_no_rank_are_refused(wrong):
    for n in (5, 70_000):
        with pytest.raises(ArgumentError, match="from 0 to 2"):
            group_rows(np.array([0] * n + [wrong]), 3)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", ["?", "i2", "f4", "f8", "c16", "S3", "M8[s]", "V16"])
@pytest.mark.parametrize("row", [(), (2,), (3, 5)], ids=str)
def test_compressed_rows_are_those_of_the_mask(dtype, row):
    for n in LENGTHS[:-1]:
        rng = np.random.default_rng(n)
        whole = checks.values(rng, (n, *row), dtype)
        for share in (0, 0.1, 0.9, 1):
            mask = rng.random(n) < share
            rows = _backend.asarray(whole, "cpu")
            out = np.empty((int(mask.sum()), *row), whole.dtype)
            assert compress(rows, mask, out) is out
            checks.same(out, whole[mask])
            spread = np.repeat(whole, 2, 0)[::2]
            checks.same(compress(spread, np.repeat(mask, 2)[::2], out), whole[mask])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("dtype", "row"), [("?", ()), ("c16", ()), ("f8", (3,))])
def test_rows_are_expanded_to_where_the_mask_is_true(dtype, row):
    for n in LENGTHS[:-1]:
        rng = np.random.default_rng(n)
        whole = checks.values(rng, (n, *row), dtype)
        for share in (0, 0.1, 0.9, 1):
            mask = rng.random(n) < share
            block = checks.values(rng, (int(mask.sum()), *row), dtype)
            for rows in (block, np.repeat(block, 2, 0)[::2], np.ones((), dtype)):
                out, expected = whole.copy(), whole.copy()
                expected[mask] = rows
                expand(rows, mask, out)
                checks.same(out, expected)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [*"?bHlLefdF", "M8[s]", "S3", ">i4"])
def test_merged_runs_are_a_stable_sort(dtype):
    for n in LENGTHS:
        rng = np.random.default_rng(n)
        whole = rng.integers(-9, 9, n).astype("i8").astype(dtype)
        if whole.dtype.kind in "fc":
            whole[rng.random(n) < 0.1] = np.nan
            whole[rng.random(n) < 0.1] = -0.0
            whole[rng.random(n) < 0.1] = np.inf
        if whole.dtype.kind == "M":
            whole[rng.random(n) < 0.1] = np.datetime64("NaT")
        for cut in {0, min(1, n), n // 3, n}:
            a, b = (np.sort(part, kind="stable") for part in (whole[:cut], whole[cut:]))
            expected = np.sort(np.concatenate((a, b)), kind="stable").astype(dtype)
            out = np.empty_like(whole)
            assert merge_runs(a, b, out) is out
            assert out.tobytes() == expected.tobytes()  # and signs of zeros
            order, first = np.argsort(whole[:cut], kind="stable"), np.empty(n, np.int64)
            then = np.argsort(whole[cut:], kind="stable") + cut
            assert merge_runs(a, b, out, (order, then, first)) is out
            assert out.tobytes() == expected.tobytes()
            assert first.tolist() == np.argsort(whole, kind="stable").tolist()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dense", [0, 4, 100])
def test_rows_of_all_blocks_are_those_of_numpy(dense, monkeypatch):
    monkeypatch.setattr(grouping, "_DENSE", dense)
    monkeypatch.setattr(grouping, "_FEW_ROWS", 2)
    for seed in range(20):
        simulate(1 + seed % 5, lambda seed=seed: checks.check_pull(world(), seed))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 7, 8, 12, 16, 33, 64, 65, 200, 4096])
def test_rows_move_between_places(nbytes):
    for n in (0, 1, 90):
        rng = np.random.default_rng(n)
        whole = rng.integers(0, 256, (2 * n, nbytes)).astype(np.uint8)
        for block in (whole, whole[::2].repeat(2, 0)[::2], whole[::-1], whole.T.copy().T):
            numbers, place = rng.integers(0, max(len(block), 1), n), rng.permutation(n + 3)[:n]
            for given_numbers in (numbers, slice(0, n)):
                for given_place in (place, None):
                    out = np.zeros((n + 3 * (given_place is not None), nbytes), np.uint8)
                    expected = out.copy()
                    expected[... if given_place is None else given_place] = block[given_numbers]
                    grouping.take_rows(block, given_numbers, out, given_place)
                    np.testing.assert_array_equal(out, expected)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("width", [1, 3, 64])
def test_rows_of_any_number_of_blocks_are_found(count, width, monkeypatch):
    monkeypatch.setattr(grouping, "_PIECE", 300)
    monkeypatch.setattr(grouping, "_DIVIDED", 70)
    monkeypatch.setattr(grouping, "_DENSE", 0)
    rng = np.random.default_rng(count)
    lengths = rng.integers(0, 60, count)  # some may be empty
    lengths[[0, -1]] = 900, 61
    blocks = Blocks([0, *lengths.cumsum()])
    whole = rng.random((blocks.size, width))
    own = count // 2
    # Some lie apart, so that each block has a stride of its own.
    parts = np.split(whole, blocks.offsets[1:-1])
    views = [one.repeat(1 + i % 3, 0)[:: 1 + i % 3] for i, one in enumerate(parts)]
    for n in (1, 33, 700):
        number = rng.integers(0, blocks.size, n)
        out = np.empty((n, width))
        found = grouping.take_rows_of_all(views, blocks, number, out, own)
        np.testing.assert_array_equal(out, whole[number])
        owner = np.searchsorted(blocks.offsets, number, "right") - 1
        assert found == np.count_nonzero(owner == own)
        parcels, place = group_numbers(blocks, number)
        np.testing.assert_array_equal(place, np.argsort(owner, kind="stable"))
        np.testing.assert_array_equal(np.diff(parcels.offsets), np.bincount(owner, minlength=count))
        np.testing.assert_array_equal(parcels.order, (number - blocks.offsets[owner])[place])


@pytest.mark.parametrize("lengths", [[5, 3], [5, 3, 0], [0, 8, 0, 0], [1] * 8 + [0] * 12])
def test_kernel_reads_the_last_row_for_numbers_of_none(lengths, monkeypatch):
    monkeypatch.setattr(grouping, "run_faster", either_way.by_kernel)
    monkeypatch.setattr(grouping, "_KERNEL_BYTES", 0)
    monkeypatch.setattr(grouping, "_FEW_ROWS", 0)
    blocks, rows = Blocks([0, *np.cumsum(lengths)]), np.arange(8.0)
    # Not one after another: the row before an empty block is none of ours.
    views = [one.copy() for one in np.split(rows, blocks.offsets[1:-1])]
    number, out = np.array([0, 8, 99, -1, 7]), np.empty(5)
    grouping.take_rows_of_all(views, blocks, number, out, 0)
    np.testing.assert_array_equal(out, [0, 7, 7, 7, 7])


def test_long_rows_of_several_blocks_are_those_of_numpy(way):
    whole = np.random.default_rng(0).random((9, 3000))
    number = np.random.default_rng(1).integers(0, 9, 40)
    out = np.empty((40, 3000))
    blocks, views = Blocks([0, 2, 2, 9]), [whole[:2], whole[2:2], whole[2:]]
    assert grouping.take_rows_of_all(views, blocks, number, out, 0) == sum(number < 2)
    np.testing.assert_array_equal(out, whole[number])


def test_rows_of_no_bytes_are_counted():
    blocks, number = Blocks([0, 20, 40]), np.arange(40)
    out = np.empty((40, 3), "V0")
    assert grouping.take_rows_of_all([out[:20], out[20:]], blocks, number, out, 1) == 20
    grouping.take_rows(out, slice(None), out.copy(), number)


@pytest.mark.parametrize("width", [1, 8, 8192])
def test_numpy_takes_rows_of_several_blocks_in_little_memory(width, monkeypatch):
    monkeypatch.setattr(grouping, "run_faster", either_way.by_numpy)
    views = [np.ones((2 << 20) // width * width).reshape(-1, width) for _ in range(2)]
    length = len(views[0])
    number = np.random.default_rng(0).permutation(2 * length)[:length]
    out = np.empty_like(views[0])
    tracemalloc.start()
    try:
        grouping.take_rows_of_all(views, Blocks([0, length, 2 * length]), number, out, 0)
        assert tracemalloc.get_traced_memory()[1] < out.nbytes // 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [0, 1])
@pytest.mark.parametrize("nbytes", [8, 64])
@NODES
def test_blocks_that_lie_in_order_are_pushed_as_they_are(packed, nbytes, ranks_per_node):
    def program():
        comm = world()
        numbers = np.arange(12) + 100 * comm.rank
        owner = np.random.default_rng(comm.rank).integers(0, 3, 12)
        parcels = group_rows(owner, 3)
        first = numbers[parcels.order] if packed else numbers
        rows = np.repeat(numbers, nbytes // 8).reshape(12, -1)
        (got, moved), _ = push_rows(comm, [first, rows], parcels, CALL, packed=packed)
        np.testing.assert_array_equal(got, moved[:, 0])
        owners = [np.random.default_rng(rank).integers(0, 3, 12) for rank in range(3)]
        expected = [np.flatnonzero(one == comm.rank) + 100 * i for i, one in enumerate(owners)]
        np.testing.assert_array_equal(got, np.concatenate(expected))

    simulate(3, program, ranks_per_node=ranks_per_node)
