"""What ranks of a node tell each other beside MPI: who is there, has gone, and waits for what.

A call that blocks in MPI, such as the one that makes a communicator, cannot learn that a rank it
waits for has come to the end of the program, or waits for this one somewhere else. So every rank
has a name on its node, made of what all ranks of the job know without asking: the job's name
(`_job`) and its number. It takes the name when it starts MPI, and receives messages under it: of
ranks that wait, of one that ends the job and lets the others write first what they hold back, and
of one that comes to the end of the program. That one takes further names as well, which others can
look up while it is in ``MPI_Finalize``. The names are those of sockets, which the system forgets
with the process, however it ends: where a name is free again, and its rank has not said that it
goes, the rank has died. Ranks of other nodes, or of containers with networks of their own, are not
found: of them nothing is known. What follows from what is known, `_in_vain` and `_neighbours`
conclude.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from distarray.comm._agreement import such_calls
from distarray.comm._node import ranks
from distarray.comm._settings import setting
from distarray.comm.failures._job import job, process_namespace
from distarray.errors import ArgumentError

BYTES_AT_MOST: Final = 1 << 16
"""Of a message."""

START: Final = "the start of MPI"
"""The place of the first meeting."""

_LEAVES: Final = b"leaves"
_NEVER: Final = b"never"  # the same of one that has not started MPI
_FLUSH: Final = b"flush"
_FLUSHED: Final = b"flushed"
"""What messages begin with, and the sender's number follows; those of ranks that wait are JSON."""

_ABSENT, _FULL, _TOLD = range(3)
_KEPT: Final = 4096  # messages of ranks that wait, until they are read twice a second
_POLL: Final = 0.01  # seconds between looks for answers


def node_colour(world_rank: int) -> str:
    """Return what tells the node of this process: equal on the ranks that may share memory.

    ``DISTARRAY_RANKS_PER_NODE=k`` makes believe, for tests, that every k consecutive ranks of
    the MPI world are a node.
    """
    # Containers on one machine do not see each other's processes.
    return f"{_machine(world_rank)} {process_namespace()}"


def _machine(world_rank: int) -> str:
    pretended = _pretended()
    node = f"{world_rank // pretended} " if pretended else ""
    try:
        return node + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return node + socket.gethostname()


def _pretended() -> int:
    told = setting("DISTARRAY_RANKS_PER_NODE")
    if told and not (told.isdecimal() and int(told)):
        raise ArgumentError(
            f"DISTARRAY_RANKS_PER_NODE={told!r} is not a number of ranks; set a positive "
            "integer, or unset it"
        )
    return int(told or 0)


def node_ranks(world_rank: int, size: int) -> list[int] | None:
    """Return the ranks of this node in the MPI world; None where nobody says which they are."""
    pretended = _pretended()
    if pretended:
        first = world_rank // pretended * pretended
        return list(range(first, min(first + pretended, size)))
    of_slurm = os.environ.get("SLURM_GTIDS", "").split(",")
    is_step = os.environ.get("SLURM_STEP_NUM_TASKS") == str(size)  # not a batch script's mpiexec
    if is_step and all(map(str.isdecimal, of_slurm)):
        return list(map(int, of_slurm))
    return list(range(size)) if ranks() == size else None


