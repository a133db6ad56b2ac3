"""Key words have the order of `np.sort`, and every combination of their bits has a place in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.errors import DTypeError
from distarray.ops.sorting._keys import KeyWords, longest
from tests.ops.sorting.items import DTYPES, identical, items

pytestmark = pytest.mark.host_only  # they make no blocks

ONE_WORD = ("?", "i1", "u1", "i2", "u2", "f2")


def ranks_of(words: np.ndarray) -> np.ndarray:
    """Which of the distinct keys each item has."""
    return np.unique(words, axis=0, return_inverse=True)[1].reshape(-1)


def places_of(values: np.ndarray) -> np.ndarray:
    """Where the first item that equals each item is in the sorted array."""
    return np.searchsorted(np.sort(values, kind="stable"), values, "left")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_words_have_the_order_of_sort(dtype: Any, data: st.DataObject) -> None:
    values = data.draw(items(dtype))
    words = KeyWords(dtype).encode(values)
    assert words.shape == (len(values), len(KeyWords(dtype).bits))
    assert words.dtype == np.uint64
    assert not np.shares_memory(words, values)
    for column, bits in zip(words.T, KeyWords(dtype).bits, strict=True):
        assert bits == 64 or (column >> np.uint64(bits)).max(initial=0) == 0
    order = np.lexsort(words.T[::-1]) if words.size else np.arange(len(values))
    expected = np.sort(values, kind="stable")
    assert identical(values[order], expected)  # equal items have equal words
    assert (np.unique(places_of(values), return_inverse=True)[1] == ranks_of(words)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_decoded_words_equal_the_items_they_come_from(dtype: Any, data: st.DataObject) -> None:
    values = data.draw(items(dtype))
    keys = KeyWords(dtype)
    again = keys.decode(keys.encode(values))
    assert again.dtype == np.dtype(dtype).newbyteorder("=")
    assert again.shape == values.shape
    assert (keys.encode(again) == keys.encode(values)).all()
    both = np.concatenate([values.astype(again.dtype), again])
    places = places_of(both)
    assert (places[: len(values)] == places[len(values) :]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_decode_ascends_with_any_words(dtype: Any, data: st.DataObject) -> None:
    keys = KeyWords(dtype)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = keys.encode(data.draw(items(dtype))).tolist()
    for row in rows:  # beside the words of items
        place = rng.integers(len(row))
        near = row[place] + int(rng.integers(-2, 3))
        row[place] = min(max(near, 0), 2 ** keys.bits[place] - 1)
    for _ in range(20):  # and anywhere
        rows.append([int.from_bytes(rng.bytes(8)) >> (64 - bits) for bits in keys.bits])
    rows.sort()
    probes = keys.decode(np.array(rows, np.uint64).reshape(len(rows), len(keys.bits)))
    places = places_of(probes)
    assert (np.diff(places) >= 0).all()
    run = np.sort(data.draw(items(dtype)).astype(keys.dtype), kind="stable")
    assert (np.diff(np.searchsorted(run, probes, "left")) >= 0).all()
    assert (np.diff(np.searchsorted(run, probes, "right")) >= 0).all()


@pytest.mark.parametrize("dtype", ONE_WORD)
def test_decode_ascends_over_all_words_of_short_dtypes(dtype: str) -> None:
    keys = KeyWords(dtype)
    (bits,) = keys.bits
    words = np.arange(2**bits, dtype=np.uint64)[:, None]
    values = keys.decode(words)
    assert (np.diff(places_of(values)) >= 0).all()
    exact = keys.encode(values)  # of all words, those that no item has stand for the nearest
    is_key = (exact == words)[:, 0]
    assert is_key[[0, -1]].tolist() in ([True, True], [False, True])
    every = np.arange(2 ** (8 * np.dtype(dtype).itemsize) if dtype != "?" else 2)
    every = every.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    assert set(keys.encode(every)[:, 0]) == set(words[is_key, 0])


def test_minus_infinity_stands_for_what_lies_below() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.longdouble):
        keys = KeyWords(dtype)
        lowest = np.zeros((1, len(keys.bits)), np.uint64)
        assert keys.decode(lowest)[0] == -np.inf
        assert np.isnan(keys.decode(np.array([[2**b - 1 for b in keys.bits]], np.uint64))[0])


def test_words_of_other_byte_orders_and_strides_are_the_same() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("f8", "i4", "U3", "c16", "M8[s]", "g"):
        values = rng.integers(-50, 50, (6, 4)).astype("i8").astype(dtype)
        words = KeyWords(dtype).encode(values)
        swapped = values.astype(np.dtype(dtype).newbyteorder())
        assert (KeyWords(swapped.dtype).encode(swapped) == words).all()
        assert (KeyWords(dtype).encode(values.T[::2]) == words.swapaxes(0, 1)[::2]).all()
        assert KeyWords(dtype).decode(words).shape == (6, 4)


def test_words_end_with_the_longest_text() -> None:
    values = np.array(["b", "", "abc", "ab"], "U40")
    assert longest(values) == 3
    assert longest(values[:0]) == longest(np.zeros(3)) == 0
    keys = KeyWords(values.dtype, 3)
    assert keys.bits == (64, 64)
    assert len(KeyWords(values.dtype).bits) == 20
    assert (keys.decode(keys.encode(values)) == values).all()
    assert keys.decode(keys.encode(values)).dtype == values.dtype
    assert KeyWords("S9", 0).bits == ()
    assert KeyWords("U0").decode(np.zeros((3, 0), np.uint64)).tolist() == ["", "", ""]


@pytest.mark.parametrize("dtype", [object, np.dtypes.StringDType(), [("a", object)]], ids=str)
def test_dtypes_without_an_order_of_bits_are_refused(dtype: Any) -> None:
    with pytest.raises(DTypeError, match="astype"):
        KeyWords(dtype)
