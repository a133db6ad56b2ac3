"""Ranks that wait in vain for each other's first call are told so, and only they."""

from __future__ import annotations

import pytest

from distarray.comm import _presence
from distarray.comm._presence import Meeting, Presence, Watch
from tests.test_abort import assert_ended_by, launch

MESH = """
import sys, threading, time
import distarray as da
mesh = da.init_device_mesh((3,))
first = da.DeviceMesh([0, 1])
rank = mesh.rank
def meet(mesh): return float(da.ones(12, mesh=mesh).sum())
"""


@pytest.fixture
def apart(monkeypatch):
    """Make ranks whose names differ from those of other processes."""
    monkeypatch.setattr(_presence, "_parent", object())
    monkeypatch.setattr(_presence, "_joined", {})
    made = []

    def present(rank):
        made.append(Presence(rank))
        return made[-1]

    yield present
    for presence in made:
        presence.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "program",
    [
        "if rank == 0: meet(mesh)",
        "import os; os.environ['DISTARRAY_SHARED_MEMORY'] = '0'\nif rank == 0: meet(mesh)",
        "if rank == 0: meet(first)",
        "if rank == 0: mesh.communicator().barrier()",
        "if rank == 0: mesh.comm()",
        "if rank == 0: mesh.communicator().broadcast(__import__('numpy').ones(3))",
        "if rank == 2: sys.exit(0)\nmeet(mesh)",
    ],
)
def test_a_first_call_without_a_rank_at_its_end_is_an_error(program):
    ended = launch(f"{MESH}\n{program}\nprint('at its end', rank)")
    assert_ended_by(ended, "CommunicationError: rank 0 waits for ranks [")
    assert "the first call of ranks 0, 1" in ended.said
    assert "<string>" in ended.said, ended.said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("before", ["", "meet(mesh); rank < 2 and meet(first)"])
def test_ranks_that_wait_for_each_other_on_different_meshes_get_an_error(before):
    ended = launch(f"{MESH}\n{before}\nmeet(first if rank == 1 else mesh)\nprint('at its end')")
    assert_ended_by(ended, "neither will come")
    assert "rank 0 waits for rank 1 (" in ended.said
    assert "rank 1 waits for rank 0 (" in ended.said
    assert "at its end" not in ended.said


@pytest.mark.timeout(120)
def test_ranks_that_are_late_or_soon_at_their_end_are_waited_for():
    program = (
        "if rank == 1: time.sleep(2.5)\n"
        "rank < 2 and meet(first)\n"
        "if rank == 2: time.sleep(4.5)\n"
        "mesh.communicator().barrier()\n"  # ranks 0 and 1 wait for long, then end at once
    )
    ended = launch(f"{MESH}\n{program}")
    assert ended.status == 0, ended.said
    assert ended.said == ""


@pytest.mark.timeout(120)
def test_a_thread_may_make_the_call_that_others_wait_for():
    program = (
        "meet(mesh)\n"
        "if rank == 0:\n"
        "    later = threading.Timer(2, meet, [first])\n"
        "    later.start()\n"
        "    meet(mesh); later.join()\n"
        "else:\n"
        "    rank == 1 and meet(first)\n"
        "    meet(mesh)\n"
        "print('at its end')\n"
    )
    ended = launch(f"{MESH}\n{program}")
    assert ended.status == 0, ended.said
    assert ended.said.count("at its end") == 3


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


def test_two_ranks_conclude_only_what_both_say(apart):
    zero, one = Watch(apart(0)), Watch(apart(1))
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1, 2))
    assert zero.elsewhere(x, "in x", 1.0) == ""
    assert one.elsewhere(None, "", 0.0) == ""  # it computes: nothing is said about it
    assert zero.elsewhere(x, "in x", 3.0) == ""
    assert one.elsewhere(y, "in y", 1.0) == ""  # it has heard of x, and answers
    message = zero.elsewhere(x, "in x", 4.0)
    assert "rank 0 waits for rank 1 (in x), and rank 1 waits for rank 0 (in y)" in message


def test_an_answer_about_a_meeting_that_is_over_is_not_concluded_from(apart):
    zero, one = Watch(apart(0)), Watch(apart(1))
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1, 2))
    zero.elsewhere(x, "in x", 1.0)
    one.elsewhere(y, "in y", 1.0)
    assert zero.elsewhere(x._replace(number=2), "in x", 0.3) == ""


def test_a_rank_that_waits_where_this_one_has_been_is_on_its_way(apart):
    zero, one = Watch(apart(0)), Watch(apart(1))
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (0, 1, 2))
    one.elsewhere(y, "in y", 1.0)
    _presence.joining("y", y.ranks)
    assert zero.elsewhere(x, "in x", 1.0) == ""
    assert one.elsewhere(y, "in y", 3.0) == ""


def test_nobody_is_told_who_does_not_share_the_meeting(apart):
    zero, one, two = (Watch(apart(rank)) for rank in range(3))
    x, y = Meeting("x", 1, (0, 1)), Meeting("y", 1, (1, 2))
    _presence.joining("y", y.ranks)
    for _ in range(3):
        for watch, meeting in ((zero, x), (one, y), (two, y)):
            assert watch.elsewhere(meeting, "waits", 1.0) == ""
