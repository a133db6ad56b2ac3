"""Reductions agree with NumPy over random layouts, and say when they send something."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distarray as ours
from distarray.array._array import distribute_array
from distarray.comm import CommLog, init_device_mesh, simulate
from distarray.core.engine._float_errors import DATES_RAISE
from distarray.core.engine._policy import communication
from distarray.core.families import _registry as registry
from distarray.core.families._reductions import reduction
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    CommunicationError,
    DTypeError,
    ReadOnlyError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.manipulation._shape import broadcast_to
from distarray.ops.statistical._reductions import by
from tests import peak_memory
from tests.array.strategies import KIND, Case, agrees, cases, on_ranks, values_of

NUMBERS = (np.float64, np.int32, np.uint8, np.bool_, np.float32, np.complex128, np.float16)
LAZY = {"sum": "sum", "prod": "prod", "min": "min", "max": "max", "any": "any", "all": "all"}


@st.composite
def axes_of(draw: Any, ndim: int) -> Any:
    """Draw an axis argument that fits."""
    if not ndim or draw(st.booleans()):
        return None
    if draw(st.booleans()):
        return draw(st.integers(-ndim, ndim - 1))
    return tuple(draw(st.lists(st.integers(0, ndim - 1), unique=True, max_size=ndim)))


def compare(name: str, case: Case, *, close: bool, **options: Any) -> None:
    """Check a reduction against NumPy's: its values, or that both refuse."""
    theirs, function = getattr(np, name), getattr(ours, name)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected = np.asarray(theirs(case.value, **options))
        except ValueError:
            expected = None
        tolerance = {}
        if close and expected is not None and expected.dtype.kind in "fc":
            epsilon = float(np.finfo(expected.dtype).eps)
            tolerance = {"rtol": 32 * epsilon, "atol": 32 * epsilon}

        def program() -> None:
            x = case.build()
            with np.errstate(all="ignore"):
                if expected is None:
                    with pytest.raises(ArgumentError):
                        function(x, **options)
                else:
                    agrees(function(x, **options), expected, **tolerance)

        on_ranks(program)


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "any", "all", "count_nonzero"])
@settings(max_examples=15)
@given(data=st.data())
def test_reduction_agrees_with_numpy_on_random_layouts(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(NUMBERS, ("sum", "max", "avg", "prod")))
    axis = data.draw(axes_of(len(case.shape)))
    if name == "prod":  # products of many items overflow, and where depends on their order
        case.values[...] = np.sign(case.values.real.astype(np.float64))
    compare(name, case, close=case.op == "avg", axis=axis, keepdims=data.draw(st.booleans()))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shape", [(400,), (200_001,), (301, 3), (70_000, 4), (90, 3000)])
def test_variance_far_from_0_is_as_accurate_as_numpys(ranks: int, shape: tuple[int, ...]) -> None:
    """Times of a clock, in seconds: means of blocks are rounded to much of their differences."""
    value = 1.7e9 + np.arange(np.prod(shape)).reshape(shape) * 1e-3
    wide = value.astype(np.longdouble)

    def program() -> None:
        x = distribute_array(value)
        for axis in (0, None):
            expected = ((wide - wide.mean(axis)) ** 2).mean(axis).astype(float)
            for found in (ours.var(x, axis=axis), ours.nanvar(x, axis=axis)):
                np.testing.assert_allclose(found.full_array(), expected, rtol=1e-9)

    simulate(ranks, program)


@pytest.mark.parametrize("name", ["mean", "var", "std"])
@settings(max_examples=15)
@given(data=st.data())
def test_moment_agrees_with_numpy_on_random_layouts(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(NUMBERS, ("sum", "max", "avg")))
    options: dict[str, Any] = {
        "axis": data.draw(axes_of(len(case.shape))),
        "keepdims": data.draw(st.booleans()),
    }
    if name != "mean":
        options["ddof"] = data.draw(st.sampled_from((0, 1, 1.5)))
    compare(name, case, close=True, **options)


@pytest.mark.parametrize("name", ["argmin", "argmax"])
@settings(max_examples=25)
@given(data=st.data())
def test_place_is_the_first_in_global_order_on_random_layouts(
    name: str, data: st.DataObject
) -> None:
    case = data.draw(cases(NUMBERS, ("sum", "max")))
    ndim = len(case.shape)
    if case.values.dtype.kind == "f" and data.draw(st.booleans()):
        case.values[np.random.default_rng(0).random(case.values.shape) < 0.2] = np.nan
    axis = data.draw(st.one_of(st.none(), st.integers(-ndim, ndim - 1))) if ndim else None
    compare(name, case, close=False, axis=axis, keepdims=data.draw(st.booleans()))


@pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "any", "all", "mean", "var", "std"])
@settings(max_examples=8)
@given(data=st.data())
def test_masked_reduction_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32), ("sum", "max")))
    mesh_shape = case.mesh_shape
    kept = case.shape[data.draw(st.integers(0, len(case.shape))) :]
    mask = data.draw(cases((np.bool_,), (), mesh_shape, kept))
    options: dict[str, Any] = {"axis": data.draw(axes_of(len(case.shape)))}
    if name in ("min", "max"):
        options["initial"] = 3
    elif name in ("sum", "prod") and data.draw(st.booleans()):
        options["initial"] = 2
    plain_mask = data.draw(st.booleans())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = np.asarray(getattr(np, name)(case.value, where=mask.value, **options))

        def program() -> None:
            with np.errstate(all="ignore"):
                where = mask.value if plain_mask else mask.build()
                result = getattr(ours, name)(case.build(), where=where, **options)
                agrees(result, expected, rtol=1e-12, atol=1e-12)

        on_ranks(program)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var"])
@settings(max_examples=8)
@given(data=st.data(), dtype=st.sampled_from((np.float32, np.float64, np.complex64)))
def test_dtype_argument_is_numpys(name: str, data: st.DataObject, dtype: Any) -> None:
    case = data.draw(cases((np.float64, np.int32, np.bool_, np.float16), ("sum",)))
    if name == "var":  # NumPy gives a complex variance of real items there
        assume(dtype != np.complex64)
    compare(name, case, close=True, axis=data.draw(axes_of(len(case.shape))), dtype=dtype)


@settings(max_examples=8)
@given(data=st.data())
def test_initial_counts_once_whatever_the_layout(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32), ("sum", "prod", "min", "max")))
    for name in ("sum", "prod", "min", "max"):
        compare(name, case, close=False, axis=data.draw(axes_of(len(case.shape))), initial=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.complex64, np.int64])
