"""Meshes of processes: who is where, which sub-meshes and communicators hold them, defaults."""

from __future__ import annotations

import pickle
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import (
    DeviceMesh,
    default_mesh,
    default_placements,
    init_device_mesh,
    use_mesh,
    world,
)
from distarray.errors import (
    ArgumentTypeError,
    CommunicationError,
    DeviceError,
    MeshError,
    PlacementError,
)
from distarray.layout import AbstractMesh, Partial, Replicate, Shard
from distarray.testing import simulate


def test_equal_calls_give_the_same_mesh():
    def run():
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        assert init_device_mesh([2, 2], axis_names=["dp", "tp"], device="cpu") is mesh
        assert DeviceMesh([[0, 1], [2, 3]], ("dp", "tp")) is mesh
        assert DeviceMesh(np.arange(4).reshape(2, 2), ("dp", "tp"), comm=world()) is mesh
        assert init_device_mesh((2, 2)) is not mesh
        assert DeviceMesh([[0, 2], [1, 3]], ("dp", "tp")) is not mesh
        return mesh

    meshes = simulate(4, run)
    assert len(set(meshes)) == 4
    assert len({mesh.abstract for mesh in meshes}) == 1


def test_mesh_knows_its_ranks_and_where_this_process_is():
    def run():
        mesh = DeviceMesh([[[4, 1]], [[0, 5]]], ("a", "b", "c"))
        assert (mesh.shape, mesh.ndim, mesh.size) == ((2, 1, 2), 3, 4)
        assert mesh.ranks == (((4, 1),), ((0, 5),))
        assert tuple(mesh.flat_ranks) == (4, 1, 0, 5)
        assert mesh.abstract is AbstractMesh((2, 1, 2), ("a", "b", "c"), ranks=(4, 1, 0, 5))
        assert mesh.rank == world().rank
        return mesh.coordinate

    coordinates = simulate(6, run)
    assert coordinates == [(1, 0, 0), (0, 0, 1), None, None, (0, 0, 0), (1, 0, 1)]


def test_mesh_is_immutable_and_not_iterable():
    mesh = simulate(1, lambda: init_device_mesh((1,)))[0]
    with pytest.raises(AttributeError, match="immutable"):
        mesh.device = "cuda"
    with pytest.raises(TypeError):
        iter(mesh)


