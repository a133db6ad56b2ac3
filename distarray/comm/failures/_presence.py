"""Presence of the ranks of a node: names and messages beside MPI, by which they know of each other.

A call that blocks in MPI cannot learn that a rank it waits for has come to the end of the program,
or waits for this one somewhere else. So every rank has a name on its node, made of what all ranks
of the job know without asking: the job's name (`_launcher`) and its number. It takes the name when
it starts MPI, and receives messages under it: questions where it is, of one that ends the job and
lets the others write first what they hold back, and of one that comes to the end of the program.
That one takes further names as well, which others can look up while it is in ``MPI_Finalize``. The
names are those of sockets, which the system forgets with the process, however it ends: where a name
is free again, and its rank has not said that it goes, the rank has died. Ranks of other nodes, or
of containers with networks of their own, are not found: of them nothing is known.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from distarray.comm import _launcher
from distarray.comm._agreement import calls_hint
from distarray.comm.failures import _waits
from distarray.comm.failures._forks import forget_in_child
from distarray.comm.failures._roll_call import Inquiry, Whereabouts
from distarray.comm.failures._waits import START, Meeting, Question

if TYPE_CHECKING:
    import socket

_BYTES_AT_MOST: Final = 1 << 16  # of a message
_SAID_AT_MOST: Final = 300  # characters of what a rank does, and of its line
_RANKS_AT_MOST: Final = 1024  # that it says it waits for
_BITS_AT_MOST: Final = 63  # of a number of meetings

_LEAVES: Final = b"leaves"
_NEVER: Final = b"never"  # the same of one that has not started MPI
_FLUSH: Final = b"flush"
_FLUSHED: Final = b"flushed"
_WHERE: Final = b"where"  # then the question's number, and the meeting
_HERE: Final = b"here"  # then the question's number, and the answer
"""What messages begin with; the sender's number follows."""

_ABSENT, _FULL, _TOLD = range(3)
# Not measured; any numbers of these sizes do.
_MESSAGES_KEPT: Final = 4096  # messages for ranks that have much to read
_POLL: Final = 0.01  # seconds between looks for answers
_SECONDS_TO_ANSWER: Final = 2.0  # for all that are asked at a time