@pytest.mark.parametrize("shape", [(300_001,), (700, 301), (5, 70_001), (90_001, 3), (40, 50, 60)])
def test_large_blocks_reduce_as_accurately_as_numpy(shape: Any, dtype: Any) -> None:
    values = values_of(dtype, shape, 1) + np.asarray(100, dtype)
    exact = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    tolerance = (
        3e-3 if dtype == np.float16 else 3e-6 if dtype in (np.float32, np.complex64) else 1e-12
    )

    def program() -> None:
        x = distribute_array(values, init_device_mesh((3,)), [Shard(0)])
        for axis in (None, *range(len(shape)), tuple(range(len(shape) - 1))):
            if axis == ():
                continue
            for name in ("mean", "var", "std"):
                result = getattr(x, name)(axis)
                agrees(
                    result,
                    getattr(np, name)(exact, axis).astype(result.dtype),
                    rtol=tolerance,
                    atol=tolerance,
                )

    on_ranks(program)


@pytest.mark.parametrize("name", sorted(LAZY))
def test_reduction_over_a_cut_axis_is_partial_and_sends_nothing(name: str) -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        x = distribute_array(np.ones((4, 6), np.int64), mesh, [Shard(0), Shard(1)])
        with CommLog() as log:
            result = getattr(ours, name)(x, axis=0)
            again = getattr(ours, name)(result)
        assert log.count() == 0
        assert result.placements == (Partial(LAZY[name]), Shard(0))
        assert again.placements == (Partial(LAZY[name]), Partial(LAZY[name]))

    on_ranks(program)


def test_mean_and_variance_are_one_exchange() -> None:
    def program() -> None:
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        x = distribute_array(np.arange(24.0).reshape(4, 6), mesh, [Shard(0), Shard(1)])
        with CommLog() as log, communication("raise"):
            mean = x.mean()
        assert log.count() == log.count("all_reduce") == 1
        assert mean.layout.is_replicated
        with CommLog() as log:
            assert x.mean(0).placements == (Replicate(), Shard(0))
        assert log.count() == 1
        with CommLog() as log:
            assert x.redistribute([Shard(0), Replicate()]).mean(1).placements[0] == Shard(0)
        assert log.count("all_reduce") == 0
        with CommLog() as log:
            deviation = x.std(0)
            place = x.argmax()
        assert log.count() == 2
        assert deviation.placements == (Replicate(), Shard(0))
        assert place.layout.is_replicated
        with CommLog() as log:
            x.redistribute([Shard(0), Replicate()]).std(1)
        assert log.count("all_gather", "mesh") == 0

    on_ranks(program)


def test_variance_is_bitwise_the_same_on_every_rank() -> None:
    values = np.random.default_rng(3).normal(1e6, 1, size=(1001, 5))

    def program() -> bytes:
        x = distribute_array(values, init_device_mesh((4,)), [Shard(0)])
        return x.var(0).to_local().tobytes()

    assert len(set(on_ranks(program))) == 1


def test_variance_of_a_large_mean_loses_no_digits() -> None:
    values = np.random.default_rng(3).normal(0, 1, size=200_000)

    def program() -> float:
        x = distribute_array(values + 1e9, init_device_mesh((4,)), [Shard(0)])
        return float(x.var())

    # The mean is 1e9 deviations: its rounding, times that, is 1e-7.
    assert math.isclose(on_ranks(program)[0], float((values + 1e9).var()), rel_tol=1e-8)


def test_ties_and_nans_go_to_the_lowest_index_across_columns() -> None:
    values = np.zeros((4, 6))
    values[1, 4] = values[2, 0] = 7  # the second column block holds the first of them
    holes = values.copy()
    holes[3, 0] = holes[0, 5] = np.nan

    def program() -> tuple[int, int, int]:
        mesh = init_device_mesh((3,))
        x = distribute_array(values, mesh, [Shard(1)])
        y = distribute_array(holes, mesh, [Shard(1)])
        if mesh.coordinate is None:
            x.argmax(), y.argmax(), y.argmin()
            return (10, 5, 5)
        return int(x.argmax()), int(y.argmax()), int(y.argmin())

    assert set(on_ranks(program)) == {(10, 5, 5)}

    def of_columns() -> None:
        cut = distribute_array(holes.T, init_device_mesh((3,)), [Shard(0)])  # ties in each column
        for name in ("argmin", "argmax"):
            agrees(getattr(cut, name)(axis=0), getattr(np, name)(holes.T, axis=0))

    on_ranks(of_columns)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_first_complex_nan_is_the_place_whatever_its_parts(dtype: str) -> None:
    nan = math.nan
    values = np.array([complex(0.5, nan), 2, -1 + 0.5j, 1, complex(nan, 2), 3], dtype)
    several = np.stack((values, values[::-1]), axis=1)

    def program() -> None:
        mesh = init_device_mesh((3,))
        one, lines = (distribute_array(x, mesh, [Shard(0)]) for x in (values, several))
        for name in ("argmin", "argmax"):
            place = getattr(np, name)
            with np.errstate(all="raise"):
                found = getattr(one, name)(), getattr(lines, name)(axis=0)
            agrees(found[0], place(values))
            agrees(found[1], place(several, axis=0))

    on_ranks(program)


def test_bad_arguments_raise_the_same_error_on_every_rank_and_the_next_call_works() -> None:
    def program() -> list[str]:
        mesh = init_device_mesh((2, 2))
        x = distribute_array(np.arange(12.0).reshape(3, 4), mesh, [Shard(0), Shard(1)])
        empty = distribute_array(np.ones((0, 4)), mesh, [Shard(0), Shard(1)])
        messages = []
        for error, call in (
            (AxisError, lambda: x.sum(2)),
            (AxisError, lambda: x.sum((0, -2))),
            (ArgumentTypeError, lambda: x.sum("0")),
            (ArgumentTypeError, lambda: x.min(dtype=np.float64)),
            (ArgumentTypeError, lambda: x.var(dtype="no such dtype")),
            (ArgumentTypeError, lambda: x.mean(dtype="no such dtype")),
            (ArgumentError, lambda: empty.min()),
            (ArgumentError, lambda: empty.argmax()),
            (ArgumentTypeError, lambda: x.argmax((0, 1, 1)[:2])),
            (DTypeError, lambda: x.sum(where=np.ones((3, 4)))),
            (ArgumentError, lambda: x.max(where=np.ones((3, 4), bool))),
            (ArgumentTypeError, lambda: x.sum(out=np.zeros(()))),
        ):
            with pytest.raises(error) as caught:
                call()
            messages.append(str(caught.value))
        assert float(x.sum()) == 66.0
        return messages

    results = on_ranks(program)
    assert all(messages == results[0] for messages in results)


