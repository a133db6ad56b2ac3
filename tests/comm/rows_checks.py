"""What ragged exchanges must do, as functions of a communicator: run on threads and under MPI."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import (
    Blocks,
    Communicator,
    Parcels,
    _backend,
    ask_owners,
    pull_rows,
    push_rows,
    token,
)

DTYPES: list[Any] = [
    "?",
    "i1",
    "u2",
    "f4",
    "f8",
    "c16",
    "g",
    "M8[s]",
    "S3",
    "V5",
    [("a", "i4"), ("b", "f8")],
]
ON_DEVICE = [*DTYPES[:6], [("a", "i4"), ("b", "f4")]]
ROWS: list[tuple[int, ...]] = [(), (1,), (2,), (3, 5), (0,), (16,), (512,), (4, 128)]
CALL = token("rows")


def values(rng: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return random bytes as items; truth values are 0 or 1."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.char == "g":
        return rng.random(shape).astype(dtype)  # which does not use all of its bytes
    raw = rng.bytes(int(np.prod(shape, dtype=int)) * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def block_of(rng: Any, whole: np.ndarray, device: str) -> Any:
    """Return the values as a block, which may lie in memory in another way."""
    kind = rng.integers(3)
    if kind == 1:
        spread = np.zeros((2 * len(whole), *whole.shape[1:]), whole.dtype)
        spread[::2] = whole
        whole = spread[::2]
    elif kind == 2 and whole.ndim > 1:
        whole = np.asfortranarray(whole)
    return _backend.asarray(whole, device)


def same(got: Any, expected: np.ndarray) -> None:
    """Compare bytes, but for those that a long double does not use."""
    host = _backend.to_host(got)
    assert host.dtype == expected.dtype
    assert host.shape == expected.shape
    if expected.dtype.char == "g":
        np.testing.assert_array_equal(host, expected)
    else:
        assert host.tobytes() == expected.tobytes()


class Pattern:
    """A random pattern, the same on all ranks: blocks, and whom each rank has to do with."""

    def __init__(self, seed: int, size: int, device: str = "cpu") -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.size = size
        most = int(rng.choice([1, 3, 40, 300]))
        self.lengths = [int(n) for n in rng.integers(0, most + 1, size)]
        if rng.random() < 0.2:
            self.lengths = [0] * size
            self.lengths[int(rng.integers(size))] = most
        dtypes = DTYPES if device == "cpu" else ON_DEVICE
        self.dtypes = [dtypes[int(rng.integers(len(dtypes)))] for _ in range(3)]
        self.shapes = [ROWS[int(rng.integers(len(ROWS)))] for _ in range(3)]

    def column(self, k: int) -> list[np.ndarray]:
        """Return every rank's block of one column."""
        shape, dtype = self.shapes[k], self.dtypes[k]
        return [values(self.rng, (n, *shape), dtype) for n in self.lengths]


def parcels_of(owners: np.ndarray, size: int, *, ordered: bool) -> tuple[Parcels, np.ndarray]:
    """Return the parcels of owners, by NumPy alone, and the order."""
    order = np.argsort(owners, kind="stable")
    offsets = np.searchsorted(owners[order], np.arange(size + 1))
    return Parcels(offsets.astype(np.int64), None if ordered else order), order


def check_push(comm: Communicator, seed: int, device: str = "cpu") -> None:
    """Compare what every rank receives with NumPy's choice from all blocks."""
    pattern = Pattern(seed, comm.size, device)
    rng, size, rank = pattern.rng, comm.size, comm.rank
    columns = [pattern.column(k) for k in range(int(rng.integers(1, 4)))]
    sorted_ranks = rng.random(size) < 0.3
    owners = [rng.integers(0, size, n) for n in pattern.lengths]
    owners = [np.sort(o) if s else o for o, s in zip(owners, sorted_ranks, strict=True)]
    parcels, _ = parcels_of(owners[rank], size, ordered=bool(sorted_ranks[rank]))
    mine = [block_of(np.random.default_rng((seed, rank)), c[rank], device) for c in columns]
    received, offsets = push_rows(comm, mine, parcels, CALL, "push")
    counts = [int((owner == rank).sum()) for owner in owners]
    np.testing.assert_array_equal(offsets, np.cumsum([0, *counts]))
    for got, column in zip(received, columns, strict=True):
        parts = [block[owner == rank] for block, owner in zip(column, owners, strict=True)]
        same(got, np.concatenate(parts))
    for block, column in zip(mine, columns, strict=True):
        same(block, column[rank])


def check_pull(comm: Communicator, seed: int, device: str = "cpu") -> None:
    """Compare the rows that every rank takes with NumPy's choice from the whole."""
    pattern = Pattern(seed, comm.size, device)
    rng, size, rank = pattern.rng, comm.size, comm.rank
    column = pattern.column(0)
    whole = np.concatenate(column)
    starts = np.cumsum([0, *pattern.lengths])
    most = int(rng.choice([1, 5, 60, 400])) if len(whole) else 0
    wanted = [rng.integers(0, max(len(whole), 1), int(n)) for n in rng.integers(0, most + 1, size)]
    if rng.random() < 0.3:
        wanted = [np.unique(one) for one in wanted]
    if rng.random() < 0.2:  # far apart
        wanted = [one[:2] for one in wanted]
    mine = wanted[rank]
    rows = block_of(np.random.default_rng((seed, rank)), column[rank], device)
    same(pull_rows(comm, rows, Blocks(starts), mine, CALL, "pull"), whole[mine])
    out = _backend.asarray(np.zeros((len(mine), *whole.shape[1:]), whole.dtype), device)
    assert pull_rows(comm, rows, Blocks(starts), mine, CALL, "pull", out=out) is out
    same(out, whole[mine])
    same(rows, column[rank])


def check_ask(comm: Communicator, seed: int) -> None:
    """Compare the owners' answers with NumPy's."""
    rng, size, rank = np.random.default_rng(seed), comm.size, comm.rank
    counts = rng.integers(0, 50, size)
    asked = [rng.integers(0, 1000, n) for n in counts]
    owners = [rng.integers(0, size, n) for n in counts]
    parcels, _ = parcels_of(owners[rank], size, ordered=False)

    def answer(questions: list[Any]) -> np.ndarray:
        numbers, halves = questions
        return np.stack([numbers * 10 + rank, halves * 2], 1)

    got = ask_owners(comm, [asked[rank], asked[rank] / 2], parcels, answer, CALL, "ask")
    expected = np.stack([asked[rank] * 10 + owners[rank], asked[rank]], 1).astype(float)
    np.testing.assert_array_equal(got, expected)
