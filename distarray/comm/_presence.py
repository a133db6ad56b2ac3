"""What ranks of a node tell each other beside MPI: that one has gone, and what one waits for.

A call that blocks in MPI, such as the one that makes a communicator, cannot learn that a rank it
waits for has come to the end of the program, or waits for this one somewhere else. So every rank
has a name on its node, made of what all ranks of the job know without asking: its launcher and its
number. Under it, it receives messages from ranks that wait; and at the end of the program it takes
further names that say so and that others can look up while it is in ``MPI_Finalize``. The names
are those of sockets that the system forgets with the process. Ranks of other nodes, or of
containers that do not see each other, are not found: of them nothing is known.

What is concluded is certain. A rank has gone without a meeting only if it says that it has gone and
not that it has joined the meeting; and two wait for each other for ever only if each has heard of
the other that it waits elsewhere and has not joined, while it has not joined there itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from distarray.comm._mismatch import SUCH_CALLS
from distarray.errors import ArgumentError

_SAID_AT_MOST: Final = 2000  # characters of what a rank is doing

_parent = os.getppid()  # a launcher's process, one for all ranks that it has started here


def node_colour(world_rank: int) -> str:
    """Return what tells the node of this process: equal on the ranks that may share memory.

    ``DISTARRAY_RANKS_PER_NODE=k`` makes believe, for tests, that every k consecutive ranks of
    the MPI world are a node.
    """
    pretended = os.environ.get("DISTARRAY_RANKS_PER_NODE", "")
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


def has_joined(place: str, number: int) -> bool:
    """Tell whether this rank has joined a meeting."""
    rounds = _rounds.get(place)
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
        job = os.environ.get("PMIX_NAMESPACE") or _parent
        self._job = _digest(os.getuid(), job, node_colour(rank))
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
        taken.bind(name)
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

    def say(
        self, ranks: Sequence[int], waits: Meeting, doing: str, missed: Sequence[Any] = ()
    ) -> None:
        """Tell other ranks that this one waits at a meeting of theirs.

        Parameters
        ----------
        ranks
            Whom.
        waits, doing
            At which meeting, and what that is, for messages.
        missed
            Place and number of a meeting, at which they wait and which this rank has not joined.
        """
        if self._socket is None:
            return
        message = [self.rank, waits.place, waits.number, doing[:_SAID_AT_MOST], list(missed)]
        data = json.dumps(message).encode()
        for rank in ranks:
            if rank != self.rank:
                with contextlib.suppress(OSError):  # not there, or it has much to read
                    self._socket.sendto(data, self._name(rank))

    def heard(self) -> list[Said]:
        """Return what others have said since this was asked last."""
        found = []
        while self._socket is not None:
            try:
                rank, place, number, doing, missed = json.loads(self._socket.recv(1 << 16))
            except BlockingIOError:
                break
            except (OSError, ValueError, TypeError):
                continue
            found.append(Said(rank, place, number, doing, tuple(missed)))
        return found


class Said(NamedTuple):
    """What another rank has said; see `Presence.say`."""

    rank: int
    place: str
    number: int
    doing: str
    missed: tuple[Any, ...]


class Watch:
    """Finds out that what this rank waits for will not come.

    Parameters
    ----------
    presence
        This rank among those of its node.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        presence.listen()
        self._told: Meeting | None = None
        self._tell_after = 0.0

    def gone(self, meeting: Meeting, doing: object) -> str:
        """Return that ranks have gone without a meeting at which this one waits, if so."""
        gone = self._presence.gone_without(meeting)
        return message_of_gone(self._presence.rank, gone, doing) if gone else ""

    def elsewhere(self, meeting: Meeting | None, doing: object, seconds: float) -> str:
        """Return that another rank waits for this one, while this one waits for it, if so.

        To be asked every now and then, also while this rank does not wait.

        Parameters
        ----------
        meeting
            Where the main thread waits; None where it does not, or where other threads could join
            what others wait for.
        doing
            What that is, for messages.
        seconds
            How long it has waited.
        """
        presence = self._presence
        heard = presence.heard()
        if meeting is None:
            return ""
        here = meeting.place, meeting.number
        for said in heard:
            if has_joined(said.place, said.number):
                continue
            if said.missed == here:
                return (
                    f"rank {presence.rank} waits for rank {said.rank} ({doing}), and rank "
                    f"{said.rank} waits for rank {presence.rank} ({said.doing}): neither will "
                    "come. Every rank must make the same calls in the same order, on the same "
                    f"meshes; {SUCH_CALLS}"
                )
            if said.rank in meeting.ranks and not said.missed:
                answer = said.place, said.number
                presence.say([said.rank], meeting, str(doing), answer)
        if self._told != meeting:
            self._told, self._tell_after = meeting, 0.0
        if seconds >= self._tell_after:
            self._tell_after = 2 * seconds  # less and less often
            presence.say(meeting.ranks, meeting, str(doing))
        return ""


def message_of_gone(rank: int, gone: Sequence[int], doing: object) -> str:
    """Return what is wrong where a rank waits for others at the end of the program."""
    return (
        f"rank {rank} waits for ranks {list(gone)} ({doing}), and they have come to the end of "
        f"the program. Every rank must make the same calls; {SUCH_CALLS}"
    )


def _is_taken(asking: socket.socket, name: str) -> bool:
    try:
        asking.connect(name)
    except OSError:
        return False
    return True


def _digest(*what: object) -> str:
    return hashlib.blake2b(repr(what).encode(), digest_size=10).hexdigest()
