"""Statistics of what is not NaN agree with NumPy on random layouts, and warn or raise alike."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import ArgumentError, DTypeError
from distarray.layout import Shard
from tests.array.strategies import agrees, cases, on_ranks

DTYPES = (np.float64, np.float32, np.complex128, np.int32, np.float16)


def with_nan(data: st.DataObject, dtypes: Any = DTYPES) -> Any:
    """Draw a case with NaN and infinities among its items."""
    case = data.draw(cases(dtypes, ("sum", "max")))
    if case.values.dtype.kind in "fc":
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        case.values[rng.random(case.values.shape) < data.draw(st.sampled_from((0.2, 0.8)))] = np.nan
        if data.draw(st.booleans()):
            case.values[rng.random(case.values.shape) < 0.05] = np.inf
    return case


@settings(max_examples=30)
@given(data=st.data())
def test_variance_beside_nan_agrees_with_numpy(data: st.DataObject) -> None:
    case = with_nan(data)
    ndim = len(case.shape)
    axes = (None, *range(-ndim, ndim), tuple(range(ndim)), ())
    axis = data.draw(st.sampled_from(axes))
    name = data.draw(st.sampled_from(("nanvar", "nanstd")))
    options: dict[str, Any] = {"keepdims": data.draw(st.booleans())}
    options |= data.draw(st.sampled_from(({}, {"ddof": 1}, {"correction": 0.5})))
    value = case.value
    close = {"d": 1e-12, "f": 1e-5, "e": 4e-3, "D": 1e-12}.get(value.dtype.char, 1e-12)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        wide = value.astype(np.float32) if value.dtype.char == "e" else value
        kind = np.float16 if value.dtype.char == "e" else None
        expected = np.asarray(getattr(np, name)(wide, axis, **options))
        expected = expected if kind is None else expected.astype(kind)

        def program() -> None:
            x = case.build()
            with np.errstate(all="ignore"):
                agrees(getattr(np, name)(x, axis, **options), expected, rtol=close, atol=close)

        on_ranks(program)


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_variance_beside_nan_takes_numpys_arguments(name: str) -> None:
    value = np.arange(24.0).reshape(6, 4)
    value[::2, 1] = value[4] = np.nan
    mask = np.arange(24).reshape(6, 4) % 5 != 0
    centre = np.nanmean(value, axis=0, keepdims=True)
    function = getattr(np, name)

    def program() -> None:
        x = da.distribute_array(value)
        for options in (
            {"where": mask},
            {"mean": centre},
            {"mean": da.distribute_array(centre, placements=[da.Replicate()])},
            {"mean": centre + 1, "where": mask},
            {"dtype": np.float32},
            {"ddof": 1},
        ):
            plain = {
                key: np.asarray(one) if isinstance(one, da.DistArray) else one
                for key, one in options.items()
            }
            agrees(function(x, 0, **options), function(value, 0, **plain), rtol=1e-6, atol=0)
        out = da.zeros(4, dtype=np.float32)
        assert function(x, 0, out=out) is out
        agrees(out, function(value, 0).astype(np.float32), rtol=1e-6)
        with pytest.raises(DTypeError):
            function(x, 0, dtype=np.int64)
        with pytest.raises(DTypeError):
            function(da.asarray(["a"]))

    on_ranks(program)


def test_slices_with_too_few_items_warn() -> None:
    value = np.array([[np.nan, 1.0], [np.nan, 2.0]])
    for name in ("nanvar", "nanstd"):
        with pytest.warns(RuntimeWarning, match="Degrees of freedom"):
            results = on_ranks(
                lambda name=name: np.asarray(getattr(da, name)(da.distribute_array(value), axis=0))
            )
        with pytest.warns(RuntimeWarning):
            expected = getattr(np, name)(value, axis=0)
        for result in results:
            np.testing.assert_array_equal(result, expected)


def test_moments_of_all_blocks_are_exchanged_at_once() -> None:
    value = np.random.default_rng(1).random((40, 3))

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((4,)), [Shard(0)])
        for call, count, nbytes in (
            (lambda: da.nanvar(x, axis=0), 1, 3 * 3 * 4 * 8),
            (lambda: da.nanstd(x, axis=1), 0, 0),
            (lambda: da.nancumsum(x, axis=0), 1, 3 * 3 * 8),
        ):
            with da.CommLog() as log:
                call()
            assert (log.count(), log.bytes()) == (count, nbytes)

    on_ranks(program)


@settings(max_examples=30)
@given(data=st.data())
def test_places_of_extremes_beside_nan_agree_with_numpy(data: st.DataObject) -> None:
    case = with_nan(data)
    ndim = len(case.shape)
    axis = data.draw(st.sampled_from((None, *range(-ndim, ndim))))
    name = data.draw(st.sampled_from(("nanargmin", "nanargmax")))
    keepdims = data.draw(st.booleans())
    try:
        expected = getattr(np, name)(case.value, axis, keepdims=keepdims)
    except ValueError:  # all of a slice are NaN, or nothing is there
        expected = None

    def program() -> None:
        x = case.build()
        if expected is not None:
            agrees(getattr(np, name)(x, axis, keepdims=keepdims), expected)
        elif x.mesh.coordinate is not None:
            with pytest.raises(ArgumentError):
                getattr(da, name)(x, axis, keepdims=keepdims)
        agrees(np.isnan(x), np.isnan(case.value))  # all ranks are in step

    on_ranks(program)


def test_a_slice_of_one_rank_that_is_all_nan_raises_on_all() -> None:
    value = np.ones((8, 3))
    value[5] = np.nan

    def program() -> str:
        x = da.distribute_array(value)
        with pytest.raises(ArgumentError) as caught:
            da.nanargmax(x, axis=1)
        agrees(da.nanargmax(x, axis=0), np.nanargmax(value, 0))
        return str(caught.value)

    first, *others = on_ranks(program)
    assert all(message == first for message in others)


@settings(max_examples=30)
@given(data=st.data())
def test_scans_beside_nan_agree_with_numpy(data: st.DataObject) -> None:
    case = with_nan(data, (np.float64, np.complex128, np.int32, np.float16))
    ndim = len(case.shape)
    axis = data.draw(st.sampled_from((None, *range(-ndim, ndim))))
    name = data.draw(st.sampled_from(("nancumsum", "nancumprod")))
    if name == "nancumprod":  # as rounding of large products depends on their order
        with np.errstate(all="ignore"):
            case.values[...] = np.sign(case.values.real.astype(np.float64))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(case.value, axis)

    def program() -> None:
        with np.errstate(all="ignore"):
            x = case.build()
            agrees(getattr(np, name)(x, axis), expected)
            agrees(getattr(da, name)(x, axis=axis), expected)
            out = da.zeros(expected.shape, dtype=np.complex128, mesh=x.mesh)
            getattr(da, name)(x, axis, out=out)
            agrees(out, expected.astype(np.complex128))

    on_ranks(program)


@pytest.mark.parametrize("shape", [(200_003,), (401, 700)])
def test_variance_of_large_blocks_is_as_accurate_as_numpys(shape: tuple[int, ...]) -> None:
    value = np.random.default_rng(2).random(shape) + 1e6
    value.reshape(-1)[::11] = np.nan

    def program() -> None:
        for x in (da.distribute_array(value), da.distribute_array(value.T).T):
            for axis in (None, *range(len(shape))):
                agrees(da.nanvar(x, axis=axis), np.nanvar(value, axis), rtol=1e-9, atol=0)

    on_ranks(program)


@pytest.mark.parametrize("name", ["var", "std", "nanvar", "nanstd"])
def test_both_names_of_the_correction_are_the_error_that_numpy_raises(name: str) -> None:
    with pytest.raises(ValueError):
        getattr(np, name)(np.ones(3), ddof=1, correction=0)
    with pytest.raises(ArgumentError, match="pass one"):
        getattr(da, name)(da.ones(3), ddof=1, correction=0)
