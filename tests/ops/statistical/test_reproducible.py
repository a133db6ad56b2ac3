"""Reproducible sums are the exact sums, rounded once, whatever the layout and whoever adds up."""

from __future__ import annotations

import importlib
import math
import operator
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import simulate
from distarray.comm.kernels import kernel
from distarray.core.families import _exact_items, _exact_sums
from distarray.errors import ArgumentTypeError, DTypeError
from tests.array.strategies import cases, on_ranks
from tests.on_device import host

HARD = ("cancelling", "wide", "subnormal", "huge", "plain", "anything")


def hard_values(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return items whose sum depends on the order in which floating-point numbers are added."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "cancelling":
        x *= 10.0 ** rng.integers(-5, 5, shape)
        half = x.reshape(-1)[: x.size // 2]
        x.reshape(-1)[x.size - half.size :] = -rng.permutation(half) * (1 + 2.0**-52)
    elif kind == "wide":  # ten orders of magnitude, and two items far away
        x *= 10.0 ** rng.uniform(-10, 0, shape)
        x.reshape(-1)[:2] = [1e300, 1e-300][: x.size]
    elif kind == "subnormal":
        x = rng.integers(-1000, 1000, shape) * 5e-324
    elif kind == "huge":
        x = rng.choice([1.7e308, -1.7e308, 1e308, -1e308, 3.0, -5e-324, 1e-300], shape)
    elif kind == "anything":
        with np.errstate(over="ignore"):
            x = np.nan_to_num(np.ldexp(x, rng.integers(-1074, 1022, shape)))
    return x


def nearest(total: Fraction, dtype: Any) -> Any:
    """Return the item of a dtype next to a number; of two the one whose last bit is 0."""
    with np.errstate(over="ignore"):
        try:
            about = np.array(float(total)).astype(dtype)
        except OverflowError:
            return np.array(math.inf if total > 0 else -math.inf).astype(dtype)
    if not np.isfinite(about):
        return about  # beyond the largest but for less than its rounding
    step = [np.nextafter(about, np.array(bound, dtype)) for bound in (-np.inf, np.inf)]
    near = [one for one in (about, *step) if np.isfinite(one)]
    bits = f"i{np.dtype(dtype).itemsize}"
    return min(near, key=lambda one: (abs(Fraction(float(one)) - total), one.view(bits) & 1))


def sums(x: np.ndarray, axes: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """Return the sums over axes by rational arithmetic."""
    moved = np.moveaxis(x, axes, range(-len(axes), 0)) if axes else x[..., None]
    kept = moved.shape[: x.ndim - len(axes)]
    count = math.prod(moved.shape[len(kept) :])
    flat = moved.reshape(-1, count) if count else np.zeros((math.prod(kept), 1))
    mantissas, exponents = np.frexp(flat)
    wholes = np.ldexp(mantissas, 53).astype(np.int64).tolist()
    shifts = (exponents + 1074).tolist()  # none is negative
    lines = zip(wholes, shifts, strict=True)
    totals = [Fraction(sum(map(operator.lshift, *line)), 2 ** (1074 + 53)) for line in lines]
    found = [nearest(total, dtype) for total in totals]
    return np.array(found, dtype).reshape(kept)


def same_bits(result: Any, expected: Any) -> None:
    """Check an array on this rank, to the last bit and the sign of zero."""
    expected = np.asarray(expected)
    full = host(result.full_array())
    assert (full.dtype, result.shape) == (expected.dtype, expected.shape)
    if result.mesh.coordinate is not None:
        np.testing.assert_array_equal(full, expected)
        np.testing.assert_array_equal(np.signbit(full.real), np.signbit(expected.real))


@settings(max_examples=25)
@given(data=st.data())
def test_sum_is_the_exact_sum_rounded_once_on_any_layout(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64,), ()))
    kind, seed = data.draw(st.sampled_from(HARD)), data.draw(st.integers(0, 99))
    case.values[...] = hard_values(kind, case.values.shape, seed)
    ndim = len(case.shape)
    axis = data.draw(st.sampled_from((None, *range(ndim), tuple(range(ndim)), ())))
    axes = tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    expected = sums(case.value, axes)

    def program() -> None:
        with np.errstate(over="ignore"):
            same_bits(case.build().sum(axis, reproducible=True), expected)

    on_ranks(program)


def kernels() -> list[Any]:
    """Return what adds up float64 items line by line, and several sums at a time."""
    names = ("add_lines", "add_columns")
    module = "distarray.comm.kernels._exact_sum"
    found = [kernel(module, name, "f8", False).load() for name in names]
    assert found[0] is not None
    return found


@pytest.fixture(params=["numba", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have all sums added up, and rounded, by kernels or by NumPy."""
    da.testing.reset()  # of calls of kernels that are remembered

    def run_by(_job: str, _n: int, one: Any, run: Any, plain: Any, _dear: int) -> None:
        run(one.load()) if request.param == "numba" else plain()

    monkeypatch.setattr(_exact_sums, "run_faster", run_by)


@pytest.mark.parametrize("kind", HARD)
def test_exact_sums_agree_with_fsum_whoever_adds_up_and_in_any_order(kind: str) -> None:
    line = hard_values(kind, (70_001,), 5)  # three tiles of NumPy's, 18 of the kernel's
    (expected,) = sums(line[None], (1,))
    if kind not in ("huge", "anything"):  # where fsum overflows on the way
        assert expected == math.fsum(line)
    digits = []
    with np.errstate(over="ignore"):
        for x in (line, np.random.default_rng(0).permutation(line), np.sort(line)):
            items = _exact_items.items_of(x)
            rows = _exact_items.items_of(x[:70_000].reshape(-1, 7))
            rest = _exact_items.items_of(x[70_000:])
            for run in (None, *kernels()):
                found = _exact_sums._find_by_tiles(items, (0,), _exact_sums.WANT_WORDS, run)
                columns, last = (
                    _exact_sums._find_by_tiles(one, axes, _exact_sums.WANT_WORDS, run)
                    for one, axes in ((rows, (0, 1)), (rest, (0,)))
                )
                for one in (found[0], columns[0, 0] + last[0]):
                    digits.append(_exact_sums._carry(one[: _exact_sums.DIGITS, None].copy()))
                    assert _exact_sums.round_sums(one[None], np.dtype(np.float64))[0] == expected
    assert all((one == digits[0]).all() for one in digits)  # exact, and not only as rounded


SHAPES = [
    ((5, 700), 0), ((700, 5), 0), ((40, 600), 0), ((9000, 33), 0), ((3, 4100), 1), ((700, 9), 1),
    ((130, 70), 1), ((1, 9000), 1), ((9000, 1), 0), ((60, 1), 1), ((3, 80, 5), 1), ((4, 9), ()),
    ((6, 7, 80), (0, 2)), ((3, 4, 5, 6), (1, 3)), ((2, 3, 2, 3, 2, 3), (0, 2, 4)),
    ((2, 3, 2, 3, 2, 3), (1, 3, 5)),
]  # fmt: skip
"""Few sums and many, of few items and of more than a lane takes, in rows, lines and between."""


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.usefixtures("way")
@pytest.mark.host_only
def test_sums_of_blocks_that_lie_in_any_way_are_exact(kind: str, dtype: str) -> None:
    for seed, (shape, axis) in enumerate(SHAPES):
        axes = axis if isinstance(axis, tuple) else (axis,)
        large = hard_values(kind, tuple(2 * n for n in shape), seed)
        with np.errstate(over="ignore"):
            large = large.astype(dtype)
        large[~np.isfinite(large)] = 3.0
        x = large[tuple(slice(n) for n in shape)].copy()
        expected = sums(x.astype(np.float64), axes)
        every_second = large[(slice(None, None, 2),) * len(shape)]
        every_second[...] = x
        turned = np.flip(x.T.copy().T, 0).copy(order="F")[::-1]
        mask = np.random.default_rng(seed).random(shape) < 0.5
        for block in (x, every_second, turned, x.astype(x.dtype.newbyteorder())):
            with np.errstate(over="ignore"):
                found = da.sum(block, axis, dtype=np.float64, reproducible=True)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
        with np.errstate(over="ignore"):
            found = da.sum(every_second, axis, dtype=np.float64, where=mask, reproducible=True)
        np.testing.assert_array_equal(found, sums(np.where(mask, x, 0).astype(float), axes))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("spread", [45, 60, 110, 220, 500, 1950])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.host_only
def test_items_any_number_of_powers_of_two_apart_are_added_up_exactly(
    spread: int, dtype: str
) -> None:
    rng = np.random.default_rng(spread)
    for shape, axis in (((500, 40), 0), ((3, 5000), 1), ((2100, 3), 0), ((300, 7), 1)):
        exponents = rng.integers(-spread, 1, shape) + min(900, spread // 2)
        with np.errstate(over="ignore", under="ignore"):
            x = np.ldexp(rng.standard_normal(shape), exponents).astype(dtype)
        x[~np.isfinite(x)] = -1.5
        for order in (x, np.sort(x, axis), -np.sort(-abs(x), axis)):
            expected = sums(order.astype(np.float64), (axis,))
            with np.errstate(over="ignore"):
                found = da.sum(order, axis, dtype=np.float64, reproducible=True)
            assert found.tobytes() == expected.tobytes()
            items = _exact_items.items_of(order)
            words = _exact_sums.add_up(items, (axis,)).reshape(-1, _exact_sums.WORDS)
            plain = _exact_sums._find_by_tiles(items, (axis,), _exact_sums.WANT_WORDS)
            digits = [
                _exact_sums._carry(one.reshape(words.shape)[:, : _exact_sums.DIGITS].T)
                for one in (words, plain)
            ]
            assert (digits[0] == digits[1]).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.host_only
def test_complex_sums_over_lines_of_any_length_are_exact(dtype: str) -> None:
    rng = np.random.default_rng(2)
    real = np.empty(0, dtype).real.dtype
    for count in (1, 2, 7, 8, 63, 64, 127, 128, 300):
        x = (rng.standard_normal((2, 3, 21, count, 2)) @ [1, 1j]).astype(dtype)
        x[0, 1, 2, 0] = complex(1e30, -np.inf)
        for axes in ((3,), (2, 3), (1, 3), (0, 2)):
            parts = [
                sums(np.where(np.isfinite(part), part, 0).astype(np.float64), axes, real)
                for part in (x.real, x.imag)
            ]
            parts[1][np.isinf(x.imag).any(axes)] = -np.inf
            found = da.sum(x, axes, reproducible=True)
            np.testing.assert_array_equal(found.real, parts[0])
            np.testing.assert_array_equal(found.imag, parts[1])


@pytest.mark.usefixtures("way")
def test_one_item_that_is_special_leaves_the_other_sums_alone() -> None:
    for shape, axis in (((90, 70), 0), ((90, 70), 1), ((300, 9), 0), ((70, 9), 1)):
        x = np.random.default_rng(3).standard_normal(shape)
        line = np.moveaxis(x, axis, -1)  # a view
        clean = sums(x, (axis,))
        line[1, 3], line[2, 4], line[3, [5, 6]] = np.inf, np.nan, [np.inf, -np.inf]
        line[4, :2], line[5, 0], line[6] = 1.7e308, -1.7e308, -0.0
        line[7, 0] *= 2.0**-1060
        line[8] = 0
        line[8, :3] = 1e300, 1e-300, -1e300
        with np.errstate(all="ignore"):
            found = da.sum(x, axis, reproducible=True)
        expected = clean.copy()
        expected[1:5] = np.inf, np.nan, np.nan, np.inf
        expected[5:9] = sums(line[5:9], (1,))
        np.testing.assert_array_equal(found, expected)
        assert found[6] == 0
        assert not np.signbit(found[6])
        assert found[8] == 1e-300
        with pytest.raises(FloatingPointError, match="invalid"), np.errstate(invalid="raise"):
            da.sum(line[3], reproducible=True)
        with pytest.raises(FloatingPointError, match="overflow"), np.errstate(over="raise"):
            da.sum(line[4], reproducible=True)


@pytest.mark.parametrize("kind", HARD)
def test_products_of_lines_are_added_up_where_they_lie(kind: str, way: None) -> None:
    x = hard_values(kind, (6, 5000), 3)
    y = np.random.default_rng(1).standard_normal((6, 5000))
    with np.errstate(over="ignore", under="ignore"):
        for dtype in (np.float64, np.float32):
            left, right = x.astype(dtype), y.astype(dtype)
            products = left.astype(np.float64) * right
            if not np.isfinite(products).all():
                continue
            for step in (1, -1):
                given = [da.asarray(one[:, ::step]) for one in (left, right)]
                same_bits(da.vecdot(*given, reproducible=True), sums(products, (1,), dtype))
            given = [da.asarray(one[1]) for one in (left, right)]
            same_bits(da.dot(*given, reproducible=True), sums(products[1], (0,), dtype))


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "c8"])
@pytest.mark.parametrize("kind", ["alike", "growing", "far"])
@pytest.mark.usefixtures("way")
@pytest.mark.host_only
def test_products_are_added_up_wherever_both_factors_lie(kind: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    real = np.empty(0, dtype).real.dtype
    for shape in ((3, 2500), (2500, 3), (70, 300), (5, 9), (9, 7), (33, 8)):
        x, y = rng.standard_normal((2, *shape))
        if kind != "alike":
            x *= 10.0 ** (
                np.linspace(0, 9, shape[0])[:, None] if kind == "growing" else -15 * (x > 1)
            )
            y *= 10.0 ** (np.linspace(0, 9, shape[1]) if kind == "growing" else -15 * (y < -1))
        x, y = (1j * one + one[::-1] if "c" in dtype else one for one in (x, y))
        x, y = x.astype(dtype), y.astype(dtype)
        for left, right in ((x, y), (x[::-1], np.asfortranarray(y)), (x, y[:1])):
            wide = np.broadcast_to(right, shape)
            for axis in (0, 1):
                if len(right) == 1 and axis == 0:
                    continue
                a, b = (one.astype("D" if "c" in dtype else "d") for one in (left, wide))
                parts = [(a.real * b.real, a.imag * b.imag), (a.real * b.imag, -a.imag * b.real)]
                expected = [sums(np.concatenate(pair, axis), (axis,), real) for pair in parts]
                found = da.vecdot(da.asarray(left), da.asarray(right), axis, reproducible=True)
                same_bits(found, expected[0] + 1j * expected[1] if "c" in dtype else expected[0])


@pytest.mark.usefixtures("way")
def test_every_nan_is_the_same_whatever_it_comes_from() -> None:
    items = [[np.nan], [-np.nan], [np.inf, -np.inf], [-np.nan] * 300, [np.inf, -np.inf] * 300]
    for item in items:
        x = np.array(item)
        with np.errstate(invalid="ignore"):
            for given, axis in ((x, 0), (np.stack([x, x]), 1), (x[:, None], 0)):
                found = np.asarray(da.sum(given, axis, reproducible=True))
                expected = np.full(found.shape, np.nan).tobytes()
                assert found.tobytes() == expected
                words = _exact_sums.add_up(_exact_items.items_of(given), (axis,))
                assert _exact_sums.round_sums(words, np.float64).tobytes() == expected


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_that_cancel_tell_of_nothing(dtype: Any) -> None:
    x = np.tile(np.array([0.1, -0.1], dtype), (3, 100))
    x[1, 0] += dtype(1)
    with np.errstate(all="raise"):
        found = da.sum(x, 1, reproducible=True)
        words = _exact_sums.add_up(_exact_items.items_of(x), (1,))
        assert _exact_sums.round_sums(words, dtype).tobytes() == found.tobytes()
    assert found.tolist() == [0, x[1, 0] - dtype(0.1), 0]


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("to_odd", [False, True])
def test_the_words_of_one_sum_are_rounded_as_those_of_several(kind: str, to_odd: bool) -> None:
    for seed in range(20):
        x = hard_values(kind, (seed + 1,), seed)
        words = _exact_sums.add_up(_exact_items.items_of(x), (0,))
        with np.errstate(over="ignore"):
            (expected,) = _exact_sums._round_by_numpy(words.T, to_odd)
            total = _exact_sums._as_integer(words[0, : _exact_sums.DIGITS].tolist())
            one = _exact_sums._round_one(total, to_odd)
        assert np.float64(one).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", HARD)
def test_few_items_are_added_up_as_many_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = hard_values(kind, (100,), 3)
    y = x.copy()
    y[3], y[5] = (np.inf, -np.inf) if kind == "huge" else (np.nan, 1.0)
    found = []
    for short in (_exact_sums._PYTHON_ITEMS, 0):
        monkeypatch.setattr(_exact_sums, "_PYTHON_ITEMS", short)
        with np.errstate(all="ignore"):
            some = [_exact_items.items_of(one) for one in (x, y, -0.0 * np.abs(x))]
            some += [_exact_items.items_of(x, x > 0), *_exact_items.products_of(x, x[::-1])]
            found.append([_exact_sums.sum_exactly(one, (0,), np.float64) for one in some])
    assert np.array(found[0]).tobytes() == np.array(found[1]).tobytes()


def test_the_kernel_and_those_who_call_it_agree_on_words_and_scratch_memory() -> None:
    source = importlib.import_module("distarray.comm.kernels._exact_sum")
    assert (source.SCRATCH, source.LONG) == (_exact_sums._SCRATCH, _exact_sums._LINE_ITEMS)
    source = importlib.import_module("distarray.comm.kernels._exact_digits")
    assert (source.WORDS, source.DIGIT, source.LEAST) == (
        _exact_sums.WORDS,
        _exact_sums.DIGIT_BITS,
        _exact_sums.LEAST,
    )
    assert (source.INVALID, source.OVERFLOW, source.FALLS_SHORT) == (
        _exact_sums._INVALID,
        _exact_sums._OVERFLOW,
        _exact_sums._FALLS_SHORT,
    )
    assert (source.LEVEL, source.LOWEST, source.HIGHEST) == (
        _exact_sums._LEVEL,
        _exact_sums._LOWEST,
        _exact_sums._HIGHEST,
    )
    assert (source.FIELDS, source.MISFIT, source.FIELD_BITS) == (
        _exact_sums._FIELDS,
        _exact_sums._MISFIT,
        _exact_sums._FIELD_BITS,
    )


@pytest.mark.parametrize("dtype", ["f2", "f4", "c8", "c16"])
def test_narrow_and_complex_sums_are_rounded_once(dtype: str) -> None:
    real = np.empty(0, dtype).real.dtype
    x = np.random.default_rng(1).standard_normal((9, 50)).astype(real)
    x[0, :4] = [1, real.type(np.finfo(real).eps) / 2, np.finfo(real).tiny, 0]  # above a tie
    x[0, 4:] = 0
    expected = sums(x.astype(np.float64), (1,), real).astype(dtype)
    if "c" in dtype:
        x = x + 1j * x[::-1]
        expected = expected + 1j * expected[::-1]

    def program() -> None:
        for placement in (da.Shard(0), da.Shard(1), da.Replicate()):
            y = da.distribute_array(x.astype(dtype), placements=[placement], src=None)
            same_bits(y.sum(axis=1, reproducible=True), expected)

    simulate(3, program)


def test_items_that_are_not_finite_give_what_numpy_gives() -> None:
    x = np.zeros((5, 8))
    x[0, 3], x[1, [1, 6]], x[2, 5], x[3, 2] = np.inf, [np.inf, -np.inf], np.nan, -np.inf
    x[4] = 1.7e308

    def program() -> None:
        y = da.distribute_array(x, placements=[da.Shard(1)], src=None)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(y.sum(1, reproducible=True).full_array(), x.sum(1))
        with pytest.raises(FloatingPointError), np.errstate(invalid="raise", over="ignore"):
            y.sum(1, reproducible=True)
        with np.errstate(invalid="raise", over="ignore"):  # of one infinity nothing is invalid
            assert float(y[0].sum(reproducible=True)) == np.inf
            assert float(y[3].mean(reproducible=True)) == -np.inf

    simulate(3, program)


def test_sums_take_numpys_arguments() -> None:
    x = np.random.default_rng(2).standard_normal((6, 7))
    mask = x > 0

    def program() -> None:
        y = da.distribute_array(x, src=None)
        exact = sums(np.where(mask, x, 0), (0,))
        same_bits(y.sum(0, where=mask, reproducible=True, initial=2.5), exact + 2.5)
        same_bits(da.sum(y, 0, where=y > 0, keepdims=True, reproducible=True), exact[None])
        single = sums(x, (1,), np.float32)
        same_bits(y.sum(1, np.float32, reproducible=True), single)
        out = da.zeros(6, np.float32)
        assert da.sum(y, 1, out=out, reproducible=True) is out
        same_bits(out, single)
        same_bits(da.zeros((0, 3)).sum(0, reproducible=True), np.zeros(3))
        same_bits((-da.zeros(3)).sum(reproducible=True), 0.0)
        whole = da.asarray([2**62, 1, 5])
        same_bits(whole.sum(reproducible=True), np.int64(2**62 + 6))
        partial = da.DistArray.from_local(y.full_array(), placements=[da.Partial()])
        same_bits(partial.sum(reproducible=True), sums(x * partial.mesh.size, (0, 1)))
        if np.finfo(np.longdouble).bits > 64:
            with pytest.raises(DTypeError, match=r"64 bits|GPU"):
                y.astype(np.longdouble).sum(reproducible=True)
        for function in (da.mean, da.var):
            with pytest.raises(ArgumentTypeError, match="plain array"):
                function(x, reproducible=True)
        with pytest.raises(ArgumentTypeError, match="True or False"):
            y.sum(reproducible="yes")

    simulate(2, program)
    assert da.sum(x, reproducible=True) == math.fsum(x.reshape(-1))


def test_a_sum_or_mean_is_one_exchange_of_16_bytes_from_each() -> None:
    def program() -> None:
        x = da.ones((40, 3))
        with da.CommLog() as log:
            assert float(x.sum(reproducible=True)) == 120
        assert (log.count(), log.bytes("all_gather")) == (1, 2 * 16)
        for moment, rounds in ((x.mean, 1), (x.var, 2)):
            with da.CommLog() as log:
                moment(reproducible=True)
            assert (log.count(), log.bytes("all_gather")) == (rounds, rounds * 2 * 16)
        with da.CommLog() as log, da.communication("raise"):
            x.sum(axis=1, reproducible=True)
        assert log.count() == 0

    simulate(3, program)


def blocks_of_sums(kind: str) -> list[np.ndarray]:
    """Return three blocks of items of 40 sums, of which some have special items, zeros or none."""
    blocks = [hard_values(kind, (count, 40), count) for count in (3, 300, 5000)]
    blocks[0][1, 30:33], blocks[1][0, 30:35] = [np.inf, np.nan, np.inf], [-np.inf] * 5
    for block in blocks:
        block[:, 36:] *= 0.0
    blocks[2][:, 36] = 2.0**-30
    blocks[1][0, 37] = -0.0
    return blocks


@pytest.mark.parametrize("kind", HARD)
def test_short_states_hold_sums_or_say_that_they_do_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def force(is_kernel: bool) -> None:
        def run_by(_job: str, _n: int, one: Any, run: Any, plain: Any, _dear: int) -> None:
            run(one.load()) if is_kernel else plain()

        monkeypatch.setattr(_exact_sums, "run_faster", run_by)

    items = [_exact_items.items_of(block) for block in blocks_of_sums(kind)]
    words = sum(_exact_sums.add_up(one, (0,)) for one in items)
    short = []
    for is_kernel in (True, False):
        force(is_kernel)
        short.append(np.stack([_exact_sums.shorten(one, (0,))[0] for one in items]))
    fits = short[0][..., 1] != _exact_sums._MISFIT
    whole = fits.all(1)  # the kernel gives up a block where it finds items far apart
    held = (short[1][..., 1] != _exact_sums._MISFIT).all(0)
    is_near = kind not in ("wide", "huge", "anything")
    assert fits.all() == held.all() == is_near
    assert held[36:].all()
    assert (whole == fits.any(1)).all()
    for taken in (whole, whole & (np.arange(3) == 1), whole & False):
        states = np.where(taken[:, None, None], *short)
        np.testing.assert_array_equal((states[..., 1] != _exact_sums._MISFIT).all(0), held)
        some = np.ascontiguousarray(states[:, held].reshape(len(states), -1))
        for dtype in (np.dtype(np.float64), np.dtype(np.float32)):
            with np.errstate(all="ignore"):
                expected = _exact_sums.round_sums(words[0, held], dtype)
                for is_kernel in (True, False):
                    force(is_kernel)
                    found = _exact_sums.round_short(some, dtype)
                    assert found is not None
                    assert found.tobytes() == expected.tobytes()
                    whole = _exact_sums.round_short(states.reshape(len(states), -1), dtype)
                    assert (whole is None) == (not held.all())


@pytest.mark.usefixtures("way")
def test_states_far_apart_or_of_one_sign_are_added_up_exactly() -> None:
    rng = np.random.default_rng(4)
    for scale in (2.0**-1000, 2.0**-60, 2.0**-39, 1.0, 2.0**40, 2.0**900):
        for blocks in (2, 9):
            x = rng.uniform(1, 2, (blocks, 4096, 3))
            x[0] *= scale
            items = [_exact_items.items_of(block) for block in x]
            states = np.stack([_exact_sums.shorten(one, (0,)).reshape(-1) for one in items])
            found = _exact_sums.round_short(states, np.dtype(np.float64))
            assert found is not None
            np.testing.assert_array_equal(found, sums(x.reshape(-1, 3), (0,)))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("blocks", [4096, 4097, 20000])
def test_states_of_thousands_of_blocks_are_added_up_exactly(blocks: int) -> None:
    block = np.array([[2.0**-10], [-(2.0**-100)]])  # all bits of the second level are set
    state = _exact_sums.shorten(_exact_items.items_of(block), (0,)).reshape(1, -1)
    found = _exact_sums.round_short(state.repeat(blocks, axis=0), np.dtype(np.float64))
    assert found is not None
    assert found.tolist() == [float(blocks * sum(map(Fraction, block[:, 0].tolist())))]


def test_sums_that_no_short_state_holds_are_exchanged_as_words() -> None:
    x = np.random.default_rng(6).standard_normal((40, 6))
    x[3, 1], x[30, 1] = 1e100, 1e-100  # in one half of the columns

    def program() -> None:
        mesh = da.DeviceMesh(np.arange(6).reshape(3, 2))
        for placements in ([da.Shard(0), da.Shard(1)], [da.Shard(0), da.Replicate()]):
            y = da.distribute_array(x, mesh, placements, src=None)
            with da.CommLog() as log:
                same_bits(y.sum(0, reproducible=True), sums(x, (0,)))
            assert log.count() > 2
            same_bits(y.mean(reproducible=True), sums(x, (0, 1)) / x.size)
            same_bits(da.vecdot(y, y, 0, reproducible=True), sums(x * x, (0,)))
            z = da.distribute_array(x[:, 2:], mesh, placements, src=None)
            same_bits(z.sum(0, reproducible=True), sums(x[:, 2:], (0,)))
            with np.errstate(over="raise"):
                same_bits(y.sum(0, reproducible=True), sums(x, (0,)))

    simulate(6, program)


@pytest.mark.parametrize("is_wide", [False, True])
def test_many_sums_are_rounded_by_one_rank_each(is_wide: bool) -> None:
    x = np.random.default_rng(7).standard_normal((6, 20_000))
    if is_wide:
        x[0, 19_999], x[5, 19_999] = 1e200, 1e-200
    expected = np.array([math.fsum(column) for column in x.T])

    def program() -> None:
        y = da.distribute_array(x, src=None)
        with da.CommLog() as log:
            found = y.sum(0, reproducible=True)
        assert log.count("all_to_all") == 1 + is_wide
        same_bits(found, expected)

    simulate(3, program)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.host_only
def test_complex_products_are_those_of_the_conjugate(dtype: str) -> None:
    rng = np.random.default_rng(8)
    for count in (3, 100, 5000):
        x, y = (rng.standard_normal((2, 7, count, 2)) @ [1, 1j]).astype(dtype)
        for _ in range(2):  # the second time as is known from the first
            found = da.matmul(da.asarray(x), y[0], reproducible=True)
            same_bits(found, da.vecdot(x.conj(), da.asarray(y[:1]), reproducible=True).full_array())


@settings(max_examples=10)
@given(data=st.data())
def test_moments_have_the_same_bits_on_any_layout(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.float32, np.complex128), ()))
    x = case.value.astype(case.values.dtype)
    axis = data.draw(st.sampled_from((None, *range(x.ndim))))
    count = x.size if axis is None else x.shape[axis]
    if not x.size:
        return
    axes = tuple(range(x.ndim)) if axis is None else (axis,)

    def total(items: Any) -> Any:
        if items.dtype.kind == "c":
            return total(items.real.copy()) + 1j * total(items.imag.copy())
        return sums(items.astype(np.float64), axes, items.dtype)

    mean = (total(x) / x.dtype.type(count)).astype(x.dtype)
    deviation = x - np.expand_dims(mean, axes)
    parts = np.stack([deviation.real, deviation.imag], -1).astype(np.float64)
    squares = sums(parts**2, (*axes, x.ndim))
    variance = (squares / count).astype(deviation.real.dtype)

    def program() -> None:
        y = case.build()
        same_bits(y.mean(axis, reproducible=True), mean)
        same_bits(y.var(axis, reproducible=True), variance)
        same_bits(y.std(axis, reproducible=True), np.sqrt(variance))

    on_ranks(program)


@pytest.mark.usefixtures("way")
def test_parts_cut_out_of_wider_rows_are_read_where_they_lie() -> None:
    items = np.arange(17 * 67.0).reshape(17, 67) * (1 - 2j)
    for first, stop in ((2, 66), (0, 66), (1, 3)):
        found = _exact_sums.sum_exactly(
            _exact_items.items_of(items[:, first:stop]), (0, 1), np.float64
        )
        total = items[:, first:stop].sum()
        np.testing.assert_array_equal(found.ravel(), [total.real, total.imag])


@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 3), 0), ((3, 1), 1), ((2, 0), 0)])
@pytest.mark.parametrize("name", ["var", "std"])
def test_too_few_items_have_no_variance_and_warn_as_numpy(
    name: str, shape: tuple[int, ...], axis: Any
) -> None:
    value = np.ones(shape)
    ddof = 2 if 0 in shape else 1

    def program() -> None:
        for options in ({}, {"reproducible": True}, {"mean": 0.0}):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = getattr(da, name)(da.asarray(value), axis=axis, ddof=ddof, **options)
            assert not np.isfinite(np.asarray(found)).any()
            said = {str(one.message) for one in caught} - {"invalid value encountered in divide"}
            said -= {"divide by zero encountered in divide"}
            assert said == {"Degrees of freedom <= 0 for slice"}

    program()