@pytest.mark.host_only  # GPUs have none of these types
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("wanted", ["f8", "f4", "i8", "c16", "?"])
@pytest.mark.parametrize("value", ["a", b"a", np.datetime64("2020-01-02"), np.timedelta64(3, "s")])
def test_dtype_argument_makes_no_moment_of_what_has_none(
    value: Any, wanted: str, masked: bool
) -> None:
    options = {"where": np.ones(1, bool)} if masked else {}

    def program() -> None:
        mesh = init_device_mesh((2,))  # one of the blocks is empty
        x = distribute_array(np.array([value]), mesh, [Shard(0)], src=None)
        for row in (ours.mean, ours.var, ours.std):
            with pytest.raises(DTypeError):
                row(x, dtype=wanted, **options)
        agrees(distribute_array(np.ones(8), mesh, [Shard(0)], src=None).mean(), np.array(1.0))

    on_ranks(program)


@pytest.mark.host_only  # GPUs have none of these types
@pytest.mark.parametrize("dtype", ["m8[s]", "M8[D]"])
def test_initial_of_times_counts_alone_where_no_item_does(dtype: str) -> None:
    value = np.array([-5, 7, 3], dtype)

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        for start in np.array([-9, 9], dtype):
            for mask in (np.array([False, True, True]), np.zeros(3, bool)):
                for name in ("min", "max"):
                    row, numpys = getattr(ours, name), getattr(np, name)
                    agrees(row(x[:0], initial=start), np.asarray(start))
                    expected = numpys(value, initial=start, where=mask)
                    agrees(row(x, initial=start, where=mask), np.asarray(expected))

    on_ranks(program)


@pytest.mark.parametrize("wanted", ["f4", "i8"])
def test_variance_of_complex_items_drops_no_imaginary_part(wanted: str) -> None:
    def program() -> None:
        x = distribute_array(np.arange(4) * 1j, init_device_mesh((2,)), [Shard(0)])
        for row in (ours.var, ours.std):
            with pytest.raises(DTypeError, match="astype"):
                row(x, dtype=wanted)

    on_ranks(program)


@settings(max_examples=8)
@given(data=st.data())
def test_result_goes_into_an_array_of_another_layout(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64,), ("sum",)))
    axis = data.draw(axes_of(len(case.shape)))
    expected = np.asarray(case.value.sum(axis))
    target = data.draw(cases((np.float64,), ("sum",), case.mesh_shape, expected.shape))

    def program() -> None:
        out = target.build()
        assert ours.sum(case.build(), axis=axis, out=out) is out
        agrees(out, expected, rtol=1e-14, atol=0)

    on_ranks(program)


def test_initial_takes_the_dtype_of_the_result_as_in_numpy() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        for value in (np.arange(5), np.array([True, False]), np.arange(3, dtype=np.uint8)):
            x = distribute_array(value, mesh, [Shard(0)])
            for name in ("sum", "prod", "min", "max"):
                for initial in (2.5, 3, True, None):
                    expected = getattr(np, name)(value, initial=initial)
                    agrees(getattr(ours, name)(x, initial=initial), expected)
        with pytest.raises(ArgumentTypeError):
            ours.min(x, initial=1j)
        with pytest.raises(ArgumentError):
            ours.max(x, initial=300)

    on_ranks(program)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_])
def test_mean_of_an_integer_dtype_divides_the_whole_sum(dtype: Any) -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        for value in (np.ones(4), np.array([-3.0, 2, -9, 1, 7]), np.ones((5, 3), np.uint8)):
            for placements in ([Shard(0)], [Replicate()]):
                x = distribute_array(value, mesh, placements)
                agrees(ours.mean(x, dtype=dtype), value.mean(dtype=dtype))
                agrees(ours.mean(x, axis=0, dtype=dtype), value.mean(0, dtype=dtype))

    on_ranks(program)


@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_moment_under_a_mask_has_numpys_dtype(name: str) -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        mask = np.array([True, False, True, True, True])
        for dtype in (np.float16, np.float32, np.complex64, np.int8):
            value = np.array([1, 2, 4, 3, 5], dtype)
            x = distribute_array(value, mesh, [Shard(0)])
            expected = getattr(np, name)(value, where=mask)
            agrees(getattr(ours, name)(x, where=mask), expected, rtol=1e-3)
            expected = getattr(np, name)(value, where=mask, dtype=np.complex64).real
            result = getattr(ours, name)(x, where=mask, dtype=np.complex64)
            assert result.dtype in (np.complex64, np.float32)
            np.testing.assert_allclose(result.full_array().real, expected, rtol=1e-3)

    on_ranks(program)


def test_large_block_over_no_axes_is_as_it_was() -> None:
    def program() -> None:
        value = values_of(np.float64, (64, 1024), 3)
        value[5, 7] = np.nan
        x = distribute_array(value, init_device_mesh((2,)), [Shard(0)])
        for name in ("sum", "prod", "min", "max", "mean", "var", "std"):
            agrees(getattr(ours, name)(x, axis=()), getattr(np, name)(value, axis=()))

    on_ranks(program)


@pytest.mark.host_only  # GPUs have native byte order alone
def test_sum_into_a_wider_array_adds_up_in_its_dtype() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        value = np.full(5, 2**63, np.uint64)
        x = distribute_array(value, mesh, [Shard(0)])
        for dtype in ("f8", ">f8"):
            out = distribute_array(np.zeros((), dtype), mesh, [Replicate()])
            assert ours.sum(x, out=out) is out
            agrees(out, np.asarray(5 * 2.0**63, dtype))

    on_ranks(program)


@pytest.mark.host_only  # GPUs have no long double
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["mean", "var", "std", "sum"])
def test_result_of_any_dtype_or_in_any_array_is_as_good_as_numpys(
    name: str, axis: Any, masked: bool
) -> None:
    theirs, function = getattr(np, name), getattr(ours, name)
    options = {"where": np.arange(15).reshape(5, 3) % 4 > 0} if masked else {}

    def close(result: Any, expected: Any, *dtypes: Any) -> None:
        epsilon = float(max(np.finfo(d if d in "f2 f4 c8 c16" else "f8").eps for d in dtypes))
        largest = 9.0**2  # of the squares that are added up
        agrees(result, expected, rtol=8 * epsilon, atol=epsilon * largest)

    rng = np.random.default_rng(8)
    numpys = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of real sums that NumPy takes out of a complex array
        for source in ("?", "u1", "i4", "f2", "f4", "f8", "c8", "c16"):
            value = rng.integers(0, 9, (5, 3)).astype(source)
            if value.dtype.kind == "c":
                value += value.dtype.type(3j)
            for wanted in ("f2", "f4", "f8", "g", "c8", "c16"):
                if value.dtype.kind != "c" or np.dtype(wanted).kind == "c":
                    filled = np.zeros_like(value.sum(axis), wanted)
                    theirs(value, axis, out=filled, **options)
                    made = np.asarray(theirs(value, axis, dtype=wanted, **options))
                    numpys.append((source, wanted, value, filled, made))

    def program() -> None:
        mesh = init_device_mesh((4,))
        for source, wanted, value, filled, made in numpys:
            x = distribute_array(value, mesh, [Shard(0)])
            out = distribute_array(np.zeros_like(filled), mesh, [Replicate()])
            assert function(x, axis, out=out, **options) is out
            close(out, filled, source, wanted)
            close(function(x, axis, dtype=wanted, **options), made, wanted)

    on_ranks(program)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std"])
