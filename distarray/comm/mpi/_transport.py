"""The transport over mpi4py, which is imported on first use.

Nothing is ever sent through a communicator of the user's: every group of ranks gets one of its
own, made from the group alone (MPI-3's ``MPI_Comm_create_group``), so that ranks outside it need
not take part, and made when it is first used.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from distarray.comm import _agreement, _backend, _log, _requests
from distarray.comm._collectives import (
    OWN_TAG,
    Counts,
    PairwiseCollectives,
    Ranges,
    split_parts,
)
from distarray.comm._communicator import SMALL_BYTES, Communicator, Fill
from distarray.comm._launcher import note_start
from distarray.comm._reductions import divide, plain_ufunc
from distarray.comm._requests import DONE, Pending, Request
from distarray.comm.failures import _abort
from distarray.comm.failures._waits import Meeting, waiting
from distarray.comm.mpi import _envelopes, _large_counts
from distarray.comm.mpi._datatypes import carrier, moving_type, reducing_type
from distarray.comm.mpi._groups import Base, Group, all_gather_bytes
from distarray.comm.mpi._start import import_mpi
from distarray.comm.shared_memory._slots import INLINE_BYTES
from distarray.errors import ArgumentTypeError, MeshError
from distarray.typing import Buffer

if TYPE_CHECKING:
    from functools import cached_property

    from mpi4py import MPI
else:

    class cached_property:  # noqa: N801 - the name that it stands for
        """That of `functools`, without its lock, which all objects of a class share in Python 3.11.

        What a communicator finds out takes all of its ranks, and threads with one each may come to
        that in any order.
        """

        def __init__(self, find: Any) -> None:
            self._find = find

        def __get__(self, owner: Any, _: Any = None) -> Any:
            found = owner.__dict__[self._find.__name__] = self._find(owner)
            return found


_REDUCED_BYTES: Final = 4 << 20
"""MPI's all-reduces are given so many bytes at a time.

