"""Every row item by item agrees with NumPy, whatever the layout of its operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import init_device_mesh
from distarray.core._op import Op
from distarray.layout import Partial, Placement, Replicate, Shard
from distarray.ops.elementwise import _arithmetic as arithmetic
from distarray.ops.elementwise import _logic as logic
from distarray.testing import simulate
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


@pytest.mark.parametrize("name", ["modf", "frexp", "divmod"])
@pytest.mark.parametrize("placements", [[Shard(0)], [Replicate()], [Partial()]], ids=str)
def test_several_results_keep_what_out_held_where_a_mask_is_false(
    name: str, placements: list[Placement]
) -> None:
    value, others = np.arange(7) * 1.25, np.full(7, 2.0)
    mask = np.arange(7) % 3 == 1
    inputs = (value, others)[: getattr(np, name).nin]
    expected = np.full(7, 5.0), np.full(7, -7.0)
    getattr(np, name)(*inputs, out=expected, where=mask, casting="unsafe")

    def program() -> None:
        mesh = init_device_mesh((3,))
        held = distribute_array(mask, mesh, [Shard(0)])
        for where in (mask, held, False):
            out = [
                distribute_array(np.full(7, item), mesh, [Replicate()]).redistribute(placements)
                for item in (5.0, -7.0)
            ]
            built = [distribute_array(x, mesh, [Shard(0)]) for x in inputs]
            results = getattr(np, name)(*built, out=tuple(out), where=where, casting="unsafe")
            kept = (np.full(7, 5.0), np.full(7, -7.0)) if where is False else expected
            for one, result, wanted in zip(out, results, kept, strict=True):
                assert result is one
                np.testing.assert_array_equal(one.full_array(), wanted, strict=True)
                assert one.placements == tuple(placements)

    simulate(3, program)


def test_a_mask_that_is_a_result_as_well_is_read_before_it_is_written() -> None:
    value = np.array([0.0, 1.5, -2.5, 3.25, 0.5])
    expected = value > 0
    second = np.zeros(5)
    np.modf(value, out=(expected, second), where=expected.copy(), casting="unsafe")

    def program() -> None:
        x = distribute_array(value, init_device_mesh((2,)), [Shard(0)])
        mask, whole = x > 0, x * 0
        np.modf(x, out=(mask, whole), where=mask, casting="unsafe")
        np.testing.assert_array_equal(mask.full_array(), expected)
        np.testing.assert_array_equal(whole.full_array(), second)

    simulate(2, program)
