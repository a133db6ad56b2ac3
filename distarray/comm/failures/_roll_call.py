"""Where the ranks of a node are, which they tell one another when asked: who keeps whom waiting.

The rank that another one waits for may wait itself, for a third: only that one is late. So a rank
that has waited for long asks those that it waits for whether they have joined its meeting, and what
they do if not; then it asks those that they wait for, and so on. A thread answers, beside MPI,
whatever the main thread does. Ranks of other nodes do not answer, nor do those whose process has
ended or keeps Python's lock.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from distarray.comm._agreement import by_answer, name_ranks
from distarray.comm.failures._presence import BYTES_AT_MOST, Presence

_SECONDS: Final = 2.0  # for the answers of all that are asked at a time
_SECONDS_TO_SAY: Final = 1.0  # for one of them, where the rank that asks has many to read
_RETRY: Final = 0.005  # seconds, where a rank has many questions to read
_SAID_AT_MOST: Final = 300  # characters of what a rank does, and of its line
_RANKS_AT_MOST: Final = 1024  # that it says it waits for
_ASKED_AT_MOST: Final = 5  # times, in a chain

Question = tuple[str, int]
"""A meeting, by its place and number."""


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
    """

    has_joined: bool
    line: str
    waits: str
    meeting: Question
    ranks: tuple[int, ...]


class Answers(Presence):
    """A rank of a node that asks others where they are, and answers them.

    Parameters
    ----------
    rank
        Its number in the MPI world.
    here
        Says where this rank is.
    """

    def __init__(self, rank: int, here: Callable[[Question], Whereabouts]) -> None:
        super().__init__(rank)
        self._here = here

    def begin(self) -> None:
        """Answer from now on, in a thread, where the system lets this process."""
        with contextlib.suppress(OSError):
            asked = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            asked.bind(self._address(self.rank))
            thread = threading.Thread(target=self._answer, args=(asked,), daemon=True)
            thread.name = "distarray waits, says where"
            thread.start()

    def _address(self, rank: int) -> str:
        return self._name(rank, "where")

    def _answer(self, asked: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError, TypeError):  # of others' making
                question, sender = asked.recvfrom(BYTES_AT_MOST)
                place, number = json.loads(question)
                here = self._here((place, number))
                told = here._replace(
                    line=here.line[:_SAID_AT_MOST],
                    waits=here.waits[:_SAID_AT_MOST],
                    ranks=here.ranks[:_RANKS_AT_MOST],
                )
                _send(asked, json.dumps([self.rank, *told]).encode(), sender)

    def ask(self, questions: dict[int, Question]) -> dict[int, Whereabouts | None]:
        """Return where ranks are, about a meeting each; None of those that do not answer."""
        found: dict[int, Whereabouts | None] = dict.fromkeys(questions)
        deadline = time.monotonic() + _SECONDS
        unsent, silent = list(questions), set(questions)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            asking.bind("")  # a name that the system chooses, to be answered at
            while silent and time.monotonic() < deadline:
                later = []
                for rank in unsent:
                    try:
                        asking.sendto(json.dumps(questions[rank]).encode(), self._address(rank))
                    except BlockingIOError:
                        later.append(rank)
                    except OSError:  # not there
                        silent.discard(rank)
                unsent = later
                if not silent:
                    break
                select.select([asking], [], [], _RETRY if unsent else deadline - time.monotonic())
                with contextlib.suppress(BlockingIOError):
                    while True:
                        rank, at = _read(asking.recv(BYTES_AT_MOST))
                        if rank in silent:
                            found[rank] = at
                            silent.discard(rank)
        return found


def _send(asked: socket.socket, answer: bytes, sender: str) -> None:
    """Send an answer to a rank that may have others to read first."""
    deadline = time.monotonic() + _SECONDS_TO_SAY
    while time.monotonic() < deadline:
        try:
            asked.sendto(answer, socket.MSG_DONTWAIT, sender)
            return
        except BlockingIOError:
            time.sleep(_RETRY)


def _read(answer: bytes) -> tuple[int, Whereabouts | None]:
    """Return which rank has answered, and what; rank -1 where that cannot be read."""
    try:
        rank, has_joined, line, waits, (place, number), ranks = json.loads(answer)
        return rank, Whereabouts(has_joined, line, waits, (place, number), tuple(ranks))
    except (ValueError, TypeError):
        return -1, None


class Late(NamedTuple):
    """Who keeps a rank waiting, in words.

    Attributes
    ----------
    whom
        The ranks that it waits for.
    why
        What these do, and those that they wait for; empty where nothing is known.
    """

    whom: str
    why: str


def late(answers: Answers | None, meeting: Question, ranks: Iterable[int], exact: bool) -> Late:
    """Return who keeps this rank waiting at a meeting.

    Parameters
    ----------
    answers
        This rank among those of its node; None where they cannot be asked.
    ranks
        Those that it waits for.
    exact
        Whether it is known that none of these has joined the meeting.
    """
    mine = [rank for rank in ranks if answers is None or rank != answers.rank]
    found: dict[int, Whereabouts | None] = dict.fromkeys(mine)
    if answers is not None:
        found |= _asked(answers, dict.fromkeys(mine, meeting))
    away = {rank: at for rank, at in found.items() if at is None or not at.has_joined}
    last = [rank for rank, at in away.items() if at is None or not at.waits]
    unknown = [] if exact else [rank for rank in mine if found[rank] is None]
    certain = [rank for rank in mine if rank in away and rank not in unknown]
    whom = _whom(certain, unknown)
    if further := [rank for rank in last if rank not in mine]:
        least = "at least " if any(away[rank] is None for rank in further) else ""
        whom += f", and in the end for {least}{name_ranks(further)},"
    if answers is None:
        return Late(whom, "")
    order = [*last, *(rank for rank in away if rank not in last)]
    said = [_doing(away[rank], away, answers.rank) for rank in order]
    return Late(whom, by_answer(said, order))


def _asked(answers: Answers, todo: dict[int, Question]) -> dict[int, Whereabouts | None]:
    """Return where ranks are, and those that they wait for."""
    found: dict[int, Whereabouts | None] = {}
    for _ in range(_ASKED_AT_MOST):
        with contextlib.suppress(OSError):  # a system without such names
            found |= answers.ask(todo)
        todo = {
            rank: at.meeting
            for asked in todo
            if (at := found.get(asked)) is not None and at.waits and not at.has_joined
            for rank in at.ranks
            if rank not in found and rank != answers.rank
        }
        if not todo:
            break
    return found


def _whom(certain: list[int], unknown: list[int]) -> str:
    """Return the ranks that one waits for, or may wait for, as a message says it."""
    if certain:
        return f"{'at least ' if unknown else ''}{name_ranks(certain)}"
    if unknown:
        return f"{'at least one of ' if len(unknown) > 1 else ''}{name_ranks(unknown)}"
    return "other ranks"


def _doing(at: Whereabouts | None, away: dict[int, Whereabouts | None], me: int) -> str:
    """Return what a rank does that is not where it should be."""
    if at is None:
        return "does not answer (on another node, busy, or gone)"
    if not at.waits:
        return at.line.strip() or "at no line of the program"
    whom = [rank for rank in at.ranks if rank in away or rank == me]
    return f"waits for {name_ranks(whom) if whom else 'other ranks'}{at.line} ({at.waits})"
