"""Bad input raises on every rank, before values are sent, and the next operation is right.

What all ranks pass alike raises the same error with the same message everywhere, and our own. What
differs between ranks raises on all of them too, instead of leaving some waiting; that holds within
a node, where shared memory is read, and between nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DistArrayError,
    DTypeError,
    IndexingError,
    LayoutError,
    MeshError,
    MismatchError,
    PlacementError,
    ShapeError,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

V = np.arange(48.0).reshape(8, 6)
OBJECTS = np.array([[object()]])
RAGGED = [[1], [2, 3]]


class Data:
    """Good arrays to do bad things with, and what to check them by."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.n = comm.size
        self.odd = comm.rank == comm.size - 1
        self.mesh = da.init_device_mesh((self.n,), comm=comm)
        self.grid = da.init_device_mesh((1, self.n), ("a", "b"), comm=comm)
        self.x = da.distribute_array(V, self.mesh, [Shard(0)])
        self.y = da.distribute_array(V, self.mesh, [Shard(1)])
        self.i = da.astype(self.x, int)
        self.b = self.x > 3
        self.p = da.DistArray.from_local(V.copy(), self.mesh, [Partial("sum")])
        self.other = da.distribute_array(V, da.init_device_mesh((self.n,), ("o",), comm=comm))

    def check(self) -> None:
        """Check that arrays are as they were, and that operations on them are right."""
        both = self.x.redistribute([Shard(1)]) + self.y
        np.testing.assert_array_equal(both.full_array(), 2 * V)
        assert float(da.sum(self.x * self.y)) == (V * V).sum()


