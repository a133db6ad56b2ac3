"""Any layout becomes any other under real MPI: within a node, between nodes, and mixed."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from distarray.comm import DeviceMesh, _memory
from distarray.comm.kernels import _loop_nest
from distarray.comm.shared_memory import _channel
from distarray.layout import Layout, Partial, Replicate, Shard
from distarray.redistribute import _execute, _messages, redistribute_async, redistribute_local
from tests import either_way

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(30)]

REDUCE = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "avg": lambda blocks: np.mean(blocks, axis=0),
    "any": np.logical_or.reduce,
    "all": np.logical_and.reduce,
    "band": np.bitwise_and.reduce,
    "bor": np.bitwise_or.reduce,
    "bxor": np.bitwise_xor.reduce,
}


NODES = {
    "one node": None,
    "a node per rank": "1",
    "two ranks a node": "2",
    "a node per rank, in rounds": "1",
    "two ranks a node, in rounds": "2",
}


@pytest.fixture(scope="module", params=NODES)
def comm(request):
    from mpi4py import MPI

    per_node = NODES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        if "rounds" in request.param:
            patch.setattr(_messages, "packed_at_a_time", lambda nbytes, ranks: nbytes // 7 + 1)
            patch.setattr(_messages, "goes_as_it_lies", lambda array: False)
            patch.setattr(_execute, "are_small", lambda *_: False)
        if per_node is not None:
            if MPI.COMM_WORLD.size == 1:
                pytest.skip("one rank is one node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", per_node)
        made = MPI.COMM_WORLD.Dup()
        yield made
        made.Barrier()


def meshes(comm):
    size = comm.size
    shapes = [s for n in (1, 2, 3) for s in itertools.product(range(1, size + 1), repeat=n)]
    return [s for s in shapes if 0 < np.prod(s) <= size]


def contributions(layout, dtype):
    """Return the global value of every Partial coordinate, and what they reduce to."""
    shape = [layout.mesh.shape[i] for i in layout.partial_axes]
    count = int(np.prod(shape))
    generator = np.random.default_rng(layout.fingerprint)
    if dtype == np.bool_:
        values = generator.random((count, *layout.shape)) < 0.5
    else:
        # Small integers: every order of summation gives the same value.
        values = generator.integers(1, 4, (count, *layout.shape)).astype(dtype)
    if not layout.has_partial:
        return values, values[0]
    return values, REDUCE[layout.placements[layout.partial_axes[0]].op](values)


def block(layout, values):
    """Return this rank's block of the value its Partial coordinate holds."""
    coordinate = layout.mesh.coordinate
    if coordinate is None:
        return np.empty(layout.local_shape(), values.dtype)
    index = 0
    for i in layout.partial_axes:
        index = index * layout.mesh.shape[i] + coordinate[i]
    box = layout.local_box()
    return np.array(values[(index, *(slice(a, b) for a, b in box))], order="C")


def placements(rng, mesh_shape, ndim, op):
    choices = [Replicate()] + [Shard(axis) for axis in range(ndim)] * 2
    if op is not None:
        choices.append(Partial(op))
    return [rng.choice(choices) for _ in mesh_shape]


def layouts(rng, mesh, shape, op):
    placed = placements(rng, mesh.shape, len(shape), op)
    order = rng.sample(range(mesh.ndim), mesh.ndim) if rng.random() < 0.5 else None
    layout = Layout(mesh, placed, shape, shard_order=order)
    if rng.random() < 0.3:
        offsets = {}
        for axis, n in enumerate(shape):
            count = layout.partition(axis).count
            if count > 1:
                cuts = sorted(rng.randint(0, n) for _ in range(count - 1))
                offsets[axis] = (0, *cuts, n)
        layout = layout.replace(boundaries=offsets or None)
    return layout


