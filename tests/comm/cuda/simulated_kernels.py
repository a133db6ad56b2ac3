"""Kernels for GPUs against NumPy; `test_kernels` runs this where Numba simulates a GPU.

The simulator has a thread for every thread of a block, so that arrays here are tiny.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distarray.comm import _block_reduction
from distarray.comm._block_reduction import reduce_boxes, reduce_into
from distarray.comm._packing import copy_box, copy_boxes
from distarray.comm._reductions import BFLOAT16, narrow_bfloat16
from distarray.comm.cuda import _boxes, _kernels, _launch
from distarray.comm.cuda._boxes import launch_copies, launch_reductions
from tests.comm.strided_arrays import views

DTYPES = ("i1", "i2", "f4", "f8", "c16", "S3")
LONGEST = {0: 1, 1: 50, 2: 12, 3: 6, 4: 4, 5: 3}
pytestmark = pytest.mark.usefixtures("for_small_arrays")


@pytest.fixture(scope="module")
def for_small_arrays() -> Iterator[None]:
    assert _launch.is_simulated()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    simulator = importlib.import_module("numba.cuda.simulator.kernelapi")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator.FakeCUDAShared, "array", shared_array)
        yield
    sys.setswitchinterval(interval)


def shared_array(block: Any, shape: int, dtype: str) -> np.ndarray:
    """Return a block's array for the line that asks, one for all threads.

    Numba's own looks it up and stores it in two steps, between which another thread does the same.
    """
    frame = sys._getframe(1)
    place = frame.f_code.co_filename, frame.f_lineno
    found: np.ndarray = block._allocations.setdefault(place, np.empty(shape, dtype))
    return found


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    ndim = draw(st.integers(0, 5))
    least = draw(st.sampled_from((0, 1, 2)))
    return tuple(draw(st.integers(least, LONGEST[ndim])) for _ in range(ndim))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the bytes that hold a destination, it, a source, and what is to be in the bytes."""
    shape, dtype = draw(shapes()), np.dtype(draw(st.sampled_from(DTYPES)))
    bytes_from, src = draw(views(shape, dtype))
    bytes_to, dst = draw(views(shape, dtype))
    bytes_from[:] = np.random.default_rng(len(shape)).integers(1, 256, bytes_from.size)
    expected = bytes_to.copy()
    if dst.size:
        offset = dst.__array_interface__["data"][0] - bytes_to.__array_interface__["data"][0]
        np.ndarray(shape, dtype, expected, offset, dst.strides)[...] = src
    return bytes_to, dst, src, expected


@settings(max_examples=40)
@given(data=st.data())
def test_copies_of_many_boxes_move_what_numpy_moves(data: st.DataObject) -> None:
    cases = data.draw(st.lists(pairs(), min_size=2, max_size=3))
    filled = [dst for _, dst, _, _ in cases if dst.size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_boxes, "_MOST_ITEMS", data.draw(st.sampled_from((5, 1 << 30))))
        _launch._tables.clear()
        done = launch_copies([(dst, src) for _, dst, src, _ in cases])
    assert done or len(filled) == 1
    for found, _, _, expected in cases if done else ():
        np.testing.assert_array_equal(found, expected)


def is_transposed(dst: np.ndarray, src: np.ndarray, word: int) -> bool:
    [record] = _boxes._copy_records(_boxes._runs(dst, src), word, 0)
    return bool(record[2])


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("sizes", [(9, 11), (2, 40), (40, 33), (3, 70)])
def test_transposed_boxes_go_through_tiles(sizes: tuple[int, int], dtype: str) -> None:
    rows, columns = sizes
    src = np.arange(2 * rows * columns).astype(dtype).reshape(2, rows, columns)
    dst = np.zeros((2, 2, columns, rows), dtype)[1]
    assert is_transposed(dst, src.swapaxes(1, 2), dst.itemsize)
    assert launch_copies([(dst, src.swapaxes(1, 2))])
    np.testing.assert_array_equal(dst, src.swapaxes(1, 2))