def test_wider_result_neither_overflows_nor_rounds_before_it_is_there(name: str) -> None:
    theirs, function = getattr(np, name), getattr(ours, name)
    value = np.array([1e19, 2.0**24, 1, 1, 1, 3e18], np.float32)

    def program() -> None:
        mesh = init_device_mesh((4,))
        for source, wide in (("f4", "f8"), ("f4", "c16"), ("c8", "c16")):
            x = distribute_array(value.astype(source), mesh, [Shard(0)])
            expected = np.asarray(theirs(value.astype(wide)), wide)
            out = distribute_array(np.zeros((), wide), mesh, [Replicate()])
            agrees(function(x, out=out), expected, rtol=1e-15)
            agrees(function(x, dtype=wide), expected, rtol=1e-15)

    on_ranks(program)


@pytest.mark.parametrize("wanted", ["i4", "i8", "?"])
def test_variance_is_not_counted_in_whole_numbers(wanted: str) -> None:
    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        for row in (ours.var, ours.std):
            with pytest.raises(DTypeError, match="leave dtype out"):
                row(x, dtype=wanted)

    on_ranks(program)


ROWS = ("sum", "prod", "min", "max", "any", "all", "mean", "var", "std", "argmin", "argmax")


@pytest.mark.parametrize("name", ROWS)
def test_out_that_cannot_be_written_is_refused_before_anything_is_sent(name: str) -> None:
    function = getattr(ours, name)

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.arange(12.0).reshape(3, 4), mesh, [Shard(0)])
        dtype = {"any": "?", "all": "?", "argmin": "i8", "argmax": "i8"}.get(name, "f8")
        fixed = broadcast_to(distribute_array(np.zeros(1, dtype), mesh, [Replicate()]), (4,))
        with CommLog() as log:
            with pytest.raises(ReadOnlyError):
                function(x, axis=0, out=fixed)
            with pytest.raises(ArgumentTypeError, match="DistArray"):
                function(x, axis=0, out=np.zeros(4))
            for out in (np.zeros(()), x.sum()):
                with pytest.raises(ArgumentTypeError, match="plain"):
                    function(np.arange(3.0), out=out)
        assert log.count() == 0
        with pytest.raises(ArgumentTypeError, match="plain"):
            getattr(np, name)(np.arange(3.0), out=x.sum())

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("dtype", [">f8", ">f4", ">c16", ">f2", ">i4"])
@pytest.mark.parametrize("name", ["mean", "var", "std"])
def test_values_in_the_other_byte_order_give_what_numpy_gives(name, dtype):
    # sums of these rows are too large for half precision; the other ranks have no row
    value = (np.arange(400, 800).reshape(2, 200) % 600).astype(dtype)

    def program() -> None:
        x = distribute_array(value)
        half = value.dtype.char == "e"
        for axis in (None, 0, 1):
            expected = np.asarray(getattr(np, name)(value, axis, "f4" if half else None))
            expected = expected.astype("f2") if half else expected
            tolerance = 8 * float(np.finfo(expected.dtype).eps)
            agrees(getattr(ours, name)(x, axis), expected, rtol=tolerance, atol=0)

    on_ranks(program)


def test_mean_is_the_sum_divided_once() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        assert float(distribute_array(np.full(17, 7.0), mesh, [Shard(0)]).mean()) == 7
        rng = np.random.default_rng(5)
        for count in (1, 3, 5, 7, 17, 41):
            for dtype in (np.int64, np.uint8, np.float64, np.bool_):
                value = rng.integers(0, 200, (count, 3)).astype(dtype)
                x = distribute_array(value, mesh, [Shard(0)])
                for axis in (None, 0, 1, ()):  # sums of integers are exact in any order
                    for keepdims in (False, True):
                        expected = np.asarray(value.mean(axis, keepdims=keepdims))
                        agrees(x.mean(axis, keepdims=keepdims), expected)
                agrees(x.sum() / np.int64(count), value.sum() / np.int64(count))
            small = rng.integers(-9, 9, (count, 2))
            for dtype in (np.float32, np.float16, np.complex64):
                value = small.astype(dtype)
                x = distribute_array(value, mesh, [Shard(0)])
                agrees(x.mean(), value.mean())
                agrees(x.mean(0), value.astype(np.result_type(dtype, "f4")).mean(0).astype(dtype))

    on_ranks(program)


def test_half_precision_adds_up_in_float32_on_all_ranks_and_is_rounded_once() -> None:
    value = np.array([60000, 60000, -60000, -60000, 1, 0.0004, 2048, 1, 1, 1], np.float16)
    signs = np.float16([1, -1, -1, 1]).repeat(100)[:, None]
    tall = signs * np.full((400, 5), 20000, np.float16)
    mask = np.arange(400)[:, None] % 3 > 0

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(value, mesh, [Shard(0)])
        with np.errstate(all="raise"):
            agrees(x.sum(), value.sum())
            agrees(x.mean(), value.mean())
            agrees(x.mean(dtype=np.float16), value.mean(dtype=np.float16))
            agrees(x.astype(np.float64).sum(dtype=np.float16), value.sum())
            agrees(x @ np.ones(10, np.float16), value.sum())
            y = distribute_array(tall, mesh, [Shard(0)])  # the sums of blocks have no half
            agrees(y.sum(0, where=mask), (tall.astype(np.float32) * mask).sum(0).astype("f2"))
        assert x.sum().layout.is_replicated
        with np.errstate(all="ignore"):
            wide = value.astype(np.float32) * 2
            y = distribute_array(wide, mesh, [Shard(0)])
            agrees(y.sum(dtype=np.float16), wide.sum(dtype=np.float16))  # infinite as a half

    on_ranks(program)


@pytest.mark.host_only  # on GPUs they become NaN
@pytest.mark.parametrize("first", [0, 1, 3])
def test_product_of_complex_infinities_is_numpys_where_blocks_are_empty(first: int) -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        for count in (1, 2, 3):
            value = np.full((count, 2), 2 - 1j)
            value[min(first, count - 1), 0] = complex(np.inf, 0)
            value[0, 1] = complex(-np.inf, np.inf)
            x = distribute_array(value, mesh, [Shard(0)])
            with np.errstate(all="ignore"):
                for axis in (None, 0, 1):
                    agrees(x.prod(axis), value.prod(axis))

    on_ranks(program)


