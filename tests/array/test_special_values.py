"""NaN, infinities, extremes, text, dates and foreign scalars give what they give in NumPy."""

from __future__ import annotations

import contextlib
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
from distarray.array._array import DistArray
from distarray.errors import DistArrayError
from tests.array.strategies import Case, agrees, on_ranks, special_cases, special_pairs
from tests.array.test_elementwise import BINARY, UNARY, dtypes_of

pytestmark = pytest.mark.host_only

NUMBERS = tuple(map(np.dtype, "?bBhHiIlLefdgFD"))
TEXT_AND_TIMES = ("U3", "S3", "U1", "M8[s]", "M8[D]", "m8[s]", "m8[ns]")
EXACT = {
    "add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "remainder", "mod",
    "negative", "positive", "abs", "absolute", "fabs", "sign", "signbit", "copysign", "heaviside",
    "maximum", "minimum", "fmax", "fmin", "nextafter", "spacing", "frexp", "modf", "sqrt", "ldexp",
    "ceil", "floor", "trunc", "rint", "conj", "conjugate", "real", "imag",
}  # fmt: skip
"""Rows whose floating-point results do not depend on the loop that NumPy takes."""
SCALARS = (
    2**63, -(2**63) - 1, 2**64 - 1, 2**100, -1, 0, True, np.True_, np.array(3), np.array(0.1),
    np.array(True), np.uint64(2**64 - 1), np.int8(-128), np.float16(np.inf), np.float32(0.1),
    float("nan"), -0.0, 1e308, complex(np.inf, np.nan), np.longdouble(0.1), Fraction(1, 3),
    Decimal("0.1"), None, "1", b"1", np.str_("a"), np.datetime64("NaT"), np.timedelta64(3, "s"),
    np.datetime64("2020-01-02"), [1, 2, 3], (), object(), {"a": 1},
)  # fmt: skip


def equals(result: Any, expected: Any, *, close: bool = False) -> None:
    """Check a result on this rank, and the sign of its zeros where NumPy has but one loop."""
    epsilon = float(np.finfo(expected.dtype).eps) if close else 0.0
    agrees(result, expected, **({"rtol": 8 * epsilon, "atol": 0.0} if close else {}))


def outcome(function: Callable[..., Any], *operands: Any) -> Any:
    """Return what NumPy gives, as a tuple, or None where it raises or meets Python objects."""
    if any(np.asarray(x).dtype == np.object_ for x in operands if not isinstance(x, int)):
        return None
    try:
        results = function(*operands)
    except (TypeError, ValueError, OverflowError):
        return None
    results = results if isinstance(results, tuple) else (results,)
    arrays = tuple(np.asarray(result) for result in results)
    return None if any(x.dtype == np.object_ for x in arrays) else arrays


def reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with its operands exchanged."""
    return lambda a, b: function(b, a)


def compare(name: str, function: Callable[..., Any], theirs: Any, *operands: Any) -> None:
    """Check a function against NumPy's on operands that may be cases."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = outcome(theirs, *(x.value if isinstance(x, Case) else x for x in operands))

        def program() -> str | None:
            with np.errstate(all="ignore"):
                built = [x.build() if isinstance(x, Case) else x for x in operands]
                outside = any(isinstance(x, DistArray) and not _inside(x) for x in built)
                if expected is None and outside:
                    # What only values can tell it need not hear of.
                    with contextlib.suppress(DistArrayError, TypeError):
                        function(*built)
                    return None
                if expected is None:
                    with pytest.raises((DistArrayError, TypeError)) as caught:
                        function(*built)
                    return str(caught.value)
                results = function(*built)
                results = results if isinstance(results, tuple) else (results,)
                for result, wanted in zip(results, expected, strict=True):
                    if wanted.dtype.kind in "US" and not wanted.ndim:  # NumPy's is cut to its text
                        wanted = wanted.astype(result.dtype)
                    inexact = wanted.dtype.kind == "c" or (
                        wanted.dtype.kind == "f" and name not in EXACT
                    )
                    equals(result, wanted, close=inexact)
            return str([result.dtype for result in results])

        said = {one for one in on_ranks(program) if one is not None}
    assert len(said) == 1