@pytest.mark.parametrize("ndim", [2, 3, 4, 5])
def test_boxes_of_any_number_of_axes_are_copied_and_reduced(ndim: int) -> None:
    shape = (5, 4, 3, 4, 3)[:ndim]
    part = tuple(slice(n - 1) for n in shape)
    host = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    copies = [np.zeros(shape, "f4") for _ in range(2)]
    total, expected = np.zeros(shape, "f4"), np.zeros(shape, "f4")
    expected[part] = host[part]
    assert launch_copies([(copy[part], host[part]) for copy in copies])
    for copy in copies:
        np.testing.assert_array_equal(copy, expected)
    assert launch_reductions([(total[part], [host[part]] * 3)], "f4", "sum", 1)
    np.testing.assert_array_equal(total, 3 * expected)


def test_bfloat16_takes_the_nearest_and_the_even_of_two() -> None:
    sources = [
        np.array([0x3F80, 0x3F80, 0x3F81, 0x3F81], "u2"),
        np.array([0x3B80, 0x3B81] * 2, "u2"),
    ]
    total = np.zeros(4, "u2")
    assert launch_reductions([(total, sources)], "bf16", "sum", 1)
    assert total.tolist() == [0x3F80, 0x3F81, 0x3F82, 0x3F82]  # 1 + 2**-8 is halfway


def test_words_are_as_wide_as_the_rows_of_all_boxes() -> None:
    pairs = [(np.zeros((), "i2"), np.ones((), "i2")), (np.zeros(2, "i1"), np.ones(2, "i1"))]
    assert launch_copies(pairs)
    assert all((dst == 1).all() for dst, _ in pairs)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
@pytest.mark.parametrize(
    ("begin", "stop", "offset"), [(0, 32, 0), (3, 130, 1), (5, 64, 16), (1, 99, 7)]
)
def test_long_rows_begin_and_end_anywhere(
    begin: int, stop: int, offset: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = []
    launch = _boxes.launch
    monkeypatch.setattr(_boxes, "launch", lambda *a: rows.append(a[0]) or launch(*a))
    src = np.random.default_rng(1).integers(0, 256, (2, 3, 131), np.uint8).astype(dtype)
    whole = np.zeros((2, 4, 160), dtype)
    part = np.s_[:, :3, offset : offset + stop - begin]
    expected = whole.copy()
    expected[part] = src[:, :, begin:stop]
    assert launch_copies([(whole[part], src[:, :, begin:stop])] * 2)
    np.testing.assert_array_equal(whole, expected)
    assert rows == [_kernels.copy_rows]


def test_box_that_comes_alone_and_is_not_transposed_is_left_to_cupy() -> None:
    src, dst = np.arange(20.0).reshape(4, 5), np.zeros((4, 3))
    assert not launch_copies([(dst, src[:, :3])])
    assert launch_copies([(dst, src[:, :3]), (src[:0], src[:0]), (np.zeros(2), np.ones(2))])
    np.testing.assert_array_equal(dst, src[:, :3])


def test_box_of_long_rows_of_small_items_is_not_left_to_cupy() -> None:
    src, dst = np.arange(160, dtype="f4").reshape(4, 40), np.zeros((4, 33), "f4")
    assert launch_copies([(dst, src[:, 5:38])])
    np.testing.assert_array_equal(dst, src[:, 5:38])
    assert not launch_copies([(np.zeros((4, 40), "f4"), src)])


def test_boxes_are_left_to_cupy_where_they_would_become_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_boxes, "_MOST_BOXES", 7)
    src = np.arange(5.0**5).reshape((5,) * 5)[::2, ::2, ::2, ::2, ::2]
    assert not launch_copies([(np.zeros(src.shape), src)] * 2)
    assert not launch_reductions([(np.zeros(src.shape), [src] * 3)], "f8", "sum", 1)


# --- reductions ----------------------------------------------------------------------------------

KINDS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "bf16")
ARITHMETIC = ("sum", "avg", "prod", "min", "max")
BITWISE = ("band", "bor", "bxor")
SPECIAL = [0.0, -0.0, 1.5, -2.25, 1e-7, 3e38, -1e38, np.inf, -np.inf, np.nan, 6e4, 1e-45, 0.1, 3.0]


def ops_of(kind: str) -> tuple[str, ...]:
    if kind == "?":
        return (*ARITHMETIC, "any", "all")
    return ARITHMETIC + (BITWISE if kind[0] in "iu" else ())


