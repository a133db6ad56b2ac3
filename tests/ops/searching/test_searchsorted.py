"""Places among sorted items are NumPy's, whichever of both arrays is brought to the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog, simulate
from distarray.errors import ArgumentError, DTypeError, ImplicitCommunicationError, ShapeError
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.searching import _searchsorted as searching
from distarray.testing import reset
from tests.array.strategies import (
    MESH_SHAPES,
    RANKS,
    Case,
    agrees,
    cases,
    on_ranks,
    special_cases,
    special_items,
)
from tests.on_device import DEVICE, host

DTYPES = ("?", "i1", "u8", "i8", "f2", "f4", "f8", "c16")
OTHERS = ("U3", "S2", "M8[s]", "m8[D]") if DEVICE == "cpu" else ()


@pytest.fixture(scope="module", params=["gathered", "asked"])
def few_bytes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Let arrays of all sizes be gathered, or none."""
    reset()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "asked":
            patch.setattr(searching, "FEW_BYTES", 0)
            patch.setattr(searching, "_LEAST_QUERIES", 1)
            patch.setattr(searching, "_SORTED_QUERIES", 2)
        yield request.param
    reset()


@st.composite
def sorted_and_sought(draw: Any) -> tuple[Case, Case]:
    mesh_shape = draw(st.sampled_from(MESH_SHAPES))
    dtype = draw(st.sampled_from((*DTYPES, *OTHERS)))
    length = draw(st.sampled_from((0, 1, 3, 8, 20)))
    items: Case = draw(special_cases((dtype,), (), mesh_shape=mesh_shape, shape=(length,)))
    items.values[...] = np.sort(items.values, axis=-1)
    sought: Case = draw(special_cases((dtype,), (), mesh_shape=mesh_shape))
    return items, sought


@pytest.mark.parametrize("ranks_per_node", [None, 1, 2])
@settings(max_examples=20, deadline=None)
@given(pair=sorted_and_sought(), side=st.sampled_from(("left", "right")))
def test_places_are_those_of_numpy(
    few_bytes: str, ranks_per_node: int | None, pair: Any, side: str
) -> None:
    items, sought = pair
    expected = np.searchsorted(items.value, sought.value, side)

    def program() -> None:
        agrees(da.searchsorted(items.build(), sought.build(), side=side), expected)
        if few_bytes == "gathered":
            agrees(da.searchsorted(items.value, sought.build(), side=side), expected)
            agrees(np.searchsorted(items.build(), sought.value, side), expected)

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


def test_other_dtypes_promote_and_numbers_are_arrays(few_bytes: str) -> None:
    items, sought = np.arange(40, dtype=np.float32) / 2, np.arange(-3, 30)

    def program() -> None:
        x, y = da.asarray(items), da.asarray(sought)
        agrees(da.searchsorted(x, y), np.searchsorted(items, sought))
        agrees(da.searchsorted(y, x, side="right"), np.searchsorted(sought, items, "right"))
        agrees(da.searchsorted(x, 7.25), np.searchsorted(items, 7.25))
        agrees(da.searchsorted(y, np.float64(2)), np.searchsorted(sought, 2.0))

    on_ranks(program)


def test_items_are_read_in_the_order_of_a_sorter(few_bytes: str) -> None:
    items, sought = np.random.default_rng(1).permutation(50), np.arange(-3, 60, 2)
    order = np.argsort(items)
    expected = np.searchsorted(items, sought, sorter=order)

    def program() -> None:
        x, y = da.asarray(items), da.asarray(sought)
        agrees(da.searchsorted(x, y, sorter=order), expected)
        agrees(x.searchsorted(y, sorter=da.argsort(x)), expected)
        agrees(da.searchsorted(items, y, sorter=da.asarray(order)), expected)

    on_ranks(program)


def test_unsorted_items_give_some_place_and_never_a_wait(few_bytes: str) -> None:
    rng = np.random.default_rng(3)

    def program() -> None:
        places = da.searchsorted(da.asarray(rng.random(50)), da.asarray(rng.random(60)))
        found = places.full_array()
        assert ((found >= 0) & (found <= 50)).all()

    on_ranks(program)


def test_nothing_is_sent_where_one_is_not_cut() -> None:
    items, sought = np.arange(100.0), np.linspace(-1, 101, 4000).reshape(40, 100)

    def program() -> None:
        x, y = da.asarray(items), da.asarray(sought)
        whole = da.asarray(items, placements=[Replicate()])
        with CommLog() as log, da.communication("raise"):
            found = da.searchsorted(whole, y)
            assert found.placements == (Shard(0),)
            parts = da.searchsorted(x, 3.5)
            assert parts.placements == (Partial("sum"),)
            plain = da.searchsorted(items, y)
        assert log.count() == 0
        agrees(found, np.searchsorted(items, sought))
        agrees(plain, np.searchsorted(items, sought))
        agrees(parts, 4)

    on_ranks(program)