def _inside(x: DistArray) -> bool:
    return x.mesh.coordinate is not None


@pytest.mark.parametrize("name", sorted(UNARY.keys() - {"isnat"}))
@settings(max_examples=5)
@given(data=st.data())
def test_unary_row_of_special_values(name: str, data: st.DataObject) -> None:
    row = UNARY[name]
    x = data.draw(special_cases(dtypes_of(row), ("max", "min")))
    compare(name, row, row.local, x)


@pytest.mark.parametrize("name", sorted(BINARY))
@settings(max_examples=6)
@given(data=st.data())
def test_binary_row_of_special_values(name: str, data: st.DataObject) -> None:
    row = BINARY[name]
    x, y = data.draw(special_pairs(dtypes_of(row), ("max", "min")))
    compare(name, row, row.local, x, y)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "ge"])
@settings(max_examples=25)
@given(data=st.data(), scalar=st.sampled_from(SCALARS))
def test_operator_with_a_foreign_scalar(name: str, data: st.DataObject, scalar: Any) -> None:
    function = getattr(operator, name)
    rows = {"sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide"}
    x = data.draw(special_cases(NUMBERS))
    compare(rows.get(name, name), function, function, x, scalar)
    if name != "mod" or not isinstance(scalar, (str, bytes)):  # which format themselves
        compare(rows.get(name, name), reflected(function), reflected(function), x, scalar)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "add", "sub", "maximum", "minimum"])
@settings(max_examples=25)
@given(data=st.data())
def test_text_and_times_are_numpys(name: str, data: st.DataObject) -> None:
    function = getattr(operator, name, None) or getattr(np, name)
    compare(name, function, function, *data.draw(special_pairs(TEXT_AND_TIMES)))


@pytest.mark.parametrize("name", ["min", "max", "any", "all", "count_nonzero", "argmin", "argmax"])
@settings(max_examples=20)
@given(data=st.data())
def test_reduction_that_chooses_is_exact(name: str, data: st.DataObject) -> None:
    x = data.draw(special_cases(NUMBERS, ("max", "min")))
    axis = data.draw(st.sampled_from((None, *range(len(x.shape)))))
    compare(name, partial(getattr(ours, name), axis=axis), partial(getattr(np, name), axis=axis), x)


@pytest.mark.parametrize("name", ["sum", "prod", "mean"])
@settings(max_examples=20)
@given(data=st.data())
def test_integers_are_added_up_exactly(name: str, data: st.DataObject) -> None:
    integers = [dtype for dtype in NUMBERS if dtype.kind in "biu"]
    small = [dtype for dtype in integers if dtype.itemsize < 4]  # whose sums are exact in float64
    x = data.draw(special_cases(small if name == "mean" else integers, ("sum", "max")))
    axis = data.draw(st.sampled_from((None, *range(len(x.shape)))))
    compare(
        "add", partial(getattr(ours, name), axis=axis), partial(getattr(np, name), axis=axis), x
    )


@pytest.mark.parametrize("name", ["sum", "mean"])
@settings(max_examples=50)
@given(data=st.data())
def test_floats_are_added_up_to_rounding_of_their_magnitude(name: str, data: st.DataObject) -> None:
    x = data.draw(special_cases([d for d in NUMBERS if d.kind in "fc"], ("max",)))
    axis = data.draw(st.sampled_from((None, *range(len(x.shape)))))
    value = x.value
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = np.asarray(getattr(np, name)(value, axis=axis))
        size = np.sum(np.abs(value.astype(np.clongdouble)), axis=axis)
        count = value.size // max(expected.size, 1)
        info = np.finfo(value.dtype)
        # Where the sum of magnitudes overflows, the order of additions decides what comes out.
        settled = ~(np.isfinite(value).all(axis=axis) & (size > float(info.max) / 2))
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
