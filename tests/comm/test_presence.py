"""Ranks say where they wait, and conclude only what is so: that some can never go on."""

from __future__ import annotations

import contextlib
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

from distarray.comm.failures import _deadlock, _job, _liveness, _presence, _watchdog
from distarray.comm.failures._deadlock import Watch
from distarray.comm.failures._liveness import Neighbours, Start
from distarray.comm.failures._presence import Meeting, Presence


@pytest.fixture
def apart(monkeypatch):
    """Make ranks whose names differ from those of other processes."""
    alone = os.urandom(8)
    monkeypatch.setattr(_presence, "job", lambda: (alone,))
    monkeypatch.setattr(_presence, "_joined", {})
    made = []

    def present(rank):
        made.append(Presence(rank))
        return made[-1]

    yield present
    for presence in made:
        presence.close()


def test_a_rank_with_work_in_the_background_is_not_in_a_circle_with_one_that_waits_for_it(apart):
    zero, one = (Watch(apart(rank), 2) for rank in range(2))
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1))
    began = time.monotonic() - 10
    for _ in range(4):
        assert zero.elsewhere(x, "in x", began, False, False) == ""
        assert one.elsewhere(y, "behind, in y", began + 1, True, True) == ""
    told = ""
    for turn in range(8):
        told = told or zero.elsewhere(x, "in x", began, False, True)
        told = told or one.elsewhere(y, "behind, in y", began + 1 + turn, True, True)
    assert "rank 1 waits for rank 0 (behind, in y)" in told


def test_a_rank_that_has_gone_is_missed_only_where_it_has_not_been(apart):
    here, there = apart(0), apart(1)
    meeting = Meeting("a place", 1, (0, 1, 2))
    assert here.gone_without(meeting) == []
    _presence.joining("a place", (0, 1, 2))
    there.go()
    assert here.gone_without(meeting) == []
    assert here.gone_without(meeting._replace(number=2)) == [1]
    assert here.gone_without(meeting._replace(place="another")) == [1]
    assert here.gone_without(meeting._replace(number=2, ranks=(0, 2))) == []


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
        assert neighbours.died() == []
        leaving.leave(range(4), 0, 5.0)
        leaving.close()
        dying.close()
        assert neighbours.died() == []
        end = time.monotonic() + 10  # the child may not have run yet
        while not (died := neighbours.died()) and time.monotonic() < end:
            time.sleep(0.05)
        assert died == [2]
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
        here.rest(0.05)
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
    assert _presence.node_ranks(4, 5) == ranks


def test_who_has_not_come_to_the_start_is_named_where_that_is_known(apart, monkeypatch):
    here, there, gone = apart(0), apart(1), apart(2)
    there.listen()
    gone.listen()
    gone.go()
    told = {4: [0, 1, 2, 3], 5: None}
    monkeypatch.setattr(_liveness, "node_ranks", lambda _, size: told[size])
    monkeypatch.setattr(_liveness, "count_of_node", lambda _, __: 4)
    assert Start(here, 4).late() == (2, 3)
    assert "2 of this node have not come" in str(Start(here, 4))
    assert Start(here, 5).late() == ()
    assert "2 other ranks of this node have not come, [1] have" in str(Start(here, 5))


class Ranks:
    """Ranks that wait where they are told, and look at it in turns."""

    def __init__(self, apart, n):
        self.watches = [Watch(apart(rank), n) for rank in range(n)]
        self.joined = [set() for _ in range(n)]
        self.waits = {}

    def wait(self, rank, meeting, since):
        self.joined[rank].add(meeting[:2])
        self.waits[rank] = meeting, since

    def look(self, monkeypatch, order):
        for rank in order:
            joined = self.joined[rank]
            with monkeypatch.context() as patch:
                patch.setattr(_deadlock, "has_joined", lambda *at, joined=joined: at in joined)
                meeting, since = self.waits.get(rank, (None, 0.0))
                if told := self.watches[rank].elsewhere(meeting, f"in {meeting}", since):
                    return told
        return ""


@pytest.mark.parametrize("last", range(4))
def test_a_circle_is_found_by_the_rank_that_waits_last(apart, monkeypatch, last):
    n = 4
    ranks = Ranks(apart, n)
    began = time.monotonic() - 10
    for rank in range(n):
        if rank != last:
            ranks.wait(rank, Meeting(f"edge {rank}", 1, (rank, (rank + 1) % n)), began + rank)
    assert ranks.look(monkeypatch, list(range(n)) * n) == ""
    ranks.wait(last, Meeting(f"edge {last}", 1, (last, (last + 1) % n)), began + n)
    told = ranks.look(monkeypatch, list(range(n)) * n)
    assert "rank 3 waits for rank 0 (in " in told
    assert "none of them will come" in told


@settings(deadline=None, max_examples=60)
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
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        alone = os.urandom(8)
        patch.setattr(_presence, "job", lambda: (alone,))
        present = [Presence(rank) for rank in range(n)]
        for one in present:
            stack.callback(one.close)
        ranks = Ranks(present.__getitem__, n)
        begun = dict.fromkeys(range(n), 0)
        turns = data.draw(st.lists(st.integers(0, n - 1), max_size=60), label="turns")
        told = ""
        for rank in [*turns, *list(range(n)) * 40]:
            here = ranks.waits.get(rank)
            if here is not None and all(here[0][:2] in ranks.joined[r] for r in here[0].ranks):
                del ranks.waits[rank]  # all have come
                here = None
            if here is None and begun[rank] < len(calls[rank]):
                mesh = calls[rank][begun[rank]]
                begun[rank] += 1
                number = calls[rank][: begun[rank]].count(mesh)
                ranks.wait(rank, Meeting(f"{mesh}", number, mesh), time.monotonic() - 1)
            elif told := ranks.look(patch, [rank]):
                break
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


