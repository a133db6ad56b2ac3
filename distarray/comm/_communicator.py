"""Communicators: checks, logging, and the calls that every transport answers alike.

A transport, a class derived in the rooms `mpi` and `simulated`, moves the values. Buffers are
C-contiguous, of any shape, taken as flat; counts are in elements and may exceed 2**31. Send and
receive buffers do not overlap (but for ``all_reduce``). Every call but the point-to-point ones is
collective over the communicator. In one call all ranks have buffers in host memory, or all have
them on GPUs; the latter `device_messages` moves.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from distarray.comm import _backend, _log, _memory
from distarray.comm._block_reduction import reduce_into
from distarray.comm._collectives import (
    Counts,
    check_buffer,
    check_counts,
    check_pair,
    check_rank,
    check_size,
    check_tag,
    from_host,
    host_target,
    on_host,
)
from distarray.comm._reductions import prepare_reduction, reduced_dtype
from distarray.comm._requests import DONE, Pending, Request
from distarray.errors import ArgumentError, DTypeError
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.comm.device_messages._collectives import DeviceCollectives

SMALL_BYTES: Final = 4096
"""Up to this size a reduction may take a quicker way, where the transport has one.

Measured on two ranks: 2.7 us instead of 4.6 at this size, 5.2 instead of 6.7 at 32 KiB. Every rank
reduces what all send, so that it stays far below that for many ranks.
"""

ON_HOST_BYTES: Final = 64 << 10
"""Up to this size collectives of buffers on GPUs take the way of host memory; not measured."""

_NOTHING = np.empty(0, np.uint8)
Views = AbstractContextManager[list[Buffer]]
Fill = Callable[[], object]


class Communicator(ABC):
    """Ranks that move values among themselves.

    Attributes
    ----------
    rank, size
        This process's rank, and how many there are.
    ranks
        For each of them, its rank in the communicator of the program: the numbers that meshes
        are made of.
    world_ranks
        The same in the MPI world, where the program's communicator has part of it: the numbers
        that messages name.
    name
        The mesh axis that it serves, or "mesh" or "world": what ``CommLog`` calls it.
    meshes
        The device meshes that have been made over it.
    verdicts
        What `_awareness` has found out, once it has.
    """

    def __init__(self, rank: int, ranks: tuple[int, ...], name: str) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self.name = name
        self.meshes: dict[Any, Any] = {}
        self.verdicts: list[Any] = []

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """The number of each in the MPI world: what launchers, and all messages, call it."""
        return self.ranks

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: rank {self.rank} of {self.size}>"

    @cached_property
    def _device(self) -> DeviceCollectives:
        """The collectives of buffers on GPUs."""
        from distarray.comm.device_messages._collectives import DeviceCollectives

        return DeviceCollectives(self)

    # --- collectives -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        if self.size > 1:
            started = perf_counter()
            self._barrier()
            self.record("barrier", 0, started)

    def all_gather(
        self,
        send: Buffer,
        recv: Buffer,
        counts: Counts | None = None,
        *,
        token: int | None = None,
        what: object = "",
    ) -> None:
        """Put every rank's ``send`` into every rank's ``recv``, in rank order.

        ``counts`` are what each rank sends, the same on every rank; by default all as much. A
        ``token``, and ``what``, say what this rank believes it is doing, as in ``views``: the ranks
        compare it with what travels.
        """
        counts = self._check_all_gather(send, recv, counts)
        if self.size == 1:
            _copy(send, recv)
            return
        on_device = _moves_on_device(recv, recv.nbytes)
        nbytes = recv.nbytes - send.nbytes
        if token is not None:
            if _backend.is_numpy(recv):
                started = perf_counter()
                self._all_gather_agreed(send.reshape(-1), recv.reshape(-1), counts, token, what)
                self.record("all_gather", nbytes, started)
                return
            self.agree(token, what)
        self._move("all_gather", nbytes, on_device, send, recv, counts)

    def start_all_gather(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts | None = None
    ) -> Request:
        """Start an ``all_gather`` in host memory, and return at once.

        The arrays belong to the request until ``wait()`` returns, or ``test()`` says that it is
        complete.
        """
        counts = self._check_all_gather(send, recv, counts)
        if self.size == 1:
            _copy(send, recv)
            return DONE
        started = perf_counter()
        request = self._start_all_gather(send.reshape(-1), recv.reshape(-1), counts)
        nbytes = recv.nbytes - send.nbytes
        entry = _log.record("all_gather", self.name, nbytes, perf_counter() - started)
        return Pending(request, (), entry)

    def _check_all_gather(self, send: Buffer, recv: Buffer, counts: Counts | None) -> Counts:
        check_pair(send, recv, "all_gather")
        counts = check_counts(counts, self.size, recv.size, "receive", "all_gather")
        check_size(send, counts[self.rank], "send", "all_gather")
        return counts

    def all_to_all(
        self,
        send: Buffer,
        recv: Buffer,
        send_counts: Counts | None = None,
        recv_counts: Counts | None = None,
        *,
        token: int | None = None,
        what: object = "",
        fill: Fill | None = None,
    ) -> None:
        """Send part ``i`` of ``send`` to rank ``i``, and put what rank ``i`` sends into part ``i``.

        ``send_counts`` and ``recv_counts`` are what goes to and comes from each rank; by default
        all as much. With a ``token``, as in ``all_gather``, ``fill()`` may set the values of
        ``send`` while the ranks compare it.
        """
        check_pair(send, recv, "all_to_all")
        sends = check_counts(send_counts, self.size, send.size, "send", "all_to_all")
        receives = check_counts(recv_counts, self.size, recv.size, "receive", "all_to_all")
        if sends[self.rank] != receives[self.rank]:
            raise ArgumentError(
                f"all_to_all would send {sends[self.rank]} elements from rank {self.rank} to "
                f"itself and receive {receives[self.rank]}; make the two counts equal"
            )
        on_device = not _backend.is_numpy(recv)
        nbytes = recv.nbytes - receives[self.rank] * recv.itemsize
        if token is not None and self.size > 1 and not on_device:
            started, ends = perf_counter(), (send.reshape(-1), recv.reshape(-1))
            self._all_to_all_agreed(*ends, sends, receives, token, what, fill)
            self.record("all_to_all", nbytes, started)
            return
        if fill is not None:
            fill()
        if self.size == 1:
            _copy(send, recv)
            return
        if token is not None:
            self.agree(token, what)
        self._move("all_to_all", nbytes, on_device, send, recv, sends, receives)

    @property
    def sends_parts(self) -> bool:
        """Whether ``all_to_all_parts`` can be called; the same on all ranks."""
        return False

    def all_to_all_parts(
        self,
        parts: Sequence[np.ndarray],
        into: Sequence[np.ndarray],
        token: int,
        what: object = "",
        fill: Fill | None = None,
    ) -> None:
        """Send ``parts[i]`` to rank ``i``, and put what it sends into ``into[i]``.

        An ``all_to_all`` of arrays in host memory, of any strides, which is not recorded.
        """
        del parts, into, token, what, fill
        raise ArgumentError(f"{self!r} sends no parts as they lie; call all_to_all")

    def broadcast(self, array: Buffer, root: int = 0) -> None:
        """Put the root's values into every rank's ``array``."""
        check_buffer(array, "", "broadcast")
        root = check_rank(root, self.size, "root")
        if self.size == 1:
            return
        started = perf_counter()
        if _moves_on_device(array, array.nbytes):
            self._device.broadcast(array, root)
        else:
            target = on_host(array) if self.rank == root else host_target(array)
            self._broadcast(target, root)
            from_host(target, array)
        self.record("broadcast", 0 if self.rank == root else array.nbytes, started)

    def scatter(
        self, send: Buffer | None, recv: Buffer, counts: Counts | None = None, root: int = 0
    ) -> None:
        """Put part ``rank`` of the root's ``send``, which is None elsewhere, into ``recv``.

        ``counts`` are what each rank receives, the same on every rank; by default all as much.
        """
        check_buffer(recv, "receive", "scatter")
        root = check_rank(root, self.size, "root")
        total = _total(counts, recv, self.size)
        parts = check_counts(counts, self.size, total, "receive", "scatter")
        check_size(recv, parts[self.rank], "receive", "scatter")
        if self.rank == root:
            if send is None:
                raise ArgumentError(f"scatter needs a send buffer on its root, rank {root}")
            check_pair(send, recv, "scatter")
            check_size(send, sum(parts), "send", "scatter")
            if self.size == 1:
                _copy(send, recv)
                return
        on_device = _moves_on_device(recv, total * recv.itemsize)
        nbytes = 0 if self.rank == root else recv.nbytes
        source = send if self.rank == root else None
        self._move("scatter", nbytes, on_device, source, recv, parts, root)

    def gather(
        self, send: Buffer, recv: Buffer | None, counts: Counts | None = None, root: int = 0
    ) -> None:
        """Put every rank's ``send``, in rank order, into the root's ``recv``; None elsewhere.

        ``counts`` are what each rank sends, the same on every rank; by default all as much.
        """
        check_buffer(send, "send", "gather")
        root = check_rank(root, self.size, "root")
        total = _total(counts, send, self.size)
        parts = check_counts(counts, self.size, total, "send", "gather")
        check_size(send, parts[self.rank], "send", "gather")
        on_device = _moves_on_device(send, total * send.itemsize)
        nbytes, target = 0, None
        if self.rank == root:
            if recv is None:
                raise ArgumentError(f"gather needs a receive buffer on its root, rank {root}")
            check_pair(send, recv, "gather")
            check_size(recv, sum(parts), "receive", "gather")
            if self.size == 1:
                _copy(send, recv)
                return
            nbytes, target = recv.nbytes - send.nbytes, recv
        self._move("gather", nbytes, on_device, send, target, parts, root)

    def record(self, collective: str, nbytes: int, started: float) -> None:
        """Add to the logs what began then, and has brought so many bytes of other ranks."""
        if _log.recording():
            _log.record(collective, self.name, nbytes, perf_counter() - started)

    def _move(
        self,
        name: str,
        nbytes: int,
        on_device: bool,
        send: Buffer | None,
        recv: Buffer | None,
        *how: Any,
    ) -> None:
        """Carry out a collective whose arguments are checked, and record it.

        It is the transport's method `_name`, or that of this name for buffers on GPUs.
        """
        started = perf_counter()
        if on_device:
            getattr(self._device, name)(send, recv, *how)
        else:
            source = None if send is None else on_host(send)
            target = None if recv is None else host_target(recv)
            getattr(self, f"_{name}")(source, target, *how)
            if target is not None and not _backend.is_numpy(recv):  # which the target looks at
                from_host(target, recv)
        self.record(name, nbytes, started)

    # --- reductions -------------------------------------------------------------------------------

    def all_reduce(self, array: Buffer, op: str = "sum", out: Buffer | None = None) -> Buffer:
        """Return the reduction of every rank's array, bitwise the same on every rank.

        The array has the same shape and dtype on every rank, ``op`` is one of sum avg min max prod,
        any all (bool), band bor bxor (bool and integers). The result goes to ``out``, possibly
        ``array`` itself, or to a new array; the average of integers is float64.
        """
        started = perf_counter()
        if self.size > 1 and array.nbytes <= self.short_bytes and _backend.is_numpy(array):
            value = self.all_reduce_small(array, op)
            if value is not None:
                if _log.recording():
                    self.record("all_reduce", self._bytes_reduced(array), started)
                if out is None:
                    return value
                _result_buffer(array, value.dtype, out)[...] = value
                return out
        check_buffer(array, "send", "all_reduce")
        into = _result_buffer(array, reduced_dtype(array.dtype, op), out)
        if self.size == 1:
            reduce_into(into.reshape(-1), [array.reshape(-1)], op)
            return into
        if _moves_on_device(array, array.nbytes):
            self._device.all_reduce(array, into, op)
            self.record("all_reduce", self._bytes_reduced(array), started)
            return into
        reduction = prepare_reduction(on_host(array), op, self.size)
        wire, finish = reduction.wire, reduction.finish
        if into is array or not _backend.may_share_memory(wire, array):
            target = wire  # reduced in place
        elif finish is None:
            target = host_target(into)
        else:
            target = np.empty(into.size, wire.dtype)
        self._all_reduce(wire, target, reduction.op)
        from_host(target if finish is None else finish(target), into)
        self.record("all_reduce", self._bytes_reduced(wire), started)
        return into

    def _bytes_reduced(self, array: Buffer) -> int:
        """Return the bytes that a reduction takes from others; see `_log`."""
        return 2 * (self.size - 1) * array.nbytes // self.size

    def all_reduce_small(
        self, array: Buffer, op: str, token: int | None = None, what: object = ""
    ) -> np.ndarray | None:
        """Reduce an array of `short_bytes` at most; None where that needs the way of all others.

        Whether it does depends on nothing in which ranks differ. ``token`` and ``what`` say what
        this rank believes it is doing, as in ``views``; by default this reduction.
        """
        del array, op, token, what
        return None

    # --- point to point --------------------------------------------------------------------------

    def send(self, array: Buffer, dest: int, tag: int = 0) -> None:
        """Send values to one rank."""
        check_buffer(array, "send", "send")
        dest = check_rank(dest, self.size, "dest")
        check_tag(tag)
        started = perf_counter()
        if _backend.is_numpy(array):
            self._send(array.reshape(-1), dest, tag, True)
        else:
            self._device.send(array, dest, tag)
        self.record("send", 0, started)

    def recv(self, array: Buffer, source: int, tag: int = 0) -> None:
        """Fill an array with the values that one rank sends; as many as it has elements."""
        check_buffer(array, "receive", "recv")
        source = check_rank(source, self.size, "source")
        check_tag(tag)
        started = perf_counter()
        if _backend.is_numpy(array):
            self._recv(array.reshape(-1), source, tag, True)
        else:
            self._device.recv(array, source, tag)
        self.record("recv", 0 if source == self.rank else array.nbytes, started)

    # --- objects ---------------------------------------------------------------------------------

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return every rank's object, pickled on the way; for small ones."""
        if self.size == 1:
            return [obj]
        return [pickle.loads(item) for item in self.all_gather_pickled(pickle.dumps(obj))]

    def all_gather_pickled(self, mine: bytes) -> list[bytes]:
        """Return what `all_gather_object` does, all of it still pickled."""
        started = perf_counter()
        everyone = self._all_gather_bytes(mine)
        self.record("all_gather_object", sum(map(len, everyone)) - len(mine), started)
        return everyone

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on every rank, pickled on the way; for small ones."""
        root = check_rank(root, self.size, "root")
        if self.size == 1:
            return obj
        started = perf_counter()
        is_root = self.rank == root
        data = np.frombuffer(pickle.dumps(obj) if is_root else b"", np.uint8)
        length = np.array([data.size], np.int64)
        self._broadcast(length, root)
        if not is_root:
            data = np.empty(int(length[0]), np.uint8)
        self._broadcast(data, root)
        self.record("broadcast_object", 0 if is_root else data.nbytes, started)
        return obj if is_root else pickle.loads(data.tobytes())

    # --- shared memory ---------------------------------------------------------------------------

    @abstractmethod
    def views(
        self,
        block: np.ndarray,
        token: int,
        what: object = "",
        *,
        closing: bool = True,
        agreed: bool = False,
    ) -> Views:
        """Return a context that yields every rank's block, readable in place.

        None stands for ranks whose memory this one cannot reach. The blocks may differ in shape and
        strides, not in dtype. They stay as they are inside the context, and leaving it lets their
        owners change them.

        ``token`` is a number below 2**62 for what this rank believes it is doing, which
        ``str(what)`` says in errors: where ranks believe different things it is a MismatchError on
        every rank. ``closing`` says whether leaving waits until all have read: not where another
        round of the same communicator follows at once, which then says so. Until that has been
        entered the block must neither change nor go away. ``agreed`` says that a collective of the
        same token has just been completed.
        """

    def agree(self, token: int, what: object = "") -> None:
        """Check that all ranks are about to do the same: a round of ``views`` without a block.

        Else it is a MismatchError on every rank.
        """
        with self.views(_NOTHING, token, what):
            pass

    def exchange_small(
        self, payload: bytes | memoryview, token: int, what: object = "", most: int | None = None
    ) -> Sequence[bytes | memoryview] | None:
        """Return every rank's bytes; None where that needs another way.

        Whether it does depends on nothing in which ranks differ. No rank has more bytes than
        ``most``, which all pass alike; without it all have as many. What is returned is valid until
        the next call; there are at least two ranks. ``token`` and ``what`` are as in ``views``.
        """
        del payload, token, what, most
        return None

    @property
    def short_bytes(self) -> int:
        """Up to how many bytes of each rank all get what all have, and reduce it themselves.

        That is by ``exchange_small`` and ``all_reduce_small``, where the transport has them. The
        same on all ranks. The first use is collective.
        """
        return SMALL_BYTES

    @property
    def sends_whole(self) -> int:
        """Up to how many bytes a rank's blocks may go whole, by ``exchange_small``; -1 for none.

        The same on all ranks. The first use is collective.
        """
        return SMALL_BYTES if self.reaches_all() else -1

    @abstractmethod
    def reached(self, device: str = "cpu") -> list[bool]:
        """Tell of every rank whether ``views`` yields its block where that is on "cpu" or "cuda".

        The first call is collective.
        """

    @abstractmethod
    def reaches_all(self, device: str = "cpu") -> bool:
        """Tell whether ``views`` yields every rank's block where they are on "cpu" or "cuda".

        The first call is collective.
        """

    @abstractmethod
    def reaches_some(self, device: str = "cpu") -> bool:
        """Tell whether ``views`` yields any other rank's block there, on any rank.

        The same on all of them; the first call is collective.
        """

    @property
    @abstractmethod
    def ranks_per_node(self) -> int | None:
        """How many consecutive ranks share a node, the same answer on all; None on a single node.

        1 where nodes hold unequal numbers of ranks. The first use is collective.
        """

    # --- other communicators ---------------------------------------------------------------------

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Communicator | None:
        """Return the communicator of some of ``self.ranks``; None where this is none of them.

        Collective over these ranks alone. Calls with the same ranks return communicators that share
        one transport. ``name`` is what ``CommLog`` calls it; by default this one's name.
        """
        wanted = tuple(ranks)
        if not set(wanted) <= set(self.ranks):
            raise ArgumentError(f"ranks {wanted} are not all among {self.ranks}")
        if self.ranks[self.rank] not in wanted:
            return None
        return self._subgroup(wanted, name or self.name)

    @abstractmethod
    def duplicate(self) -> Communicator:
        """Return a communicator of the same ranks whose messages never meet this one's."""

    @abstractmethod
    def background(self) -> Communicator:
        """Return the duplicate that work in the background uses, the same one every time."""

    @property
    @abstractmethod
    def mpi(self) -> Any:
        """The private mpi4py communicator, made by the first use, together; None without MPI."""

    @abstractmethod
    def export(self) -> Any:
        """Return an mpi4py communicator for the user, the same one every time.

        The library sends nothing through it. The first call is collective. Without MPI behind it,
        it is a CommunicationError.
        """

    @property
    def concurrent(self) -> bool:
        """Whether threads of this process may communicate at the same time."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether the program of these ranks has ended while the process goes on."""
        return False

    @abstractmethod
    def free(self) -> None:
        """Give back what the communicator holds; collective, and its last use."""

    # --- what a transport fills in ---------------------------------------------------------------

    # Sizes are checked, there are at least two ranks (but for send and recv), arrays are flat,
    # C-contiguous and in host memory; those of `_send` and `_recv` may be on a GPU where
    # `device_messages` has found that MPI takes them. Calls that return no request, and those of
    # `_send` and `_recv` that block, return when they are complete.

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _all_gather(self, send: np.ndarray, recv: np.ndarray, counts: Counts) -> None: ...

    @abstractmethod
    def _start_all_gather(self, send: np.ndarray, recv: np.ndarray, counts: Counts) -> Request: ...

    def _all_gather_agreed(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, token: int, what: object
    ) -> None:
        """Gather, once the ranks have compared a token."""
        self.agree(token, what)
        self._all_gather(send, recv, counts)

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
        """Exchange parts, once the ranks have compared a token, and ``fill()`` has set them."""
        self.agree(token, what)
        if fill is not None:
            fill()
        self._all_to_all(send, recv, send_counts, recv_counts)

    @abstractmethod
    def _all_reduce(self, send: np.ndarray, recv: np.ndarray, op: str) -> None: ...  # perhaps one

    @abstractmethod
    def _all_to_all(
        self, send: np.ndarray, recv: np.ndarray, send_counts: Counts, recv_counts: Counts
    ) -> None: ...

    @abstractmethod
    def _broadcast(self, array: np.ndarray, root: int) -> None: ...

    @abstractmethod
    def _scatter(
        self, send: np.ndarray | None, recv: np.ndarray, counts: Counts, root: int
    ) -> None: ...

    @abstractmethod
    def _gather(
        self, send: np.ndarray, recv: np.ndarray | None, counts: Counts, root: int
    ) -> None: ...

    @abstractmethod
    def _send(self, array: np.ndarray, dest: int, tag: int, blocking: bool) -> Request: ...

    @abstractmethod
    def _recv(self, array: np.ndarray, source: int, tag: int, blocking: bool) -> Request: ...

    @abstractmethod
    def _all_gather_bytes(self, mine: bytes) -> list[bytes]: ...

    @abstractmethod
    def _subgroup(self, ranks: tuple[int, ...], name: str) -> Communicator: ...