@pytest.fixture(scope="module", params=["one node", "a node per rank", "two ranks a node"])
def data(request):
    from mpi4py import MPI

    per_node = {"one node": 0, "a node per rank": 1, "two ranks a node": 2}[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if per_node:
            if MPI.COMM_WORLD.size <= per_node:
                pytest.skip("all ranks are on one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", str(per_node))
        made = Data(MPI.COMM_WORLD.Dup())
        made.check()
        yield made
        made.comm.Barrier()


def raised(call: Callable[[Data], Any], data: Data) -> Exception | None:
    """Return what a call raises on this rank."""
    try:
        call(data)
    except Exception as error:
        return error
    return None


Calls = dict[str, tuple[type[Exception], Callable[[Data], Any]]]
from_local = da.DistArray.from_local

DISTRIBUTE: Calls = {
    "too many placements": (
        PlacementError,
        lambda d: da.distribute_array(V, d.mesh, [Shard(0)] * 2),
    ),
    "no placements": (PlacementError, lambda d: da.distribute_array(V, d.mesh, [])),
    "axis": (AxisError, lambda d: da.distribute_array(V, d.mesh, [Shard(2)])),
    "negative axis": (AxisError, lambda d: da.distribute_array(V, d.mesh, [Shard(-3)])),
    "axis of a scalar": (AxisError, lambda d: da.distribute_array(1.0, d.mesh, [Shard(0)])),
    "axis, all have it": (
        AxisError,
        lambda d: da.distribute_array(V, d.mesh, [Shard(2)], src=None),
    ),
    "text placements": (ArgumentTypeError, lambda d: da.distribute_array(V, d.mesh, "S0")),
    "one placement": (ArgumentTypeError, lambda d: da.distribute_array(V, d.mesh, Shard(0))),
    "None as placement": (ArgumentTypeError, lambda d: da.distribute_array(V, d.mesh, [None])),
    "source": (ArgumentError, lambda d: da.distribute_array(V, d.mesh, [Shard(0)], src=d.n)),
    "source type": (ArgumentTypeError, lambda d: da.distribute_array(V, d.mesh, src="a")),
    "no mesh": (ArgumentTypeError, lambda d: da.distribute_array(V, "mesh", [Shard(0)])),
    "abstract mesh": (
        ArgumentTypeError,
        lambda d: da.distribute_array(V, da.AbstractMesh((d.n,)), [Shard(0)]),
    ),
    "objects": (DTypeError, lambda d: da.distribute_array(OBJECTS, d.mesh, [Shard(0)])),
    "objects, all have them": (
        DTypeError,
        lambda d: da.distribute_array(OBJECTS, d.mesh, src=None),
    ),
    "ragged": (ArgumentError, lambda d: da.distribute_array(RAGGED, d.mesh, [Shard(0)])),
    "no such reduction": (DTypeError, lambda d: da.distribute_array(V, d.mesh, [Partial("bxor")])),
}
FROM_LOCAL: Calls = {
    "objects": (DTypeError, lambda d: from_local(OBJECTS, d.mesh, [Shard(0)])),
    "ragged": (ArgumentError, lambda d: from_local(RAGGED, d.mesh, [Shard(0)])),
    "distributed": (ArgumentTypeError, lambda d: from_local(d.x, d.mesh, [Shard(0)])),
    "axis": (AxisError, lambda d: from_local(V, d.mesh, [Shard(2)])),
    "axis, unchecked": (AxisError, lambda d: from_local(V, d.mesh, [Shard(2)], check=False)),
    "placements": (PlacementError, lambda d: from_local(V, d.mesh, [Shard(0), Replicate()])),
    "shape": (LayoutError, lambda d: from_local(V, d.mesh, [Shard(0)], shape=(3, 3))),
    "shape's axes": (LayoutError, lambda d: from_local(V, d.mesh, [Shard(0)], shape=(3,))),
    "shape type": (ArgumentTypeError, lambda d: from_local(V, d.mesh, [Shard(0)], shape="ab")),
    "no such reduction": (DTypeError, lambda d: from_local(V, d.mesh, [Partial("any")])),
    "mesh": (PlacementError, lambda d: from_local(V, d.grid, [Shard(0)])),
}
REDISTRIBUTE: Calls = {
    "axis": (AxisError, lambda d: d.x.redistribute([Shard(2)])),
    "axis, background": (AxisError, lambda d: d.x.redistribute([Shard(2)], async_op=True)),
    "placements": (PlacementError, lambda d: d.x.redistribute([Shard(0), Shard(1)])),
    "no sequence": (ArgumentTypeError, lambda d: d.x.redistribute(7)),
    "text": (ArgumentTypeError, lambda d: d.x.redistribute(["S(0)"])),
    "no such reduction": (DTypeError, lambda d: d.x.redistribute([Partial("any")])),
    "mesh": (PlacementError, lambda d: d.x.redistribute([Replicate()], mesh=d.grid)),
    "abstract mesh": (
        ArgumentTypeError,
        lambda d: d.x.redistribute([Replicate()], mesh=da.AbstractMesh((d.n,))),
    ),
    "scratch": (ArgumentError, lambda d: d.x.redistribute([Shard(1)], max_bytes=0)),
}
CREATION: Calls = {
    "axis": (AxisError, lambda d: da.zeros((3, 4), mesh=d.mesh, placements=[Shard(2)])),
    "placements": (
        PlacementError,
        lambda d: da.ones(3, mesh=d.mesh, placements=[Shard(0), Shard(0)]),
    ),
    "shape": (ShapeError, lambda d: da.empty((3, -4), mesh=d.mesh)),
    "shape type": (ArgumentTypeError, lambda d: da.zeros((3.5,), mesh=d.mesh)),
    "mesh": (ArgumentTypeError, lambda d: da.zeros(3, mesh="mesh")),
    "objects": (DTypeError, lambda d: da.zeros(3, dtype=object, mesh=d.mesh)),
    "no dtype": (ArgumentTypeError, lambda d: da.zeros(3, dtype="nonsense", mesh=d.mesh)),
    "value": (ArgumentError, lambda d: da.full((2, 2), "abc", dtype=float, mesh=d.mesh)),
    "step": (ArgumentError, lambda d: da.arange(0, 10, 0, mesh=d.mesh)),
    "asarray": (ArgumentError, lambda d: da.asarray(RAGGED, mesh=d.mesh)),
    "random": (AxisError, lambda d: da.random.default_rng(0).random((3,), placements=[Shard(1)])),
}
ITEMS: Calls = {
    "mixed meshes": (MeshError, lambda d: d.x + d.other),
    "mixed meshes in a ufunc": (MeshError, lambda d: np.add(d.other, d.x)),
    "mixed meshes in where": (MeshError, lambda d: da.where(d.b, d.x, d.other)),
    "shapes": (ShapeError, lambda d: d.x + V[:3]),
    "distributed shapes": (ShapeError, lambda d: d.x * da.zeros((3, 3), mesh=d.mesh)),
    "ragged": (ArgumentError, lambda d: d.x + RAGGED),
    "objects": (DTypeError, lambda d: np.add(d.x, OBJECTS)),
    "to objects": (DTypeError, lambda d: np.add(d.x, d.y, dtype=object)),
    "astype objects": (DTypeError, lambda d: d.x.astype(object)),
    "dtypes": (DTypeError, lambda d: d.x & d.x),
    "dtypes of which one moves": (DTypeError, lambda d: np.bitwise_and(d.x, d.y)),
    "plain out": (ArgumentTypeError, lambda d: np.add(d.x, d.y, out=V.copy())),
    "shape of out": (ShapeError, lambda d: np.add(d.x, d.y, out=da.zeros((2, 2), mesh=d.mesh))),
    "dtype of out": (DTypeError, lambda d: np.add(d.x, d.y, out=d.i)),
    "in place, mesh": (MeshError, lambda d: d.x.__iadd__(d.other)),
    "in place, shape": (ShapeError, lambda d: d.x.__iadd__(da.zeros((2, 8, 6), mesh=d.mesh))),
    "in place, dtype": (DTypeError, lambda d: d.i.__iadd__(1.5)),
    "truth": (ArgumentError, lambda d: bool(d.x)),
}
REDUCTIONS: Calls = {
    "axis": (AxisError, lambda d: d.x.sum(axis=2)),
    "axis twice": (AxisError, lambda d: d.x.max(axis=(0, 0))),
    "axis of a state": (AxisError, lambda d: d.x.std(axis=7)),
    "axis of a place": (AxisError, lambda d: da.argmax(d.x, axis=4)),
    "axis type": (ArgumentTypeError, lambda d: d.x.mean(axis="a")),
    "objects": (DTypeError, lambda d: d.x.sum(dtype=object)),
    "nothing to find": (ArgumentError, lambda d: da.max(da.zeros((0, 3), mesh=d.mesh), axis=0)),
    "mask": (ShapeError, lambda d: d.x.sum(where=np.ones(5, bool))),
    "shape of out": (ShapeError, lambda d: d.x.sum(axis=0, out=da.zeros(3, mesh=d.mesh))),
    "correction": (ArgumentTypeError, lambda d: da.std(d.x, correction="a")),
    "number": (ArgumentTypeError, lambda d: float(d.x)),
    "NumPy's": (AxisError, lambda d: np.sum(d.x, axis=9)),
    "NumPy's reduce": (AxisError, lambda d: np.add.reduce(d.x, axis=5)),
}
PRODUCTS: Calls = {
    "shapes": (ShapeError, lambda d: d.x @ d.x),
    "plain shape": (ShapeError, lambda d: d.x @ V[:5]),
    "number": (ShapeError, lambda d: d.x @ 3),
    "mixed meshes": (MeshError, lambda d: d.x.T @ d.other),
    "einsum": (ShapeError, lambda d: da.einsum("ij,jk->ik", d.x, d.x)),
    "tensordot": (ShapeError, lambda d: da.tensordot(d.x, d.x, axes=((0,), (1,)))),
}
SHAPES: Calls = {
    "index": (IndexingError, lambda d: d.x[9]),
    "too many indices": (IndexingError, lambda d: d.x[0, 0, 0]),
    "kind of index": (IndexingError, lambda d: d.x["a"]),
    "step": (ArgumentError, lambda d: d.x[::0]),
    "assigned index": (IndexingError, lambda d: d.x.__setitem__(9, 1)),
    "assigned shape": (ShapeError, lambda d: d.x.__setitem__(slice(0, 3), V)),
    "assigned array": (
        ShapeError,
        lambda d: d.x.__setitem__(slice(0, 3), da.zeros((2, 6), mesh=d.mesh)),
    ),
    "assigned objects": (DistArrayError, lambda d: d.x.__setitem__(0, object())),
    "reshape": (ShapeError, lambda d: d.x.reshape((7, 7))),
    "reshape, rest": (ShapeError, lambda d: da.reshape(d.x, (-1, 5))),
    "transpose": (AxisError, lambda d: da.permute_dims(d.x, (0, 5))),
    "squeeze": (ShapeError, lambda d: da.squeeze(d.x, axis=0)),
    "concat": (ShapeError, lambda d: da.concat([d.x, d.y[:, :3]])),
    "concat, meshes": (MeshError, lambda d: np.concatenate([d.x, d.other])),
    "stack": (AxisError, lambda d: da.stack([d.x, d.y], axis=9)),
    "broadcast": (ShapeError, lambda d: da.broadcast_to(d.x, (3, 3))),
    "roll": (AxisError, lambda d: da.roll(d.x, 1, axis=9)),
    "NumPy's without ours": (ArgumentTypeError, lambda d: np.is_busday(d.x)),
}
MESHES: Calls = {
    "too large": (MeshError, lambda d: da.init_device_mesh((d.n + 1,), comm=d.comm)),
    "rank twice": (MeshError, lambda d: da.DeviceMesh([0, 0], comm=d.comm)),
    "no such axis": (MeshError, lambda d: d.grid["c"]),
    "names": (MeshError, lambda d: da.init_device_mesh((d.n,), ("a", "b"), comm=d.comm)),
    "communicator": (ArgumentTypeError, lambda d: da.init_device_mesh((1,), comm=3)),
}


DOORS = {
    "distribute_array": DISTRIBUTE,
    "from_local": FROM_LOCAL,
    "redistribute": REDISTRIBUTE,
    "creation": CREATION,
    "items": ITEMS,
    "reductions": REDUCTIONS,
    "products": PRODUCTS,
    "shapes": SHAPES,
    "meshes": MESHES,
}


@pytest.mark.parametrize("door", DOORS)
def test_bad_input_raises_the_same_on_all_ranks_before_values_are_sent(data, door):
    for name, (expected, call) in DOORS[door].items():
        with da.CommLog() as log:
            error = raised(call, data)
        assert isinstance(error, expected), f"{name}: {error!r}"
        assert isinstance(error, DistArrayError), f"{name}: {error!r}"
        everyone = data.comm.allgather((type(error).__name__, str(error)))
        assert len(set(everyone)) == 1, f"{name}: {everyone}"
        # Nothing but what the ranks tell each other about their arguments.
        assert log.count() == log.count("all_gather_object"), f"{name}: {log.table()}"
        data.check()


ALONE: Calls = {  # one rank's input is bad or unlike the others', where all ranks are told
    "shape of a block": (
        LayoutError,
        lambda d: from_local(np.ones((2 + d.odd, 3)), d.mesh, [Shard(1)]),
    ),
    "axes of a block": (LayoutError, lambda d: from_local(np.ones((2, 3)[: 1 + d.odd]), d.mesh)),
    "dtype of a block": (
        DTypeError,
        lambda d: from_local(np.ones(3, "f4" if d.odd else "f8"), d.mesh),
    ),
    "block of objects": (
        DTypeError,
        lambda d: from_local(np.array([None]) if d.odd else np.ones(1), d.mesh),
    ),
    "ragged block": (ArgumentError, lambda d: from_local(RAGGED if d.odd else [[1]], d.mesh)),
    "placements of blocks": (
        PlacementError,
        lambda d: from_local(np.ones((3, 3)), d.mesh, [Shard(int(d.odd))]),
    ),
    "bad placement of a block": (
        AxisError,
        lambda d: from_local(np.ones(3), d.mesh, [Shard(5 * d.odd)]),
    ),
    "told shape": (
        LayoutError,
        lambda d: from_local(np.ones(3), d.mesh, shape=(3 * d.n + d.odd,)),
    ),
    "mesh of blocks": (MismatchError, lambda d: from_local(V, d.grid if d.odd else d.mesh)),
    "placements": (
        PlacementError,
        lambda d: da.distribute_array(V, d.mesh, [Replicate() if d.odd else Shard(0)]),
    ),
    "source": (ArgumentError, lambda d: da.distribute_array(V, d.mesh, src=int(d.odd))),
    "no such source": (
        ArgumentError,
        lambda d: da.distribute_array(V, d.mesh, src=d.n * d.odd),
    ),
    "value of the source": (
        DTypeError,
        lambda d: da.distribute_array(OBJECTS, d.mesh, src=d.n - 1),
    ),
    "mesh": (MismatchError, lambda d: da.distribute_array(V, d.grid if d.odd else d.mesh)),
    "call": (
        MismatchError,
        lambda d: from_local(V, d.mesh) if d.odd else da.distribute_array(V, d.mesh),
    ),
}
UNLIKE: dict[str, Callable[[Data], Any]] = {  # ranks that ask for different exchanges
    "placements": lambda d: d.x.redistribute([Shard(1) if d.odd else Replicate()]),
    "placements, background": lambda d: d.x.redistribute(
        [Shard(1) if d.odd else Replicate()], async_op=True
    ).wait(),
    "meshes": lambda d: (
        d.x.redistribute([Shard(1)])
        if d.odd
        else d.x.redistribute([Replicate(), Shard(1)], mesh=d.grid)
    ),
    "rounds": lambda d: d.x.redistribute([Shard(1)], max_bytes=64 if d.odd else None),
    "created shapes": lambda d: da.zeros((8 + d.odd, 6), mesh=d.mesh).redistribute([Shard(1)]),
    "created dtypes": lambda d: da.zeros(
        (8, 6), mesh=d.mesh, dtype="f4" if d.odd else "f8"
    ).redistribute([Shard(1)]),
    "created placements": lambda d: da.zeros(
        (8, 6), mesh=d.mesh, placements=[Shard(int(d.odd))]
    ).full_array(),
    "shapes of what all have": lambda d: da.distribute_array(
        V[: 8 - d.odd], d.mesh, src=None
    ).redistribute([Shard(1)]),
    "operands": lambda d: d.x.__iadd__(da.astype(d.y, "f4") if d.odd else d.y),
    "products": lambda d: d.x @ (d.x.T if d.odd else d.y.T),
    "reductions": lambda d: float(d.x.sum() if d.odd else d.x.max()),
    "axes": lambda d: d.x.sum(axis=int(d.odd)).full_array(),
    "states": lambda d: da.argmax(d.x) if d.odd else da.argmin(d.x),
    "items": lambda d: d.x[int(d.odd)],
    "printing": lambda d: str(d.x) if d.odd else float(d.x.sum()),
    "reduced to": lambda d: d.p.redistribute([Replicate() if d.odd else Shard(0)]),
    "joined": lambda d: da.concat([d.x, d.y]) if d.odd else da.stack([d.x, d.y]),
    "rolled": lambda d: da.roll(d.x, 1, axis=0) if d.odd else da.flip(d.x, axis=0),
    "call": lambda d: from_local(V, d.mesh) if d.odd else d.x.redistribute([Shard(1)]),
    "barrier": lambda d: d.mesh.communicator().barrier() if d.odd else d.x.redistribute([Shard(1)]),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ALONE)
def test_input_of_one_rank_alone_raises_the_same_on_all_ranks(data, name):
    expected, call = ALONE[name]
    error = raised(call, data)
    assert isinstance(error, expected), repr(error)
    assert len(set(data.comm.allgather((type(error).__name__, str(error))))) == 1
    data.check()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", UNLIKE)
def test_ranks_that_ask_for_different_things_all_find_out(data, name):
    error = raised(UNLIKE[name], data)
    assert isinstance(error, MismatchError), repr(error)
    assert len(set(data.comm.allgather(str(error)))) == 1
    data.check()
