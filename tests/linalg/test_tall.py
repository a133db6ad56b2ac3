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
from tests import peak_memory
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


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
def test_columns_nearly_of_the_largest_length_are_factorized_as_others(dtype: Any) -> None:
    rng, finfo = np.random.default_rng(0), np.finfo(dtype)
    x = rng.normal(size=(64, 4)).astype(dtype)
    if finfo.dtype != dtype:
        x = x + 1j * rng.normal(size=x.shape)
    x = (x / np.linalg.norm(x, axis=0).max() * (finfo.max * 0.9)).astype(dtype)
    scale = np.abs(x).max()

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((4,)), [da.Shard(0)], src=None)
        assert is_tall(a.layout)
        q, r = (np.asarray(one) for one in da.linalg.qr(a))
        np.testing.assert_allclose(q.T.conj() @ q, np.eye(4), atol=40 * finfo.eps)
        np.testing.assert_allclose(q @ (r / scale), x / scale, atol=40 * finfo.eps)

    on_ranks(program)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32, np.complex64])
def test_short_columns_beside_nearly_the_longest_keep_their_digits(dtype: Any) -> None:
    rng, finfo = np.random.default_rng(0), np.finfo(dtype)
    x = rng.normal(size=(64, 4))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=x.shape)
    lengths = np.array([1e-3, 0.01 * finfo.max, finfo.eps, finfo.tiny * 1e3], finfo.dtype)
    x = (x * lengths).astype(dtype)

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((4,)), [da.Shard(0)], src=None)
        q, r = (np.asarray(one) for one in da.linalg.qr(a))
        np.testing.assert_allclose(q.T.conj() @ q, np.eye(4), atol=40 * finfo.eps)
        np.testing.assert_allclose(q @ (r / lengths), x / lengths, atol=100 * finfo.eps)

    on_ranks(program)


@pytest.mark.parametrize("placement", [da.Shard(0), da.Shard(1)], ids=str)
@pytest.mark.parametrize("scale", [1e-310, 1.0, 1.4e307])
def test_least_squares_of_dependent_columns_have_numpys_rank(placement: Any, scale: float) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 4)), rng.normal(size=64)
    a[:, 3] = a[:, 0] + a[:, 1]
    a *= scale
    expected = np.linalg.lstsq(a, scale * b)

    def program() -> None:
        x = da.distribute_array(a, da.init_device_mesh((2,)), [placement], src=None)
        with np.errstate(over="ignore"):  # of the largest singular value, as NumPy's
            found = da.linalg.lstsq(x, da.asarray(scale * b), rcond=None)
        np.testing.assert_allclose(np.asarray(found[0]), expected[0], rtol=1e-9)
        assert found[2] == expected[2] == 3
        np.testing.assert_allclose(np.asarray(found[3])[:3], expected[3][:3], rtol=1e-9)

    simulate(2, program)


def test_triangles_are_sent_and_no_row() -> None:
    rows, columns = 1000, 4
    x = np.random.default_rng(0).normal(size=(rows, columns))

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        a = da.distribute_array(x, mesh, [da.Shard(0)], src=None)
        with CommLog() as log, da.communication("raise", min_bytes=1024):
            u, s, vh = da.linalg.svd(a, full_matrices=False)
        checksums = log.bytes("all_gather")
        assert checksums == 3 * 8
        assert log.bytes() - checksums <= 3 * columns * columns * 8
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


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_triangles_go_up_and_down_a_tree(ranks: int) -> None:
    """A process receives the square of the columns at most log2(p) times, and twice in return."""
    columns = 4
    square = columns * columns * 8
    x = np.random.default_rng(0).normal(size=(columns * ranks, columns))

    def program() -> tuple[int, int, int]:
        a = da.distribute_array(x, da.init_device_mesh((ranks,)), [da.Shard(0)], src=None)
        with CommLog() as log:
            da.linalg.qr(a)
        with CommLog() as alone:
            da.linalg.qr(a, mode="r")
        rank = a.mesh.coordinate[0]
        children = [d for d in (1, 2, 4) if not rank % (2 * d) and rank + d < ranks]
        return len(children), log.bytes(), alone.bytes()

    told = simulate(ranks, program)
    for rank, (children, both, alone) in enumerate(told):
        assert both == (children + (2 if rank else 0)) * square
        assert alone == (children + (1 if rank else 0)) * square
    assert told[0][1] == np.ceil(np.log2(ranks)) * square


