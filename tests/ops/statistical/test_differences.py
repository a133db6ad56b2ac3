"""What is made of differences of neighbours agrees with NumPy, and sends a row at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ShapeError,
)
from distarray.layout import Shard
from tests.array.strategies import KIND, agrees, cases, on_ranks

RNG = np.random.default_rng(8)


@settings(max_examples=15)
@given(data=st.data())
def test_trapezoid_agrees_with_numpy_on_random_layouts(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.complex128, np.bool_), ("sum", "max")))
    if not case.shape:
        return
    ndim = len(case.shape)
    axis = data.draw(st.integers(-ndim, ndim - 1))
    points = np.cumsum(RNG.random(case.shape[axis]))
    whole = np.cumsum(RNG.random(case.shape), axis)

    def program() -> None:
        y = case.build()
        for x in (None, points, whole, da.distribute_array(points), da.distribute_array(whole)):
            if isinstance(x, da.DistArray) and x.mesh is not y.mesh:
                continue
            plain = None if x is None else np.asarray(x)
            agrees(
                np.trapezoid(y, x, 0.5, axis),
                np.trapezoid(case.value, plain, 0.5, axis),
                rtol=1e-12,
                atol=1e-12,
            )

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_unwrapped_phases_agree_with_numpy_on_random_layouts(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.float32, np.int8), ("sum", "max")))
    if not case.shape:
        return
    ndim = len(case.shape)
    axis = data.draw(st.integers(-ndim, ndim - 1))
    period = data.draw(st.sampled_from((3, 4, 6.5)))
    discont = data.draw(st.sampled_from((None, 1, 5)))
    expected = np.unwrap(case.value, discont, axis, period=period)

    def program() -> None:
        x = case.build()
        result = np.unwrap(x, discont, axis, period=period)
        agrees(result, expected, rtol=1e-6, atol=1e-5)
        if not x.layout.has_partial:
            assert result.layout is x.layout

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_differences_in_flat_order_agree_with_numpy(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.uint8), ("sum", "max")))
    begin = data.draw(st.sampled_from((None, 3, [1, 2], np.uint8([[4]]))))
    end = data.draw(st.sampled_from((None, 5, [])))
    if case.values.dtype.kind == "u" or end == []:
        begin = end = None
    expected = np.ediff1d(case.value, end, begin)

    def program() -> None:
        x = case.build()
        agrees(np.ediff1d(x, end, begin), expected)
        agrees(da.ediff1d(x, to_end=end, to_begin=begin), expected)

    on_ranks(program)


def test_neighbours_get_one_item_of_each_line() -> None:
    value = RNG.random((64, 3))

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((4,)), [Shard(0)])
        for call, most in (
            (lambda: da.trapezoid(x, axis=0), 3 * 8),
            (lambda: da.ediff1d(x), 8),
            (lambda: da.unwrap(x, axis=0), (2 + 3) * 3 * 8),
        ):
            with da.CommLog() as log:
                call()
            assert log.bytes() <= most

    on_ranks(program)


@settings(max_examples=30)
@given(data=st.data())
def test_differences_along_an_axis_agree_with_numpy(data: st.DataObject) -> None:
    dtypes = ("f8", "i4", "u1", "?", "c8", *(("M8[s]", "m8[ms]") if KIND == "cpu" else ()))
    case = data.draw(cases(tuple(map(np.dtype, dtypes))))
    if not case.shape:
        return
    n, axis = data.draw(st.integers(0, 5)), data.draw(st.integers(0, len(case.shape) - 1))
    expected = np.diff(case.value, n, axis)
    on_ranks(lambda: agrees(da.diff(case.build(), n, axis), expected))


def test_differences_of_any_order_are_one_exchange() -> None:
    value = RNG.random((64, 3))

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        with da.CommLog() as log:
            found = da.diff(x, 4, axis=0)
        assert log.count() == 1
        assert log.bytes() == (4 * 3 * 8 if mesh.rank < 3 else 0)
        agrees(found, np.diff(value, 4, axis=0), rtol=1e-12, atol=1e-12)

    on_ranks(program)


def test_bad_arguments_of_differences_raise_alike() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(12.0).reshape(3, 4))
        for error, call in (
            (AxisError, lambda: da.trapezoid(x, axis=2)),
            (ShapeError, lambda: da.trapezoid(x, np.arange(5))),
            (AxisError, lambda: da.unwrap(x, axis=2)),
            (DTypeError, lambda: da.unwrap(x * 1j)),
            (DTypeError, lambda: da.ediff1d(da.arange(4), to_end=0.5)),
            (DTypeError, lambda: da.ediff1d(x > 1)),
            (DTypeError, lambda: da.diff(da.asarray(np.array(["a", "b"])))),
        ):
            with pytest.raises(error):
                call()

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_interpolation_agrees_with_numpy_on_random_layouts(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.float32, np.bool_), ("sum", "max")))
    points = np.array([-2.0, 0, 0.5, 4])
    values = data.draw(st.sampled_from((np.array([1, 2, -3, 8]), np.array([0.5, np.nan, 1j, 2]))))
    options: dict[str, Any] = data.draw(
        st.sampled_from(({}, {"left": -1}, {"right": 0.5}, {"period": 3.5}))
    )

    def program() -> None:
        x = case.build()
        expected = np.interp(case.value, points, values, **options)
        with da.CommLog() as log:
            result = da.interp(x, points, values, **options)
        if not x.layout.has_partial:
            assert log.count() == 0
            assert result.layout is x.layout
        agrees(result, expected)
        agrees(
            np.interp(x, points.tolist(), da.distribute_array(values, x.mesh), **options), expected
        )

    on_ranks(program)


def test_points_that_do_not_fit_are_refused() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(12.0))
        for error, arguments in (
            (ShapeError, (x, np.arange(3), np.arange(4))),
            (ShapeError, (x, np.ones((2, 2)), np.ones((2, 2)))),
            (ArgumentError, (x, np.ones(0), np.ones(0))),
            (DTypeError, (x * 1j, np.arange(3), np.arange(3))),
            (ArgumentTypeError, (x, da.arange(20_000), np.arange(20_000) * 1j)),
        ):
            with pytest.raises(error):
                da.interp(*arguments)
        with pytest.raises(ArgumentError):
            np.interp(x, [1, 2], [3, 4], period=0)
        agrees(np.interp([0.5, 3], x, x * 2), np.array([1.0, 6.0]))
        for number in (np.float32(0.5), np.int8(3), 0.5):
            agrees(da.interp(number, x, x * 2), np.float64(2 * number))

    on_ranks(program)


def test_many_points_in_blocks_are_asked_for() -> None:
    rng = np.random.default_rng(4)
    points = np.sort(rng.integers(0, 40_000, 20_000) / 4)  # some of them twice
    values = rng.random(20_000)
    values[::50], values[7::50] = np.inf, np.nan
    wanted = np.concatenate([rng.random(500) * 12_000 - 900, points[::40], [np.nan, np.inf]])

    def program() -> None:
        for placements in ([Shard(0)], [da.Replicate()]):
            x = da.distribute_array(wanted, placements=placements)
            xp, fp = da.distribute_array(points), da.distribute_array(values)
            for options in ({}, {"left": -1.0, "right": 7}):
                expected = np.interp(wanted, points, values, **options)
                agrees(da.interp(x, xp, fp, **options), expected)
                agrees(da.interp(x, xp, values, **options), expected)
                agrees(np.interp(wanted, points, fp, **options), expected)
        with da.CommLog() as log:
            da.interp(da.distribute_array(wanted), xp, fp)
        assert log.bytes() < points.nbytes  # nobody has them all

    on_ranks(program)


@pytest.mark.parametrize("name", ["prepend", "append"])
def test_plain_arrays_are_joined_to_distributed_ones(name: str) -> None:
    value, more = RNG.random((3, 4)), RNG.random((3, 2))

    def program() -> None:
        part = da.distribute_array(more, src=None)
        agrees(np.diff(value, **{name: part}), np.diff(value, **{name: more}))
        agrees(da.diff(value.tolist(), **{name: part}), np.diff(value, **{name: more}))
        with pytest.raises(ShapeError):
            da.diff(value[:2], **{name: part})

    on_ranks(program)
