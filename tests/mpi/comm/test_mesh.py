"""Meshes over MPI: private communicators, subsets of ranks, shared memory by node."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from distarray.comm import DeviceMesh, default_mesh, init_device_mesh, world
from distarray.comm._launcher import node_name
from distarray.errors import ArgumentTypeError, MeshError

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def mpi():
    from mpi4py import MPI

    return MPI


def test_world_is_all_ranks_of_mpi(mpi):
    assert (world().rank, world().size) == (mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size)
    assert world() is world()
    assert default_mesh().coordinate == (mpi.COMM_WORLD.rank,)


def test_communicators_are_private(mpi):
    mesh = default_mesh()
    own, users = mesh.communicator().mpi, mesh.comm()
    for comm in (own, users):
        assert mpi.Comm.Compare(comm, mpi.COMM_WORLD) == mpi.CONGRUENT
    assert mpi.Comm.Compare(own, users) == mpi.CONGRUENT
    assert mesh.comm() is users
    assert mesh.comm("axis0") is users


def test_messages_of_the_user_and_of_the_library_do_not_meet(mpi):
    c = world()
    if c.size == 1:
        pytest.skip("takes two ranks")
    users = default_mesh().comm()
    right, left = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    theirs = np.empty(1)
    request = users.Irecv(theirs, left, 0)
    mine = np.empty(1)
    if c.rank:
        c.recv(mine, left, tag=0)
    c.send(np.array([1.0]), right, tag=0)
    if not c.rank:
        c.recv(mine, left, tag=0)
    users.Send(np.array([2.0]), right, 0)
    request.Wait()
    assert (mine[0], theirs[0]) == (1.0, 2.0)


def test_mesh_over_some_ranks_needs_only_these():
    c = world()
    if c.size < 3:
        pytest.skip("takes three ranks")
    mesh = DeviceMesh([c.size - 1, 0])
    if mesh.coordinate is not None:  # the others do nothing at all
        got = mesh.communicator().all_gather_object(c.rank)
        assert got == [c.size - 1, 0]
        assert mesh.comm().allgather(c.rank) == got


def test_rows_and_columns_communicate_among_themselves():
    c = world()
    if c.size < 4:
        pytest.skip("takes four ranks")
    mesh = init_device_mesh((2, 2), ("dp", "tp"))
    if mesh.coordinate is None:
        return
    row, column = mesh.coordinate
    assert mesh.communicator("tp").all_gather_object(c.rank) == [2 * row, 2 * row + 1]
    assert mesh.communicator("dp").all_gather_object(c.rank) == [column, 2 + column]
    assert mesh.communicator(("tp", "dp")).all_gather_object(c.rank) == [0, 2, 1, 3]


def test_mesh_over_a_communicator_of_the_user_outlives_it(mpi):
    half = mpi.COMM_WORLD.Split(mpi.COMM_WORLD.rank % 2, key=-mpi.COMM_WORLD.rank)
    mesh = init_device_mesh((half.size,), comm=half)
    assert init_device_mesh((half.size,), comm=half) is mesh
    assert mesh.rank == half.rank
    assert mesh.coordinate == (half.rank,)
    members = half.allgather(mpi.COMM_WORLD.rank)
    half.Free()
    assert mesh.communicator().all_gather_object(mpi.COMM_WORLD.rank) == members
    assert init_device_mesh((1,), comm=mpi.COMM_SELF).rank == 0
    assert init_device_mesh((1,), comm=mpi.COMM_WORLD) is init_device_mesh((1,))


@pytest.mark.parametrize("call", ["all_gather_object", "all_reduce"])
def test_threads_with_a_communicator_each_make_first_calls_in_any_order(mpi, call):
    c = world()
    copies = [mpi.COMM_WORLD.Dup() for _ in range(2)]
    meshes = [init_device_mesh((c.size,), comm=copy) for copy in copies]
    seen = {}

    def meet(i):
        mine = i if call == "all_gather_object" else np.array([i])
        seen[i] = getattr(meshes[i].communicator(), call)(mine)

    threads = [threading.Thread(target=meet, args=(i,)) for i in range(2)]
    for thread in threads if c.rank % 2 else reversed(threads):
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    for i in range(2):
        assert seen[i] == ([i] * c.size if call == "all_gather_object" else i * c.size)
    for copy in copies:
        copy.Free()


def test_communicators_that_cannot_carry_a_mesh_are_refused(mpi):
    with pytest.raises(MeshError, match="COMM_NULL"):
        init_device_mesh((1,), comm=mpi.COMM_NULL)
    with pytest.raises(ArgumentTypeError, match="'world'"):
        init_device_mesh((1,), comm="world")
    size = mpi.COMM_WORLD.size
    with pytest.raises(MeshError, match=f"mpiexec -n {size + 2}"):
        init_device_mesh((size + 2,))


def test_duplicate_background_and_free():
    c = world()
    copy = c.duplicate()
    out = np.empty(c.size)
    request = c.start_all_gather(np.ones(1), out)
    assert copy.all_gather_object(c.rank) == list(range(c.size))
    request.wait()
    assert out.tolist() == [1.0] * c.size
    assert c.background().mpi is c.background().mpi
    assert c.background().mpi is not c.mpi
    copy.free()
    assert c.all_gather_object(c.rank) == list(range(c.size))


def test_pretended_nodes_share_memory_only_inside(monkeypatch):
    if os.environ.get("DISTARRAY_RANKS_PER_NODE"):
        pytest.skip("the world consists of such nodes already")
    monkeypatch.setenv("DISTARRAY_RANKS_PER_NODE", "2")
    c = world().duplicate()
    assert node_name(0) == node_name(1)
    assert node_name(1) != node_name(2)
    with c.views(np.array([c.rank]), 1) as views:
        seen = [None if view is None else int(view[0]) for view in views]
    shared = world().reaches_all()  # where the system does not let us, there is nothing to see
    near = [r for r in range(c.size) if r == c.rank or (shared and r // 2 == c.rank // 2)]
    assert seen == [r if r in near else None for r in range(c.size)]
    assert c.reaches_all() == (shared and c.size <= 2)
    assert c.reaches_some() == (shared and c.size > 1)
    c.free()
