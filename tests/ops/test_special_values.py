"""NaN, infinities, extremes, text, dates and foreign scalars give what they give in NumPy."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as ours
from tests.array.strategies import on_ranks, special_cases, special_pairs
from tests.ops.test_every_row import compare

pytestmark = pytest.mark.host_only

NUMBERS = tuple(map(np.dtype, "?bBhHiIlLefdgFD"))
TEXT_AND_TIMES = ("U3", "S3", "U1", "M8[s]", "M8[D]", "m8[s]", "m8[ns]")
SCALARS = (
    2**63, -(2**63) - 1, 2**64 - 1, 2**100, -1, 0, True, np.True_, np.array(3), np.array(0.1),
    np.array(True), np.uint64(2**64 - 1), np.int8(-128), np.float16(np.inf), np.float32(0.1),
    float("nan"), -0.0, 1e308, complex(np.inf, np.nan), np.longdouble(0.1), Fraction(1, 3),
    Decimal("0.1"), None, "1", b"1", np.str_("a"), np.datetime64("NaT"), np.timedelta64(3, "s"),
    np.datetime64("2020-01-02"), [1, 2, 3], (), object(), {"a": 1},
)  # fmt: skip


def reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with its operands exchanged."""
    return lambda a, b: function(b, a)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "ge"])
@settings(max_examples=15)
@given(data=st.data(), scalar=st.sampled_from(SCALARS))
def test_operator_with_a_foreign_scalar(name: str, data: st.DataObject, scalar: Any) -> None:
    function = getattr(operator, name)
    x = data.draw(special_cases(NUMBERS))
    compare(function, function, x, scalar, close="c")
    if name != "mod" or not isinstance(scalar, (str, bytes)):  # which format themselves
        compare(reflected(function), reflected(function), x, scalar, close="c")


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "add", "sub", "maximum", "minimum"])
@settings(max_examples=15)
@given(data=st.data())
def test_text_and_times_are_numpys(name: str, data: st.DataObject) -> None:
    function = getattr(operator, name, None) or getattr(np, name)
    compare(function, function, *data.draw(special_pairs(TEXT_AND_TIMES)))


@pytest.mark.parametrize("name", ["sum", "prod", "mean"])
@settings(max_examples=15)
@given(data=st.data())
def test_integers_are_added_up_exactly(name: str, data: st.DataObject) -> None:
    integers = [dtype for dtype in NUMBERS if dtype.kind in "biu"]
    small = [dtype for dtype in integers if dtype.itemsize < 4]  # whose sums are exact in float64
    x = data.draw(special_cases(small if name == "mean" else integers, ("sum", "max")))
    axis = data.draw(st.sampled_from((None, *range(len(x.shape)))))
    compare(partial(getattr(ours, name), axis=axis), partial(getattr(np, name), axis=axis), x)


@pytest.mark.parametrize("name", ["sum", "mean"])
@settings(max_examples=25)
@given(data=st.data())
def test_floats_are_added_up_to_rounding_of_their_magnitude(name: str, data: st.DataObject) -> None:
    x = data.draw(special_cases([d for d in NUMBERS if d.kind in "fc"], ("max",)))
    axis = data.draw(st.sampled_from((None, *range(len(x.shape)))))
    value = x.value
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = np.asarray(getattr(np, name)(value, axis=axis))
        finite = np.where(np.isfinite(value), value, 0)
        size = np.sum(np.abs(finite.astype(np.clongdouble)), axis=axis)
        count = value.size // max(expected.size, 1)
        info = np.finfo(value.dtype)
        # Where the sum of magnitudes overflows, the order of additions decides what comes out.
        settled = size <= float(info.max) / 2
        error = (count * float(info.eps) * size + float(info.smallest_subnormal)) * settled
        if name == "mean":
            error = error / max(count, 1) + float(info.eps) * np.abs(expected)

        def program() -> None:
            with np.errstate(all="ignore"):
                result = getattr(ours, name)(x.build(), axis=axis)
            assert result.shape == expected.shape
            assert result.dtype == expected.dtype
            full = np.asarray(result.full_array())
            if result.mesh.coordinate is None:
                return
            for mine, theirs in ((full.real, expected.real), (full.imag, expected.imag)):
                with np.errstate(all="ignore"):
                    near = np.abs(mine - theirs) <= error
                alike = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)) | near | ~settled
                assert alike.all(), (full, expected)

        on_ranks(program)


def test_nan_to_num_puts_in_a_distributed_number() -> None:
    value = np.array([[1.0, np.nan], [np.inf, 5], [np.nan, -np.inf]])

    def program() -> None:
        x = ours.asarray(value)
        found = np.nan_to_num(x, nan=x[1, 1], posinf=ours.sum(x[0, :1]))
        assert np.array_equal(found, np.nan_to_num(value, nan=5, posinf=1))
        with pytest.raises(ours.errors.ArgumentTypeError, match="one number"):
            np.nan_to_num(x, nan=x)

    on_ranks(program)
