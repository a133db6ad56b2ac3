"""Methods of ufuncs agree with NumPy on random layouts, and send a few items a line at most."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import ArgumentTypeError, DistArrayError, IndexingError, ShapeError
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import agrees, cases, on_ranks, special_cases

INTEGERS = (np.int64, np.int32, np.uint8, np.int8)
UFUNCS: dict[np.ufunc, tuple[Any, ...]] = {
    np.add: (*INTEGERS, np.bool_),
    np.multiply: (np.int64, np.uint8),
    np.maximum: (*INTEGERS, np.float64, np.float16),
    np.minimum: (np.int32, np.float32),
    np.fmax: (np.float64, np.int8),
    np.fmin: (np.float32, np.uint8),
    np.logical_and: (np.float64, np.int8, np.bool_),
    np.logical_or: (np.float64, np.bool_),
    np.logical_xor: (np.float64, np.int8, np.bool_),
    np.bitwise_and: (*INTEGERS, np.bool_),
    np.bitwise_or: (*INTEGERS, np.bool_),
    np.bitwise_xor: (*INTEGERS, np.bool_),
    np.gcd: INTEGERS,
    np.lcm: INTEGERS,
    np.hypot: (np.float64, np.int32),
    np.logaddexp: (np.float64, np.int64),
    np.logaddexp2: (np.float64,),
}
"""The associative ufuncs, with dtypes to try."""
ROUNDED = (np.hypot, np.logaddexp, np.logaddexp2)
OTHERS = (np.subtract, np.divide, np.power, np.arctan2, np.less, np.left_shift)


def same(call: Any, expected: Any, rounded: bool) -> None:
    agrees(call, expected, **({"rtol": 1e-12, "atol": 1e-12} if rounded else {}))


def draw_case(data: st.DataObject, ufunc: np.ufunc, special: bool = True) -> Any:
    dtypes = UFUNCS[ufunc]
    exact = special and ufunc not in (*ROUNDED, np.add, np.multiply, np.lcm)
    return data.draw((special_cases if exact else cases)(dtypes, ("max",)))


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda one: one.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_associative_ufunc_reduces_and_accumulates_as_in_numpy(
    ufunc: np.ufunc, data: st.DataObject
) -> None:
    case = draw_case(data, ufunc)
    if not case.shape:
        return
    ndim = len(case.shape)
    axis = data.draw(st.integers(-ndim, ndim - 1))
    keepdims = data.draw(st.booleans())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        accumulated = ufunc.accumulate(case.value, axis)
        try:
            reduced = ufunc.reduce(case.value, axis, keepdims=keepdims)
        except ValueError:  # nothing to reduce, and no identity
            reduced = None

        def program() -> None:
            x = case.build()
            with np.errstate(all="ignore"):
                same(ufunc.accumulate(x, axis), accumulated, ufunc in ROUNDED)
                if reduced is not None:
                    result = ufunc.reduce(x, axis, keepdims=keepdims)
                    same(result, reduced, ufunc in ROUNDED)
                else:
                    with pytest.raises(DistArrayError):
                        ufunc.reduce(x, axis)

        on_ranks(program)


@pytest.mark.parametrize("ufunc", [np.gcd, np.bitwise_and, np.logical_xor, np.logaddexp, np.lcm])
def test_masked_reductions_and_initial_items(ufunc: np.ufunc) -> None:
    value = np.arange(1, 25).reshape(6, 4)
    mask = value % 3 == 0
    mask[:, 1] = False

    def program() -> None:
        x = da.distribute_array(value)
        initial = {"initial": 6} if ufunc in (np.lcm, np.gcd) else {}
        for axis in (0, 1) if ufunc is np.lcm else (0, 1, (0, 1), None):
            for options in (initial, {"where": mask, **initial}):
                expected = ufunc.reduce(value, axis, **options)
                same(ufunc.reduce(x, axis, **options), expected, ufunc in ROUNDED)

    on_ranks(program)


@pytest.mark.parametrize("ufunc", OTHERS, ids=lambda one: one.__name__)
def test_other_ufunc_works_along_whole_axes_and_refuses_cut_ones(ufunc: np.ufunc) -> None:
    value = np.array([[5, 2, 1, 1], [1, 2, 0, 2], [2, 1, 1, 0], [0, 1, 1, 3], [4, 1, 2, 2]])
    is_closed = ufunc not in (np.less,)
    value = value if is_closed else value > 1

    def program() -> list[str]:
        x = da.distribute_array(value)
        with np.errstate(all="ignore"), da.CommLog() as log:
            agrees(ufunc.reduce(x, axis=1), ufunc.reduce(value, axis=1))
            agrees(ufunc.accumulate(x, axis=1), ufunc.accumulate(value, axis=1))
            places = [2, 0, 0, 3]
            agrees(ufunc.reduceat(x, places, axis=1), ufunc.reduceat(value, places, axis=1))
        messages = []
        with da.CommLog() as log:
            for call in (
                lambda: ufunc.reduce(x),
                lambda: ufunc.accumulate(x),
                lambda: ufunc.reduceat(x, [0, 2]),
            ):
                with pytest.raises(ArgumentTypeError) as caught:
                    call()
                messages.append(str(caught.value))
            with pytest.raises(DistArrayError):
                ufunc.reduce(da.ones((2, 3), placements=[da.Replicate()]), axis=(0, 1))
        assert log.count() == 0
        return messages

    with np.errstate(all="ignore"):
        first, *others = on_ranks(program)
    assert all(messages == first for messages in others)


@pytest.mark.parametrize("ufunc", [np.subtract, np.divide])
def test_other_ufunc_reduces_large_blocks_in_order(ufunc: np.ufunc) -> None:
    value = np.ones((20_000, 2))
    value[:64] = 2
    expected = ufunc.reduce(value, axis=0)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        for placement in (da.Replicate(), da.Shard(1)):
            x = da.distribute_array(value, mesh, [placement], src=None)
            agrees(ufunc.reduce(x, axis=0), expected)

    on_ranks(program)


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda one: one.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_slices_are_reduced_as_in_numpy(ufunc: np.ufunc, data: st.DataObject) -> None:
    case = draw_case(data, ufunc)
    if not case.shape:
        return
    ndim = len(case.shape)
    axis = data.draw(st.integers(-ndim, ndim - 1))
    length = case.shape[axis]
    places = data.draw(st.lists(st.integers(0, length - 1), max_size=8)) if length else []
    places = sorted(places) if data.draw(st.booleans()) else places
    indices = np.array(places, np.intp)
    decreases = bool((np.diff(indices) < 0).any())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = ufunc.reduceat(case.value, indices, axis)

        def program() -> None:
            x = case.build()
            with np.errstate(all="ignore"):
                if decreases and x.layout.partition(axis % ndim).count > 1:
                    with pytest.raises(ArgumentTypeError):
                        ufunc.reduceat(x, indices, axis)
                    return
                same(ufunc.reduceat(x, indices, axis), expected, ufunc in ROUNDED)

        on_ranks(program)


def test_slices_stay_where_they_begin_and_send_one_item_of_each_line() -> None:
    value = np.arange(40.0 * 3).reshape(40, 3)
    starts = [0, 4, 9, 10, 12, 35]

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        with da.CommLog() as log, da.communication("raise"):
            y = np.add.reduceat(x, starts)
        assert (log.count(), log.bytes()) == (1, 3 * 3 * 8)
        assert y.layout.partition(0).offsets == (0, 3, 5, 5, 6)
        assert y.layout.is_counted
        out = da.zeros((6, 3), mesh=mesh)
        assert np.add.reduceat(x, starts, out=out) is out
        for result in (y, out):
            agrees(result, np.add.reduceat(value, starts))
        with da.CommLog() as log:
            for error, call in (
                (IndexingError, lambda: np.add.reduceat(x, [0, 40])),
                (IndexingError, lambda: np.add.reduceat(x, [-1])),
                (IndexingError, lambda: np.add.reduceat(x, [0.5])),
                (IndexingError, lambda: np.add.reduceat(x, x[:, 0])),
                (ShapeError, lambda: np.add.reduceat(x, [1], out=out)),
            ):
                with pytest.raises(error):
                    call()
        assert log.count() == 0

    on_ranks(program)


@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
def test_slices_may_begin_where_a_distributed_array_says(placement: Any) -> None:
    value = np.random.default_rng(2).integers(0, 5, 40)
    value.sort()

    def program() -> None:
        x = da.asarray(value)
        starts = np.flatnonzero(np.diff(value, prepend=-1))
        known = da.flatnonzero(da.diff(x, prepend=-1)).redistribute([placement])
        agrees(np.add.reduceat(x, known), np.add.reduceat(value, starts))
        with pytest.raises(ArgumentTypeError, match=r"indices\.full_array"):
            np.add.reduceat(value, known)
        with pytest.raises(IndexingError, match="out of range"):
            np.add.reduceat(x, known + 39)

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_outer_agrees_with_numpy_on_random_layouts(data: st.DataObject) -> None:
    mesh_shape = data.draw(st.sampled_from(((4,), (2, 2), (3,))))
    drawn = cases((np.float64, np.int32), ("sum",), mesh_shape, max_dims=2)
    a, b = data.draw(drawn), data.draw(drawn)
    ufunc = data.draw(st.sampled_from((np.add, np.subtract, np.maximum, np.less)))

    def program() -> None:
        x, y = a.build(), b.build()
        agrees(ufunc.outer(x, y), ufunc.outer(a.value, b.value))
        agrees(ufunc.outer(x, b.value), ufunc.outer(a.value, b.value))
        agrees(ufunc.outer(a.value, y), ufunc.outer(a.value, b.value))
        agrees(ufunc.outer(x, 2), ufunc.outer(a.value, 2))

    on_ranks(program)


def test_outer_takes_the_arguments_of_a_ufunc() -> None:
    value = np.arange(1.0, 6)

    def program() -> None:
        x = da.distribute_array(value)
        out = da.zeros((5, 5), dtype=np.float32)
        assert np.multiply.outer(x, value, out=out) is out
        agrees(out, np.multiply.outer(value, value).astype(np.float32))
        agrees(np.add.outer(x, x, dtype=np.float32), np.add.outer(value, value, dtype=np.float32))
        quotients, rests = np.divmod.outer(x, value)
        agrees(quotients, np.divmod.outer(value, value)[0])
        agrees(rests, np.divmod.outer(value, value)[1])
        both = da.empty_like(quotients), da.empty_like(rests)
        found = np.divmod.outer(x, value, out=both)
        assert found[0] is both[0]
        agrees(both[1], np.divmod.outer(value, value)[1])

    on_ranks(program)


def test_bits_of_a_cut_axis_are_reduced_when_they_are_needed() -> None:
    value = np.arange(64).reshape(16, 4) * 7

    def program() -> None:
        x = da.distribute_array(value)
        with da.CommLog() as log:
            y = np.bitwise_xor.reduce(x)
            z = np.logical_xor.reduce(x)
        assert log.count() == 0
        assert y.placements == z.placements == (Partial("bxor"),)
        agrees(y, np.bitwise_xor.reduce(value))
        agrees(z, np.logical_xor.reduce(value))
        agrees(np.logical_xor.reduce(y), np.logical_xor.reduce(np.bitwise_xor.reduce(value)))

    on_ranks(program)


def test_functions_of_ours_that_are_ufuncs_have_their_methods() -> None:
    for name in dir(np):
        ufunc = getattr(np, name)
        if isinstance(ufunc, np.ufunc) and ufunc.signature is None and hasattr(da, name):
            assert getattr(da, name).reduce == ufunc.reduce
    assert not hasattr(da.sum, "reduce")

    def program() -> None:
        x = da.arange(8)
        agrees(da.add.reduce(x), 28)
        agrees(da.maximum.reduceat(x, [0, 3]), [2, 7])
        agrees(da.multiply.outer(x, x), np.multiply.outer(np.arange(8), np.arange(8)))
        da.add.at(x, [0, 0], 1)
        agrees(da.add.accumulate(x), np.cumsum([2, 1, 2, 3, 4, 5, 6, 7]))

    on_ranks(program)
