"""Each item has a stream of its own: none overlap, and no item depends on its neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distarray.errors import ArgumentError
from distarray.random import _streams
from distarray.random._blocks import geometry_of, words_of
from distarray.random._continuous import gamma, vonmises
from distarray.random._counts import binomial, poisson
from distarray.random._streams import Items, by_sampler, choose

KEY = (3, 4)


def items(size: int = 60, call: int = 0, shape: Any = (60,), box: Any = ((0, 60),)) -> Items:
    return Items(words_of(KEY, call), geometry_of(shape, box), 0, size)


def test_no_streams_overlap() -> None:
    turns = (0, 1, 2, 4095)
    drawn = [
        items(call=call).part(part).bits(turn)
        for call in (0, 1, 2**63)
        for part in (0, 1, 2, 15)
        for turn in turns
    ]
    assert len(np.unique(drawn)) == 60 * len(drawn)


@pytest.mark.parametrize("kind", ["uniform", "normal", "exponential", "bits"])
def test_some_items_have_the_numbers_that_they_have_among_all(kind: str) -> None:
    box = ((2, 9), (3, 11))
    all_ = items(56, 7, (11, 13), box)
    everything = getattr(all_.part(3), kind)(9)
    places = np.array([0, 5, 54, 55, 17])
    mask = np.arange(56) % 3 == 1
    for some in (places, mask):
        taken = all_.take(some)
        np.testing.assert_array_equal(getattr(taken.part(3), kind)(9), everything[some])
        again = np.arange(taken.size)[::-2]
        np.testing.assert_array_equal(
            getattr(taken.take(again).part(3), kind)(9), everything[some][again]
        )


@pytest.mark.parametrize(
    ("sampler", "parameters"),
    [
        (gamma, (0.7, 2.0)),
        *[(poisson, (mean,)) for mean in (9.0, 14.0)],
        *[(binomial, (n, 0.4)) for n in (24, 80)],
        (vonmises, (1.0, 2.0)),
    ],
)
def test_blocks_and_pieces_hold_their_part_of_the_whole(
    sampler: Any, parameters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, shape = by_sampler(sampler), (23, 31)
    whole = np.empty(shape)
    fill(whole, KEY, 2, shape, ((0, 23), (0, 31)), *parameters)
    assert len(np.unique(whole)) > 10
    monkeypatch.setattr(_streams, "PIECE", 17)
    part = np.empty((9, 20))
    fill(part, KEY, 2, shape, ((8, 17), (5, 25)), *parameters)
    np.testing.assert_array_equal(part, whole[8:17, 5:25])
    arrays = [np.full((9, 20), one) for one in parameters]
    fill(part, KEY, 2, shape, ((8, 17), (5, 25)), *arrays)
    np.testing.assert_array_equal(part, whole[8:17, 5:25])


def test_neighbours_parts_and_turns_are_uncorrelated() -> None:
    size = 50_000
    one = Items(words_of(KEY, 0), geometry_of((size,), ((0, size),)), 0, size)
    x = gamma(one, 2.0, 1.0)
    limit = 4.5 / np.sqrt(size)
    for y in (x[1:], x[2:], gamma(one.part(1), 2.0, 1.0), one.uniform(2), one.normal(4)):
        assert abs(np.corrcoef(x[: len(y)], y)[0, 1]) < limit


def test_what_is_never_accepted_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="nan"):
        poisson(items(), np.nan)


def test_choose_gives_each_item_to_its_sampler() -> None:
    found = choose(
        items(6),
        np.array([True, False] * 3),
        lambda some, p: p * 10 + some.size,
        lambda some, p: -p,
        np.arange(6.0),
    )
    assert found.tolist() == [3, -1, 23, -3, 43, -5]
