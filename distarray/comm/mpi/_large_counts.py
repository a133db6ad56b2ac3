"""Counts past 2**31: the same collectives in pieces, where the library is not to be relied on.

Reductions, broadcasts and messages go in pieces of at most ``LIMIT`` elements over any library:
it costs nothing, and a library may have large counts and still get them wrong (Intel MPI 2021.17
claims MPI 4.1, and its all-reduce of 2**31 elements returns other values, without an error).
The v-collectives need displacements as large, which MPI has from version 4 on; where the
library has not, they are pairwise exchanges (`_collectives`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from distarray.comm import _backend
from distarray.comm.mpi._datatypes import carrier, moving_type
from distarray.typing import Buffer

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT = 2**31 - 1
"""Largest count of one operation in pieces."""


@cache
def library_displaces() -> bool:
    """Tell whether the library's v-collectives take displacements past 2**31."""
    from mpi4py import MPI

    # Both the library that runs and the one that mpi4py was built for must have them.
    return min(MPI.VERSION, MPI.Get_version()[0]) >= 4 and "Intel" not in MPI.get_vendor()[0]


def end_exceeds(count: int) -> bool:
    """Tell whether the end of a displaced part is too large for the library."""
    return count > LIMIT and not library_displaces()


def any_end_exceeds(comm: MPI.Intracomm, count: int) -> bool:
    """Tell whether one is on any rank; collective where the library has a limit."""
    from mpi4py import MPI

    if library_displaces():
        return False
    flag = np.array([count > LIMIT], np.int32)
    comm.Allreduce(MPI.IN_PLACE, flag, MPI.MAX)
    return bool(flag[0])


def pieces(array: Buffer) -> list[list[Any]]:
    """Return an array as messages, none longer than the limit; one on a GPU is flat bytes."""
    largest = LIMIT
    kind = moving_type(array.itemsize)
    flat = carrier(array) if _backend.is_numpy(array) else _on_device(array)
    if array.size <= largest:
        return [[flat, array.size, kind]]
    per_item = len(flat) // array.size
    return [
        [
            flat[start * per_item : (start + largest) * per_item],
            min(largest, array.size - start),
            kind,
        ]
        for start in range(0, array.size, largest)
    ]


def _on_device(array: Buffer) -> Any:
    """Return device memory for mpi4py: the address, whatever protocols both have for it."""
    from mpi4py import MPI

    return MPI.buffer.fromaddress(array.data.ptr, array.nbytes)


def send(comm: MPI.Intracomm, array: Buffer, dest: int, tag: int) -> list[MPI.Request]:
    """Send values to one rank; it receives them with ``recv`` and as many."""
    return [comm.Isend(piece, dest, tag) for piece in pieces(array)]


def recv(comm: MPI.Intracomm, array: Buffer, source: int, tag: int) -> list[MPI.Request]:
    """Receive as many values from one rank as the array has elements."""
    return [comm.Irecv(piece, source, tag) for piece in pieces(array)]
