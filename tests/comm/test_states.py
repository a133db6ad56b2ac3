"""States and words of all ranks: values, errors that all raise alike, ranks that disagree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distarray.comm import (
    CommLog,
    exclusive_scan,
    gather_lengths,
    gather_words,
    join_blocks,
    join_states,
    simulate,
    simulated_world,
    token,
)
from distarray.errors import CommunicationError, IndexingError, MismatchError

SAME, OTHER = token("states", 1), token("states", 2)

NODES = pytest.mark.parametrize("ranks_per_node", [None, 1, 2], ids=["one node", "1", "2"])


def world() -> Any:
    return simulated_world()


@NODES
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("nbytes", [0, 1, 24, 5000, 100_000])
def test_states_are_those_of_all_ranks_in_order(n, nbytes, ranks_per_node):
    def program():
        comm = world()
        mine = np.random.default_rng(comm.rank).integers(0, 256, nbytes).astype(np.uint8)
        with CommLog() as log:
            joined = join_states(comm, mine.tobytes(), SAME, "states")
        everyone = np.frombuffer(joined, np.uint8).reshape(n, nbytes)
        for rank, row in enumerate(everyone):
            expected = np.random.default_rng(rank).integers(0, 256, nbytes).astype(np.uint8)
            np.testing.assert_array_equal(row, expected)
        assert everyone.flags.writeable
        assert log.count() == (n > 1)
        assert log.bytes("all_gather") == (n - 1) * nbytes

    simulate(n, program, ranks_per_node=ranks_per_node)


@NODES
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("most", [8, 5000])
def test_bytes_of_all_ranks_are_joined_in_order(n, most, ranks_per_node):
    def program():
        comm = world()
        with CommLog() as log:
            assert gather_lengths(comm, comm.rank << 40, SAME) == [rank << 40 for rank in range(n)]
            alike = join_states(comm, bytes([comm.rank]) * most, SAME)
            joined = join_blocks(comm, bytes([comm.rank]) * (most - comm.rank), most, SAME)
        np.ndarray(n * most, np.uint8, alike)[...] = 1  # nobody else writes to it
        assert bytes(joined) == b"".join([bytes([rank]) * (most - rank) for rank in range(n)])
        assert log.count() == 3 * (n > 1)
        assert log.bytes() == (n > 1) * ((n - 1) * (8 + most) + len(joined) - most + comm.rank)

    simulate(n, program, ranks_per_node=ranks_per_node)


@NODES
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_words_are_those_of_all_ranks_in_order(n, ranks_per_node):
    def program():
        rank = world().rank
        assert gather_words(world(), [], SAME) == [[]] * n
        with CommLog() as log:
            told = gather_words(world(), [rank, -(2**63), 2**63 - 1, -rank], SAME, "counts")
        assert told == [[r, -(2**63), 2**63 - 1, -r] for r in range(n)]
        assert log.count() == (n > 1)
        assert log.bytes("all_gather") == (n - 1) * 40
        many = gather_words(world(), range(rank, rank + 2000), SAME)
        assert many == [list(range(r, r + 2000)) for r in range(n)]

    simulate(n, program, ranks_per_node=ranks_per_node)


@NODES
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_error_of_one_rank_is_raised_on_all(n, ranks_per_node):
    def program():
        rank = world().rank
        mine = IndexingError(f"index 9 of rank {rank} is out of range") if rank == n - 1 else None
        with pytest.raises(IndexingError, match=f"index 9 of rank {n - 1} is out of range"):
            gather_words(world(), [rank], SAME, "x[i]", mine)
        assert gather_words(world(), [rank], SAME) == [[r] for r in range(n)]

    simulate(n, program, ranks_per_node=ranks_per_node)


def test_error_that_is_not_ours_is_told_to_the_others():
    def program():
        rank = world().rank
        mine = IndexError("no such item") if rank == 1 else None
        with pytest.raises(IndexError if rank == 1 else CommunicationError, match="no such item"):
            gather_words(world(), [rank], SAME, "x[i]", mine)

    simulate(3, program)


def test_errors_alike_on_all_ranks_are_raised_as_they_are():
    def program():
        mine = IndexingError("index 9 is out of range")
        with pytest.raises(IndexingError, match=r"^index 9 is out of range$"):
            gather_words(world(), [], SAME, "x[i]", mine)

    simulate(3, program)


@NODES
@pytest.mark.parametrize("nbytes", [8, 100_000])
def test_ranks_that_disagree_all_raise(nbytes, ranks_per_node):
    def program():
        rank = world().rank
        mine = bytes(nbytes)
        with pytest.raises(MismatchError, match="different things"):
            join_states(world(), mine, OTHER if rank == 1 else SAME, f"step {rank == 1}")
        with pytest.raises(MismatchError, match="different things"):
            gather_words(world(), [rank], OTHER if rank == 1 else SAME, f"step {rank == 1}")

    simulate(3, program, ranks_per_node=ranks_per_node)


SCANNED = [
    (np.add, "f8"),
    (np.add, "i1"),
    (np.multiply, "c16"),
    (np.minimum, "u4"),
    (np.fmax, "f4"),
    (np.logical_or, "?"),
    (np.bitwise_xor, "i8"),
    (np.add, "m8[s]"),
]


def state_of(rank: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return values whose sums depend on their order."""
    rng = np.random.default_rng(rank)
    return (rng.random(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype("f8").astype(dtype)


@NODES
@pytest.mark.parametrize("shape", [(), (1, 3), (1, 700), (40_000,), (0, 4)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_scan_is_the_fold_of_the_states_before(n, shape, ranks_per_node):
    def program():
        rank = world().rank
        for combine, dtype in SCANNED:
            for filled in (range(n), [r for r in range(n) if r % 2], [n - 1], []):
                state = state_of(rank, shape, dtype)
                with CommLog() as log:
                    got = exclusive_scan(world(), state, combine, filled, SAME, "scan")
                before = [state_of(r, shape, dtype) for r in filled if r < rank]
                assert log.count() == log.count("exclusive_scan") == (n > 1)
                if not before:
                    assert got is None
                    continue
                expected = before[0]
                for one in before[1:]:
                    expected = np.asarray(combine(expected, one))
                assert got.dtype == np.dtype(dtype)
                assert got.shape == shape
                assert got.tobytes() == expected.tobytes()  # to the last bit

    simulate(n, program, ranks_per_node=ranks_per_node)


@NODES
def test_scan_of_large_states_takes_two_of_them(ranks_per_node):
    def program():
        state = np.ones(40_000)
        with CommLog() as log:
            exclusive_scan(world(), state, np.add, range(6), SAME)
        assert log.bytes() <= 2 * state.nbytes

    simulate(6, program, ranks_per_node=ranks_per_node)


@NODES
@pytest.mark.parametrize("size", [3, 2000, 60_000])
def test_scan_that_raises_on_one_rank_leaves_nobody_waiting(size, ranks_per_node):
    def program():
        comm = world()
        state = np.full(size, 1e308)
        with np.errstate(over="raise" if comm.rank == 2 else "ignore"):
            try:
                exclusive_scan(comm, state, np.add, range(4), SAME, "scan")
            except FloatingPointError:
                assert comm.rank == 2
            else:
                assert comm.rank != 2
        comm.barrier()

    simulate(4, program, ranks_per_node=ranks_per_node)


@NODES
def test_scans_that_disagree_all_raise(ranks_per_node):
    def program():
        which = OTHER if world().rank == 1 else SAME
        for size in (3, 60_000):
            with pytest.raises(MismatchError, match="different things"):
                exclusive_scan(world(), np.ones(size), np.add, range(4), which, "scan")

    simulate(4, program, ranks_per_node=ranks_per_node)
