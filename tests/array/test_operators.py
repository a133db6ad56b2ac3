"""Operators agree with NumPy's: promotion, in place, reflected, out and where, and errors."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._array import distribute_array
from distarray.comm import init_device_mesh
from distarray.errors import ArgumentError, DTypeError, OutOfRangeError, ShapeError
from distarray.layout import Replicate, Shard
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _rounding as rounding
from tests.array.strategies import KIND, agrees, cases, on_ranks, pairs

R = Replicate()
ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BITS = ("and_", "or_", "xor", "lshift", "rshift")
NUMBERS = (np.float64, np.float32, np.int32, np.uint8)


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS])
@settings(max_examples=15)
@given(data=st.data())
def test_operator_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    function = getattr(operator, name)
    x, y = data.draw(pairs(NUMBERS, ("sum", "max")))
    number = data.draw(st.sampled_from((2, 3.5, np.float32(3), np.int16(2))))
    with np.errstate(all="ignore"):
        wanted = [
            function(x.value, y.value),
            function(x.value, number),
            function(number, x.value),
            function(x.value, y.value),
            function(x.value, y.value),
        ]

        def program() -> None:
            with np.errstate(all="ignore"):
                a, b = x.build(), y.build()
                results = [
                    function(a, b),
                    function(a, number),
                    function(number, a),
                    function(a, y.value),
                    function(x.value, b),
                ]
                for result, expected in zip(results, wanted, strict=True):
                    agrees(result, expected, rtol=1e-5, atol=1e-5)

        on_ranks(program)


@pytest.mark.parametrize("name", BITS)
@settings(max_examples=15)
@given(data=st.data())
def test_bit_operator_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    function = getattr(operator, name)
    x, y = data.draw(pairs((np.uint8, np.int16), ("sum", "bor", "band")))

    def program() -> None:
        a, b = x.build(), y.build()
        agrees(function(a, abs(b)), function(x.value, abs(y.value)))
        agrees(function(3, a), function(3, x.value))
        agrees(~a, ~x.value)

    on_ranks(program)


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"])
@settings(max_examples=15)
@given(data=st.data())
def test_in_place_keeps_layout_and_dtype_and_agrees_with_numpy(
    name: str, data: st.DataObject
) -> None:
    function = getattr(operator, name)
    x, y = data.draw(pairs(NUMBERS, ("sum", "max")))
    y.values[...] = np.abs(y.values) + 1
    expected = x.value.copy()
    try:
        with np.errstate(all="ignore"):
            expected = np.asarray(function(expected, y.value))
        error: Any = None
    except TypeError:
        error = (DTypeError, ShapeError)
    except ValueError:
        error = ShapeError

    def program() -> None:
        a, b = x.build(), y.build()
        layout, block = a.layout, a.to_local()
        with np.errstate(all="ignore"):
            if error is not None:
                with pytest.raises(error):
                    function(a, b)
                agrees(a, x.value)
                return
            result = function(a, b)
        assert result is a
        assert a.layout is layout
        assert a.to_local() is block
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        agrees(a, expected, **tolerance)

    on_ranks(program)


@settings(max_examples=30)
@given(data=st.data())
def test_out_and_where_agree_with_numpy(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64,), ("sum", "max")))
    shape = np.broadcast_shapes(x.shape, y.shape)
    target = data.draw(cases((np.float64,), ("sum", "max"), x.mesh_shape, shape))
    mask = data.draw(cases((np.bool_,), (), x.mesh_shape, shape))
    masked = data.draw(st.booleans())
    expected = target.value.copy()
    np.add(x.value, y.value, out=expected, where=mask.value if masked else True)

    def program() -> None:
        out = target.build()
        layout = out.layout
        where = mask.build() if masked else True
        assert np.add(x.build(), y.build(), out=out, where=where) is out
        assert out.layout is layout
        agrees(out, expected, rtol=1e-13, atol=1e-13)

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_where_and_clip_agree_with_numpy(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64, np.int32), ("sum",)))
    mask = data.draw(cases((np.bool_,), (), x.mesh_shape, x.shape))
    with np.errstate(all="ignore"):

        def program() -> None:
            a, b, m = x.build(), y.build(), mask.build()
            agrees(rounding.where(m, a, b), np.where(mask.value, x.value, y.value))
            agrees(rounding.where(m, a, 2), np.where(mask.value, x.value, 2))
            agrees(np.where(mask.value, a, b), np.where(mask.value, x.value, y.value))
            agrees(rounding.clip(a, -1, b), np.clip(x.value, -1, y.value))
            agrees(rounding.clip(a, min=b), np.clip(x.value, y.value, None))
            agrees(np.clip(a, None, 2.5), np.clip(x.value, None, 2.5))

        on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_large_results_agree_and_lie_in_reused_memory(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((np.float64, np.float32, np.int64)))
    placements = data.draw(st.sampled_from(([Shard(0)], [Shard(1)], [R])))
    value = np.arange(300 * 400).reshape(300, 400).astype(dtype)

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), placements)
        agrees(x + x, value + value)
        agrees(x.T * 2, value.T * 2)
        agrees(x < value, value < value)
        agrees(np.sqrt(x), np.sqrt(value))
        y = x.T + x.T
        if KIND == "cpu":  # CuPy's results are in C order
            assert y.to_local().flags.f_contiguous or placements != [R]
        agrees(x + x.T[:300, :300].sum(), value + value[:300, :300].sum())

    on_ranks(program)


def test_error_of_a_refused_cast_leaves_the_array_as_it_was() -> None:
    def program() -> None:
        x = distribute_array(np.arange(6), init_device_mesh((4,)), [Shard(0)])
        with pytest.raises(DTypeError, match="same_kind"):
            x += 0.5
        with pytest.raises(DTypeError, match="same_kind"):
            x *= np.ones(6)
        agrees(x, np.arange(6))
        x += 1
        agrees(x, np.arange(6) + 1)

    on_ranks(program)


def test_in_place_with_a_shape_that_does_not_fit_raises() -> None:
    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        with pytest.raises(ShapeError):
            x += np.ones((2, 6))

    on_ranks(program)


@pytest.mark.parametrize("exponent", [2, 2.0, 0.5, 3, -1, 0, True, 2 + 0j, np.float32(2)])
@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.int32, np.uint8, np.complex64, np.bool_]
)
def test_powers_with_a_number_are_those_of_numpys_operator(dtype: Any, exponent: Any) -> None:
    value = np.arange(7).astype(dtype)
    if value.dtype.kind == "f" or (value.dtype.kind == "c" and KIND == "cpu"):
        value[5] = np.inf  # complex infinities become NaN on GPUs
    try:
        with np.errstate(all="ignore"):
            expected = value**exponent
    except (TypeError, ValueError, OverflowError):
        return

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        with np.errstate(all="ignore"):
            agrees(x**exponent, expected, rtol=1e-6, atol=1e-6)
            if expected.dtype == value.dtype:
                x **= exponent
                agrees(x, expected, rtol=1e-6, atol=1e-6)

    on_ranks(program)


def test_number_out_of_a_dtypes_range_raises_everywhere() -> None:
    def program() -> str:
        mesh = init_device_mesh((3,))  # one process is outside, and one block of two is empty
        x = distribute_array(np.arange(2, dtype=np.uint8), mesh, [Shard(0)])
        y = distribute_array(np.arange(2, dtype=np.uint8), mesh, [R])
        messages = []
        for call in (lambda: x + 300, lambda: 300 - x, lambda: y * -1, lambda: x.__iadd__(256)):
            with pytest.raises(OutOfRangeError) as caught:
                call()
            messages.append(str(caught.value))
        return "\n".join(messages)

    assert len(set(on_ranks(program))) == 1


@pytest.mark.parametrize(
    "dtypes", [(np.float64, np.float64), (np.int32, np.float32), (np.float32, 2)]
)
def test_large_choice_agrees_with_numpy(dtypes: Any) -> None:
    value = np.arange(300 * 400).reshape(300, 400)
    a = value.astype(dtypes[0])
    b = dtypes[1] if isinstance(dtypes[1], int) else -value.astype(dtypes[1])

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(a, mesh, [Shard(0)])
        y = b if isinstance(b, int) else distribute_array(b, mesh, [Shard(0)])
        agrees(np.where(x > 1000, x, y), np.where(a > 1000, a, b))
        agrees(np.where(x, y, x), np.where(a, b, a))

    on_ranks(program)


def test_negative_power_of_integers_raises_also_on_ranks_without_items() -> None:
    def program() -> list[str]:
        x = distribute_array(np.arange(1, 3), init_device_mesh((4,)), [Shard(0)])
        said = []
        for call in (
            lambda: x**-1,
            lambda: arithmetic.pow(x, np.int8(-2)),
            lambda: np.power(x, np.array([1, -1])),
            lambda: operator.ipow(x, -3),
        ):
            with pytest.raises(ArgumentError, match="negative integer powers") as caught:
                call()
            said.append(str(caught.value))
        agrees(x, np.arange(1, 3))
        agrees(x.astype(np.float32) ** -1, np.array([1, 0.5], np.float32))
        agrees(x.astype(np.uint64) ** np.int8(-1), np.array([1, 0.5]))
        empty = distribute_array(np.arange(0), init_device_mesh((4,)), [Shard(0)])
        agrees(empty**-1, np.arange(0))
        return said

    results = on_ranks(program)
    assert all(said == results[0] for said in results)


@pytest.mark.host_only
def test_negative_power_of_integers_is_computed_where_numpy_computes_it() -> None:
    """In the dtype that is asked for, and beside items that a mask leaves out."""

    def program() -> list[str]:
        a, b = np.arange(1, 7), np.array([2, -1, 3, -2, 1, 0])
        x = distribute_array(a, init_device_mesh((4,)), [Shard(0)])
        for dtype in (np.float32, np.float64, np.complex128):
            for exponent in (b, -2, np.int8(-1)):
                agrees(np.power(x, exponent, dtype=dtype), np.power(a, exponent, dtype=dtype))
        out = distribute_array(np.zeros(6, int), x.mesh, [Shard(0)])
        np.power(x, b, out=out, where=b >= 0)
        agrees(out, np.power(a, b, out=np.zeros(6, int), where=b >= 0))
        said = []
        for options in ({"where": b < 0}, {"dtype": np.int32}):
            with pytest.raises(ArgumentError, match="negative integer powers") as caught:
                np.power(x, b, out=out, **options)
            said.append(str(caught.value))
        return said

    results = on_ranks(program)
    assert all(said == results[0] for said in results)


@pytest.mark.host_only
def test_only_numbers_have_conjugates() -> None:
    def program() -> None:
        for value in (np.arange(3), np.array([True]), np.array([0.5]), np.array([1 + 2j])):
            np.testing.assert_array_equal(da.asarray(value).conj().full_array(), value.conj())
        for value in (np.array([1], "m8[h]"), np.array(["a"]), np.array(["2020"], "M8[Y]")):
            with pytest.raises(TypeError):
                value.conj()
            with pytest.raises(DTypeError, match="conj"):
                da.asarray(value).conj()

    on_ranks(program)
