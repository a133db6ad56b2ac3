"""Keyed bijections permute, and look as random as permutations should."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from distarray.random import _bijection
from distarray.random._bijection import SHORT, permute
from distarray.random._blocks import words_of

ONE_LINE = np.zeros(1, np.uint64)


def order(n: int, call: int = 0) -> np.ndarray:
    return permute(np.arange(n), n, words_of((1, 2), call), ONE_LINE)[0]


@pytest.mark.parametrize("n", [0, 1, 2, 5, SHORT, SHORT + 1, 8191, 8192, 8193, 70_000])
def test_every_number_comes_once(n: int) -> None:
    found = order(n)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(np.sort(found), np.arange(n))
    assert n < 3 or not np.array_equal(found, order(n, 1))


@pytest.mark.parametrize("n", [50, 9_000])
def test_positions_are_found_without_the_others(n: int) -> None:
    whole = order(n)
    places = np.array([n - 1, 3, 17, n // 2])
    found = permute(places, n, words_of((1, 2), 0), ONE_LINE)[0]
    np.testing.assert_array_equal(found, whole[places])


@pytest.mark.parametrize(("n", "stride"), [(6, 3), (6, 1), (5_000, 3)])
def test_lines_have_orders_of_their_own(n: int, stride: int) -> None:
    lines = np.array([0, 1, 2], np.uint64) * np.uint64(n if stride == 1 else 1)
    words = words_of((1, 2), 0)
    together = permute(np.arange(n), n, words, lines, stride)
    for line, found in zip(lines, together, strict=True):
        np.testing.assert_array_equal(np.sort(found), np.arange(n))
        np.testing.assert_array_equal(
            permute(np.arange(n), n, words, np.array([line], np.uint64), stride)[0], found
        )
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(together, 2))


def test_billions_are_permuted_where_they_are_asked_for() -> None:
    n = 10**12 + 7
    found = permute(np.array([0, 1, n - 1]), n, words_of((1, 2), 0), ONE_LINE)[0]
    assert len(set(found)) == 3
    assert ((found >= 0) & (found < n)).all()


def test_all_orders_of_a_short_line_are_equally_likely() -> None:
    lines = np.arange(60_000, dtype=np.uint64) * np.uint64(5)
    found = permute(np.arange(5), 5, words_of((1, 2), 0), lines)
    counts = np.unique(found @ 5 ** np.arange(5), return_counts=True)[1]
    assert len(counts) == 120
    squares = ((counts - 500) ** 2 / 500).sum()
    assert abs(squares - 119) < 4.5 * np.sqrt(2 * 119)


def test_long_lines_have_the_statistics_of_permutations() -> None:
    """Fixed points, neighbours that stay so, ascents, correlation, and where two items go."""
    n, calls = SHORT + 1, 300
    orders = [order(n, call) for call in range(calls)]
    for counts in (
        [(found == np.arange(n)).sum() for found in orders],
        [(np.diff(found) == 1).sum() for found in orders],
    ):
        assert abs(np.mean(counts) - 1) < 4.5 / np.sqrt(calls)  # Poisson numbers of mean 1
        assert abs(np.var(counts) - 1) < 4.5 * np.sqrt(3 / calls)
    ascents = [(np.diff(found) > 0).sum() for found in orders]
    assert abs(np.mean(ascents) - (n - 1) / 2) < 4.5 * np.sqrt((n + 1) / 12 / calls)
    assert 0.7 < np.var(ascents) / ((n + 1) / 12) < 1.3
    slopes = [np.corrcoef(found, np.arange(n))[0, 1] for found in orders]
    assert abs(np.mean(slopes)) < 4.5 / np.sqrt(n * calls)
    for pair in ((0, 1), (0, n - 1), (64, 128)):
        cells = [found[pair[0]] * 5 // n * 5 + found[pair[1]] * 5 // n for found in orders]
        counts = np.bincount(cells, minlength=25)
        squares = ((counts - calls / 25) ** 2 / (calls / 25)).sum()
        assert squares < 24 + 4.5 * np.sqrt(48)


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = (
        order(5_000),
        permute(np.arange(7), 7, words_of((1, 2), 0), np.arange(9, dtype=np.uint64), 9),
    )
    monkeypatch.setattr(_bijection, "PIECE", 20)
    np.testing.assert_array_equal(order(5_000), expected[0])
    found = permute(np.arange(7), 7, words_of((1, 2), 0), np.arange(9, dtype=np.uint64), 9)
    np.testing.assert_array_equal(found, expected[1])