def count_of_node(world_rank: int, size: int) -> int:
    """Return how many ranks this node has, or not too few."""
    told = node_ranks(world_rank, size)
    return min(ranks(), size) if told is None else len(told)


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

    Attributes
    ----------
    left
        The ranks that have said that their process will soon be over.
    never_started
        Those among them that have not started MPI.
    flush
        Lets what this rank has printed leave it; called when another rank ends the job.
    flushed
        The ranks that have done that.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.left: set[int] = set()
        self.never_started: set[int] = set()
        self.flushed: set[int] = set()
        self.flush: Callable[[], object] = bool
        self._said: deque[bytes] = deque(maxlen=_KEPT)
        self._job = _digest(os.getuid(), job(), _machine(rank))
        self._socket: socket.socket | None = None
        if not _present and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget_all)
        _present.add(self)

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
        """Take this rank's name, and receive what the others say, where the system allows it."""
        if self._socket is not None:
            return
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
        return [rank for rank in ranks if self._tell(rank, message) == _FULL]

    def _tell(self, rank: int, message: bytes) -> int:
        """Send another rank a message; return whether it was there, and had room for it."""
        if self._socket is None or rank == self.rank:
            return _ABSENT
        try:
            self._socket.sendto(message, self._name(rank))
        except BlockingIOError:
            return _FULL
        except OSError:
            return _ABSENT
        return _TOLD

    def heard(self) -> list[bytes]:
        """Return the messages of ranks that wait, since this was asked last."""
        self.receive()
        found = list(self._said)
        self._said.clear()
        return found

    def receive(self) -> None:
        """Take in what others have sent, and do what they ask for."""
        own = self._socket  # another thread may close it
        with contextlib.suppress(OSError):  # there is no more
            while own is not None:
                message = own.recv(BYTES_AT_MOST)
                word, _, rank = message.partition(b" ")
                if word in (_LEAVES, _NEVER):
                    self.left.add(int(rank))
                    if word == _NEVER:
                        self.never_started.add(int(rank))
                elif word == _FLUSH:
                    self.flush()
                    self._tell(int(rank), b"%s %d" % (_FLUSHED, self.rank))
                elif word == _FLUSHED:
                    self.flushed.add(int(rank))
                else:
                    self._said.append(message)

    def rest(self, seconds: float) -> None:
        """Sleep, and do meanwhile what others ask for."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            own = self._socket
            if own is None or own.fileno() < 0:
                time.sleep(left)
                continue
            coming = select.poll()  # select() takes no files past 1023
            coming.register(own, select.POLLIN)
            if coming.poll(left * 1000):
                self.receive()

    # --- who is there ----------------------------------------------------------------------------

    def here(self, ranks: Iterable[int]) -> set[int]:
        """Return which other ranks have taken their names, and are alive."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            return {r for r in ranks if r != self.rank and _is_taken(asking, self._name(r))}

    def gone(self, ranks: Iterable[int]) -> set[int]:
        """Return which other ranks have come to the end of the program, as far as that is known."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            return {
                rank
                for rank in ranks
                if rank != self.rank
                and (rank in self.left or _is_taken(asking, self._name(rank, "gone")))
            }

    def let_flush(self, ranks: Iterable[int], seconds: float) -> None:
        """Ask others to let out what they have printed, and wait for it for so long at most."""
        self.listen()  # for their answers
        message = b"%s %d" % (_FLUSH, self.rank)
        asked = {rank for rank in ranks if self._tell(rank, message) == _TOLD}
        end = time.monotonic() + seconds
        while not asked <= self.flushed and time.monotonic() < end:
            self.receive()
            time.sleep(_POLL)

    def leave(
        self, ranks: Iterable[int], awaited: int, seconds: float, has_started: bool = True
    ) -> None:
        """Tell the others that this process will soon be over, before its names are free.

        Parameters
        ----------
        ranks
            Those that may be on this node.
        awaited
            How many must have been told, or go themselves: who is not there yet is waited for.
        seconds
            For how long at most.
        has_started
            Whether this rank has started MPI.
        """
        self.listen()  # for those that go at the same time
        message = b"%s %d" % (_LEAVES if has_started else _NEVER, self.rank)
        end = time.monotonic() + seconds
        todo, told = set(ranks), set[int]()
        while True:
            found = {rank: self._tell(rank, message) for rank in todo}
            told.update(rank for rank, how in found.items() if how == _TOLD)
            self.receive()
            gone = self.gone(todo | told)
            todo -= told | gone
            full = {rank for rank, how in found.items() if how == _FULL} & todo
            if (not full and len(told | gone) >= awaited) or time.monotonic() > end:
                return
            time.sleep(_POLL)


_present: weakref.WeakSet[Presence] = weakref.WeakSet()


def _forget_all() -> None:
    """Leave the names to the parent: who has died must not live on in a forked child."""
    for presence in list(_present):
        presence.close()


def message_of_gone(rank: int, gone: Sequence[int], doing: object) -> str:
    """Return what is wrong where a rank waits for others at the end of the program."""
    must = f"make the same calls{such_calls(doing)}" if doing != START else "come to its first mesh"
    return (
        f"rank {rank} waits for ranks {list(gone)} ({doing}), and they have come to the end of "
        f"the program. Every rank must {must}"
    )


def _is_taken(asking: socket.socket, name: str) -> bool:
    try:
        asking.connect(name)
    except OSError:
        return False
    return True


def _digest(*what: object) -> str:
    return hashlib.blake2b(repr(what).encode(), digest_size=10).hexdigest()
