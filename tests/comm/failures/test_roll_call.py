"""A rank that waits finds out whom for: whoever is late at the end of a chain, and where."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from distarray.comm import _launcher
from distarray.comm.failures._presence import Presence
from distarray.comm.failures._roll_call import Whereabouts, find_late
from distarray.comm.failures._waits import Question

NOWHERE = ("", 0)
FIRST, SECOND = ("calls of 0 and 1", 7), ("calls of 1 and 2", 3)


@pytest.fixture
def rank(monkeypatch):
    """Return what makes ranks that answer, and have joined some meetings."""
    name = os.urandom(8)
    monkeypatch.setattr(_launcher, "job", lambda: name)
    made = []

    def make(number: int, at: Whereabouts, joined: tuple[Question, ...] = ()) -> Presence:
        presence = Presence(number)
        presence.answer = lambda question: at._replace(has_joined=question in joined)
        presence.listen()
        made.append(presence)
        threading.Thread(target=answer, args=[presence], daemon=True).start()
        return presence

    def answer(presence: Presence) -> None:
        while presence in made:
            presence.sleep(0.05)

    yield make
    while made:
        made.pop().close()


def late(asking: Presence | None, meeting: Question, ranks: list[int], exact: bool):
    if asking is None:
        return find_late(None, -1, meeting, ranks, exact)
    return find_late(asking.ask, asking.rank, meeting, ranks, exact)


def waits(line: int, meeting: Question, *ranks: int) -> Whereabouts:
    return Whereabouts(False, f" at a.py, line {line}", f"all-reduce {line}", meeting, ranks)


def runs(line: int) -> Whereabouts:
    return Whereabouts(False, f" at a.py, line {line}", "", NOWHERE, ())


def test_the_rank_at_the_end_of_a_chain_is_named_with_its_line(rank):
    asking = rank(0, waits(1, FIRST, 1))
    rank(1, waits(2, SECOND, 2), ((FIRST[0], 6),))
    rank(2, runs(3))
    found = late(asking, FIRST, [0, 1], exact=True)
    assert found.whom == "rank 1, and in the end for rank 2,"
    assert found.why == (
        "rank 2: at a.py, line 3; rank 1: waits for rank 2 at a.py, line 2 (all-reduce 2)"
    )


def test_ranks_that_have_joined_keep_nobody_waiting(rank):
    asking = rank(0, waits(1, FIRST, 1, 2, 3))
    rank(1, waits(1, FIRST, 0, 2, 3), (FIRST,))
    rank(2, runs(9))
    rank(3, waits(1, FIRST, 0, 1, 2), (FIRST,))
    found = late(asking, FIRST, [0, 1, 2, 3], exact=False)
    assert found == ("rank 2", "rank 2: at a.py, line 9")


def test_what_is_not_known_is_said_to_be_so(rank):
    asking = rank(0, waits(1, FIRST, 1, 2, 3))
    assert late(asking, FIRST, [1, 2, 3], exact=False).whom == "at least one of ranks 1, 2, 3"
    assert late(asking, FIRST, [1, 2], exact=True).whom == "ranks 1, 2"
    assert late(None, FIRST, [1, 2], exact=True) == ("ranks 1, 2", "")
    assert late(asking, NOWHERE, [], exact=False) == ("other ranks", "")
    rank(2, runs(4))
    found = late(asking, FIRST, [1, 2, 3], exact=False)
    assert found.whom == "at least rank 2"
    assert "ranks 1, 3: does not answer" in found.why
    rank(1, waits(2, SECOND, 5))
    found = late(asking, FIRST, [1], exact=True)
    assert found.whom == "rank 1, and in the end for at least rank 5,"


def test_a_circle_that_comes_back_to_the_rank_that_asks_ends(rank):
    asking = rank(0, waits(1, FIRST, 1))
    rank(1, waits(2, SECOND, 0))
    found = late(asking, FIRST, [1], exact=True)
    assert found.whom == "rank 1"
    assert found.why.startswith("rank 1: waits for rank 0 at a.py, line 2")


def test_many_ranks_that_ask_many_are_all_answered(rank):
    everyone = [rank(number, runs(number)) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        questions = [(number, FIRST) for number in range(40)]
        for found in pool.map(lambda one: one.ask(questions), everyone[:8]):
            lines = [found[asked].line for asked in questions]
            assert lines == [f" at a.py, line {number}" for number in range(40)]


def test_what_others_send_does_not_end_the_answers(rank):
    asked = rank(1, runs(5))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        for wrong in (b"", b"\xff", b"5", b"leaves x", b"where 0 0 [5]", b'where 0 0 [["a"], 1]'):
            other.sendto(wrong, asked._name(1))
        other.sendto(b'here 0 0 [false, "", "", ["", 0], []]', asked._name(1))
    assert rank(0, runs(6)).ask([(1, FIRST)]) == {(1, FIRST): runs(5)}
