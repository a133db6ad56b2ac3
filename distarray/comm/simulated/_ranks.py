"""Ranks that are threads of one process: for tests and documentation, without mpiexec.

Every collective is one round of a group: each rank puts down what it brings and a line that says
what it is doing, and takes what it needs once all have come. So a program whose ranks disagree
fails in the round where they do, on all of them, and one whose ranks wait for each other for ever
is ended with a report of who waits where.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, NoReturn, TypeVar

import numpy as np

from distarray.comm import _backend, _log
from distarray.comm._block_reduction import reduce_into
from distarray.comm._collectives import Counts, split_parts
from distarray.comm._communicator import SMALL_BYTES, Communicator
from distarray.comm._requests import DONE, Pending, Request
from distarray.comm.simulated._rendezvous import (
    Group,
    MailHandle,
    PeerFailedError,
    Program,
    RoundHandle,
)
from distarray.errors import ArgumentError, ArgumentTypeError, CommunicationError, MismatchError

T = TypeVar("T")


class SimulatedCommunicator(Communicator):
    """A communicator among the threads of one ``simulate``."""

    def __init__(
        self, program: Program, key: tuple[Any, ...], group: Group, rank: int, name: str
    ) -> None:
        super().__init__(rank, group.ranks, name)
        self._program = program
        self._key = key
        self._group = group
        self._background: SimulatedCommunicator | None = None

    # --- rounds ----------------------------------------------------------------------------------

    def _round(
        self, doing: str, bringing: Any, take: Callable[[list[Any]], None], agree: object = None
    ) -> None:
        self._enter(doing, bringing, take, agree).wait()

    def _enter(
        self, doing: str, bringing: Any, take: Callable[[list[Any]], None], agree: object = None
    ) -> RoundHandle:
        entered = self._group.join(self.rank, doing, bringing, agree or doing)
        return RoundHandle(self._group, self.rank, entered, take)

    def _barrier(self) -> None:
        self._round("barrier", None, lambda _: None)

    def _all_gather(self, send: np.ndarray, recv: np.ndarray, counts: Counts) -> None:
        self._start_all_gather(send, recv, counts).wait()

    def _start_all_gather(self, send: np.ndarray, recv: np.ndarray, counts: Counts) -> RoundHandle:
        def take(brought: list[Any]) -> None:
            for part, values in zip(split_parts(recv, counts), brought, strict=True):
                _backend.assign(part, values)

        doing = f"all_gather of {send.dtype} counts {tuple(counts)}"
        return self._enter(doing, send.copy(), take)

    def _all_reduce(self, send: np.ndarray, recv: np.ndarray, op: str) -> None:
        def take(brought: list[Any]) -> None:
            reduce_into(recv, brought, op)

        doing = f"all_reduce {op} of {send.size} {send.dtype}"
        self._round(doing, send.copy(), take)

    def _all_to_all(
        self, send: np.ndarray, recv: np.ndarray, send_counts: Counts, recv_counts: Counts
    ) -> None:
        def take(brought: list[Any]) -> None:
            targets = split_parts(recv, recv_counts)
            for source, values in enumerate(brought):
                if values[self.rank].size != targets[source].size:
                    raise MismatchError(
                        f"in all_to_all rank {self.ranks[source]} sends {values[self.rank].size} "
                        f"elements to rank {self.ranks[self.rank]}, which expects "
                        f"{targets[source].size}"
                    )
                _backend.assign(targets[source], values[self.rank])

        self._round(f"all_to_all of {send.dtype}", split_parts(send.copy(), send_counts), take)

    def _broadcast(self, array: np.ndarray, root: int) -> None:
        def take(brought: list[Any]) -> None:
            if self.rank != root:
                _backend.assign(array, brought[root])

        doing = f"broadcast of {array.size} {array.dtype} from rank {root}"
        self._round(doing, array.copy() if self.rank == root else None, take)

    def _scatter(
        self, send: np.ndarray | None, recv: np.ndarray, counts: Counts, root: int
    ) -> None:
        def take(brought: list[Any]) -> None:
            _backend.assign(recv, brought[root][self.rank])

        doing = f"scatter of {recv.dtype} counts {tuple(counts)} from rank {root}"
        bringing = None if send is None else split_parts(send.copy(), counts)
        self._round(doing, bringing, take)

    def _gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Counts, root: int) -> None:
        def take(brought: list[Any]) -> None:
            if recv is not None:
                for part, values in zip(split_parts(recv, counts), brought, strict=True):
                    _backend.assign(part, values)

        doing = f"gather of {send.dtype} counts {tuple(counts)} to rank {root}"
        self._round(doing, send.copy(), take)

    def _send(self, array: np.ndarray, dest: int, tag: int, blocking: bool) -> Request:
        del blocking  # a message that is put down has left
        message = array.copy()
        _backend.synchronize(message)  # the receiver has a stream of its own
        self._group.post((self.rank, dest, tag), message)
        return DONE

    def _recv(self, array: np.ndarray, source: int, tag: int, blocking: bool) -> Request:
        handle = MailHandle(self._group, (source, self.rank, tag), array)
        if not blocking:
            return Pending(handle)
        handle.wait()
        return DONE

    def _all_gather_bytes(self, mine: bytes) -> list[bytes]:
        brought: list[bytes] = []
        self._round("all_gather_object", mine, brought.extend)
        return brought

    # --- shared memory ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def views(
        self,
        block: np.ndarray,
        token: int,
        what: object = "",
        *,
        closing: bool = True,
        agreed: bool = False,
    ) -> Iterator[list[np.ndarray | None]]:
        """Yield the ranks' blocks themselves; those in host memory read-only."""
        del agreed  # to compare once more costs nothing
        shown = block.view()
        if _backend.is_numpy(shown):
            shown.flags.writeable = False
        else:
            _backend.synchronize(shown)
        blocks: list[Any] = []
        doing = f"{what or 'views'} (token {token})"
        self._round(doing, shown, blocks.extend, agree=("views", token, block.dtype))
        reached = self.reached()
        blocks = [one if near else None for one, near in zip(blocks, reached, strict=True)]
        blocks[self.rank] = block
        try:
            yield blocks
        finally:
            _backend.synchronize(block)  # what was read of the others
            if closing and self._program.failure is None:
                self._round("the end of views", None, lambda _: None)

    def exchange_small(
        self, payload: bytes | memoryview, token: int, what: object = "", most: int | None = None
    ) -> list[bytes] | None:
        """Return every rank's bytes, where all ranks are on one simulated node."""
        assert most is None or len(payload) <= most  # slots have no room for more
        if (len(payload) if most is None else most) > SMALL_BYTES or not self.reaches_all():
            return None
        brought: list[bytes] = []
        doing = f"{what or 'exchange'} (token {token})"
        self._round(doing, bytes(payload), brought.extend, agree=("exchange", token))
        return brought

    def reaches_all(self, device: str = "cpu") -> bool:
        """Tell whether all ranks are on one simulated node."""
        del device
        per_node = self._program.ranks_per_node
        return per_node is None or len({rank // per_node for rank in self.ranks}) == 1

    def reached(self, device: str = "cpu") -> list[bool]:
        """Tell which ranks are on this one's simulated node."""
        del device
        per_node = self._program.ranks_per_node or self._program.size
        node = self.ranks[self.rank] // per_node
        return [rank // per_node == node for rank in self.ranks]

    @property
    def ranks_per_node(self) -> int | None:
        """How many consecutive ranks share a simulated node."""
        return None if self.reaches_all() else self._program.ranks_per_node

    def reaches_some(self, device: str = "cpu") -> bool:
        """Tell whether any two ranks are on one simulated node."""
        del device
        per_node = self._program.ranks_per_node
        if per_node is None:
            return self.size > 1
        return len({rank // per_node for rank in self.ranks}) < self.size

    @property
    def is_over(self) -> bool:
        """Whether the function has returned on all ranks."""
        return len(self._program.finished) == self._program.size

    # --- other communicators ---------------------------------------------------------------------

    def _subgroup(self, ranks: tuple[int, ...], name: str) -> SimulatedCommunicator:
        return self._derive((*self._key, "of", ranks), ranks, name)

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

    def export(self) -> NoReturn:
        """Raise CommunicationError: there is no MPI behind simulated ranks."""
        raise CommunicationError(
            "simulated ranks have no mpi4py communicator; use mesh.communicator(...), or run the "
            "program under mpiexec"
        )

    def free(self) -> None:
        """Do nothing: the program holds what its ranks share."""


class _Thread(threading.local):
    """What a thread is; of an attribute that is not there Python takes long to find out."""

    communicator: SimulatedCommunicator | None = None


_thread = _Thread()


def simulated_world() -> SimulatedCommunicator | None:
    """Return the communicator of all ranks of the ``simulate`` that this thread is in."""
    return _thread.communicator


_log.ranks.append(simulated_world)


def simulate(
    n: int,
    function: Callable[..., T],
    *args: Any,
    timeout: float = 60.0,
    ranks_per_node: int | None = None,
) -> list[T]:
    """Run ``function(*args)`` on ``n`` simulated ranks, and return what each returned.

    The ranks are threads of this process; inside the function the library behaves as under
    ``mpiexec -n``. On Python 3.11 threads that read torch's generator at the same time, as
    ``torch.utils.checkpoint`` does, can deadlock inside of torch.

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
    if not callable(function):
        raise ArgumentTypeError(
            f"simulate(n={n!r}, function={function!r}): pass the number of ranks, then a function"
        )
    if n < 1:
        raise ArgumentError(f"simulate needs at least one rank, not n={n}")
    program = Program(n, ranks_per_node)
    ranks = tuple(range(n))
    group = program.group((), ranks)
    results: list[Any] = [None] * n

    def run(rank: int) -> None:
        _thread.communicator = SimulatedCommunicator(program, (), group, rank, "world")
        try:
            results[rank] = function(*args)
        except PeerFailedError:
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
