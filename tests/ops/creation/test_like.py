"""Grids of coordinates agree with NumPy, and need no communication."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, ArgumentTypeError
from tests.array.strategies import agrees, cases, on_ranks


@settings(max_examples=20)
@given(data=st.data())
def test_meshgrid_agrees_with_numpy(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 3))
    mesh = data.draw(st.sampled_from(((1,), (3,), (4,), (2, 2))))
    xs = [
        data.draw(cases((np.int32, np.float32), ("max",), mesh_shape=mesh, max_dims=1))
        for _ in range(count)
    ]
    options = {
        "indexing": data.draw(st.sampled_from(("xy", "ij"))),
        "sparse": data.draw(st.booleans()),
        "copy": data.draw(st.booleans()),
    }
    expected = np.meshgrid(*(x.value for x in xs), **options)

    def program() -> None:
        arrays = [x.build() for x in xs]
        found = da.meshgrid(*arrays, **options)
        assert type(found) is tuple
        for one, wanted in zip(found, expected, strict=True):
            agrees(one, wanted)
            if options["copy"]:
                one[...] = 7
        if xs:
            for one, wanted in zip(np.meshgrid(*arrays, **options), expected, strict=True):
                agrees(one, wanted)

    on_ranks(program)


def test_meshgrid_sends_nothing() -> None:
    def program() -> None:
        with CommLog() as log:
            da.meshgrid(da.arange(8), np.arange(3))
        assert log.count() == 0
        with pytest.raises(ArgumentError, match="indexing"):
            da.meshgrid(da.arange(3), indexing="no")

    on_ranks(program)


def test_ends_of_a_range_may_be_distributed_numbers() -> None:
    value = np.array([[2.0, 5], [11, 3]])

    def program() -> None:
        grid = da.init_device_mesh((2, 2))
        x = da.distribute_array(value, grid, [da.Shard(0), da.Shard(1)])
        found = np.linspace(x.min(), x.max(), 7)
        assert found.mesh is grid
        agrees(found, np.linspace(2, 11, 7))
        agrees(np.linspace(stop=x[0, 1], start=0, num=3), np.linspace(0, 5, 3))
        agrees(
            np.linspace(0, x.max(), 5, False, dtype=int), np.linspace(0, 11, 5, False, dtype=int)
        )
        agrees(np.geomspace(1, x.max(), 4), np.geomspace(1, 11, 4))
        agrees(np.logspace(0, x[0, 0], 3, True, 2.0), np.logspace(0, 2, 3, True, 2.0))
        with pytest.raises(ArgumentTypeError, match="must be one number"):
            np.linspace(0, x, 3)

    on_ranks(program)
