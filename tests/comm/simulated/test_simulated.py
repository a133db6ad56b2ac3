"""How simulated programs end: with results, with the first error, or with a report of who waits."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from distarray.comm import CommLog, world
from distarray.errors import ArgumentError, ArgumentTypeError, CommunicationError, MismatchError
from distarray.testing import simulate


def test_results_come_in_rank_order_with_arguments_passed_on():
    assert simulate(3, lambda a, b: (world().rank, world().size, a + b), 1, 2) == [
        (0, 3, 3),
        (1, 3, 3),
        (2, 3, 3),
    ]


def test_sixty_four_ranks_reduce_and_gather():
    def run():
        c = world()
        total = c.all_reduce(np.array([c.rank]))
        return int(total[0]), len(c.all_gather_object(c.rank))

    assert simulate(64, run) == [(2016, 64)] * 64


def test_error_on_one_rank_ends_the_others_and_names_the_rank():
    def run():
        if world().rank == 2:
            raise KeyError("broken")
        world().barrier()

    started = time.monotonic()
    with pytest.raises(KeyError, match="broken") as raised:
        simulate(4, run)
    assert time.monotonic() - started < 5
    assert "simulated rank 2 of 4" in raised.value.__notes__[0]


def test_error_ends_ranks_that_wait_for_a_message():
    def run():
        if world().rank == 0:
            raise ZeroDivisionError
        world().recv(np.empty(1), 0)

    with pytest.raises(ZeroDivisionError):
        simulate(2, run)


def test_ranks_in_different_collectives_all_raise_what_each_was_doing():
    def run():
        c = world()
        with pytest.raises(
            MismatchError, match=r"ranks 0, 2: all_reduce sum.*rank 1: all_reduce max"
        ):
            c.all_reduce(np.ones(2), "sum" if c.rank != 1 else "max")
        with pytest.raises(MismatchError, match=r"barrier"):
            c.barrier() if c.rank else c.all_gather_object(1)
        return c.all_gather_object("fine")

    assert simulate(3, run) == [["fine"] * 3] * 3


def test_rank_that_left_is_named_to_those_who_wait_for_it():
    def run():
        if world().rank:
            world().barrier()

    with pytest.raises(CommunicationError, match=r"ranks \[0\] have left.*barrier"):
        simulate(3, run)


def test_message_from_a_rank_that_left_is_not_waited_for():
    def run():
        if world().rank:
            world().recv(np.empty(1), 0, tag=4)

    with pytest.raises(CommunicationError, match=r"tag 4 from rank 0"):
        simulate(2, run)


def test_deadlock_is_given_up_with_where_each_rank_waits():
    def run():
        c = world()
        pair = c.duplicate()
        if c.rank:
            pair.barrier()
        c.barrier()

    with pytest.raises(CommunicationError, match=r"after 0.5 s; they wait in.*0: 'barrier"):
        simulate(2, run, timeout=0.5)


def test_message_of_another_size_is_refused():
    def run():
        c = world()
        if c.rank == 0:
            c.send(np.zeros(3), 1)
        else:
            with pytest.raises(MismatchError, match="sent 3 float64 elements"):
                c.recv(np.zeros(2), 0)

    simulate(2, run)


def test_message_waits_while_its_receiver_is_busy_even_if_the_sender_is_done():
    def run():
        c = world()
        if c.rank == 0:
            c.send(np.arange(3.0), 1)
        else:
            time.sleep(0.6)
            out = np.empty(3)
            c.recv(out, 0)
            assert out.tolist() == [0, 1, 2]

    simulate(2, run)


def test_world_outside_is_another_and_simulations_nest():
    def inner():
        return world().size

    def run():
        assert simulate(3, inner) == [3, 3, 3]
        return world().size

    assert simulate(2, run) == [2, 2]


def test_each_rank_logs_its_own_communication():
    def run():
        c = world()
        with CommLog() as log:
            c.barrier()
            if c.rank == 0:
                c.send(np.zeros(2), 1)
            if c.rank == 1:
                c.recv(np.zeros(2), 0)
        return log.count(), log.bytes()

    assert simulate(3, run) == [(2, 0), (2, 16), (1, 0)]


def test_no_ranks_are_refused():
    with pytest.raises(ArgumentError, match="n=0"):
        simulate(0, world)


def test_threads_end_after_an_error():
    def run():
        if world().rank == 0:
            raise ValueError("stop")
        world().barrier()

    before = threading.active_count()
    with pytest.raises(ValueError, match="stop"):
        simulate(8, run)
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_messages_name_ranks_of_the_world_in_groups_of_some() -> None:
    def receiving() -> None:
        ours = world().subgroup([2, 1])
        if world().rank == 1:
            ours.recv(np.empty(3), 0)

    with pytest.raises(CommunicationError, match=r"rank 1 waits .* from rank 2, which has left"):
        simulate(3, receiving)

    def sending() -> None:
        ours = world().subgroup([2, 1])
        if world().rank == 2:
            ours.send(np.ones(2), 1)
        elif world().rank == 1:
            ours.recv(np.empty(3), 0)

    with pytest.raises(MismatchError, match="rank 2 sent 2 float64 elements, and rank 1 expects 3"):
        simulate(3, sending)


def test_arguments_in_the_wrong_order_are_told():
    with pytest.raises(ArgumentTypeError, match="the number of ranks, then a function"):
        simulate(lambda: None, 3)