def _copy(send: Buffer, recv: Buffer) -> None:
    _backend.assign(recv.reshape(-1), send.reshape(-1))


def _moves_on_device(buffer: Buffer, nbytes: int) -> bool:
    """Tell whether a call that moves so many bytes in all goes beyond host memory.

    All ranks have to answer alike, so that the size is one that all know.
    """
    return not _backend.is_numpy(buffer) and nbytes > ON_HOST_BYTES


def _total(counts: Counts | None, part: Buffer, n: int) -> int:
    return int(part.size) * n if counts is None else sum(map(int, counts))


def _result_buffer(array: Buffer, dtype: np.dtype[Any], out: Buffer | None) -> Buffer:
    """Return ``out`` after checking that it takes the result, or a new array."""
    if out is None:
        return _memory.empty(array.shape, dtype, _backend.device_of(array))
    check_buffer(out, "receive", "all_reduce")
    if out.dtype != dtype:
        raise DTypeError(
            f"all_reduce of {array.dtype} values gives {dtype}, not the {out.dtype} of the "
            "receive buffer; pass one of that dtype"
        )
    if out.shape != array.shape:
        raise ArgumentError(
            f"all_reduce gives an array of shape {array.shape}, not the {out.shape} of the receive "
            "buffer; pass one of that shape"
        )
    return out
