"""Lines that are cut are transformed by all processes together, and nothing is gathered."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import testing
from distarray.comm import CommLog
from distarray.fft import _blocks, _chirp, _plan
from distarray.fft._roots import roots, squares
from distarray.fft._stages import Task
from distarray.layout import Replicate, Shard
from tests import peak_memory
from tests.array.strategies import on_ranks
from tests.on_device import host

NAMES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
DTYPES = (np.float64, np.complex128, np.float32, np.complex64, np.int16)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_small() -> Iterator[None]:
    """Let short lines be transformed as long ones are, in several tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_plan, "GATHERED_BYTES", 0)
        patch.setattr(_chirp, "PASS_BYTES", 1 << 9)
        patch.setattr(_blocks, "TILE_BYTES", 1 << 10)
        patch.setattr(_blocks, "DEVICE_TILE_BYTES", 1 << 10)
        testing.reset()
        yield
    testing.reset()


def is_close(result: Any, expected: np.ndarray, n: int, ulps: float = 4.0) -> bool:
    """Tell whether an error is few ulps times log2(n), relative to the norm."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    eps = np.finfo(expected.dtype).eps
    error = np.linalg.norm(host(result.full_array()) - expected)
    return bool(error <= ulps * eps * max(log2(n), 1) * np.linalg.norm(expected))


def items(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return random items, with imaginary parts where the dtype has them."""
    rng = np.random.default_rng(seed)
    real, imaginary = rng.normal(size=(2, *shape)) * 100
    return (real + 1j * imaginary if np.dtype(dtype).kind == "c" else real).astype(dtype)


def exact(name: str, value: np.ndarray, *args: Any) -> np.ndarray:
    """Return NumPy's result of double precision in the dtype that it has of `value`."""
    wide = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    theirs = getattr(np.fft, name)
    return theirs(wide, *args).astype(theirs(value[..., :2]).dtype)


