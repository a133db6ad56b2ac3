"""Cuts of sorted runs add up to the wanted places, and equal items are cut by rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.comm import simulate, simulated_world, world
from distarray.ops.sorting import _multiselection
from distarray.ops.sorting._keys import KeyWords
from distarray.ops.sorting._multiselection import Ranks, ranks_of, select_cuts, select_values
from tests.ops.sorting.items import DTYPES, draw_items, identical

pytestmark = pytest.mark.host_only  # they make no blocks


class Counted:
    """The ranks of a run; what they send is counted."""

    def __init__(self) -> None:
        self.comm = simulated_world() or world()
        self.real = ranks_of(self.comm)
        self.rounds: list[int] = []
        self.gathered: list[int] = []

    def add(self, counts: np.ndarray) -> np.ndarray:
        assert counts.dtype == np.int64
        self.rounds.append(counts.nbytes)
        return self.real.add(counts)

    def gather(self, block: np.ndarray) -> list[np.ndarray]:
        self.gathered.append(block.nbytes)
        return list(self.real.gather(block))

    @property
    def ranks(self) -> Ranks:
        return Ranks(self.comm.rank, self.add, self.gather)


def split(values: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_cuts_and_values_are_those_of_a_stable_sort(dtype: Any, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    native = np.dtype(dtype).newbyteorder("=")
    values = draw_items(rng, native, sum(sizes), data.draw(st.booleans()))
    places = data.draw(st.lists(st.integers(0, len(values)), max_size=6))
    few, nbytes = data.draw(st.sampled_from(((0, 65536), (0, 400), (40, 65536), (32768, 65536))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_multiselection, "_FEW_BYTES", few)
        patch.setattr(_multiselection, "_ROUND_BYTES", nbytes)
        check(split(values, sizes), places)


def check(blocks: list[np.ndarray], places: list[int]) -> list[Counted]:
    """Select on as many simulated ranks as there are blocks."""
    return simulate(len(blocks), select_on_rank, blocks, places)


def select_on_rank(blocks: list[np.ndarray], places: list[int]) -> Counted:
    """Compare with a stable sort of everything, whose items know which rank they come from."""
    values = np.concatenate(blocks)
    order = np.argsort(values, kind="stable")
    origin = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])[order]
    keys = KeyWords(values.dtype)
    inside = [place for place in places if place < len(values)]
    counted = Counted()
    rank = counted.comm.rank
    run = np.sort(blocks[rank], kind="stable")
    cuts = select_cuts(run, places, keys, counted.ranks)
    assert cuts.dtype == np.int64
    assert cuts.tolist() == [np.count_nonzero(origin[:place] == rank) for place in places]
    assert max(counted.rounds, default=0) <= _multiselection._ROUND_BYTES + 16 * len(places)
    found = select_values(run, inside, keys, Counted().ranks)
    assert identical(found, values[order][inside])
    return counted


@pytest.mark.parametrize("dtype", ["f8", "i8", "u1", "c16", "U8"])
def test_blocks_keep_their_sizes_when_all_items_are_equal(dtype: str) -> None:
    values = np.full(40, 3).astype(dtype)
    check(split(values, [0, 25, 1, 14]), [0, 25, 26, 40])
    check(split(values, [40, 0, 0, 0]), [10, 20, 30])


def test_few_open_items_end_the_rounds() -> None:
    rng = np.random.default_rng(3)
    values = rng.random(60_000)
    for counted in check(split(values, [20_000, 0, 30_000, 10_000]), [20_000, 20_000, 50_000]):
        assert len(counted.rounds) < 4  # of 8
        assert len(counted.gathered) == 2
        assert max(counted.gathered) <= _multiselection._FEW_BYTES
    for counted in check(split(np.zeros(60_000), [20_000, 0, 30_000, 10_000]), [20_000]):
        assert len(counted.rounds) == 8


def test_many_places_are_found_in_small_rounds() -> None:
    values = np.random.default_rng(4).integers(0, 5000, 20_000)
    for counted in check(split(values, [9_000, 11_000]), list(range(0, 20_000, 5))):
        assert max(counted.rounds) <= 2 * _multiselection._ROUND_BYTES


def test_no_place_needs_no_round() -> None:
    for counted in check(split(np.arange(10.0), [4, 6]), []):
        assert counted.rounds == counted.gathered == []


@settings(max_examples=10)
@given(data=st.data())
def test_lines_are_selected_from_each_by_itself(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    count, total = data.draw(st.integers(1, 5)), sum(sizes)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = rng.integers(0, data.draw(st.sampled_from((3, 1000))), (count, total))
    places = data.draw(st.lists(st.integers(0, total), max_size=4))
    few = data.draw(st.sampled_from((0, 64, 32768)))
    offsets = np.cumsum([0, *sizes])

    def program() -> None:
        comm = simulated_world() or world()
        run = np.sort(values[:, offsets[comm.rank] : offsets[comm.rank + 1]])
        keys = KeyWords(values.dtype)
        cuts = select_cuts(run, places, keys, ranks_of(comm))
        assert cuts.shape == (count, len(places))
        each = [select_cuts(line, places, keys, ranks_of(comm)).tolist() for line in run]
        assert cuts.tolist() == each

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_multiselection, "_FEW_BYTES", few)
        simulate(len(sizes), program)
