"""Fused reductions give NumPy's bits, in rank order, for every operation and data type."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distarray.comm import BFLOAT16, _block_reduction
from distarray.comm._block_reduction import pieces, reduce_into
from distarray.comm.kernels import _threads
from distarray.errors import ArgumentError
from tests import either_way

from .strided_arrays import shapes, views

OPS = {
    "b": ("sum", "avg", "min", "max", "prod", "any", "all", "band", "bor", "bxor"),
    "i": ("sum", "avg", "min", "max", "prod", "band", "bor", "bxor"),
    "f": ("sum", "avg", "min", "max", "prod"),
    "c": ("sum", "avg", "min", "max"),
}
OPS["u"] = OPS["i"]
DTYPES = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", ">f8", "bf16"]
STREAMED = ["?", "f8", "bf16"]  # each is one more kernel to compile
UFUNCS = {
    "sum": np.add,
    "avg": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
    "any": np.logical_or,
    "all": np.logical_and,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def ops_of(dtype: np.dtype, bfloat16: bool) -> tuple[str, ...]:
    return OPS["f" if bfloat16 else dtype.kind]


def result_dtype(dtype: np.dtype, op: str, bfloat16: bool) -> np.dtype:
    return np.dtype("f8") if op == "avg" and dtype.kind in "biu" and not bfloat16 else dtype


def typed(
    dst: np.ndarray, sources: list[np.ndarray], bfloat16: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return arrays whose dtype says that they hold bfloat16."""
    if not bfloat16:
        return dst, sources
    return dst.view(BFLOAT16), [source.view(BFLOAT16) for source in sources]


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16, the even one of two as near, found by looking at both."""
    values = np.asarray(values, np.float32)
    low = (values.view(np.uint32) >> 16).astype(np.uint16)
    high = (low + 1).astype(np.uint16)
    with np.errstate(all="ignore"):
        exact = values.astype(np.float64)
        below = np.abs(exact - from_bfloat16(low))
        above = from_bfloat16(high).astype(np.float64)
        # What lies beyond the largest number rounds as if the next power of two were there.
        beyond = np.copysign(2.0**128, above)
        above = np.abs(np.where(np.isinf(above), beyond, above) - exact)
        up = (above < below) | ((above == below) & (low & 1 == 1))
    return np.where(np.isfinite(values) & up, high, low)


def one_after_another(sources: list[np.ndarray], op: str, bfloat16: bool) -> np.ndarray:
    """Reduce by whole NumPy operations, in the dtype that sums are to be held in."""
    dtype = sources[0].dtype
    if bfloat16:
        held = [from_bfloat16(source) for source in sources]
    elif dtype == np.float16:
        held = [source.astype(np.float32) for source in sources]
    elif op == "avg" and dtype.kind in "biu":
        held = [source.astype(np.float64) for source in sources]
    else:
        held = [source.copy() for source in sources]
    with np.errstate(all="ignore"):
        total = held[0]
        for source in held[1:]:
            total = UFUNCS[op](total, source)
        if op == "avg" and total.dtype.kind == "c":
            total = np.array(total)
            total.real /= len(sources)
            total.imag /= len(sources)
        elif op == "avg":
            total = (total / np.asarray(len(sources), total.dtype)).astype(total.dtype)
        if bfloat16:
            return to_bfloat16(total)
        return total.astype(np.float16) if dtype == np.float16 else total


def values(generator: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return moderate numbers, or any bits at all: infinities, NaN, the largest integers."""
    if dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.kind in "fc" and generator.random() < 0.5:
        return (generator.standard_normal(shape) * 100).astype(dtype)
    count = int(np.prod(shape, dtype=int))
    return generator.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):  # older NumPy warns where it compares complex NaN
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("count", [1, 5000])
def test_floating_point_errors_are_not_told(count: int) -> None:
    largest = np.full(count, np.finfo("f8").max)
    nothing = np.full(count, np.nan)
    out = np.empty(count)
    with np.errstate(all="raise"):
        reduce_into(out, [largest, largest], "sum")
        assert np.isinf(out).all()
        reduce_into(out, [out.copy(), -out, nothing], "sum")
        assert np.isnan(out).all()
        with pytest.raises(FloatingPointError):  # which still is the caller's
            np.add(largest, largest)


