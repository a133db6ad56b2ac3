"""Cumulative sums and products, and differences, agree with NumPy and send next to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    FloatingError,
    MismatchError,
    ShapeError,
)
from distarray.layout import Replicate, Shard
from tests.array.strategies import agrees, cases, on_ranks

DTYPES = (np.float64, np.int32, np.uint8, np.bool_, np.float32, np.complex128, np.float16, np.int8)
SCANS = ("cumulative_sum", "cumulative_prod")


@pytest.mark.parametrize("name", SCANS)
@settings(max_examples=30)
@given(data=st.data())
def test_scan_agrees_with_numpy_on_random_layouts(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(DTYPES, ("sum", "max")))
    ndim = len(case.shape)
    if not ndim:
        return
    axis = data.draw(st.integers(-ndim, ndim - 1))
    dtype = data.draw(st.sampled_from((None, None, np.float64, np.complex64, np.int16)))
    initial = data.draw(st.booleans())
    if case.values.dtype.kind == "c" and dtype in (np.float64, np.int16):
        dtype = None  # the imaginary part would be dropped, with a warning
    if name == "cumulative_prod":  # as rounding of large products depends on their order
        case.values[...] = np.sign(case.values.real.astype(np.float64))
    options = {"axis": axis, "dtype": dtype, "include_initial": initial}
    expected = getattr(np, name)(case.value, **options)

    def program() -> None:
        x = case.build()
        agrees(getattr(da, name)(x, **options), expected)
        agrees(getattr(np, name)(x, **options), expected)
        if not initial:
            short = "cumsum" if name == "cumulative_sum" else "cumprod"
            agrees(getattr(x, short)(axis, dtype), expected)
            agrees(getattr(np, short)(x), getattr(np, short)(case.value))

    on_ranks(program)


@settings(max_examples=30)
@given(data=st.data())
def test_difference_agrees_with_numpy_on_random_layouts(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.uint8, np.bool_), ("sum", "max")))
    ndim = len(case.shape)
    if not ndim:
        return
    axis, n = data.draw(st.integers(-ndim, ndim - 1)), data.draw(st.integers(0, 3))
    options: dict[str, Any] = {}
    if case.values.dtype.kind == "f":
        for name in ("prepend", "append"):
            if data.draw(st.booleans()):
                options[name] = data.draw(st.sampled_from((0.5, np.float64(2), case.value)))
    expected = np.diff(case.value, n, axis, **options)

    def program() -> None:
        x = case.build()
        agrees(da.diff(x, n, axis, **options), expected)
        agrees(np.diff(x, n=n, axis=axis, **options), expected)

    on_ranks(program)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_wrap_around_as_in_numpy(dtype: Any) -> None:
    value = np.random.default_rng(3).integers(0, 120, 41).astype(dtype)

    def program() -> None:
        x = da.distribute_array(value)
        for wanted in (None, dtype, np.int16):
            agrees(da.cumulative_prod(x, dtype=wanted), np.cumprod(value, dtype=wanted))
            agrees(da.cumulative_sum(x, dtype=wanted), np.cumsum(value, dtype=wanted))
        agrees(np.add.accumulate(x), np.add.accumulate(value))

    on_ranks(program)


def test_special_values_go_on_to_all_later_blocks() -> None:
    value = np.ones((24, 3))
    value[5, 0], value[13, 1], value[20, 1], value[6, 2] = np.nan, np.inf, -np.inf, -0.0

    def program() -> None:
        x = da.distribute_array(value)
        with np.errstate(all="ignore"):
            agrees(da.cumulative_sum(x, axis=0), np.cumsum(value, 0))
            agrees(da.cumulative_prod(x, axis=0), np.cumprod(value, 0))

    on_ranks(program)


def test_half_precision_begins_each_block_with_a_sum_that_is_rounded_once() -> None:
    value = np.float16([1, -1, -1, 1]).repeat(100) * np.float16(20000)

    def program() -> None:
        with np.errstate(all="raise"):
            total = da.cumulative_sum(da.distribute_array(value[::100]))
        agrees(total, np.float16([20000, 0, -20000, 0]))

    on_ranks(program)


def test_scan_sends_one_item_of_each_line_and_keeps_the_layout() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        for placements, order in (([Shard(0), Shard(0)], (1, 0)), ([Shard(0), Replicate()], None)):
            value = np.arange(64.0 * 5).reshape(64, 5)
            x = da.distribute_array(value, mesh, [Replicate()] * 2)
            x = x.redistribute(placements, shard_order=order)
            with da.CommLog() as log, da.communication("raise"):
                y = da.cumulative_sum(x, axis=0)
            size = mesh.size if order else 2
            assert (log.count(), log.bytes()) == (1, (size - 1) * 5 * 8)
            assert y.layout is x.layout
            agrees(y, np.cumsum(value, 0))
            with da.CommLog() as log, da.communication("raise"):
                longer = da.cumulative_sum(x, axis=1, include_initial=True)
            assert log.count() == 0
            assert longer.placements == x.placements

    on_ranks(program)


def test_difference_gets_one_row_from_the_next_block() -> None:
    value = np.random.default_rng(1).random((64, 5))

    def program() -> None:
        x = da.distribute_array(value)
        with da.CommLog() as log:
            y = da.diff(x, axis=0)
        assert log.bytes() <= 5 * 8
        agrees(y, np.diff(value, axis=0))
        with da.CommLog() as log:
            da.diff(x, n=2, axis=1)
        assert log.count() == 0

    on_ranks(program)


def test_bad_arguments_raise_alike_and_the_next_call_works() -> None:
    def program() -> list[str]:
        x = da.distribute_array(np.arange(12.0).reshape(3, 4))
        messages = []
        for error, call in (
            (AxisError, lambda: da.cumulative_sum(x)),
            (AxisError, lambda: da.cumulative_sum(x, axis=2)),
            (AxisError, lambda: da.cumulative_sum(da.asarray(1.0), axis=0)),
            (AxisError, lambda: da.cumulative_prod(da.asarray(1.0))),
            (DTypeError, lambda: da.cumulative_prod(da.asarray(["a"]))),
            (ArgumentError, lambda: da.diff(x, n=-1)),
            (AxisError, lambda: da.diff(da.asarray(1.0))),
        ):
            with pytest.raises(error) as caught:
                call()
            messages.append(str(caught.value))
        out = da.zeros((3, 4), dtype=np.float32)
        assert da.cumulative_sum(x, axis=0, out=out) is out
        agrees(out, np.cumsum(np.arange(12.0, dtype=np.float32).reshape(3, 4), 0))
        return messages

    results = on_ranks(program)
    assert all(messages == results[0] for messages in results)


def test_ranks_that_scan_differently_raise() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(8.0))
        with pytest.raises(MismatchError):
            da.cumulative_sum(x, include_initial=da.default_mesh().rank == 1)
        agrees(da.cumulative_sum(x), np.cumsum(np.arange(8.0)))

    on_ranks(program)


@pytest.mark.host_only  # GPUs raise none
def test_float_error_of_one_block_raises_on_all_ranks() -> None:
    def program() -> None:
        x = da.distribute_array(np.full(8, 1e308))
        with np.errstate(over="raise"), pytest.raises(FloatingError):
            da.cumulative_sum(x)
        with np.errstate(all="ignore"):
            agrees(da.cumulative_sum(x), np.cumsum(np.full(8, 1e308)))

    on_ranks(program)


@pytest.mark.parametrize("shape", [(100_003,), (301, 700), (90_001, 3)])
def test_large_blocks_scan_as_accurately_as_numpy(shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(2).random(shape)

    def program() -> None:
        x = da.distribute_array(value)
        for axis in range(len(shape)):
            agrees(da.cumulative_sum(x, axis=axis), np.cumsum(value, axis), rtol=1e-12, atol=0)

    on_ranks(program)


@pytest.mark.host_only  # GPUs have native byte order and no times
def test_scan_into_an_array_adds_up_in_numpys_dtype() -> None:
    cases = (
        (np.full(7, 40000.0), "f2", "f8"),
        (np.full(7, 2**62), "i8", ">f8"),
        (np.full(7, 2**63, np.uint64), "u8", "f8"),
        (np.arange(7) * 40, "u1", "i2"),
        (np.arange(7) - 3, "i4", ">c16"),
        (np.arange(7) - 3, "m8[s]", "m8[ms]"),
        (np.arange(7), ">m8[s]", "m8[s]"),
    )

    def program() -> None:
        for value, dtype, wanted in cases:
            value = value.astype(dtype)
            x = da.distribute_array(value)
            for function in (da.cumsum, da.cumulative_sum, np.add.accumulate):
                out = da.zeros(value.shape, dtype=wanted)
                assert function(x, 0, out=out) is out
                agrees(out, np.cumsum(value, out=np.zeros(value.shape, wanted)))

    with np.errstate(over="ignore"):
        on_ranks(program)


def test_out_that_no_scan_fits_into_is_refused_before_anything_is_sent() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(6.0))
        with da.CommLog() as log:
            for shape in ((3, 6), (7,), ()):
                with pytest.raises(ShapeError):
                    da.cumsum(x, out=da.zeros(shape))
            with pytest.raises(ShapeError):
                da.cumulative_sum(x, out=da.zeros(6), include_initial=True)
            for dtype in (np.int64, np.bool_):
                with pytest.raises(DTypeError):
                    da.cumsum(x, out=da.zeros(6, dtype=dtype))
        assert log.count() == 0

    on_ranks(program)


@pytest.mark.host_only  # GPUs have no times
def test_times_are_added_up_as_in_numpy() -> None:
    value = np.array([5, 6, "NaT", 7], "m8[s]")

    def program() -> None:
        for times in (value, value[:2], value[:2].astype(">m8[D]")):
            x = da.distribute_array(times)  # the other ranks have no item
            agrees(da.cumsum(x), np.cumsum(times))
            expected = np.cumulative_sum(times, include_initial=True)
            agrees(da.cumulative_sum(x, include_initial=True), expected)
            agrees(da.diff(x), np.diff(times))
            agrees(da.mean(x), np.asarray(np.mean(times)))
            chosen = np.arange(len(times)) != 2
            agrees(da.mean(x, where=chosen), np.asarray(np.mean(times, where=chosen)))
            with pytest.raises(DTypeError):
                da.cumprod(x)

    on_ranks(program)


@pytest.mark.host_only  # sums on GPUs begin with +0.0
def test_negative_zeros_add_up_to_negative_zeros() -> None:
    def program() -> None:
        for value in (np.full(7, -0.0), np.full((7, 3), -0.0)):
            result = da.cumsum(da.distribute_array(value), axis=0)
            assert np.array_equal(np.signbit(np.asarray(result)), np.signbit(np.cumsum(value, 0)))

    on_ranks(program)
