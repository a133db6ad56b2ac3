"""Rendezvous of simulated ranks: rounds that all of a group join, and messages between two."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from distarray.comm import _backend
from distarray.comm._agreement import mismatch_error
from distarray.errors import CommunicationError, MismatchError

_POLL = 0.25  # seconds between looks for ranks that will never come; any number of this size does


class PeerFailedError(CommunicationError):
    """Another simulated rank has ended the program."""


class Program:
    """What the ranks of one ``simulate`` share."""

    def __init__(self, size: int, ranks_per_node: int | None) -> None:
        self.size = size
        self.ranks_per_node = ranks_per_node
        self.lock = threading.Lock()
        self.groups: dict[tuple[Any, ...], Group] = {}
        self.failure: BaseException | None = None
        self.failed_rank: int | None = None
        self.finished: set[int] = set()
        self.waiting: dict[int, str] = {}  # world rank -> what it waits for

    def group(self, key: tuple[Any, ...], ranks: tuple[int, ...]) -> Group:
        with self.lock:
            group = self.groups.get(key)
            if group is None:
                group = self.groups[key] = Group(self, ranks)
            return group

    def fail(self, error: BaseException, rank: int | None) -> None:
        """End the program: the first error counts, and everyone who waits is woken."""
        with self.lock:
            if self.failure is None:
                self.failure, self.failed_rank = error, rank
            groups = list(self.groups.values())
        for group in groups:
            group.wake()

    def check(self) -> None:
        if self.failure is not None:
            where = "" if self.failed_rank is None else f" on simulated rank {self.failed_rank}"
            raise PeerFailedError(f"the program was ended by an error{where}: {self.failure!r}")


class Round:
    """One collective under way."""

    def __init__(self, n: int) -> None:
        self.said: list[str | None] = [None] * n
        self.agreed: list[object] = [None] * n
        self.brought: list[Any] = [None] * n
        self.missing = n
        self.complete = threading.Event()
        self.mismatch: str | None = None


Address = tuple[int, int, int]
"""Source, destination and tag of a message."""


class Group:
    """Some ranks of a program, the rounds they are in, and the messages between them."""

    def __init__(self, program: Program, ranks: tuple[int, ...]) -> None:
        self.program = program
        self.ranks = ranks
        self.lock = threading.Lock()
        self.rounds: dict[int, Round] = {}
        self.next = [0] * len(ranks)
        self.copies = [0] * len(ranks)
        self.mail: dict[tuple[Address, int], np.ndarray] = {}
        self._posted: defaultdict[Address, int] = defaultdict(int)
        self._expected: defaultdict[Address, int] = defaultdict(int)
        self.arrived = threading.Condition(self.lock)

    def join(self, rank: int, doing: str, bringing: Any, agree: object) -> Round:
        """Enter the next round of this rank, where all must bring an equal ``agree``."""
        self.program.check()
        with self.lock:
            number = self.next[rank]
            self.next[rank] += 1
            entered = self.rounds.get(number)
            if entered is None:
                entered = self.rounds[number] = Round(len(self.ranks))
            entered.said[rank] = doing
            entered.agreed[rank] = agree
            entered.brought[rank] = bringing
            entered.missing -= 1
            if entered.missing == 0:
                del self.rounds[number]
                if entered.agreed.count(agree) != len(self.ranks):
                    entered.mismatch = str(mismatch_error(entered.said, self.ranks))
                entered.complete.set()
        if self.program.failure is not None:
            self.wake()
        return entered

    def await_round(self, rank: int, entered: Round) -> list[Any]:
        """Return what every rank has brought to a round."""
        if not entered.complete.is_set():
            world_rank = self.ranks[rank]
            self.program.waiting[world_rank] = f"{entered.said[rank]} among ranks {self.ranks}"
            while not entered.complete.wait(_POLL):
                self.check_for_leavers(entered)
            self.program.waiting.pop(world_rank, None)
        if entered.missing:
            self.program.check()
        if entered.mismatch is not None:
            raise MismatchError(entered.mismatch)
        return entered.brought

    def check_for_leavers(self, entered: Round) -> None:
        self.program.check()
        finished = set(self.program.finished)
        gone = [
            rank
            for rank, said in zip(self.ranks, entered.said, strict=True)
            if said is None and rank in finished
        ]
        if gone and not entered.complete.is_set():
            came = {
                rank: said
                for rank, said in zip(self.ranks, entered.said, strict=True)
                if said is not None
            }
            raise CommunicationError(
                f"ranks {gone} have left the program, while others wait for them: {came}; every "
                "rank must make the same collective calls"
            )

    def wake(self) -> None:
        with self.lock:
            for entered in self.rounds.values():
                entered.complete.set()
            self.arrived.notify_all()

    def post(self, key: Address, values: np.ndarray) -> None:
        self.program.check()
        with self.lock:
            self.mail[key, self._posted[key]] = values
            self._posted[key] += 1
            self.arrived.notify_all()

    def expect(self, key: Address) -> int:
        """Return the number of the message that the next receive gets: in the order of receives."""
        with self.lock:
            self._expected[key] += 1
            return self._expected[key] - 1

    def fetch(self, key: Address, number: int, wait: bool) -> np.ndarray | None:
        """Return a message; None where it is not there."""
        with self.lock:
            while (key, number) not in self.mail:
                self.program.check()
                if not wait:
                    return None
                source, dest, tag = self.ranks[key[0]], self.ranks[key[1]], key[2]
                if source in self.program.finished:
                    raise CommunicationError(
                        f"rank {dest} waits for a message with tag {tag} from rank {source}, which "
                        "has left the program"
                    )
                self.program.waiting[dest] = f"recv(source={source}, tag={tag})"
                self.arrived.wait(_POLL)
            self.program.waiting.pop(self.ranks[key[1]], None)
            return self.mail.pop((key, number))


class RoundHandle:
    """A round entered and not yet left, as a request."""

    def __init__(
        self, group: Group, rank: int, entered: Round, take: Callable[[list[Any]], None]
    ) -> None:
        self._group, self._rank, self._entered, self._take = group, rank, entered, take
        self._taken = False

    def wait(self) -> None:
        if not self._taken:
            self._take(self._group.await_round(self._rank, self._entered))
            self._taken = True

    def test(self) -> bool:
        self._group.program.check()
        if self._entered.complete.is_set():
            self.wait()
        elif not self._taken:
            self._group.check_for_leavers(self._entered)
        return self._taken


class MailHandle:
    """A message expected, as a request."""

    def __init__(self, group: Group, key: Address, target: np.ndarray) -> None:
        self._group, self._key, self._target = group, key, target
        self._number = group.expect(key)
        self._taken = False

    def wait(self) -> None:
        if not self._taken:
            self._take(self._group.fetch(self._key, self._number, wait=True))

    def test(self) -> bool:
        if not self._taken:
            self._take(self._group.fetch(self._key, self._number, wait=False))
        return self._taken

    def _take(self, values: np.ndarray | None) -> None:
        if values is None:
            return
        if values.size != self._target.size or values.dtype != self._target.dtype:
            source, dest = (self._group.ranks[rank] for rank in self._key[:2])
            raise MismatchError(
                f"rank {source} sent {values.size} {values.dtype} elements, and rank {dest} "
                f"expects {self._target.size} {self._target.dtype}"
            )
        self._target[...] = values
        _backend.synchronize(self._target)  # the sender's stream is another
        self._taken = True
