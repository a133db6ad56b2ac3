"""Fourier transforms agree with NumPy in any layout, with one exchange for an axis that is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ImplicitCommunicationError,
    ShapeError,
)
from distarray.layout import Shard
from tests.array.strategies import agrees, cases, on_ranks

ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")
REAL = {"rfft", "ihfft", "rfftn", "rfft2"}
NUMBERS = (np.float64, np.float32, np.int32, np.bool_, np.complex128, np.complex64)


def tolerance(expected: np.ndarray) -> dict[str, float]:
    """Return what rounding in the dtype of a result may make of small integers."""
    error = 100 * float(np.finfo(expected.dtype).eps)
    return {"rtol": error, "atol": error}


def numpys(function: Any, value: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
    """Return what NumPy makes of an array; of no items zeros, where it reads memory of others."""
    if value.size:
        return function(value, *args, **options)
    with np.errstate(all="ignore"):  # of whatever numbers lie there
        expected = function(value, *args, **options)
    expected[...] = 0
    return expected


def dtypes(name: str) -> tuple[Any, ...]:
    return NUMBERS[:4] if name in REAL else NUMBERS


@pytest.mark.parametrize("name", ONE)
@settings(max_examples=15)
@given(data=st.data())
def test_transform_of_one_axis_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    x = data.draw(cases(dtypes(name), ("max",)))
    assume(x.shape)
    axis = data.draw(st.integers(-len(x.shape), len(x.shape) - 1))
    n = data.draw(st.sampled_from((None, None, 1, 4, 9)))
    norm = data.draw(st.sampled_from((None, "ortho", "forward", "backward")))
    theirs, ours = getattr(np.fft, name), getattr(da.fft, name)
    try:
        expected = numpys(theirs, x.value, n, axis, norm)
    except ValueError:  # of no items

        def program() -> None:
            with pytest.raises(ArgumentError):
                ours(x.build(), n, axis, norm)

    else:

        def program() -> None:
            agrees(ours(x.build(), n=n, axis=axis, norm=norm), expected, **tolerance(expected))
            agrees(theirs(x.build(), n, axis=axis, norm=norm), expected, **tolerance(expected))

    on_ranks(program)


@pytest.mark.parametrize("name", SEVERAL)
@settings(max_examples=15)
@given(data=st.data())
def test_transform_of_several_axes_agrees_with_numpy(name: str, data: st.DataObject) -> None:
    x = data.draw(cases(dtypes(name), ("max",)))
    ndim = len(x.shape)
    assume(ndim > ("2" in name))
    options: dict[str, Any] = {}
    if "2" not in name and data.draw(st.booleans()):
        axes = data.draw(st.permutations(range(ndim)))[: data.draw(st.integers(1, ndim))]
        options["axes"] = tuple(axes)
    count = 2 if "2" in name else len(options.get("axes", range(ndim)))
    if data.draw(st.booleans()):
        options["s"] = data.draw(
            st.lists(st.sampled_from((-1, 1, 3, 6)), min_size=count, max_size=count)
        )
        options.setdefault("axes", tuple(range(-count, 0)))
    theirs, ours = getattr(np.fft, name), getattr(da.fft, name)
    try:
        expected = numpys(theirs, x.value, **options)
    except ValueError:

        def program() -> None:
            with pytest.raises(ArgumentError):
                ours(x.build(), **options)

    else:

        def program() -> None:
            agrees(ours(x.build(), **options), expected, **tolerance(expected))
            agrees(theirs(x.build(), **options), expected, **tolerance(expected))

    on_ranks(program)


@pytest.mark.parametrize("name", ["irfft", "hfft"])
def test_of_no_items_the_memory_that_numpy_reads_does_not_matter(name: str) -> None:
    of_others = np.full((5, 8), np.inf + 0j)
    theirs, ours = getattr(np.fft, name), getattr(da.fft, name)
    expected = numpys(theirs, of_others[:, :0], 4)
    np.testing.assert_array_equal(expected, np.zeros((5, 4)))
    on_ranks(lambda: agrees(ours(da.asarray(of_others)[:, :0], 4), expected))


@settings(max_examples=15)
@given(
    n=st.integers(1, 9),
    d=st.sampled_from((1.0, 0.1, 3)),
    x=cases((np.int32,), ("sum",)),
)
def test_frequencies_and_shifts_are_numpys_bit_for_bit(n: int, d: float, x: Any) -> None:
    def program() -> None:
        agrees(da.fft.fftfreq(n, d), np.fft.fftfreq(n, d))
        agrees(da.fft.rfftfreq(n, d=d), np.fft.rfftfreq(n, d))
        assert da.fft.fftfreq(n, dtype=np.float32).dtype == np.float32
        array = x.build()
        if x.shape:
            agrees(da.fft.fftshift(array), np.fft.fftshift(x.value))
            agrees(np.fft.ifftshift(array), np.fft.ifftshift(x.value))
            agrees(da.fft.ifftshift(array, axes=-1), np.fft.ifftshift(x.value, -1))
            agrees(da.fft.fftshift(array, (0, -1, 0)), np.fft.fftshift(x.value, (0, -1, 0)))

    on_ranks(program)


def test_an_axis_that_is_cut_takes_one_exchange_and_others_none() -> None:
    value = np.random.default_rng(0).normal(size=(8, 8, 4))
    expected = np.fft.fftn(value)

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((4,)))
        with da.communication("raise"), CommLog() as log:
            y = da.fft.fft2(x)
        assert log.count() == 0
        assert y.placements == (Shard(0),)
        with CommLog() as log:
            y = da.fft.fftn(x)
        assert y.placements == (Shard(1),)
        assert 0 < log.bytes() <= y.to_local().nbytes  # after the others are done: complex items
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError, match="fft"):
            da.fft.fftn(x)
        out = da.empty((8, 8, 4), dtype=np.complex128, mesh=x.mesh)
        assert da.fft.fftn(x, out=out) is out
        agrees(out, expected, **tolerance(expected))
        assert da.fft.ifft(y, axis=1, out=out) is out

    on_ranks(program)


def test_an_axis_named_again_keeps_its_length() -> None:
    value = np.arange(48.0).reshape(8, 6)

    def program() -> None:
        x = da.asarray(value)
        agrees(da.fft.rfftn(x, axes=(0, 0)), np.fft.rfftn(value, axes=(0, 0)), atol=1e-10)

    on_ranks(program)


@pytest.mark.filterwarnings("ignore:.*`s`:DeprecationWarning")  # NumPy's, which ends None in it
def test_none_among_lengths_is_the_default() -> None:
    value = np.arange(48.0).reshape(8, 6)

    def program() -> None:
        x = da.asarray(value)
        for name in ("fftn", "ifftn", "rfftn", "irfftn", "irfft2"):
            for s in (3, None), (None, 4), (None, None):
                for axes in (0, 1), (1, 0):
                    expected = getattr(np.fft, name)(value, s, axes)
                    agrees(getattr(da.fft, name)(x, s, axes), expected, atol=1e-10)

    on_ranks(program)


def test_two_mesh_axes_go_on_cutting_different_axes() -> None:
    value = np.random.default_rng(0).normal(size=(8, 8, 4))
    expected = np.fft.fftn(value)

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.asarray(value, mesh=mesh, placements=[Shard(0), Shard(1)])
        with CommLog() as log:
            y = da.fft.fftn(x)
        assert y.placements == (Shard(1), Shard(2))
        assert 0 < log.bytes() <= y.to_local().nbytes  # half of a block, twice
        agrees(y, expected, **tolerance(expected))

    on_ranks(program)


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    def program() -> None:
        x = da.ones((4, 4))
        with CommLog() as log:
            for error, call in (
                (ArgumentError, lambda: da.fft.fft(x, 0)),
                (ArgumentError, lambda: da.fft.fft(x, norm="no")),
                (ArgumentError, lambda: da.fft.irfft(x[:, :1])),
                (ArgumentError, lambda: da.fft.fft(x, workers=0)),
                (ArgumentTypeError, lambda: da.fft.fft(x, workers=1.5)),
                (ArgumentError, lambda: da.fft.fftn(x, norm="no")),
                (ArgumentError, lambda: da.fft.fftn(x, s=(3,), axes=(0, 1))),
                (ArgumentError, lambda: da.fft.rfftn(x, axes=())),
                (ArgumentError, lambda: da.fft.fftfreq(0)),
                (ArgumentTypeError, lambda: da.fft.fft(x, "4")),
                (ArgumentTypeError, lambda: da.fft.fft(np.ones(3))),
                (AxisError, lambda: da.fft.fft(x, axis=2)),
                (AxisError, lambda: da.fft.fftn(x, axes=(0, 5))),
                (ShapeError, lambda: da.fft.fft(x, out=da.empty((2, 4, 4), dtype=complex))),
                (ShapeError, lambda: da.fft.fftn(x, axes=(), out=da.empty((1, 4, 4)))),
                (DTypeError, lambda: da.fft.rfftn(x, out=da.empty((4, 3)))),
                (DTypeError, lambda: da.fft.rfft(x + 1j)),
                (DTypeError, lambda: da.fft.fft(da.asarray(["a"]))),
            ):
                with pytest.raises(error):
                    call()
            with pytest.raises(DTypeError, match=r"rfft got complex128.*: use fft .*x\.real"):
                da.fft.rfft(x + 1j)
            with pytest.raises(ArgumentError, match=r"norm=a DistArray of shape \(4, 4\)"):
                da.fft.fft(x, norm=x)
        assert log.count() == 0

    on_ranks(program)
