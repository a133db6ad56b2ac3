"""Envelopes: what ranks that share no memory send each other first, each to every other one.

An envelope has a token, which says what its sender believes it is doing, and the size of the
message that is for its receiver. A short message is packed into it; a longer one follows at once,
and is received where it belongs once the two know that they are doing the same. So no reduction
goes ahead of what ranks exchange, and since all of them get an envelope of every other, of one
largest size, all find out in the same round where two disagree, take in all that was sent, and
raise one error.

Of many ranks each would send as many messages to say what a reduction of two numbers says in a
logarithm of rounds: among these it goes ahead, while the messages are being packed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from distarray.comm._collectives import OWN_TAG
from distarray.comm._launcher import count_local_ranks
from distarray.comm._packing import INLINE_BYTES, copy_box
from distarray.comm.failures._waits import Meeting, waiting
from distarray.comm.kernels import cores_of
from distarray.comm.mpi import _large_counts
from distarray.comm.mpi._datatypes import carrier, memory_of, moving_type, strided_type
from distarray.errors import CommunicationError

if TYPE_CHECKING:
    from mpi4py import MPI

MOST_RANKS: Final = 16
"""Up to so many ranks send envelopes.

To send 15 messages takes a rank as long as the four rounds of a reduction among 16, where each
has a latency of 2 us and a message costs half a microsecond. Not measured: only messages between
processes of one node were."""

MOST_BYTES: Final = 256 * 1024
"""What goes to all ranks lies in envelopes up to this size.

Measured on two ranks of Zen 5 over MPICH 5: all-reduces of 192 and 256 KiB take 38 and 44 us
instead of the 52 and 59 of an agreement and MPI's own; to move twice as much takes as long."""

WHOLE_BYTES: Final = 32 * 1024
"""Of what each of others needs a part only, so many bytes go whole to all of them together.

Measured there, of 16 KiB to one: 13 us instead of 32. It moves more than is needed, which may cost
more where many ranks share a network; not measured."""

_TRIES: Final = 64
"""So often a rank looks for what it waits for before it notes that it waits: for some 10 us.

Measured on two ranks of Zen 5 over MPICH 5: an exchange of a few bytes takes 1.0 us so, by MPI's
own wait 1.9, and 0.8 more where that is noted."""

_COPIED_BYTES: Final = 16 * 1024
"""What lies in one stretch is copied into envelopes up to this size, else it follows as it lies.

Measured there: 16 KiB take a microsecond less so, 64 KiB half of the time as they lie."""

_KEPT_BYTES: Final = (256, 2304)
"""Envelopes of up to so many bytes are sent, of all of that length, by requests that MPI keeps.

Measured there: an exchange of a few bytes takes 1.3 us so instead of 2.4, and of 2 KiB 1.4 instead
of 2.5. On a network the rest of 256 or 2304 bytes takes less time than that; not measured."""

_HEADER: Final = 16  # token and size, and what follows is aligned for all dtypes
_TAG: Final = OWN_TAG - 1

Fill = Callable[[], object]