Measured on two and four ranks of Zen 5, of 8 to 128 MiB over MPICH 5 and Open MPI 5: 32 MiB at once
take 2.2 to 2.8 times as long, as the libraries allocate as much in each call, and find it in no
cache."""

_REDUCED_BY_EACH: Final = 256 << 10
"""And so many for each of the ranks, each of which reduces its part of them; not measured."""

_FITS, _TOO_LARGE = b"\0", b"\1"
_small: dict[tuple[str, np.dtype[Any], int], tuple[int, np.ufunc | None, str]] = {}
"""Of (op, dtype, size): the token of its exchange, the function where NumPy's dtype serves, and
what messages say."""


_token = lru_cache(maxsize=4096)(_agreement.token)
_TOKENS = 2**62 - 1
"""The bits of a token."""


class _Exchange(Protocol):
    """The ``exchange`` of a channel that reaches all ranks, or of envelopes."""

    def __call__(self, payload: bytes | memoryview, token: int, what: object) -> list[Any]: ...


class _Call:
    """A call of MPI, told only where ranks wait for long."""

    def __init__(self, name: str, buffer: Buffer, peer: int | None = None) -> None:
        self.name = name
        self.buffer = buffer
        self.peer = peer

    def __str__(self) -> str:
        peer = "" if self.peer is None else f" with rank {self.peer}"
        return f"{self.name} of {self.buffer.size} {self.buffer.dtype}{peer}"


class _Handle:
    """Messages under way, complete when all requests are: the token of a request."""

    def __init__(self, requests: list[MPI.Request], what: _Call, meeting: Meeting | None) -> None:
        self._requests = requests
        self._what = what
        self._meeting = meeting

    def wait(self) -> None:
        """Return when it is complete."""
        from mpi4py import MPI

        peer = self._what.peer
        late = None if peer is None else lambda: (peer,)
        with waiting(self._what, self._meeting, late):
            MPI.Request.Waitall(self._requests)

    def test(self) -> bool:
        """Tell whether it is complete."""
        from mpi4py import MPI

        return MPI.Request.Testall(self._requests)


class MPICommunicator(Communicator):
    """A communicator over MPI."""

    def __init__(self, group: Group, name: str) -> None:
        super().__init__(group.rank, group.ranks, name)
        self._group = group
        self.verdicts = group.verdicts

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """The number of each in the MPI world; here, where that lacks some."""
        return self._group.world_ranks

    def leave_comm(self) -> None:
        """Make further groups without the communicator that this one was made from."""
        self._group.base.leave_comm()

    # --- calls of MPI ----------------------------------------------------------------------------

    def _call(self, name: str, buffer: Buffer, *arguments: Any) -> None:
        """Make a collective call of MPI; the buffer says in messages what it moves."""
        with waiting(_Call(name, buffer), self._group.next_call()):
            getattr(self._group.mpi, name)(*arguments)

    def _request(
        self, requests: list[MPI.Request], what: _Call, blocking: bool, buffers: Any = ()
    ) -> Request:
        """Return the request of messages under way, or wait for them."""
        handle = _Handle(requests, what, self._group.next_call() if what.peer is None else None)
        if blocking:
            handle.wait()
            return DONE
        return Pending(handle, (what.buffer, buffers))

    # --- collectives -----------------------------------------------------------------------------

    def _barrier(self) -> None:
        channel = self._group.connect()
        if channel is not None and channel.is_complete:
            channel.barrier()
        else:
            self._compare(_token("barrier"), "waiting at a barrier")

    def _compare(self, token: int, what: object, fill: Fill | None = None) -> None:
        """Check that all ranks do the same, apart from shared memory; see ``Group.compare``."""
        started = perf_counter()
        self._group.compare(token, what, fill)
        if not self._group.sends_envelopes:
            nbytes = 32 * (self.size - 1) // self.size  # of an all-reduce of two numbers
            _log.record_agreement(self.name, nbytes, perf_counter() - started)

    def _all_gather(self, send: np.ndarray, recv: np.ndarray, counts: Counts) -> None:
        if recv.nbytes <= SMALL_BYTES:
            # Hashes of tuples of integers are the same in every process, and need not be kept.
            token = _token("all_gather", recv.dtype) ^ (hash(counts) & _TOKENS)
            if self._gather_small(send, recv, counts, token, "all_gather"):
                return
        if _large_counts.end_exceeds(recv.size):
            _LargeCollectives(self).all_gather(send, recv, counts)
            return
        kind = moving_type(recv.itemsize)
        source, target = carrier(send), carrier(recv)
        if counts.count(counts[0]) == self.size:
            both = [source, counts[0], kind], [target, counts[0], kind]
            self._call("Allgather", recv, *both)
        else:
            bothv = [source, send.size, kind], [target, counts, None, kind]
            self._call("Allgatherv", recv, *bothv)

    def _start_all_gather(self, send: np.ndarray, recv: np.ndarray, counts: Counts) -> Request:
        if _large_counts.end_exceeds(recv.size):
            self._all_gather(send, recv, counts)
            return DONE
        kind = moving_type(recv.itemsize)
        both = [carrier(send), send.size, kind], [carrier(recv), counts, None, kind]
        request = self._group.mpi.Iallgatherv(*both)
        return self._request([request], _Call("Allgatherv", recv), False, both)

    def _gather_small(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, token: int, what: object
    ) -> bool:
        """Gather short blocks by one exchange; False where that is not the way."""
        exchange = self._exchange
        if exchange is None or max(counts) * recv.itemsize > self._inline:
            return False
        target, at = memoryview(recv.view(np.uint8)), 0  # type: ignore[arg-type]
        for item in exchange(memoryview(send.view(np.uint8)), token, what):  # type: ignore[arg-type]
            target[at : at + len(item)] = item
            at += len(item)
        return True

    def _all_gather_agreed(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, token: int, what: object
    ) -> None:
        if max(counts) * recv.itemsize > SMALL_BYTES and self.sends_parts:
            into = split_parts(recv, counts)
            self._group.all_to_all([send] * self.size, into, token, what, None)
        elif not self._gather_small(send, recv, counts, token, what):
            super()._all_gather_agreed(send, recv, counts, token, what)

    def _all_to_all_agreed(
        self,
        send: np.ndarray,
        recv: np.ndarray,
        send_counts: Counts,
        recv_counts: Counts,
        token: int,
        what: object,
        fill: Fill | None,
    ) -> None:
        if self.reaches_all():
            super()._all_to_all_agreed(send, recv, send_counts, recv_counts, token, what, fill)
        elif self._group.sends_envelopes:
            parts, into = split_parts(send, send_counts), split_parts(recv, recv_counts)
            self._group.all_to_all(parts, into, token, what, fill)
        else:
            self._compare(token, what, fill)
            self._all_to_all(send, recv, send_counts, recv_counts)

    @cached_property
    def sends_parts(self) -> bool:
        """Whether ``all_to_all_parts`` can be called: between nodes, among few ranks."""
        return not self.reaches_all() and self._group.sends_envelopes

    def all_to_all_parts(
        self,
        parts: Sequence[np.ndarray],
        into: Sequence[np.ndarray],
        token: int,
        what: object = "",
        fill: Fill | None = None,
    ) -> None:
        """Send each rank its part; see the base class."""
        self._group.all_to_all(parts, into, token, what, fill)

    def all_reduce_small(
        self, array: Buffer, op: str, token: int | None = None, what: object = ""
    ) -> np.ndarray | None:
        if not isinstance(array, np.ndarray):
            return None
        exchange = self._exchange
        if exchange is None:
            return None
        dtype = array.dtype
        key = (op, dtype, array.size)
        known = _small.get(key)
        if known is None:
            what_usual = f"all_reduce, {op}, of {array.size} {dtype}"
            known = _small[key] = (_token("all_reduce", *key), plain_ufunc(op, dtype), what_usual)
        usual, function, what_usual = known
        if function is None:
            return None
        if token is None:
            token, what = usual, what_usual
        payload = array.tobytes() if array.nbytes <= SMALL_BYTES else _as_bytes(array)
        first, second, *others = exchange(payload, token, what)
        shape = array.shape
        # As NumPy does, the functions may warn: all ranks compute the same, and warn alike.
        value = function(np.ndarray(shape, dtype, first), np.ndarray(shape, dtype, second))
        for item in others:
            value = function(value, np.ndarray(shape, dtype, item))
        reduced = np.asarray(value)
        return divide(reduced, self.size) if op == "avg" else reduced

    @cached_property
    def _exchange(self) -> _Exchange | None:
        """Return what exchanges short payloads: slots, or envelopes among few ranks."""
        channel = self._group.connect()
        if channel is not None and channel.is_complete:
            return channel.exchange
        return self._group.exchange if self._group.sends_envelopes else None

    @cached_property
    def _inline(self) -> int:
        """Return how many bytes it takes."""
        return INLINE_BYTES if self.reaches_all() else self.short_bytes

    def _all_reduce(self, send: np.ndarray, recv: np.ndarray, op: str) -> None:
        from mpi4py import MPI

        most = max(_REDUCED_BYTES, _REDUCED_BY_EACH * self.size) // recv.itemsize
        most = min(most, _large_counts.LIMIT)
        kind, how = reducing_type(recv.dtype, op)
        for start in range(0, max(recv.size, 1), most):
            target, source = recv[start : start + most], send[start : start + most]
            message = MPI.IN_PLACE if send is recv else [carrier(source), source.size, kind]
            self._call("Allreduce", recv, message, [carrier(target), target.size, kind], how)

    def _all_to_all(
        self, send: np.ndarray, recv: np.ndarray, send_counts: Counts, recv_counts: Counts
    ) -> None:
        if _large_counts.any_end_exceeds(self._group.mpi, max(send.size, recv.size)):
            _LargeCollectives(self).all_to_all(send, recv, send_counts, recv_counts)
            return
        kind = moving_type(recv.itemsize)
        source = [carrier(send), send_counts, None, kind]
        target = [carrier(recv), recv_counts, None, kind]
        self._call("Alltoallv", recv, source, target)

    def _broadcast(self, array: np.ndarray, root: int) -> None:
        for piece in _large_counts.pieces(array):
            self._call("Bcast", array, piece, root)

    def _scatter(
        self, send: np.ndarray | None, recv: np.ndarray, counts: Counts, root: int
    ) -> None:
        if _large_counts.end_exceeds(sum(counts)):
            _LargeCollectives(self).scatter(send, recv, counts, root)
            return
        kind = moving_type(recv.itemsize)
        source = None if send is None else [carrier(send), counts, None, kind]
        target = [carrier(recv), recv.size, kind]
        self._call("Scatterv", recv, source, target, root)

    def _gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Counts, root: int) -> None:
        if _large_counts.end_exceeds(sum(counts)):
            _LargeCollectives(self).gather(send, recv, counts, root)
            return
        kind = moving_type(send.itemsize)
        source = [carrier(send), send.size, kind]
        target = None if recv is None else [carrier(recv), counts, None, kind]
        self._call("Gatherv", send, source, target, root)

    # --- point to point --------------------------------------------------------------------------

    def _send(self, array: np.ndarray, dest: int, tag: int, blocking: bool) -> Request:
        requests = _large_counts.send(self._group.mpi, array, dest, tag)
        return self._request(requests, _Call("send", array, self.world_ranks[dest]), blocking)

    def _recv(self, array: np.ndarray, source: int, tag: int, blocking: bool) -> Request:
        requests = _large_counts.recv(self._group.mpi, array, source, tag)
        return self._request(requests, _Call("recv", array, self.world_ranks[source]), blocking)

    # --- objects ---------------------------------------------------------------------------------

    def _all_gather_bytes(self, mine: bytes) -> list[bytes]:
        token, what = _token("all_gather_object"), "all_gather_object"
        exchange = self._exchange
        if exchange is not None:
            fits = len(mine) < SMALL_BYTES
            sent = _FITS + mine if fits else _TOO_LARGE
            told = exchange(sent, token, what)
            if fits and told.count(sent) == self.size:
                return [mine] * self.size
            if [item[0] for item in told].count(_FITS[0]) == self.size:
                return [bytes(item[1:]) for item in told]
        else:
            self._compare(token, what)
        return all_gather_bytes(self._group.mpi, mine)

    # --- shared memory ---------------------------------------------------------------------------

    def views(
        self,
        block: np.ndarray,
        token: int,
        what: object = "",
        *,
        closing: bool = True,
        agreed: bool = False,
    ) -> contextlib.AbstractContextManager[list[np.ndarray | None]]:
        """Return a context that yields the blocks of the ranks on this node."""
        channel = self._group.connect()
        complete = channel is not None and channel.is_complete
        if not _backend.is_numpy(block):
            self._group.reach_on_device()
        if not complete and not agreed and self.size > 1:
            self._compare(token, what)
        if channel is None:
            blocks: list[np.ndarray | None] = [None] * self.size
            blocks[self.rank] = block
            return contextlib.nullcontext(blocks)
        return channel.views(block, token, what, closing=closing)

    def exchange_small(
        self, payload: bytes | memoryview, token: int, what: object = "", most: int | None = None
    ) -> list[memoryview] | None:
        """Return every rank's bytes, where they fit into slots or envelopes."""
        exchange = self._exchange
        if exchange is None or (len(payload) if most is None else most) > self._inline:
            return None
        return exchange(payload, token, what)

    @cached_property
    def short_bytes(self) -> int:
        """More in envelopes, of which each rank fills as many as there are others; see the base."""
        if self.reaches_all() or not self._group.sends_envelopes:
            return SMALL_BYTES
        return max(_envelopes.MOST_BYTES // (self.size - 1), SMALL_BYTES)

    @cached_property
    def sends_whole(self) -> int:
        """Up to how many bytes blocks go whole, in slots or envelopes; see the base class."""
        if self.reaches_all():
            return INLINE_BYTES
        if not self._group.sends_envelopes:
            return -1
        return max(_envelopes.WHOLE_BYTES // (self.size - 1), SMALL_BYTES)

    def reaches_all(self, device: str = "cpu") -> bool:
        """Tell whether every rank is on this node, with memory that this one can map."""
        if device != "cpu":
            return self._group.reach_on_device()[0]
        if self.size == 1:
            return True
        channel = self._group.connect()
        return channel is not None and channel.is_complete

    def reached(self, device: str = "cpu") -> list[bool]:
        """Tell which ranks' blocks ``views`` yields."""
        channel = self._group.connect()
        if device != "cpu":
            self._group.reach_on_device()
        near = (self.rank,) if channel is None else channel.reached(device)
        return [rank in near for rank in range(self.size)]

    def reaches_some(self, device: str = "cpu") -> bool:
        """Tell whether any two ranks share a node's memory."""
        if device != "cpu":
            return self._group.reach_on_device()[1]
        return self._group.connect() is not None

    @property
    def ranks_per_node(self) -> int | None:
        """How many consecutive ranks share a node; see the base class."""
        self._group.connect()
        return self._group.ranks_per_node

    @property
    def concurrent(self) -> bool:
        """Whether MPI was started with ``MPI_THREAD_MULTIPLE``, as it is unless the user did it."""
        mpi = import_mpi()
        return bool(mpi.Query_thread() >= mpi.THREAD_MULTIPLE)

    # --- other communicators ---------------------------------------------------------------------

    def _subgroup(self, ranks: tuple[int, ...], name: str) -> MPICommunicator:
        return MPICommunicator(self._group.base.group(ranks), name)

    def duplicate(self) -> MPICommunicator:
        """Return a communicator of the same ranks whose messages never meet this one's."""
        return MPICommunicator(self._group.duplicate(), self.name)

    def background(self) -> MPICommunicator:
        """Return the duplicate that work in the background uses; the first call is collective."""
        group = self._group
        if group.background is None:
            # What makes it has no way to find out that another rank does something else.
            self.agree(_token("background"), "the first work in the background")
            group.background = group.duplicate()
        return MPICommunicator(group.background, self.name)

    @property
    def mpi(self) -> MPI.Intracomm:
        """The private mpi4py communicator."""
        return self._group.mpi

    def export(self) -> MPI.Intracomm:
        """Return the mpi4py communicator that the user may use."""
        return self._group.export()

    def free(self) -> None:
        """Free what MPI holds for these ranks."""
        self._group.free()


def _as_bytes(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


class _LargeCollectives(PairwiseCollectives):
    """Collectives of more elements than the library's v-collectives count."""

    def __init__(self, communicator: MPICommunicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._communicator = communicator

    def _move(self, send: np.ndarray, sends: Ranges, recv: np.ndarray, receives: Ranges) -> None:
        mpi = self._communicator.mpi
        requests = []
        for peer, (start, stop) in receives.items():
            requests += _large_counts.recv(mpi, recv[start:stop], peer, OWN_TAG)
        for peer, (start, stop) in sends.items():
            requests += _large_counts.send(mpi, send[start:stop], peer, OWN_TAG)
        self._communicator._request(requests, _Call("pairwise exchange", recv), True)


_world: MPICommunicator | None = None
_lock = threading.Lock()
_keyval: int | None = None


def world() -> MPICommunicator:
    """Return the communicator of all MPI ranks; the first call starts MPI.

    From then on an uncaught exception on one of several ranks ends all of them.
    """
    global _world
    if _world is None:
        mpi = import_mpi()
        with _lock:
            if _world is None:
                base = Base(mpi.COMM_WORLD)
                if len(base.ranks) > 1:
                    note_start()
                    _abort.install()
                    _abort.install_at_exit()
                    _abort.watch()
                else:
                    _abort.warn_if_alone()
                _world = MPICommunicator(base.group(base.ranks), "world")
                if _world.concurrent:
                    # To ask COMM_SELF would move nothing: MPICH looks at this process alone then.
                    _requests.progress = mpi.COMM_WORLD.Iprobe
    return _world


def based_on(comm: Any) -> MPICommunicator:
    """Return the communicator of all ranks of an mpi4py communicator, the same every time."""
    global _keyval
    mpi = import_mpi()
    if not isinstance(comm, mpi.Comm):
        raise ArgumentTypeError(
            f"comm={comm!r} is not a communicator; pass an mpi4py communicator, or None for all "
            "ranks"
        )
    if comm == mpi.COMM_NULL:
        raise MeshError(
            "comm is MPI.COMM_NULL: this process is not in that communicator; make the mesh only "
            "on the processes that are, or over a communicator that has all of them"
        )
    if comm.Is_inter():
        raise MeshError(
            "comm is an inter-communicator, which has two groups of ranks; merge it "
            "(comm.Merge()) or pass an intra-communicator"
        )
    if comm == mpi.COMM_WORLD:
        return world()
    world()
    with _lock:
        if _keyval is None:
            # when the program frees it
            _keyval = mpi.Comm.Create_keyval(delete_fn=lambda _, __, found: found.leave_comm())
        found: MPICommunicator | None = comm.Get_attr(_keyval)
        if found is None:
            base = Base(comm)
            found = MPICommunicator(base.group(base.ranks), "world")
            comm.Set_attr(_keyval, found)
        return found