def test_sum_of_nothing_is_positive_zero() -> None:
    def program() -> None:
        x = distribute_array(np.ones((0, 3)), init_device_mesh((4,)), [Shard(0)])
        for total in (x.sum(), x.sum(0), x.sum(where=np.zeros((0, 3), bool)), (x + 0j).sum(0)):
            assert not np.signbit(np.real(total.full_array())).any()

    on_ranks(program)


@pytest.mark.filterwarnings("ignore:All-NaN")
@pytest.mark.parametrize("name", ["nanmax", "nanmin"])
def test_results_that_no_partial_combines_are_exchanged_at_once(name: str) -> None:
    value = np.array([[1, np.nan, 3], [np.nan, np.nan, np.nan], [2, 5, np.nan]]).repeat(2, 1)
    given: tuple[Any, ...] = ({}, {"initial": 2}, {"initial": 4, "where": value != 5})
    function, numpys = getattr(ours, name), getattr(np, name)

    def program() -> None:
        mesh = init_device_mesh((4,))
        for placement in (Shard(0), Shard(1), Replicate()):
            x = distribute_array(value, mesh, [placement])
            for axis in (None, 0, 1, (0, 1)):
                for options in ({"keepdims": keeps} | one for one in given for keeps in (0, 1)):
                    with CommLog() as log:
                        result = function(x, axis=axis, **options)
                    assert log.count() <= 1
                    agrees(result, np.asarray(numpys(value, axis, **options)))
            with pytest.raises(ArgumentError, match="initial"):
                function(x, where=value > 0)

    on_ranks(program)


@pytest.mark.parametrize("name", ["nanmax", "nanmin"])
@pytest.mark.parametrize("dtype", ["f8", "f2", "c16", "i4", "u1", "?"])
def test_extremes_beside_nan_of_nothing_are_initial(name: str, dtype: str) -> None:
    function = getattr(ours, name)

    def program() -> None:
        x = ours.zeros((0, 3), dtype=dtype, mesh=init_device_mesh((4,)), placements=[Shard(0)])
        agrees(function(x, 0, initial=1), np.ones(3, dtype))
        agrees(function(x, 1, initial=1), np.ones(0, dtype))
        with pytest.raises(ArgumentError):
            function(x)

    on_ranks(program)


@pytest.mark.parametrize("name", ["nanmax", "nanmin"])
def test_nothing_but_nan_is_warned_of_as_by_numpy(name: str) -> None:
    x = distribute_array(np.full((2, 2), np.nan))
    function = getattr(ours, name)
    with pytest.warns(RuntimeWarning, match="All-NaN slice") as caught:
        function(x, 0)
    assert [one.filename for one in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(function(x, 0, initial=1), np.ones(2))


def test_products_beside_nan_take_no_part_for_nan() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        value = np.array([[2, np.nan, 3, 5], [np.nan] * 4])
        for placements in ([Shard(0)], [Shard(1)], [Partial("prod")], [Partial("max")]):
            x = distribute_array(value, mesh, placements)
            for axis in (None, 0, 1):
                agrees(ours.nanprod(x, axis), np.asarray(np.nanprod(value, axis)))
                found = ours.nanprod(x, axis, initial=7, where=value != 3)
                agrees(found, np.asarray(np.nanprod(value, axis, initial=7, where=value != 3)))

    on_ranks(program)


@pytest.mark.parametrize("ufunc", [np.fmax, np.fmin])
def test_methods_of_ufuncs_that_leave_out_nan_do_not_warn(ufunc: np.ufunc) -> None:
    value = np.array([[1, np.nan, 3, 5], [np.nan, np.nan, 7, -2], [2, np.nan, np.nan, 0]])
    given: tuple[Any, ...] = ({}, {"initial": 2}, {"initial": 4, "where": value != 5})

    def program() -> None:
        mesh = init_device_mesh((4,))
        for placement in (Shard(0), Shard(1), Replicate(), Partial("sum"), Partial("max")):
            x = distribute_array(value, mesh, [placement])
            for axis in (0, 1, None, (0, 1)):
                for options in ({"keepdims": keeps} | one for one in given for keeps in (0, 1)):
                    expected = np.asarray(ufunc.reduce(value, axis, **options))
                    agrees(ufunc.reduce(x, axis, **options), expected)
            agrees(ufunc.reduce(x), ufunc.reduce(value))
            out = ours.zeros(4, mesh=mesh)
            assert ufunc.reduce(x, out=out) is out
            agrees(out, ufunc.reduce(value))
            with pytest.raises(ArgumentError, match="initial"):
                ufunc.reduce(x, where=value > 0)
        times = np.array(["NaT", "2020-01-02", "2020-01-01"], "M8[D]")
        if KIND == "cpu":
            agrees(ufunc.reduce(distribute_array(times)), np.asarray(ufunc.reduce(times)))

    on_ranks(program)


@pytest.mark.filterwarnings("ignore:Mean of empty")
def test_mean_beside_nan_exchanges_sums_and_counts_once() -> None:
    rows = [[1, np.nan, 3, 5, 6], [np.nan] * 5, [2, np.nan, 4, np.nan, 0]]

    def program() -> None:
        mesh = init_device_mesh((4,))
        for dtype in ("f8", "f4", "f2", "c16", "c8"):
            value = np.array(rows, dtype)
            mask = np.array([True, False, True, True, True])
            for placement in (Shard(0), Shard(1), Replicate(), Partial("sum"), Partial("max")):
                x = distribute_array(value, mesh, [placement])
                whole = x.redistribute([Replicate()]) if x.layout.has_partial else x
                for axis in (None, 0, 1, (0, 1), ()):
                    for options in ({}, {"keepdims": True}, {"where": mask}):
                        with CommLog() as log:
                            result = ours.nanmean(whole, axis, **options)
                        assert log.count() <= 1
                        expected = np.nanmean(value, axis, **options)
                        close = {"rtol": 4 * np.finfo(value.dtype).eps}
                        agrees(result, np.asarray(expected), **close)
                        agrees(np.nanmean(x, axis, **options), np.asarray(expected), **close)
        for shape, axis in (((0, 3), 0), ((0, 3), 1), ((0, 3), None), ((), None)):
            value = np.full(shape, np.nan)
            agrees(ours.nanmean(distribute_array(value), axis), np.asarray(np.nanmean(value, axis)))

    on_ranks(program)


@pytest.mark.filterwarnings("ignore:Mean of empty")
def test_mean_beside_nan_takes_dtype_and_out() -> None:
    value = np.array([[1, np.nan, 3], [np.nan, 4, 4], [2, 9, np.nan]], "f4")

    def program() -> None:
        x = distribute_array(value)
        for dtype in (None, "f8", "f4", "c16"):
            agrees(ours.nanmean(x, 0, dtype), np.nanmean(value, 0, dtype), rtol=1e-6)
            for kind in ("c16",) if dtype == "c16" else ("f8", "f4"):
                out, theirs = ours.zeros(3, kind), np.zeros(3, kind)
                np.nanmean(value, 0, dtype, theirs)
                assert ours.nanmean(x, 0, dtype, out) is out
                agrees(out, theirs, rtol=1e-7 if dtype is None else 1e-15)
        for dtype, out in (("i4", None), (None, ours.zeros(3, "i4"))):
            with pytest.raises(DTypeError, match="floating"):
                ours.nanmean(x, 0, dtype, out)
        with pytest.raises(ShapeError):
            ours.nanmean(x, 0, None, ours.zeros(4))
        integers = x > 2
        agrees(ours.nanmean(integers, 0), np.nanmean(value > 2, 0))

    on_ranks(program)


@pytest.mark.skipif(KIND == "cpu", reason="NumPy reduces by any ufunc")
def test_ufuncs_whose_reduction_cupy_lacks_reduce_in_host_memory() -> None:
    x = distribute_array(np.array([1.0, np.nan, 3.0]))
    assert float(by(np.fmax)(x.to_local(), (0,), None, False)) == 3


def test_only_one_reduction_answers_for_the_method_of_a_ufunc() -> None:
    assert registry.methods[np.multiply, "reduce"] is ours.prod
    x = distribute_array(np.array([2.0, np.nan]))
    assert np.isnan(float(np.multiply.reduce(x)))


UNKNOWN = np.frompyfunc(max, 2, 1)
"""Not reduced by any test: reductions of NumPy's ufuncs are made when they are called."""


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("prod answers for multiply.reduce", {"combine": "prod", "ufunc": np.multiply}),
        ("rules= and dtypes= do nothing", {"combine": np.fmax, "rules": ((Partial(),) * 2,)}),
        ("rules= and dtypes= do nothing", {"combine": np.fmax, "dtypes": lambda *_: None}),
        ("needs ufunc=", {"combine": np.fmax, "accepts": ("axis", "initial")}),
        ("needs identity=", {"combine": np.hypot, "accepts": ("initial",), "ufunc": UNKNOWN}),
    ],
)
def test_rows_whose_arguments_do_not_go_together_are_refused(match: str, options: Any) -> None:
    before = registry.public.copy(), registry.functions.copy(), registry.methods.copy()
    with pytest.raises(ValueError, match=match):
        reduction("nansum", "", by(np.add), **({"accepts": ("axis",)} | options))
    assert (registry.public, registry.functions, registry.methods) == before


