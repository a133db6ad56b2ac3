"""What ranks of different nodes send each other names what they do, and they notice differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.comm import (
    CommLog,
    Communicator,
    _packing,
    _rows,
    as_communicator,
    gather_parts,
    group_rows,
    join_states,
    push_rows,
    scatter_states,
)
from distarray.comm.mpi import _envelopes, _groups, _large_counts
from distarray.errors import CommunicationError, MismatchError
from distarray.ops.families import _windows
from distarray.redistribute import _messages, clear_plans

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(60)]

LONG = 3 * _envelopes.MOST_BYTES // 8  # items of eight bytes that fit into no envelope


@pytest.fixture(scope="module", params=["envelopes", "reduced tokens", "nodes of 2"])
def comm(request: pytest.FixtureRequest) -> Iterator[Any]:
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        two = request.param == "nodes of 2"
        if two and MPI.COMM_WORLD.size == 2:
            pytest.skip("all ranks are on one such node")
        patch.setenv("DISTARRAY_RANKS_PER_NODE", "2" if two else "1")
        if request.param == "reduced tokens":
            patch.setattr(_groups, "MOST_RANKS", 1)
        made = MPI.COMM_WORLD.Dup()
        # Envelopes are made now, of their full size, which tests make less of.
        block(mesh_of(made), 8, Shard(0)).redistribute([Shard(1)])
        yield made
        made.Barrier()


def mesh_of(comm: Any) -> da.DeviceMesh:
    return da.init_device_mesh((comm.size,), comm=comm)


def block(mesh: da.DeviceMesh, n: int, placement: Any) -> Any:
    """Return an array of n x n, of which every rank has data of its own."""
    whole = np.arange(float(n * n)).reshape(n, n)
    if placement == Partial():
        rank = mesh.communicator().rank
        return da.DistArray.from_local(whole * (rank + 1), mesh, [placement])
    return da.distribute_array(whole, mesh, [placement], src=None)


@pytest.mark.parametrize("n", [1, 20, 300])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Shard(0), Shard(1)),
        (Shard(0), Replicate()),
        (Shard(1), Replicate()),
        (Partial(), Shard(0)),
        (Partial(), Replicate()),
    ],
)
def test_a_token_costs_few_ranks_no_collective_of_its_own(comm, n, before, after):
    mesh = mesh_of(comm)
    group = mesh.communicator()._group
    x = block(mesh, n, before)
    x.redistribute([after])
    joined = group.joined
    with CommLog() as log:
        y = x.redistribute([after])
    values = float(n * n - 1) * n * n / 2
    factor = comm.size * (comm.size + 1) / 2 if before == Partial() else 1.0
    assert float(y.sum()) == values * factor
    if group.sends_envelopes:
        assert log.count("agreement") == 0
        if before != Partial() and after == Shard(1):
            assert group.joined - joined <= 2  # the other one is the sum's
    else:  # then it is told
        agreements = [r for r in log.records if r.collective == "agreement"]
        assert [r.nbytes for r in agreements] == [32 * (comm.size - 1) // comm.size]


def test_envelopes_bring_their_own_bytes_whatever_was_in_them_before(comm):
    """Short ones are sent with what is left of longer ones, which their receivers do not see."""
    ours = mesh_of(comm).communicator()
    if not ours._group.sends_envelopes:
        pytest.skip("these have no envelopes")
    ends = [*_envelopes._KEPT_BYTES, _envelopes._HEADER + _envelopes._COPIED_BYTES]
    sizes = [end - _envelopes._HEADER + step for end in ends[::-1] for step in (1, 0, -1)]
    for turn, size in enumerate([*sizes, 0, 5, *sizes[::-1], 0]):
        # Each rank sends another number of bytes, around what one kind of envelope holds.
        rng = np.random.default_rng(turn)
        payloads = [rng.bytes(size + rank) for rank in range(comm.size)]
        found = ours.exchange_small(payloads[comm.rank], 7, "test", size + comm.size)
        assert found is not None
        assert all(comm.allgather([*map(bytes, found)] == payloads))  # so that none waits


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
@pytest.mark.parametrize("nbytes", [8, 1024, _envelopes.WHOLE_BYTES // 16])
def test_what_is_short_takes_one_call(comm, nbytes):
    """Blocks go whole in envelopes, those of several arrays in the same ones."""
    mesh = mesh_of(comm)
    group = mesh.communicator()._group
    if not group.sends_envelopes or comm.size > 5:
        pytest.skip("these have no such envelopes")
    n = comm.size * max(nbytes // 8 // comm.size, 1)
    whole = np.arange(float(n * comm.size))
    line = da.distribute_array(whole, mesh, [Shard(0)], src=None)
    table = da.distribute_array(whole.reshape(n, -1), mesh, [Shard(0)], src=None)
    own = np.arange(float(n)) * (comm.rank + 1)
    total = np.arange(float(n)) * (comm.size * (comm.size + 1) // 2)
    partial = da.DistArray.from_local(own, mesh, [Partial()])
    index = np.random.default_rng(3).integers(0, n, n)
    made: list[tuple[Callable[[], Any], np.ndarray]] = [
        (lambda: table.redistribute([Shard(1)]), whole.reshape(n, -1)),
        (lambda: line.redistribute([Replicate()]), whole),
        (lambda: partial.redistribute([Shard(0)]), total),
        (lambda: partial.redistribute([Replicate()]), total),
        (lambda: da.concat([line, line + 1]), np.concatenate([whole, whole + 1])),
        (lambda: da.take(table, index, axis=0), whole.reshape(n, -1)[index]),
        (lambda: da.roll(line, 1), np.roll(whole, 1)),
    ]
    for call, expected in made:
        for _ in range(2):  # the first may make what the second has
            joined = group.joined
            result = call()
            joined = group.joined - joined
        assert joined == (comm.size > 1)
        np.testing.assert_array_equal(result.full_array(), expected)


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
def test_reductions_take_one_call_where_envelopes_hold_the_blocks(comm):
    mesh = mesh_of(comm)
    group = mesh.communicator()._group
    if not group.sends_envelopes or mesh.communicator().reaches_some():
        pytest.skip("these have no such envelopes")
    most = (256 << 10) // (comm.size - 1) // 8
    for n, wanted in ((most, 1), (most + 1, 2)):
        x = da.DistArray.from_local(np.full(n, comm.rank + 1.0), mesh, [Partial()])
        for _ in range(2):
            joined = group.joined
            y = x.redistribute([Replicate()])
            joined = group.joined - joined
        assert joined == wanted
        assert (y.to_local() == comm.size * (comm.size + 1) // 2).all()


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
@pytest.mark.parametrize("most", [64, 1 << 16])
def test_items_of_blocks_that_envelopes_hold_are_taken_in_one_call(comm, most):
    mesh = mesh_of(comm)
    group = mesh.communicator()._group
    if not group.sends_envelopes or mesh.communicator().reaches_some():
        pytest.skip("these have no such envelopes")
    whole = np.random.default_rng(1).random(most // (comm.size - 1) // 8 * comm.size)
    x = da.distribute_array(whole, mesh, [Shard(0)], src=None)
    index = np.random.default_rng(2).integers(-whole.size, whole.size, 50)
    everywhere = da.distribute_array(index, mesh, [Shard(0)], src=None)
    for chosen in (index, everywhere):
        for _ in range(2):
            joined = group.joined
            y = da.take(x, chosen)
            joined = group.joined - joined
        assert joined == 1
        np.testing.assert_array_equal(y.full_array(), whole[index])


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
@pytest.mark.parametrize("shape", [(1,), (40,), (3, 2000)])
def test_rows_that_all_ranks_know_are_not_asked_for(comm, monkeypatch, shape):
    monkeypatch.setattr(_rows, "_GATHERED_BYTES", 0)
    mesh = mesh_of(comm)
    ours = mesh.communicator()
    n = 500 * comm.size + 3
    whole = np.random.default_rng(1).random((n, 100))
    x = da.distribute_array(whole, mesh, [Shard(0)], src=None)
    index = np.random.default_rng(2).integers(-n, n, shape)
    for _ in range(2):
        joined = ours._group.joined
        with CommLog() as log:
            y = x[index]
        joined = ours._group.joined - joined
    assert joined == 1 + (not ours.sends_parts) if index.size < 4096 else 3
    np.testing.assert_array_equal(y.full_array(), whole[index])
    box = y.layout.local_box(mesh.coordinate)
    mine = np.unique(index[tuple(slice(*interval) for interval in box[: index.ndim])] % n)
    start, stop = x.layout.local_box(mesh.coordinate)[0]
    assert log.bytes("rows") == 800 * np.count_nonzero((mine < start) | (mine >= stop))
    if index.size < 4096:
        with pytest.raises(MismatchError, match="different things"):
            x[index if ours.rank else index - (index == index.max())]


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
@pytest.mark.parametrize("items", [1, 40, 4096, 5000])
def test_which_few_rows_are_wanted_is_told_to_all_ranks(comm, monkeypatch, items):
    monkeypatch.setattr(_rows, "_GATHERED_BYTES", 0)
    mesh = mesh_of(comm)
    ours = mesh.communicator()
    n = 500 * comm.size + 3
    whole = np.random.default_rng(1).random((n, 100))
    x = da.distribute_array(whole, mesh, [Shard(0)], src=None)
    plain = np.random.default_rng(2).integers(-n, n, items)
    index = da.distribute_array(plain, mesh, [Shard(0)], src=None)
    for _ in range(2):
        joined = ours._group.joined
        with CommLog() as log:
            y = x[index]
        joined = ours._group.joined - joined
    if ours.sends_parts and not ours.reaches_some():
        few = -(-items // comm.size) * comm.size <= 4096
        assert joined == (2 if few else 3)
    np.testing.assert_array_equal(y.full_array(), whole[plain])
    mine = np.unique(plain[slice(*y.layout.local_box(mesh.coordinate)[0])] % n)
    start, stop = x.layout.local_box(mesh.coordinate)[0]
    assert log.bytes("rows") == 800 * np.count_nonzero((mine < start) | (mine >= stop))
    plain[items // 2] = n
    with pytest.raises(IndexError, match="out of range"):
        x[da.distribute_array(plain, mesh, [Shard(0)], src=None)]


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
@pytest.mark.parametrize(("n", "width"), [(80003, 1), (80003, 2), (300_001, 1)])
def test_blocks_of_which_most_rows_are_wanted_go_to_all_ranks(comm, n, width):
    mesh = mesh_of(comm)
    ours = mesh.communicator()
    whole = np.random.default_rng(1).random((n, width))
    x = da.distribute_array(whole, mesh, [Shard(0)], src=None)
    strided = da.distribute_array(whole.T.copy(), mesh, [Shard(1)], src=None)
    times = comm.size if 8 * n * width > _rows._GATHERED_BYTES else 1  # so that each wants as many
    index = np.random.default_rng(2).integers(-n, n, n * times)
    everywhere = da.distribute_array(index, mesh, [Shard(0)], src=None)
    for chosen, calls in ((index, 1), (everywhere, 2)):
        for _ in range(2):
            joined = ours._group.joined
            with CommLog() as log:
                y = x[chosen]
            joined = ours._group.joined - joined
        if ours.sends_parts and not ours.reaches_some():
            assert joined == calls
        start, stop = x.layout.local_box(mesh.coordinate)[0]
        mine = np.unique(index[slice(*y.layout.local_box(mesh.coordinate)[0])] % n)
        others = np.count_nonzero((mine < start) | (mine >= stop))
        assert log.bytes("rows") == 8 * width * others
        np.testing.assert_array_equal(y.full_array(), whole[index])
        np.testing.assert_array_equal(strided[:, chosen].full_array(), whole[index].T)
    wrong = index.copy()
    wrong[-1] = n
    with pytest.raises(IndexError):
        x[da.distribute_array(wrong, mesh, [Shard(0)], src=None)]
    with pytest.raises(MismatchError):
        x[everywhere] if ours.rank else strided[:, everywhere]


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
def test_rims_of_blocks_that_are_not_tiny_go_by_themselves(comm, monkeypatch):
    mesh = mesh_of(comm)
    ours = mesh.communicator()
    if not ours.sends_parts or ours.reaches_some():
        pytest.skip("these read rims in place, or pack them")
    called = []
    send = _windows.exchange_views
    monkeypatch.setattr(_windows, "exchange_views", lambda *a: (called.append(1), send(*a)))
    for width, rims in ((8, 0), (64, 1)):
        whole = np.arange(float(32 * comm.size * width)).reshape(-1, width)
        x = da.distribute_array(whole, mesh, [Shard(0)], src=None)
        assert (x.to_local().nbytes > 4096) == rims
        for _ in range(2):
            called.clear()
            found = da.halo(x, {0: 1})
        assert len(called) == rims
        start, stop = x.layout.local_box(mesh.coordinate)[0]
        np.testing.assert_array_equal(found.block, whole[max(start - 1, 0) : stop + 1])
        np.testing.assert_array_equal(da.diff(x, axis=0).full_array(), np.diff(whole, axis=0))


@pytest.mark.host_only  # blocks on GPUs are packed, and take other rounds
def test_short_parts_are_packed_into_envelopes_and_nowhere_else(comm, monkeypatch):
    mesh = mesh_of(comm)
    if not mesh.communicator().sends_parts:
        pytest.skip("parts are packed")
    packed = []
    pack = _messages._pack
    monkeypatch.setattr(_messages, "_pack", lambda *a: (packed.append(1), pack(*a)))
    for side, wanted in ((64, 0), (128, 1)):
        rows = side * comm.size
        whole = np.arange(float(rows * rows)).reshape(rows, rows)
        x = da.distribute_array(whole, mesh, [Shard(0)], src=None)
        y = x.redistribute([Shard(1)])
        assert len(packed) == wanted
        np.testing.assert_array_equal(
            y.to_local(), whole[:, y.layout.local_box()[1][0] :][:, :side]
        )


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("dtype", ["f8", "i4", "f2", "c8"])
@pytest.mark.parametrize("items", [0, 1, 700, 5000, 40000])
def test_reductions_of_all_sizes_agree_with_numpy(comm, items, dtype, op):
    """They go in envelopes, or by MPI's own reductions after an agreement."""
    mesh = mesh_of(comm)
    if op == "max" and dtype == "c8":
        pytest.skip("complex numbers have no order")
    blocks = [(np.arange(items) % 7 * (r + 1)).astype(dtype) for r in range(comm.size)]
    wide = np.float64 if op == "avg" and dtype == "i4" else None
    reduced = np.max(blocks, 0) if op == "max" else np.sum(blocks, 0, dtype=wide or dtype)
    if op == "avg":
        reduced = np.asarray(np.sum(blocks, 0, dtype=wide) / comm.size, wide or dtype)
    x = da.DistArray.from_local(blocks[comm.rank], mesh, [Partial(op)])
    for after in (Replicate(), Shard(0)):
        found = x.redistribute([after])
        assert found.dtype == reduced.dtype
        np.testing.assert_allclose(
            found.full_array(), reduced, rtol=1e-3 if dtype == "f2" else 1e-6
        )


