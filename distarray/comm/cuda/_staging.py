"""Messages between GPUs through pinned host memory, for an MPI that knows host memory alone.

A message is cut into chunks. A chunk that is sent is copied from the device on a stream of our
own; when the copy is there, MPI sends it, while the next is being copied. Of what is received one
chunk is copied to the device while MPI receives the next. A blocking call has a few chunks under
way in each direction. One that does not block hands all of its messages to MPI before it returns,
so that they arrive whatever this rank does next; it takes as much pinned memory as it moves.

What is waited for: before the first copy our streams wait for the work queued on the current
stream, which makes the values (on the device: the host goes on); the host waits for each copy
from the device before MPI reads it; and a request is complete when the last copy to the device is.
Nothing waits for the whole device.

Two ranks cut a message alike, and both ways of carrying messages between two ranks may meet.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm import _backend
from distarray.comm._requests import DONE, Pending, Request
from distarray.comm._transport import Transport
from distarray.comm.cuda import _pinned
from distarray.comm.cuda._messages import Message, Plan
from distarray.comm.failures._waits import waiting
from distarray.typing import Buffer

CHUNK_BYTES: Final = 4 << 20
"""Bytes of a chunk: to be measured. All ranks must have the same."""

DEPTH: Final = 3
"""Chunks that a blocking call has under way in each direction: to be measured."""


def exchange(transport: Transport, plan: Plan, tag: int, blocking: bool) -> Request:
    """Send and receive messages; the request is complete when this rank's are.

    Parameters
    ----------
    transport
        Between the ranks.
    plan
        This rank's messages. Buffers on one GPU.
    tag
        Of the messages.
    blocking
        Whether to return when everything is there.
    """
    messages = (*plan.sends, *plan.receives)
    if not messages:
        return DONE
    moving = _Exchange(transport, plan, tag, DEPTH if blocking else None)
    if blocking:
        with waiting("values on their way between GPUs"):
            moving.wait()
        return DONE
    return Pending(moving, [message.buffer for message in messages])


# --- chunks --------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Device memory that is copied at once, and what of it goes to or comes from whom."""

    part: Buffer
    legs: tuple[tuple[int, int, int], ...]
    """Peer, and from where to where."""


def _pieces(messages: Sequence[Message], by_turns: bool) -> list[_Piece]:
    """Cut messages into pieces, in the order in which they go."""
    if len(messages) > 1 and sum(m.stop - m.start for m in messages) <= CHUNK_BYTES:
        return _joined(messages)
    chunks = [
        (chunk, i, message, start)
        for i, message in enumerate(messages)
        for chunk, start in enumerate(range(message.start, message.stop, CHUNK_BYTES))
    ]
    chunks.sort(key=lambda found: found[:2] if by_turns else (found[1], found[0]))
    return [
        _Piece(message.buffer[start:stop], tuple((peer, 0, stop - start) for peer in message.peers))
        for _, _, message, start in chunks
        for stop in (min(start + CHUNK_BYTES, message.stop),)
    ]


def _joined(messages: Sequence[Message]) -> list[_Piece]:
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


# --- streams -------------------------------------------------------------------------------------


class _Streams(NamedTuple):
    """The streams that copy from a device and to it: two, because they copy at the same time."""

    load: Any
    store: Any


_thread = threading.local()


def _streams(xp: Any, device: int) -> _Streams:
    """Return this thread's streams on a device, which is the current one."""
    known: dict[tuple[Any, int], _Streams] = _thread.__dict__.setdefault("streams", {})
    found = known.get((xp, device))
    if found is None:
        found = _Streams(xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True))
        known[xp, device] = found
    return found


def _mark(xp: Any, stream: Any) -> Any:
    """Return an event after the work that a stream has so far."""
    event = xp.cuda.Event(disable_timing=True)
    event.record(stream)
    return event


# --- lanes ---------------------------------------------------------------------------------------


class _Copied(NamedTuple):
    """A copy between device and host that is under way until an event."""

    event: Any
    host: np.ndarray
    piece: _Piece


class _Moving(NamedTuple):
    """Host memory that MPI reads or writes."""

    requests: list[Request]
    host: np.ndarray
    piece: _Piece

    def test(self) -> bool:
        done = [request.test() for request in self.requests]  # each must get on
        return all(done)


class _Lane:
    """Pieces that go one way, some at a time."""

    def __init__(self, xp: Any, stream: Any, pieces: list[_Piece], window: int) -> None:
        self._xp = xp
        self._stream = stream
        self._pieces = deque(pieces)
        self._window = window
        self._copied: deque[_Copied] = deque()
        self._moving: deque[_Moving] = deque()

    @property
    def done(self) -> bool:
        return not (self._pieces or self._copied or self._moving)

    def _room(self) -> bool:
        under_way = len(self._copied) + len(self._moving)
        return bool(self._pieces) and under_way < self._window

    def _taken(self, piece: _Piece) -> np.ndarray:
        return _pinned.pool.take(self._xp, piece.part.size)


