"""Large matrices are factorized in tiles that are dealt out to all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import lcm
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import DTypeError, ImplicitCommunicationError
from distarray.layout import Replicate, Shard
from distarray.linalg import _elimination, _kernels, _tiles
from distarray.testing import simulate
from tests.array.strategies import Case, agrees, cases, on_ranks

DTYPES = (np.float64, np.float32, np.complex128, np.complex64, np.int32)


@pytest.fixture(autouse=True)
def _no_matrix_is_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", 5)
    monkeypatch.setattr(_elimination, "STRIP", 2)
    monkeypatch.setattr(_kernels, "LEAF", 2)
    yield
    da.testing.reset()


@pytest.fixture(params=[False, True], ids=["NumPy", "SciPy"])
def kernels(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels made of NumPy's functions alone, or take SciPy's."""
    if request.param:
        pytest.importorskip("scipy")
    else:
        monkeypatch.setattr(_kernels, "_scipy", lambda *_: None)


def units(difference: Any, *scales: Any) -> float:
    """Return the norm of a difference in units of rounding: of its size and the norms of others."""
    eps = np.finfo(np.asarray(difference).dtype).eps
    norms = np.prod([max(np.linalg.norm(one), 1e-30) for one in scales])
    return float(np.linalg.norm(difference) / norms / len(difference) / eps)


@st.composite
def square(draw: Any) -> Case:
    size = draw(st.sampled_from((1, 2, 4, 9, 13, 23)))
    case: Case = draw(cases(DTYPES, ("sum",), shape=(size, size)))
    return case


@settings(max_examples=15)
@given(x=square(), upper=st.booleans())
def test_cholesky_factors_multiply_to_the_matrix(x: Case, upper: bool) -> None:
    first = x.value @ x.value.mT.conj() + np.eye(len(x.value), dtype=x.value.dtype)
    x = replace(x, values=np.concatenate([first[None], 0 * x.values[1:]]).astype(first.dtype))
    if x.op == "avg":
        return
    value = x.value
    below = value + np.tril(np.ones(value.shape, value.dtype), -1) * 7  # what is not looked at

    def program() -> None:
        array = x.build()
        if array.mesh.coordinate is not None and upper and not array.layout.has_partial:
            array = da.distribute_array(below, array.mesh, array.placements, src=None)
        found = da.linalg.cholesky(array, upper=upper)
        assert found.layout == array.layout.without_partial()
        if array.mesh.coordinate is None:
            return
        factor = np.asarray(found)
        assert factor.dtype == np.linalg.cholesky(value).dtype
        np.testing.assert_array_equal(factor, np.triu(factor) if upper else np.tril(factor))
        product = factor.mT.conj() @ factor if upper else factor @ factor.mT.conj()
        assert units(product - value, value) < 10

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_solutions_and_determinants_are_those_of_the_matrix(data: st.DataObject) -> None:
    x = data.draw(square())
    size = len(x.value)
    columns = data.draw(st.sampled_from([(), (0,), (1,), (2,), (17,)]))
    y = data.draw(cases(DTYPES, (), mesh_shape=x.mesh_shape, shape=(size, *columns)))
    y = replace(y, ranks=x.ranks)
    x = replace(x, values=x.values + 3 * np.eye(size, dtype=x.values.dtype))
    value, right, is_plain = x.value, y.value, data.draw(st.booleans())
    sign, logarithm = np.linalg.slogdet(value)
    is_regular = sign != 0 and np.linalg.cond(value) < 1e4

    def program() -> None:
        array = x.build()
        found = da.linalg.slogdet(array)
        if is_regular:
            agrees(found.sign, sign, atol=1e-2)
            agrees(found.logabsdet, logarithm, rtol=1e-3, atol=1e-3)
            agrees(da.linalg.det(array), np.linalg.det(value), rtol=1e-2)
            solution = da.linalg.solve(array, right if is_plain else y.build())
            inverse = da.linalg.inv(array)
            assert inverse.layout == array.layout.without_partial()
            assert solution.dtype == np.linalg.solve(value, right).dtype
            assert solution.shape == right.shape
            if array.mesh.coordinate is not None:
                solution, inverse = np.asarray(solution), np.asarray(inverse)
                assert units(value @ solution - right, value, solution) < 10
                eye = np.eye(size, dtype=inverse.dtype)
                assert units(value @ inverse - eye, value, inverse) < 10

    on_ranks(program)


