"""Ranks say where they wait, and conclude only what is so: that some can never go on."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import re
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.comm import _launcher
from distarray.comm.failures import _liveness, _waits, _watchdog
from distarray.comm.failures._deadlock import DeadlockSearch
from distarray.comm.failures._liveness import Neighbours, Start
from distarray.comm.failures._presence import Presence
from distarray.comm.failures._roll_call import ANY_THREAD, BACKGROUND, NOBODY, Whereabouts
from distarray.comm.failures._waits import Meeting


@pytest.fixture
def apart(monkeypatch):
    """Make ranks whose names differ from those of other processes."""
    alone = os.urandom(8)
    monkeypatch.setattr(_launcher, "job", lambda: (alone,))
    monkeypatch.setattr(_waits, "joined", {})
    made = []

    def present(rank):
        made.append(Presence(rank))
        return made[-1]

    yield present
    for presence in made:
        presence.close()


def test_a_rank_that_has_gone_is_missed_only_where_it_has_not_been(apart):
    here, there = apart(0), apart(1)
    meeting = Meeting("a place", 1, (0, 1, 2))
    assert here.gone_without(meeting) == []
    _waits.join_next("a place", (0, 1, 2))
    there.go()
    assert here.gone_without(meeting) == []
    assert here.gone_without(meeting._replace(number=2)) == [1]
    assert here.gone_without(meeting._replace(place="another")) == [1]
    assert here.gone_without(meeting._replace(number=2, ranks=(0, 2))) == []


@pytest.mark.parametrize(("joined", "finds_gone"), [(1, False), (1000, False), (1000, True)])
def test_a_rank_that_has_gone_is_missed_in_calls_that_count_themselves(apart, joined, finds_gone):
    class Calls:
        def __init__(self):
            self.joined, self.finds_gone = joined, finds_gone

    here, there = apart(0), apart(1)
    calls = Calls()
    _waits.count_by("calls", calls)
    there.go()
    meeting = Meeting("calls", joined, (0, 1, 2))
    assert here.gone_without(meeting) == []
    assert here.gone_without(meeting._replace(number=joined + 1)) == ([] if finds_gone else [1])


def test_a_rank_that_has_gone_is_not_missed_in_calls_that_it_has_forgotten(apart):
    class Calls:
        joined, finds_gone = 3, False

    here, there = apart(0), apart(1)
    there.go()
    calls = Calls()  # only the rank that waits still has it
    _waits.count_by("forgotten", calls)
    assert here.gone_without(Meeting("forgotten", 4, (0, 1))) == []


def test_only_a_rank_whose_name_is_free_and_that_has_not_said_so_has_died(apart, monkeypatch):
    monkeypatch.setattr(_liveness, "_SECONDS_DEAD", 0.2)
    here, leaving, dying, living = (apart(rank) for rank in range(4))
    for one in (here, leaving, dying, living):
        one.listen()
    neighbours = Neighbours(here, 4)
    child = os.fork()
    if not child:  # it must not keep the names of its parent
        time.sleep(20)
        os._exit(0)
    try:
        assert neighbours.find_dead() == ""
        leaving.leave(range(4), 0, 5.0)
        leaving.close()
        dying.close()
        assert neighbours.find_dead() == ""
        end = time.monotonic() + 10  # the child may not have run yet
        while not (died := neighbours.find_dead()) and time.monotonic() < end:
            time.sleep(0.05)
        assert died.startswith("rank 2 has died, as rank 0")
        assert here.left == {1}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_rank_that_leaves_stays_until_those_know_it_that_come_late(apart):
    leaving, late = apart(0), apart(1)
    staying = threading.Thread(target=leaving.leave, args=(range(3), 2, 20.0, False))
    staying.start()
    late.listen()
    time.sleep(0.3)
    assert staying.is_alive()
    apart(2).go()
    staying.join(10)
    assert not staying.is_alive()
    late.receive()
    assert late.never_started == {0}


def test_many_ranks_that_leave_are_all_heard_by_one_that_seldom_listens(apart):
    here, leaving = apart(0), [apart(rank) for rank in range(1, 40)]
    here.listen()
    threads = [threading.Thread(target=one.leave, args=(range(1), 0, 20.0)) for one in leaving]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        here.sleep(0.05)
    here.receive()
    assert here.left == set(range(1, 40))


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        ({"DISTARRAY_RANKS_PER_NODE": "2"}, [4]),
        ({"SLURM_GTIDS": "1,4", "SLURM_STEP_NUM_TASKS": "5"}, [1, 4]),
        ({"SLURM_GTIDS": "0", "SLURM_STEP_NUM_TASKS": "1", "MPI_LOCALNRANKS": "3"}, None),
        ({"MPI_LOCALNRANKS": "5"}, [0, 1, 2, 3, 4]),
    ],
)
def test_the_ranks_of_this_node_are_those_that_the_launcher_names(told, ranks, monkeypatch):
    for name in ("SLURM_GTIDS", "SLURM_STEP_NUM_TASKS", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert _launcher.local_ranks(4, 5) == ranks


def test_who_has_not_come_to_the_start_is_named_where_that_is_known(apart, monkeypatch):
    here, there, gone = apart(0), apart(1), apart(2)
    there.listen()
    gone.listen()
    gone.go()
    told = {4: [0, 1, 2, 3], 5: None}
    monkeypatch.setattr(_liveness, "local_ranks", lambda _, size: told[size])
    monkeypatch.setattr(_liveness, "count_ranks_here", lambda _, __: 4)
    assert Start(here, 4).late() == (2, 3)
    assert "2 of this node have not come" in str(Start(here, 4))
    assert Start(here, 5).late() == ()
    assert "2 other ranks of this node have not come, only rank 1" in str(Start(here, 5))
    monkeypatch.setattr(_liveness, "count_ranks_here", lambda _, __: 2)
    assert "ranks of other nodes have not come" in str(Start(here, 5))
    monkeypatch.setattr(_liveness, "local_ranks", lambda _, __: [0, 1])
    assert "all ranks are here" in str(Start(here, 2))


RUNS = Whereabouts(False, "", "", ("", 0), ())


class Ranks:
    """Ranks that make calls on meshes, each as far as it comes, and say where they are."""

    def __init__(self, calls, between=lambda: None):
        self.calls = calls
        self.begun = dict.fromkeys(calls, 0)
        self.waits = {}
        self.between = between
        self.searches = {rank: DeadlockSearch(rank, self.ask) for rank in calls}

    def meetings(self, rank):
        """Return the meetings that a rank has joined."""
        own = self.calls[rank][: self.begun[rank]]
        return [(f"{mesh}", own[: i + 1].count(mesh)) for i, mesh in enumerate(own)]

    def step(self, rank):
        """Let a rank go on, if it can."""
        wait = self.waits.get(rank)
        if wait is not None:
            if not all(wait.meeting in self.meetings(other) for other in wait.ranks):
                return False
            del self.waits[rank]
            return True
        if self.begun[rank] == len(self.calls[rank]):
            return False
        mesh = self.calls[rank][self.begun[rank]]
        self.begun[rank] += 1
        at = self.meetings(rank)[-1]
        others = tuple(one for one in mesh if one != rank)
        since = time.monotonic()
        self.waits[rank] = Whereabouts(False, "", f"in {mesh}", at, others, since, NOBODY)
        return True

    def at(self, rank, meeting):
        joined = meeting in self.meetings(rank)
        return self.waits.get(rank, RUNS)._replace(has_joined=joined)

    def ask(self, questions):
        found = {}
        for rank, meeting in questions:
            self.between()
            found[rank, meeting] = self.at(rank, meeting)
        return found

    def look(self, rank, seconds):
        return self.searches[rank].find(self.at(rank, ("", 0)), seconds)


@pytest.mark.parametrize("last", range(4))
def test_a_circle_is_found_by_the_rank_that_waits_last(last):
    ranks = Ranks({rank: [tuple(sorted((rank, (rank + 1) % 4)))] for rank in range(4)})
    for rank in range(4):
        if rank != last:
            ranks.step(rank)
    assert [ranks.look(rank, 1.0) for rank in range(4)] == [""] * 4
    ranks.step(last)
    told = ranks.look(last, 0.3)
    assert "rank 3 waits for rank 0 (in " in told
    assert "none of them will come" in told


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_only_ranks_that_can_never_go_on_are_told_so(data):
    n = data.draw(st.integers(2, 4), label="ranks")
    meshes = [
        tuple(one)
        for k in range(2, n + 1)
        for one in itertools.combinations(range(n), k)
        if data.draw(st.booleans(), label=f"{one}")
    ]
    calls = {
        rank: data.draw(
            st.permutations([mesh for mesh in meshes if rank in mesh] * 2), label=f"calls {rank}"
        )
        for rank in range(n)
    }
    turns = data.draw(st.lists(st.integers(0, n - 1), max_size=60), label="turns")
    ranks = Ranks(calls, lambda: turns and ranks.step(turns.pop()))  # others go on meanwhile
    told, seconds = "", 1.0
    while turns and not told:
        ranks.step(turns.pop())
        seconds *= 3  # each looks less and less often
        told = next(filter(None, (ranks.look(rank, seconds) for rank in range(n))), "")
    while not told and any(ranks.step(rank) for rank in range(n)):
        pass
    told = told or next(filter(None, (ranks.look(rank, 9 * seconds) for rank in range(n))), "")
    stuck = _stuck(calls)
    assert bool(told) == bool(stuck)
    assert {int(rank) for rank in re.findall(r"rank (\d) waits", told)} <= stuck


def _stuck(calls):
    """Return the ranks that do not come to the end of their calls, whatever the others' speed."""
    done = dict.fromkeys(calls, 0)
    moving = True
    while moving:
        moving = False
        for rank in calls:
            if done[rank] == len(calls[rank]):
                continue
            mesh = calls[rank][done[rank]]
            if all(calls[r][done[r] :][:1] == [mesh] for r in mesh):
                moving = True
                for r in mesh:
                    done[r] += 1
    return {rank for rank in calls if done[rank] < len(calls[rank])}


