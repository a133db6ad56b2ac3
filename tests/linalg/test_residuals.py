"""Factorizations and solutions on one to four ranks are as accurate as LAPACK's, by residuals.

Each method is given the matrices on which such methods fail: of conditions up to 1e15, of fewer
dimensions than columns, growing while they are eliminated, in all precisions, and cut unevenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.layout import Shard
from distarray.linalg import _elimination, _tall, _tiles
from distarray.testing import simulate

SIZE, WIDTH = 29, 4
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
CUTS: dict[int, tuple[int, ...]] = {
    1: (0, SIZE),
    2: (0, 3, SIZE),
    3: (0, 20, 20, SIZE),  # a block of no rows
    4: (0, 2, 3, 27, SIZE),  # fewer rows than columns of a tile
}


@pytest.fixture(autouse=True)
def _no_matrix_is_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", WIDTH)
    monkeypatch.setattr(_elimination, "STRIP", 3)
    monkeypatch.setattr(_tall, "_CHOLESKY_BYTES", 0)
    yield
    da.testing.reset()


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Return a random matrix, of complex numbers."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def of_condition(power: int, columns: int = SIZE) -> np.ndarray:
    u, _, vh = np.linalg.svd(draw(SIZE, columns), full_matrices=False)
    return np.asarray((u * np.logspace(0, -power, columns)) @ vh)


def of_dtype(x: np.ndarray, dtype: Any) -> np.ndarray:
    return (x if np.dtype(dtype).kind == "c" else x.real + x.imag).astype(dtype)


WILKINSON = np.eye(SIZE) - np.tril(np.ones((SIZE, SIZE)), -1)  # doubles what is eliminated
WILKINSON[:, -1] = 1
MATRICES: dict[str, Callable[[int], np.ndarray]] = {
    **{
        f"condition 1e{power}": lambda n, power=power: of_condition(power, n)
        for power in (0, 5, 10, 15)
    },
    "deficient": lambda n: draw(SIZE, 2) @ draw(2, n, seed=1),
    "Wilkinson's": lambda n: WILKINSON[:, :n] + 0j,
    "zero columns": lambda n: draw(SIZE, n) * (np.arange(n) % 3 != 1),
    "large": lambda n: draw(SIZE, n) * 1e18,
    "small": lambda n: draw(SIZE, n) * 1e-18,
}


def size_of(x: np.ndarray) -> float:
    """Return the norm of a matrix, whose squares single precision may not hold."""
    return float(np.linalg.norm(x.astype(np.complex128)))


def on_ranks(ranks: int, value: np.ndarray, check: Callable[[Any], None]) -> None:
    """Check a function of a matrix whose rows are cut unevenly."""

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((ranks,)), [Shard(0)], src=None)
        check(x.redistribute([Shard(0)], boundaries={0: CUTS[ranks]}))

    simulate(ranks, program)


def is_orthonormal(q: np.ndarray) -> bool:
    """Tell whether columns are orthonormal but for rounding."""
    eye = np.eye(q.shape[1])
    return size_of(q.mT.conj() @ q - eye) < 10 * q.shape[0] * np.finfo(q.dtype).eps


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [SIZE, 5])
@pytest.mark.parametrize("name", MATRICES)
def test_orthogonal_factors_have_small_residuals(
    name: str, columns: int, dtype: Any, ranks: int
) -> None:
    value = of_dtype(MATRICES[name](columns), dtype)
    allowed = 10 * SIZE * np.finfo(dtype).eps * size_of(value)

    def check(x: Any) -> None:
        q, r = map(np.asarray, da.linalg.qr(x))
        assert is_orthonormal(q)
        assert size_of(q @ r - value) <= allowed
        u, s, vh = map(np.asarray, da.linalg.svd(x, full_matrices=False))
        assert is_orthonormal(u)
        assert is_orthonormal(vh.mT)
        assert size_of((u * s) @ vh - value) <= allowed

    on_ranks(ranks, value, check)


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in MATRICES if name[:4] not in ("defi", "zero")])
def test_solutions_have_small_residuals(name: str, dtype: Any, ranks: int) -> None:
    """Whatever the condition; but where elimination makes items grow, LAPACK's grow as well."""
    value, right = of_dtype(MATRICES[name](SIZE), dtype), of_dtype(draw(SIZE, 3), dtype)
    eps = np.finfo(dtype).eps
    growth = 2.0 ** (SIZE - 1) / SIZE if name == "Wilkinson's" else 1

    def check(x: Any) -> None:
        found = np.asarray(da.linalg.solve(x, right))
        bound = 10 * SIZE * eps * size_of(value) * size_of(found)
        assert size_of(value @ found - right) <= bound * growth
        factors = da.linalg.lu_factor(x)
        for trans, matrix in enumerate((value, value.mT, value.mT.conj())):
            found = np.asarray(da.linalg.lu_solve(factors, right, trans))
            bound = 10 * SIZE * eps * size_of(value) * size_of(found)
            assert size_of(matrix @ found - right) <= bound * growth
        sign, logarithm = da.linalg.slogdet(x)
        wanted = np.linalg.slogdet(value)
        if name in ("condition 1e0", "large", "small"):
            np.testing.assert_allclose(np.asarray(sign), wanted[0], atol=1e4 * eps)
            np.testing.assert_allclose(np.asarray(logarithm), wanted[1], atol=1e4 * eps)

    on_ranks(ranks, value, check)


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [0, 4, 10, 14])
def test_cholesky_factors_have_small_residuals(power: int, dtype: Any, ranks: int) -> None:
    """Of a condition at which rounding leaves a matrix positive definite."""
    power = min(power, 5 if np.finfo(dtype).eps > 1e-10 else 13)
    u = np.linalg.qr(of_dtype(draw(SIZE, SIZE), np.result_type(dtype, np.float64)))[0]
    value = (u * np.logspace(0, -power, SIZE)) @ u.mT.conj()
    value = ((value + value.mT.conj()) / 2).astype(dtype)
    right = of_dtype(draw(SIZE, 3), dtype)
    eps = np.finfo(dtype).eps

    def check(x: Any) -> None:
        for upper in (False, True):
            factor = np.asarray(da.linalg.cholesky(x, upper=upper))
            factor = factor.mT.conj() if upper else factor
            assert size_of(factor @ factor.mT.conj() - value) <= 10 * SIZE * eps * size_of(value)
            found = np.asarray(da.linalg.cho_solve(da.linalg.cho_factor(x, not upper), right))
            bound = 10 * SIZE * eps * size_of(value) * size_of(found)
            assert size_of(value @ found - right) <= bound

    on_ranks(ranks, value, check)


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["condition 1e5", "condition 1e15", "deficient", "zero columns"])
def test_least_squares_leave_what_is_orthogonal(name: str, dtype: Any, ranks: int) -> None:
    value, right = of_dtype(MATRICES[name](5), dtype), of_dtype(draw(SIZE, 2, seed=2), dtype)
    eps = np.finfo(dtype).eps

    def check(x: Any) -> None:
        found, _, rank, _ = da.linalg.lstsq(x, right, rcond=1e-10 if eps < 1e-10 else 1e-5)
        wanted = np.linalg.lstsq(value, right, rcond=1e-10 if eps < 1e-10 else 1e-5)
        assert rank == wanted[2]
        found = np.asarray(found)
        left = value @ found - right
        bound = (
            100 * SIZE * eps * size_of(value) * (size_of(value) * size_of(found) + size_of(right))
        )
        if name != "condition 1e15":  # of which a part is left out
            assert size_of(value.mT.conj() @ left) <= bound
        inverse = np.asarray(da.linalg.pinv(x, rtol=1e-10 if eps < 1e-10 else 1e-5))
        expected = np.linalg.pinv(value, rtol=1e-10 if eps < 1e-10 else 1e-5)
        kept = np.linalg.svdvals(expected)
        scale = kept.max() ** 2 * size_of(value)
        assert size_of(inverse - expected) <= 1000 * eps * scale

    on_ranks(ranks, value, check)


