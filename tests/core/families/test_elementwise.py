"""Every row item by item agrees with NumPy, whatever the layout of its operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import init_device_mesh
from distarray.core._op import Op
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from tests.array.strategies import Case, agrees, cases, on_ranks, pairs

DTYPES = {
    "b": np.bool_,
    "i": np.int32,
    "u": np.uint8,
    "f": np.float64,
    "c": np.complex128,
}


def tolerance(expected: Any) -> dict[str, float]:
    """Return what vector and scalar loops of NumPy may differ by."""
    dtype = np.asarray(expected).dtype
    if dtype.kind not in "fc":
        return {}
    epsilon = float(np.finfo(dtype).eps)
    return {"rtol": 8 * epsilon, "atol": 8 * epsilon}


def compare(row: Op, *operands: Any) -> None:
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


@settings(max_examples=30)
@given(data=st.data())
def test_promotion_is_numpys_for_any_pair_of_dtypes(data: st.DataObject) -> None:
    x, y = data.draw(
        pairs([*DTYPES.values(), np.float32, np.float16, np.int8, np.complex64], ("sum", "max"))
    )
    row = data.draw(st.sampled_from((arithmetic.add, arithmetic.multiply, arithmetic.maximum)))
    with np.errstate(all="ignore"):
        compare(row, x, y)


@settings(max_examples=30)
@given(data=st.data(), number=st.sampled_from((2, 0, -1, 2.5, True, 1j, np.float32(3), np.int8(2))))
def test_numbers_are_weak_or_strong_as_in_numpy(data: st.DataObject, number: Any) -> None:
    x = data.draw(cases([np.float32, np.int16, np.float16, np.bool_], ("sum", "avg", "max")))
    row = data.draw(st.sampled_from((arithmetic.add, arithmetic.multiply, arithmetic.divide)))
    compare(row, x, number)
    compare(row, number, x)


@settings(max_examples=40)
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