def calls(comm: Any) -> list[Callable[[], object]]:
    """Return collective calls, no two alike: with short messages, long ones and none."""
    mesh = mesh_of(comm)
    ours = mesh.communicator()
    arrays = {(n, p): block(mesh, n, p) for n in (2, 200) for p in (Shard(0), Partial())}
    moves = [
        lambda x=x, q=q: x.redistribute([q])
        for (_, p), x in arrays.items()
        for q in (Shard(1), Replicate(), Shard(0))
        if p != q
    ]

    def states(n: int) -> Callable[[], object]:
        return lambda: join_states(ours, bytes([ours.rank]) * n, 70 + n, "states")

    counts = [LONG * (i % 2) for i in range(comm.size)]
    own = counts[ours.rank]
    nobody = group_rows(np.empty(0, np.uint32), comm.size)
    return [
        *moves,
        *map(states, (0, 8, 8 * LONG)),
        lambda: gather_parts(ours, np.ones(own), counts, 7, "parts"),
        lambda: scatter_states(ours, np.ones(sum(counts)), counts, 8, "states to each"),
        lambda: push_rows(ours, [np.ones((0, 3))], nobody, 9, "rows"),
        lambda: ours.all_gather_object("x" * LONG),
        lambda: ours.agree(10, "agreeing"),
        lambda: ours.barrier(),
    ]