REDUCTIONS = "sum prod min max any all count_nonzero nanmax nanmin nansum nanprod mean nanmean ptp"


@pytest.mark.parametrize("name", [*REDUCTIONS.split(), "var", "std", "argmin", "argmax"])
def test_all_arguments_of_reductions_are_documented(name: str) -> None:
    function = getattr(ours, name)
    head, _, rest = inspect.getdoc(function).partition("\n\nParameters\n----------\n")
    told = re.findall(r"^(\w+(?:, \w+)*) : ", rest.partition("\n\n")[0], re.MULTILINE)
    assert head
    assert {one for line in told for one in line.split(", ")} == {
        *inspect.signature(function).parameters
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ours.mean(x[:0]), "Mean of empty slice"),
        (lambda x: np.mean(x[:0], axis=0, keepdims=True), "Mean of empty slice"),
        (lambda x: ours.nanmean(x * np.nan), "Mean of empty slice"),
        (lambda x: x[:1].var(ddof=1), "Degrees of freedom"),
        (lambda x: np.std(x[:1], ddof=1), "Degrees of freedom"),
        (lambda x: np.nanmax(x * np.nan, axis=0), "All-NaN slice"),
    ],
)
def test_warnings_name_the_line_of_the_program(call: Any, message: str) -> None:
    x = distribute_array(np.ones(3))
    with pytest.warns(RuntimeWarning) as caught:
        call(x)
    assert {one.filename for one in caught if message in str(one.message)} == {__file__}


@pytest.mark.host_only  # GPUs have native byte order alone
@pytest.mark.parametrize("name", ["argmin", "argmax", "min", "max", "sum", "prod", "mean", "var"])
def test_byte_order_is_that_of_no_rank_where_some_have_no_item(name: str) -> None:
    line = np.array([4.75, -5.125])

    def program() -> None:
        for dtype in (">f8", ">f4", ">f2", ">c16", ">i4"):
            for value in (line.astype(dtype), np.stack([line, -line], 1).astype(dtype)):
                x = distribute_array(value)
                for axis in (None, 0):
                    for keepdims in (False, True):
                        expected = getattr(np, name)(value, axis, keepdims=keepdims)
                        result = getattr(ours, name)(x, axis, keepdims=keepdims)
                        agrees(result, np.asarray(expected), rtol=1e-3)

    on_ranks(program)


REDUCED = ("sum", "prod", "min", "max", "mean", "var", "std", "ptp", "argmin", "argmax")


@pytest.mark.host_only  # GPUs have no text and no times
@pytest.mark.parametrize("name", REDUCED)
def test_out_of_another_shape_or_kind_is_refused_before_anything_is_sent(name: str) -> None:
    function = getattr(ours, name)

    def program() -> None:
        mesh = init_device_mesh((4,))
        value = np.arange(12.0).reshape(3, 4)
        x = distribute_array(value, mesh, [Shard(0)])
        masks = [{}] if name.startswith(("arg", "ptp")) else [{}, {"where": value > 2}]
        dtype = "i8" if name.startswith("arg") else "f8"
        with CommLog() as log:
            for options in masks:
                if options and name in ("min", "max"):
                    options["initial"] = 0.0
                for shape in ((3, 4), (1, 4), (), (5,)):
                    out = distribute_array(np.zeros(shape, dtype), mesh, [Replicate()], src=None)
                    with pytest.raises(ShapeError):
                        function(x, axis=0, out=out, **options)
                out = distribute_array(np.zeros(4), mesh, [Replicate()], src=None)
                with pytest.raises(ShapeError):
                    function(x, axis=0, out=out, keepdims=True, **options)
                for kind in ("f8", "?") if dtype == "i8" else ("i8", "?", "U9", "m8[s]"):
                    out = distribute_array(np.zeros(4, kind), mesh, [Replicate()], src=None)
                    with pytest.raises(DTypeError):
                        function(x, axis=0, out=out, **options)
        assert log.count() == 0

    on_ranks(program)


