"""A program that sends device memory to itself through MPI, and says how far it came.

`_awareness` starts it in a process of its own, because an MPI that takes an address of device
memory for one of host memory ends the process. It is no rank of the job, and imports nothing of
this package.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

SIZES = (1 << 10, 4 << 20)
"""Bytes: what goes at once, and what the two sides first agree on."""


def say(word: str) -> None:
    """Print how far it came; what follows may be the end."""
    print(word, flush=True)


def main(device: int) -> None:
    """Send values to this process itself, and compare."""
    mpi: Any = importlib.import_module("mpi4py.MPI")
    say("mpi")
    cupy: Any = importlib.import_module("cupy")
    numpy: Any = importlib.import_module("numpy")
    cupy.cuda.Device(device).use()
    buffers = []
    for nbytes in SIZES:
        values = numpy.arange(nbytes, dtype=numpy.uint32).astype(numpy.uint8)
        sent, received = cupy.empty(nbytes, numpy.uint8), cupy.empty(nbytes, numpy.uint8)
        sent.set(values)
        received.set(numpy.zeros(nbytes, numpy.uint8))
        buffers.append((values, sent, received))
    cupy.cuda.get_current_stream().synchronize()
    say("device")
    comm = mpi.COMM_SELF
    for values, sent, received in buffers:
        there, here = (
            [mpi.buffer.fromaddress(buffer.data.ptr, values.size), values.size, mpi.UINT8_T]
            for buffer in (received, sent)
        )
        mpi.Request.Waitall([comm.Irecv(there, 0, 1), comm.Isend(here, 0, 1)])
        if not (received.get() == values).all():
            say("wrong")
            return
    say("right")


if __name__ == "__main__":
    main(int(sys.argv[1]))
    sys.stdout.flush()
    # What MPI does at the end, without a launcher, is not what was asked.
    os._exit(0)