def test_ranks_that_make_different_calls_all_raise_the_same_error_and_go_on(comm):
    made = calls(comm)
    ours = mesh_of(comm).communicator()
    for call in made:
        call()
    pairs = list(itertools.combinations(range(len(made)), 2))
    for i, (one, other) in enumerate(pairs[::3]):
        odd = i % comm.size  # who makes another call than the rest
        with pytest.raises(MismatchError, match="different things") as caught:
            made[other if ours.rank == odd else one]()
        assert len(set(comm.allgather(str(caught.value)))) == 1
    for call in made:
        call()


def test_nothing_is_written_where_ranks_disagree(comm):
    ours: Communicator = as_communicator(comm)
    for n in (1, LONG):
        send, recv = np.ones(n * comm.size), np.full(n * comm.size, 7.0)
        with pytest.raises(MismatchError):
            ours.all_to_all(send, recv, token=1 + (ours.rank == 0), what="parts")
        with pytest.raises(MismatchError):
            ours.all_gather(send[:n], recv, token=1 + (ours.rank == 0), what="blocks")
        assert (recv == 7.0).all()
        ours.all_to_all(send * ours.rank, recv, token=3, what="parts")
        assert recv.reshape(comm.size, n).tolist() == [[float(r)] * n for r in range(comm.size)]