def gathered(comm, local, layout):
    """Return the global value, put together by plain MPI from the blocks (Partial reduced).

    What several ranks hold all of them must hold alike.
    """
    pieces = comm.allgather((layout.mesh.coordinate, local))
    total, known = {}, {}
    for coordinate, piece in pieces:
        if coordinate is None:
            assert piece.size == 0
            continue
        key = tuple(coordinate[i] for i in layout.partial_axes)
        whole = total.setdefault(key, np.empty(layout.shape, local.dtype))
        box = layout.local_box(coordinate)
        assert piece.shape == tuple(b - a for a, b in box)
        part = (*(slice(a, b) for a, b in box), ...)  # a view also without axes
        filled = known.setdefault(key, np.zeros(layout.shape, np.bool_))[part]
        np.testing.assert_array_equal(piece[filled], whole[part][filled])
        whole[part], filled[...] = piece, True
    values = np.stack([total[key] for key in sorted(total)])
    if not layout.has_partial:
        return values[0]
    return REDUCE[layout.placements[layout.partial_axes[0]].op](values)


def check(comm, local, layout, expected):
    """Compare this rank's block with its part of the global value, to the last bit.

    Contributions of a Partial layout are gathered first.
    """
    if layout.has_partial:
        local = gathered(comm, local, layout)
    else:
        expected = expected[tuple(slice(*bounds) for bounds in layout.local_box())]
    np.testing.assert_array_equal(local, expected)


DTYPES = [np.float64, np.float32, np.int32, np.complex128, np.bool_, np.uint8, np.float16]


@pytest.mark.parametrize("seed", range(12))
def test_any_layout_becomes_any_other(comm, seed):
    rng = random.Random(seed)
    for _ in range(8):
        shape = tuple(
            rng.choice([0, 1, 2, 3, 5, 8, 13]) for _ in range(rng.choice([0, 1, 2, 2, 3]))
        )
        if rng.random() < 0.15:
            shape = (rng.choice([150, 300]), rng.choice([200, 301]))  # past the inline size
        dtype = np.dtype(rng.choice(DTYPES))
        ops = ["any", "all"] if dtype.kind == "b" else ["sum", "prod", "avg"]
        if dtype.kind in "iuf":
            ops += ["min", "max"]
        if dtype.kind in "iu":
            ops += ["band", "bor", "bxor"]
        some = [DeviceMesh(np.arange(np.prod(s)).reshape(s), comm=comm) for s in meshes(comm)]
        mesh = rng.choice(some)
        other = mesh if rng.random() < 0.7 else rng.choice(some)
        src = layouts(rng, mesh, shape, rng.choice([None, rng.choice(ops)]))
        dst = layouts(rng, other, shape, rng.choice([None, None, rng.choice(ops)]))
        values, expected = contributions(src, dtype)
        local = block(src, values.astype(dtype))
        kept = local.copy()
        result = redistribute_local(local, src, dst)
        what = f"{dtype}: {src!r} -> {dst!r}"
        np.testing.assert_array_equal(local, kept, err_msg=what)
        assert result.shape == dst.local_shape(), what
        averaged = "avg" in {src.placements[i].op for i in src.partial_axes}
        if src is dst:
            assert result is local
        elif not (averaged and dtype.kind in "biu"):
            assert result.dtype == dtype, what
        np.testing.assert_allclose(
            gathered(comm, result, dst),
            expected,
            rtol=1e-3 if dtype == np.float16 else 1e-6,
            err_msg=what,
        )
        if src is not dst:
            again = redistribute_local(local, src, dst, is_free=True)
            np.testing.assert_array_equal(again, result, err_msg=what)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (Shard(0), Shard(1)),
        (Shard(0), Replicate()),
        (Partial("sum"), Replicate()),
        (Partial("sum"), Shard(0)),
        (Replicate(), Shard(1)),
        (Shard(1), Partial("sum")),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_blocks_private_strided_or_not(comm, src, dst, order):
    mesh = DeviceMesh(np.arange(comm.size), comm=comm)
    src, dst = Layout(mesh, [src], (517, 403)), Layout(mesh, [dst], (517, 403))
    values, expected = contributions(src, np.float64)
    result = redistribute_local(np.asarray(block(src, values), order=order), src, dst)
    check(comm, result, dst, expected)


