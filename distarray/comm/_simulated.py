"""Ranks that are threads of one process: for tests and documentation, without mpiexec.

Every collective is one round of a group: each rank puts down what it brings and a line that says
what it is doing, and takes what it needs once all have come. So a program whose ranks disagree
fails in the round where they do, on all of them, and one whose ranks wait for each other in vain
is ended with a report of who waits where.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, NoReturn, TypeVar

import numpy as np
from distarray.comm._collectives import Counts, offsets, parts
from distarray.comm._communicator import Communicator
from distarray.comm._reducing import reduce_in_order
from distarray.comm._requests import DONE, Pending, Request
from distarray.errors import ArgumentError, CommunicationError, MismatchError

T = TypeVar("T")

_POLL = 0.25  # seconds between looks for ranks that will never come


class _PeerFailed(CommunicationError):
    """Another simulated rank has ended the program."""


class _Program:
    """What the ranks of one ``simulate`` share."""

    def __init__(self, size: int, ranks_per_node: int | None) -> None:
        self.size = size
        self.ranks_per_node = ranks_per_node
        self.lock = threading.Lock()
        self.groups: dict[tuple[Any, ...], _Group] = {}
        self.failure: BaseException | None = None
        self.failed_rank: int | None = None
        self.finished: set[int] = set()
        self.waiting: dict[int, str] = {}  # world rank -> what it waits for

    def group(self, key: tuple[Any, ...], ranks: tuple[int, ...]) -> _Group:
        with self.lock:
            group = self.groups.get(key)
            if group is None:
                group = self.groups[key] = _Group(self, ranks)
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
            raise _PeerFailed(f"the program was ended by an error{where}: {self.failure!r}")


class _Round:
    """One collective under way."""

    __slots__ = ("agreed", "brought", "complete", "missing", "mismatch", "said")

    def __init__(self, n: int) -> None:
        self.said: list[str | None] = [None] * n
        self.agreed: list[object] = [None] * n
        self.brought: list[Any] = [None] * n
        self.missing = n
        self.complete = threading.Event()
        self.mismatch: str | None = None


class _Group:
    """Some ranks of a program, the rounds they are in, and the messages between them."""

    def __init__(self, program: _Program, ranks: tuple[int, ...]) -> None:
        self.program = program
        self.ranks = ranks
        self.lock = threading.Lock()
        self.rounds: dict[int, _Round] = {}
        self.next = [0] * len(ranks)
        self.copies = [0] * len(ranks)
        self.mail: defaultdict[tuple[int, int, int], deque[np.ndarray]] = defaultdict(deque)
        self.arrived = threading.Condition(self.lock)

    def join(self, rank: int, doing: str, bringing: Any, agree: object) -> _Round:
        """Enter the next round of this rank, where all must bring an equal ``agree``."""
        self.program.check()
        with self.lock:
            number = self.next[rank]
            self.next[rank] += 1
            entered = self.rounds.get(number)
            if entered is None:
                entered = self.rounds[number] = _Round(len(self.ranks))
            entered.said[rank] = doing
            entered.agreed[rank] = agree
            entered.brought[rank] = bringing
            entered.missing -= 1
            if entered.missing == 0:
                del self.rounds[number]
                if entered.agreed.count(agree) != len(self.ranks):
                    entered.mismatch = _disagreement(self.ranks, entered.said)
                entered.complete.set()
        if self.program.failure is not None:
            self.wake()
        return entered

    def await_round(self, rank: int, entered: _Round) -> list[Any]:
        """Return what every rank has brought to a round."""
        if not entered.complete.is_set():
            world_rank = self.ranks[rank]
            self.program.waiting[world_rank] = f"{entered.said[rank]} among ranks {self.ranks}"
            while not entered.complete.wait(_POLL):
                self._check_for_leavers(entered)
            self.program.waiting.pop(world_rank, None)
        if entered.missing:
            self.program.check()
        if entered.mismatch is not None:
            raise MismatchError(entered.mismatch)
        return entered.brought

    def _check_for_leavers(self, entered: _Round) -> None:
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

    def post(self, key: tuple[int, int, int], values: np.ndarray) -> None:
        self.program.check()
        with self.lock:
            self.mail[key].append(values)
            self.arrived.notify_all()

    def fetch(self, key: tuple[int, int, int], wait: bool) -> np.ndarray | None:
        """Return the next message of (source, dest, tag); None where none is there."""
        with self.lock:
            while not self.mail[key]:
                self.program.check()
                if not wait:
                    return None
                source, dest, tag = key
                if self.ranks[source] in self.program.finished:
                    raise CommunicationError(
                        f"rank {dest} waits for a message with tag {tag} from rank {source}, which "
                        "has left the program"
                    )
                self.program.waiting[self.ranks[dest]] = f"recv(source={source}, tag={tag})"
                self.arrived.wait(_POLL)
            self.program.waiting.pop(self.ranks[key[1]], None)
            return self.mail[key].popleft()


def _disagreement(ranks: tuple[int, ...], said: Sequence[str | None]) -> str:
    doing: defaultdict[str | None, list[int]] = defaultdict(list)
    for rank, line in zip(ranks, said, strict=True):
        doing[line].append(rank)
    return (
        "ranks are about to do different things together: "
        + "; ".join(f"ranks {who}: {line}" for line, who in doing.items())
        + ". Every rank must make the same calls with the same layouts, shapes and dtypes"
    )


class _RoundHandle:
    """A round entered and not yet left: what a non-blocking collective waits for."""

    def __init__(
        self, group: _Group, rank: int, entered: _Round, take: Callable[[list[Any]], None]
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
        return self._taken


class _MailHandle:
    """A message expected: what a non-blocking receive waits for."""

    def __init__(self, group: _Group, key: tuple[int, int, int], target: np.ndarray) -> None:
        self._group, self._key, self._target = group, key, target
        self._taken = False

    def wait(self) -> None:
        if not self._taken:
            self._take(self._group.fetch(self._key, wait=True))

    def test(self) -> bool:
        if not self._taken:
            self._take(self._group.fetch(self._key, wait=False))
        return self._taken

    def _take(self, values: np.ndarray | None) -> None:
        if values is None:
            return
        if values.size != self._target.size or values.dtype != self._target.dtype:
            raise MismatchError(
                f"rank {self._key[0]} sent {values.size} {values.dtype} elements, and rank "
                f"{self._key[1]} expects {self._target.size} {self._target.dtype}"
            )
        self._target[...] = values
        self._taken = True


class SimulatedCommunicator(Communicator):
    """A communicator among the threads of one ``simulate``."""

    def __init__(
        self, program: _Program, key: tuple[Any, ...], group: _Group, rank: int, name: str
    ) -> None:
        super().__init__(rank, group.ranks, name)
        self._program = program
        self._key = key
        self._group = group
        self._background: SimulatedCommunicator | None = None

    # --- rounds ----------------------------------------------------------------------------------

    def _round(
        self,
        doing: str,
        bringing: Any,
        take: Callable[[list[Any]], None],
        blocking: bool,
        agree: object = None,
    ) -> Request:
        agree = doing if agree is None else agree
        entered = self._group.join(self.rank, doing, bringing, agree)
        if not blocking:
            return Pending(_RoundHandle(self._group, self.rank, entered, take))
        take(self._group.await_round(self.rank, entered))
        return DONE

    def _barrier(self) -> None:
        self._round("barrier", None, lambda _: None, True)

    def _all_gather(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, blocking: bool
    ) -> Request:
        def take(brought: list[Any]) -> None:
            for part, values in zip(parts(recv, counts), brought, strict=True):
                part[...] = values

        doing = f"all_gather of {send.dtype} counts {tuple(counts)}"
        return self._round(doing, send.copy(), take, blocking)

    def _all_reduce(self, send: np.ndarray, recv: np.ndarray, op: str, blocking: bool) -> Request:
        def take(brought: list[Any]) -> None:
            reduce_in_order(brought, op, recv)

        doing = f"all_reduce {op} of {send.size} {send.dtype}"
        return self._round(doing, send.copy(), take, blocking)

    def _reduce_scatter(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, op: str, blocking: bool
    ) -> Request:
        starts = offsets(counts)
        mine = slice(starts[self.rank], starts[self.rank + 1])

        def take(brought: list[Any]) -> None:
            reduce_in_order([values[mine] for values in brought], op, recv)

        doing = f"reduce_scatter {op} of {send.dtype} counts {tuple(counts)}"
        return self._round(doing, send.copy(), take, blocking)

    def _all_to_all(
        self,
        send: np.ndarray,
        recv: np.ndarray,
        send_counts: Counts,
        recv_counts: Counts,
        blocking: bool,
    ) -> Request:
        def take(brought: list[Any]) -> None:
            targets = parts(recv, recv_counts)
            for source, values in enumerate(brought):
                if values[self.rank].size != targets[source].size:
                    raise MismatchError(
                        f"in all_to_all rank {source} sends {values[self.rank].size} elements to "
                        f"rank {self.rank}, which expects {targets[source].size}"
                    )
                targets[source][...] = values[self.rank]

        return self._round(
            f"all_to_all of {send.dtype}", parts(send.copy(), send_counts), take, blocking
        )

    def _broadcast(self, array: np.ndarray, root: int, blocking: bool) -> Request:
        def take(brought: list[Any]) -> None:
            if self.rank != root:
                array[...] = brought[root]

        doing = f"broadcast of {array.size} {array.dtype} from rank {root}"
        return self._round(doing, array.copy() if self.rank == root else None, take, blocking)

    def _scatter(
        self, send: np.ndarray | None, recv: np.ndarray, counts: Counts, root: int, blocking: bool
    ) -> Request:
        def take(brought: list[Any]) -> None:
            recv[...] = brought[root][self.rank]

        doing = f"scatter of {recv.dtype} counts {tuple(counts)} from rank {root}"
        bringing = None if send is None else parts(send.copy(), counts)
        return self._round(doing, bringing, take, blocking)

    def _gather(
        self, send: np.ndarray, recv: np.ndarray | None, counts: Counts, root: int, blocking: bool
    ) -> Request:
        def take(brought: list[Any]) -> None:
            if recv is not None:
                for part, values in zip(parts(recv, counts), brought, strict=True):
                    part[...] = values

        doing = f"gather of {send.dtype} counts {tuple(counts)} to rank {root}"
        return self._round(doing, send.copy(), take, blocking)

    def _send(self, array: np.ndarray, dest: int, tag: int, blocking: bool) -> Request:
        self._group.post((self.rank, dest, tag), array.copy())
        return DONE

    def _recv(self, array: np.ndarray, source: int, tag: int, blocking: bool) -> Request:
        handle = _MailHandle(self._group, (source, self.rank, tag), array)
        if not blocking:
            return Pending(handle)
        handle.wait()
        return DONE

    def _all_gather_object(self, obj: Any) -> tuple[list[Any], int]:
        brought: list[bytes] = []
        mine = pickle.dumps(obj)
        self._round("all_gather_object", mine, brought.extend, True)
        return [pickle.loads(item) for item in brought], sum(map(len, brought)) - len(mine)

    def _broadcast_object(self, obj: Any, root: int) -> tuple[Any, int]:
        brought: list[bytes] = []
        mine = pickle.dumps(obj) if self.rank == root else b""
        self._round(f"broadcast_object from rank {root}", mine, brought.extend, True)
        item = brought[root]
        return pickle.loads(item), 0 if self.rank == root else len(item)

    # --- shared memory ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def views(
        self, block: np.ndarray, token: int, what: object = ""
    ) -> Iterator[list[np.ndarray | None]]:
        """Yield the ranks' blocks themselves, read-only."""
        shown = block.view()
        shown.flags.writeable = False
        blocks: list[Any] = []
        doing = f"{what or 'views'} (token {token})"
        self._round(doing, shown, blocks.extend, True, agree=("views", token, block.dtype))
        per_node = self._program.ranks_per_node
        if per_node is not None:
            node = self.ranks[self.rank] // per_node
            blocks = [
                block if rank // per_node == node else None
                for rank, block in zip(self.ranks, blocks, strict=True)
            ]
        blocks[self.rank] = block
        try:
            yield blocks
        finally:
            if self._program.failure is None:
                self._round("the end of views", None, lambda _: None, True)

    @property
    def reaches_all(self) -> bool:
        """Whether all ranks are on one simulated node."""
        per_node = self._program.ranks_per_node
        return per_node is None or len({rank // per_node for rank in self.ranks}) == 1

    # --- other communicators ---------------------------------------------------------------------

    def subgroup(
        self, ranks: Sequence[int], name: str | None = None
    ) -> SimulatedCommunicator | None:
        """Return the communicator of some ranks; None where this is not one of them."""
        wanted = tuple(ranks)
        if not set(wanted) <= set(self.ranks):
            raise ArgumentError(f"ranks {wanted} are not all among {self.ranks}")
        mine = self.ranks[self.rank]
        if mine not in wanted:
            return None
        return self._derive((*self._key, "of", wanted), wanted, name or self.name)

    def _derive(
        self, key: tuple[Any, ...], ranks: tuple[int, ...], name: str
    ) -> SimulatedCommunicator:
        group = self._program.group(key, ranks)
        index = ranks.index(self.ranks[self.rank])
        return SimulatedCommunicator(self._program, key, group, index, name)

    def duplicate(self) -> SimulatedCommunicator:
        """Return a communicator of the same ranks with rounds of its own."""
        group = self._group
        with group.lock:
            number = group.copies[self.rank]
            group.copies[self.rank] += 1
        return self._derive((*self._key, "copy", number), self.ranks, self.name)

    def background(self) -> SimulatedCommunicator:
        """Return the duplicate that work in the background uses."""
        if self._background is None:
            key = (*self._key, "background")
            self._background = self._derive(key, self.ranks, self.name)
        return self._background

    @property
    def mpi(self) -> None:
        """None: there is no MPI behind simulated ranks."""
        return

    def exported(self) -> NoReturn:
        """Raise CommunicationError: there is no MPI behind simulated ranks."""
        raise CommunicationError(
            "simulated ranks have no mpi4py communicator; use mesh.communicator(...), or run the "
            "program under mpiexec"
        )

    def abort(self, code: int = 1) -> None:
        """End all ranks of the program."""
        error = CommunicationError(f"simulated rank {self.ranks[self.rank]} aborted (code {code})")
        self._program.fail(error, self.ranks[self.rank])
        raise error

    def free(self) -> None:
        """Do nothing: the program holds what its ranks share."""


_thread = threading.local()


def current() -> SimulatedCommunicator | None:
    """Return the communicator of all ranks of the ``simulate`` that this thread is in."""
    communicator: SimulatedCommunicator | None = getattr(_thread, "communicator", None)
    return communicator


def simulate(
    n: int,
    function: Callable[..., T],
    *args: Any,
    timeout: float = 60.0,
    ranks_per_node: int | None = None,
) -> list[T]:
    """Run ``function(*args)`` on ``n`` simulated ranks, and return what each returned.

    The ranks are threads of this process; inside the function the library behaves as under
    ``mpiexec -n``.

    Parameters
    ----------
    n
        Number of ranks.
    function
        Called once per rank, in a thread of its own.
    timeout
        Seconds after which the ranks are given up.
    ranks_per_node
        How many consecutive ranks share memory; default: all.

    Raises
    ------
    BaseException
        The first that left the function on any rank, with a note that names the rank.
    CommunicationError
        The ranks were not done in time; the message says where each waited.

    Examples
    --------
    >>> from distarray.comm import world
    >>> from distarray.testing import simulate
    >>> simulate(3, lambda: world().rank)
    [0, 1, 2]
    """
    if n < 1:
        raise ArgumentError(f"simulate needs at least one rank, not n={n}")
    program = _Program(n, ranks_per_node)
    ranks = tuple(range(n))
    group = program.group((), ranks)
    results: list[Any] = [None] * n

    def run(rank: int) -> None:
        _thread.communicator = SimulatedCommunicator(program, (), group, rank, "world")
        try:
            results[rank] = function(*args)
        except _PeerFailed:
            pass
        except BaseException as error:
            program.fail(error, rank)
        finally:
            program.finished.add(rank)
            del _thread.communicator

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"simulated rank {rank}", daemon=True)
        for rank in ranks
    ]
    deadline = monotonic() + timeout
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
    except BaseException as error:
        program.fail(error, None)
        raise
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if late and program.failure is None:
        where = {rank: program.waiting.get(rank, "outside communication") for rank in late}
        program.fail(
            CommunicationError(
                f"simulated ranks {late} were not done after {timeout:g} s; they wait in: {where}"
            ),
            None,
        )
    if program.failure is not None:
        if program.failed_rank is not None:
            program.failure.add_note(f"raised on simulated rank {program.failed_rank} of {n}")
        raise program.failure
    return results