@pytest.mark.parametrize(
    ("first", "second", "is_behind", "is_stuck"),
    [
        (NOBODY, NOBODY, False, True),
        (NOBODY, NOBODY, True, True),
        (BACKGROUND, NOBODY, True, False),  # its thread in the background may come there
        (BACKGROUND, NOBODY, False, True),  # it does not join what the main thread waits in
        (ANY_THREAD, NOBODY, False, False),
        (NOBODY, ANY_THREAD, False, False),
    ],
)
def test_a_rank_that_has_a_thread_which_could_join_is_not_in_a_deadlock(
    first, second, is_behind, is_stuck
):
    at = [
        Whereabouts(False, "", "in x", ("x", 1), (1,), 5.0, first),
        Whereabouts(False, "", "in y", ("y", 1), (0,), 6.0, second, is_behind),
    ]
    search = DeadlockSearch(0, lambda asked: {one: at[one[0]] for one in asked})
    told = search.find(at[0], 1.0) if first != ANY_THREAD else ""
    assert bool(told) == is_stuck
    if told:
        assert "rank 0 waits for rank 1 (in x), and rank 1 waits for rank 0 (in y)" in told


@pytest.mark.parametrize(
    "later",
    [
        {"has_joined": True},
        {"meeting": ("y", 2)},
        {"since": 7.0},
        {"may_join": ANY_THREAD},
    ],
)
def test_a_rank_that_has_gone_on_meanwhile_is_not_in_a_deadlock(later):
    here = Whereabouts(False, "", "in x", ("x", 1), (1,), 5.0, NOBODY)
    there = Whereabouts(False, "", "in y", ("y", 1), (0,), 6.0, NOBODY)
    times = iter([there, there._replace(**later)])
    search = DeadlockSearch(
        0, lambda asked: {one: here if one[0] == 0 else next(times) for one in asked}
    )
    assert search.find(here, 1.0) == ""
    assert search.find(here, 1.5) == ""  # it does not ask again before long