@pytest.mark.host_only  # GPUs have native byte order alone
@pytest.mark.parametrize("name", ["sum", "prod", "max", "mean", "ptp"])
def test_reduction_into_an_array_adds_up_in_numpys_dtype(name: str) -> None:
    cases = (
        ("i8", "f2", np.array([70_000, -69_990, 0])),
        ("u8", "f4", np.array([2**40, 3, 5])),
        ("u8", "i4", np.array([40, 3, 5])),
        ("i1", "i8", np.array([-128, 127, 3])),
        ("i1", "i2", np.array([-128, 127, 3])),
        ("f2", ">f8", np.array([60_000.0, 60_000.0, 3.0])),
        ("f4", "c16", np.array([1e30, 1e30, 3.0])),
        ("i4", ">f4", np.array([2**30, 2**30, 3])),
    )

    def program() -> None:
        for source, dtype, items in cases:
            value = items.astype(source)
            out = ours.zeros((), dtype=dtype)
            if dtype in {"mean": ("f2", "i2", "i4", "i8"), "ptp": ("i4",)}.get(name, ()):
                # whose mean NumPy makes of a rounded sum, and which it has no difference for
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                getattr(ours, name)(distribute_array(value), out=out)
                agrees(out, getattr(np, name)(value, out=np.zeros((), dtype)))

    on_ranks(program)


def test_result_in_a_narrower_partial_array_is_that_of_all_ranks() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        value = np.random.default_rng(5).integers(-9, 9, (6, 5))
        x = distribute_array(value, mesh, [Shard(0)])
        for reduces in ("min", "max", "sum"):
            out = distribute_array(np.zeros(5, np.int16), mesh, [Replicate()])
            out = out.redistribute([Partial(reduces)])
            ours.argmin(x, 0, out)
            agrees(out, np.argmin(value, 0).astype(np.int16))
            ours.max(x, 0, out)
            agrees(out, np.max(value, 0).astype(np.int16))

    on_ranks(program)


@pytest.mark.host_only  # where the plain mean and mask are
@pytest.mark.parametrize("name", ["var", "std"])
def test_variance_around_a_given_mean_is_numpys(name: str) -> None:
    theirs, function = getattr(np, name), getattr(ours, name)
    value = np.random.default_rng(6).random((6, 5))
    mask = value > 0.3
    mean = value.mean(0, keepdims=True) + 1

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(value, mesh, [Shard(0)])
        for centre in (mean, distribute_array(mean, mesh, [Shard(1)]), ours.asarray(mean)):
            for options in ({}, {"ddof": 1}, {"where": mask}, {"keepdims": True}):
                expected = theirs(value, 0, mean=mean, **options)
                agrees(function(x, 0, mean=centre, **options), expected, rtol=1e-12)
                if centre is not mean:
                    found = function(value, 0, mean=centre, **options)
                    agrees(found, expected, rtol=1e-12)
        agrees(function(x, mean=0.25), np.asarray(theirs(value, mean=0.25)), rtol=1e-12)
        agrees(function(x, 0, mean=None), theirs(value, 0), rtol=1e-12)
        with pytest.raises(ShapeError):
            function(x, 0, mean=np.zeros((2, 6, 5)))

    on_ranks(program)


def test_complex_moments_of_nan_are_nan_in_both_parts() -> None:
    value = np.array([1.0, np.nan, 9.0])

    def program() -> None:
        x = distribute_array(value)
        for function, theirs in ((ours.var, np.var), (ours.std, np.std), (ours.mean, np.mean)):
            for dtype in (None, complex) if function is not ours.mean else (None,):
                out = ours.zeros((), dtype=complex)
                function(x, dtype=dtype, out=out)
                expected = theirs(value, dtype=dtype, out=np.zeros((), complex))
                assert str(out.full_array()) == str(expected) == str(np.array(complex("nan+nanj")))
        assert str(ours.var(x, dtype=complex).full_array()) == str(np.var(value, dtype=complex))

    with np.errstate(invalid="ignore"):
        on_ranks(program)


def test_mean_of_whole_numbers_is_divided_in_its_array() -> None:
    value = np.array([2.9, 4.2, 5.7])

    def program() -> None:
        x = distribute_array(value)
        for dtype, wanted in (("i8", "f8"), ("f4", "f8"), ("f8", "f4")):
            out = ours.zeros((), dtype=wanted)
            ours.mean(x, dtype=dtype, out=out)
            agrees(out, np.mean(value, dtype=dtype, out=np.zeros((), wanted)))

    on_ranks(program)


@pytest.mark.parametrize("name", ["sum", "max", "mean", "var", "std", "ptp", "any"])
def test_keepdims_that_is_no_integer_raises_on_every_rank(name: str) -> None:
    def program() -> None:
        x = distribute_array(np.arange(2.0))  # the other ranks have no item
        for keepdims in (2.0, "a", None, []):
            with pytest.raises(ArgumentTypeError):
                getattr(ours, name)(x, keepdims=keepdims)
        assert getattr(ours, name)(x, keepdims=1).shape == (1,)
        with pytest.raises(ArgumentTypeError):
            ours.round(x, None)

    on_ranks(program)


@pytest.mark.parametrize("name", ["var", "nanmax", "nanvar", "nanmean", "argmax"])
def test_states_of_many_lines_are_not_gathered_where_the_block_is_less(name: str) -> None:
    value = np.random.default_rng(3).random((4, 50_000))

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        with CommLog() as log:
            result = getattr(ours, name)(x, axis=0)
        assert result.placements == (Shard(0),)
        assert log.bytes() <= value.nbytes * 3 // 16  # the new block, but for the part that is here
        agrees(result, getattr(np, name)(value, axis=0), rtol=1e-13)
        few = x[:, :1000]
        assert getattr(ours, name)(few, axis=0).placements == (Replicate(),)

    on_ranks(program)


STATE_BYTES = {
    "var": 24,
    "std": 24,
    "nanvar": 32,
    "nanmean": 16,
    "nanmax": 8,
    "argmin": 16,
    "argmax": 16,
    "nanargmin": 17,
    "nanargmax": 17,
}
"""Of one kept item, float64."""


