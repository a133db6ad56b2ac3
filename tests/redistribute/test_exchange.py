"""What ranks take and what they give is the same, and no rank is asked for more than its share."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distarray.errors import LayoutError
from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from distarray.redistribute import _schedule
from distarray.redistribute._blocks import same_mesh
from distarray.redistribute._replica_choice import RowChoice, choose_replicas
from distarray.redistribute._schedule import receives, sends
from tests.redistribute.strategies import moves

R, P = Replicate(), Partial()


@st.composite
def exchanges(draw):
    """Two layouts between which one exchange is enough."""
    src, dst, _ = draw(moves())
    try:
        choose_replicas(src, dst)
    except LayoutError:
        assume(False)
    return src, dst


def everyone(src: Layout, dst: Layout) -> list[int]:
    return sorted({*src.mesh.flat_ranks, *dst.mesh.flat_ranks})


def taken(src, dst, part=(0, 1)):
    """Return every box under way as (giver, taker, box there, box here), by those who take."""
    return [
        (peer, rank, transfer.src_box, transfer.dst_box)
        for rank in everyone(src, dst)
        for transfer in receives(src, dst, rank, part)
        for peer in transfer.peers
    ]


def given_away(src, dst, part=(0, 1)):
    return [
        (rank, peer, transfer.src_box, transfer.dst_box)
        for rank in everyone(src, dst)
        for transfer in sends(src, dst, rank, part)
        for peer in transfer.peers
    ]


@given(exchanges())
@settings(max_examples=100)
def test_what_is_sent_is_what_is_received(pair):
    assert sorted(taken(*pair)) == sorted(given_away(*pair))


@given(exchanges(), st.integers(1, 7))
@settings(max_examples=100)
def test_what_is_sent_is_what_is_received_in_every_round(pair, rounds):
    for index in range(rounds):
        givers, takers = {}, {}
        for giver, taker, *boxes in given_away(*pair, (index, rounds)):
            givers.setdefault((giver, taker), []).append(boxes)
        for giver, taker, *boxes in taken(*pair, (index, rounds)):
            takers.setdefault((giver, taker), []).append(boxes)
        assert givers == takers  # also in the same order, as they lie in the message


@given(exchanges())
@settings(max_examples=100)
def test_two_ranks_share_one_box_at_most(pair):
    pairs = Counter((giver, taker) for giver, taker, *_ in taken(*pair))
    assert max(pairs.values(), default=1) == 1


@given(exchanges())
@settings(max_examples=100)
def test_counts_in_closed_form_are_those_of_the_transfers(pair):
    src, dst = pair
    for rank in everyone(src, dst):
        arriving = receives(src, dst, rank)
        leaving = sends(src, dst, rank)
        received = sum(t.size * (len(t.peers) - (rank in t.peers)) for t in arriving)
        assert _schedule.count_received(src, dst, rank) == received
        assert _schedule.count_sent(src, dst, rank) == sum(
            t.size for t in leaving if t.peers != (rank,)
        )
        peers = {peer for t in arriving for peer in t.peers} - {rank}
        assert _schedule.count_senders(src, dst, rank) == len(peers)


@given(exchanges())
@settings(max_examples=100)
def test_transfers_stay_on_the_mesh_axes_that_the_route_names(pair):
    src, dst = pair
    way = choose_replicas(src, dst)
    if not isinstance(way, RowChoice):
        assert not same_mesh(src, dst)
        return
    crossed = set()
    for giver, taker, *_ in taken(src, dst):
        a, b = src.mesh.coordinate_of(giver), src.mesh.coordinate_of(taker)
        crossed |= {i for i in range(src.mesh.ndim) if a[i] != b[i]}
    assert crossed <= set(way.mesh_axes)


def load(src: Layout, dst: Layout) -> list[int]:
    """Return how many values each rank sends to others."""
    return [_schedule.count_sent(src, dst, rank) for rank in src.mesh.flat_ranks]


def test_copies_share_the_work_where_one_row_would_serve_all():
    mesh = AbstractMesh((8, 4))
    src = Layout(mesh, [Shard(0), R], (64, 8))
    dst = src.replace(placements=[R, Shard(0)])
    assert max(load(src, dst)) <= 3 * 64  # of 24 receivers of a block, 8 columns each
    assert min(load(src, dst)) > 0


def test_copies_take_turns_between_meshes():
    src = Layout(AbstractMesh((4,)), [R], (64,))
    dst = Layout(AbstractMesh((8,), ranks=range(4, 12)), [R], (64,))
    assert load(src, dst) == [2 * 64] * 4
    dst = dst.replace(placements=[Shard(0)])
    assert load(src, dst) == [16] * 4


def test_contributions_come_in_the_order_of_the_mesh():
    mesh = AbstractMesh((2, 2), ranks=[5, 3, 1, 7])
    src = Layout(mesh, [P, P], (4,))
    for rank in mesh.flat_ranks:
        (transfer,) = receives(src, src.replace(placements=[R, R]), rank)
        assert transfer.peers == (5, 3, 1, 7)
        assert transfer.src_box == ((0, 4),)


def test_own_copy_is_preferred():
    mesh = AbstractMesh((2, 3))
    src = Layout(mesh, [Shard(0), R], (6, 6))
    dst = src.replace(placements=[Shard(0), Shard(1)])
    for rank in range(6):
        assert [t.peers for t in receives(src, dst, rank)] == [(rank,)]
        assert [t.peers for t in sends(src, dst, rank)] == [(rank,)]


def test_rank_outside_a_mesh_takes_and_gives_nothing():
    src = Layout(AbstractMesh((2,)), [Shard(0)], (6,))
    dst = Layout(AbstractMesh((2,), ranks=[2, 3]), [Shard(0)], (6,))
    assert receives(src, dst, 0) == () == sends(src, dst, 2)
    assert [t.peers for t in receives(src, dst, 3)] == [(1,)]


def test_scalar_travels_as_one_value():
    src = Layout(AbstractMesh((2,)), [P], ())
    (transfer,) = receives(src, src.replace(placements=[R]), 1)
    assert (transfer.peers, transfer.src_box, transfer.dst_box, transfer.size) == (
        (0, 1),
        (),
        (),
        1,
    )


@pytest.mark.parametrize(("src", "dst"), [([R], [P]), ([Shard(0)], [P]), ([P], [Partial("max")])])
def test_exchange_refuses_to_create_partial_values(src, dst):
    mesh = AbstractMesh((2,))
    with pytest.raises(LayoutError, match="creates no Partial"):
        receives(Layout(mesh, src, (4,)), Layout(mesh, dst, (4,)), 0)
