"""Python's numbers are written as NumPy writes them: what a dtype cannot hold is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distarray as da

MASK = [True, False, True, False]
ERRORS = (OverflowError, ValueError, TypeError)

WRITES: dict[str, Callable[[Any, Any, Any], object]] = {
    "x[0:1] = v": lambda _, x, v: x.__setitem__(slice(0, 1), v),
    "x[0] = v": lambda _, x, v: x.__setitem__(0, v),
    "x[[0, 1]] = v": lambda _, x, v: x.__setitem__([0, 1], v),
    "x[mask] = v": lambda n, x, v: x.__setitem__(n.asarray(MASK), v),
    "asarray": lambda n, _, v: n.asarray(v, dtype=np.int8),
    "fill_diagonal": lambda n, x, v: n.fill_diagonal(x.reshape(2, 2), v),
    "insert": lambda n, x, v: n.insert(x, 0, v),
    "pad": lambda n, x, v: n.pad(x, 1, constant_values=v),
    "place": lambda n, x, v: n.place(x, n.asarray(MASK), v),
    "put": lambda n, x, v: n.put(x, [0, 1], v),
    "put_along_axis": lambda n, x, v: n.put_along_axis(x, n.asarray([0]), v, 0),
    "putmask": lambda n, x, v: n.putmask(x, n.asarray(MASK), v),
}


@pytest.mark.parametrize("value", [300, -129, 2**70, 1e3, np.nan, 1 + 2j], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_number_that_the_dtype_cannot_hold_is_the_error_that_numpy_raises(
    name: str, value: complex
) -> None:
    with pytest.raises((*ERRORS, np.exceptions.ComplexWarning)) as expected:
        WRITES[name](np, np.zeros(4, np.int8), value)
    x = da.zeros(4, dtype=np.int8)
    with pytest.raises(da.errors.DistArrayError) as caught:
        WRITES[name](da, x, value)
    assert isinstance(caught.value, (type(expected.value), TypeError))
    assert (x.full_array() == 0).all()


@pytest.mark.parametrize("value", [5, -128, 2.75, True, [3]], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_number_that_the_dtype_holds_is_written_as_by_numpy(name: str, value: Any) -> None:
    if name == "x[0] = v" and isinstance(value, list):
        value = value[0]
    expected, x = np.ones(4, np.int8), da.ones(4, dtype=np.int8)
    returned, ours = (WRITES[name](n, one, value) for n, one in ((np, expected), (da, x)))
    np.testing.assert_array_equal(x.full_array(), expected)
    if returned is not None:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(returned))


@pytest.mark.parametrize("limits", [(-2, None), (None, 300), (-(2**70), None), (None, 2**70),
                                    (-2, 300), (255, None), (None, 0)], ids=str)  # fmt: skip
def test_limit_beyond_all_items_of_a_dtype_limits_none(limits: tuple[Any, Any]) -> None:
    values = np.array([0, 1, 254, 255], np.uint8)
    result = da.clip(da.asarray(values), *limits)
    assert result.dtype == np.uint8
    expected = {(255, None): values * 0 + 255, (None, 0): values * 0}.get(limits, values)
    np.testing.assert_array_equal(result.full_array(), expected)


def test_clip_without_limits_is_numpys_positive() -> None:
    assert da.clip(da.zeros(2, dtype=">i4", device="cpu")).dtype.isnative
    with pytest.raises(da.errors.DTypeError):
        da.clip(da.asarray(["a"], device="cpu"))


def test_clip_casts_into_out_as_it_is_told() -> None:
    values = np.arange(6)
    x, out = da.asarray(values), da.zeros(6, dtype=np.int32)
    for limits in ((1.5, 3.5), (None, 3.5), (1.5, None)):
        with pytest.raises(da.errors.DTypeError):
            da.clip(x, *limits, out=out)
        assert np.clip(x, *limits, out=out, casting="unsafe") is out
        expected = np.clip(values, *limits, out=np.zeros(6, np.int32), casting="unsafe")
        np.testing.assert_array_equal(out.full_array(), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32, np.complex128])
@pytest.mark.parametrize("wide", [False, True])
def test_large_blocks_are_clipped_and_rounded_into_out(dtype: Any, wide: bool) -> None:
    values = (np.random.default_rng(1).random(1 << 17) * 100).astype(dtype)
    low = values[::-1].copy()
    target = np.result_type(dtype, np.float64) if wide else values.dtype
    for call in (
        lambda n, x, a, out: n.clip(x, 3, 90, out=out),
        lambda n, x, a, out: n.clip(x, a, 90, out=out),
        lambda n, x, a, out: n.round(x, 1, out=out),
        lambda n, x, a, out: n.clip(x, 20, 60, out=x),  # which it reads
    ):
        results = []
        for n, make in ((np, np.copy), (da, lambda one: da.distribute_array(one))):
            x, out = make(values), make(np.zeros(values.shape, target))
            found = call(n, x, make(low), out)
            assert found is out or found is x
            results.append(np.asarray(found))
        assert results[0].dtype == results[1].dtype
        np.testing.assert_array_equal(results[1].astype(dtype), results[0].astype(dtype))


@pytest.mark.parametrize("exponent", [-1, -(2**70), 300, 2**70])
def test_an_exponent_that_the_dtype_of_the_base_does_not_hold_raises(exponent: int) -> None:
    with pytest.raises(OverflowError):
        np.ones(3, np.uint8) ** exponent
    with pytest.raises(da.errors.OutOfRangeError, match="pow of uint8, int"):
        da.ones(3, dtype=np.uint8) ** exponent