class Envelopes:
    """The envelopes of a communicator; what they brought is valid until they are sent again.

    ``meeting`` returns the meeting that the exchange in progress is.
    """

    def __init__(self, mpi: MPI.Intracomm, meeting: Callable[[], Meeting | None]) -> None:
        from mpi4py import MPI

        self._mpi = mpi
        self._meeting = meeting
        self._bytes = MPI.BYTE
        self._size = mpi.Get_size()
        self._rank = mpi.Get_rank()
        self._peers = [(self._rank + i) % self._size for i in range(1, self._size)]
        self._out = _boxes(self._size, INLINE_BYTES)
        self._out_words = [box[:_HEADER].cast("q") for box in self._out]
        self._own = self._out[self._rank], self._out_words[self._rank]
        self._boxes = _boxes(self._size, MOST_BYTES)
        self._words = [box[:_HEADER].cast("q") for box in self._boxes]
        self._told = [self._words[peer] for peer in self._peers]
        self._receives = [
            mpi.Recv_init([self._boxes[peer], MPI.BYTE], peer, _TAG) for peer in self._peers
        ]
        self._sends = {
            nbytes: [
                mpi.Send_init([self._out[self._rank][:nbytes], MPI.BYTE], peer, _TAG)
                for peer in self._peers
            ]
            for nbytes in _KEPT_BYTES
        }
        self._kept = [(n, [*self._receives, *sends]) for n, sends in self._sends.items()]
        self._start = MPI.Prequest.Startall
        self._are_over = MPI.Request.Testall
        cores = max(len(cores_of()), len(cores_of(os.getppid())))  # some launchers give each one
        self._is_crowded = count_local_ranks() > cores and hasattr(os, "sched_yield")

    def exchange(self, payload: Any, token: int, what: object) -> list[Any] | None:
        """Return every rank's bytes, of ``MOST_BYTES`` at most; None where tokens differ."""
        n = len(payload)
        out, words = self._own
        follows, end = n > _COPIED_BYTES, _HEADER
        words[0], words[1] = token, -n if follows else n
        if not follows:
            end += n
            out[_HEADER:end] = payload
        peers, kind, follow = self._peers, self._bytes, []
        requests: Sequence[MPI.Request]
        for nbytes, requests in self._kept:
            if end <= nbytes:
                self._start(requests)
                break
        else:
            self._start(self._receives)
            message = [out[:end], kind]
            sends = [self._mpi.Isend(message, peer, _TAG) for peer in peers]
            requests = [*sends, *self._receives]
        if follows:
            follow = [self._mpi.Isend([payload, kind], peer, OWN_TAG) for peer in peers]
        self._wait(requests, what)
        if not self._agree(token):
            self._drain(follow, what)
            return None
        found = [payload] * self._size
        for peer in peers:
            size, box = self._words[peer][1], self._boxes[peer]
            if size >= 0:
                found[peer] = box[_HEADER : _HEADER + size]
            else:
                found[peer] = box = box[_HEADER : _HEADER - size]
                follow.append(self._mpi.Irecv([box, kind], peer, OWN_TAG))
        if follow:
            self._wait(follow, what)
        return found

    def all_to_all(
        self,
        parts: Sequence[np.ndarray],
        into: Sequence[np.ndarray],
        token: int,
        what: object,
    ) -> bool:
        """Send each rank its part into what there is for it.

        Short parts are packed into envelopes, others follow as they lie, of whatever strides. False
        where tokens differ; then nothing has been received.
        """
        self._start(self._receives)
        sends, late = [], []
        follow: list[MPI.Request] = []
        for peer in self._peers:
            part, out, words = parts[peer], self._out[peer], self._out_words[peer]
            size, end = part.nbytes, _HEADER
            words[0], words[1] = token, size
            packed = size <= (_COPIED_BYTES if part.flags.c_contiguous else INLINE_BYTES)
            if not packed:
                words[1] = -size
            elif size:
                end += size
                _in_box(out, part)[...] = part
            sends.append(self._mpi.Isend([out[:end], self._bytes], peer, _TAG))
            if size > _large_counts.LIMIT:
                late.append(peer)
            elif not packed:
                follow += self._post("send", part, peer)
        self._wait([*sends, *self._receives], what)
        if not self._agree(token):
            self._drain(follow, what)
            return False
        told = [(peer, self._words[peer][1]) for peer in self._peers]
        for peer, size in told:
            if size != into[peer].nbytes and size != -into[peer].nbytes:
                self._drain(follow, what)
                raise self._wrong_size(peer, size, into[peer])
        for peer, size in told:
            if size < 0:
                follow += self._post("recv", into[peer], peer)
        for peer in late:
            follow += self._post("send", parts[peer], peer)
        for peer, size in told:
            if size > 0:
                into[peer][...] = _in_box(self._boxes[peer], into[peer])
        if parts[self._rank].size:
            copy_box(into[self._rank], parts[self._rank])
        if follow:
            self._wait(follow, what)
        return True

    def _agree(self, token: int) -> bool:
        """Tell whether all other ranks have sent this token."""
        return [words[0] for words in self._told].count(token) == len(self._told)

    def _drain(self, follow: list[MPI.Request], what: object) -> None:
        """Take in what follows envelopes of another step: those of no more than one message do."""
        for peer in self._peers:
            size = self._words[peer][1]
            if -_large_counts.LIMIT <= size < 0:
                follow += self._post("recv", np.empty(-size, np.uint8), peer)
        self._wait(follow, what)

    def _wait(self, requests: Sequence[MPI.Request], what: object) -> None:
        """Return once requests are over; only a wait that lasts is noted."""
        for _ in range(_TRIES):
            if self._are_over(requests):
                return
            if self._is_crowded:
                os.sched_yield()
        from mpi4py import MPI

        with waiting(what, self._meeting()):
            MPI.Request.Waitall(requests)

    def _post(self, call: str, array: np.ndarray, peer: int) -> list[MPI.Request]:
        """Send or receive an array of any strides, packed nowhere by this library."""
        if array.flags.c_contiguous:
            flat = array.reshape(-1)
            if array.nbytes > _large_counts.LIMIT:
                return list(getattr(_large_counts, call)(self._mpi, flat, peer, OWN_TAG))
            message = [carrier(flat), flat.size, moving_type(flat.itemsize)]
            return [getattr(self._mpi, f"I{call}")(message, peer, OWN_TAG)]
        kind = strided_type(array)
        request = getattr(self._mpi, f"I{call}")([memory_of(array), 1, kind], peer, OWN_TAG)
        kind.Free()  # once the request is over
        return [request]

    def _wrong_size(self, peer: int, size: int, into: np.ndarray) -> CommunicationError:
        """Return the error for a rank that sends another number of bytes than this one expects.

        Ranks with one token have made one plan: what follows from it is not compared by all.
        """
        return CommunicationError(
            f"rank {peer} of the communicator sends {abs(size)} bytes, and rank {self._rank} "
            f"expects {into.nbytes}, though both name the same step: this is a mistake in the "
            "library; please report it"
        )

    def free(self) -> None:
        """Free what MPI holds for them."""
        for requests in (self._receives, *self._sends.values()):
            for request in requests:
                request.Free()


def _boxes(count: int, nbytes: int) -> list[memoryview]:
    """Return boxes for envelopes, of memory whose pages are touched when they are needed."""
    return [memoryview(box) for box in np.empty((count, _HEADER + nbytes), np.uint8)]  # type: ignore[arg-type]


def _in_box(box: memoryview, like: np.ndarray) -> np.ndarray:
    """Return what an envelope holds, as an array of this shape and dtype."""
    return np.frombuffer(box, like.dtype, like.size, _HEADER).reshape(like.shape)


def reduce_tokens(comm: MPI.Intracomm, token: int, fill: Fill | None) -> bool:
    """Tell whether all ranks pass the same token, by a reduction; call ``fill()`` meanwhile."""
    from mpi4py import MPI

    extremes = np.array([token, -token], np.int64)
    request = comm.Iallreduce(MPI.IN_PLACE, extremes, MPI.MIN)
    if fill is not None:
        fill()
    request.Wait()
    return bool(extremes[0] == -extremes[1])
