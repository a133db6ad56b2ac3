"""What ranks of a node tell each other beside MPI: that one has gone, and what one waits for.

A call that blocks in MPI, such as the one that makes a communicator, cannot learn that a rank it
waits for has come to the end of the program, or waits for this one somewhere else. So every rank
has a name on its node, made of what all ranks of the job know without asking: the job's name
(`_job`) and its number. Under it, it receives messages from ranks that wait; and at the end of the
program it takes further names that say so and that others can look up while it is in
``MPI_Finalize``. The names are those of sockets that the system forgets with the process. Ranks of
other nodes, or of containers that do not see each other, are not found: of them nothing is known.
What follows from what is known, `_in_vain` concludes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from distarray.comm._job import job
from distarray.comm._mismatch import such_calls
from distarray.comm._settings import setting
from distarray.errors import ArgumentError

BYTES_AT_MOST: Final = 1 << 16
"""Of a message."""


def node_colour(world_rank: int) -> str:
    """Return what tells the node of this process: equal on the ranks that may share memory.

    ``DISTARRAY_RANKS_PER_NODE=k`` makes believe, for tests, that every k consecutive ranks of
    the MPI world are a node.
    """
    pretended = setting("DISTARRAY_RANKS_PER_NODE")
    if pretended and not (pretended.isdecimal() and int(pretended)):
        raise ArgumentError(
            f"DISTARRAY_RANKS_PER_NODE={pretended!r} is not a number of ranks; set a positive "
            "integer, or unset it"
        )
    node = f"{world_rank // int(pretended)} " if pretended else ""
    try:
        node += Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Containers on one machine do not see each other's processes.
        return f"{node} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{node} {socket.gethostname()}"


class Meeting(NamedTuple):
    """One of several things that some ranks do together, where each waits for all.

    Attributes
    ----------
    place
        What names the series that it is of, alike on these ranks.
    number
        Its position in the series, from 1.
    ranks
        Their numbers in the MPI world.
    """

    place: str
    number: int
    ranks: tuple[int, ...]


class Rounds(Protocol):
    """A series of meetings that counts them itself."""

    @property
    def joined(self) -> int:
        """The number of those that this rank has joined."""


_joined: dict[str, int] = {}
_over: set[str] = set()  # places that counted themselves, and are no more
_rounds: weakref.WeakValueDictionary[str, Rounds] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def joining(place: str, ranks: tuple[int, ...]) -> Meeting:
    """Return the next meeting at a place, which this rank joins now."""
    with _lock:
        number = _joined[place] = _joined.get(place, 0) + 1
    return Meeting(place, number, ranks)


def counted_by(place: str, rounds: Rounds) -> None:
    """Let something count the meetings at a place itself."""
    _rounds[place] = rounds
    weakref.finalize(rounds, _over.add, place).atexit = False


def has_joined(place: str, number: int) -> bool:
    """Tell whether this rank has joined a meeting."""
    rounds = _rounds.get(place)
    if place in _over:  # others may have said earlier what is read now
        return True
    return (rounds.joined if rounds is not None else _joined.get(place, 0)) >= number


class Presence:
    """A rank among those of its node.

    Parameters
    ----------
    rank
        Its number in the MPI world.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._job = _digest(os.getuid(), job(), node_colour(rank))
        self._socket: socket.socket | None = None

    def _name(self, rank: int, said: str = "") -> str:
        return f"\0distarray {self._job} {rank} {said}"

    # --- at the end ------------------------------------------------------------------------------

    def go(self) -> None:
        """Say that this rank will join no more meetings, and which it has joined."""
        try:
            for place, number in _joined.items():
                for i in range(1, number + 1):
                    self._take(self._name(self.rank, _digest(place, i)))
            self._take(self._name(self.rank, "gone"))
        except OSError:  # too many, or a system without such names: then nobody learns of it
            pass

    def _take(self, name: str) -> None:
        """Take a name until the process is over, which is after the interpreter."""
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            taken.bind(name)
        except OSError:
            taken.close()
            raise
        taken.detach()

    def gone_without(self, meeting: Meeting) -> list[int]:
        """Return the ranks of a meeting that have gone, and have not joined it.

        Those that are counted elsewhere have means of their own to find that out.
        """
        if meeting.place in _rounds:
            return []
        joined = _digest(meeting.place, meeting.number)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            return [
                rank
                for rank in meeting.ranks
                if rank != self.rank
                and _is_taken(asking, self._name(rank, "gone"))
                and not _is_taken(asking, self._name(rank, joined))
            ]

    # --- while waiting ---------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin to receive what the others say, where the system lets this process."""
        with contextlib.suppress(OSError):
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            listening.setblocking(False)
            listening.bind(self._name(self.rank))
            self._socket = listening

    def close(self) -> None:
        """Receive nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def say(self, ranks: Sequence[int], message: bytes) -> list[int]:
        """Send other ranks a message; return those that have too much to read."""
        full = []
        for rank in ranks:
            if self._socket is None or rank == self.rank:
                continue
            try:
                self._socket.sendto(message, self._name(rank))
            except BlockingIOError:
                full.append(rank)
            except OSError:  # not there
                pass
        return full

    def heard(self) -> list[bytes]:
        """Return the messages that others have sent since this was asked last."""
        found = []
        with contextlib.suppress(OSError):  # there are no more
            while self._socket is not None:
                found.append(self._socket.recv(BYTES_AT_MOST))
        return found


def message_of_gone(rank: int, gone: Sequence[int], doing: object) -> str:
    """Return what is wrong where a rank waits for others at the end of the program."""
    return (
        f"rank {rank} waits for ranks {list(gone)} ({doing}), and they have come to the end of "
        f"the program. Every rank must make the same calls{such_calls(doing)}"
    )


def _is_taken(asking: socket.socket, name: str) -> bool:
    try:
        asking.connect(name)
    except OSError:
        return False
    return True


def _digest(*what: object) -> str:
    return hashlib.blake2b(repr(what).encode(), digest_size=10).hexdigest()