SINGULAR = {
    "zeros": np.zeros((SIZE, SIZE)),
    "a zero column": np.eye(SIZE) * (np.arange(SIZE) != 17),
    "a zero row": (np.ones((SIZE, SIZE)) + np.diag(np.arange(SIZE)))
    * (np.arange(SIZE) != 28)[:, None],
    "ones": np.ones((SIZE, SIZE)),
}


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*MATRICES, *SINGULAR])
@pytest.mark.filterwarnings("ignore:lu_factor")
def test_triangles_are_the_matrix_but_for_the_order_of_rows(
    name: str, dtype: Any, ranks: int
) -> None:
    """Also where a pivot is 0: such a column has nothing left to eliminate."""
    value = of_dtype(MATRICES[name](SIZE) if name in MATRICES else SINGULAR[name] + 0j, dtype)

    def check(x: Any) -> None:
        lu, pivots = map(np.asarray, da.linalg.lu_factor(x))
        lower, upper = np.tril(lu, -1) + np.eye(SIZE, dtype=dtype), np.triu(lu)
        assert abs(lower).max() <= 4
        product = lower @ upper
        for i in reversed(range(SIZE)):
            product[[i, pivots[i]]] = product[[pivots[i], i]]
        growth = max(size_of(upper) / max(size_of(value), 1e-30), 1)
        allowed = 10 * SIZE * np.finfo(dtype).eps * size_of(value) * growth
        assert size_of(product - value) <= allowed

    on_ranks(ranks, value, check)


@pytest.mark.parametrize("ranks", CUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("name", SINGULAR)
def test_singular_matrices_are_an_error_on_every_rank(name: str, dtype: Any, ranks: int) -> None:
    value = SINGULAR[name].astype(dtype)
    raised: list[str] = []

    def check(x: Any) -> None:
        for call in (
            lambda: da.linalg.solve(x, np.ones(SIZE, dtype)),
            lambda: da.linalg.inv(x),
            lambda: da.linalg.cholesky(x - np.eye(SIZE, dtype=dtype)),
        ):
            with pytest.raises(da.linalg.LinAlgError) as error:
                call()
            raised.append(str(error.value))
        assert float(abs(da.linalg.det(x))) == 0

    on_ranks(ranks, value, check)
    assert len(raised) == 3 * ranks
    assert len(set(raised)) == 3
