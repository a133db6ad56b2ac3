"""What a communicator is: checks, logging and the calls that every transport answers alike.

A transport (``_transport``, filled in by ``_mpi`` and ``_simulated``) moves the values. Buffers
are C-contiguous, of any shape, taken as flat; counts are in elements and may exceed 2**31. Send
and receive buffers do not overlap (but for ``all_reduce``). Every call but the point-to-point
ones is collective over the communicator. In one call all ranks have buffers in host memory, or all
have them on GPUs; the latter ``_device_collectives`` moves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import numpy as np

from distarray.comm import _backend, _log
from distarray.comm._collectives import (
    Counts,
    check_buffer,
    check_pair,
    check_rank,
    check_size,
    check_tag,
    checked_counts,
    from_host,
    landing,
    on_host,
)
from distarray.comm._requests import Completed, Request
from distarray.comm.cuda._collectives import ON_HOST_BYTES
from distarray.comm.mpi._reducer import Reducer
from distarray.errors import ArgumentError
from distarray.typing import Buffer

_NOTHING = np.empty(0, np.uint8)
Views = AbstractContextManager[list[Buffer]]


class Communicator(Reducer):
    """Ranks that move values among themselves.

    A call with ``blocking=False`` returns at once; its buffers belong to the request until
    ``wait()``, which returns the received values, or ``test()`` says that it is done.

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
    """

    # --- collectives -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        if self.size > 1:
            started = perf_counter()
            self._barrier()
            _log.record("barrier", self.name, 0, perf_counter() - started)

    def all_gather(
        self, send: Buffer, recv: Buffer, counts: Counts | None = None, *, blocking: bool = True
    ) -> Request:
        """Put every rank's ``send`` into every rank's ``recv``, in rank order.

        Parameters
        ----------
        send
            ``counts[rank]`` elements.
        recv
            ``sum(counts)`` elements.
        counts
            What each rank sends, the same on every rank; default: all as much.
        """
        check_pair(send, recv, "all_gather")
        counts = checked_counts(counts, self.size, recv.size, "receive", "all_gather")
        check_size(send, counts[self.rank], "send", "all_gather")
        if self.size == 1:
            return _copied(send, recv)
        started = perf_counter()
        nbytes = recv.nbytes - send.nbytes
        if _moves_on_device(recv, recv.nbytes):
            request = self._device.all_gather(send, recv, counts, blocking)
            return self._track("all_gather", nbytes, started, request, lambda: recv)
        target = landing(recv)
        request = self._all_gather(on_host(send), target, counts, blocking)
        return self._track("all_gather", nbytes, started, request, lambda: from_host(target, recv))

    def all_to_all(
        self,
        send: Buffer,
        recv: Buffer,
        send_counts: Counts | None = None,
        recv_counts: Counts | None = None,
        *,
        blocking: bool = True,
    ) -> Request:
        """Send part ``i`` of ``send`` to rank ``i``, and put what rank ``i`` sends into part ``i``.

        Parameters
        ----------
        send, recv
            ``sum(send_counts)`` and ``sum(recv_counts)`` elements.
        send_counts, recv_counts
            What goes to and comes from each rank; default: all as much.
        """
        check_pair(send, recv, "all_to_all")
        sends = checked_counts(send_counts, self.size, send.size, "send", "all_to_all")
        receives = checked_counts(recv_counts, self.size, recv.size, "receive", "all_to_all")
        if sends[self.rank] != receives[self.rank]:
            raise ArgumentError(
                f"all_to_all would send {sends[self.rank]} elements from rank {self.rank} to "
                f"itself and receive {receives[self.rank]}; make the two counts equal"
            )
        if self.size == 1:
            return _copied(send, recv)
        started = perf_counter()
        nbytes = recv.nbytes - receives[self.rank] * recv.itemsize
        if not _backend.is_numpy(recv):
            request = self._device.all_to_all(send, recv, sends, receives, blocking)
            return self._track("all_to_all", nbytes, started, request, lambda: recv)
        target = recv.reshape(-1)
        request = self._all_to_all(send.reshape(-1), target, sends, receives, blocking)
        return self._track("all_to_all", nbytes, started, request, lambda: from_host(target, recv))

    def broadcast(self, array: Buffer, root: int = 0, *, blocking: bool = True) -> Request:
        """Put the root's values into every rank's ``array``."""
        check_buffer(array, "", "broadcast")
        root = check_rank(root, self.size, "root")
        if self.size == 1:
            return Completed(array)
        started = perf_counter()
        nbytes = 0 if self.rank == root else array.nbytes
        if _moves_on_device(array, array.nbytes):
            request = self._device.broadcast(array, root, blocking)
            return self._track("broadcast", nbytes, started, request, lambda: array)
        target = on_host(array) if self.rank == root else landing(array)
        request = self._broadcast(target, root, blocking)
        return self._track("broadcast", nbytes, started, request, lambda: from_host(target, array))

    def scatter(
        self,
        send: Buffer | None,
        recv: Buffer,
        counts: Counts | None = None,
        root: int = 0,
        *,
        blocking: bool = True,
    ) -> Request:
        """Put part ``rank`` of the root's ``send`` into ``recv``.

        Parameters
        ----------
        send
            ``sum(counts)`` elements on the root; None elsewhere.
        recv
            ``counts[rank]`` elements.
        counts
            What each rank receives, the same on every rank; default: all as much.
        """
        check_buffer(recv, "receive", "scatter")
        root = check_rank(root, self.size, "root")
        total = _total(counts, recv, self.size)
        parts = checked_counts(counts, self.size, total, "receive", "scatter")
        check_size(recv, parts[self.rank], "receive", "scatter")
        if self.rank == root:
            if send is None:
                raise ArgumentError(f"scatter needs a send buffer on its root, rank {root}")
            check_pair(send, recv, "scatter")
            check_size(send, sum(parts), "send", "scatter")
            if self.size == 1:
                return _copied(send, recv)
        started = perf_counter()
        nbytes = 0 if self.rank == root else recv.nbytes
        if _moves_on_device(recv, total * recv.itemsize):
            source = send if self.rank == root else None
            request = self._device.scatter(source, recv, parts, root, blocking)
            return self._track("scatter", nbytes, started, request, lambda: recv)
        source = None if send is None or self.rank != root else on_host(send)
        target = landing(recv)
        request = self._scatter(source, target, parts, root, blocking)
        return self._track("scatter", nbytes, started, request, lambda: from_host(target, recv))

    def gather(
        self,
        send: Buffer,
        recv: Buffer | None,
        counts: Counts | None = None,
        root: int = 0,
        *,
        blocking: bool = True,
    ) -> Request:
        """Put every rank's ``send`` into the root's ``recv``, in rank order.

        Parameters
        ----------
        send
            ``counts[rank]`` elements.
        recv
            ``sum(counts)`` elements on the root; None elsewhere.
        counts
            What each rank sends, the same on every rank; default: all as much.
        """
        check_buffer(send, "send", "gather")
        root = check_rank(root, self.size, "root")
        total = _total(counts, send, self.size)
        parts = checked_counts(counts, self.size, total, "send", "gather")
        check_size(send, parts[self.rank], "send", "gather")
        on_device = _moves_on_device(send, total * send.itemsize)
        if self.rank != root:
            started = perf_counter()
            if on_device:
                request = self._device.gather(send, None, parts, root, blocking)
            else:
                request = self._gather(on_host(send), None, parts, root, blocking)
            return self._track("gather", 0, started, request, lambda: None)
        if recv is None:
            raise ArgumentError(f"gather needs a receive buffer on its root, rank {root}")
        check_pair(send, recv, "gather")
        check_size(recv, sum(parts), "receive", "gather")
        if self.size == 1:
            return _copied(send, recv)
        started = perf_counter()
        nbytes = recv.nbytes - send.nbytes
        if on_device:
            request = self._device.gather(send, recv, parts, root, blocking)
            return self._track("gather", nbytes, started, request, lambda: recv)
        target = landing(recv)
        request = self._gather(on_host(send), target, parts, root, blocking)
        return self._track("gather", nbytes, started, request, lambda: from_host(target, recv))

    # --- point to point --------------------------------------------------------------------------

    def send(self, array: Buffer, dest: int, tag: int = 0, *, blocking: bool = True) -> Request:
        """Send values to one rank."""
        check_buffer(array, "send", "send")
        dest = check_rank(dest, self.size, "dest")
        check_tag(tag)
        started = perf_counter()
        if _backend.is_numpy(array):
            request = self._send(array.reshape(-1), dest, tag, blocking)
        else:
            request = self._device.send(array, dest, tag, blocking)
        return self._track("send", 0, started, request, lambda: None)

    def recv(self, array: Buffer, source: int, tag: int = 0, *, blocking: bool = True) -> Request:
        """Fill an array with the values that one rank sends; as many as it has elements."""
        check_buffer(array, "receive", "recv")
        source = check_rank(source, self.size, "source")
        check_tag(tag)
        started = perf_counter()
        if _backend.is_numpy(array):
            request = self._recv(array.reshape(-1), source, tag, blocking)
        else:
            request = self._device.recv(array, source, tag, blocking)
        nbytes = 0 if source == self.rank else array.nbytes
        return self._track("recv", nbytes, started, request, lambda: array)

    def sendrecv(self, send: Buffer, dest: int, recv: Buffer, source: int, tag: int = 0) -> Request:
        """Send to one rank while receiving from one; neither waits for the other."""
        arriving = self.recv(recv, source, tag, blocking=False)
        leaving = self.send(send, dest, tag, blocking=False)
        value = arriving.wait()
        leaving.wait()
        return Completed(value)

    # --- objects ---------------------------------------------------------------------------------

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Return every rank's object, pickled on the way; for small ones."""
        if self.size == 1:
            return [obj]
        started = perf_counter()
        objects, nbytes = self._all_gather_object(obj)
        _log.record("all_gather_object", self.name, nbytes, perf_counter() - started)
        return objects

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on every rank, pickled on the way; for small ones."""
        root = check_rank(root, self.size, "root")
        if self.size == 1:
            return obj
        started = perf_counter()
        result, nbytes = self._broadcast_object(obj, root)
        _log.record("broadcast_object", self.name, nbytes, perf_counter() - started)
        return result

    # --- shared memory ---------------------------------------------------------------------------

    @abstractmethod
    def views(
        self, block: np.ndarray, token: int, what: object = "", *, closing: bool = True
    ) -> Views:
        """Return a context that yields every rank's block, readable in place.

        None stands for ranks whose memory this one cannot reach. The blocks may differ in shape
        and strides, not in dtype. They stay as they are inside the context, and leaving it lets
        their owners change them.

        Parameters
        ----------
        block
            This rank's block.
        token
            What this rank believes it is doing, as a number below 2**62; ``str(what)`` says it in
            errors.
        closing
            Whether leaving waits until all have read. False where another round of the same
            communicator follows at once, which then says so: until that has been entered the block
            must neither change nor go away.

        Raises
        ------
        MismatchError
            On every rank, where they believe different things.
        """

    def agree(self, token: int, what: object = "") -> None:
        """Check that all ranks are about to do the same: a round of ``views`` without a block.

        Raises
        ------
        MismatchError
            On every rank, where they believe different things.
        """
        with self.views(_NOTHING, token, what):
            pass

    @property
    @abstractmethod
    def reaches_all(self) -> bool:
        """Whether ``views`` yields every rank's block. The first use is collective."""

    @property
    def reaches_some(self) -> bool:
        """Whether ``views`` yields any other rank's block, on any rank: the same on all of them."""
        return self.reaches_all

    def reaches_all_on(self, device: str) -> bool:
        """Tell whether ``views`` yields every rank's block where they are on "cpu" or "cuda".

        The first call is collective.
        """
        del device
        return self.reaches_all

    def reaches_some_on(self, device: str) -> bool:
        """Tell whether ``views`` yields any other rank's block there, on any rank; collective."""
        del device
        return self.reaches_some

    @property
    @abstractmethod
    def ranks_per_node(self) -> int | None:
        """How many consecutive ranks share a node, the same answer on all; None on a single node.

        1 where nodes hold unequal numbers of ranks. The first use is collective.
        """

    # --- other communicators ---------------------------------------------------------------------

    @abstractmethod
    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Communicator | None:
        """Return the communicator of some ranks, in that order; None where this is not one.

        Collective over these ranks alone. Calls with the same ranks return communicators that
        share one transport.

        Parameters
        ----------
        ranks
            Numbers of ``self.ranks``.
        name
            What ``CommLog`` calls it; default: this one's name.
        """

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
    def exported(self) -> Any:
        """Return an mpi4py communicator for the user, the same one every time.

        The library sends nothing through it. The first call is collective.

        Raises
        ------
        CommunicationError
            There is no MPI behind this communicator.
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
    def abort(self, code: int = 1) -> None:
        """End all ranks of the program."""

    @abstractmethod
    def free(self) -> None:
        """Give back what the communicator holds; collective, and its last use."""


def _copied(send: Buffer, recv: Buffer) -> Request:
    _backend.assign(recv.reshape(-1), send.reshape(-1))
    return Completed(recv)


def _moves_on_device(buffer: Buffer, nbytes: int) -> bool:
    """Tell whether a call that moves so many bytes in all goes beyond host memory.

    All ranks have to answer alike, so that the size is one that all know.
    """
    return not _backend.is_numpy(buffer) and nbytes > ON_HOST_BYTES


def _total(counts: Counts | None, part: Buffer, n: int) -> int:
    return int(part.size) * n if counts is None else sum(map(int, counts))
