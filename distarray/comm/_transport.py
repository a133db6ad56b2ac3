"""What a transport does: it moves flat arrays among ranks, and checks nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from distarray.comm import _log
from distarray.comm._collectives import Counts
from distarray.comm._requests import Completed, Pending, Request
from distarray.typing import Buffer


class Transport(ABC):
    """The calls that ``Communicator`` builds on.

    Sizes are checked, there are at least two ranks (but for send and recv), arrays are flat,
    C-contiguous and in host memory; those of ``_send`` and ``_recv`` may be on a GPU where
    `_awareness` says so. What a blocking call returns is complete.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    meshes: dict[Any, Any]
    verdicts: list[Any]
    """What `_awareness` has found out, once it has."""

    def __init__(self, rank: int, ranks: tuple[int, ...], name: str) -> None:
        self.rank = rank
        self.size = len(ranks)
        self.ranks = ranks
        self.name = name
        self.meshes = {}
        self.verdicts = []

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """The number of each in the MPI world: what launchers, and all messages, call it."""
        return self.ranks

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: rank {self.rank} of {self.size}>"

    @abstractmethod
    def _barrier(self) -> None: ...

    @abstractmethod
    def _all_gather(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, blocking: bool
    ) -> Request: ...

    @abstractmethod
    def _all_reduce(
        self, send: np.ndarray, recv: np.ndarray, op: str, blocking: bool
    ) -> Request: ...  # send may be recv

    def all_reduce_small(
        self, array: Buffer, op: str, token: int | None = None, what: object = ""
    ) -> np.ndarray | None:
        """Reduce a short array of any shape; None where that needs the way of all others.

        Whether it does depends on nothing in which ranks differ.

        Parameters
        ----------
        array
            Of `SMALL_BYTES` at most.
        op
            As in ``all_reduce``.
        token, what
            What this rank believes it is doing, as in ``views``; by default this reduction.
        """
        del array, op, token, what
        return None

    @abstractmethod
    def _reduce_scatter(
        self, send: np.ndarray, recv: np.ndarray, counts: Counts, op: str, blocking: bool
    ) -> Request: ...

    @abstractmethod
    def _all_to_all(
        self,
        send: np.ndarray,
        recv: np.ndarray,
        send_counts: Counts,
        recv_counts: Counts,
        blocking: bool,
    ) -> Request: ...

    @abstractmethod
    def _broadcast(self, array: np.ndarray, root: int, blocking: bool) -> Request: ...

    @abstractmethod
    def _scatter(
        self, send: np.ndarray | None, recv: np.ndarray, counts: Counts, root: int, blocking: bool
    ) -> Request: ...

    @abstractmethod
    def _gather(
        self, send: np.ndarray, recv: np.ndarray | None, counts: Counts, root: int, blocking: bool
    ) -> Request: ...

    @abstractmethod
    def _send(self, array: np.ndarray, dest: int, tag: int, blocking: bool) -> Request: ...

    @abstractmethod
    def _recv(self, array: np.ndarray, source: int, tag: int, blocking: bool) -> Request: ...

    @abstractmethod
    def _all_gather_object(self, obj: Any) -> tuple[list[Any], int]: ...

    @abstractmethod
    def _broadcast_object(self, obj: Any, root: int) -> tuple[Any, int]: ...

    def _track(
        self,
        collective: str,
        nbytes: int,
        started: float,
        request: Request,
        finish: Callable[[], Any],
    ) -> Request:
        """Record a communication, and let ``finish`` make its result."""
        if isinstance(request, Completed):
            value = finish()
            if _log.recording():
                _log.record(collective, self.name, nbytes, perf_counter() - started)
            return Completed(value)
        entry = _log.record(collective, self.name, nbytes, perf_counter() - started)
        return Pending(request, (), finish, entry)
