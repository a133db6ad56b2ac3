"""Numbers of ranks that are enough for some programs under MPI."""

from __future__ import annotations

import pytest

from distarray.comm import world


def only_on(*counts: int) -> None:
    """Skip the module that calls this unless the job has one of these numbers of ranks.

    For programs that are the same on any number of ranks, of the whole world in one line, whose
    operations other tests try on one to four simulated ranks, and whose messages `mpi/comm` tries
    on as many real ones.
    """
    if world().size not in counts:
        pytest.skip(f"is as on {' and '.join(map(str, counts))} ranks", allow_module_level=True)
