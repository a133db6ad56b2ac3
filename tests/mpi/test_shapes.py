"""Indices, assignment, reshapes, joins and products under real MPI, within and between nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from distarray.array._array import DistArray, distribute_array
from distarray.comm import DeviceMesh
from distarray.comm.shared_memory import _arena
from distarray.errors import IndexingError
from distarray.layout import Replicate, Shard
from distarray.ops.manipulation import _joining as joining
from distarray.ops.manipulation import _shape as shaping
from distarray.redistribute import _joined

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


PER_NODE = {"one node": 0, "a node per rank": 1, "two ranks a node": 2}


@pytest.fixture(scope="module", params=PER_NODE)
def comm(request: pytest.FixtureRequest) -> Iterator[Any]:
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        per_node = PER_NODE[request.param]
        if per_node:
            if MPI.COMM_WORLD.size <= per_node:
                pytest.skip("all ranks are on one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", str(per_node))
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


def large(comm: Any, columns: int, rows: int = 5) -> tuple[np.ndarray, DistArray]:
    """Make an array of some rows a rank, and one row more, in memory that others can read."""
    whole = np.arange((rows * comm.size + 1.0) * columns).reshape(-1, columns)
    x = distribute_array(whole, DeviceMesh(list(range(comm.size)), comm=comm), [Shard(0)], src=None)
    return whole, x + 0


def test_joins_of_blocks_of_all_sizes_agree_with_numpy(comm: Any) -> None:
    a, x = large(comm, 4000)
    for chosen in ((x, x[2:4], x[1:2], -x), (x[:1], x, x[3:5]), (x, -x), (x[:2], -x[:2])):
        for _ in range(3):  # also where memory is what others have read before
            expected = np.concatenate([one.full_array() for one in chosen])
            same(joining.concat(chosen), expected)
    for shift in (1, 7, -2):
        same(np.roll(x, shift, 0), np.roll(a, shift, 0))
    same(np.tile(x, (3, 1)), np.tile(a, (3, 1)))


def test_operands_change_once_a_join_is_done(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late one of the ranks copies what it needs of them."""
    a, x = large(comm, 4000)
    y = x + 1
    copy, late = _joined.copy_boxes, -1

    def copy_late(*args: Any, **options: Any) -> None:
        time.sleep(0.02 * (comm.rank == late))
        copy(*args, **options)

    monkeypatch.setattr(_joined, "copy_boxes", copy_late)
    for turn in range(2 * comm.size):
        late = turn % comm.size
        joined = joining.concat([x, y])
        x += 1
        y += 1
        same(joined, np.concatenate([a, a + 1]) + turn)


def rounds_of(x: DistArray, call: Callable[[], Any]) -> int:
    """Count the rounds of a second call."""
    call()
    channel = x.mesh.communicator((0,))._group.connect()  # type: ignore[attr-defined]
    before = channel.joined
    call()
    return int(channel.joined - before)


@pytest.mark.host_only
def test_each_operand_is_read_in_one_round(comm: Any) -> None:
    _, x = large(comm, 4000)
    y = -x
    if comm.size == 1 or not x.mesh.communicator((0,)).reaches_all():
        pytest.skip("no rank reads what others have")
    assert rounds_of(x, lambda: np.roll(x, 1, 0)) == 2
    assert rounds_of(x, lambda: joining.concat([x, y])) == 3
    assert rounds_of(x, lambda: np.take(x, [5, 0], 0)) == 2  # every rank knows these
    small = x[:, :1000] + 0
    assert rounds_of(x, lambda: small.redistribute([Shard(1)])) == 1
    assert rounds_of(x, lambda: joining.concat([small, small])) == 1


@pytest.mark.host_only
def test_parts_of_all_operands_travel_in_one_exchange(comm: Any) -> None:
    _, x = large(comm, 4000)
    y = -x
    group = x.mesh.communicator((0,))._group  # type: ignore[attr-defined]
    if comm.size == 1 or x.mesh.communicator((0,)).reaches_some():
        pytest.skip("ranks read what others have")
    for call in (lambda: np.roll(x, 1, 0), lambda: joining.concat([x, y, x[1:3]])):
        call()
        before = group.joined
        call()
        assert group.joined - before == 1


@pytest.mark.host_only
def test_few_rows_that_others_read_do_not_make_a_block_lent(comm: Any) -> None:
    _, x = large(comm, 4000, rows=20)
    if comm.size == 1 or not x.mesh.communicator((0,)).reaches_all():
        pytest.skip("no rank reads what others have")
    lease = _arena.lease_of(x._local)
    assert lease is not None
    np.roll(x, 1, 0)
    assert lease._stretch[0] not in _arena.arena().lent
