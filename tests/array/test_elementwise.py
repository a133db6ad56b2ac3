"""Every row item by item agrees with NumPy, whatever the layout of its operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import init_device_mesh
from distarray.core._elementwise import Elementwise
from distarray.layout import Partial, Replicate, Shard
from distarray.ops import _elementwise_arithmetic as arithmetic
from distarray.ops import _elementwise_logic as logic
from distarray.ops import _elementwise_rounding as rounding
from distarray.ops import _elementwise_transcendental as transcendental
from tests.array.strategies import Case, agrees, cases, on_ranks, pairs

ROWS = {
    name: row
    for module in (arithmetic, logic, rounding, transcendental)
    for name, row in vars(module).items()
    if isinstance(row, Elementwise) and not name.startswith("_")
}
UNARY = {name: row for name, row in ROWS.items() if row.nin == 1}
BINARY = {name: row for name, row in ROWS.items() if row.nin == 2}
DTYPES = {
    "b": np.bool_,
    "i": np.int32,
    "u": np.uint8,
    "f": np.float64,
    "c": np.complex128,
}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def dtypes_of(row: Elementwise) -> list[Any]:
    """Return dtypes that the row's NumPy function takes."""
    found = []
    for dtype in (*DTYPES.values(), np.float32, np.float16, np.int64):
        block = np.ones(1, dtype)
        try:
            with np.errstate(all="ignore"):
                row.local(*[block] * row.nin)
        except TypeError:
            continue
        found.append(dtype)
    return found


def tolerance(expected: Any) -> dict[str, float]:
    """Return what vector and scalar loops of NumPy may differ by."""
    dtype = np.asarray(expected).dtype
    if dtype.kind not in "fc":
        return {}
    epsilon = float(np.finfo(dtype).eps)
    return {"rtol": 8 * epsilon, "atol": 8 * epsilon}


def compare(row: Elementwise, *operands: Any) -> None:
    """Check a row against its NumPy function on operands that may be cases."""
    with np.errstate(all="ignore"):
        plain = [x.value if isinstance(x, Case) else x for x in operands]
        expected = row.local(*plain)
        expected = expected if row.nout > 1 else (expected,)

        def program() -> None:
            with np.errstate(all="ignore"):
                built = [x.build() if isinstance(x, Case) else x for x in operands]
                results = row(*built)
                for result, wanted in zip(
                    results if row.nout > 1 else (results,), expected, strict=True
                ):
                    agrees(result, wanted, **tolerance(wanted))

        on_ranks(program)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(UNARY.keys() - {"isnat"}))
@settings(max_examples=8)
@given(data=st.data())
def test_unary_row_agrees_with_numpy_on_random_layouts(name: str, data: st.DataObject) -> None:
    row = UNARY[name]
    dtypes = dtypes_of(row)
    ops = ("sum", "avg", "max") if np.float64 in dtypes else ("sum", "bor")
    compare(row, data.draw(cases(dtypes, ops)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(BINARY))
@settings(max_examples=10)
@given(data=st.data())
def test_binary_row_agrees_with_numpy_on_random_layouts(name: str, data: st.DataObject) -> None:
    row = BINARY[name]
    x, y = data.draw(pairs(dtypes_of(row), ("sum", "max")))
    if name in ("pow", "power"):  # NumPy refuses negative powers of integers
        y = Case(y.mesh_shape, y.placements, np.abs(y.values), y.order, y.boundaries)
    kind = data.draw(st.sampled_from(("arrays", "arrays", "plain", "number", "reflected")))
    if kind == "plain":
        compare(row, x, y.value)
    elif kind == "number":
        compare(row, x, y.value.dtype.type(3))
    elif kind == "reflected":
        compare(row, x.value.dtype.type(2), y)
    else:
        compare(row, x, y)


@settings(max_examples=60)
@given(data=st.data())
def test_promotion_is_numpys_for_any_pair_of_dtypes(data: st.DataObject) -> None:
    x, y = data.draw(
        pairs([*DTYPES.values(), np.float32, np.float16, np.int8, np.complex64], ("sum", "max"))
    )
    row = data.draw(st.sampled_from((arithmetic.add, arithmetic.multiply, arithmetic.maximum)))
    with np.errstate(all="ignore"):
        compare(row, x, y)


@settings(max_examples=60)
@given(data=st.data(), number=st.sampled_from((2, 0, -1, 2.5, True, 1j, np.float32(3), np.int8(2))))
def test_numbers_are_weak_or_strong_as_in_numpy(data: st.DataObject, number: Any) -> None:
    x = data.draw(cases([np.float32, np.int16, np.float16, np.bool_], ("sum", "avg", "max")))
    row = data.draw(st.sampled_from((arithmetic.add, arithmetic.multiply, arithmetic.divide)))
    compare(row, x, number)
    compare(row, number, x)


@settings(max_examples=80)
@given(data=st.data())
def test_linear_functions_of_sums_agree_whatever_stays_partial(data: st.DataObject) -> None:
    row = data.draw(
        st.sampled_from(
            (
                arithmetic.add,
                arithmetic.subtract,
                arithmetic.multiply,
                arithmetic.divide,
                arithmetic.maximum,
                arithmetic.minimum,
                logic.logical_or,
                logic.logical_and,
            )
        )
    )
    ops = (
        ("any", "all")
        if row in (logic.logical_or, logic.logical_and)
        else ("sum", "avg", "prod", "min", "max")
    )
    dtypes = [np.bool_] if ops == ("any", "all") else [np.float64, np.int32]
    x, y = data.draw(pairs(dtypes, ops))
    with np.errstate(all="ignore"):
        compare(row, x, y)


def test_unsafe_casting_holds_for_pending_and_for_several_results() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        value = np.array([1.5, -2.5, 7.25])
        x = distribute_array(value, mesh, [Shard(0)])
        for pending in (False, True):
            placements = [Partial("sum") if pending else Replicate()]
            out, parts = (
                distribute_array(np.ones(3, np.int32), mesh).redistribute(placements)
                for _ in range(2)
            )
            agrees(np.add(out, x, out=out, casting="unsafe"), np.int32([2, -1, 8]))
            np.modf(x, out=(out, parts), casting="unsafe")
            agrees(out, np.zeros(3, np.int32))
            agrees(parts, np.int32([1, -2, 7]))

    on_ranks(program)
