"""Meshes: rank and coordinate, sub-meshes and groups, and what cannot be a mesh."""

from __future__ import annotations

import pickle
import time
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.errors import ArgumentTypeError, MeshError
from distarray.layout import AbstractMesh
from tests.layout.strategies import meshes


def test_attributes_with_default_names_and_ranks() -> None:
    mesh = AbstractMesh((2, 3))
    assert (mesh.shape, mesh.ndim, mesh.size) == ((2, 3), 2, 6)
    assert mesh.axis_names == ("axis0", "axis1")
    assert list(mesh.ranks) == list(range(6))
    assert mesh.abstract is mesh
    assert mesh.coordinate is None
    assert mesh.rank is None


@given(meshes())
@settings(max_examples=60)
def test_rank_and_coordinate_are_inverse_on_every_mesh(mesh: AbstractMesh) -> None:
    grid = np.array(mesh.ranks).reshape(mesh.shape)
    for coordinate in product(*map(range, mesh.shape)):
        rank = mesh.rank_at(coordinate)
        assert rank == grid[coordinate]
        assert mesh.coordinate_of(rank) == coordinate
        assert rank in mesh
    outside = max(mesh.ranks) + 1
    assert mesh.coordinate_of(outside) is None
    assert outside not in mesh


@given(meshes(), st.data())
@settings(max_examples=60)
def test_groups_partition_ranks_along_the_named_axes(mesh: AbstractMesh, data: Any) -> None:
    axes = data.draw(st.permutations(range(mesh.ndim)))[: data.draw(st.integers(0, mesh.ndim))]
    groups = mesh.groups(axes)
    assert sorted(rank for group in groups for rank in group) == sorted(mesh.ranks)
    grid = np.array(mesh.ranks).reshape(mesh.shape)
    others = [axis for axis in range(mesh.ndim) if axis not in axes]
    width = int(np.prod([mesh.shape[axis] for axis in axes], dtype=int))
    assert groups == [tuple(row) for row in grid.transpose(*others, *axes).reshape(-1, width)]


@given(meshes(), st.data())
@settings(max_examples=60)
def test_submesh_holds_the_coordinate_and_varies_the_named_axes(
    mesh: AbstractMesh, data: Any
) -> None:
    count = data.draw(st.integers(1, mesh.ndim))
    axes = data.draw(st.permutations(range(mesh.ndim)))[:count]
    coordinate = tuple(data.draw(st.integers(0, n - 1)) for n in mesh.shape)
    sub = mesh.submesh([mesh.axis_names[axis] for axis in axes], coordinate)
    assert sub.axis_names == tuple(mesh.axis_names[axis] for axis in axes)
    for inner in product(*map(range, sub.shape)):
        full = list(coordinate)
        for axis, index in zip(axes, inner, strict=True):
            full[axis] = index
        assert sub.rank_at(inner) == mesh.rank_at(full)


@given(meshes())
@settings(max_examples=40)
def test_equal_meshes_are_one_object_also_after_pickle(mesh: AbstractMesh) -> None:
    again = AbstractMesh(list(mesh.shape), list(mesh.axis_names), ranks=list(mesh.ranks))
    assert again is mesh
    assert pickle.loads(pickle.dumps(mesh)) is mesh
    assert eval(repr(mesh)) is mesh


def test_equally_spaced_ranks_in_any_spelling_are_one_mesh() -> None:
    mesh = AbstractMesh((4,), ranks=[0, 2, 4, 6])
    assert AbstractMesh((4,), ranks=range(0, 7, 2)) is mesh
    assert AbstractMesh(np.array([4]), ranks=np.arange(0, 8, 2)) is mesh  # type: ignore[arg-type]
    assert AbstractMesh((3,), ranks=[2, 1, 0]) is not AbstractMesh((3,))


def test_axis_by_name_and_negative_index() -> None:
    mesh = AbstractMesh((2, 4), axis_names=("dp", "tp"))
    assert mesh.axis_index("tp") == mesh.axis_index(-1) == 1
    assert mesh.axis_indices(("tp", 0)) == (1, 0)
    assert mesh.axis_indices("dp") == (0,)


def test_unknown_axis_raises_and_lists_the_known() -> None:
    mesh = AbstractMesh((2, 4), axis_names=("dp", "tp"))
    with pytest.raises(MeshError, match=r"'pp'.*dp, tp"):
        mesh.axis_index("pp")
    with pytest.raises(MeshError, match="no mesh axis 2"):
        mesh.axis_index(2)
    with pytest.raises(MeshError, match="at most once"):
        mesh.axis_indices(("dp", 0))


@pytest.mark.parametrize("coordinate", [(0,), (2, 0), (0, -1), (0, 0, 0)])
def test_coordinate_outside_raises(coordinate: tuple[int, ...]) -> None:
    with pytest.raises(MeshError, match=r"not in the mesh axis0=2, axis1=4"):
        AbstractMesh((2, 4)).rank_at(coordinate)


def test_indexing_by_axis_raises_and_names_submesh() -> None:
    with pytest.raises(MeshError, match=r"submesh\('tp', coordinate\)"):
        AbstractMesh((2,), ("tp",))["tp"]
    with pytest.raises(TypeError):
        iter(AbstractMesh((2,)))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"shape": (2, 0)}, MeshError, "at least one rank"),
        ({"shape": (2.5,)}, ArgumentTypeError, "integers"),
        ({"shape": (2,), "ranks": [0]}, MeshError, "1 ranks for a mesh of shape"),
        ({"shape": (2,), "ranks": [1, 1]}, MeshError, "rank 1 appears twice"),
        ({"shape": (3,), "ranks": [5, 0, 5]}, MeshError, "rank 5 appears twice"),
        ({"shape": (2,), "ranks": [0, -1]}, MeshError, "not negative"),
        ({"shape": (2,), "ranks": [[0], [1]]}, ArgumentTypeError, "flat sequence"),
        ({"shape": (2, 2), "axis_names": ("a",)}, MeshError, "it needs 2"),
        ({"shape": (2, 2), "axis_names": ("a", "a")}, MeshError, "must differ"),
        ({"shape": (2,), "axis_names": (0,)}, ArgumentTypeError, "non-empty string"),
        ({"shape": (2,), "axis_names": ("",)}, ArgumentTypeError, "non-empty string"),
    ],
)
def test_description_that_is_no_mesh_raises(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        AbstractMesh(**arguments)


def test_mesh_of_a_million_ranks_costs_nothing() -> None:
    start = time.process_time()
    mesh = AbstractMesh((100, 100, 100))
    assert mesh.rank_at((7, 8, 9)) == 70809
    assert mesh.coordinate_of(70809) == (7, 8, 9)
    assert mesh.submesh((0,), (7, 8, 9)).ranks == range(809, 1000809, 10000)
    assert time.process_time() - start < 0.05
    assert len(pickle.dumps(mesh)) < 1000
