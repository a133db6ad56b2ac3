"""Random programs of array calls give what NumPy gives, on ranks of MPI."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from tests.array import programs

COMM = MPI.COMM_WORLD


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 80, 40))
def test_programs_agree_with_numpy(first: int) -> None:
    for seed in range(first, first + 40):
        program = programs.draw(seed)
        if max(program.ranks) < COMM.size:
            programs.run(program)
