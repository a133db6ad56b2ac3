"""Items of other arrays are found as in NumPy, whichever of both is brought to the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, _grouping, simulate
from distarray.comm.kernels import _jit
from distarray.errors import ArgumentError, DTypeError
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.searching import _searchsorted as searching
from distarray.ops.sets import _membership as membership
from distarray.ops.sets import _unique
from distarray.testing import reset
from tests import peak_memory
from tests.array.strategies import (
    KIND,
    MESH_SHAPES,
    RANKS,
    Case,
    agrees,
    cases,
    on_ranks,
    special_cases,
)

DTYPES = ("?", "i1", "u8", "i8", "f4", "f8", "c16")
OTHERS = ("U3", "S2", "M8[s]", "m8[D]") if KIND == "cpu" else ()


@pytest.fixture(scope="module", params=["gathered", "asked"])
def few_bytes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let arrays of all sizes be gathered, or none."""
    reset()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "asked":
            for module in (searching, membership):
                patch.setattr(module, "FEW_BYTES", 0)
            patch.setattr(membership, "_FEW_SOUGHT", -1)
            patch.setattr(membership, "_PIECE", 3)
        yield request.param
    reset()


@st.composite
def two_cases(draw: Any) -> tuple[Case, Case]:
    mesh_shape = draw(st.sampled_from(MESH_SHAPES))
    if draw(st.booleans()):
        kinds: Any = (draw(st.sampled_from((*DTYPES, *OTHERS))),)
        make = special_cases
    else:
        kinds, make = ("i4", "f8", "u1"), cases
    return tuple(draw(make(kinds, (), mesh_shape=mesh_shape)) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("ranks_per_node", [None, 1])
@settings(max_examples=12, deadline=None)
@given(pair=two_cases(), invert=st.booleans())
def test_items_are_found_as_in_numpy(
    few_bytes: str, ranks_per_node: int | None, pair: tuple[Case, Case], invert: bool
) -> None:
    first, second = pair
    expected = np.isin(first.value, second.value, invert=invert)

    def program() -> None:
        x, y = first.build(), second.build()
        if x.mesh.coordinate is None:
            return
        agrees(np.isin(x, y, invert=invert), expected)
        agrees(da.isin(x, second.value, invert=invert), expected)
        agrees(da.isin(first.value, y, invert=invert), expected)

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


@settings(max_examples=12, deadline=None)
@given(pair=two_cases(), plain=st.sampled_from((None, 0, 1)))
def test_sets_are_those_of_numpy(
    few_bytes: str, pair: tuple[Case, Case], plain: int | None
) -> None:
    values = [one.value for one in pair]
    names = ("intersect1d", "union1d", "setdiff1d", "setxor1d")
    expected = [getattr(np, name)(*values) for name in names]
    indices = np.intersect1d(*values, return_indices=True)
    again = values[0][np.isin(*values, invert=True)]  # NumPy's drops what is there twice

    def program() -> None:
        arrays: list[Any] = [one.build() for one in pair]
        if arrays[0].mesh.coordinate is None:
            return
        if plain is not None:
            arrays[plain] = values[plain]
        for name, wanted in zip(names, expected, strict=True):
            agrees(getattr(np, name)(*arrays), wanted)
        for one, wanted in zip(da.intersect1d(*arrays, return_indices=True), indices, strict=True):
            agrees(one, wanted)
        agrees(da.setdiff1d(*arrays, assume_unique=True), again)

    on_ranks(program)


@pytest.mark.parametrize("dtype", ["i8", "f8"])
def test_items_no_larger_than_a_block_of_the_sought_ones_are_gathered(dtype: str) -> None:
    n = membership.FEW_BYTES
    values = np.arange(RANKS * n).astype(dtype) % 1000
    items = np.arange(0, 2 * n, 2)[::-1].astype(dtype)

    def program() -> None:
        x, y = da.asarray(values), da.asarray(items)
        with CommLog() as log:
            found = da.isin(x, y)
        assert log.count() == log.count("all_gather") == 1
        agrees(found, np.isin(values, items))

    on_ranks(program)


def test_nothing_is_sent_of_many_items_where_one_is_not_cut() -> None:
    n = membership.FEW_BYTES

    def program() -> None:
        items = da.arange(n)
        whole = da.arange(0, 2 * n, 2, placements=[Replicate()] * items.mesh.ndim)
        with CommLog() as log:
            found = da.isin(whole, items)
            others = da.isin(items, whole)
        assert log.count() == 0
        agrees(found, np.arange(0, 2 * n, 2) < n)
        agrees(others, np.arange(n) % 2 == 0)

    on_ranks(program)


def test_nothing_is_sent_where_one_is_not_cut() -> None:
    def program() -> None:
        x = da.arange(30).reshape(10, 3)
        with CommLog() as log:
            found = da.isin(x, [3, 40, 7])
            some = da.isin([3, 40, 7], x)
            others = da.isin(5, x, invert=True)
        assert log.count() == 0
        assert found.placements == (Shard(0),)
        assert some.placements == (Partial("any"),)
        assert others.placements == (Partial("all"),)
        agrees(found, np.isin(np.arange(30).reshape(10, 3), [3, 40, 7]))
        agrees(some, [True, False, True])
        agrees(others, False)

    on_ranks(program)


@pytest.mark.parametrize("ranks_per_node", [None, 1])
def test_large_sets_stay_distributed(ranks_per_node: int | None) -> None:
    rng = np.random.default_rng(4)
    first, second = (rng.integers(0, 60_000, 30_000) for _ in range(2))

    def program() -> None:
        x, y = da.asarray(first), da.asarray(second)
        with CommLog() as log:
            found = da.isin(x, y)
        agrees(found, np.isin(first, second))
        assert log.bytes() < 3 * first.nbytes // RANKS + 600_000
        agrees(da.setxor1d(x, y), np.setxor1d(first, second))
        assert da.union1d(x, y).layout.partition(0).largest < 20_000

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


def test_kinds_that_are_none_are_refused() -> None:
    def program() -> None:
        x = da.arange(4.0)
        with pytest.raises(ArgumentError, match="'table'"):
            da.isin(x, x, kind="tree")
        with pytest.raises(ArgumentError, match="integers"):
            da.isin(x, x, kind="table")
        agrees(da.isin(da.arange(4), [1], kind="table"), [False, True, False, False])

    on_ranks(program)


@pytest.mark.host_only
def test_kinds_of_items_that_do_not_compare_are_refused() -> None:
    def program() -> None:
        with pytest.raises(DTypeError, match="bytes are not text"):
            da.isin(da.asarray(["a", "b"]), np.array([b"a", b"\xff"]))
        with pytest.raises(DTypeError, match="Cannot cast"):  # also where no block is empty
            da.isin(da.zeros(4, dtype="m8[h]"), np.zeros(1, "M8[ms]"))

    on_ranks(program)


def test_integers_further_apart_than_their_dtype_has_are_looked_up() -> None:
    every = np.arange(-(2**15), 2**15).astype(np.int16)
    sought = np.random.default_rng(0).permutation(np.resize(every, 150_000))
    items = every[(every >= 0) | (every % 4 > 0)]  # the lower half reaches beyond 0

    def program() -> None:
        for invert in (False, True):
            found = da.isin(da.asarray(sought), da.asarray(items), invert=invert)
            agrees(found, np.isin(sought, items, invert=invert))

    simulate(2, program)


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("isin", 4),
        ("searchsorted", 2.5),
        ("union1d", 4),
        ("setxor1d", 4.2),
        ("intersect1d", 7.5),
    ],
)
def test_memory_beside_arrays_of_one_size_is_few_blocks(
    name: str, blocks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of items that both have; the second array, and what others have read, are among these."""
    monkeypatch.setattr(_jit, "forced", lambda: dict.fromkeys(_jit.JOBS, "numpy"))
    for module in (_grouping, _unique, searching):
        monkeypatch.setattr(module, "_PIECE", 1 << 10)
    function, value = getattr(da, name), np.arange(float(1 << 17))
    if name != "searchsorted":
        np.random.default_rng(0).shuffle(value)
    assert peak_memory.scratch(lambda x: function(x, x + 0.5), value, 2) <= blocks + 0.2