def test_large_ones_send_a_question_and_a_place_each_between_nodes() -> None:
    n = 20_000
    items, sought = np.arange(n) * 2.0, np.random.default_rng(1).random(n) * 2 * n
    where = np.searchsorted(items, sought)

    def program(in_place: bool) -> None:
        x, y = da.asarray(items), da.asarray(sought)
        with CommLog() as log:
            found = da.searchsorted(x, y)
        assert found.placements == (Shard(0),)
        agrees(found, where)
        step = n // RANKS
        mine = slice(x.mesh.rank * step, (x.mesh.rank + 1) * step)
        far = np.count_nonzero(np.minimum(where[mine], n - 1) // step != x.mesh.rank)
        if in_place:
            assert log.bytes() < 300
        else:
            assert log.bytes() <= 8 * (step + far) + 1000
        with (
            da.communication("raise"),
            pytest.raises(ImplicitCommunicationError, match="to other places"),
        ):
            da.searchsorted(x, y)

    simulate(RANKS, program, True)
    simulate(RANKS, program, False, ranks_per_node=1)


def test_an_owner_of_whom_all_ask_answers_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_LEAST_QUERIES", 100)
    n = 20_000
    items = np.arange(n, dtype=float)

    def program() -> None:
        sought = np.random.default_rng(da.default_mesh().rank).random(n // RANKS)
        y = da.DistArray.from_local(sought, None, [Shard(0)])
        found = da.searchsorted(da.asarray(items), y)
        assert np.array_equal(host(found.to_local()), np.searchsorted(items, sought))

    simulate(RANKS, program, ranks_per_node=1)


@pytest.mark.parametrize("distributed", [False, True])
def test_wrong_arguments_are_refused_before_anything_is_sent(distributed: bool) -> None:
    def program() -> None:
        x, square = da.arange(8.0), da.ones((3, 3))
        y = x if distributed else np.arange(3.0)
        with CommLog() as log:
            with pytest.raises(ShapeError, match="one axis"):
                da.searchsorted(square, y)
            with pytest.raises(ShapeError, match="one axis"):
                da.searchsorted(1.0, x)
            with pytest.raises(ArgumentError, match="'left' or 'right'"):
                da.searchsorted(x, y, side="middle")
            with pytest.raises(DTypeError, match="integers"):
                da.searchsorted(x, y, sorter=np.arange(8.0))
            with pytest.raises(ShapeError, match="each once"):
                da.searchsorted(x, y, sorter=np.arange(7))
        assert log.count() == 0

    on_ranks(program)


@pytest.mark.host_only
def test_bytes_are_not_sought_among_text() -> None:
    def program() -> None:
        with CommLog() as log, pytest.raises(DTypeError, match="bytes are not text"):
            da.searchsorted(da.asarray(["a", "b"]), np.array([b"a", b"\xff"]))
        assert log.count() == 0

    on_ranks(program)


def test_special_items_have_places() -> None:
    items = np.sort(special_items(np.float64))

    def program() -> None:
        x = da.asarray(items)
        agrees(da.searchsorted(x, x, side="right"), np.searchsorted(items, items, "right"))

    on_ranks(program)


@settings(max_examples=30, deadline=None)
@given(
    x=cases((np.int32, np.float64, np.uint8), ("sum",)),
    bins=st.lists(st.integers(-4, 6), max_size=6),
    falls=st.booleans(),
    right=st.booleans(),
    distributed=st.booleans(),
)
def test_bins_of_items_are_those_of_numpy(
    x: Case, bins: list[int], falls: bool, right: bool, distributed: bool
) -> None:
    edges = np.sort(np.array(bins, float))[:: -1 if falls else 1].copy()
    expected = np.digitize(x.value, edges, right)

    def program() -> None:
        own = x.build()
        if own.mesh.coordinate is not None:
            given = da.asarray(edges, mesh=own.mesh) if distributed else edges
            agrees(np.digitize(own, given, right), expected)

    on_ranks(program)


def test_edges_that_rise_and_fall_are_refused() -> None:
    def program() -> None:
        x = da.arange(8.0)
        for bins in ([1.0, 3.0, 2.0], [np.nan, 1.0, 2.0]):
            for edges in (bins, da.asarray(bins)):
                with pytest.raises(ArgumentError, match="ascend or descend"):
                    da.digitize(x, edges)
        for bins in ([1.0, 4.0, np.nan], [np.nan, 4.0, 1.0]):  # NaN is the largest
            agrees(da.digitize(x, da.asarray(bins)), np.digitize(np.arange(8.0), bins))
        with pytest.raises(DTypeError, match="real"):
            da.digitize(x * 1j, [1.0])
        with pytest.raises(ShapeError, match="one axis"):
            da.digitize(x, [[1.0]])

    on_ranks(program)
