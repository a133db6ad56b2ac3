"""Which communicator the program runs on: the simulated ranks it is inside of, or MPI's world."""

from __future__ import annotations

from typing import Any

from distarray.comm._communicator import Communicator
from distarray.comm.mpi import _transport
from distarray.comm.simulated import _ranks


def world() -> Communicator:
    """Return the communicator of all ranks; inside ``simulate``, that of the simulated ranks.

    The first use outside ``simulate`` starts MPI.
    """
    simulated = _ranks.simulated_world()
    return _transport.world() if simulated is None else simulated


def as_communicator(comm: Any) -> Communicator:
    """Return the communicator behind what a user passes as ``comm=``.

    Parameters
    ----------
    comm
        None (all ranks), one of our communicators, or an mpi4py intra-communicator; of the latter
        only the ranks are used, never the communicator itself.
    """
    if comm is None:
        return world()
    if isinstance(comm, Communicator):
        return comm
    return _transport.based_on(comm)
