"""Further products and diagonals agree with NumPy for operands of any layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import AxisError, ReadOnlyError, ShapeError
from distarray.layout import Partial, Shard
from tests.array.strategies import agrees, cases, on_ranks, special_cases

NUMBERS = (np.float64, np.int32, np.complex128, np.float32)


@settings(max_examples=30)
@given(data=st.data())
def test_diagonal_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(special_cases((np.dtype("f8"), np.dtype("i4"), np.dtype("c16")), ("max",)))
    ndim = len(x.shape)
    assume(ndim > 1)
    axes = data.draw(st.permutations(range(ndim)))[:2]
    offset = data.draw(st.integers(-9, 9))

    def program() -> None:
        array = x.build()
        found = np.diagonal(array, offset, *axes)
        agrees(found, np.diagonal(x.value, offset, *axes))
        agrees(array.diagonal(offset, axes[1], axes[0]), x.value.diagonal(offset, axes[1], axes[0]))
        if found.size and array.mesh.coordinate is not None:
            with pytest.raises(ReadOnlyError):
                found[...] = 0

    on_ranks(program)


@settings(max_examples=15)
@given(x=cases((*NUMBERS, np.int8), ("sum",), max_dims=3), offset=st.integers(-3, 3))
def test_trace_agrees_with_numpy(x: Any, offset: int) -> None:
    assume(len(x.shape) > 1)

    def program() -> None:
        array = x.build()
        agrees(np.trace(array, offset), np.trace(x.value, offset), rtol=1e-5)
        others = (offset, 1, 0, np.float64)
        agrees(array.trace(*others), x.value.trace(*others), rtol=1e-5)

    if x.value.dtype.kind != "c":
        on_ranks(program)


def test_diagonal_sends_nothing() -> None:
    values = np.arange(48.0).reshape(8, 6)

    def program() -> None:
        line = da.init_device_mesh((4,))
        for placement in (Shard(0), Shard(1), Partial("sum")):
            x = da.asarray(values, mesh=line, placements=[placement])
            with CommLog() as log:
                y = da.diagonal(x, 1)
            assert log.count() == 0
            assert y.placements == ((placement,) if placement.is_partial() else (Shard(0),))
            agrees(y, np.diagonal(values, 1))
        grid = da.init_device_mesh((2, 2))
        x = da.asarray(values, mesh=grid, placements=[Shard(0), Shard(1)])
        with CommLog() as log:
            y = da.diagonal(x)
        assert log.count() == 0
        agrees(y, np.diagonal(values))

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_cross_agrees_with_numpy(data: st.DataObject) -> None:
    shape = [*data.draw(st.sampled_from(((), (4,), (2, 5), (1, 3))))]
    place = data.draw(st.integers(0, len(shape)))
    shape.insert(place, 3)
    x = data.draw(cases(NUMBERS, ("sum",), shape=tuple(shape)))
    y = data.draw(cases(NUMBERS, ("sum",), mesh_shape=x.mesh_shape, shape=tuple(shape)))

    def program() -> None:
        a, b = x.build(), y.build()
        agrees(da.cross(a, b, axis=place), np.cross(x.value, y.value, axis=place), rtol=1e-5)
        agrees(
            np.cross(a, y.value, place, place, 0),
            np.cross(x.value, y.value, place, place, 0),
            rtol=1e-5,
        )
        with pytest.raises(ShapeError, match="three"):
            da.cross(da.ones((3, 2)), da.ones((3, 2)))

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_kron_agrees_with_numpy(data: st.DataObject) -> None:
    x = data.draw(cases(NUMBERS, ("sum",), max_dims=2))
    y = data.draw(cases(NUMBERS, ("sum",), mesh_shape=x.mesh_shape, max_dims=2))

    def program() -> None:
        agrees(da.kron(x.build(), y.build()), np.kron(x.value, y.value))
        agrees(np.kron(x.value, y.build()), np.kron(x.value, y.value))

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_products_of_vectors_and_matrices_agree_with_numpy(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from(((3, 4), (1, 5), (8, 2))))
    batch = data.draw(st.sampled_from(((), (3,), (2, 1))))
    x = data.draw(cases(NUMBERS, ("sum",), shape=(*batch, rows, columns)))
    mesh = x.mesh_shape
    right = data.draw(cases(NUMBERS, ("sum",), mesh_shape=mesh, shape=(*batch[:1], columns)))
    left = data.draw(cases(NUMBERS, ("sum",), mesh_shape=mesh, shape=(rows,)))

    def program() -> None:
        a, b, c = x.build(), right.build(), left.build()
        agrees(da.matvec(a, b), np.matmul(x.value, right.value[..., None])[..., 0], rtol=1e-5)
        agrees(da.vecmat(c, a), np.matmul(np.conj(left.value)[None], x.value)[..., 0, :], rtol=1e-5)
        agrees(np.vdot(a, a), np.vdot(x.value, x.value), rtol=1e-5)
        agrees(da.vdot(b, right.value), np.vdot(right.value, right.value), rtol=1e-5)

    on_ranks(program)


def test_wrong_shapes_are_refused() -> None:
    def program() -> None:
        x = da.ones(3)
        for error, call in (
            (AxisError, lambda: da.diagonal(x)),
            (AxisError, lambda: da.trace(da.eye(2), axis2=2)),
            (AxisError, lambda: da.cross(x, x, axis=1)),
            (ShapeError, lambda: da.matvec(x, x)),
            (ShapeError, lambda: da.vecmat(x, x)),
            (ShapeError, lambda: da.vdot(x, da.ones(4))),
        ):
            with pytest.raises(error):
                call()
        assert da.einsum_path("ij,j->i", da.ones((3, 3)), x)[0] == ["einsum_path", (0, 1)]

    on_ranks(program)
