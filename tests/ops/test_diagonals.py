"""Diagonals agree with NumPy for every layout, and nothing is sent for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.errors import AxisError, ShapeError
from distarray.testing import simulate
from tests.array.strategies import KIND, agrees, cases, on_ranks


@settings(max_examples=30)
@given(data=st.data(), offset=st.integers(-9, 9))
def test_diagonals_agree_with_numpy_and_send_nothing(data: st.DataObject, offset: int) -> None:
    sizes = st.sampled_from((0, 1, 2, 3, 5, 8))
    shape = tuple(data.draw(sizes) for _ in range(data.draw(st.integers(2, 3))))
    case = data.draw(cases((np.dtype("f8"),), ("sum", "max"), shape=shape))
    one, two = data.draw(st.permutations(range(len(shape))))[:2]
    expected = np.diagonal(case.value, offset, one, two)

    def program() -> None:
        x = case.build()
        with da.CommLog() as log, da.communication("raise"):
            found = da.diagonal(x, offset, one, two)
        assert not log.records
        assert found.layout.partial_axes == x.layout.partial_axes
        agrees(found, expected)
        agrees(x.trace(offset, one, two), np.trace(case.value, offset, one, two))

    on_ranks(program)


def test_of_tiles_each_process_has_what_its_tile_has() -> None:
    value = np.arange(24.0).reshape(4, 6)

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(value, mesh, [Shard(1), Shard(0)])
        y = da.diagonal(x)
        assert y.layout.shard_order == (1, 0)
        assert y.layout.boundaries == {0: (0, 2, 2, 3, 4)}
        agrees(y, np.diagonal(value))
        if KIND == "cpu":  # memory of GPUs is not protected
            assert not y.to_local().flags.writeable

    simulate(4, program)


@settings(max_examples=15)
@given(data=st.data(), k=st.integers(-4, 4))
def test_matrices_of_diagonals_send_nothing(data: st.DataObject, k: int) -> None:
    case = data.draw(cases((np.dtype("i4"),), ("sum",), shape=(data.draw(st.integers(0, 9)),)))
    expected = np.diag(case.value, k)

    def program() -> None:
        with da.CommLog() as log, da.communication("raise"):
            found = da.diag(case.build(), k)
        assert not log.records
        agrees(found, expected)

    on_ranks(program)


def test_zeros_beside_the_diagonal_are_no_maxima() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2,))
        x = da.DistArray.from_local(np.full(3, -1.0 - mesh.rank), mesh, [Partial("max")])
        agrees(da.diag(x), np.diag(np.full(3, -1.0)))
        agrees(da.diagflat(x[:2], 1), np.diagflat(np.full(2, -1.0), 1))

    simulate(2, program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.ones((2, 2), placements=[Replicate()])
        calls: list[tuple[Any, type[Exception]]] = [
            (lambda: da.diagonal(x[0]), AxisError),
            (lambda: da.diagonal(x, 0, 0, -2), AxisError),
            (lambda: da.diagonal(x, 0, 0, 2), AxisError),
            (lambda: da.diag(da.ones((2, 2, 2))), ShapeError),
        ]
        for call, error in calls:
            with pytest.raises(error):
                call()

    simulate(2, program)
