"""Messages name ranks of the MPI world, whatever a mesh or a communicator calls them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import distarray as da
from distarray import Replicate, Shard
from distarray.core import _replicas
from distarray.errors import ArgumentError, DTypeError, MismatchError

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(60)]


@pytest.fixture(scope="module", params=["one node", "a node per rank"])
def comm(request):
    """A communicator that numbers the ranks of the world in reverse."""
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "a node per rank":
            patch.setenv("DISTARRAY_RANKS_PER_NODE", "1")
        yield MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)
        MPI.COMM_WORLD.Barrier()


@pytest.fixture(scope="module", params=["communicator", "mesh"])
def mesh(request, comm):
    """A mesh in which the last rank of the world comes first."""
    if request.param == "communicator":
        return da.init_device_mesh((comm.size,), comm=comm)
    return da.DeviceMesh([*reversed(range(comm.size))])


def who(said: str, comm) -> str:
    """Return what the message says of the last rank of the world."""
    found = re.search(rf"rank {comm.size - 1}: ([^;]*)", said)
    assert found is not None, said
    return found[1]


def test_different_redistributions_name_ranks_of_the_world(comm, mesh):
    x = da.distribute_array(np.arange(48.0).reshape(8, 6), mesh, [Shard(0)], src=None)
    wanted = Replicate() if comm.rank == 0 else Shard(1)
    with pytest.raises(MismatchError) as caught:
        x.redistribute([wanted])
    assert who(str(caught.value), comm).startswith("all-gather"), str(caught.value)


def test_different_collectives_name_ranks_of_the_world(comm, mesh):
    ours = mesh.communicator()
    with pytest.raises(MismatchError) as caught:
        ours.agree(2 if comm.rank == 0 else 1, f"step of world rank {ours.world_ranks[ours.rank]}")
    assert who(str(caught.value), comm).startswith(f"step of world rank {comm.size - 1}")


def test_different_blocks_name_ranks_of_the_world(comm, mesh):
    block = np.ones((2, 2), np.float32 if comm.rank == 0 else np.float64)
    with pytest.raises(DTypeError) as caught:
        da.DistArray.from_local(block, mesh, [Shard(0)])
    assert who(str(caught.value), comm) == "<f4"


def test_an_error_that_one_rank_tells_the_others_names_it_as_the_world_does(comm, mesh):
    source = -1 if comm.rank == 0 else 0
    with pytest.raises(ArgumentError, match=rf"on rank {comm.size - 1}: src=-1|^src=-1"):
        da.distribute_array(np.ones(4), mesh, [Shard(0)], src=source)


def test_operands_that_differ_are_found_where_that_is_checked(comm, mesh):
    add = _replicas.compare_arguments(da.add, "add")
    x = da.asarray(np.arange(6.0), mesh=mesh)
    with pytest.raises(MismatchError, match=r"add on .* x2 differs") as caught:
        add(x, np.full(6, float(comm.rank == 0)))
    assert who(str(caught.value), comm).startswith("float64 of shape (6,)")
    np.testing.assert_array_equal(add(x, np.ones(6)).full_array(), np.arange(1.0, 7.0))
