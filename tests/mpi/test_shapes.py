"""Indices, assignment, reshapes, joins and products under real MPI, within and between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from distarray.array._array import DistArray, distribute_array
from distarray.comm import DeviceMesh
from distarray.errors import IndexingError
from distarray.layout import Replicate, Shard
from distarray.ops.manipulation import _joining as joining
from distarray.ops.manipulation import _shape as shaping

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(30)]

WHOLE = np.arange(7 * 12.0).reshape(7, 12)

READS: dict[str, Callable[[Any], Any]] = {
    "an item of a cut axis": lambda x: x[5],
    "one value": lambda x: x[-1, 3],
    "every second row backwards": lambda x: x[::-2],
    "both axes backwards": lambda x: np.flip(x),
    "in flat order": lambda x: x.reshape(-1),
    "rows across blocks": lambda x: x.reshape(12, 7),
    "two halves": lambda x: x.reshape(2, 42),
    "rolled": lambda x: np.roll(x, 3, 0),
    "joined": lambda x: np.concatenate([x, x[2:5]], 0),
    "transposed product": lambda x: x @ x.T,
    "inner product": lambda x: x.T @ x,
    "repeated": lambda x: np.repeat(x, 2, 0),
}


@pytest.fixture(scope="module", params=["one node", "a node per rank"])
def comm(request: pytest.FixtureRequest) -> Iterator[Any]:
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        if request.param != "one node":
            if MPI.COMM_WORLD.size == 1:
                pytest.skip("one rank is one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", "1")
        made = MPI.COMM_WORLD.Dup()
        yield made
        made.Barrier()


@pytest.fixture(params=[0, 1], ids=["rows", "columns"])
def x(comm: Any, request: pytest.FixtureRequest) -> DistArray:
    mesh = DeviceMesh(list(range(comm.size)), comm=comm)
    return distribute_array(WHOLE, mesh, [Shard(request.param)], src=None)


def same(result: DistArray, expected: Any) -> None:
    np.testing.assert_array_equal(result.full_array(), expected)


@pytest.mark.parametrize("name", READS)
def test_result_agrees_with_numpy(x: DistArray, name: str) -> None:
    same(READS[name](x), READS[name](WHOLE))


def test_assignment_agrees_with_numpy(x: DistArray) -> None:
    expected = WHOLE.copy()
    x[2:6, ::-3] += 1
    expected[2:6, ::-3] += 1
    x[1:] = x[:-1]
    expected[1:] = expected[:-1].copy()
    x[3] = x[4, ::-1]
    expected[3] = expected[4, ::-1]
    same(x, expected)


def test_process_outside_the_mesh_takes_part(comm: Any) -> None:
    mesh = DeviceMesh([comm.size - 1], comm=comm)
    y = distribute_array(WHOLE, mesh, [Shard(0)], src=None)
    for name in ("an item of a cut axis", "rows across blocks", "transposed product"):
        result = READS[name](y)
        if mesh.coordinate is not None:
            same(result, READS[name](WHOLE))
    z = distribute_array(np.zeros((7, 12)), DeviceMesh([0], comm=comm), [Replicate()], src=None)
    z[2:] = y[2:]
    if z.mesh.coordinate is not None:
        same(z[2:], WHOLE[2:])


def test_bad_index_leaves_the_ranks_in_step(x: DistArray) -> None:
    with pytest.raises(IndexingError):
        x[7]
    with pytest.raises(ValueError, match="cannot become"):
        x.reshape(5, 5)
    same(joining.concat([x, x], axis=1), np.concatenate([WHOLE, WHOLE], 1))
    same(shaping.moveaxis(x, 0, 1), WHOLE.T)
