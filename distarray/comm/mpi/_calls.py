"""Calls of MPI under way, and what they say where this rank waits for them."""

from __future__ import annotations

from distarray.comm.failures._waits import Meeting, waiting
from distarray.comm.mpi._large_counts import Several
from distarray.typing import Buffer


class Call:
    """A call of MPI, told only where ranks wait for long.

    Parameters
    ----------
    name
        Of the call.
    buffer
        Values that it moves.
    peer
        The one rank of the MPI world that it waits for, where it is one.
    """

    __slots__ = ("buffer", "name", "peer")

    def __init__(self, name: str, buffer: Buffer, peer: int | None = None) -> None:
        self.name = name
        self.buffer = buffer
        self.peer = peer

    def __str__(self) -> str:
        peer = "" if self.peer is None else f" with rank {self.peer}"
        return f"{self.name} of {self.buffer.size} {self.buffer.dtype}{peer}"


class Handle:
    """Messages under way: the token of a request.

    Parameters
    ----------
    requests
        Complete when it is.
    what
        The call.
    meeting
        Of all ranks that make the call, where others can be told of it.
    """

    __slots__ = ("_meeting", "_requests", "_what")

    def __init__(self, requests: Several, what: Call, meeting: Meeting | None) -> None:
        self._requests = requests
        self._what = what
        self._meeting = meeting

    def wait(self) -> None:
        """Return when it is complete."""
        peer = self._what.peer
        late = None if peer is None else lambda: (peer,)
        with waiting(self._what, self._meeting, late):
            self._requests.wait()

    def test(self) -> bool:
        """Tell whether it is complete."""
        return self._requests.test()