class _Outgoing(_Lane):
    """From the device to host memory, and from there to others."""

    def __init__(
        self, xp: Any, stream: Any, pieces: list[_Piece], window: int, send: _Post
    ) -> None:
        super().__init__(xp, stream, pieces, window)
        self._send = send

    def advance(self) -> bool:
        """Do what can be done without waiting; tell whether that was anything."""
        moved = False
        while self._room():
            self._load()
            moved = True
        while self._copied and self._copied[0].event.done:
            self._post()
            moved = True
        while self._moving and self._moving[0].test():
            self._moving.popleft()
            moved = True
        return moved

    def post_all(self) -> None:
        """Hand every message to MPI."""
        while self._pieces:
            self._load()
        while self._copied:
            self._copied[0].event.synchronize()
            self._post()

    def _load(self) -> None:
        piece = self._pieces[0]
        host = self._taken(piece)
        piece.part.get(stream=self._stream, out=host, blocking=False)
        self._copied.append(_Copied(_mark(self._xp, self._stream), host, piece))
        self._pieces.popleft()

    def _post(self) -> None:
        _, host, piece = self._copied.popleft()
        requests: list[Request] = []
        self._moving.append(_Moving(requests, host, piece))
        for peer, start, stop in piece.legs:
            requests.append(self._send(host[start:stop], peer))


class _Incoming(_Lane):
    """From others to host memory, and from there to the device."""

    def __init__(
        self, xp: Any, stream: Any, pieces: list[_Piece], window: int, recv: _Post
    ) -> None:
        super().__init__(xp, stream, pieces, window)
        self._recv = recv

    def advance(self) -> bool:
        """Do what can be done without waiting; tell whether that was anything."""
        moved = self.post_all()
        while self._moving and self._moving[0].test():
            _, host, piece = self._moving.popleft()
            piece.part.set(host, stream=self._stream)
            self._copied.append(_Copied(_mark(self._xp, self._stream), host, piece))
            moved = True
        while self._copied and self._copied[0].event.done:
            self._copied.popleft()
            moved = True
        return moved

    def post_all(self) -> bool:
        """Ask MPI for as many messages as there is room for; tell whether that was any."""
        moved = False
        while self._room():
            piece = self._pieces.popleft()
            host = self._taken(piece)
            requests: list[Request] = []
            self._moving.append(_Moving(requests, host, piece))
            for peer, start, stop in piece.legs:
                requests.append(self._recv(host[start:stop], peer))
            moved = True
        return moved


_Post = Callable[[np.ndarray, int], Request]
"""Begins to send host memory to a rank, or to receive from it."""


class _Exchange:
    """The two lanes of an exchange, as a ``Handle``.

    With ``window`` None all messages are under way when it has been made.
    """

    def __init__(self, transport: Transport, plan: Plan, tag: int, window: int | None) -> None:
        buffer = (*plan.sends, *plan.receives)[0].buffer
        xp = _backend.namespace_of(buffer)
        self._device = buffer.device
        sends = _pieces(plan.sends, plan.by_turns)
        receives = _pieces(plan.receives, plan.by_turns)
        limit = max(len(sends), len(receives)) if window is None else window
        with self._device:
            self._streams = _streams(xp, self._device.id)
            ready = _mark(xp, xp.cuda.get_current_stream())
            for stream in self._streams:
                stream.wait_event(ready)
            self._outgoing = _Outgoing(
                xp,
                self._streams.load,
                sends,
                limit,
                lambda host, peer: transport._send(host, peer, tag, False),
            )
            self._incoming = _Incoming(
                xp,
                self._streams.store,
                receives,
                limit,
                lambda host, peer: transport._recv(host, peer, tag, False),
            )
            try:
                self._incoming.post_all()
                if window is None:
                    self._outgoing.post_all()
            except BaseException:
                self._let_go()
                raise

    def test(self) -> bool:
        """Tell whether the exchange is complete, and help it along."""
        self._advance()
        return self._outgoing.done and self._incoming.done

    def wait(self) -> None:
        """Return when the exchange is complete."""
        while not (self._outgoing.done and self._incoming.done):
            if not self._advance():
                time.sleep(0)  # there may be more ranks than cores

    def _advance(self) -> bool:
        with self._device:
            try:
                sent, received = self._outgoing.advance(), self._incoming.advance()
            except BaseException:
                self._let_go()
                raise
        return sent or received

    def _let_go(self) -> None:
        """End the copies, so that nothing writes to memory that is used for something else.

        Messages still under way hold their memory themselves.
        """
        for stream in self._streams:
            stream.synchronize()
