"""Messages between GPUs as they are, for an MPI that takes addresses of device memory.

All go as messages between two ranks, also those of collectives: of device memory these are what
every such MPI carries. Open MPI's documentation ("Running CUDA-aware Open MPI", FAQ of version 4)
excludes the collectives that do not block, and the library of a collective would be free to
reduce. MPI knows nothing of streams: the current stream is waited for before, as mpi4py's tutorial
asks ("GPU-aware MPI + Python GPU arrays").
"""

from __future__ import annotations

import time

from distarray.comm import _backend
from distarray.comm._requests import DONE, Pending, Request
from distarray.comm._transport import Transport
from distarray.comm.cuda._messages import Message, Plan
from distarray.comm.cuda._staging import CHUNK_BYTES
from distarray.comm.failures._waits import waiting


class _All:
    """Requests that are complete when all are, as a ``Handle``."""

    __slots__ = ("_requests",)

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests

    def wait(self) -> None:
        while not self.test():
            time.sleep(0)

    def test(self) -> bool:
        self._requests = [request for request in self._requests if not request.test()]
        return not self._requests


def exchange(
    transport: Transport, plan: Plan, tag: int, blocking: bool, *, in_chunks: bool = False
) -> Request:
    """Send and receive messages; the request is complete when this rank's are.

    Parameters
    ----------
    transport, plan, tag, blocking
        As for `_staging.exchange`.
    in_chunks
        Whether the other rank may stage what is to it, or from it: then both cut it alike.
    """
    messages = (*plan.sends, *plan.receives)
    if not messages:
        return DONE
    buffer = messages[0].buffer
    with buffer.device:
        _backend.namespace_of(buffer).cuda.get_current_stream().synchronize()
        requests = [
            transport._recv(message.buffer[start:stop], peer, tag, False)
            for message in plan.receives
            for start, stop in _cuts(message, in_chunks)
            for peer in message.peers
        ]
        requests += [
            transport._send(message.buffer[start:stop], peer, tag, False)
            for message in plan.sends
            for start, stop in _cuts(message, in_chunks)
            for peer in message.peers
        ]
        pending = Pending(_All(requests), [message.buffer for message in messages])
        if blocking:
            with waiting("values on their way between GPUs"):
                pending.wait()
            return DONE
        return pending


def _cuts(message: Message, in_chunks: bool) -> list[tuple[int, int]]:
    if not in_chunks:
        return [(message.start, message.stop)]
    return [
        (start, min(start + CHUNK_BYTES, message.stop))
        for start in range(message.start, message.stop, CHUNK_BYTES)
    ]