def matrix_of(condition: float, dtype: Any, shape: tuple[int, int] = (401, 6)) -> np.ndarray:
    """Return a matrix of random columns and a condition."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    u, _, vh = np.linalg.svd(x if np.dtype(dtype).kind == "c" else x.real, full_matrices=False)
    return ((u * np.logspace(0, -np.log10(condition), shape[1])) @ vh).astype(dtype)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have small matrices be multiplied, and tell which triangles the products gave."""
    told = []
    choose = _tall._choose

    def watch(products: np.ndarray, terms: int, may_shift: bool) -> np.ndarray:
        found = choose(products, terms, may_shift)
        kind = "none" if np.isnan(found).all() else "shifted" if found[-1, 0] else "plain"
        told.append(kind)
        return found

    monkeypatch.setattr(_tall, "_CHOLESKY_BYTES", 0)
    monkeypatch.setattr(_tall, "_choose", watch)
    return told


def check_factors(x: np.ndarray, ranks: int, boundaries: Any = None) -> None:
    """Check residuals, column by column, and orthogonality, in units of rounding."""
    columns = x.shape[1]
    norms = np.linalg.norm(x / (abs(x).max() or 1), axis=0)

    def off(product: np.ndarray, wanted: np.ndarray, eps: float) -> float:
        size = abs(wanted).max() or 1
        errors = np.linalg.norm(product / size - wanted / size, axis=0)
        return float((errors / (norms + (norms == 0))).max() / eps)

    def program() -> None:
        mesh = da.init_device_mesh((ranks,))
        a = da.distribute_array(x, mesh, [da.Shard(0)], src=None)
        if boundaries is not None:
            a = a.redistribute([da.Shard(0)], boundaries={0: boundaries})
        q, r = da.linalg.qr(a)
        u, s, vh = da.linalg.svd(a, full_matrices=False)
        only, values = da.linalg.qr(a, mode="r"), da.linalg.svdvals(a)
        assert q.layout == u.layout == a.layout
        if mesh.coordinate is None:
            return
        eps = np.finfo(s.dtype).eps
        q, r, u, s, vh, only, values = (np.asarray(one) for one in (q, r, u, s, vh, only, values))
        assert q.dtype == r.dtype == only.dtype == np.linalg.qr(x)[0].dtype
        for basis in (q, u, vh.T):
            assert np.linalg.norm(basis.T.conj() @ basis - np.eye(columns)) < 20 * eps * columns
        assert off(q @ r, x, eps) < 20
        np.testing.assert_array_equal(r, np.triu(r))
        scale = abs(x).max() or 1
        wanted = np.linalg.svdvals(x / scale)
        bound = 20 * eps * (wanted.max() or 1)
        assert np.linalg.norm((u * (s / scale)) @ vh - x / scale) < bound * columns
        for found in (s, values):  # NumPy's are off by 40 eps with an OpenBLAS for SSE3
            np.testing.assert_allclose(found / scale, wanted, rtol=0, atol=bound * columns)
        grams = ((one / scale).T.conj() @ (one / scale) for one in (only, r))
        np.testing.assert_allclose(*grams, rtol=0, atol=bound * columns * wanted.max())

    simulate(ranks, program)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("power", [0, 2, 4, 6, 8, 10, 12, 14, 15, 17])
def test_long_matrices_of_any_condition_are_factorized_by_products(
    long: list[str], dtype: Any, power: int
) -> None:
    check_factors(matrix_of(10.0**power, dtype), ranks=2 + power % 3)
    assert "none" not in long
    assert long[0] == "plain" if power <= 4 else "shifted"


@pytest.mark.parametrize("scale", [1e300, 1e200, 1e-155, 1e-200, 1e-300])
@pytest.mark.parametrize("power", [1, 15])
def test_products_that_overflow_or_vanish_are_not_trusted(
    long: list[str], scale: float, power: int
) -> None:
    check_factors(matrix_of(10.0**power, np.float64) * scale, ranks=3)
    assert set(long) == {"none"}


def test_columns_of_any_length_are_no_condition(long: list[str]) -> None:
    check_factors(matrix_of(10, np.float64) * np.logspace(0, -100, 6), ranks=3)
    assert set(long) == {"plain"}