@settings(max_examples=30)
@given(st.data())
def test_communicators_hold_the_ranks_of_their_axes_in_row_major_order(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    size = prod(shape)
    extra = data.draw(st.integers(0, 2))
    ranks = data.draw(st.permutations(range(size + extra)))[:size]
    axes = data.draw(st.permutations(range(len(shape))))
    axes = tuple(axes[: data.draw(st.integers(1, len(shape)))])
    grid = np.array(ranks).reshape(shape)

    def run():
        mesh = DeviceMesh(grid)
        if mesh.coordinate is None:
            with pytest.raises(MeshError, match="is not in"):
                mesh.communicator(axes)
            return
        communicator = mesh.communicator(axes)
        index = tuple(
            slice(None) if axis in axes else where for axis, where in enumerate(mesh.coordinate)
        )
        kept = sorted(axes)
        expected = grid[index].transpose([kept.index(axis) for axis in axes])
        assert communicator.ranks == tuple(expected.reshape(-1).tolist())
        assert communicator.all_gather_object(mesh.rank) == list(communicator.ranks)
        assert mesh.communicator(axes) is communicator
        names = [mesh.axis_names[axis] for axis in axes]
        assert mesh.communicator(names) is communicator
        sub = mesh[tuple(names)]
        assert sub.coordinate == tuple(mesh.coordinate[axis] for axis in axes)
        assert tuple(sub.flat_ranks) == communicator.ranks
        assert mesh.axes_of(sub) == axes

    simulate(size + extra, run)


def test_communicators_are_named_after_their_mesh_axes():
    def run():
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        named = [mesh.communicator(axes).name for axes in ("dp", 1, ("tp", "dp"), None)]
        assert named == ["dp", "tp", "mesh", "mesh"]
        line = default_mesh()
        assert line.communicator() is line.communicator(0)
        assert line.communicator().name == "axis0"

    simulate(4, run)


def test_submesh_holds_this_process_and_is_the_same_however_it_is_made():
    def run():
        mesh = init_device_mesh((2, 3), ("dp", "tp"))
        row, column = mesh.coordinate
        tp = mesh["tp"]
        assert tp.ranks == tuple(3 * row + i for i in range(3))
        assert tp.coordinate == (column,)
        assert DeviceMesh(tp.ranks, ("tp",)) is tp is mesh["tp",]
        assert (tp.parent, tp.parent_axes) == (mesh, (1,))
        assert mesh["dp", "tp"] is mesh
        assert mesh["tp", "dp"].shape == (3, 2)
        assert mesh.axes_of(mesh["tp", "dp"]) == (1, 0)
        assert mesh.axes_of(default_mesh()) is None
        assert mesh.axes_of(DeviceMesh([0, 4, 5], ("tp",))) is None

    simulate(6, run)


def test_submesh_for_a_process_outside_is_the_first_and_does_not_hold_it():
    def run():
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        if world().rank == 4:
            assert mesh["tp"].ranks == (0, 1)
            assert mesh["tp"].coordinate is None

    simulate(5, run)


def test_union_communicator_holds_the_processes_of_both_meshes():
    def run():
        a, b = DeviceMesh([3, 1]), DeviceMesh([[1, 2]])
        union = a.communicator_with(b)
        if world().rank in (1, 2, 3):
            assert union.ranks == (1, 2, 3)
            assert union.all_gather_object(world().rank) == [1, 2, 3]
        else:
            assert union is None
        if world().rank < 2:
            inner = DeviceMesh([0, 1], comm=world().subgroup((0, 1)))
            with pytest.raises(MeshError, match="different communicators"):
                a.communicator_with(inner)

    simulate(5, run)


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: init_device_mesh((2, 2)), MeshError, r"ranks 2 to 3, not among.*mpiexec -n 4"),
        (lambda: DeviceMesh([0, 5]), MeshError, r"rank 5.*2 processes.*mpiexec -n 6"),
        (lambda: DeviceMesh([0, 0]), MeshError, "twice"),
        (lambda: DeviceMesh([0, -1]), MeshError, "-1"),
        (lambda: DeviceMesh([[0, 1], [2]]), MeshError, "rows of lengths"),
        (lambda: DeviceMesh([0, [1]]), ArgumentTypeError, "one depth"),
        (lambda: DeviceMesh("01"), ArgumentTypeError, "nested sequences"),
        (lambda: DeviceMesh(2), ArgumentTypeError, "init_device_mesh"),
        (lambda: DeviceMesh([0.5, 1]), ArgumentTypeError, "integers"),
        (lambda: DeviceMesh([]), MeshError, "at least one"),
        (lambda: init_device_mesh((0,)), MeshError, "at least one"),
        (lambda: init_device_mesh((2,), ("a", "b")), MeshError, "axis_names"),
        (lambda: init_device_mesh((1, 2), ("a", "a")), MeshError, "differ"),
        (lambda: init_device_mesh((2,), device="tpu"), DeviceError, "'tpu'"),
        (lambda: init_device_mesh((2,), device="cuda:x"), DeviceError, "cuda:x"),
        (lambda: init_device_mesh((1, 2))["tp"], MeshError, "'tp'"),
        (lambda: init_device_mesh((1, 2))[2], MeshError, "2"),
        (lambda: init_device_mesh((1, 2))[()], MeshError, "at least one"),
        (lambda: init_device_mesh((1, 2))["axis0", 0], MeshError, "at most once"),
        (lambda: init_device_mesh((2,)).comm(), CommunicationError, "mpiexec"),
        (lambda: use_mesh(AbstractMesh((2,))).__enter__(), ArgumentTypeError, "DeviceMesh"),
        (lambda: use_mesh(default_mesh(), [Shard(0)] * 2).__enter__(), PlacementError, "1 axes"),
        (lambda: use_mesh(default_mesh(), [Partial()]).__enter__(), PlacementError, "Partial"),
        (lambda: use_mesh(default_mesh(), ["S"]).__enter__(), PlacementError, "Shard"),
        (lambda: use_mesh(default_mesh(), 3).__enter__(), PlacementError, "Shard"),
    ],
)
def test_bad_meshes_raise_the_same_error_on_every_rank(make, error, told):
    def run():
        with pytest.raises(error, match=told) as raised:
            make()
        return str(raised.value)

    assert len(set(simulate(2, run))) == 1