def test_counts_that_do_not_fit_are_an_error_and_no_truncated_message(comm):
    ours: Communicator = as_communicator(comm)
    if not ours.sends_parts:
        pytest.skip("tokens travel apart from what they are for")
    for few, many in ((1, 2), (1, LONG), (LONG, LONG + 1)):
        sends = [0 if i == ours.rank else many for i in range(comm.size)]
        receives = [0 if i == ours.rank else few for i in range(comm.size)]
        ends = np.ones(sum(sends)), np.full(sum(receives), 7.0)
        with pytest.raises(CommunicationError, match=rf"sends {8 * many} bytes"):
            ours.all_to_all(*ends, sends, receives, token=5, what="parts")
        assert (ends[1] == 7.0).all()
    assert ours.all_gather_object(ours.rank) == list(range(comm.size))


def test_a_rank_that_leaves_an_exchange_sends_nothing_more(monkeypatch):
    from mpi4py import MPI

    monkeypatch.setenv("DISTARRAY_RANKS_PER_NODE", "1")
    comm = MPI.COMM_WORLD.Dup()
    ours: Communicator = as_communicator(comm)
    send, recv = np.ones(comm.size), np.zeros(comm.size)
    ours.all_to_all(send, recv, token=1, what="parts")
    wait, left = _envelopes.Envelopes._wait, []

    def interrupted(*args: Any) -> None:
        wait(*args)
        if not comm.rank and not left:
            left.append(1)
            raise KeyboardInterrupt  # as a handler of signals does

    monkeypatch.setattr(_envelopes.Envelopes, "_wait", interrupted)
    if comm.rank:
        ours.all_to_all(2 * send, recv, token=2, what="parts")
        assert (recv == 2.0).all()
    else:
        with pytest.raises(KeyboardInterrupt):
            ours.all_to_all(2 * send, recv, token=2, what="parts")
        for call in (ours.barrier, lambda: ours.all_to_all(send, recv, token=3, what="parts")):
            with pytest.raises(CommunicationError, match="on this rank by KeyboardInterrupt"):
                call()
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parametrize("long_run", [1, 1 << 40], ids=["as they lie", "packed"])
@pytest.mark.parametrize(
    ("short", "limit"),
    [(0, 50), *[(n, _large_counts.LIMIT) for n in (0, 64, _envelopes.INLINE_BYTES)]],
)
@pytest.mark.parametrize("round_bytes", [1, 1 << 20])
def test_blocks_arrive_where_they_belong(comm, monkeypatch, short, limit, long_run, round_bytes):
    clear_plans()  # rounds are counted once
    monkeypatch.setattr(_packing, "_ROUND_BYTES", round_bytes)
    monkeypatch.setattr(_packing, "LONG_RUN_BYTES", long_run)
    monkeypatch.setattr(_envelopes, "INLINE_BYTES", short)
    monkeypatch.setattr(_envelopes, "_COPIED_BYTES", short)
    monkeypatch.setattr(_packing, "INLINE_BYTES", short)
    monkeypatch.setattr(_packing, "STRIDED_BYTES", limit)
    monkeypatch.setattr(_large_counts, "LIMIT", limit)
    mesh = mesh_of(comm)
    # Short blocks travel whole otherwise.
    monkeypatch.setitem(vars(mesh.communicator()), "sends_whole", -1)
    rng = np.random.default_rng(5)
    for shape in ((9, 10, 11), (33, 40), (5, 1, 64), (2, 3, 1)):
        whole = rng.integers(0, 100, shape).astype(np.int16)
        placements = [Shard(axis) for axis in range(len(shape))]
        for before, after in itertools.permutations(placements, 2):
            x = da.distribute_array(whole, mesh, [before], src=None)
            part = x.to_local()
            for strided in (part, part[..., ::-1].copy()[..., ::-1], part.T.copy().T):
                y = da.DistArray.from_local(strided, mesh, [before], shape=shape, check=False)
                moved = y.redistribute([after])
                box = moved.layout.local_box(mesh.coordinate)
                expected = whole[tuple(slice(*interval) for interval in box)]
                np.testing.assert_array_equal(moved.to_local(), expected)
