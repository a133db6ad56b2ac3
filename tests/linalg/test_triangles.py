"""Triangles are solved where they lie, and no process does what another does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, ArgumentTypeError, ImplicitCommunicationError
from distarray.layout import Shard
from distarray.linalg import _kernels, _tiles, _triangles
from distarray.testing import simulate
from tests.array.strategies import agrees, cases, on_ranks

DTYPES = (np.float64, np.float32, np.complex128, np.complex64, np.int32)
HOW = (0, 1, 2, "N", "T", "C")


@pytest.fixture(params=[0, 1 << 30], ids=["tiles", "whole"])
def least(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", request.param)
    monkeypatch.setattr(_tiles, "WIDTH", 5)
    monkeypatch.setattr(_kernels, "LEAF", 2)
    yield request.param
    da.testing.reset()


def solved(a: np.ndarray, b: np.ndarray, lower: bool, trans: Any, is_unit: bool) -> np.ndarray:
    """Solve by NumPy for the triangle that is looked at."""
    kept = np.tril(a) if lower else np.triu(a)
    if is_unit:
        kept = np.where(np.eye(a.shape[-1]) == 1, a.dtype.type(1), kept)
    kept = kept.mT if trans in (1, "T") else kept.mT.conj() if trans in (2, "C") else kept
    return np.asarray(np.linalg.solve(kept, b))


@pytest.mark.usefixtures("least")
@settings(max_examples=25)
@given(data=st.data())
def test_solutions_are_those_of_the_triangle(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from((1, 2, 4, 9, 13, 23)))
    columns = data.draw(st.sampled_from([(), (0,), (1,), (2,), (17,)]))
    x = data.draw(cases(DTYPES, ("sum",), shape=(size, size)))
    x = replace(x, values=x.values + 10 * size * np.eye(size, dtype=x.values.dtype))
    y = data.draw(cases(DTYPES, (), mesh_shape=x.mesh_shape, shape=(size, *columns)))
    y = replace(y, ranks=x.ranks)
    lower, is_unit, is_plain = (data.draw(st.booleans()) for _ in range(3))
    trans = data.draw(st.sampled_from(HOW))
    if x.value.dtype.kind in "fc":  # so that with ones on the diagonal it is well conditioned
        x = replace(x, values=x.values * x.values.dtype.type(1 / (10 * size)))
    elif is_unit:
        return
    a, b = x.value, y.value
    wanted = solved(a, b, lower, trans, is_unit)

    def program() -> None:
        array = x.build()
        found = da.linalg.solve_triangular(
            array, b if is_plain else y.build(), lower=lower, trans=trans, unit_diagonal=is_unit
        )
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        if array.mesh.coordinate is not None:
            eps = np.finfo(found.dtype).eps
            difference = np.linalg.norm(np.asarray(found) - wanted)
            assert difference <= 1000 * size * eps * (np.linalg.norm(wanted) + 1e-30)

    on_ranks(program)


@pytest.mark.usefixtures("least")
def test_what_lies_in_the_other_triangle_is_not_looked_at() -> None:
    a = np.random.default_rng(0).normal(size=(23, 23)) + 8 * np.eye(23)
    b = np.ones((23, 2))
    for lower in (True, False):
        other = np.triu(np.ones((23, 23)), 1) if lower else np.tril(np.ones((23, 23)), -1)
        bad = np.where(other == 1, np.nan, a)

        def program(bad: np.ndarray = bad, lower: bool = lower) -> None:
            x = da.asarray(bad)
            for trans in (0, 1):
                found = da.linalg.solve_triangular(x, b, lower=lower, trans=trans)
                agrees(found, solved(a, b, lower, trans, False), rtol=1e-10)

        on_ranks(program)


@pytest.mark.parametrize("kernel", ["SciPy", "NumPy"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.usefixtures("least")
def test_residuals_are_small_whatever_the_condition(
    monkeypatch: pytest.MonkeyPatch, kernel: str, ranks: int
) -> None:
    """Substitution is backward stable, row by row (Higham 2002, theorem 8.5)."""
    if kernel == "NumPy":
        monkeypatch.setattr(_kernels, "_scipy", lambda *_: None)
    rng = np.random.default_rng(0)
    size = 37
    growing = np.eye(size) - np.tril(np.ones((size, size)), -1)  # Wilkinson's matrix
    kahan = (np.eye(size) - 0.5 * np.triu(np.ones((size, size)), 1)) * 0.8 ** np.arange(size)[
        :, None
    ]
    ill = np.linalg.qr(np.vander(np.linspace(0, 1, size)))[1]
    b = rng.normal(size=(size, 3))

    def program() -> None:
        mesh = da.init_device_mesh((ranks,))
        for matrix in (growing, kahan, ill, ill.T, kahan.astype(np.complex64)):
            lower = not np.tril(matrix, -1).any()
            lower = not lower
            x = da.distribute_array(matrix, mesh, [Shard(0)], src=None)
            found = np.asarray(da.linalg.solve_triangular(x, b, lower=lower))
            if mesh.coordinate is None:
                continue
            eps = np.finfo(found.dtype).eps
            bound = size * eps * (abs(matrix) @ abs(found)) + 10 * eps * abs(b)
            assert (abs(matrix @ found - b) <= bound).all()

    simulate(ranks, program)


@pytest.mark.usefixtures("least")
def test_without_right_hand_sides_a_triangle_is_looked_at_as_well() -> None:
    ones, zero = np.ones((23, 23)), np.ones((23, 23)) - np.diag(np.arange(23) == 7)
    nothing = np.ones((23, 0))

    def program() -> None:
        regular, singular = da.asarray(ones), da.asarray(zero)
        assert da.linalg.solve_triangular(regular, nothing).shape == (23, 0)
        assert da.linalg.lu_solve((regular, np.arange(23)), nothing).shape == (23, 0)
        with pytest.raises(da.linalg.LinAlgError, match="Singular"):
            da.linalg.solve_triangular(singular, nothing)

    on_ranks(program)


@pytest.mark.parametrize("bad", [0, 7, 22])
@pytest.mark.usefixtures("least")
def test_zero_on_the_diagonal_is_an_error_on_every_rank(bad: int) -> None:
    a = np.eye(23)
    a[bad, bad] = 0

    def program() -> None:
        x = da.asarray(a)
        for lower in (True, False):
            with pytest.raises(da.linalg.LinAlgError, match="Singular"):
                da.linalg.solve_triangular(x, np.ones(23), lower=lower)
        found = da.linalg.solve_triangular(x, np.ones(23), unit_diagonal=True)
        agrees(found, np.ones(23))

    on_ranks(program)


def test_bytes_are_half_a_matrix_by_the_root_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", 4)
    size, columns = 96, 8
    a = np.tril(np.random.default_rng(0).normal(size=(size, size))) + 20 * np.eye(size)

    def program(ranks: int) -> int:
        mesh = da.init_device_mesh((ranks,))
        x = da.distribute_array(a, mesh, [Shard(0)], src=None)
        b = da.ones((size, columns), mesh=mesh)
        with CommLog() as log:
            da.linalg.solve_triangular(x, b, lower=True)
        with (
            da.communication("raise"),
            pytest.raises(ImplicitCommunicationError, match="solve_triangular"),
        ):
            da.linalg.solve_triangular(x, b, lower=True)
        return log.bytes("broadcast")

    for root in (2, 3, 4):
        told = simulate(root * root, program, root * root)
        panels = size * (size + 4) / 2 / root * (root - 1) / root
        right = size * columns / root * (root - 1) / root
        assert np.mean(told) == pytest.approx((panels + right) * 8, rel=0.1)


def test_batches_of_triangles_broadcast() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 1, 5, 5)) + 5 * np.eye(5), rng.normal(size=(2, 5, 4))
    wanted = solved(a, b, False, 0, False)

    def program() -> None:
        found = da.linalg.solve_triangular(da.asarray(a), da.asarray(b))
        agrees(found, wanted, rtol=1e-10)
        agrees(da.linalg.solve_triangular(a, da.asarray(b)), wanted, rtol=1e-10)
        agrees(
            da.linalg.solve_triangular(da.asarray(a), b[0, :, 0], trans="T"),
            solved(a, b[0, :, :1], False, 1, False)[..., 0],
            rtol=1e-10,
        )
        empty = da.linalg.solve_triangular(da.ones((0, 0)), da.ones((0, 3)))
        assert empty.shape == (0, 3)

    on_ranks(program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.eye(4)
        with pytest.raises(ArgumentError, match="trans"):
            da.linalg.solve_triangular(x, da.ones(4), trans=3)
        with pytest.raises(ArgumentError, match="trans"):
            da.linalg.solve_triangular(x, da.ones(4), trans=[])
        with pytest.raises(ArgumentTypeError, match="lower"):
            da.linalg.solve_triangular(x, da.ones(4), lower="no")
        with pytest.raises(da.linalg.LinAlgError):
            da.linalg.solve_triangular(da.ones((4, 3)), da.ones(4))
        with pytest.raises(ArgumentError, match="cho_factor"):
            da.linalg.cho_solve(x[:3], da.ones(4))

    on_ranks(program)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.usefixtures("least")
def test_factors_of_cholesky_solve(dtype: Any, lower: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(23, 23)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x += 1j * rng.normal(size=(23, 23)).astype(dtype)
    x = x @ x.T.conj() + np.eye(23, dtype=dtype)
    b = rng.normal(size=(23, 2)).astype(dtype)
    wanted = np.linalg.solve(x, b)
    given = np.where(np.tri(23) if lower else np.tri(23).T, x, np.nan)

    def program() -> None:
        factor = da.linalg.cho_factor(da.asarray(given), lower)
        assert factor[1] is lower
        found = da.linalg.cho_solve(factor, da.asarray(b))
        eps = np.finfo(dtype).eps
        agrees(found, wanted, rtol=0, atol=1e4 * eps * abs(wanted).max())

    on_ranks(program)


def test_no_process_solves_what_another_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All together solve as many items as one process alone would."""
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", 4)
    counts: list[int] = []

    def count(triangle: np.ndarray, x: np.ndarray, lower: bool) -> None:
        counts.append(x.size)
        kernel(triangle, x, lower)

    kernel = _kernels.solve_triangle
    monkeypatch.setattr(_triangles, "solve_triangle", count)
    a, b = np.eye(32), np.ones((32, 8))

    def program() -> None:
        da.linalg.solve_triangular(da.asarray(a), da.asarray(b))

    simulate(4, program)
    assert sum(counts) == b.size
