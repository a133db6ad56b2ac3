"""Messages between GPUs, as they are or through pinned host memory.

Messages *as they are* are for an MPI that takes addresses of device memory. All go between two
ranks, also those of collectives: these are what every such MPI carries. Open MPI's documentation
("Running CUDA-aware Open MPI", FAQ of version 4) excludes the collectives that do not block, and
the library of a collective would be free to reduce. MPI knows nothing of streams: the current
stream is waited for before, as mpi4py's tutorial asks ("GPU-aware MPI + Python GPU arrays").

Messages *through host memory* are cut into chunks. A chunk that is sent is copied from the device
on a stream of our own; when the copy is there, MPI sends it, while the next is being copied. Of
what is received one chunk is copied to the device while MPI receives the next: a few chunks are
under way in each direction. Before the first copy our streams wait for the work queued on the
current stream, which makes the values (on the device: the host goes on); the host waits for each
copy from the device before MPI reads it; and a call returns when the last copy to the device is
complete. Nothing waits for the whole device.

Between two ranks messages stay in order, both cut a message alike, and both ways may meet. The
order in which a rank goes through its messages is part of one order of all messages of the
collective: so a rank that has only a few under way at a time never waits for one that waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.comm._requests import Request
from distarray.comm.cuda import _pinned
from distarray.comm.failures._waits import waiting
from distarray.typing import Buffer

if TYPE_CHECKING:
    from distarray.comm._communicator import Communicator

CHUNK_BYTES: Final = 4 << 20
"""Bytes of a chunk, the same on all ranks; not measured."""

DEPTH: Final = 3
"""Chunks under way in each direction: one is copied, one is with MPI, and one more makes up for the
slower of the two; not measured."""


class Message(NamedTuple):
    """Bytes ``start`` to ``stop`` of a flat buffer of bytes, to or from other ranks.

    What is received has one peer; what is sent goes to each of them.
    """

    buffer: Buffer
    start: int
    stop: int
    peers: tuple[int, ...]


class Plan(NamedTuple):
    """The messages of one rank, none of them empty, in the order in which it goes through them.

    The first chunk of every message goes before the second of any.
    """

    sends: Sequence[Message]
    receives: Sequence[Message]


# --- as they are ---------------------------------------------------------------------------------


def exchange_direct(
    communicator: Communicator, plan: Plan, tag: int, *, in_chunks: bool = False
) -> None:
    """Send and receive messages as they are, as `exchange_staged` does through host memory.

    With ``in_chunks`` they are cut as there: the other rank may stage them.
    """
    messages = (*plan.sends, *plan.receives)
    if not messages:
        return
    buffer = messages[0].buffer
    with buffer.device:
        _backend.namespace_of(buffer).cuda.get_current_stream().synchronize()
        requests = [
            begin(message.buffer[start:stop], peer, tag, False)
            for begin, going in (
                (communicator._recv, plan.receives),
                (communicator._send, plan.sends),
            )
            for message in going
            for start, stop in _cuts(message, in_chunks)
            for peer in message.peers
        ]
        with waiting("values on their way between GPUs"):
            while requests := [request for request in requests if not request.test()]:
                time.sleep(0)


def _cuts(message: Message, in_chunks: bool) -> list[tuple[int, int]]:
    """Return from where to where the parts of a message go."""
    step = CHUNK_BYTES if in_chunks else message.stop - message.start
    starts = range(message.start, message.stop, step)
    return [(start, min(start + step, message.stop)) for start in starts]


# --- through host memory -------------------------------------------------------------------------


def exchange_staged(communicator: Communicator, plan: Plan, tag: int) -> None:
    """Send and receive messages of buffers on one GPU."""
    messages = (*plan.sends, *plan.receives)
    if not messages:
        return
    buffer = messages[0].buffer
    xp = _backend.namespace_of(buffer)

    def send(host: np.ndarray, peer: int) -> Request:
        return communicator._send(host, peer, tag, False)

    def receive(host: np.ndarray, peer: int) -> Request:
        return communicator._recv(host, peer, tag, False)

    with buffer.device, waiting("values on their way between GPUs"):
        streams = load, store = _streams(xp, buffer.device.id)
        ready = _mark(xp, xp.cuda.get_current_stream())
        for stream in streams:
            stream.wait_event(ready)
        outgoing = _Outgoing(xp, load, _pieces(plan.sends), send)
        incoming = _Incoming(xp, store, _pieces(plan.receives), receive)
        try:
            incoming.ask()
            while not (outgoing.done and incoming.done):
                moved = outgoing.advance(), incoming.advance()
                if not any(moved):
                    time.sleep(0)  # there may be more ranks than cores
        except BaseException:
            # So that nothing writes to memory that is used for something else; messages still under
            # way hold theirs themselves.
            for stream in streams:
                stream.synchronize()
            raise


# --- chunks --------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Device memory that is copied at once, and what of it goes to or comes from whom."""

    part: Buffer
    messages: tuple[tuple[int, int, int], ...]
    """Peer, and from where to where."""


