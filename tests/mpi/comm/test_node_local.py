"""Ranks of a node read each other's blocks in place, and notice when they disagree."""

from __future__ import annotations

import time

import numpy as np
import pytest

from distarray.comm import _memory
from distarray.comm.shared_memory import _channel
from distarray.errors import CommunicationError, MismatchError

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def channel():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    made = _channel.attach(
        tuple(range(comm.size)), comm.rank, tuple(range(comm.size)), comm.allgather
    )
    if made is None:
        pytest.skip("the system does not let processes map each other's memory")
    yield made
    comm.Barrier()
    comm.Free()


@pytest.mark.parametrize("closing", [False, True])
def test_a_staged_copy_lasts_until_the_next_round_where_leaving_does_not_wait(channel, closing):
    private = np.full(60_000, float(channel.me))
    with channel.views(private, 1, closing=closing) as views:
        if channel.me:
            time.sleep(0.3)  # the first rank has left by now
        assert [float(view[-1]) for view in views] == [float(r) for r in range(channel.size)]
    reused = [_memory.full(private.shape, np.nan, np.float64) for _ in range(4)]
    channel.barrier()
    assert len(reused) == 4


@pytest.mark.parametrize("lends", [None, 0])
@pytest.mark.parametrize("length", [10_000, 100_000, 200_000])  # copies are kept, or are too large
def test_blocks_of_all_kinds_may_change_after_every_round(channel, lends, length):
    rng = np.random.default_rng(channel.me)
    for i in range(60):
        value = float(100 * i + channel.me)
        if channel.me == lends:
            block = _memory.full((length,), value, np.float64)
        else:
            block = np.full(length, value)
        if rng.random() < 0.1:
            time.sleep(0.002)
        with channel.views(block, 9) as views:
            if rng.random() < 0.1:
                time.sleep(0.002)
            for rank, view in enumerate(views):
                assert (view == 100.0 * i + rank).all()
        block[...] = np.nan
        del views, view


def test_exchange_gives_every_payload_to_every_rank_over_many_rounds(channel):
    for i in range(200):
        said = channel.exchange(b"%d:%d" % (channel.me, i), 1)
        assert [bytes(s) for s in said] == [b"%d:%d" % (r, i) for r in range(channel.size)]


@pytest.mark.parametrize(
    "make",
    [
        lambda r: np.full((3, 4), r, np.float32),  # inline
        lambda r: np.full((), r, np.int16),
        lambda r: np.full((r, 5), r, np.int64),  # empty on rank 0
        lambda r: _memory.full((300, 200 + r), r, np.float64),  # in the pool
        lambda r: _memory.full((300, 200), r, np.float64).T[::-1, ::-3],
        lambda r: np.full((500, 300), r, np.complex128),  # private: staged
        lambda r: np.full((400, 900), r, np.uint8)[:, ::2],
        lambda r: np.full((4 if r else 400, 300), r, np.float64),  # inline here, staged there
    ],
)
def test_views_show_every_block_with_its_own_shape(channel, make):
    for _ in range(3):
        block = make(channel.me)
        with channel.views(block, 2) as views:
            for rank, view in enumerate(views):
                expected = make(rank)
                assert view.shape == expected.shape
                assert view.dtype == expected.dtype
                np.testing.assert_array_equal(view, expected)


def test_blocks_may_change_once_the_views_are_closed(channel):
    block = _memory.full((64, 1024), 0.0, np.float64)
    for i in range(50):
        block[...] = i
        with channel.views(block, 3) as views:
            assert all((view == i).all() for view in views)


def test_views_of_other_ranks_are_read_only(channel):
    with channel.views(np.zeros((64, 1024)), 4) as views:
        others = [v for r, v in enumerate(views) if r != channel.me]
        assert not any(v.flags.writeable for v in others)


def test_different_tokens_raise_the_same_error_everywhere_and_the_next_round_works(channel):
    if channel.size == 1:
        assert channel.exchange(b"", 5, "alone")[0] == b""
        return
    with pytest.raises(MismatchError) as caught:
        channel.exchange(b"", 5 + (channel.me == 0), f"step of rank {channel.me}")
    for rank in range(channel.size):
        assert f"rank {rank}: step of rank {rank}" in str(caught.value)
    assert bytes(channel.exchange(b"fine", 7)[-1]) == b"fine"


def test_views_with_different_tokens_raise_before_anyone_reads(channel):
    if channel.size > 1:
        with pytest.raises(MismatchError), channel.views(np.zeros((64, 1024)), channel.me):
            pytest.fail("entered")
    channel.barrier()


def test_an_error_inside_views_does_not_hold_the_others(channel):
    views = channel.views(np.zeros((64, 1024)), 8)
    if channel.me == 0:
        with pytest.raises(ZeroDivisionError), views:
            raise ZeroDivisionError
    else:
        with views as blocks:
            assert len(blocks) == channel.size
    channel.barrier()


def test_waiting_for_a_rank_that_does_not_come_ends_with_an_error(channel, monkeypatch):
    monkeypatch.setenv("DISTARRAY_TIMEOUT", "0.5")
    if channel.size == 1:
        channel.barrier()
        return
    from mpi4py import MPI

    late = channel.me == channel.size - 1
    if late:
        MPI.COMM_WORLD.Barrier()
        channel.barrier()
    else:
        with pytest.raises(CommunicationError, match=f"for rank {channel.size - 1}"):
            channel.barrier()
        MPI.COMM_WORLD.Barrier()


def test_no_channel_where_shared_memory_is_switched_off(monkeypatch):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    monkeypatch.setenv("DISTARRAY_SHARED_MEMORY", "0" if comm.rank == 0 else "1")
    assert (
        _channel.attach(tuple(range(comm.size)), comm.rank, tuple(range(comm.size)), comm.allgather)
        is None
    )