def test_two_ranks_conclude_only_what_both_say(apart):
    zero, one = Watch(apart(0), 2), Watch(apart(1), 2)
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1, 2))
    began = time.monotonic() - 5
    assert one.elsewhere(x, "in x", began) == ""
    assert zero.elsewhere(None, "", 0.0) == ""  # it computes: nothing is said about it
    assert one.elsewhere(x, "in x", began) == ""
    assert zero.elsewhere(y, "in y", began + 1) == ""
    assert one.elsewhere(x, "in x", began) == ""  # it has heard of y, and sends it on
    message = zero.elsewhere(y, "in y", began + 1)
    assert "rank 0 waits for rank 1 (in y), and rank 1 waits for rank 0 (in x)" in message


def test_an_answer_about_a_meeting_that_is_over_is_not_concluded_from(apart):
    zero, one = Watch(apart(0), 2), Watch(apart(1), 2)
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1, 2))
    began = time.monotonic() - 5
    zero.elsewhere(x, "in x", began)
    one.elsewhere(y, "in y", began - 1)
    assert zero.elsewhere(x._replace(number=2), "in x", began + 4) == ""


def test_a_rank_that_waits_where_this_one_has_been_is_on_its_way(apart):
    zero, one = Watch(apart(0), 2), Watch(apart(1), 2)
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1, 2))
    began = time.monotonic() - 5
    one.elsewhere(y, "in y", began)
    _presence.joining("y", y.ranks)
    assert zero.elsewhere(x, "in x", began + 1) == ""
    assert one.elsewhere(y, "in y", began) == ""
    assert zero.elsewhere(x, "in x", began + 1) == ""


def test_what_is_read_late_about_a_place_that_is_no_more_is_not_concluded_from():
    class Rounds:
        joined = 5

    rounds = Rounds()
    _presence.counted_by("a channel", rounds)
    assert _presence.has_joined("a channel", 5)
    assert not _presence.has_joined("a channel", 6)
    del rounds
    gc.collect()
    assert _presence.has_joined("a channel", 5)


@pytest.mark.parametrize("message", [b"", b"[1]", b"null", b'["x", 1, [[2]]]', b"[[], {}, [7]]"])
def test_what_cannot_be_read_is_left(apart, message):
    zero, stranger = Watch(apart(0), 2), apart(1)
    stranger.listen()
    stranger.say([0], message)
    x = Meeting("x", 1, (0, 1))
    assert zero.elsewhere(x, "in x", time.monotonic() - 1) == ""


def test_a_name_that_is_free_soon_does_not_say_that_a_rank_has_gone(apart, monkeypatch):
    zero, one = Watch(apart(0), 2), apart(1)
    meeting = Meeting("a place", 1, (0, 1))
    one.go()
    assert zero.gone(meeting, "in x") == ""
    monkeypatch.setattr(zero._presence, "gone_without", lambda _: [])
    assert zero.gone(meeting, "in x") == ""
    monkeypatch.setattr(zero._presence, "gone_without", lambda _: [1])
    monkeypatch.setattr(_deadlock, "_SECONDS_GONE", 0.2)
    assert zero.gone(meeting, "in x") == ""
    time.sleep(0.3)
    assert "rank 0 waits for ranks [1] (in x)" in zero.gone(meeting, "in x")


def test_a_job_is_named_by_what_its_launcher_says(monkeypatch):
    def named(**told):
        for name in ("PMIX_NAMESPACE", "PALS_APID", "SLURM_JOB_ID", "SLURM_STEP_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        return _job.job()

    monkeypatch.setattr(_job, "_launcher", lambda _: None)
    alone = _job.process_namespace(), os.getppid()
    assert named() == alone
    assert named(SLURM_JOB_ID="5") == alone  # of which steps may have several jobs
    steps = [named(SLURM_JOB_ID="5", SLURM_STEP_ID=step) for step in "01"]
    spaces = [named(PMIX_NAMESPACE=name) for name in "ab"]
    monkeypatch.setattr(_job, "_launcher", lambda _: (12, 34))
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
        assert _watchdog._keeps_apart(thread) == apart
        ended.set()
        thread.join()
        ended.clear()
    before = set(threading.enumerate())
    queue = multiprocessing.Queue()
    queue.put(1)
    (feeding,) = set(threading.enumerate()) - before
    assert _watchdog._keeps_apart(feeding)
    assert queue.get(timeout=10) == 1
    queue.close()
    queue.join_thread()


def test_nobody_is_told_who_does_not_share_the_meeting(apart):
    zero, one, two = (Watch(apart(rank), 3) for rank in range(3))
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (1, 2))
    _presence.joining("y", y.ranks)
    for _ in range(3):
        for watch, meeting in ((zero, x), (one, y), (two, y)):
            assert watch.elsewhere(meeting, "waits", time.monotonic() - 1) == ""