def test_what_is_read_late_about_a_place_that_is_no_more_is_not_concluded_from():
    class Rounds:
        joined = 5

    rounds = Rounds()
    _waits.count_by("a channel", rounds)
    assert _waits.has_joined("a channel", 5)
    assert not _waits.has_joined("a channel", 6)
    del rounds
    gc.collect()
    assert _waits.has_joined("a channel", 5)


def test_a_name_that_is_free_soon_does_not_say_that_a_rank_has_gone(apart, monkeypatch):
    presence, one = apart(0), apart(1)
    zero = Neighbours(presence, 2)
    meeting = Meeting("a place", 1, (0, 1))
    one.go()
    assert zero.gone(meeting, "in x") == ""
    monkeypatch.setattr(presence, "gone_without", lambda _: [])
    assert zero.gone(meeting, "in x") == ""
    monkeypatch.setattr(presence, "gone_without", lambda _: [1])
    monkeypatch.setattr(_liveness, "_SECONDS_GONE", 0.2)
    assert zero.gone(meeting, "in x") == ""
    time.sleep(0.3)
    assert "rank 0 waits for ranks [1] (in x)" in zero.gone(meeting, "in x")


def test_a_job_is_named_by_what_its_launcher_says(monkeypatch):
    def named(**told):
        for name in ("PMIX_NAMESPACE", "PALS_APID", "SLURM_JOB_ID", "SLURM_STEP_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        return _launcher.job()

    monkeypatch.setattr(_launcher, "_launcher", lambda _: None)
    alone = _launcher.process_namespace(), os.getppid()
    assert named() == alone
    assert named(SLURM_JOB_ID="5") == alone  # of which steps may have several jobs
    steps = [named(SLURM_JOB_ID="5", SLURM_STEP_ID=step) for step in "01"]
    spaces = [named(PMIX_NAMESPACE=name) for name in "ab"]
    monkeypatch.setattr(_launcher, "_launcher", lambda _: (12, 34))
    started = named()
    below = [named(PMIX_NAMESPACE=name) for name in "ab"]
    assert len({*steps, *spaces, started, *below}) == 7


def test_only_threads_that_are_known_to_keep_apart_are_left_out():
    ended = threading.Event()
    for name, apart in (
        ("distarray-copy_0", True),
        ("distarray of the user", False),
        (None, False),
    ):
        thread = threading.Thread(target=ended.wait, name=name, daemon=True)
        thread.start()
        assert _watchdog._is_independent(thread) == apart
        ended.set()
        thread.join()
        ended.clear()
    before = set(threading.enumerate())
    queue = multiprocessing.Queue()
    queue.put(1)
    (feeding,) = set(threading.enumerate()) - before
    assert _watchdog._is_independent(feeding)
    assert queue.get(timeout=10) == 1
    queue.close()
    queue.join_thread()
