"""Weighted means and covariances agree with NumPy, and reduce only sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    ZeroWeightError,
)
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import agrees, on_ranks

RNG = np.random.default_rng(5)
PLACEMENTS = ([Shard(0)], [Shard(1)], [Replicate()])
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.complex128, np.float32])
def test_average_agrees_with_numpy(placements: Any, dtype: Any) -> None:
    value = RNG.integers(0, 9, (7, 10, 3)).astype(dtype)
    lines, planes = RNG.random(10), RNG.random((3, 7))

    def program() -> None:
        x = da.distribute_array(value, placements=placements)
        close = CLOSE if np.dtype(dtype).itemsize > 4 else {"rtol": 1e-6, "atol": 0.0}
        for axis, weights in (
            (None, None),
            (1, None),
            (1, lines),
            (-2, da.distribute_array(lines)),
            ((2, 0), planes),
            ((2, 0), da.distribute_array(planes)),
            ((0, -1), planes.T),
            (None, value.real + 1),
            (0, x.real + 1),
        ):
            plain = np.asarray(weights) if weights is not None else None
            for keepdims in (False, True):
                wanted, scales = np.average(value, axis, plain, True, keepdims=keepdims)
                result, found = np.average(x, axis, weights, True, keepdims=keepdims)
                agrees(result, wanted, **close)
                agrees(found, scales, **close)
                assert found.layout.shape == result.layout.shape
                again = da.average(x, axis=axis, weights=weights, keepdims=keepdims)
                agrees(again, wanted, **close)

    on_ranks(program)


@pytest.mark.filterwarnings("ignore:Mean of empty", "ignore:invalid value")
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3), (0,)])
def test_average_without_results_raises_as_numpys(shape: tuple[int, ...]) -> None:
    value = np.ones(shape)

    def program() -> None:
        x = da.asarray(value)
        for axis in (None, 0, -1, ()):
            for options in ({}, {"returned": True}, {"keepdims": True}):
                try:
                    expected = np.average(value, axis, **options)
                except ZeroDivisionError:
                    with pytest.raises(ZeroWeightError, match="no item is left"):
                        da.average(x, axis, **options)
                    continue
                found = da.average(x, axis, **options)
                if "returned" not in options:
                    expected, found = (expected,), (found,)
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(np.asarray(one), other)

    on_ranks(program)


def test_average_refuses_weights_that_do_not_fit_on_all_ranks_alike() -> None:
    def program() -> list[str]:
        x = da.distribute_array(np.arange(12.0).reshape(4, 3))
        messages = []
        for error, weights, axis in (
            (ArgumentTypeError, np.ones(3), None),
            (ShapeError, np.ones(3), 0),
            (ShapeError, np.ones((2, 3)), (0, 1)),
            (ZeroWeightError, np.zeros((4, 3)), 0),
            (ZeroWeightError, da.distribute_array(np.array([1.0, -1.0, 2.0, -2.0])), 0),
        ):
            with pytest.raises(error) as caught:
                da.average(x, axis=axis, weights=weights)
            messages.append(str(caught.value))
        with pytest.raises(ZeroDivisionError):
            np.average(x, axis=1, weights=np.zeros(3))
        return messages

    first, *others = on_ranks(program)
    assert all(messages == first for messages in others)


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex128])
def test_covariance_and_correlation_agree_with_numpy(placements: Any, dtype: Any) -> None:
    value = RNG.random((3, 12)).astype(dtype) if dtype != np.int32 else RNG.integers(0, 9, (3, 12))
    value = value + 1j * RNG.random((3, 12)) if dtype == np.complex128 else value.astype(dtype)
    more = RNG.random(12)
    often, much = np.arange(12) % 3 + 1, RNG.random(12)

    def program() -> None:
        x = da.distribute_array(value, placements=placements)
        for options in (
            {},
            {"bias": True},
            {"ddof": 2},
            {"fweights": often},
            {"aweights": much},
            {"fweights": often, "aweights": da.distribute_array(much), "ddof": 0},
            {"fweights": da.distribute_array(often), "aweights": much},
            {"dtype": np.complex64},
        ):
            plain = {
                key: np.asarray(one) if isinstance(one, da.DistArray) else one
                for key, one in options.items()
            }
            close = CLOSE if "dtype" not in options else {"rtol": 1e-4, "atol": 1e-5}
            agrees(da.cov(x, **options), np.cov(value, **plain), **close)
            agrees(np.cov(x, more, **options), np.cov(value, more, **plain), **close)
        by_column = da.distribute_array(value.T.copy())
        agrees(da.cov(by_column, rowvar=False), np.cov(value), **CLOSE)
        agrees(
            da.cov(by_column, more[:, None], False), np.cov(value.T, more[:, None], False), **CLOSE
        )
        agrees(da.cov(x[0]), np.cov(value[0]), **CLOSE)
        agrees(da.corrcoef(x), np.corrcoef(value), **CLOSE)
        agrees(np.corrcoef(by_column, rowvar=False), np.corrcoef(value), **CLOSE)
        agrees(da.corrcoef(x[0], x[1]), np.corrcoef(value[0], value[1]), **CLOSE)
        agrees(da.corrcoef(x[0]), np.corrcoef(value[0]), **CLOSE)

    on_ranks(program)


def test_covariance_of_many_observations_reduces_sums_alone() -> None:
    value = RNG.random((400, 3))

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((4,)), [Shard(0)])
        with da.CommLog() as log:
            result = da.cov(x, rowvar=False)
        assert log.bytes() <= 2 * 3 * (3 + 9) * 8
        agrees(result, np.cov(value.T), **CLOSE)

    on_ranks(program)


def test_partial_variables_are_reduced_once() -> None:
    value = RNG.random((2, 40))

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Partial()])
        with da.CommLog() as log:
            da.cov(x)
        assert log.count() == 1
        agrees(da.cov(x), np.cov(value), **CLOSE)

    on_ranks(program)


def test_covariance_refuses_bad_arguments_on_all_ranks_alike() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(12.0).reshape(3, 4))
        for error, options in (
            (ArgumentError, {"ddof": 0.5}),
            (ShapeError, {"fweights": np.ones(3)}),
            (ShapeError, {"aweights": np.ones((1, 4))}),
            (DTypeError, {"fweights": np.full(4, 0.5)}),
            (ArgumentError, {"aweights": np.array([1, 1, 1, -1])}),
            (ZeroWeightError, {"aweights": np.zeros(4)}),
            (DTypeError, {"dtype": np.int8}),
        ):
            with pytest.raises(error):
                da.cov(x, **options)
        with pytest.raises(ShapeError):
            da.cov(x[None])

    on_ranks(program)


@pytest.mark.filterwarnings("ignore:Degrees of freedom", "ignore:Mean of empty slice")
@pytest.mark.parametrize("shape", [(0, 3), (0, 0), (0, 1)], ids=str)
def test_matrix_of_no_variables_is_real_as_numpys(shape: Any) -> None:
    value = np.ones(shape, np.complex128)

    def program() -> None:
        with np.errstate(all="ignore"):
            for name in ("cov", "corrcoef"):
                agrees(getattr(da, name)(da.distribute_array(value)), getattr(np, name)(value))

    on_ranks(program)


def test_too_few_observations_warn() -> None:
    value = np.arange(12.0).reshape(3, 4)

    def program() -> None:
        with np.errstate(all="ignore"):
            da.cov(da.distribute_array(value), ddof=4)

    with pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        on_ranks(program)