@pytest.mark.parametrize("streaming", [False, True], ids=["cached", "streaming"])
@settings(max_examples=250)
@given(data=st.data())
def test_reduction_equals_numpy_operations_for_any_strides(
    streaming: bool, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(STREAMED if streaming else DTYPES))
    bfloat16 = name == "bf16"
    dtype = np.dtype("u2" if bfloat16 else name)
    op = data.draw(st.sampled_from(ops_of(dtype, bfloat16)))
    shape = data.draw(shapes(most=3))
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    sources = []
    for _ in range(data.draw(st.integers(1, 5))):
        _, view = data.draw(views(shape, dtype))
        view[...] = values(generator, dtype, shape)
        sources.append(view)
    expected = one_after_another(sources, op, bfloat16)
    _, dst = data.draw(views(shape, result_dtype(dtype, op, bfloat16)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_block_reduction, "_KERNEL_BYTES", 0)
        patch.setattr(_block_reduction, "_BYTES_PER_CALL", 0)
        patch.setattr(_block_reduction, "run_faster", either_way.by_kernel)
        reduce_into(*typed(dst, sources, bfloat16), op, total=int(streaming) << 40)
    if bfloat16:
        missing = np.isnan(from_bfloat16(expected))
        assert np.isnan(from_bfloat16(np.ascontiguousarray(dst))[missing.reshape(dst.shape)]).all()
        np.testing.assert_array_equal(dst[~missing], expected[~missing])
    else:
        assert_same(dst, expected)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_kernel_and_numpy_give_the_same_bits(name: str, count: int) -> None:
    bfloat16 = name == "bf16"
    dtype = np.dtype("u2" if bfloat16 else name)
    generator = np.random.default_rng(count)
    sources = [values(generator, dtype, (7, 1031)) for _ in range(count)]
    served = []
    for op in ops_of(dtype, bfloat16):
        shape, result = sources[0].shape, result_dtype(dtype, op, bfloat16)
        by_numpy, by_kernel = np.zeros(shape, result), np.zeros(shape, result)
        _block_reduction._by_numpy(*typed(by_numpy, sources, bfloat16), op)
        arrays = typed(by_kernel, sources, bfloat16)
        if _block_reduction._by_kernel(*arrays, op, name in STREAMED):
            served.append(op)
            if bfloat16:
                by_kernel, by_numpy = from_bfloat16(by_kernel), from_bfloat16(by_numpy)
            assert_same(by_kernel, by_numpy)
    everything = list(ops_of(dtype, bfloat16))
    assert served == ([] if name == ">f8" else ["sum", "avg"] if dtype.kind == "c" else everything)


def test_large_reduction_goes_through_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_count", 3)
    monkeypatch.setattr(_threads, "_BYTES_PER_THREAD", 1 << 16)
    sources = list(np.random.default_rng(2).random((3, 70, 1001)))
    dst = np.zeros((70, 1001))
    reduce_into(dst, sources, "sum")
    np.testing.assert_array_equal(dst, sources[0] + sources[1] + sources[2])
    _threads._forget_pool()


def test_nan_propagates_and_average_of_integers_is_float() -> None:
    nan = np.nan
    first, second = np.array([nan, 1, 2, nan]), np.array([1, nan, 3, nan])
    for op in ("min", "max"):
        dst = np.zeros(4)
        reduce_into(dst, [first, second], op)
        assert np.isnan(dst[[0, 1, 3]]).all()
        assert not np.isnan(dst[2])
    mean = np.zeros(2)
    reduce_into(mean, [np.array([1, 2]), np.array([2, 4]), np.array([4, 4])], "avg")
    np.testing.assert_array_equal(mean, [7 / 3, 10 / 3])


def test_half_precision_is_rounded_once() -> None:
    ones = np.ones(3, np.float16)
    dst = np.zeros(3, np.float16)
    reduce_into(dst, [ones * 2048, ones, ones], "sum")  # 2048 + 1 is 2048 in float16
    np.testing.assert_array_equal(dst, [2050] * 3)
    bits = np.zeros(1, np.uint16)
    terms = [np.array([bit], np.uint16) for bit in (0x4380, 0x3F80, 0x4380, 0x3FC0)]
    reduce_into(*typed(bits, terms, True), "sum")
    np.testing.assert_array_equal(from_bfloat16(bits), [516])  # 256 + 1 + 256 + 1.5 = 514.5


@pytest.mark.parametrize("op", ["sum", "max", "prod", "bxor"])
@pytest.mark.parametrize("size", [5, 50_000])
def test_a_block_may_be_reduced_into_its_own_first_source(op: str, size: int) -> None:
    generator = np.random.default_rng(size)
    first, second = generator.integers(-9, 9, (2, size))
    expected = UFUNCS[op](first, second)
    reduce_into(first, [first, second], op)
    np.testing.assert_array_equal(first, expected)


def test_reduction_refuses_what_it_is_not() -> None:
    with pytest.raises(ArgumentError, match="op='mean'"):
        reduce_into(np.zeros(2), [np.zeros(2)], "mean")
    with pytest.raises(ArgumentError, match="0 blocks"):
        reduce_into(np.zeros(2), [], "sum")


@given(shape=shapes())
@settings(max_examples=60)
def test_pieces_tile_an_array_exactly_once(shape: tuple[int, ...]) -> None:
    counts = np.zeros(shape, int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_block_reduction, "PIECE_BYTES", 200)
        for where in pieces(shape, 8):
            assert counts[where].size <= 25
            counts[where] += 1
    assert (counts == 1).all()
