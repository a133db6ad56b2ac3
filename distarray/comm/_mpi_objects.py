"""Small Python objects over an mpi4py communicator."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI


def all_gather_bytes(comm: MPI.Intracomm, mine: bytes) -> list[bytes]:
    """Return every rank's bytes."""
    sizes = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(mine)], np.int64), sizes)
    ends = np.cumsum(sizes)
    everyone = np.empty(int(ends[-1]), np.uint8)
    comm.Allgatherv(np.frombuffer(mine, np.uint8), [everyone, sizes.tolist()])
    starts = ends - sizes
    return [everyone[a:b].tobytes() for a, b in zip(starts, ends, strict=True)]


def all_gather_object(comm: MPI.Intracomm, obj: Any) -> list[Any]:
    """Return every rank's object."""
    return [pickle.loads(item) for item in all_gather_bytes(comm, pickle.dumps(obj))]