@pytest.mark.parametrize("ranks_per_node", [None, 2], ids=["one node", "two"])
@pytest.mark.parametrize("name", STATE_BYTES)
def test_of_many_states_a_rank_gets_a_part_and_the_results(name: str, ranks_per_node: Any) -> None:
    value = np.random.default_rng(3).integers(0, 9, (33, 3, 12_001)).astype(float)
    if name.startswith("nan"):
        value[value == 4] = np.nan

    def program() -> None:
        mesh = init_device_mesh((4,))
        for keepdims in (False, True):
            x = distribute_array(value, mesh, [Shard(0)])
            with CommLog() as log:
                result = getattr(ours, name)(x, axis=0, keepdims=keepdims)
            assert result.placements == (Replicate(),)
            expected = getattr(np, name)(value, axis=0, keepdims=keepdims)
            agrees(result, expected, rtol=1e-13)
            part = -(-expected.size // 4)
            assert log.bytes() <= 3 * part * (STATE_BYTES[name] + 8) + 1000
        tiles = distribute_array(value, init_device_mesh((2, 2)), [Shard(0), Shard(1)])
        with CommLog() as log:
            result = getattr(ours, name)(tiles, axis=0)
        assert result.placements == (Replicate(), Shard(0))
        agrees(result, getattr(np, name)(value, axis=0), rtol=1e-13)
        assert log.bytes() <= 12_001 * (STATE_BYTES[name] + 8) + 1000

    simulate(4, program, ranks_per_node=ranks_per_node)


@pytest.mark.parametrize("name", STATE_BYTES)
def test_memory_for_states_does_not_grow_with_ranks(name: str) -> None:
    def needed(ranks: int) -> float:
        value = np.random.default_rng(3).random((8 * ranks, 40_000))
        return peak_memory.scratch(lambda x: getattr(ours, name)(x, axis=0), value, ranks)

    assert needed(8) <= needed(2) * 1.1


def test_parts_of_states_raise_and_warn_on_every_rank() -> None:
    value = np.ones((8, 40_000))
    value[:, -1] = np.nan

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        with pytest.raises(ArgumentError, match="All-NaN slice"):
            ours.nanargmax(x, axis=0)
        with pytest.raises((RuntimeWarning, CommunicationError), match="All-NaN slice"):
            ours.nanmax(x, axis=0)
        assert float(ours.argmax(x, axis=0)[-1]) == 0

    on_ranks(program)


no_dates = pytest.mark.skipif(KIND != "cpu", reason="CuPy has no dates")


DATES = {
    "M8[D]": ("min", "max", "ptp"),
    "m8[s]": ("min", "max", "ptp", "sum", "nansum", "mean"),
    ">m8[ms]": ("min", "max", "ptp", "sum", "nansum", "mean"),
}


def dates_of(dtype: str, shape: tuple[int, ...], missing: float) -> np.ndarray:
    """Return dates or durations before and after the epoch, some of which are missing."""
    rng = np.random.default_rng(7)
    value = rng.integers(-9999, 9999, shape).astype(np.dtype(dtype).newbyteorder("="))
    value[rng.random(shape) < missing] = "NaT"
    return value.astype(dtype)


@no_dates
@pytest.mark.parametrize("dtype", DATES)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (41,), (5, 7), (0, 3), (6, 0, 2)], ids=str)
@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:invalid value", "ignore:divide by zero")
def test_reductions_of_dates_agree_with_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    def program() -> None:
        for missing in (0, 0.1) if shape == (5, 7) else (0.1,):
            value = dates_of(dtype, shape, missing)
            mesh = init_device_mesh((2, 2))
            axes = [None, *range(len(shape))]
            cuts = [Replicate(), *map(Shard, range(len(shape)))]
            for placements in ((a, b) for a in cuts for b in cuts):
                x = distribute_array(value, mesh, placements, src=None)
                for name, axis, keepdims in itertools.product(DATES[dtype], axes, (False, True)):
                    options = {"axis": axis, "keepdims": keepdims}
                    try:
                        expected = getattr(np, name)(value, **options)
                    except ValueError:  # of nothing
                        with pytest.raises(ArgumentError):
                            getattr(ours, name)(x, **options)
                    else:
                        agrees(getattr(ours, name)(x, **options), expected)

    on_ranks(program)


@no_dates
@pytest.mark.parametrize("dtype", DATES)
def test_reductions_of_dates_take_the_options_of_others(dtype: str) -> None:
    value, mask = dates_of(dtype, (23, 5), 0.05), np.random.default_rng(3).random((23, 5)) < 0.6
    names = [name for name in DATES[dtype] if name != "ptp"]

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        for name in names:
            options: dict[str, Any] = {"axis": 0, "where": mask}
            if name != "mean":
                options["initial"] = value[0, 0]
            if name in ("sum", "nansum"):
                options["initial"] = np.timedelta64(5, "ms" if ">" in dtype else "s")
            agrees(getattr(ours, name)(x, **options), getattr(np, name)(value, **options))
            out = ours.empty((5,), dtype=value.dtype.newbyteorder("="))
            assert getattr(ours, name)(x, axis=0, out=out) is out
            agrees(out, getattr(np, name)(value, axis=0))
        agrees(np.minimum.reduce(x, axis=1), np.minimum.reduce(value, axis=1))

    on_ranks(program)


@no_dates
@pytest.mark.skipif(DATES_RAISE, reason="from NumPy 2.5 on ranks also tell whether any overflow")
@pytest.mark.parametrize("dtype", DATES)
def test_reductions_of_dates_send_results_only(dtype: str) -> None:
    value = dates_of(dtype, (4000, 3), 0)

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)])
        for name in DATES[dtype]:
            rounds = 2 if name == "ptp" else 1
            for axis, lines in ((None, 1), (0, 3)):
                with CommLog() as log:
                    getattr(ours, name)(x, axis=axis)
                assert log.bytes() == 3 * 8 * lines * rounds
                assert log.count() == rounds

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("name", ["sum", "nansum"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "c16"])
def test_a_sum_begins_with_zero_of_the_sign_that_is_asked_for(name: str, dtype: str) -> None:
    zeros = [-0.0, 0.0, None]
    if dtype == "c16":
        zeros += [complex(0.0, -0.0), complex(-0.0, -0.0)]
    values = [np.ones((0, 3)), -np.zeros((3, 2)), np.ones((2, 0)), np.array([[-0.0, 0.0], [1, -1]])]

    def program() -> None:
        for value in (value.astype(dtype) for value in values):
            for placement in (ours.Shard(0), ours.Shard(1), ours.Replicate()):
                x = ours.distribute_array(value, placements=[placement], src=None)
                for axis, initial in itertools.product((None, 0, 1), zeros):
                    options = {} if initial is None else {"initial": initial}
                    expected = getattr(np, name)(value, axis=axis, **options)
                    found = np.asarray(getattr(ours, name)(x, axis=axis, **options))
                    np.testing.assert_array_equal(found, expected)
                    for part in ("real", "imag"):
                        signs = [np.signbit(getattr(one, part)) for one in (found, expected)]
                        np.testing.assert_array_equal(*signs)
                    where = np.zeros(value.shape, bool)
                    found = getattr(ours, name)(x, axis=axis, where=where, **options)
                    expected = getattr(np, name)(value, axis=axis, where=where, **options)
                    signs = [np.signbit(np.asarray(one).real) for one in (found, expected)]
                    np.testing.assert_array_equal(*signs)

    simulate(3, program)
