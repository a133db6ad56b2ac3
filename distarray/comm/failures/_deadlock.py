"""Find out that what a rank waits for will not come, from what ranks of its node tell each other.

What is concluded is certain. A rank has gone without a meeting only if it says that it has gone and
not that it has joined the meeting. And ranks wait for each other for ever only if what one of them
has sent comes back: a rank that waits sends a probe to those that it waits for; each that waits
itself, and has not joined the meeting that the sender waits at, sends it on to those that it waits
for. None of these ranks can go on before the next one has joined its meeting; so where the probe
comes to the rank that sent it first, and that still waits and has not joined the last sender's
meeting, none ever will (Chandy, Misra and Haas, "Distributed Deadlock Detection", 1983).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from distarray.comm._agreement import such_calls
from distarray.comm.failures._liveness import Neighbours, message_of_dead
from distarray.comm.failures._presence import (
    BYTES_AT_MOST,
    START,
    Meeting,
    Presence,
    has_joined,
    message_of_gone,
)

_SAID_AT_MOST: Final = 300  # characters of what a rank is doing
_PROBES_AT_MOST: Final = 16  # that a rank sends on at a time
_UNSENT_AT_MOST: Final = 8  # messages that a rank keeps for those that have much to read
_SECONDS_GONE: Final = 1.5
"""How long a rank must be seen to have gone: a script may start one program after the other, and
the names of the first are free when its processes are over."""


class Probe(NamedTuple):
    """What comes back to a rank that waits in vain.

    Attributes
    ----------
    place, number
        At which meeting the rank waits that sent it first.
    since
        Since when, on the clock that all processes of a node share.
    turn
        How many it has sent before.
    path
        The ranks that have sent it and what each waits for, in messages.
    """

    place: str
    number: int
    since: float
    turn: int
    path: list[tuple[int, str]]


class Said(NamedTuple):
    """What a rank says that waits: at which meeting, and the probes that it sends (on).

    ``is_behind`` tells that its thread in the background is to meet the others there, for which
    the main thread waits.
    """

    place: str
    number: int
    probes: list[Probe]
    is_behind: bool


class Watch:
    """Finds out that what this rank waits for will not come.

    Parameters
    ----------
    presence
        This rank among those of its node.
    size
        The number of ranks of the program.

    Attributes
    ----------
    neighbours
        The ranks of the node that may die.
    """

    def __init__(self, presence: Presence, size: int) -> None:
        self._presence = presence
        self.neighbours = Neighbours(presence, size)
        presence.listen()
        self._gone: dict[tuple[Meeting, int], float] = {}  # since when it has been seen
        self._here: tuple[Meeting, float] | None = None
        self._turn = 0
        self._tell_after = 0.0
        self._sent_on: set[tuple[int, str, int, int]] = set()
        self._unsent: list[tuple[Sequence[int], bytes]] = []

    def rest(self, seconds: float) -> None:
        """Sleep, and do meanwhile what other ranks ask for."""
        self._presence.rest(seconds)

    def died(self) -> str:
        """Return that ranks of this node have died, if so; to be asked every now and then."""
        dead = self.neighbours.died()
        return message_of_dead(self._presence.rank, dead) if dead else ""

    def gone(self, meeting: Meeting, doing: object) -> str:
        """Return that ranks have gone without a meeting at which this one waits, if so.

        To be asked every now and then: a rank counts once it is found so for a while.
        """
        now = time.monotonic()
        found = self._presence.gone_without(meeting)
        before = self._gone
        self._gone = {
            key: since for key, since in before.items() if key[0] != meeting or key[1] in found
        }
        for rank in found:
            self._gone.setdefault((meeting, rank), now)
        gone = [rank for rank in found if now - self._gone[meeting, rank] >= _SECONDS_GONE]
        if meeting.place == START:  # messages are of this start, and not of a program before
            gone, doing = sorted(self._presence.never_started.union(gone)), START
        return message_of_gone(self._presence.rank, gone, doing) if gone else ""

    def elsewhere(
        self,
        meeting: Meeting | None,
        doing: object,
        since: float,
        is_behind: bool = False,
        is_alone: bool = True,
    ) -> str:
        """Return that this rank waits for others that wait for it, over any number, if so.

        To be asked every now and then, also while this rank does not wait.

        Parameters
        ----------
        meeting
            Where the main thread waits; None where it does not, or where other threads could join
            what others wait for.
        doing
            What that is, for messages.
        since
            When it began to wait, by ``time.monotonic``.
        is_behind
            Whether it waits for the thread in the background, which waits at the meeting.
        is_alone
            Whether the thread in the background joins nothing meanwhile.
        """
        heard = [said for data in self._presence.heard() if (said := _read(data)) is not None]
        if meeting is None:
            return ""
        if self._here != (meeting, since):
            self._here = meeting, since
            self._tell_after = 0.0
            self._sent_on.clear()
            self._unsent.clear()
        me = self._presence.rank, str(doing)[:_SAID_AT_MOST]
        probes: list[Probe] = []
        for said in heard:
            if has_joined(said.place, said.number):
                continue
            if is_alone or not said.is_behind:
                for probe in said.probes:
                    if probe.path[0][0] != me[0]:
                        self._take_on(probe, me, since, probes)
                    elif (probe.place, probe.number) == meeting[:2]:
                        return message_of_circle(probe.path)
        # The one that waits last finds it out: it needs no more than the probes of the youngest.
        probes = sorted(probes, key=_youth, reverse=True)[:_PROBES_AT_MOST]
        waited = time.monotonic() - since
        if waited >= self._tell_after:
            self._tell_after = 2 * waited  # less and less often
            self._turn += 1
            probes.insert(0, Probe(meeting.place, meeting.number, since, self._turn, [me]))
        sending = self._unsent[-_UNSENT_AT_MOST:]
        if probes:
            sending.append((meeting.ranks, _written(meeting, probes, is_behind)))
        left = [(self._presence.say(ranks, message), message) for ranks, message in sending]
        self._unsent = [(ranks, message) for ranks, message in left if ranks]
        return ""

    def _take_on(
        self, probe: Probe, me: tuple[int, str], since: float, probes: list[Probe]
    ) -> None:
        """Send on a probe of a rank that waits for a shorter time, once."""
        first = probe.path[0][0]
        key = first, probe.place, probe.number, probe.turn
        if (
            _youth(probe) > (since, me[0])
            and key not in self._sent_on
            and all(rank != me[0] for rank, _ in probe.path)
        ):
            self._sent_on.add(key)
            probes.append(probe._replace(path=[*probe.path, me]))


def _written(meeting: Meeting, probes: list[Probe], is_behind: bool) -> bytes:
    """Return what says that this rank waits, and sends probes, or as many as a message holds."""
    message = json.dumps(Said(meeting.place, meeting.number, probes, is_behind)).encode()
    if len(message) > BYTES_AT_MOST and len(probes) > 1:
        return _written(meeting, probes[: len(probes) // 2], is_behind)
    return message


def _read(message: bytes) -> Said | None:
    """Return what another rank has said; None where that cannot be read."""
    try:
        place, number, probes, is_behind = json.loads(message)
        return Said(
            place,
            number,
            [
                Probe(at, nth, since, turn, [(rank, doing) for rank, doing in path])
                for at, nth, since, turn, path in probes
            ],
            is_behind,
        )
    except (ValueError, TypeError):
        return None


def _youth(probe: Probe) -> tuple[float, int]:
    return probe.since, probe.path[0][0]


def message_of_circle(path: Sequence[tuple[int, str]]) -> str:
    """Return what is wrong where each of some ranks waits for the next, and the last for the first.

    Parameters
    ----------
    path
        The ranks, and what each waits for.
    """
    shown = min(path)  # the same first rank in what all of them find
    start = path.index(shown)
    path = [*path[start:], *path[:start]]
    after = [rank for rank, _ in [*path[1:], path[0]]]
    waits = [
        f"rank {rank} waits for rank {other} ({doing})"
        for (rank, doing), other in zip(path, after, strict=True)
    ]
    none = "neither" if len(path) == 2 else "none of them"
    return (
        f"{', '.join(waits[:-1])}, and {waits[-1]}: {none} will come. Every rank must make the "
        "same calls in the same order, on the same meshes"
        f"{such_calls(*(doing for _, doing in path))}"
    )