DEPENDENT = {
    "one column twice": lambda x: x[:, [0, 1, 2, 1, 4, 5]],
    "two dimensions": lambda x: x[:, :2] @ x[:2],
    "a column of zeros": lambda x: x * (np.arange(6) != 3),
    "zeros": lambda x: x * 0,
    "ones": lambda x: x * 0 + 1,
    "a few rows": lambda x: x * (np.arange(len(x)) > 396)[:, None],
    "rows of any size": lambda x: x * np.logspace(0, -15, len(x))[:, None],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128, np.int32])
@pytest.mark.parametrize("name", DEPENDENT)
@pytest.mark.usefixtures("long")
def test_dependent_columns_have_orthonormal_factors(name: str, dtype: Any) -> None:
    x = matrix_of(10, np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
    x = x * 10 if dtype is np.int32 else x
    check_factors(DEPENDENT[name](x).astype(dtype), ranks=2 + len(name) % 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_multiplied(long: list[str], bad: float) -> None:
    x = matrix_of(10, np.float64)
    x[7, 3] = bad

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((3,)), [da.Shard(0)], src=None)
        q, r = da.linalg.qr(a)
        assert np.isnan(r.full_array()).any()
        assert np.isnan(q.full_array()).any()
        for call in (da.linalg.svdvals, lambda x: da.linalg.svd(x, full_matrices=False)):
            with pytest.raises(da.linalg.LinAlgError, match="svd"):
                call(a)

    simulate(3, program)
    assert set(long) == {"none"}


@pytest.mark.parametrize(("power", "shifts"), [(0, 0), (7, 1), (12, 2)])
@pytest.mark.usefixtures("long")
def test_products_are_reduced_and_triangles_told(power: int, shifts: int) -> None:
    """All-reduces move twice n^2 items each, and n^2 of the triangle come from one process."""
    x, ranks = matrix_of(10.0**power, np.float64), 3

    def program() -> None:
        a = da.distribute_array(x, da.init_device_mesh((ranks,)), [da.Shard(0)], src=None)
        with CommLog() as log:
            da.linalg.qr(a)
        assert log.count("all_reduce") == shifts + 2
        assert log.count("broadcast") == shifts + 1
        assert log.count() == 2 * shifts + 3
        square = 36 * 8
        told = 0 if a.mesh.coordinate[0] == 0 else 42 * 8 * (shifts + 1)
        assert log.bytes() == 2 * (ranks - 1) * square // ranks * (shifts + 2) + told

    simulate(ranks, program)


@pytest.mark.parametrize("power", [0, 15])
@pytest.mark.parametrize("least", [0, 1 << 30])
def test_blocks_of_few_or_no_rows(monkeypatch: pytest.MonkeyPatch, power: int, least: int) -> None:
    monkeypatch.setattr(_tall, "_CHOLESKY_BYTES", least)
    check_factors(matrix_of(10.0**power, np.float64, (90, 5)), 4, (0, 2, 2, 88, 90))
    check_factors(matrix_of(10.0**power, np.float64, (90, 5)), 3, (0, 0, 0, 90))


def test_long_matrices_keep_their_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("power", "least", "blocks"),
    [(1, 0, 0.5), (12, 0, 0.5), (1, 1 << 40, 2.1 + peak_memory.COUNTS_LAPACK)],
)
def test_peak_memory_is_the_factor_or_twice_the_block(
    monkeypatch: pytest.MonkeyPatch, power: int, least: int, blocks: float
) -> None:
    """Products need pieces of rows beside the factor; TSQR has the rows' own factor and a copy."""
    monkeypatch.setattr(_tall, "_CHOLESKY_BYTES", least)
    x = np.random.default_rng(0).normal(size=(1 << 17, 8)) @ matrix_of(10.0**power, float, (8, 8))
    assert peak_memory.scratch(da.linalg.qr, x, 2) <= blocks


@pytest.mark.host_only
def test_least_squares_need_the_memory_of_the_decomposition() -> None:
    x = np.random.default_rng(0).normal(size=(1 << 17, 8))
    assert peak_memory.scratch(lambda x: da.linalg.lstsq(x, x)[0], x, 2) <= 2.1
