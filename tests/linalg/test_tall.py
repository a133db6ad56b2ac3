"""Tall matrices whose rows are cut are factorized by their triangles; no row is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ImplicitCommunicationError
from distarray.linalg import _tall
from distarray.linalg._tall import is_tall
from distarray.testing import simulate
from tests.array.strategies import Case, cases, on_ranks

DTYPES = (np.float64, np.float32, np.complex128, np.int32)


@settings(max_examples=30)
@given(data=st.data())
def test_factors_multiply_to_the_matrix_and_have_orthonormal_columns(data: Any) -> None:
    columns = data.draw(st.integers(1, 3))
    shape = (*data.draw(st.sampled_from([(), (2,)])), data.draw(st.integers(12, 40)), columns)
    case: Case = data.draw(cases(DTYPES, ("sum",), shape=shape))
    if data.draw(st.booleans()):  # of lower rank
        case.values[..., -1] = case.values[..., 0]
    x = case.value

    def program() -> bool:
        a = case.build()
        q, r = da.linalg.qr(a)
        u, s, vh = da.linalg.svd(a, full_matrices=False)
        if a.mesh.coordinate is None:
            return False
        eps = 200 * np.finfo(s.dtype).eps
        eye = np.broadcast_to(np.eye(columns), (*shape[:-2], columns, columns))
        q, r, u, s, vh = (np.asarray(one) for one in (q, r, u, s, vh))
        size = 1 + np.abs(x).max()
        for one in (q, u):
            np.testing.assert_allclose(one.mT.conj() @ one, eye, atol=eps)
        np.testing.assert_allclose(q @ r, x, atol=eps * size)
        np.testing.assert_array_equal(r, np.triu(r))
        np.testing.assert_allclose((u * s[..., None, :]) @ vh, x, atol=eps * size * 8)
        np.testing.assert_allclose(s, np.linalg.svdvals(x), atol=eps * size * 8)
        for values in (da.linalg.svdvals(a), da.linalg.svdvals(a.mT)):
            np.testing.assert_allclose(np.asarray(values), s, atol=eps * size * 8)
        assert q.dtype == np.linalg.qr(x)[0].dtype
        assert np.asarray(da.linalg.qr(a, mode="r")).shape == r.shape
        return is_tall(a.layout)

    on_ranks(program)


def test_triangles_are_sent_and_no_row() -> None:
    rows, columns = 1000, 4
    x = np.random.default_rng(0).normal(size=(rows, columns))

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        a = da.distribute_array(x, mesh, [da.Shard(0)], src=None)
        with CommLog() as log, da.communication("raise", min_bytes=1024):
            u, s, vh = da.linalg.svd(a, full_matrices=False)
        assert log.bytes() == 3 * columns * columns * 8
        assert u.layout == a.layout
        assert s.layout.is_replicated
        assert vh.layout.is_replicated
        wide = da.linalg.svd(a.T, full_matrices=False)
        assert wide.Vh.layout == a.T.layout
        product = np.asarray((wide.U * wide.S) @ wide.Vh)
        np.testing.assert_allclose(product, x.T, atol=1e-12)
        with (
            da.communication("raise", min_bytes=64),
            pytest.raises(ImplicitCommunicationError),
        ):
            da.linalg.qr(a)

    on_ranks(program)


def test_ill_conditioned_columns_stay_orthonormal() -> None:
    rng = np.random.default_rng(1)
    left, right = (
        np.linalg.qr(rng.normal(size=(400, 6)))[0],
        np.linalg.qr(rng.normal(size=(6, 6)))[0],
    )
    values = np.logspace(0, -15, 6)
    x = (left * values) @ right

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((3,)), [da.Shard(0)], src=None)
        q, r = da.linalg.qr(a)
        found = da.linalg.svdvals(a)
        if a.mesh.coordinate is None:
            return
        q = np.asarray(q)
        np.testing.assert_allclose(q.T @ q, np.eye(6), atol=1e-14)
        np.testing.assert_allclose(q @ np.asarray(r), x, atol=1e-15)
        np.testing.assert_allclose(np.asarray(found), values, atol=1e-15)

    on_ranks(program)


def test_not_a_number_is_an_error_on_every_rank() -> None:
    x = np.ones((40, 2))
    x[7] = np.nan

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((4,)), [da.Shard(0)], src=None)
        with pytest.raises(np.linalg.LinAlgError, match="svd"):
            da.linalg.svd(a, full_matrices=False)

    on_ranks(program)


def test_not_a_number_in_one_of_several_matrices_is_an_error_on_every_rank() -> None:
    values = np.random.default_rng(3).standard_normal((2, 40, 2))
    values[1, 7, 0] = np.nan

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(values, mesh, [da.Shard(0), da.Shard(1)])
        for function in (da.linalg.svdvals, lambda x: da.linalg.svd(x, full_matrices=False)):
            with pytest.raises(da.linalg.LinAlgError):
                function(x)
        with pytest.raises(da.linalg.LinAlgError, match="square"):
            da.linalg.svd(x, hermitian=True)

    on_ranks(program)


def test_few_rows_and_large_triangles_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> tuple[bool, ...]:
        mesh = da.init_device_mesh((4,))
        tall, square = da.ones((64, 4), mesh=mesh), da.ones((8, 8), mesh=mesh)
        return is_tall(tall.layout), is_tall(square.layout), is_tall(tall.T.layout)

    assert on_ranks(program) == [(True, False, False)] * 4
    monkeypatch.setattr(_tall, "REPLICATED_BYTES", 512)
    assert on_ranks(program) == [(False, False, False)] * 4


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("power", [0, 2, 3, 8, 15])
@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-200])
def test_long_matrices_are_factorized_by_condition(
    monkeypatch: pytest.MonkeyPatch, dtype: type, power: int, scale: float
) -> None:
    """By products of columns where these keep all digits, and as before where they do not."""
    monkeypatch.setattr(_tall, "_CHOLESKY_BYTES", 0)
    rng = np.random.default_rng(power)
    x = rng.normal(size=(401, 6)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x += 1j * rng.normal(size=x.shape)
    u, _, vh = np.linalg.svd(x, full_matrices=False)
    values = np.logspace(0, -power, 6) * scale
    x = (u * values) @ vh

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((3,)), [da.Shard(0)], src=None)
        with CommLog() as log:
            q, r = da.linalg.qr(a)
        assert log.count() == 3  # of products twice, or once and of triangles; and of the choice
        whole, triangle = q.full_array(), r.full_array()
        if power < 6 and scale == 1:
            assert (triangle.diagonal().real > 0).all(), "as Cholesky factors have it"
        np.testing.assert_allclose(whole.conj().T @ whole, np.eye(6), atol=1e-14)
        np.testing.assert_allclose(whole @ triangle, x, atol=4e-15 * scale)
        np.testing.assert_array_equal(triangle, np.triu(triangle))
        np.testing.assert_allclose(da.linalg.svdvals(a).full_array(), values, atol=4e-15 * scale)
        left, found, right = da.linalg.svd(a, full_matrices=False)
        product = (left.full_array() * found.full_array()) @ right.full_array()
        np.testing.assert_allclose(product, x, atol=6e-15 * scale)
        only = da.linalg.qr(a, mode="r").full_array()
        np.testing.assert_allclose(abs(only), abs(triangle), atol=1e-14 * scale)

    simulate(3, program)


def test_long_matrices_with_blocks_of_few_or_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tall, "_CHOLESKY_BYTES", 0)
    x = np.random.default_rng(0).normal(size=(90, 5))
    mesh = da.AbstractMesh((4,))
    layout = da.Layout(mesh, [da.Shard(0)], x.shape, boundaries={0: (0, 2, 2, 88, 90)})

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((4,)), [da.Shard(0)], src=None)
        a = a.redistribute(layout.placements, boundaries={0: layout.boundaries[0]})
        q, r = da.linalg.qr(a)
        assert q.layout.boundaries == a.layout.boundaries
        np.testing.assert_allclose(q.full_array() @ r.full_array(), x, atol=1e-14)
        np.testing.assert_allclose((q.T @ q).full_array(), np.eye(5), atol=1e-14)

    on_ranks(program)
