"""Deadlocks: ranks of a node that wait for each other, so that none will ever go on.

A rank that waits asks those that it waits for where they are (`_roll_call`), and follows those that
wait as well, have not joined the meeting of the rank that waits for them, and have no thread that
could. Where that comes back to the rank itself, it asks the ranks on the way once more: if each
still waits where it did, since when it did, all of them have waited for each other at one moment,
and nobody can end it: a deadlock lasts (Chandy, Misra and Haas, "Distributed Deadlock Detection",
1983, for waits like these, each for all of some ranks). A rank concludes only what is certain, of
its own node.
"""

from __future__ import annotations

from collections.abc import Sequence

from distarray.comm._agreement import calls_hint
from distarray.comm.failures._roll_call import BACKGROUND, NOBODY, Ask, Inquiry, Whereabouts
from distarray.comm.failures._waits import Question


class DeadlockSearch:
    """Looks for deadlocks that this rank is part of, less and less often while it waits."""

    def __init__(self, rank: int, ask: Ask) -> None:
        self._rank = rank
        self._ask = ask
        self._wait: tuple[Question, float] | None = None
        self._after = 0.0

    def find(self, here: Whereabouts, seconds: float) -> str:
        """Return what is wrong where this rank is in a deadlock; to be asked every now and then."""
        if (here.meeting, here.since) != self._wait:
            self._wait, self._after = (here.meeting, here.since), 0.0
        if seconds < self._after or not can_join_nothing(here, here):
            return ""
        self._after = 2 * seconds
        circle = find_circle(self._rank, here, self._ask)
        return message_of_deadlock([(rank, at.waits) for rank, at in circle]) if circle else ""


def can_join_nothing(at: Whereabouts, awaiting: Whereabouts) -> bool:
    """Tell whether a rank waits, and cannot join the meeting at which another one awaits it."""
    # What the main thread waits in the thread in the background does not join, and the reverse.
    return bool(at.meeting[0]) and (
        at.may_join == NOBODY or (at.may_join == BACKGROUND and not awaiting.is_behind)
    )


def find_circle(me: int, here: Whereabouts, ask: Ask) -> list[tuple[int, Whereabouts]]:
    """Return ranks of which each waits for the next, and the last for this one, the first.

    Nothing where there are no such ranks, or one of them has gone on meanwhile.
    """
    reached = {me: here}
    answers: dict[
        int, tuple[int, Inquiry, Whereabouts]
    ] = {}  # by rank: who waits for it, and so on
    frontier = [me]
    while frontier:
        questions = {
            (rank, reached[one].meeting): one
            for one in frontier
            for rank in reached[one].ranks
            if rank not in answers and rank != one
        }
        frontier = []
        for asked, at in ask(questions).items():
            rank, one = asked[0], questions[asked]
            if rank in answers or at.has_joined or not can_join_nothing(at, reached[one]):
                continue
            answers[rank] = one, asked, at
            if rank == me:
                return _trace_cycle(me, answers) if _is_certain(me, here, answers, ask) else []
            reached[rank] = at
            frontier.append(rank)
    return []


def _is_certain(
    me: int,
    here: Whereabouts,
    answers: dict[int, tuple[int, Inquiry, Whereabouts]],
    ask: Ask,
) -> bool:
    """Tell whether every rank of a circle waits where it did before the circle was known."""
    before = {answers[rank][1]: answers[rank][2] for rank, _ in _trace_cycle(me, answers)}
    again = ask(before)
    return _where(answers[me][2]) == _where(here) and all(
        asked in again and not again[asked].has_joined and _where(again[asked]) == _where(at)
        for asked, at in before.items()
    )


def _where(at: Whereabouts) -> tuple[Question, float, int]:
    return at.meeting, at.since, at.may_join


def _trace_cycle(
    me: int, answers: dict[int, tuple[int, Inquiry, Whereabouts]]
) -> list[tuple[int, Whereabouts]]:
    path = [(me, answers[me][2])]
    rank = answers[me][0]
    while rank != me:
        path.insert(1, (rank, answers[rank][2]))
        rank = answers[rank][0]
    return path


def message_of_deadlock(circle: Sequence[tuple[int, str]]) -> str:
    """Return what is wrong where each rank waits for the next one, and the last for the first."""
    start = circle.index(min(circle))  # the same first rank in what all of them find
    circle = [*circle[start:], *circle[:start]]
    after = [rank for rank, _ in [*circle[1:], circle[0]]]
    waits = [
        f"rank {rank} waits for rank {other} ({doing})"
        for (rank, doing), other in zip(circle, after, strict=True)
    ]
    none = "neither" if len(circle) == 2 else "none of them"
    return (
        f"{', '.join(waits[:-1])}, and {waits[-1]}: {none} will come. Every rank must make the "
        "same calls in the same order, on the same meshes"
        f"{calls_hint(*(doing for _, doing in circle))}"
    )
