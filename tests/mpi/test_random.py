"""Random numbers under real MPI: the same for any number of ranks, one seed where none is given."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.layout import Replicate, Shard
from distarray.random import default_rng
from distarray.random._blocks import fill_floats
from distarray.random._seeding import derive_key

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def mesh() -> DeviceMesh:
    from mpi4py import MPI

    return DeviceMesh(range(MPI.COMM_WORLD.size))


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_block_is_its_part_of_what_one_process_makes(
    mesh: DeviceMesh, placement: Shard | Replicate
) -> None:
    shape = (150, 203)  # large enough for a kernel on two ranks and on three not
    whole = np.empty(shape)
    fill_floats(whole, "normal", derive_key((2026,)), 1, shape, ((0, 150), (0, 203)))
    rng = default_rng(2026)
    rng.random()
    block = rng.standard_normal(shape, mesh=mesh, placements=[placement])
    box = block.layout.local_box()
    expected = whole[tuple(slice(*interval) for interval in box)]
    np.testing.assert_array_equal(block.to_local(), expected)


def test_seed_that_nobody_gave_is_the_first_process_s(mesh: DeviceMesh) -> None:
    rng = default_rng()
    numbers = rng.integers(2**62, size=4, mesh=mesh, placements=[Replicate()]).to_local()
    everyone = mesh.communicator().all_gather_object((numbers.tolist(), rng.random()))
    assert everyone == [everyone[0]] * mesh.size


def test_rows_change_places_and_parameters_meet(mesh: DeviceMesh) -> None:
    """Rows move between processes, and values that make no sense raise on all of them."""
    x = da.arange(220, mesh=mesh).reshape(55, 4)
    rng = default_rng(11)
    rows = rng.permutation(x)
    assert rows.layout is x.layout
    lam = da.asarray(np.linspace(0.0, 40.0, 55), mesh=mesh)
    counts = rng.poisson(lam)
    few = rng.choice(x, 6, replace=False)
    assert rows.full_array()[:5, 0].tolist() == [48, 56, 72, 164, 184]
    assert counts.full_array()[-5:].tolist() == [34, 39, 53, 41, 39]
    assert few.full_array()[:, 0].tolist() == [24, 128, 168, 156, 20, 84]
    with pytest.raises(ArgumentError, match="lam=-"):
        rng.poisson(-lam)
    assert "draws=3" in repr(rng)
