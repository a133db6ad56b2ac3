"""The collectives on simulated ranks: every dtype and op, and any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.comm import world
from distarray.errors import ArgumentError, DTypeError, MismatchError
from distarray.testing import simulate
from tests.comm import collective_checks as checks

RANKS = (1, 2, 3, 5)


def on_ranks(check, *args, **kwargs):
    for n in RANKS:
        simulate(n, lambda: check(world(), *args, **kwargs))


@pytest.mark.parametrize("dtype", checks.MOVED, ids=str)
def test_values_of_every_dtype_move_unchanged(dtype):
    on_ranks(checks.check_all_gather, dtype)
    on_ranks(checks.check_all_to_all, dtype)
    on_ranks(checks.check_rooted, dtype)


@pytest.mark.parametrize("op", checks.REDUCED)
def test_reductions_equal_numpys_for_every_dtype(op):
    for char in checks.REDUCED[op]:
        on_ranks(checks.check_all_reduce, op, np.dtype(char))


@pytest.mark.parametrize(
    "check",
    [
        checks.check_all_reduce_in_place,
        checks.check_nan_and_infinity,
        checks.check_roundoff_is_the_same_on_every_rank,
        checks.check_low_precision_sums,
        checks.check_point_to_point,
        checks.check_objects,
        checks.check_many_requests_in_flight,
        checks.check_log,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_transport_passes(check):
    on_ranks(check)


@settings(max_examples=40)
@given(st.data())
def test_all_to_all_then_its_reverse_gives_back_the_values(data):
    n = data.draw(st.integers(1, 6))
    counts = st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=n, max_size=n)
    table = data.draw(counts)

    def run():
        c = world()
        sends = table[c.rank]
        receives = [row[c.rank] for row in table]
        mine = np.random.default_rng(c.rank).random(sum(sends))
        away, back = np.empty(sum(receives)), np.empty(sum(sends))
        c.all_to_all(mine, away, sends, receives)
        c.all_to_all(away, back, receives, sends)
        np.testing.assert_array_equal(back, mine)

    simulate(n, run)


def test_result_of_nonblocking_collective_waits_for_the_last_rank():
    def run():
        c = world()
        out = np.zeros(c.size)
        if c.rank == 0:
            request = c.start_all_gather(np.ones(1), out)
            assert not request.test()
            c.send(np.zeros(0), 1)
        else:
            c.recv(np.zeros(0), 0)
            request = c.start_all_gather(np.ones(1), out)
        request.wait()
        assert out.tolist() == [1, 1]

    simulate(2, run)


def test_send_buffer_is_taken_as_it_was():
    def run():
        c = world()
        mine, out = np.ones(2), np.empty(6)
        request = c.start_all_gather(mine, out)
        mine[:] = 9  # which MPI would not allow
        request.wait()
        assert out.tolist() == [1] * 6

    simulate(3, run)


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda c: c.all_gather(np.zeros(2), np.zeros(3)), ArgumentError, "multiple of 2"),
        (lambda c: c.all_gather(np.zeros(2), np.zeros(8)), ArgumentError, "4 elements"),
        (lambda c: c.all_gather(np.zeros(2), np.zeros(4, "f4")), DTypeError, "float32"),
        (lambda c: c.all_gather(np.zeros(2), np.zeros(4), [2, 1]), ArgumentError, r"\(2, 1\)"),
        (lambda c: c.all_gather(np.zeros(2), np.zeros(4), [5, -1]), ArgumentError, "negative"),
        (lambda c: c.all_gather(np.zeros((4, 4))[:, 0], np.zeros(8)), ArgumentError, "contiguous"),
        (lambda c: c.all_reduce(np.zeros(2), "median"), ArgumentError, "median"),
        (lambda c: c.all_reduce(np.zeros(2), "band"), DTypeError, "float64"),
        (lambda c: c.all_reduce(np.zeros(2), "any"), DTypeError, "any"),
        (lambda c: c.all_reduce(np.zeros(2, "S2")), DTypeError, "S2"),
        (lambda c: c.all_reduce(np.zeros(2, object)), DTypeError, "objects"),
        (lambda c: c.all_reduce(np.zeros(2, int), "avg", np.zeros(2, int)), DTypeError, "float64"),
        (lambda c: c.all_reduce(np.zeros(2), out=np.zeros(3)), ArgumentError, "shape"),
        (lambda c: c.all_to_all(np.zeros(3), np.zeros(3)), ArgumentError, "multiple"),
        (
            lambda c: c.all_to_all(np.zeros(3), np.zeros(4), [1, 2], [2, 2]),
            ArgumentError,
            "itself",
        ),
        (lambda c: c.broadcast(np.zeros(3), 2), ArgumentError, "root=2"),
        (lambda c: c.scatter(None, np.zeros(3), root=0), ArgumentError, "send buffer"),
        (lambda c: c.gather(np.zeros(3), None, root=0), ArgumentError, "receive buffer"),
        (lambda c: c.gather(np.zeros(3, object), None), DTypeError, "objects"),
        (lambda c: c.send(np.zeros(3), -1), ArgumentError, "dest=-1"),
        (lambda c: c.send(np.zeros(3), 1, tag=32766), ArgumentError, "tag=32766"),
        (lambda c: c.subgroup((0, 7)), ArgumentError, "7"),
    ],
)
def test_bad_arguments_are_refused_before_anything_moves(call, error, told):
    def run():
        c = world()
        if c.rank == 0:  # alone: an error after communication began would hang or break the round
            with pytest.raises(error, match=told):
                call(c)
        c.barrier()
        assert c.all_reduce(np.ones(1)).tolist() == [2.0]

    simulate(2, run)


def test_views_show_the_blocks_of_other_ranks_until_all_have_left():
    def run():
        c = world()
        block = np.full((c.rank, 2), c.rank)
        with c.views(block, 5) as views:
            assert c.reaches_all()
            for rank, view in enumerate(views):
                assert view.shape == (rank, 2)
                assert (view == rank).all()
                assert rank == c.rank or not view.flags.writeable
        block[...] = -1

    simulate(4, run)


def test_views_of_simulated_nodes_hide_the_ranks_of_others():
    def run():
        c = world()
        with c.views(np.array([c.rank]), 5) as views:
            mine = c.rank // 2
            assert [v is not None for v in views] == [r // 2 == mine for r in range(5)]
        assert not c.reaches_all()
        assert c.reaches_some()
        apart = c.subgroup((0, 2, 4))
        assert apart is None or not apart.reaches_some()
        pair = c.subgroup((0, 1) if c.rank < 2 else (2, 3) if c.rank < 4 else (4,))
        assert pair.reaches_all()

    simulate(5, run, ranks_per_node=2)


def test_views_raise_on_every_rank_where_tokens_differ():
    def run():
        c = world()
        views = c.views(np.zeros(1), 5 if c.rank else 6, "eat" if c.rank else "cut the cake")
        with pytest.raises(MismatchError, match="cut the cake"):
            views.__enter__()
        assert c.all_gather_object(c.rank) == [0, 1, 2]

    simulate(3, run)


def test_subgroups_and_duplicates_do_not_meet():
    def run():
        c = world()
        odd = c.subgroup((3, 1))
        assert (odd is None) == (c.rank not in (1, 3))
        if odd is not None:
            assert odd.ranks == (3, 1)
            assert odd.all_gather_object(c.rank) == [3, 1]
            inner = odd.subgroup((1,))
            assert (inner is None) == (c.rank == 3)
        copy, out = c.duplicate(), np.zeros(4)
        if c.rank == 0:
            request = c.start_all_gather(np.ones(1), out)
            assert copy.all_reduce(np.array([2.0]))[0] == 8
        else:
            assert copy.all_reduce(np.array([2.0]))[0] == 8
            request = c.start_all_gather(np.ones(1), out)
        request.wait()
        assert out.tolist() == [1] * 4
        assert c.background().all_gather_object(c.rank) == [0, 1, 2, 3]

    simulate(4, run)
