"""Small blocks of a node travel in one message of each rank, those of several arrays together."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.comm import CommLog, simulate
from distarray.errors import MismatchError
from distarray.layout import Layout
from distarray.redistribute import (
    _small_blocks,
    fetching,
    redistribute_local,
    redistribute_together,
)
from distarray.testing import reset

RANKS = 4


def _block(layout: Layout, dtype: str, seed: int) -> np.ndarray:
    box = layout.local_box()
    values = np.random.default_rng(seed).integers(0, 100, layout.shape).astype(dtype)
    assert box is not None
    return values[tuple(slice(*one) for one in box)]


@pytest.mark.parametrize("shape", [(7, 5), (3, 4), (4, 1), (0, 3)])
@pytest.mark.parametrize("most", [_small_blocks._MOST_BYTES, 64, -1])
def test_blocks_of_several_arrays_become_what_each_becomes(
    shape: tuple[int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_small_blocks, "_MOST_BYTES", most)
    reset()

    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        rows, columns, whole = (
            Layout(mesh, [placement], shape) for placement in (Shard(0), Shard(1), Replicate())
        )
        uneven = rows.replace(boundaries={0: (0, 0, shape[0], shape[0], shape[0])})
        moves = [
            (rows, columns, "f8"), (whole, rows, "i2"), (columns, whole, "?"),
            (rows, uneven, "c8"), (rows, rows, "f4"), (uneven, columns, "i1"),
        ]  # fmt: skip
        blocks = [_block(src, dtype, i) for i, (src, _, dtype) in enumerate(moves)]
        pairs = [(src, dst) for src, dst, _ in moves]
        found = redistribute_together(blocks, pairs)
        for i, (block, (_, dst, dtype)) in enumerate(zip(found, moves, strict=True)):
            assert block.dtype == dtype
            np.testing.assert_array_equal(block, _block(dst, dtype, i))
        assert found[4] is blocks[4]  # nothing changes
        assert not np.shares_memory(found[1], blocks[1])

    simulate(RANKS, program)
    reset()


@pytest.mark.host_only  # blocks on GPUs move one after another
def test_joined_parts_travel_in_one_round() -> None:
    def program() -> None:
        x, y = da.arange(6.0), da.arange(10)
        with CommLog() as log:
            joined = da.concat([x, y.astype(float), x])
        assert log.count() == 1
        expected = [*range(6), *range(10), *range(6)]
        assert joined.tolist() == expected
        sent = [(record.collective, record.nbytes) for record in log.records]
        with CommLog() as log:
            rolled = da.roll(joined, 3)
        assert log.count() == 1
        assert rolled.tolist() == np.roll(expected, 3).tolist()
        with CommLog() as log:
            assert da.concat([x, y.astype(float), x]).tolist() == expected
        assert [(record.collective, record.nbytes) for record in log.records][:1] == sent

    simulate(RANKS, program)


def test_only_a_whole_block_of_one_rank_is_fetched() -> None:
    shape = (1, 6)

    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        rows, columns, whole = (
            Layout(mesh, [placement], shape) for placement in (Shard(0), Shard(1), Replicate())
        )
        dtype = np.dtype(float)
        assert fetching(rows, whole, dtype) is not None
        assert fetching(rows, columns, dtype) is None  # of which each rank gets a part
        assert fetching(columns, whole, dtype) is None
        assert fetching(columns, rows, dtype) is None

    simulate(RANKS, program)


def test_ranks_that_join_other_arrays_all_raise() -> None:
    def program() -> None:
        x, y = da.arange(6.0), da.arange(10.0)
        with pytest.raises(MismatchError):
            da.concat([x, y] if x.mesh.rank else [y, x])
        assert da.concat([x, y]).tolist() == [*range(6), *range(10)]

    simulate(RANKS, program)


def test_parts_that_are_reduced_move_alone() -> None:
    def program() -> None:
        x = da.asarray(np.arange(4.0), placements=[Partial()])
        joined = da.concat([x, da.arange(4.0), da.arange(4.0)])
        assert joined.tolist() == [*range(4)] * 3

    simulate(RANKS, program)


@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
@pytest.mark.parametrize("dtype", ["f8", "f2", "c8", ">f4"])
@pytest.mark.parametrize("shape", [(8, 3), (7, 3), (2, 3), (0, 3)])
def test_small_parts_are_reduced_to_what_numpy_makes_of_them(
    op: str, dtype: str, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(len(op))
    parts = [rng.integers(-4, 5, shape).astype(dtype) for _ in range(RANKS)]
    whole = np.multiply.reduce(parts) if op == "prod" else np.add.reduce(parts)
    whole = whole / (RANKS if op == "avg" else 1)

    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        src = Layout(mesh, [Partial(op)], shape)
        dst = src.replace(placements=[Shard(0)])
        mine = np.asfortranarray(parts[mesh.rank])
        with np.errstate(all="raise"):
            for _ in range(3):  # the first finds that it is small
                block = redistribute_local(mine, src, dst)
        assert block.dtype == dtype
        assert block.flags.c_contiguous
        (rows, _) = dst.local_box() or ((0, 0), (0, 0))
        np.testing.assert_array_equal(block, whole[slice(*rows)])

    simulate(RANKS, program)


def test_a_small_block_is_not_the_message_that_brought_it() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        rows = Layout(mesh, [Shard(0)], (RANKS, 2))
        whole = rows.replace(placements=[Replicate()])
        first = redistribute_local(np.full((1, 2), mesh.rank), rows, whole)
        redistribute_local(np.full((1, 2), -1), rows, whole)
        redistribute_local(np.full((1, 2), -1), rows, whole)
        assert first.tolist() == [[i, i] for i in range(RANKS)]

    simulate(RANKS, program)