def test_default_mesh_is_one_axis_over_all_ranks():
    def run():
        mesh = default_mesh()
        assert mesh is default_mesh() is init_device_mesh((3,))
        assert default_placements(mesh, 2) == (Shard(0),)
        assert default_placements(mesh, 0) == (Replicate(),)
        grid = init_device_mesh((1, 3))
        assert default_placements(grid, 1) == (Shard(0), Replicate())

    simulate(3, run)


def test_use_mesh_replicates_what_is_created_small():
    def run():
        mesh = init_device_mesh((2,))
        with use_mesh(mesh, min_items=7):
            assert default_placements(mesh, 1, 6) == (Replicate(),)
            assert default_placements(mesh, 1, 7) == default_placements(mesh, 1) == (Shard(0),)
            assert da.zeros((2, 3)).layout.is_replicated
            assert da.asarray([1.0] * 7).layout.placements == (Shard(0),)
        assert da.zeros(6).layout.placements == (Shard(0),)
        with pytest.raises(ArgumentTypeError, match="min_items"), use_mesh(mesh, min_items=0.5):
            pass

    simulate(2, run)


def test_use_mesh_nests_and_ends_also_by_an_error():
    def run():
        outer, inner = init_device_mesh((2, 1)), init_device_mesh((1, 2))
        with use_mesh(outer, [Shard(1), Shard(-1)]) as given_mesh:
            assert given_mesh is default_mesh() is outer
            assert default_placements(outer, 2) == (Shard(1), Shard(-1))
            assert default_placements(outer, 1) == (Replicate(), Shard(-1))
            assert default_placements(outer, 0) == (Replicate(), Replicate())
            assert default_placements(inner, 2) == (Shard(0), Replicate())
            with use_mesh(inner):
                assert default_mesh() is inner
                assert default_placements(inner, 1) == (Shard(0), Replicate())
            with pytest.raises(ZeroDivisionError), use_mesh(inner):
                raise ZeroDivisionError
            assert default_mesh() is outer
        assert default_mesh().ndim == 1

    simulate(2, run)


def test_mesh_of_all_ranks_survives_pickling():
    def run():
        mesh = DeviceMesh([[1, 0]], ("a", "b"))
        assert pickle.loads(pickle.dumps(mesh)) is mesh
        pair = DeviceMesh([0, 1], comm=world().subgroup((0, 1)))
        with pytest.raises(MeshError, match=r"mesh\.abstract"):
            pickle.dumps(pair)

    simulate(2, run)


def test_too_few_ranks_are_those_of_the_program_or_of_the_communicator() -> None:
    def program() -> None:
        with pytest.raises(
            MeshError, match="the 4 processes of this program; start it with mpiexec -n 6"
        ):
            init_device_mesh((6,))
        line = init_device_mesh((2, 2))["axis0"].communicator()
        with pytest.raises(
            MeshError, match="the 2 processes of comm=; pass a communicator of more"
        ):
            init_device_mesh((6,), comm=line)

    simulate(4, program)


def test_a_mesh_over_a_communicator_is_of_its_ranks_whatever_their_numbers() -> None:
    def program() -> None:
        grid = init_device_mesh((2, 2), ("dp", "tp"))
        line = grid["dp"].communicator()
        mesh = init_device_mesh((2,), comm=line)
        assert tuple(mesh.flat_ranks) == tuple(line.ranks)
        assert mesh.coordinate == (grid.coordinate[0],)
        assert init_device_mesh((1, 1), comm=line).flat_ranks[0] == line.ranks[0]

    simulate(4, program)