@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.parametrize("kind", ["all", "columns", "diagonal"])
@pytest.mark.usefixtures("kernels")
def test_subnormal_pivots_are_divided_by(kind: str, dtype: Any) -> None:
    size, tiny = 14, float(np.finfo(dtype).tiny) / 64
    rng = np.random.default_rng(0)
    value = rng.normal(size=(size, size)) + 3 * np.eye(size)
    if np.dtype(dtype).kind == "c":
        value = value + 1j * rng.normal(size=value.shape)
    scales = np.ones(size)
    scales[slice(None) if kind == "all" else [3, 12]] = tiny
    value = np.diag(value.diagonal()) if kind == "diagonal" else value
    right = rng.normal(size=(size, 3))
    sign, logarithm = np.linalg.slogdet(value)
    expected = np.linalg.solve(value, right)
    matrix = (value * scales).astype(dtype)
    scaled = (right * tiny).astype(dtype)  # so that no solution overflows

    def program() -> None:
        x = da.distribute_array(matrix, da.init_device_mesh((3,)), [Shard(0)], src=None)
        found = da.linalg.slogdet(x)
        assert abs(complex(found.sign) - sign) < 1e-2
        np.testing.assert_allclose(found.logabsdet, logarithm + np.log(scales).sum(), rtol=1e-4)
        solution = np.asarray(da.linalg.solve(x, scaled)).astype(value.dtype)
        solution = solution * scales[:, None] * 2.0**100 / (tiny * 2.0**100)
        np.testing.assert_allclose(solution, expected, rtol=0, atol=1e-2 * abs(expected).max())

    simulate(3, program)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.usefixtures("kernels")