def _pieces(messages: Sequence[Message]) -> list[_Piece]:
    """Cut messages into pieces, in the order in which they go."""
    if len(messages) > 1 and sum(m.stop - m.start for m in messages) <= CHUNK_BYTES:
        return _join_adjacent(messages)
    by_turns = zip_longest(*([(m, *cut) for cut in _cuts(m, True)] for m in messages))
    return [
        _Piece(message.buffer[start:stop], tuple((peer, 0, stop - start) for peer in message.peers))
        for message, start, stop in filter(None, chain.from_iterable(by_turns))
    ]


def _join_adjacent(messages: Sequence[Message]) -> list[_Piece]:
    """Join messages that lie one after the other: one copy serves for all of them.

    All are under way at once then, so that their order is free.
    """
    runs: list[list[Message]] = []
    for message in sorted(messages, key=lambda m: m.start):
        if runs and runs[-1][-1].stop == message.start:
            runs[-1].append(message)
        else:
            runs.append([message])
    return [
        _Piece(
            run[0].buffer[run[0].start : run[-1].stop],
            tuple(
                (peer, message.start - run[0].start, message.stop - run[0].start)
                for message in run
                for peer in message.peers
            ),
        )
        for run in runs
    ]


_thread = threading.local()


def _streams(xp: Any, device: int) -> tuple[Any, Any]:
    """Return this thread's streams that copy from a device, the current one, and to it.

    They are two because they copy at the same time.
    """
    known: dict[tuple[Any, int], tuple[Any, Any]] = _thread.__dict__.setdefault("streams", {})
    found = known.get((xp, device))
    if found is None:
        found = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
        known[xp, device] = found
    return found


def _mark(xp: Any, stream: Any) -> Any:
    """Return an event after the work that a stream has so far."""
    event = xp.cuda.Event(disable_timing=True)
    event.record(stream)
    return event


class _Chunk:
    """A piece on its way: in host memory, which a copy or MPI reads or writes."""

    def __init__(self, piece: _Piece, host: np.ndarray) -> None:
        self.piece = piece
        self.host = host
        self.copied: Any = None
        """The event after its copy between device and host."""
        self.requests: list[Request] = []

    def post(self, begin: _Post) -> None:
        """Give its messages to MPI."""
        for peer, start, stop in self.piece.messages:
            self.requests.append(begin(self.host[start:stop], peer))

    def test(self) -> bool:
        """Tell whether MPI is done with it."""
        done = [request.test() for request in self.requests]  # each must get on
        return all(done)


_Post = Callable[[np.ndarray, int], Request]
"""Begins to send host memory to a rank, or to receive from it."""


class _Lane:
    """Pieces that go one way, some at a time: in two stages, one after the other."""

    def __init__(self, xp: Any, stream: Any, pieces: list[_Piece], begin: _Post) -> None:
        self._xp = xp
        self._stream = stream
        self._pieces = deque(pieces)
        self._begin = begin
        self._copying: deque[_Chunk] = deque()
        self._moving: deque[_Chunk] = deque()

    @property
    def done(self) -> bool:
        return not (self._pieces or self._copying or self._moving)

    def _has_room(self) -> bool:
        return bool(self._pieces) and len(self._copying) + len(self._moving) < DEPTH

    def _take(self, piece: _Piece) -> _Chunk:
        return _Chunk(piece, _pinned.pool.take(self._xp, piece.part.size))


class _Outgoing(_Lane):
    """From the device to host memory, and from there to others."""

    def advance(self) -> bool:
        """Do what can be done without waiting; tell whether that was anything."""
        moved = False
        while self._has_room():
            piece = self._pieces[0]
            chunk = self._take(piece)
            piece.part.get(stream=self._stream, out=chunk.host, blocking=False)
            chunk.copied = _mark(self._xp, self._stream)
            self._copying.append(chunk)
            self._pieces.popleft()
            moved = True
        while self._copying and self._copying[0].copied.done:
            chunk = self._copying.popleft()
            self._moving.append(chunk)
            chunk.post(self._begin)
            moved = True
        while self._moving and self._moving[0].test():
            self._moving.popleft()
            moved = True
        return moved


class _Incoming(_Lane):
    """From others to host memory, and from there to the device."""

    def advance(self) -> bool:
        """Do what can be done without waiting; tell whether that was anything."""
        moved = self.ask()
        while self._moving and self._moving[0].test():
            chunk = self._moving.popleft()
            chunk.piece.part.set(chunk.host, stream=self._stream)
            chunk.copied = _mark(self._xp, self._stream)
            self._copying.append(chunk)
            moved = True
        while self._copying and self._copying[0].copied.done:
            self._copying.popleft()
            moved = True
        return moved

    def ask(self) -> bool:
        """Ask MPI for as many messages as there is room for; tell whether that was any."""
        moved = False
        while self._has_room():
            chunk = self._take(self._pieces.popleft())
            self._moving.append(chunk)
            chunk.post(self._begin)
            moved = True
        return moved
