"""Items that conditions select, read and written by NumPy's functions for them, are NumPy's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    IndexingError,
    MeshError,
    ReadOnlyError,
    ShapeError,
)
from distarray.layout import Partial, Shard
from distarray.ops import _extraction
from tests.array.strategies import RANKS, Case, agrees, cases, on_ranks

DTYPES = (np.float64, np.int32, np.bool_, np.complex64)


def compare(function: Callable[[Any, tuple[Any, ...]], Any], operands: tuple[Any, ...]) -> None:
    """Check a function of a namespace and of operands, some of which are cases."""
    plain = tuple(x.value.copy() if isinstance(x, Case) else x for x in operands)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = function(np, plain)
        except (ValueError, IndexError, TypeError):
            expected = None

    def program() -> None:
        built = tuple(x.build() if isinstance(x, Case) else x for x in operands)
        outside = any(x.mesh.coordinate is None for x in built if isinstance(x, da.DistArray))
        if outside:
            with contextlib.suppress(DistArrayError):
                function(da, built)
        elif expected is None:
            with pytest.raises(DistArrayError):
                function(da, built)
        else:
            agrees(function(da, built), expected)

    on_ranks(program)


def changed(name: str) -> Callable[[Any, tuple[Any, ...]], Any]:
    """Return what a function makes of its first operand."""

    def change(namespace: Any, operands: tuple[Any, ...]) -> Any:
        getattr(namespace, name)(*operands)
        return operands[0]

    return change


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_compress_and_extract(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, ("max",) if data.draw(st.booleans()) else ()))
    axis = None
    if case.shape and data.draw(st.booleans()):
        axis = data.draw(st.integers(-len(case.shape), len(case.shape) - 1))
    length = case.value.size if axis is None else case.shape[axis]
    length = max(0, length + data.draw(st.integers(-2, 2 if case.value.size else 0)))
    condition: Case = data.draw(cases((np.bool_, np.int32), (), case.mesh_shape, (length,)))
    given_ = condition if data.draw(st.booleans()) else condition.value
    compare(lambda space, own: space.compress(own[0], own[1], axis), (given_, case))
    compare(lambda space, own: space.extract(own[0], own[1]), (given_, case))
    same: Case = data.draw(cases((np.bool_, np.int32), (), case.mesh_shape, case.shape))
    given_ = same if data.draw(st.booleans()) else same.value
    compare(lambda space, own: space.extract(own[0], own[1]), (given_, case))


@pytest.mark.parametrize("name", ["place", "putmask"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_place_and_putmask(name: str, data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int32), ("sum",)))
    shape = data.draw(st.sampled_from((case.shape, (case.value.size,))))
    mask: Case = data.draw(cases((np.bool_,), (), case.mesh_shape, shape))
    some = data.draw(st.sampled_from(((1,), (2,), (3,), (2, 2), (17,), (0,), (), case.shape)))
    values: Case = data.draw(cases((np.float64, np.int32), (), case.mesh_shape, some))
    operands: tuple[Any, ...] = (case, mask, values)
    if data.draw(st.booleans()):
        operands = (case, mask.value, values.value)
    limit = data.draw(st.sampled_from((0, 1 << 20)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_extraction, "FEW_BYTES", limit)
        compare(changed(name), operands)


def test_repeated_values_go_on_from_block_to_block() -> None:
    mask, expected = np.array([1, 0, 1, 1, 0, 1, 1, 1], np.bool_), np.zeros(8)
    np.place(expected, mask, [1, 2, 3])

    def program() -> None:
        x = da.zeros(8)
        da.place(x, da.asarray(mask), [1, 2, 3])
        agrees(x, expected)

    on_ranks(program)


def test_places_of_repeated_values_are_wrapped_along_each_axis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NumPy's `take` wraps by subtraction, again and again, which took seconds of some shapes."""
    take, largest = np.take, [0]

    def spy(values: np.ndarray, places: np.ndarray, **options: Any) -> np.ndarray:
        largest.append(int(places.max(initial=0)))
        return take(values, places, **options)

    expected = np.zeros((8, 199))
    np.putmask(expected, expected == 0, np.arange(100.0))
    monkeypatch.setattr(np, "take", spy)

    def program() -> None:
        x = da.zeros((8, 199))
        da.putmask(x, x == 0, np.arange(100.0))
        agrees(x, expected)

    on_ranks(program)
    assert 0 < max(largest) < 2 * 100