def test_private_blocks_that_the_result_holds_whole_are_read_there(comm, monkeypatch):
    staged, stage = [], _channel._stage
    monkeypatch.setattr(_channel, "_stage", lambda b: (staged.append(b.nbytes), stage(b))[1])
    mesh = DeviceMesh(np.arange(comm.size), comm=comm)
    for before, after, copies in ((0, None, False), (1, None, False), (0, 1, True)):
        dst = Layout(mesh, [Replicate() if after is None else Shard(after)], (517, 403))
        src = Layout(mesh, [Shard(before)], dst.shape)
        values, expected = contributions(src, np.float64)
        result = redistribute_local(np.array(block(src, values)), src, dst)
        check(comm, result, dst, expected)
        in_node = comm.size > 1 and mesh.communicator().ranks_per_node != 1
        assert bool(staged) is (copies and in_node)


@pytest.mark.host_only
@pytest.mark.parametrize("way", [either_way.by_kernel, either_way.by_numpy])
def test_memory_that_others_have_read_is_written_again(comm, way, monkeypatch):
    renewed = []
    monkeypatch.setattr(_loop_nest, "run_faster", way)
    sweep = _loop_nest._sweep
    monkeypatch.setattr(
        _loop_nest, "_sweep", lambda by, dst: (renewed.append(dst.nbytes), sweep(by, dst))
    )
    mesh = DeviceMesh(np.arange(comm.size), comm=comm)
    kinds = [Shard(0), Shard(1), Replicate(), Partial("sum")]
    shape = 229, 179  # of which the smallest of four blocks still comes from the pool
    for turn in range(3):
        for before, after in itertools.permutations(kinds, 2):
            src, dst = Layout(mesh, [before], shape), Layout(mesh, [after], shape)
            values, expected = contributions(src, np.float64)
            own = block(src, values)
            local = _memory.empty(own.shape, own.dtype)
            local[...] = own
            result = redistribute_local(local, src, dst)
            check(comm, result, dst, expected)
            np.testing.assert_array_equal(local, own, err_msg=f"{turn}: the source stays")
            del local, result
    if way is either_way.by_kernel and 1 < comm.size <= 4 and mesh.communicator().reaches_all():
        assert renewed


@pytest.mark.parametrize("max_bytes", [1000, 50_000])
def test_rounds_give_the_same_values(comm, max_bytes):
    mesh = DeviceMesh(np.arange(comm.size), comm=comm)
    for before, after in (
        (Shard(0), Shard(1)),
        (Shard(0), Replicate()),
        (Partial("max"), Shard(0)),
        (Partial("sum"), Replicate()),
    ):
        src, dst = Layout(mesh, [before], (101, 67)), Layout(mesh, [after], (101, 67))
        values, expected = contributions(src, np.float64)
        result = redistribute_local(block(src, values), src, dst, max_bytes=max_bytes)
        check(comm, result, dst, expected)


def test_background_redistributions_come_out_right_beside_foreground_ones(comm):
    mesh = DeviceMesh(np.arange(comm.size), comm=comm)
    src, dst = Layout(mesh, [Shard(0)], (256, 300)), Layout(mesh, [Shard(1)], (256, 300))
    values, expected = contributions(src, np.float64)
    local = block(src, values)
    handles = [redistribute_async(local * k, src, dst) for k in range(5)]
    between = redistribute_local(local, src, dst)
    check(comm, between, dst, expected)
    for k in reversed(range(5)):
        result = handles[k].wait()
        assert handles[k].test()
        check(comm, result, dst, expected * k)
