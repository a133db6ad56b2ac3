"""Gradients agree with NumPy for every layout, and fetch one item a line of each neighbour."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Shard
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    DTypeError,
    ShapeError,
)
from distarray.testing import simulate
from tests.array.strategies import agrees, cases, on_ranks
from tests.on_device import host


@settings(max_examples=30)
@given(data=st.data(), i=st.integers(0, 23))
def test_gradient_agrees_with_numpy(data: st.DataObject, i: int) -> None:
    dtypes = tuple(map(np.dtype, ("f8", "f4", "c16", "i4", "u1", "f2")))
    case = data.draw(cases(dtypes, ("sum", "max")))
    ndim = len(case.shape)
    axis = None if i % 3 else data.draw(st.integers(-ndim, ndim - 1)) if ndim else None
    count = ndim if axis is None else 1
    uneven = i % 2 and ndim
    axes = range(ndim) if axis is None else [axis]
    lines = [np.cumsum(1.0 + np.arange(case.shape[a]) % 3) for a in axes]
    spacing: list[Any] = lines if uneven else [2.0] * (count * (i % 4 > 1))
    options = {"axis": axis, "edge_order": 1 + i % 2}
    expected: Any
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = np.gradient(case.value, *spacing, **options)
        except (TypeError, ValueError, IndexError) as error:
            expected = error

    def program() -> None:
        x = case.build()
        by = spacing
        if uneven and i % 4 == 3:
            by = [da.asarray(line, mesh=x.mesh) for line in spacing]
        if isinstance(expected, Exception):
            with pytest.raises((DistArrayError, TypeError)):
                da.gradient(x, *by, **options)
            return
        found = da.gradient(x, *by, **options)
        several = isinstance(expected, tuple)
        assert several == isinstance(found, tuple)
        pairs = zip(found, expected, strict=True) if several else [(found, expected)]
        for result, wanted in pairs:
            # Coordinates that happen to be even in a block are a number to NumPy.
            close = uneven or case.op == "avg"
            epsilon = np.finfo(wanted.dtype).eps
            agrees(
                result, wanted, **({"rtol": 32 * epsilon, "atol": 32 * epsilon} if close else {})
            )
            assert result.layout is x.layout.without_partial()

    on_ranks(program)


def test_gradient_fetches_one_item_a_line_of_each_neighbour() -> None:
    def program() -> int:
        mesh = da.init_device_mesh((4,))
        x = da.ones((400, 10), mesh=mesh)
        with da.CommLog() as log, da.communication("raise", min_bytes=200):
            da.gradient(x, axis=0)
        with da.CommLog() as none, da.communication("raise"):
            da.gradient(x, axis=1)
        assert not none.records
        return log.bytes()

    assert simulate(4, program) == [80, 160, 160, 80]


def test_short_blocks_fetch_what_the_ends_need() -> None:
    value = np.array([1.0, 2, 4, 8, 16])

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((4,)), [Shard(0)])
        x = x.redistribute(boundaries={0: (0, 1, 1, 4, 5)})
        agrees(da.gradient(x, edge_order=2), np.gradient(value, edge_order=2))

    simulate(4, program)


@pytest.mark.host_only
def test_dates_and_their_distances() -> None:
    value = np.array(["2020", "2021", "2024"], "M8[Y]").astype("M8[s]")

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((2,)))
        agrees(da.gradient(x), np.gradient(value))

    simulate(2, program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        for args, options, error in (
            ((1.0, 2.0, 3.0), {}, ArgumentTypeError),
            (("a",), {}, ArgumentTypeError),
            ((), {"edge_order": 3}, ArgumentError),
            ((np.arange(5), 1.0), {}, ArgumentError),
        ):
            with pytest.raises(error):
                da.gradient(x, *args, **options)
        with pytest.raises(ShapeError, match="at least 2"):
            da.gradient(x[:1])
        with pytest.raises(DTypeError):
            da.gradient(x > 0)

    simulate(2, program)


def test_a_distributed_number_is_a_distance() -> None:
    values = np.array([1.0, 2, 4, 7, 11, 16])

    def program() -> None:
        x = da.asarray(values)
        for distance in (da.asarray(3.0), (x > 3).sum(), x[2] - x[0]):
            wanted = np.gradient(values, np.asarray(distance))
            agrees(da.gradient(x, distance), wanted)
        wide = da.asarray(np.outer(values, values))
        found = da.gradient(wide, x[1], x)
        expected = np.gradient(host(wide.full_array()), 2.0, values)
        for one, wanted in zip(found, expected, strict=True):
            agrees(one, wanted)

    on_ranks(program)


@pytest.mark.host_only  # CuPy holds numbers only
@pytest.mark.parametrize(
    "spacing",
    [np.timedelta64(2, "s"), np.array([0, 1, 3], "M8[D]"), np.array([True, False, True])],
    ids=lambda one: one.dtype.name,
)
def test_distances_that_divide_no_differences_are_refused_alike(spacing: Any) -> None:
    def program() -> None:
        x = da.ones(3)  # the last process has none of it
        coordinates = da.asarray(spacing) if spacing.ndim else spacing
        with pytest.raises(DTypeError, match="gradient of float64"):
            da.gradient(x, coordinates)

    on_ranks(program)
