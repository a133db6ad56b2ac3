"""Roll call: ranks of a node tell one another where they are, and so who keeps whom waiting.

The rank that another one waits for may wait itself, for a third: only that one is late. So a rank
that has waited for long asks those that it waits for whether they have joined its meeting, and what
they do if not; then it asks those that they wait for, and so on. The watching thread of each
answers, whatever its main thread does. Ranks of other nodes do not answer, nor do those whose
process has ended or keeps Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from distarray.comm._agreement import by_answer, name_ranks
from distarray.comm.failures._waits import Question

_LEVELS_AT_MOST: Final = 5  # of ranks that wait for ranks that wait ...

NOBODY, BACKGROUND, ANY_THREAD = range(3)
"""Who of a rank could join a meeting while its main thread waits."""


class Whereabouts(NamedTuple):
    """What a rank does.

    Attributes
    ----------
    has_joined
        Whether it has joined the meeting that it is asked about.
    line
        The line of the program, as " at file, line 7: text"; empty where there is none.
    waits
        What it waits for others in; empty where it does not wait.
    meeting
        Where it waits.
    ranks
        For which ranks, at most.
    since
        When it began to wait, by its clock.
    may_join
        Who of it could join a meeting meanwhile.
    is_behind
        Whether its thread in the background waits there, and the main thread for that one.
    """

    has_joined: bool
    line: str
    waits: str
    meeting: Question
    ranks: tuple[int, ...]
    since: float = 0.0
    may_join: int = ANY_THREAD
    is_behind: bool = False


Inquiry = tuple[int, Question]
"""A rank, and the meeting that it is asked about."""

Ask = Callable[[Collection[Inquiry]], dict[Inquiry, Whereabouts]]
"""Asks ranks, and returns what those say that answer."""


class Late(NamedTuple):
    """Whom a rank waits for, in words, and what these do, where that is known."""

    whom: str
    why: str


def find_late(
    ask: Ask | None, me: int, meeting: Question, ranks: Iterable[int], exact: bool
) -> Late:
    """Return who keeps this rank, ``me``, waiting at a meeting, among the ranks that it waits for.

    ``ask`` asks ranks of the node; None where they cannot be asked. ``exact`` says that none of the
    ranks has joined the meeting.
    """
    mine = [rank for rank in ranks if rank != me]
    found: dict[int, Whereabouts | None] = dict.fromkeys(mine)
    if ask is not None:
        _ask_by_levels(ask, me, meeting, found)
    away = {rank: at for rank, at in found.items() if at is None or not at.has_joined}
    last = [rank for rank, at in away.items() if at is None or not at.waits]
    unknown = [] if exact else [rank for rank in mine if found[rank] is None]
    certain = [rank for rank in mine if rank in away and rank not in unknown]
    whom = _name_late(certain, unknown)
    if further := [rank for rank in last if rank not in mine]:
        least = "at least " if any(away[rank] is None for rank in further) else ""
        whom += f", and in the end for {least}{name_ranks(further)},"
    if ask is None:
        return Late(whom, "")
    order = [*last, *(rank for rank in away if rank not in last)]
    return Late(whom, by_answer([_describe(away[rank], away, me) for rank in order], order))


def _ask_by_levels(
    ask: Ask, me: int, meeting: Question, found: dict[int, Whereabouts | None]
) -> None:
    """Find out where ranks are, and those that they wait for."""
    todo = dict.fromkeys(found, meeting)
    for _ in range(_LEVELS_AT_MOST):
        found.update((rank, None) for rank in todo)
        found.update((rank, at) for (rank, _), at in ask(todo.items()).items())
        todo = {
            rank: at.meeting
            for asked in todo
            if (at := found[asked]) is not None and at.waits and not at.has_joined
            for rank in at.ranks
            if rank not in found and rank != me
        }
        if not todo:
            return


def _name_late(certain: list[int], unknown: list[int]) -> str:
    """Return the ranks that one waits for, or may wait for, as a message says it."""
    if certain:
        return f"{'at least ' if unknown else ''}{name_ranks(certain)}"
    if unknown:
        return f"{'at least one of ' if len(unknown) > 1 else ''}{name_ranks(unknown)}"
    return "other ranks"


def _describe(at: Whereabouts | None, away: dict[int, Whereabouts | None], me: int) -> str:
    """Return what a rank does that is not where it should be."""
    if at is None:
        return "does not answer (on another node, busy, or gone)"
    if not at.waits:
        return at.line.strip() or "at no line of the program"
    whom = [rank for rank in at.ranks if rank in away or rank == me]
    return f"waits for {name_ranks(whom) if whom else 'other ranks'}{at.line} ({at.waits})"
