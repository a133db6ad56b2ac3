"""Grids, triangles, powers and windows are NumPy's for every layout, and nothing is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.testing import simulate
from tests.array.strategies import agrees

LAYOUTS: list[list[Any]] = [[Shard(0), Replicate()], [Shard(-1), Shard(-1)], [Partial(), Shard(0)]]
CALLS: dict[str, tuple[Any, Any]] = {
    "tri": ((5, 7), {"k": -1}),
    "tri of integers": ((6,), {"k": 2, "dtype": np.int8}),
    "tri of nothing": ((0, 3), {"k": 9}),
    "identity": ((5,), {"dtype": np.complex64}),
    "logspace": ((-2, 3, 11), {"base": 2}),
    "logspace of floats": ((0.5, 3, 7), {"endpoint": False, "dtype": np.float32}),
    "geomspace": ((1, 256, 9), {}),
    "geomspace of negative numbers": ((-1000, -1, 7), {"endpoint": False}),
    "geomspace of integers": ((3, 200, 7), {"dtype": int}),
    "geomspace of complex numbers": ((1j, 1000j, 4), {}),
    "bartlett": ((12,), {}),
    "blackman": ((13,), {}),
    "hamming": ((2,), {}),
    "hanning": ((1,), {}),
    "kaiser": ((14, 8.6), {}),
    "kaiser of nothing": ((0, 1), {}),
}


@pytest.mark.parametrize("what", CALLS)
def test_values_are_numpys(what: str) -> None:
    name = what.partition(" ")[0]
    args, options = CALLS[what]
    expected = getattr(np, name)(*args, **options)
    close = {"rtol": 1e-14, "atol": 1e-300} if expected.dtype.kind in "fc" else {}

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        agrees(getattr(da, name)(*args, **options), expected, **close)
        for placements in LAYOUTS:
            found = getattr(da, name)(*args, **options, mesh=mesh, placements=placements)
            agrees(found, expected, **close)

    simulate(4, program)


@pytest.mark.parametrize("shape", [(3, 4), (5,), 3, (), (2, 0, 3)])
def test_places_of_a_grid_are_cut_as_it_is(shape: Any) -> None:
    def program() -> None:
        mesh = da.init_device_mesh((2,))
        for placements in (None, [Replicate()], [Shard(-1)]):
            if placements == [Shard(-1)] and not np.ndim(np.empty(shape)):
                continue
            where = {"mesh": mesh, "placements": placements}
            agrees(da.indices(shape, **where) if shape != 3 else da.indices((3,), **where),
                   np.indices(shape if shape != 3 else (3,)))  # fmt: skip
            sizes = (shape,) if isinstance(shape, int) else shape
            grid = da.ones(sizes, **where)
            for found, wanted in zip(
                da.indices(sizes, np.int16, sparse=True, **where),
                np.indices(sizes, np.int16, sparse=True),
                strict=True,
            ):
                agrees(found, wanted)
                with da.CommLog() as log, da.communication("raise"):
                    assert (grid * found).layout is grid.layout
                assert not log.records

    simulate(2, program)


def test_functions_get_the_places_of_all_items() -> None:
    def program() -> None:
        found = da.fromfunction(lambda i, j, by: i * by + j, (3, 4), dtype=int, by=10)
        agrees(found, np.fromfunction(lambda i, j: i * 10 + j, (3, 4), dtype=int))
        assert da.fromfunction(lambda: 7, ()) == 7
        cut = da.fromfunction(np.hypot, (4, 4), placements=[Shard(1)])
        assert cut.placements == (Shard(1),)

    simulate(2, program)


def test_blocks_lie_in_the_order_asked_for() -> None:
    value = np.arange(12.0).reshape(3, 4)

    def program() -> None:
        x = da.asarray(value)
        assert da.asanyarray(x) is x
        assert da.ascontiguousarray(x) is x
        assert da.asfortranarray(x).to_local().flags.f_contiguous
        assert da.asanyarray(x.T, order="C").to_local().flags.c_contiguous
        agrees(da.asfortranarray(x), value)
        agrees(da.ascontiguousarray(3.0), np.ascontiguousarray(3.0))
        agrees(da.asarray_chkfinite(value), value)
        with pytest.raises(ArgumentError, match="NaN"):
            da.asarray_chkfinite([1.0, np.nan])

    simulate(3, program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        for call, error in (
            (lambda: da.tri(-1), ShapeError),
            (lambda: da.geomspace(0, 1), ArgumentError),
            (lambda: da.logspace(0, 1, base="a"), ArgumentTypeError),
            (lambda: da.kaiser(3, "a"), ArgumentTypeError),
            (lambda: da.hanning(2.5), ArgumentTypeError),
            (lambda: da.fromfunction(3, (2,)), ArgumentTypeError),
            (lambda: da.indices((-1,)), ShapeError),
        ):
            with pytest.raises(error):
                call()

    simulate(2, program)
