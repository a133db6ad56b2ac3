"""Rows and states under real MPI: within a node, between nodes of one rank, and of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from distarray.comm import (
    Blocks,
    Communicator,
    _memory,
    as_communicator,
    exclusive_scan,
    gather_words,
    group_rows,
    join_states,
    pull_rows,
    push_rows,
    token,
)
from distarray.errors import IndexingError, MismatchError
from tests import on_device
from tests.comm import rows_checks as checks

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

CALL = token("rows")


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["one node", "nodes of 1", "nodes of 2"])
def comm(request: pytest.FixtureRequest) -> Iterator[Communicator]:
    from mpi4py import MPI

    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            if MPI.COMM_WORLD.size <= request.param:
                pytest.skip("all ranks are on one such node")
            patch.setenv("DISTARRAY_RANKS_PER_NODE", str(request.param))
        made = MPI.COMM_WORLD.Dup()
        yield as_communicator(made)
        made.Barrier()


@pytest.mark.parametrize("nbytes", [0, 8, 5000, 40_000, 300_000])
def test_states_are_those_of_all_ranks(comm: Any, nbytes: int) -> None:
    for _ in range(3):
        everyone = join_states(comm, bytes([comm.rank]) * nbytes, CALL, "states")
        assert bytes(everyone) == b"".join(bytes([rank]) * nbytes for rank in range(comm.size))


def test_words_are_those_of_all_ranks(comm: Any) -> None:
    for n in (0, 1, 600, 9000):
        told = gather_words(comm, range(comm.rank, comm.rank + n), CALL, "counts")
        assert told == [list(range(r, r + n)) for r in range(comm.size)]


def test_error_of_one_rank_is_raised_on_all(comm: Any) -> None:
    last = comm.size - 1
    for _ in range(3):
        error = IndexingError("index 9 is out of range") if comm.rank == last else None
        with pytest.raises(IndexingError, match="index 9 is out of range"):
            gather_words(comm, [1], CALL, "x[i]", error)


@pytest.mark.parametrize("size", [1, 700, 50_000])
def test_scan_is_the_fold_of_the_states_before(comm: Any, size: int) -> None:
    def state(rank: int) -> np.ndarray:
        return np.random.default_rng(rank).standard_normal(size)

    for filled in (range(comm.size), [r for r in range(comm.size) if r != 1]):
        got = exclusive_scan(comm, state(comm.rank), np.add, filled, CALL, "scan")
        before = [state(r) for r in filled if r < comm.rank]
        assert (got is None) is (not before)
        if got is not None:
            expected = before[0]
            for one in before[1:]:
                expected = expected + one
            np.testing.assert_array_equal(got, expected)


def test_ranks_that_disagree_all_raise(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    call = token("something else") if comm.rank == 1 else CALL
    for size in (8, 100_000):
        with pytest.raises(MismatchError, match="different things"):
            join_states(comm, bytes(size), call, "states")
        with pytest.raises(MismatchError, match="different things"):
            exclusive_scan(comm, np.zeros(size), np.add, range(comm.size), call, "scan")
    with pytest.raises(MismatchError, match="different things"):
        gather_words(comm, [1], call, "words")


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [checks.check_push, checks.check_pull])
def test_rows_are_those_of_numpy(comm: Any, check: Any) -> None:
    for seed in range(25):
        check(comm, seed, on_device.DEVICE)


def test_answers_are_those_of_the_owners(comm: Any) -> None:
    for seed in range(10):
        checks.check_ask(comm, seed)


@pytest.mark.parametrize("width", [1, 4, 512])
def test_many_rows_are_those_of_numpy(comm: Any, width: int) -> None:
    size, rank = comm.size, comm.rank
    n = 400_000 // width * size
    owners = [np.random.default_rng(r).integers(0, size, n) for r in range(size)]

    def rows_of(source: Any, numbers: np.ndarray) -> np.ndarray:
        return (numbers * width + source * 10**9)[:, None] + np.arange(width)

    mine = _memory.empty((n, width), np.int64)
    mine[...] = rows_of(rank, np.arange(n))
    parcels = group_rows(owners[rank], size)
    (got,), _ = push_rows(comm, [mine], parcels, CALL, "push")
    expected = [rows_of(r, np.flatnonzero(owner == rank)) for r, owner in enumerate(owners)]
    np.testing.assert_array_equal(got, np.concatenate(expected))
    rows = np.random.default_rng(rank).permutation(n)
    out = np.empty_like(mine)
    blocks = Blocks(np.arange(size + 1) * n)
    pull_rows(comm, mine, blocks, owners[rank] * n + rows, CALL, "pull", out=out)
    np.testing.assert_array_equal(out, rows_of(owners[rank], rows))


def test_error_of_one_rank_moves_no_row(comm: Any) -> None:
    last = comm.size - 1
    rows = np.ones((3 * comm.size, 5))
    blocks = Blocks(np.arange(comm.size + 1) * len(rows))
    parcels = group_rows(np.arange(3 * comm.size) % comm.size, comm.size)
    for _ in range(3):
        error = IndexingError("index 9 is out of range") if comm.rank == last else None
        with pytest.raises(IndexingError, match="index 9 is out of range"):
            push_rows(comm, [rows], parcels, CALL, "x[i] = y", error)
        with pytest.raises(IndexingError, match="index 9 is out of range"):
            pull_rows(comm, rows, blocks, np.arange(len(rows)), CALL, "x[i]", error=error)
    (got,), _ = push_rows(comm, [rows], parcels, CALL)
    assert len(got) == 3 * comm.size


def test_pushes_that_disagree_all_raise(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    call = token("something else") if comm.rank == 1 else CALL
    for n in (3, 3000):
        rows = np.ones((n * comm.size, 5))
        parcels = group_rows(np.arange(n * comm.size) % comm.size, comm.size)
        with pytest.raises(MismatchError, match="different things"):
            push_rows(comm, [rows], parcels, call, "push")
        blocks = Blocks(np.arange(comm.size + 1) * len(rows))
        with pytest.raises(MismatchError, match="different things"):
            pull_rows(comm, rows, blocks, np.arange(len(rows)), call, "pull")
