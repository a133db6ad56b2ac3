"""A block holds what the whole array holds there, whoever makes it: NumPy, a kernel, threads."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distarray.comm.kernels import _threads
from distarray.random import _arrays, _blocks
from distarray.random._blocks import (
    draw,
    fill,
    fill_floats,
    fill_integers,
    geometry_of,
    words_of,
)
from tests import either_way

KEY = (0x123456789ABCDEF0, 0xFEDCBA9876543210)
FLOATS = [
    (kind, dtype)
    for kind in ("uniform", "normal", "exponential")
    for dtype in ("float32", "float64")
]
INTEGERS = [
    ("int64", -5, 11),
    ("int64", -(2**63), 2**64),
    ("uint64", 0, 2**63 + 1),
    ("uint64", 7, 1),
    ("int32", -(2**31), 2**32),
    ("int8", -128, 256),
    ("uint16", 3, 1000),
    ("bool", 0, 2),
]


def make(what: Any, shape: Any, box: Any, call: int = 3, key: Any = KEY) -> np.ndarray:
    out = np.empty([stop - start for start, stop in box], what[-1] if len(what) == 2 else what[0])
    if len(what) == 2:
        fill_floats(out, what[0], key, call, shape, box, 0.25, 1.5)
    else:
        fill_integers(out, key, call, shape, box, *what[1:])
    return out


@pytest.fixture(params=["numpy", "kernel"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    only(request.param, monkeypatch)
    return request.param


def only(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = either_way.by_kernel if maker == "kernel" else either_way.by_numpy
    monkeypatch.setattr(_blocks, "run_faster", run)


def whole(shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((0, n) for n in shape)


@pytest.mark.parametrize("what", FLOATS + INTEGERS, ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_kernel_and_numpy_give_the_same_bits_for_any_box(what: Any, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 30), max_size=4)))
    box = []
    for n in shape:
        start = data.draw(st.integers(0, n))
        box.append((start, data.draw(st.integers(start, n))))
    call = data.draw(st.integers(0, 2**64 - 1))
    made = []
    for maker in ("numpy", "kernel"):
        with pytest.MonkeyPatch.context() as patch:
            only(maker, patch)
            made.append(make(what, shape, tuple(box), call))
    np.testing.assert_array_equal(*made)


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("what", [*FLOATS, INTEGERS[2]], ids=str)
@pytest.mark.parametrize("shape", [(11, 13), (5, 1, 7), (40,), (3, 4, 5, 2), (3, 2, 603)])
def test_block_holds_its_part_of_the_whole(what: Any, shape: tuple[int, ...]) -> None:
    everything = make(what, shape, whole(shape))
    generator = np.random.default_rng(0)
    for _ in range(10):
        starts = [int(generator.integers(0, n + 1)) for n in shape]
        box = tuple(
            (a, int(generator.integers(a, n + 1))) for a, n in zip(starts, shape, strict=True)
        )
        part = everything[tuple(slice(a, b) for a, b in box)]
        np.testing.assert_array_equal(make(what, shape, box), part)


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("kind", ["uniform", "normal", "exponential", "integer"])
def test_elements_by_their_indices_are_those_of_the_whole(kind: str) -> None:
    index = np.array([[3, 1, 8], [8, 40, 59]], np.uint64)
    found = draw(kind, index, words_of(KEY, 3))
    whole_ = np.empty(60, np.uint64 if kind == "integer" else float)
    fill(whole_, kind, words_of(KEY, 3), geometry_of((60,), ((0, 60),)))
    np.testing.assert_array_equal(found, whole_[index.astype(int)])
    np.testing.assert_array_equal(draw(kind, index[:, ::2], words_of(KEY, 3)), found[:, ::2])
    assert draw(kind, index[:0], words_of(KEY, 3)).shape == (0, 3)


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("kind", ["uniform", "normal", "exponential", "integer"])
@pytest.mark.parametrize("gap", [3, 900, 2000])
def test_elements_are_found_across_gaps(kind: str, gap: int) -> None:
    """Which are drawn along, or begun anew, or too many for either."""
    size = 200 * gap
    whole_ = np.empty(size, np.uint64 if kind == "integer" else float)
    fill(whole_, kind, words_of(KEY, 3), geometry_of((size,), ((0, size),)))
    places = np.concatenate([np.arange(20) + gap, np.arange(200) * gap + 1, [0, 5, 4, 4]])
    for index in (places[:21], places[20:], places):
        found = draw(kind, index.astype(np.uint64), words_of(KEY, 3))
        np.testing.assert_array_equal(found, whole_[index])


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("first", [0, 1, 2, 3, 2**62 + 5])
def test_bits_are_those_of_numpy_s_philox(first: int) -> None:
    key, call = (2**64 - 1, 5), 2**63 + 7
    counter = np.array([first // 4, call, 0, 0], np.uint64)
    numpy = np.random.Philox(key=np.array(key, np.uint64), counter=counter)
    expected = numpy.random_raw(5000 + first % 4)[first % 4 :]
    box = ((first, first + 5000),)
    found = make(("uint64", 0, 2**64), (2**63 - 1,), box, call, key)
    np.testing.assert_array_equal(found, expected)
    floats = np.empty(5000)
    fill_floats(floats, "uniform", key, call, (2**63 - 1,), box)
    np.testing.assert_array_equal(floats, (expected >> np.uint64(11)) * 2.0**-53)


@pytest.mark.usefixtures("maker")
def test_values_depend_on_the_linear_index_alone() -> None:
    flat = make(("uniform", "float64"), (60,), ((0, 60),))
    for shape in ((3, 20), (5, 4, 3), (60, 1)):
        np.testing.assert_array_equal(
            make(("uniform", "float64"), shape, whole(shape)).ravel(), flat
        )


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize("n", [20, 66, 1024])
def test_values_do_not_depend_on_what_was_drawn_before(n: int) -> None:
    alone = {}
    for what in FLOATS + INTEGERS:
        _arrays._free.clear()
        alone[what] = make(what, (n,), ((0, n),))
    for before in FLOATS + INTEGERS:
        for what in FLOATS + INTEGERS:
            for one in (what, before, what):
                np.testing.assert_array_equal(make(one, (n,), ((0, n),)), alone[one])


@pytest.mark.usefixtures("maker")
def test_index_beyond_32_bits_counts() -> None:
    shape = (2**40, 3)
    far = make(("uniform", "float64"), shape, ((2**39, 2**39 + 4), (1, 3)))
    near = make(("uniform", "float64"), shape, ((0, 4), (1, 3)))
    assert not np.isin(far, near).any()
    row = make(("uniform", "float64"), (2**20, 2**21), ((3 * 2**18, 3 * 2**18 + 1), (1, 3)))
    np.testing.assert_array_equal(row[0], far[0])


@pytest.mark.usefixtures("maker")
def test_key_and_call_each_change_every_value() -> None:
    box = ((0, 500),)
    made = [
        make(("uniform", "float64"), (500,), box, call, key)
        for call in (0, 1, 2**32, 2**63)
        for key in ((0, 0), (1, 0), (0, 1))
    ]
    assert len(np.unique(np.concatenate(made))) == 500 * len(made)


def test_large_block_is_shared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make(("normal", "float64"), (401, 301), ((1, 400), (0, 300)))
    monkeypatch.setattr(_threads, "_count", 3)
    monkeypatch.setattr(_threads, "_BYTES_PER_THREAD", 1 << 15)
    np.testing.assert_array_equal(
        make(("normal", "float64"), (401, 301), ((1, 400), (0, 300))), expected
    )
    _threads._forget_pool()


@pytest.mark.usefixtures("maker")
@pytest.mark.parametrize(("dtype", "least", "among"), INTEGERS)
def test_integers_stay_in_their_range_and_reach_its_ends(
    dtype: str, least: int, among: int
) -> None:
    drawn = make((dtype, least, among), (4000,), ((0, 4000),))
    assert int(drawn.min()) >= least
    assert int(drawn.max()) < least + among
    if among <= 256:
        np.testing.assert_array_equal(np.unique(drawn.astype(np.int64)), least + np.arange(among))


@pytest.mark.usefixtures("maker")
def test_integers_are_drawn_again_until_unbiased() -> None:
    """Three quarters of 2**64 values: without rejection a third of them would come up twice."""
    among = 3 * 2**62
    drawn = make(("uint64", 0, among), (30_000,), ((0, 30_000),))
    thirds = np.bincount((drawn >> np.uint64(62)).astype(int), minlength=3)
    assert thirds.sum() == 30_000
    assert abs(thirds - 10_000).max() < 5 * np.sqrt(30_000 * 2 / 9)
    # Products whose upper bits agree differ by whether they are redrawn: low values of each class.
    residue = np.bincount((drawn % np.uint64(3)).astype(int), minlength=3)
    assert abs(residue - 10_000).max() < 5 * np.sqrt(30_000 * 2 / 9)


@pytest.mark.parametrize("what", FLOATS, ids=str)
def test_few_elements_of_a_column_are_those_of_the_whole(what: tuple[str, str]) -> None:
    kind, dtype = what
    for count in range(1, 5):
        whole = np.empty((count, 7), dtype)
        fill_floats(whole, kind, KEY, 1, whole.shape, ((0, count), (0, 7)), 0.25, 1.5)
        for column in range(7):
            box = (0, count), (column, column + 1)
            some = np.empty((count, 1), dtype)
            fill_floats(some, kind, KEY, 1, whole.shape, box, 0.25, 1.5)
            np.testing.assert_array_equal(some[:, 0], whole[:, column])
