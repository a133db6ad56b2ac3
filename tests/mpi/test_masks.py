"""Boolean masks under real MPI: the counts of all ranks make the boundaries of the result."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog, world
from distarray.errors import MeshError, MismatchError, ShapeError
from distarray.layout import Replicate, Shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


def test_masks_of_all_placements_select_what_numpy_selects() -> None:
    size = world().size
    values = np.random.default_rng(1).normal(size=(5 * size + 3, 6))
    meshes = [da.DeviceMesh(list(range(size)))]
    if size == 4:
        meshes.append(da.DeviceMesh([[0, 1], [2, 3]]))
    for mesh in meshes:
        for first in (Shard(0), Shard(1), Replicate()):
            for second in (Shard(0), Replicate()):
                placements = [first, second][: mesh.ndim]
                x = da.distribute_array(values, mesh, placements, src=None)
                for mask in (values > 0.5, values[:, 1] > 0, values > 99, values < 99):
                    cut = da.distribute_array(mask, mesh, [second] * mesh.ndim, src=None)
                    for key in (mask, cut):
                        y = x[key]
                        assert y.shape == values[mask].shape
                        np.testing.assert_array_equal(y.full_array(), values[mask])
                        z = (y + y).rebalance()
                        np.testing.assert_array_equal(z.full_array(), 2 * values[mask])


def test_8_bytes_of_each_rank_are_sent() -> None:
    size = world().size
    x = da.arange(4000.0)
    mask = x % 3 == 0
    for _ in range(3):
        with CommLog() as log:
            y = x[mask]
        assert log.bytes() == 8 * (size - 1)
    assert y.shape == (1334,)
    assert float(y.sum()) == sum(range(0, 4000, 3))


def test_values_are_written_where_masks_select() -> None:
    size = world().size
    values = np.random.default_rng(2).normal(size=(5 * size + 3, 6))
    for placement in (Shard(0), Shard(1), Replicate()):
        x = da.distribute_array(values.copy(), placements=[placement], src=None)
        expected = values.copy()
        mask = x > 0.2
        own = values > 0.2
        x[mask] = -x[mask]
        expected[own] = -expected[own]
        x[own[:, 0], 1:3] = np.arange(own[:, 0].sum())[:, None]
        expected[own[:, 0], 1:3] = np.arange(own[:, 0].sum())[:, None]
        x[mask[:, 1]] = 7
        expected[own[:, 1]] = 7
        with pytest.raises(ShapeError, match="as many, or one"):
            x[mask] = np.zeros(own.sum() + 1)
        np.testing.assert_array_equal(x.full_array(), expected)
        for found, known in zip(da.nonzero(mask), np.nonzero(own), strict=True):
            np.testing.assert_array_equal(found.full_array(), known)
        np.testing.assert_array_equal(da.argwhere(mask).full_array(), np.argwhere(own))
        da.place(x, mask, [1, 2, 3])
        np.place(expected, own, [1, 2, 3])
        np.testing.assert_array_equal(x.full_array(), expected)


def test_a_rank_outside_the_mesh_knows_what_a_plain_mask_selects() -> None:
    size = world().size
    if size == 1:
        pytest.skip("there is no rank to leave out")
    mesh = da.DeviceMesh(list(range(size - 1)))
    x = da.distribute_array(np.arange(10.0), mesh, src=None)
    found = x[np.arange(10) > 3]
    assert found.shape == (6,)
    if mesh.coordinate is None:
        assert found.to_local().size == 0
        with pytest.raises(MeshError, match="cannot know the shape"):
            x[x > 3]
    else:
        np.testing.assert_array_equal(found.full_array(), np.arange(4.0, 10.0))
        np.testing.assert_array_equal(x[x > 3].full_array(), np.arange(4.0, 10.0))


def test_ranks_that_select_from_other_layouts_are_told_apart() -> None:
    if world().size == 1:
        pytest.skip("one rank agrees with itself")
    x = da.ones((8 + (world().rank == 1),))
    with pytest.raises(MismatchError):
        x[np.ones(x.shape, bool)]
    assert da.ones((8,))[np.ones(8, bool)].shape == (8,)