def test_pivots_of_two_subnormal_parts_are_divided_by(dtype: Any) -> None:
    unit = np.finfo(dtype).tiny / 64
    numbers = np.array([[60 + 55j, 3], [30 - 20j, 400 + 10j], [-17j, 330 - 80j]])
    panel = np.array(numbers * unit, dtype)  # whose first pivot has a size above the smallest
    triangles, order = _kernels.eliminate_panel(panel)
    lower = np.tril(triangles, -1) + np.eye(3, 2)
    upper = np.triu(triangles)[:2] * 2.0**64 / (unit * 2.0**64)
    assert abs(lower[1:]).max() > 0.1
    np.testing.assert_allclose(lower @ upper, numbers[order], rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.usefixtures("kernels")
def test_subnormal_pivots_below_zeros_are_found(dtype: Any) -> None:
    unit = np.finfo(dtype).tiny / 64
    numbers = np.array([[0, 0], [0, 0], [30, -20], [0, 25]])
    triangles, order = _kernels.eliminate_panel(np.array(numbers * unit, dtype))
    assert (triangles == numbers[[2, 3, 0, 1]] * unit).all()
    assert order[:2].tolist() == [2, 3]


@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.usefixtures("kernels")
def test_ill_conditioned_and_growing_matrices_have_small_residuals(dtype: Any) -> None:
    size = 37
    rng = np.random.default_rng(0)
    u, _, vh = np.linalg.svd(rng.normal(size=(size, size)))
    ill = ((u * np.logspace(0, -15, size)) @ vh).astype(dtype)
    growing = np.eye(size) - np.tril(np.ones((size, size)), -1)  # Wilkinson's matrix
    growing[:, -1] = 1
    right = rng.normal(size=(size, 3)).astype(dtype)
    allowed = 10 * units(growing @ np.linalg.solve(growing, right) - right, growing) + 10
    spd = (u * np.logspace(0, -12, size)) @ u.T

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        for matrix, bound in ((ill, 10), (growing.astype(dtype), allowed)):
            x = da.distribute_array(matrix, mesh, [Shard(0), Shard(1)], src=None)
            solution = np.asarray(da.linalg.solve(x, right))
            assert units(matrix @ solution - right, matrix, solution) < bound
        for count in (3, 4):  # a grid of one column, and one of two
            mesh = da.init_device_mesh((count,))
            factor = da.linalg.cholesky(da.distribute_array(spd, mesh, src=None))
            if mesh.coordinate is not None:
                factor = np.asarray(factor)
                assert units(factor @ factor.T - spd, spd) < 10

    on_ranks(program)


@pytest.mark.parametrize("bad", [0, 7, 22])
def test_what_one_rank_finds_is_an_error_on_all(bad: int) -> None:
    indefinite, singular = np.eye(23), np.eye(23)
    indefinite[bad, bad] = -1
    singular[bad, bad] = 0

    def program() -> None:
        x = da.asarray(singular)
        for placement in (Shard(0), Shard(1)):
            with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
                da.linalg.cholesky(da.asarray(indefinite, placements=[placement]))
        for call in (da.linalg.inv, lambda x: da.linalg.solve(x, np.ones(23))):
            with pytest.raises(da.linalg.LinAlgError, match="Singular"):
                call(x)
        agrees(da.linalg.det(x), 0.0)
        agrees(da.linalg.slogdet(x).logabsdet, -np.inf)
        agrees(da.linalg.det(da.asarray(indefinite)), -1.0, rtol=1e-12)

    on_ranks(program)


def test_bytes_are_of_the_order_of_a_matrix_by_the_root_of_the_ranks() -> None:
    size = 80
    x = np.random.default_rng(0).normal(size=(size, size))

    def program() -> None:
        a = da.distribute_array(x @ x.T + np.eye(size), placements=[Shard(0)], src=None)
        block = a.to_local().nbytes
        for function, panels in ((da.linalg.cholesky, 1), (da.linalg.det, 2)):
            with CommLog() as log:
                function(a)
            # To tiles and back, and of each panel the tiles of own rows and of own columns.
            assert log.bytes() < 2 * block + panels * (size + 10) ** 2 * 8 / 2 + 20_000
            with (
                CommLog() as log,
                da.communication("raise"),
                pytest.raises(ImplicitCommunicationError, match=r"cholesky|slogdet"),
            ):
                function(a)
            assert log.count() == 0

    on_ranks(program)


def test_matrices_that_are_whole_or_not_square_go_another_way() -> None:
    def program() -> None:
        whole = da.eye(6, placements=[Replicate()])
        with da.communication("raise"):
            agrees(da.linalg.inv(whole), np.eye(6))
        assert not _tiles.takes_tiles(da.ones((6, 5)))
        with pytest.raises(np.linalg.LinAlgError):
            da.linalg.cholesky(da.ones((6, 5)))
        assert da.linalg.solve(da.eye(6), da.ones((6, 3), placements=[Shard(1)])).placements == (
            Shard(0),
        )

    on_ranks(program)


@pytest.mark.parametrize("shape", [(40, 23), (7, 23), (1, 1), (33, 16)])
@pytest.mark.usefixtures("kernels")
def test_panels_are_eliminated_with_partial_pivoting(shape: tuple[int, int]) -> None:
    panel = np.random.default_rng(0).normal(size=shape)
    triangles, order = _kernels.eliminate_panel(panel)
    steps = min(shape)
    lower = np.tril(triangles[:, :steps], -1) + np.eye(shape[0], steps)
    np.testing.assert_allclose(lower @ np.triu(triangles[:steps]), panel[order], atol=1e-13)
    assert abs(lower).max() <= 1


@pytest.mark.usefixtures("kernels")
def test_panel_without_rows_is_eliminated_without_a_complaint(capfd: Any) -> None:
    assert _kernels.eliminate_panel(np.empty((0, 5)))[1].shape == (0,)
    assert capfd.readouterr() == ("", "")


def cut_out(x: np.ndarray, by: str) -> np.ndarray:
    """Return a matrix of the same items that lie otherwise: cut out of a larger one, or turned."""
    rows, columns = x.shape
    larger = np.full((rows + 3, columns + 4), 7, x.dtype)
    if by == "rows":
        found = larger[1:-2, 2:-2]
    elif by == "columns":
        found = larger.reshape(larger.shape[::-1]).T[1:-2, 2:-2]
    else:
        found = np.full((2 * rows, 2 * columns), 7, x.dtype)[::2, ::-2]
    found[...] = x
    return found


LIE = ("rows", "columns", "neither")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", DTYPES[:4])
@pytest.mark.parametrize(
    "shape", [(5, 4, 6), (1, 3, 2), (4, 1, 1), (3, 2, 1), (0, 2, 2), (2, 0, 3)]
)
def test_products_are_subtracted_where_matrices_lie(shape: tuple[int, ...], dtype: Any) -> None:
    m, k, n = shape
    rng = np.random.default_rng(0)
    x, a, b = ((9 * rng.normal(size=size)).astype(dtype) for size in ((m, n), (m, k), (k, n)))
    for lies in product(LIE, repeat=3):
        own, *others = map(cut_out, (x, a, b), lies)
        whole = own.base
        _kernels.subtract_product(own, *others)
        np.testing.assert_allclose(own, x - a @ b, rtol=1e-4)
        own[...] = 7
        assert (whole == 7).all()  # nothing beside it is written


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("lower", [True, False])
def test_triangles_are_solved_in_place(lower: bool, unit: bool) -> None:
    rng = np.random.default_rng(0)
    full = rng.normal(size=(9, 9)) + 1j * rng.normal(size=(9, 9)) + 5 * np.eye(9)
    triangle = np.tril(full, -unit) if lower else np.triu(full, unit)
    beside = np.where(triangle == 0, np.nan, triangle)  # what is not looked at
    triangle += np.eye(9) * unit
    for columns, *lies in product((9, 4, 1, 0), LIE, LIE):
        x, given = map(cut_out, (full[:, :columns], beside), lies)
        expected, whole = np.linalg.solve(triangle, x), x.base
        _kernels.solve_triangle(given, x, lower, unit)
        np.testing.assert_allclose(x, expected, atol=1e-13)
        x[...] = 7
        assert (whole == 7).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("lower", [True, False])
def test_no_pivot_of_a_triangle_with_a_diagonal_is_zero(lower: bool) -> None:
    triangle, x = np.array([[1e-200, 0], [1e200, 1e-200]]), np.ones((2, 1))
    turn = slice(None, None, 1 if lower else -1)
    with np.errstate(all="ignore"):
        _kernels.solve_triangle(np.ascontiguousarray(triangle[turn, turn]), x, lower)
    np.testing.assert_allclose(x[turn, 0], [1e200, -np.inf])


@pytest.mark.usefixtures("kernels")
def test_items_at_any_address_are_solved_in_place() -> None:
    x = np.zeros(73, np.uint8)[1:].view(np.float64).reshape(3, 3)
    x[...] = np.eye(3)
    _kernels.solve_triangle(np.diag([2.0, 4.0, 8.0]), x, lower=True)
    np.testing.assert_array_equal(x, np.diag([0.5, 0.25, 0.125]))


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_dtypes_that_tiles_refuse_are_those_of_whole_matrices(dtype: Any) -> None:
    def program() -> None:
        x = da.distribute_array(np.eye(9).astype(dtype), placements=[Shard(0)], src=None)
        linalg = da.linalg
        for function in (linalg.inv, linalg.det, linalg.slogdet, linalg.cholesky, linalg.qr):
            with pytest.raises(DTypeError, match="convert the operands with astype"):
                function(x)
        for of_two in (linalg.solve, linalg.solve_triangular):
            with pytest.raises(DTypeError, match="convert the operands with astype"):
                of_two(x, x)

    simulate(2, program)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 7])
def test_few_rows_fill_up_the_last_turn_of_tiles(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tiles, "WIDTH", 256)

    def program() -> None:
        for size in (1, 9, 255, 256, 257, 1100, 4096, 10_000):
            x = da.ones((size, 1))
            grid = _tiles.Grid(x.layout, _tiles.tile_width(x))
            assert 0 < grid.width <= 256
            turn = lcm(grid.rows, grid.columns)
            turns = -(-size // (256 * turn))
            assert 0 <= grid.count * grid.width - size < 8 * turn * turns

    simulate(ranks, program)


def test_functions_of_other_integers_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    assert _kernels._scipy.__wrapped__("gemm", np.dtype(float)) is not None
    monkeypatch.setattr(_kernels, "_GET_NAME", lambda _: b"void (char *, long *, double *)")
    assert _kernels._scipy.__wrapped__("gemm", np.dtype(float)) is None
    assert _kernels._scipy.__wrapped__("gemm", np.dtype(np.longdouble)) is None