def values(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "?":
        return rng.random(shape) < 0.5
    dtype = np.dtype("u2" if kind == "bf16" else kind)
    if kind[0] in "iu":
        return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    with np.errstate(all="ignore"):
        if kind == "bf16":
            return (rng.choice(SPECIAL, shape).astype("f4").view("u4") >> 16).astype("u2")
        if kind[0] == "c":
            parts = rng.choice(SPECIAL, (*shape, 2)).astype(f"f{dtype.itemsize // 2}")
            return parts.view(dtype)[..., 0]
        return rng.choice(SPECIAL, shape).astype(dtype)


def widened(kind: str, array: np.ndarray) -> np.ndarray:
    if kind == "bf16":
        return (array.astype("u4") << 16).view("f4")
    return array.astype("f4") if kind == "f2" else array


def expected_of(kind: str, op: str, sources: list[np.ndarray]) -> np.ndarray:
    """Reduce by plain comparisons and operations of NumPy, one rounding at a time."""
    shape = sources[0].shape
    sources = [source.reshape(-1) for source in sources]
    total: Any = widened(kind, sources[0])
    if op == "avg" and kind[0] in "iu?":
        total = total.astype("f8")
    for source in sources[1:]:
        total = combined(kind, op, total, widened(kind, source))
    if op == "avg":
        count = total.real.dtype.type(len(sources))
        if total.dtype.kind == "c":
            total = total.copy()
            total.real, total.imag = total.real / count, total.imag / count
        else:
            total = total / count
    if kind == "bf16":
        total = narrow_bfloat16(total)
    return (total.astype("f2") if kind == "f2" else total).reshape(shape)


def combined(kind: str, op: str, a: np.ndarray, b: np.ndarray) -> Any:
    if kind == "?" and op != "avg":
        return a | b if op in ("sum", "max", "any") else a & b
    if op in ("sum", "avg"):
        return a + b
    if op in BITWISE:
        return {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}[op](a, b)
    if kind[0] == "c":
        if op == "prod":
            return a * b
        return np.minimum(a, b) if op == "min" else np.maximum(a, b)
    if op == "prod":
        return a * b
    return np.where((a < b if op == "min" else a > b) | (a != a), a, b)


def bits(kind: str, array: np.ndarray) -> np.ndarray:
    """Return what must be equal: all bits, but for those of a NaN."""
    parts = np.ascontiguousarray(widened(kind, array.reshape(-1)))
    if parts.dtype.kind == "c":
        parts = parts.view(parts.real.dtype)
    if parts.dtype.kind != "f":
        return parts
    return np.where(np.isnan(parts), np.nan, parts).view(f"u{parts.itemsize}")


def typed(kind: str, boxes: list[Any]) -> list[Any]:
    """Return arrays whose dtype says what they hold."""
    if kind != "bf16":
        return boxes
    return [(dst.view(BFLOAT16), [one.view(BFLOAT16) for one in sources]) for dst, sources in boxes]


def left_to_cupy(kind: str, op: str, boxes: list[Any]) -> bool:
    """Tell whether CuPy reduces them by one call, or these are products of complex numbers."""
    filled = [sources for dst, sources in boxes if dst.size]
    is_alone = len(filled) == 1 and len(filled[0]) <= 2
    return (kind[0] == "c" and op in ("prod", "min", "max")) or (
        is_alone and op != "avg" and kind not in ("f2", "bf16")
    )


@settings(max_examples=100)
@given(data=st.data())
def test_reductions_give_the_bits_of_numpy(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    op = data.draw(st.sampled_from(ops_of(kind)))
    dtype = np.dtype("u2" if kind == "bf16" else kind)
    result = np.dtype("f8") if op == "avg" and kind[0] in "iu?" else dtype
    boxes, held, expected = [], [], []
    with np.errstate(all="ignore"):
        for _ in range(data.draw(st.integers(1, 2))):
            shape = data.draw(shapes())
            sources = []
            for seed in range(data.draw(st.integers(1, 4))):
                _, source = data.draw(views(shape, dtype))
                source[...] = values(kind, shape, seed)
                sources.append(source)
            expected.append(expected_of(kind, op, sources))
            around, dst = data.draw(views(shape, result))
            held.append(around)
            boxes.append((dst, sources))
    most = data.draw(st.sampled_from((5, 1 << 30)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_boxes, "_MOST_ITEMS", most)
        _launch._tables.clear()
        done = _block_reduction._by_device_kernel(typed(kind, boxes), op)
    assert done or left_to_cupy(kind, op, boxes)
    for (dst, _), around, wanted in zip(boxes, held, expected, strict=True) if done else ():
        np.testing.assert_array_equal(bits(kind, dst), bits(kind, wanted))
        dst[...] = np.zeros((), result)
        assert not around.any()


# --- through the functions that the engine calls, on the stand-in for CuPy ------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count launches by the functions of this package."""
    seen: list[Any] = []
    launch = _boxes.launch

    def counted(kernel: Any, *arguments: Any) -> bool:
        seen.append(kernel)
        return bool(launch(kernel, *arguments))

    monkeypatch.setattr(_boxes, "launch", counted)
    return seen


def test_all_boxes_of_a_pack_are_one_launch(launches: list[Any]) -> None:
    cupy = importlib.import_module("cupy")
    host = np.arange(60.0).reshape(6, 10)
    boxes = [((0, 2), (1, 5)), ((2, 6), (0, 3)), ((3, 4), (5, 5)), ((1, 6), (7, 10))]
    volume = sum((b - a) * (d - c) for (a, b), (c, d) in boxes)
    expected = np.concatenate([host[a:b, c:d].ravel() for (a, b), (c, d) in boxes])
    block, packed = cupy.asarray(host), cupy.zeros(volume)
    pairs, stop = [], 0
    for (a, b), (c, d) in boxes:
        start, stop = stop, stop + (b - a) * (d - c)
        pairs.append((packed[start:stop].reshape(b - a, d - c), block[a:b, c:d]))
    copy_boxes(pairs)
    np.testing.assert_array_equal(packed.get(), expected)
    assert len(launches) == 1


def test_copies_and_reductions_of_blocks_on_a_device_are_launches(launches: list[Any]) -> None:
    cupy = importlib.import_module("cupy")
    host = np.arange(60.0).reshape(6, 10)
    block, other = cupy.asarray(host), cupy.asarray(host + 1)
    out = cupy.zeros((10, 6))
    copy_box(out, block.T)
    np.testing.assert_array_equal(out.get(), host.T)
    wide = cupy.zeros((6, 20))
    copy_boxes([(wide[:, :10], block), (wide[:, 10:], other)])
    np.testing.assert_array_equal(wide.get(), np.hstack((host, host + 1)))
    total = cupy.zeros((6, 10))
    reduce_into(total, [block, other, block], "sum")
    np.testing.assert_array_equal(total.get(), 3 * host + 1)
    assert len(launches) == 3


@pytest.mark.parametrize("kind", ["f4", "f2", "bf16"])
def test_boxes_of_any_number_of_sources_are_reduced_by_one_launch(
    launches: list[Any], kind: str
) -> None:
    shapes, counts = [(6, 10), (8,), (4, 4), (0, 4)], [2, 3, 1, 2]
    cupy = importlib.import_module("cupy")
    boxes, expected = [], []
    for shape, count in zip(shapes, counts, strict=True):
        source = values(kind, shape, count)
        source = source.view(BFLOAT16) if kind == "bf16" else source
        boxes.append((cupy.zeros(shape, source.dtype), [cupy.asarray(source)] * count))
        expected.append(np.zeros_like(source))
        reduce_into(expected[-1], [source] * count, "sum")
    reduce_boxes(boxes, "sum")
    for (dst, _), wanted in zip(boxes, expected, strict=True):
        assert dst.get().tobytes() == wanted.tobytes()
    assert len(launches) == 1


def test_a_table_is_made_once_for_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make_table = _boxes.make_table

    def counted(records: Any) -> Any:
        table = make_table(records)
        made.append(table[1][0])
        return table

    monkeypatch.setattr(_boxes, "make_table", counted)
    src, dst = np.arange(20.0).reshape(4, 5), np.zeros((5, 4))
    for _ in range(3):
        dst[...] = 0
        assert launch_copies([(dst, src.T)])
        np.testing.assert_array_equal(dst, src.T)
    assert made == [1]


def test_nothing_is_copied_between_host_and_device() -> None:
    cupy = importlib.import_module("cupy")
    with pytest.raises((TypeError, ValueError)):
        copy_box(cupy.zeros((30, 40)), np.ones((40, 30)).T)
