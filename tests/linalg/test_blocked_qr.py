"""Large matrices are factorized by reflectors, in tiles that are dealt out to all ranks."""

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
from distarray.errors import ImplicitCommunicationError
from distarray.layout import Shard
from distarray.linalg import _tiles
from tests.array.strategies import Case, cases, on_ranks

WIDTH = 5
DTYPES = (np.float64, np.float32, np.complex128, np.complex64, np.int32)


@pytest.fixture(autouse=True)
def _no_matrix_is_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", WIDTH)
    yield
    da.testing.reset()


def check(factors: Any, value: np.ndarray) -> None:
    """Check the factors of a matrix by residual and orthogonality, in units of rounding."""
    q, r = (np.asarray(one) for one in factors)
    unit = np.finfo(q.dtype).eps * max(value.shape)
    assert np.linalg.norm(q.mT.conj() @ q - np.eye(q.shape[1])) < 20 * unit  # 10 of 1 x 1
    assert np.linalg.norm(q @ r - value) <= 10 * unit * np.linalg.norm(value)
    np.testing.assert_array_equal(r, np.triu(r))


@settings(max_examples=20)
@given(data=st.data())
def test_factors_multiply_to_the_matrix_and_have_orthonormal_columns(data: Any) -> None:
    shape = data.draw(st.sampled_from([(1, 1), (2, 2), (9, 9), (23, 23), (17, 12), (4, 23)]))
    mode = data.draw(st.sampled_from(["reduced", "complete", "r"]))
    case: Case = data.draw(cases(DTYPES, ("sum",), shape=shape))
    if data.draw(st.booleans()):  # of lower rank
        values = case.values.copy()
        values[..., -1] = values[..., 0]
        case = replace(case, values=values)
    value, wanted = case.value, np.linalg.qr(case.value, mode)

    def program() -> None:
        x = case.build()
        found = da.linalg.qr(x, mode)
        if x.mesh.coordinate is None:
            return
        results = (found,) if mode == "r" else found
        for one, like in zip(results, [wanted] if mode == "r" else wanted, strict=True):
            assert (one.shape, one.dtype) == (like.shape, like.dtype)
        if mode == "r":
            r = np.asarray(found)
            size = np.linalg.norm(r)
            difference = np.linalg.norm(r.mT.conj() @ r - value.mT.conj() @ value)
            assert difference <= 50 * len(value) * np.finfo(r.dtype).eps * size**2
        else:
            check(found, value)

    on_ranks(program)


def test_both_factors_are_cut_as_the_matrix_is() -> None:
    value = np.random.default_rng(0).normal(size=(24, 20))

    def program() -> None:
        for mesh_shape, placements in (((4,), [Shard(1)]), ((2, 2), [Shard(1), Shard(0)])):
            mesh = da.init_device_mesh(mesh_shape)
            for shape in ((24, 20), (12, 20)):
                x = da.distribute_array(value[: shape[0]], mesh, placements, src=None)
                q, r = da.linalg.qr(x)
                assert q.placements == r.placements == x.placements
                check((q, r), value[: shape[0]])

    on_ranks(program)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_any_condition_and_any_rank_has_orthonormal_columns(dtype: Any) -> None:
    size = 37
    rng = np.random.default_rng(0)
    u, _, vh = np.linalg.svd(rng.normal(size=(size, size)))
    ill = (u * np.logspace(0, -15, size)) @ vh
    growing = np.eye(size) - np.tril(np.ones((size, size)), -1)  # Wilkinson's matrix
    deficient = rng.normal(size=(size, 3)) @ rng.normal(size=(3, size))
    matrices = [ill, growing, deficient, np.zeros((size, size)), np.eye(size)[::-1], ill[:, ::-1]]

    def program() -> None:
        for ranks in (1, 2, 3, 4):
            mesh = da.init_device_mesh((ranks,))
            for matrix in matrices:
                value = matrix.astype(dtype)
                x = da.distribute_array(value, mesh, [Shard(0)], src=None)
                found = da.linalg.qr(x)
                if mesh.coordinate is not None:
                    check(found, value)

    on_ranks(program)


def test_not_a_number_is_everywhere_and_no_error() -> None:
    value = np.ones((23, 23))
    value[7, 3] = np.nan

    def program() -> None:
        q, r = da.linalg.qr(da.asarray(value))
        assert np.isnan(np.asarray(q)).any()
        assert np.isnan(np.asarray(r)).any()

    on_ranks(program)


def test_bytes_are_of_the_order_of_a_matrix_by_the_root_of_the_ranks() -> None:
    size = 160
    value = np.random.default_rng(0).normal(size=(size, size))

    def program() -> None:
        x = da.distribute_array(value, placements=[Shard(0)], src=None)
        # An eighth of a matrix comes as reflectors and a quarter as products, for each of the
        # factors; and both of them and the matrix are dealt out, of which a quarter is there. Of
        # panels, half of which each process has rows of, it gets the triangles' columns.
        panels = size**2 * 8 * 3 / 8
        inner = size / WIDTH / 2 * (2 * WIDTH**2 * 8)
        tiles = x.to_local().nbytes * 3 / 4
        for mode, factors in (("reduced", 2), ("r", 1)):
            with CommLog() as log:
                da.linalg.qr(x, mode)
            theory = factors * panels + (1 + factors) * tiles + inner
            assert log.bytes() == pytest.approx(theory, rel=0.1)  # tiles are not shared evenly
            with (
                CommLog() as log,
                da.communication("raise"),
                pytest.raises(ImplicitCommunicationError, match="qr"),
            ):
                da.linalg.qr(x, mode)
            assert log.count() == 0

    on_ranks(program)


def test_factor_is_one_where_processes_round_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    qr = np.linalg.qr

    def of_another_processor(x: Any, *mode: Any) -> Any:
        if mode:
            return qr(x, *mode)
        q, r = qr(x)
        sign = -1 if da.default_mesh().rank > 1 else 1
        return q * sign, r * sign

    monkeypatch.setattr(np.linalg, "qr", of_another_processor)
    value = np.random.default_rng(1).normal(size=(43, 43))

    def program() -> None:
        q, r = da.linalg.qr(da.asarray(value))
        np.testing.assert_allclose(np.asarray(q @ r), value, atol=1e-12)
        np.testing.assert_allclose(np.asarray(q.T @ q), np.eye(43), atol=1e-12)

    on_ranks(program)
