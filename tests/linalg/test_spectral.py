"""Large matrices are divided into blocks of larger and smaller eigenvalues, and never collected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.layout import Partial, Shard
from distarray.linalg import _spectral, _tiles
from distarray.testing import simulate
from tests.array.strategies import agrees, on_ranks

SIZE = 24


@pytest.fixture(autouse=True)
def _no_matrix_is_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "COLLECTED_BYTES", 17**2 * 8)
    monkeypatch.setattr(_tiles, "WIDTH", 12)
    yield
    da.testing.reset()


def draw(*shape: int) -> np.ndarray:
    """Return the same random matrix at every call."""
    return np.random.default_rng(0).normal(size=shape)


def turned(values: Any) -> np.ndarray:
    """Return a matrix with given singular values."""
    u, _, vh = np.linalg.svd(draw(len(values), len(values)))
    return np.asarray((u * values) @ vh)


def units(difference: Any, like: Any) -> float:
    """Return the norm of a difference in units of rounding of a matrix."""
    eps, scale = np.finfo(difference.dtype).eps, abs(like).max() or 1
    norm = np.linalg.norm(like / scale, 2)
    return float(np.linalg.norm(difference / scale) / max(norm, 1e-30) / eps / len(like))


def check_columns(x: np.ndarray) -> None:
    """Check that columns are orthonormal."""
    assert units(x.mT.conj() @ x - np.eye(x.shape[1], dtype=x.dtype), np.eye(len(x))) < 10


MATRICES = {
    "random": draw(SIZE, SIZE) * 1e200,
    "complex": (draw(SIZE, SIZE) + 1j * draw(2 * SIZE, SIZE)[SIZE:]).astype(np.complex64),
    "condition of 1e15": turned(np.logspace(0, -15, SIZE)),
    "deficient": turned(np.repeat([1.0, 0.0], SIZE // 2)).astype(np.float32),
    "one value many times": np.ones((SIZE, SIZE)),
    "nothing": np.zeros((SIZE, SIZE)),
    "growing": np.triu(-np.ones((SIZE, SIZE)), 1) + np.eye(SIZE),
    "a permutation": np.eye(SIZE)[::-1],
    "tridiagonal": np.diag(abs(np.arange(SIZE) - SIZE / 2))  # Wilkinson's matrix
    + np.eye(SIZE, k=1)
    + np.eye(SIZE, k=-1),
    "integers": np.arange(SIZE**2).reshape(SIZE, SIZE) % 7,
}


@pytest.mark.parametrize("name", MATRICES)
def test_hermitian_matrices_have_orthonormal_eigenvectors(name: str) -> None:
    value = MATRICES[name]
    ranks = 2 + len(name) % 3
    for triangle in "LU" if name == "complex" else "L":
        below = np.tril(value, -1) if triangle == "L" else np.triu(value, 1).mT.conj()
        matrix = below + below.mT.conj() + np.diag(value.diagonal().real)
        values, vectors = np.linalg.eigh(value, triangle)

        def program(
            triangle: str = triangle,
            matrix: np.ndarray = matrix,
            values: np.ndarray = values,
            vectors: np.ndarray = vectors,
        ) -> None:
            mesh = da.init_device_mesh((ranks,))
            if mesh.coordinate is None:
                return
            x = da.distribute_array(value, mesh, [Shard(0)], src=None)
            found = da.linalg.eigh(x, triangle)
            assert found.eigenvectors.placements == x.placements
            w, v = np.asarray(found.eigenvalues), np.asarray(found.eigenvectors)
            assert (w.dtype, v.dtype) == (values.dtype, vectors.dtype)
            check_columns(v)
            assert units(matrix @ v - v * w, matrix) < 10
            assert (np.diff(w) >= 0).all()
            assert units(np.asarray(da.linalg.eigvalsh(x, triangle)) - values, matrix) < 10

        on_ranks(program)


@pytest.mark.parametrize("name", MATRICES)
def test_singular_vectors_are_orthonormal_and_make_the_matrix(name: str) -> None:
    value = MATRICES[name]

    def program() -> None:
        mesh = da.init_device_mesh((2, 2) if len(name) % 2 else (3,))
        if mesh.coordinate is None:
            return
        x = da.distribute_array(value, mesh, [Shard(1), Shard(0)][: mesh.ndim], src=None)
        u, s, vh = (np.asarray(one) for one in da.linalg.svd(x))
        expected = np.linalg.svd(value)
        assert [one.dtype for one in (u, s, vh)] == [one.dtype for one in expected]
        check_columns(u)
        check_columns(vh.mT)
        assert units((u * s) @ vh - value, value) < 10
        assert units(s - expected[1], value) < 10
        assert (np.diff(s) <= 0).all()

    on_ranks(program)


@pytest.mark.parametrize("seed", [1, 2])
def test_subnormal_singular_values_have_finite_vectors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(SIZE, SIZE)) + 1j * rng.normal(size=(SIZE, SIZE))
    value = (value * np.logspace(-33, 33, SIZE)[rng.permutation(SIZE), None]).astype(np.complex64)
    expected = np.linalg.svdvals(value)

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((4,)), [Shard(0)], src=None)
        u, s, vh = (np.asarray(one) for one in da.linalg.svd(x))
        check_columns(u)
        check_columns(vh.mT)
        assert units(s - expected, value) < 10

    on_ranks(program)


@pytest.mark.parametrize("shape", [(30, 21), (21, 30)])
def test_matrices_that_are_not_square_are_factorized_first(shape: tuple[int, int]) -> None:
    value = draw(*shape)

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((2, 2)), [Shard(0), Shard(1)], src=None)
        for full in (True, False):
            u, s, vh = da.linalg.svd(x, full_matrices=full)
            assert u.placements == vh.placements == x.placements
            u, s, vh = np.asarray(u), np.asarray(s), np.asarray(vh)
            expected = np.linalg.svd(value, full_matrices=full)
            assert [one.shape for one in (u, s, vh)] == [one.shape for one in expected]
            check_columns(u)
            check_columns(vh.mT)
            assert units((u[:, :21] * s) @ vh[:21] - value, value) < 10
        assert units(np.asarray(da.linalg.svdvals(x)) - expected[1], value) < 10

    on_ranks(program)


def test_what_is_made_of_singular_values_is_numpys() -> None:
    values = np.linspace(1, 3, SIZE)
    values[-4:] = 0
    deficient, regular = turned(values), turned(np.linspace(1, 3, SIZE))
    right = draw(SIZE, 2)

    def program() -> None:
        x = da.distribute_array(deficient, placements=[Shard(0)], src=None)
        y = da.distribute_array(regular, placements=[Shard(1)], src=None)
        inverse = da.linalg.pinv(x, rtol=1e-10)
        assert inverse.placements == (Shard(1),)
        np.testing.assert_allclose(
            np.asarray(inverse), np.linalg.pinv(deficient, rtol=1e-10), atol=1e-13
        )
        found, _, rank, s = da.linalg.lstsq(x, right)
        expected = np.linalg.lstsq(deficient, right)
        assert rank == SIZE - 4
        np.testing.assert_allclose(np.asarray(found), expected[0], atol=1e-13)
        np.testing.assert_allclose(np.asarray(s), expected[3], atol=1e-13)
        agrees(da.linalg.matrix_rank(x), SIZE - 4)
        agrees(da.linalg.cond(da.asarray(np.diag(values)), 1), np.inf)
        for order in (None, -2, 1):
            agrees(da.linalg.cond(0 * x, order), np.linalg.cond(0 * deficient, order))
        for order in (2, -2, "nuc"):
            agrees(da.linalg.norm(y, order), np.linalg.norm(regular, order), rtol=1e-12)
        for order in (None, -2, 1, "fro"):
            agrees(da.linalg.cond(y, order), np.linalg.cond(regular, order), rtol=1e-12)

    on_ranks(program)


def test_partial_sums_are_added_up_first() -> None:
    value = draw(SIZE, SIZE)

    def program() -> None:
        x = da.distribute_array(value, placements=[Shard(0)], src=None)
        x = da.DistArray.from_local(value * (x.mesh.rank == 2), x.mesh, [Partial("sum")])
        agrees(da.linalg.svdvals(x), np.linalg.svdvals(value), rtol=1e-12, atol=1e-12)
        agrees(da.linalg.eigvalsh(x), np.linalg.eigvalsh(value), rtol=1e-12, atol=1e-12)

    on_ranks(program)


@pytest.mark.parametrize("name", ["complex", "tridiagonal"])
@pytest.mark.parametrize("scale", [1e-310, 1e300])
def test_values_of_any_size_are_those_of_one(name: str, scale: float) -> None:
    value = MATRICES[name].astype(np.result_type(MATRICES[name], np.float64))
    functions = (np.linalg.eigvalsh, lambda x: np.linalg.svd(x, compute_uv=False))

    def program() -> None:
        x = da.distribute_array(value * scale, da.init_device_mesh((4,)), [Shard(0)], src=None)
        for function in functions:
            expected = function(value) * scale
            found = np.asarray(function(x))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * abs(expected).max())

    on_ranks(program)


def test_what_is_not_finite_is_an_error_on_all_ranks() -> None:
    def program() -> None:
        for bad in (np.nan, np.inf):
            value = np.ones((SIZE, SIZE))
            value[5, 3] = bad
            x = da.asarray(value)
            for function in (da.linalg.eigh, da.linalg.svd, da.linalg.svdvals):
                with pytest.raises(np.linalg.LinAlgError, match="NaN or infinities"):
                    function(x)
        with pytest.raises(np.linalg.LinAlgError, match="square"):
            da.linalg.eigh(da.ones((SIZE, SIZE + 1)))

    on_ranks(program)


def test_a_division_that_leaves_too_much_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spectral, "polar_factor", lambda x: x)

    def program() -> None:
        x = da.asarray(draw(SIZE, SIZE))
        with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
            da.linalg.eigh(x)
        with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
            da.linalg.svd(x)

    on_ranks(program)


@pytest.mark.parametrize("ranks", [4, 9])
def test_bytes_are_of_the_order_of_a_matrix_by_the_root_of_the_ranks(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 48
    monkeypatch.setattr(_tiles, "WIDTH", 4)
    monkeypatch.setattr(_tiles, "COLLECTED_BYTES", size**2 * 4)  # one division
    value = draw(size, size)

    def program() -> tuple[int, int]:
        x = da.distribute_array(value, da.init_device_mesh((ranks,)), [Shard(0)], src=None)
        with da.CommLog() as first:
            da.linalg.eigh(x)
        with da.CommLog() as second:
            da.linalg.svd(x)
        return first.bytes(), second.bytes()

    told = np.mean(simulate(ranks, program), axis=0) / (8 * size**2 / ranks**0.5)
    assert 40 < told[0] < 75
    assert 1.5 < told[1] / told[0] < 2.5
