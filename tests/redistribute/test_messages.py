"""Messages lie where values have left a block, or have not come to the next one yet."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.redistribute._messages import Span, buffers, find_rooms, span_of
from distarray.redistribute._schedule import slab
from distarray.testing import simulate

N, ROUNDS = 96, 12


def turn(ranks: int, rank: int, to_rows: bool) -> tuple[np.ndarray, np.ndarray, list, tuple]:
    """Return a rank's blocks before and after rows become columns, or the other way round."""
    at = [(peer * N // ranks, (peer + 1) * N // ranks) for peer in range(ranks)]
    rows, columns = np.zeros((N // ranks, N)), np.zeros((N, N // ranks))
    pieces = [(rows[:, slice(*own)], columns[slice(*own)]) for own in at]
    block, out = (columns, rows) if to_rows else (rows, columns)
    pieces = [pair[::-1] if to_rows else pair for pair in pieces]
    near = pieces.pop(rank)
    rounds = []
    for k in range(ROUNDS):
        ends: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        for pair in pieces:
            for view, end in zip(pair, ends, strict=True):
                (part,) = slab(tuple((0, n) for n in view.shape), (k, ROUNDS))
                end.append(view[tuple(slice(*own) for own in part)])
        rounds.append(ends)
    return block, out, rounds, near


def spans(views: list[np.ndarray], block: np.ndarray) -> list[Span]:
    return [span_of(view, block) for view in views]


@pytest.mark.parametrize("to_rows", [False, True])
@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (2, 1), (3, 1), (4, 0), (4, 2), (8, 5)])
def test_every_round_has_room_that_nothing_else_needs(ranks: int, rank: int, to_rows: bool) -> None:
    block, out, rounds, near = turn(ranks, rank, to_rows)
    blocks = block, out
    told = [(spans(sent, block), spans(filled, out)) for sent, filled in rounds]
    counts = [(sum(v.size for v in a), sum(v.size for v in b)) for a, b in rounds]
    kept = [spans([near[0]], block)], [spans([near[1]], out)]
    last = ROUNDS - 1 if to_rows else 0
    found = find_rooms(blocks, told, (kept[0][0], kept[1][0]), last, counts)
    for k, rooms in enumerate(found):
        needed = [view for sent, filled in rounds[k:] for view in sent]
        needed += [view for sent, filled in rounds[: k + 1] for view in filled]
        needed.append(near[0] if k <= last else near[1])
        for view in needed:
            view[...] = 1
        for room, count in zip(buffers(blocks, rooms), counts[k], strict=True):
            assert room is not None
            assert room.shape == (count,)
            assert not room.any()
            room[...] = 2
        for view in needed:
            assert (view == 1).all()
        block[...] = out[...] = 0


def test_a_view_reaches_from_its_first_item_to_its_last() -> None:
    block = np.zeros((4, 5))
    assert span_of(block[1:3, 1:3], block) == (6, 13)
    assert span_of(block[::-1, ::-1][1:3, 1:3], block) == (7, 14)
    assert span_of(block[:0], block) == (0, 0)


def test_there_is_no_room_where_all_is_needed() -> None:
    block, out = np.zeros(8), np.zeros(8)
    (rooms,) = find_rooms((block, out), [([(0, 8)], [(0, 6)])], ([], []), 0, [(2, 3)])
    assert rooms == [(1, (6, 8)), None]
    assert buffers((block, out), rooms)[1] is None


@pytest.mark.parametrize("columns", [9, 8])
def test_blocks_gathered_between_nodes_lie_where_they_belong(columns: int) -> None:
    value = np.arange(5000.0 * columns).reshape(5000, columns)

    def program() -> None:
        x = da.distribute_array(value, placements=[da.Shard(1)])
        np.testing.assert_array_equal(x.redistribute([da.Replicate()]).to_local(), value)

    simulate(3, program, ranks_per_node=1)


@pytest.mark.parametrize("dtype", ["f8", "i4"])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_blocks_that_one_rank_contributes_to_are_gathered_between_nodes(
    op: str, dtype: str
) -> None:
    whole = np.arange(15).reshape(5, 3).astype(dtype)

    def program() -> None:
        for shape in ((1, 2), (2, 1)):
            mesh = da.init_device_mesh(shape)
            placements = [da.Partial(op) if n == 1 else da.Shard(0) for n in shape]
            own = whole[:3] if mesh.rank == 0 else whole[3:]
            x = da.DistArray.from_local(own.copy(), mesh, placements, shape=whole.shape)
            for found in (x.full_array(), x.redistribute([da.Replicate()] * 2).to_local()):
                np.testing.assert_array_equal(found, whole)

    simulate(2, program, ranks_per_node=1)