def test_values_are_placed_once_into_an_array_that_is_partial() -> None:
    def program() -> None:
        x = da.arange(6.0).redistribute([Partial("sum")])
        da.place(x, np.arange(6) > 2, [7, 8])
        agrees(x, np.array([0.0, 1, 2, 7, 8, 7]))

    on_ranks(program)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_trim_zeros(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES))
    case.values[...] *= np.random.default_rng(data.draw(st.integers(0, 9))).random(
        case.values.shape
    ) < data.draw(st.sampled_from((0, 0.1, 0.5)))
    trim = data.draw(st.sampled_from(("fb", "f", "b", "B", "Bf")))
    axis = data.draw(st.sampled_from((None, *range(-len(case.shape), len(case.shape)))))
    compare(lambda space, own: space.trim_zeros(own[0], trim, axis), (case,))


def test_no_item_moves_where_the_condition_is_along_a_cut_axis() -> None:
    def program() -> None:
        x = da.arange(40000.0).reshape(1000, 40)
        with CommLog() as log, da.communication("raise"):
            y = x.compress(np.arange(1000) % 3 == 0, axis=0)
            da.extract(x % 5 == 0, x)
        assert log.bytes() == 2 * 8 * (RANKS - 1)
        assert y.placements == (Shard(0),)
        with CommLog() as log, da.communication("raise"):
            z = x.compress([False, True], axis=1)
        assert log.count() == 0
        agrees(z, np.arange(40000.0).reshape(1000, 40)[:, 1:2])
        with CommLog() as log, da.communication("raise"):
            da.place(x, x > 7, [1, 2, 3])
        assert log.bytes() == 8 * (RANKS - 1)
        with CommLog() as log, da.communication("raise"):
            da.putmask(x, x > 2, [1, 2, 3])
        assert log.count() == 0

    on_ranks(program)


def test_results_go_into_out() -> None:
    def program() -> None:
        x = da.arange(10.0)
        out = da.zeros(4)
        assert x.compress(np.arange(10) % 3 == 0, out=out) is out
        agrees(out, np.arange(0.0, 10.0, 3))

    on_ranks(program)


@pytest.mark.parametrize("ranks", [[2], [3, 1]])
def test_values_on_an_unrelated_mesh_are_refused_alike(ranks: list[int]) -> None:
    def program() -> list[str]:
        x = da.arange(6, mesh=da.DeviceMesh([0, 1, 2]))
        y = da.asarray([7, 8], mesh=da.DeviceMesh(ranks))
        one, messages = y[:1], []
        calls: tuple[Callable[[], Any], ...] = (
            lambda: da.putmask(x, x > 2, y),
            lambda: da.place(x, x > 2, y),
            lambda: da.polyval(y, x),
            lambda: da.repeat(x, one),
        )
        for call in calls:
            with pytest.raises(MeshError, match="different meshes") as caught:
                call()
            messages.append(str(caught.value))
        agrees(x, np.arange(6))
        return messages

    first, *others = on_ranks(program)
    assert all(messages == first for messages in others)


def test_what_does_not_fit_is_refused_alike() -> None:
    def program() -> None:
        x = da.arange(6.0)
        with pytest.raises(ShapeError, match="as many"):
            da.place(x, np.ones(5, bool), [1])
        with pytest.raises(ShapeError, match="as many"):
            da.putmask(x, da.ones(7, dtype=bool), [1])
        with pytest.raises(ArgumentError, match="no values"):
            da.place(x, x > 1, [])
        da.place(x, x > 100, [])
        with pytest.raises(ShapeError, match="one axis"):
            da.compress(np.ones((2, 2), bool), x)
        with pytest.raises(IndexingError, match="beyond"):
            da.compress(da.arange(9) == 7, x)
        with pytest.raises(ArgumentTypeError, match="distributed"):
            da.place(np.arange(6.0), x > 1, [1])
        with pytest.raises(ReadOnlyError):
            da.place(x[::-1], x > 1, [1])
        with pytest.raises(ArgumentError, match="trim"):
            da.trim_zeros(x, "x")
        agrees(x, np.arange(6.0))

    on_ranks(program)
