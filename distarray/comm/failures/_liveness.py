"""Liveness of the ranks of this node: who has died, has gone, or has not come to the start of MPI.

A rank is known from when it has taken its name (`_presence`). Twice a second its neighbours look
whether the name is still taken. Who comes to the end of the program lets them know before; so a
rank whose name is free, and that has let nobody know, has been killed, has crashed or has left by
the back door (``os._exit``), and the job has to end. `_SECONDS_DEAD` go by first: launchers that
end a job by themselves do so in this time, and ranks that all leave by the back door one after the
other, at the end of the program, are left alone. A rank has gone without a meeting if it says that
it has gone, and not that it has joined the meeting.

Until ``MPI_Init`` has returned there are no ranks to ask, only names. A rank that waits there tells
who of its node has not come, as far as it knows: who is on the node it knows from the launcher.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from distarray.comm._agreement import name_ranks
from distarray.comm._launcher import count_ranks_here, local_ranks
from distarray.comm.failures._presence import Presence, message_of_gone
from distarray.comm.failures._waits import START, Meeting

_SECONDS_DEAD: Final = 1.5
"""How long a name must be free: three looks of the watchdog, in which the rank may still speak."""
_SECONDS_GONE: Final = 1.5
"""How long a rank must be seen to have gone: a script may start one program after the other, and
the names of the first are free when its processes are over."""

_LONGEST_PAUSE: Final = 60.0  # seconds between looks for ranks that have taken their names since


class Neighbours:
    """The ranks of this node, as far as they have taken their names."""

    def __init__(self, presence: Presence, size: int) -> None:
        self._presence = presence
        self._ranks = local_ranks(presence.rank, size) or range(size)
        self._known: set[int] = set()
        self._absent: dict[int, float] = {}  # since when
        self._gone: dict[tuple[Meeting, int], float] = {}  # since when
        self._pause = 0.0
        self._look_at = 0.0

    def look(self) -> None:
        """Look who has taken a name: when MPI has started, all that started it so."""
        self._known |= self._presence.here(self._ranks)

    def find_dead(self) -> str:
        """Return that ranks of this node have died, if so; to be asked every now and then."""
        now = time.monotonic()
        if now >= self._look_at:  # seldom: a node may have few of very many ranks
            self.look()
            self._pause = min(2 * self._pause + 0.5, _LONGEST_PAUSE)
            self._look_at = now + self._pause
        absent = self._known - self._presence.here(self._known)
        self._presence.receive()  # after the look: who has left had said so before
        absent -= self._presence.left
        self._absent = {rank: self._absent.get(rank, now) for rank in absent}
        dead = sorted(r for r, since in self._absent.items() if now - since >= _SECONDS_DEAD)
        return message_of_dead(self._presence.rank, dead) if dead else ""

    def gone(self, meeting: Meeting, doing: object) -> str:
        """Return that ranks have gone without a meeting at which this one waits, if so.

        To be asked every now and then: a rank counts once it is found so for a while.
        """
        now = time.monotonic()
        found = self._presence.gone_without(meeting)
        self._gone = {
            key: since for key, since in self._gone.items() if key[0] != meeting or key[1] in found
        }
        for rank in found:
            self._gone.setdefault((meeting, rank), now)
        gone = [rank for rank in found if now - self._gone[meeting, rank] >= _SECONDS_GONE]
        if meeting.place == START:  # messages are of this start, and not of a program before
            gone, doing = sorted(self._presence.never_started.union(gone)), START
        return message_of_gone(self._presence.rank, gone, doing) if gone else ""


class Start:
    """The start of MPI as what a rank waits in: ``str`` tells who has not come to it."""

    def __init__(self, presence: Presence, size: int) -> None:
        self._presence = presence
        self._told = local_ranks(presence.rank, size)
        self._count, self._size = count_ranks_here(presence.rank, size), size
        self.ranks = tuple(self._told or range(size))

    def late(self) -> tuple[int, ...]:
        """Return who has not come, where it is known who is on this node."""
        here = self._here() | {self._presence.rank}
        return () if self._told is None else tuple(sorted(set(self._told) - here))

    def __str__(self) -> str:
        here = self._here()
        count = self._count - 1 - len(here)
        if count <= 0:
            if self._count == self._size:
                return f"{START}: all ranks are here, and MPI has not finished starting"
            return f"{START}: ranks of other nodes have not come"
        if self._told is not None:
            return f"{START}: {count} of this node {'has' if count == 1 else 'have'} not come"
        come = f"only {name_ranks(sorted(here))}" if here else "none"
        return f"{START}: {count} other ranks of this node have not come, {come}"

    def _here(self) -> set[int]:
        return self._presence.here(self.ranks) - self._presence.gone(self.ranks)


def message_of_dead(rank: int, dead: Sequence[int]) -> str:
    """Return what is wrong where ranks have died."""
    who = f"{name_ranks(dead)} {'has' if len(dead) == 1 else 'have'}"
    return (
        f"{who} died, as rank {rank} of the same node finds: the process is over, and neither by "
        "the end of the program nor by an error that Python knows of. It has crashed or was "
        "killed, as by the system where memory is short"
    )
