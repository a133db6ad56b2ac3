"""Reproducible sums are the exact sums, rounded once, whatever the layout and whoever adds up."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import simulate
from distarray.comm.kernels import address_of, kernel
from distarray.core.families import _exact_sums
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
    unit = 2**1074  # of which all are multiples
    ratios = [map(float.as_integer_ratio, line.tolist()) for line in flat]
    totals = [Fraction(sum(n * (unit // d) for n, d in line), unit) for line in ratios]
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


@pytest.mark.parametrize("kind", HARD)
def test_exact_sums_agree_with_fsum_whoever_adds_up_and_in_any_order(kind: str) -> None:
    line = hard_values(kind, (70_001,), 5)  # three tiles of NumPy's, 35 of the kernel's
    (expected,) = sums(line[None], (1,))
    if kind not in ("huge", "anything"):  # where fsum overflows on the way
        assert expected == math.fsum(line)
    by_kernel = kernel("distarray.comm.kernels._exact_sum", "add_lines").load()
    assert by_kernel is not None
    digits = []
    with np.errstate(over="ignore"):
        for x in (line, np.random.default_rng(0).permutation(line), np.sort(line)):
            counts = [0] * _exact_sums.WORDS
            _exact_sums._add_tiles(counts, x, (0,))
            words = np.zeros(_exact_sums.WORDS, np.int64)
            by_kernel(address_of(x), 1, x.size, address_of(words))
            columns = _exact_sums.add_up(x[:70_000].reshape(-1, 7), (0, 1))[:, 0, 0]
            rest = _exact_sums.add_up(x[70_000:], (0,))[:, 0]
            for one in (np.array(counts), words, columns + rest):
                assert _exact_sums.round_sums(one[:, None], np.dtype(np.float64))[0] == expected
                digits.append(_exact_sums._carry(one[: _exact_sums.DIGITS, None]))
    assert all((one == digits[0]).all() for one in digits)  # exact, and not only as rounded


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


def test_a_sum_is_one_exchange_of_760_bytes_from_each() -> None:
    def program() -> None:
        x = da.ones((40, 3))
        with da.CommLog() as log:
            assert float(x.sum(reproducible=True)) == 120
        assert (log.count(), log.bytes("all_gather")) == (1, 2 * 760)
        with da.CommLog() as log, da.communication("raise"):
            x.sum(axis=1, reproducible=True)
        assert log.count() == 0

    simulate(3, program)


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
    square = deviation.real**2 + deviation.imag**2
    variance = (total(square) / square.dtype.type(count)).astype(square.dtype)

    def program() -> None:
        y = case.build()
        same_bits(y.mean(axis, reproducible=True), mean)
        same_bits(y.var(axis, reproducible=True), variance)
        same_bits(y.std(axis, reproducible=True), np.sqrt(variance))

    on_ranks(program)
