"""Small Python objects over an mpi4py communicator, and whether all ranks do the same."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distarray.comm._agreement import mismatch_error
from distarray.comm.failures._waits import waiting

if TYPE_CHECKING:
    from mpi4py import MPI


def all_gather_bytes(comm: MPI.Intracomm, mine: bytes) -> list[bytes]:
    """Return every rank's bytes."""
    sizes = np.empty(comm.Get_size(), np.int64)
    with waiting("MPI's Allgather"):
        comm.Allgather(np.array([len(mine)], np.int64), sizes)
        ends = np.cumsum(sizes)
        everyone = np.empty(int(ends[-1]), np.uint8)
        comm.Allgatherv(np.frombuffer(mine, np.uint8), [everyone, sizes.tolist()])
    starts = ends - sizes
    return [everyone[a:b].tobytes() for a, b in zip(starts, ends, strict=True)]


def all_gather_object(comm: MPI.Intracomm, obj: Any) -> list[Any]:
    """Return every rank's object."""
    return [pickle.loads(item) for item in all_gather_bytes(comm, pickle.dumps(obj))]


def compare(comm: MPI.Intracomm, token: int, what: object, ranks: Sequence[int]) -> None:
    """Check that all ranks do the same: that they pass the same token, below 2**62.

    A reduction of two numbers goes ahead of what the ranks then do, so that those that disagree
    find out instead of taking each other's messages for what they are not. ``ranks`` are their
    numbers in the MPI world.

    Raises
    ------
    MismatchError
        On every rank, if they do not; ``str(what)`` says what each was about to do.
    """
    from mpi4py import MPI

    extremes = np.array([token, -token], np.int64)
    comm.Allreduce(MPI.IN_PLACE, extremes, MPI.MIN)
    if extremes[0] != -extremes[1]:
        raise mismatch_error(all_gather_object(comm, str(what)), ranks)