class Presence:
    """A rank, by its number in the MPI world, among those of its node.

    ``left`` are the ranks that have said that their process will soon be over, ``never_started``
    those of them that have not started MPI, and ``flushed`` those that have written what they held
    back because this one ends the job. ``flush`` does that for this rank when another one asks, and
    ``answer`` says where this rank is, about a meeting.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.left: set[int] = set()
        self.never_started: set[int] = set()
        self.flushed: set[int] = set()
        self.flush: Callable[[], object] = bool
        self.answer: Callable[[Question], Whereabouts] | None = None
        self._job = _digest(os.getuid(), _launcher.job(), _launcher.machine_name(rank))
        self._socket: socket.socket | None = None
        self._unsent: deque[tuple[int, bytes]] = deque(maxlen=_MESSAGES_KEPT)
        self._numbers = itertools.count()
        self._open: dict[int, Inquiry] = {}  # questions by number
        self._answers: dict[int, Whereabouts] = {}
        forget_in_child(self)  # who has died must not live on in a forked child

    def _name(self, rank: int, said: str = "") -> str:
        return f"\0distarray {self._job} {rank} {said}"

    # --- at the end ------------------------------------------------------------------------------

    def go(self) -> None:
        """Say that this rank will join no more meetings, and which it has joined."""
        with contextlib.suppress(OSError):  # too many, or no such names: nobody learns of it then
            for place, number in _waits.count_joined().items():
                for bit in range(number.bit_length()):
                    if number >> bit & 1:
                        self._take(self._name(self.rank, _digest(place, bit)))
            self._take(self._name(self.rank, "gone"))

    def _take(self, name: str) -> None:
        """Take a name until the process is over, which is after the interpreter."""
        taken = _new_socket()
        try:
            taken.bind(name)
        except OSError:
            taken.close()
            raise
        taken.detach()

    def gone_without(self, meeting: Meeting) -> list[int]:
        """Return the ranks of a meeting that have gone, and have not joined it."""
        rounds = _waits.rounds_of(meeting.place)
        if rounds is not None and rounds.finds_gone:
            return []
        with _new_socket() as looking:
            return [
                rank
                for rank in meeting.ranks
                if rank != self.rank
                and _is_taken(looking, self._name(rank, "gone"))
                and (number := self._joined_by(rank, meeting.place, looking)) < meeting.number
                and (number or rounds is None)  # it may have forgotten what counted itself
            ]

    def _joined_by(self, rank: int, place: str, looking: socket.socket) -> int:
        """Return how many meetings at a place a rank that has gone had joined; 0: not known."""
        names = [self._name(rank, _digest(place, bit)) for bit in range(_BITS_AT_MOST)]
        return sum(1 << bit for bit, name in enumerate(names) if _is_taken(looking, name))

    # --- messages --------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take this rank's name, and receive what the others say, where the system allows it."""
        if self._socket is not None:
            return
        with contextlib.suppress(OSError):
            listening = _new_socket()
            listening.setblocking(False)
            listening.bind(self._name(self.rank))
            self._socket = listening

    def close(self) -> None:
        """Receive nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    forget = close

    def _tell(self, rank: int, message: bytes) -> int:
        """Send another rank a message; return whether it was there, and had room for it."""
        own = self._socket  # another thread may close it
        if own is None or rank == self.rank:
            return _ABSENT
        try:
            own.sendto(message, self._name(rank))
        except BlockingIOError:
            return _FULL
        except OSError:
            return _ABSENT
        return _TOLD

    def _post(self, rank: int, message: bytes) -> bool:
        """Send another rank a message, now or when it has read others; tell whether it is there."""
        how = self._tell(rank, message)
        if how == _FULL:
            self._unsent.append((rank, message))
        return how != _ABSENT

    def receive(self) -> None:
        """Take in what others have sent, and do what they ask for."""
        for _ in range(len(self._unsent)):
            with contextlib.suppress(IndexError):  # another thread has sent it
                self._post(*self._unsent.popleft())
        own = self._socket
        with contextlib.suppress(OSError):  # there is no more
            while own is not None:
                message = own.recv(_BYTES_AT_MOST)
                with contextlib.suppress(ValueError, TypeError):  # not of our making
                    word, rank, *rest = message.split(b" ", 3)
                    self._take_in(word, int(rank), *rest)

    def _take_in(self, word: bytes, rank: int, number: bytes = b"", text: bytes = b"") -> None:
        import json

        if word in (_LEAVES, _NEVER):
            self.left.add(rank)
            if word == _NEVER:
                self.never_started.add(rank)
        elif word == _FLUSH:
            self.flush()
            self._tell(rank, b"%s %d" % (_FLUSHED, self.rank))
        elif word == _FLUSHED:
            self.flushed.add(rank)
        elif word == _WHERE and self.answer is not None:
            place, nth = json.loads(text)
            at = self.answer((place, nth))
            at = at._replace(
                line=at.line[:_SAID_AT_MOST],
                waits=at.waits[:_SAID_AT_MOST],
                ranks=at.ranks[:_RANKS_AT_MOST],
            )
            self._post(rank, b"%s %d %s %s" % (_HERE, self.rank, number, json.dumps(at).encode()))
        elif word == _HERE and int(number) in self._open:
            found = Whereabouts(*json.loads(text))
            place, nth = found.meeting
            self._answers[int(number)] = found._replace(
                meeting=(place, nth), ranks=tuple(found.ranks)
            )

    def sleep(self, seconds: float) -> None:
        """Sleep, and do meanwhile what others ask for."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            own = self._socket
            if own is None or own.fileno() < 0:
                time.sleep(left)
                continue
            coming = select.poll()  # select() takes no files past 1023
            coming.register(own, select.POLLIN)
            if coming.poll((min(left, _POLL) if self._unsent else left) * 1000) or self._unsent:
                self.receive()

    def ask(self, questions: Collection[Inquiry]) -> dict[Inquiry, Whereabouts]:
        """Return where ranks are, about a meeting each; nothing of those that do not answer."""
        import json

        found: dict[Inquiry, Whereabouts] = {}
        numbers: dict[int, Inquiry] = {}
        for rank, (place, nth) in questions:
            if rank == self.rank and self.answer is not None:
                found[rank, (place, nth)] = self.answer((place, nth))
                continue
            number = next(self._numbers)
            self._open[number] = numbers[number] = rank, (place, nth)
            text = json.dumps((place, nth)).encode()
            if not self._post(rank, b"%s %d %d %s" % (_WHERE, self.rank, number, text)):
                del self._open[number], numbers[number]
        end = time.monotonic() + _SECONDS_TO_ANSWER
        while not numbers.keys() <= self._answers.keys() and time.monotonic() < end:
            self.sleep(_POLL)
        for number, asked in numbers.items():
            del self._open[number]
            if number in self._answers:
                found[asked] = self._answers.pop(number)
        return found

    # --- who is there ----------------------------------------------------------------------------

    def here(self, ranks: Iterable[int]) -> set[int]:
        """Return which other ranks have taken their names, and are alive."""
        with _new_socket() as looking:
            return {r for r in ranks if r != self.rank and _is_taken(looking, self._name(r))}

    def gone(self, ranks: Iterable[int]) -> set[int]:
        """Return which other ranks have come to the end of the program, as far as that is known."""
        with _new_socket() as looking:
            return {
                rank
                for rank in ranks
                if rank != self.rank
                and (rank in self.left or _is_taken(looking, self._name(rank, "gone")))
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

        ``ranks`` may be on this node. As long as fewer than ``awaited`` have been told, or go
        themselves, it waits for those who are not there yet, for some ``seconds`` at most.
        ``has_started`` says whether this rank has started MPI.
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


def message_of_gone(rank: int, gone: Sequence[int], doing: object) -> str:
    """Return what is wrong where a rank waits for others at the end of the program."""
    must = f"make the same calls{calls_hint(doing)}" if doing != START else "come to its first mesh"
    return (
        f"rank {rank} waits for ranks {list(gone)} ({doing}), and they have come to the end of "
        f"the program. Every rank must {must}"
    )


def _new_socket() -> socket.socket:
    import socket

    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _is_taken(looking: socket.socket, name: str) -> bool:
    try:
        looking.connect(name)
    except OSError:
        return False
    return True


def _digest(*what: object) -> str:
    import hashlib

    return hashlib.blake2b(repr(what).encode(), digest_size=10).hexdigest()