@settings(max_examples=25)
@given(data=st.data())
def test_cut_line_agrees_with_numpy(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    size = data.draw(st.integers(5, 300))
    n = data.draw(st.sampled_from((None, None, 5, 16, 101, 210, 256)))
    norm = data.draw(st.sampled_from((None, "ortho", "forward")))
    dtype = data.draw(st.sampled_from(DTYPES))
    if name in ("rfft", "ihfft") and np.dtype(dtype).kind == "c":
        dtype = np.float64
    ranks = data.draw(st.integers(2, 4))
    lengths = None
    if data.draw(st.booleans()):  # boundaries of any kind, also of empty blocks
        cuts = sorted(data.draw(st.lists(st.integers(0, size), min_size=3, max_size=3)))
        lengths = (0, *cuts[: ranks - 1], size)
    value = items(size, (size,), dtype)
    expected = exact(name, value, n, -1, norm)
    length = n or (2 * (size - 1) if name in ("irfft", "hfft") else size)

    def program() -> None:
        mesh = da.DeviceMesh(list(range(ranks)))
        layout = da.Layout(mesh, [Shard(0)], (size,), boundaries=lengths and {0: lengths})
        x = da.asarray(value, mesh=mesh).redistribute(boundaries=layout.boundaries or None)
        result = getattr(da.fft, name)(x, n, norm=norm)
        assert result.placements == (Shard(0),)
        if result.shape == x.shape:
            assert result.layout is x.layout
        if mesh.coordinate is not None:
            assert is_close(result, expected, length, 8.0)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize("n", [13, 211])
@pytest.mark.parametrize("norm", ["ortho", "forward"])
def test_cut_line_is_scaled_in_its_own_precision(norm: str, n: int) -> None:
    """Also where it takes six passes, and a sixth of it is added up in each."""
    value = items(2, (n,), np.clongdouble)
    expected = np.fft.fft(value, norm=norm)

    def program() -> None:
        assert is_close(da.fft.fft(da.asarray(value), norm=norm), expected, n, 8.0)

    on_ranks(program)


@pytest.mark.parametrize("n", [120, 127])
def test_cut_lines_of_batches_agree_with_numpy(n: int) -> None:
    value = items(n, (2, n, 2), np.complex128)

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        for placements in (
            [Shard(1), Shard(1)],
            [Shard(0), Shard(1)],
            [Shard(1), Replicate()],
            [Shard(2), Shard(1)],
        ):
            x = da.asarray(value, mesh=mesh, placements=placements)
            before = host(x.to_local()).copy()
            line = _plan.make_line(x.layout, 1, _task(n))
            block = line.bind(False)(x.to_local())
            result = x._new(block, line.after)
            assert result.layout is x.layout
            assert is_close(result, np.fft.fft(value, axis=1), n)
            assert np.array_equal(host(x.to_local()), before)

    on_ranks(program)


@pytest.mark.parametrize("n", [120, 127])
def test_real_lines_of_batches_that_are_cut_agree_with_numpy(n: int) -> None:
    value = items(n, (2, n // 2 + 1), np.complex128)

    def program() -> None:
        x = da.asarray(value, placements=[Shard(1)])
        result = da.fft.irfft(x, n)
        assert result.layout.sharding_axes(1)
        assert is_close(result, np.fft.irfft(value, n), n)

    on_ranks(program)


def _task(n: int) -> Any:
    return Task(((1, n),), True, "", None, None, np.dtype(np.complex128))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fft", (16, 16, 16)),
        ("rfft", (8, 8, 8)),
        ("irfft", (8, 8, 8)),
    ],
)
def test_cut_line_takes_three_exchanges_of_a_block(name: str, parts: tuple[int, ...]) -> None:
    """Each process gets three quarters of its block from others, and of real lines of half."""
    n = 1 << 12
    size = n // 2 + 1 if name == "irfft" else n
    value = items(1, (size,), np.float64 if name == "rfft" else np.complex128)

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((4,)))
        with CommLog() as log:
            result = getattr(da.fft, name)(x)
        assert log.count() == 3
        theory = sum(part * n // 4 * 3 // 4 for part in parts)
        slack = 16 * 128  # of the middle row of 64, in two exchanges: one more than half of them
        assert abs(log.bytes() - theory) <= (slack if name != "fft" else 0)
        assert is_close(result, getattr(np.fft, name)(value), n)

    on_ranks(program)


@pytest.mark.parametrize(("name", "passes"), [("fft", 2), ("fft", 6), ("rfft", 3), ("irfft", 9)])
def test_pass_of_a_line_of_prime_length_takes_five_exchanges(
    name: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of all passes go back in one; of real lines half of the items do, or arrive.

    Items arrive in two halves; of what a pass has two exchanges, and of its chirp one, are made.
    """
    monkeypatch.setattr(_chirp, "PASS_BYTES", 1 << 20 if passes < 4 else 1)
    testing.reset()
    n = 2053
    size = n // 2 + 1 if name == "irfft" else n
    value = items(1, (size,), np.float64 if name == "rfft" else np.complex128)
    kwargs = {"n": n} if name == "irfft" else {}

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((4,)), placements=[Shard(0)])
        with CommLog() as log:
            result = getattr(da.fft, name)(x, **kwargs)
        assert log.count() == 5 * passes + 1
        chirp = 2 if name == "fft" else 3  # blocks
        most = (passes + 1 + 3 * 1.1 * chirp) * max(x.to_local().nbytes, result.to_local().nbytes)
        assert log.bytes() <= 0.8 * most
        assert is_close(result, getattr(np.fft, name)(value, **kwargs), n)

    on_ranks(program)
    testing.reset()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_matrix_of_a_chirp_is_little_larger_than_its_line(count: int) -> None:
    for least in (1, 2, 10, 1000, 4105, 123457, 10**7 + 19, 10**12 + 39):
        rows, columns = _chirp._sizes(least, count)
        assert rows % count == 0
        assert columns % count == 0
        assert least <= rows * columns
        if least > 10**6:
            assert rows * columns < 1.01 * least
            assert max(rows, columns) < 5 * min(rows, columns)


def test_memory_beside_operand_and_result_is_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block; simulated ranks that run in turns keep what others have read for a while."""
    monkeypatch.setattr(_blocks, "TILE_BYTES", 1 << 13)
    value = items(0, (1 << 14,), np.complex128)
    assert peak_memory.scratch(da.fft.fft, value, 4) <= 3.3


@pytest.mark.parametrize("n", [101, 1009, 1024])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_items_near_the_largest_number_do_not_overflow_on_the_way(n: int, dtype: Any) -> None:
    scale = np.finfo(dtype).max / n / 2
    value = (items(0, (n,), dtype) / 100 * scale).astype(dtype)

    def program() -> None:
        x = da.asarray(value, placements=[Shard(0)])
        for name in ("fft", "ifft", "irfft", "hfft"):
            found = getattr(da.fft, name)(x) / scale
            assert is_close(found, exact(name, value / scale), n), name

    on_ranks(program)


@pytest.mark.parametrize("n", [60, 64, 105, 127, 134])
def test_imaginary_parts_of_frequencies_that_are_their_own_images_do_not_count(n: int) -> None:
    value = items(n, (n // 2 + 1,), np.complex128)
    value.imag[0] = np.nan
    if n % 2 == 0:
        value.imag[-1] = np.nan
    expected = np.fft.irfft(value, n)

    def program() -> None:
        for size in 2, 4:
            mesh = da.DeviceMesh(list(range(size)))
            result = da.fft.irfft(da.asarray(value, mesh=mesh, placements=[Shard(0)]), n)
            if mesh.coordinate is not None:
                assert is_close(result, expected, n)

    on_ranks(program)


@pytest.mark.parametrize("n", [210, 512])
@pytest.mark.parametrize("taken", [3, 40, 600])
def test_real_lines_are_cut_off_and_continued_in_tiles_of_all_axes(n: int, taken: int) -> None:
    value = items(n, (2, taken, 3), np.complex128)

    def program() -> None:
        for name, items_of in ("rfft", value.real), ("ihfft", value.real), ("hfft", value):
            x = da.asarray(items_of, placements=[Shard(1)])
            forward, real = name != "ihfft", "out" if name == "hfft" else "in"
            task = Task(((1, n),), forward, real, None, None, np.dtype(np.complex128))
            line = _plan.make_line(x.layout, 1, task)
            assert "SixSteps" in type(line).__name__
            result = x._new(line.bind(False)(x.to_local()), line.after)
            assert is_close(result, getattr(np.fft, name)(items_of, n, 1), n)

    on_ranks(program)


def test_small_line_is_gathered_in_one_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_plan, "GATHERED_BYTES", 16 * 100)
    testing.reset()

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        for n, exchanges in ((100, 1), (104, 3)):
            x = da.arange(float(n), mesh=mesh)
            with CommLog() as log:
                result = da.fft.fft(x)
            assert log.count() == exchanges
            assert result.layout is x.layout
            assert is_close(result, np.fft.fft(np.arange(float(n))), n)

    on_ranks(program)
    testing.reset()


@pytest.mark.parametrize("order", [1, 2, 3, 8, 1000, 4097])
def test_roots_are_accurate_to_an_ulp(order: int) -> None:
    index = np.arange(-order, 2 * order)
    turn = 8 * np.arctan(np.longdouble(1)) / order
    angle = turn * (index % order)
    for forward, sign in ((True, -1), (False, 1)):
        found = roots(index, order, forward, np.complex128)
        assert np.abs(found.real - np.cos(angle)).max() <= 2.0**-53
        assert np.abs(found.imag - sign * np.sin(angle)).max() <= 2.0**-53
    assert roots([order // 2], order, True, np.complex64).dtype == np.complex64


def test_squares_are_exact_modulo_large_numbers() -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 42, 200)
    for modulus in (3, 10**12 + 39, (1 << 43) - 1):
        assert squares(numbers, modulus).tolist() == [int(i) ** 2 % modulus for i in numbers]
