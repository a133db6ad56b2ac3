"""Triangles of a matrix are kept, and serve right-hand sides that come later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from distarray.layout import Replicate, Shard
from distarray.linalg import _kernels, _tiles
from distarray.testing import simulate
from tests import peak_memory
from tests.array.strategies import on_ranks

RANKS = 4
HOW = {0: 0, "N": 0, 1: 1, "T": 1, 2: 2, "C": 2}


@pytest.fixture(params=[0, 1 << 30], ids=["tiles", "whole"])
def _least(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", request.param)
    monkeypatch.setattr(_tiles, "WIDTH", 5)
    monkeypatch.setattr(_kernels, "LEAF", 2)
    yield
    da.testing.reset()


def draw(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = rng.normal(size=shape)
    return (found + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else found).astype(
        dtype
    )


def turned(a: np.ndarray, trans: Any) -> np.ndarray:
    return np.asarray((a, a.mT, a.mT.conj())[HOW[trans]])


def is_solution(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> bool:
    scale = np.linalg.norm(a) * np.linalg.norm(x) * len(b) * np.finfo(x.dtype).eps
    return bool(np.linalg.norm(a @ x - b) < 10 * scale)


@pytest.mark.parametrize("trans", HOW)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.usefixtures("_least")
def test_factors_solve_for_every_kind_of_right_hand_side(dtype: Any, trans: Any) -> None:
    a = draw(23, 23, dtype=dtype)
    rights = [draw(23, dtype=dtype, seed=1), draw(23, 2, dtype=dtype, seed=2)]
    rights.append(draw(23, 0, dtype=dtype))

    def program() -> None:
        factors = da.linalg.lu_factor(da.asarray(a))
        assert factors[0].placements == da.asarray(a).placements
        assert factors[1].dtype == np.int32
        for b in rights:
            for given in (b, da.asarray(b)):
                x = np.asarray(da.linalg.lu_solve(factors, given, trans))
                assert (x.shape, x.dtype) == (b.shape, dtype)
                assert not b.size or is_solution(turned(a, trans), x, b)

    on_ranks(program)


@pytest.mark.parametrize(
    ("mesh_shape", "placements"),
    [
        ((4,), [Shard(1)]),
        ((2, 2), [Shard(1), Shard(0)]),
        ((2, 2), [Replicate(), Shard(0)]),
        ((2, 2), [Shard(0), Shard(0)]),
    ],
)
@pytest.mark.usefixtures("_least")
def test_any_layout_is_kept_by_the_triangles(
    mesh_shape: tuple[int, ...], placements: list[da.Placement]
) -> None:
    a, b = draw(23, 23), draw(23, 3, seed=1)

    def program() -> None:
        mesh = da.init_device_mesh(mesh_shape)
        x = da.distribute_array(a, mesh, placements, src=None)
        parts = da.distribute_array(a / 4, mesh, [da.Partial()] * mesh.ndim, src=None)
        for one in (x, parts):
            factors = da.linalg.lu_factor(one)
            assert is_solution(np.asarray(one), np.asarray(da.linalg.lu_solve(factors, b)), b)
        assert da.linalg.lu_factor(x)[0].placements == tuple(placements)

    simulate(RANKS, program)


@pytest.mark.parametrize("trans", [0, 1, 2])
def test_batches_broadcast_as_those_of_solve(trans: int) -> None:
    a, b = draw(5, 1, 6, 6, dtype=np.complex128), draw(3, 6, 2, dtype=np.complex128, seed=1)
    wanted = np.linalg.solve(turned(a, trans), b)

    def program() -> None:
        factors = da.linalg.lu_factor(da.asarray(a))
        assert (factors[0].shape, factors[1].shape) == ((5, 1, 6, 6), (5, 1, 6))
        x = da.linalg.lu_solve(factors, b, trans)
        np.testing.assert_allclose(np.asarray(x), wanted, rtol=1e-11)

    on_ranks(program)


@pytest.mark.parametrize("without", [False, True])
def test_interchanges_are_an_order(without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if without:
        monkeypatch.setattr(_kernels, "_scipy", lambda *_: None)
    for n in (0, 1, 7, 600):
        pivots = np.random.default_rng(n).integers(np.arange(n), n) if n else np.zeros(0, int)
        rows = np.arange(n)
        for k, row in enumerate(pivots):
            rows[[k, row]] = rows[[row, k]]
        for dtype in (np.int32, np.int64, np.uint16):
            np.testing.assert_array_equal(_kernels.order_of(pivots.astype(dtype)), rows)


@pytest.mark.parametrize("trans", [0, 1, 2])
@pytest.mark.usefixtures("_least")
def test_pivots_may_be_plain_or_of_another_order_for_each_batch(trans: int) -> None:
    a, b = draw(23, 23, dtype=np.complex128), draw(23, 2, seed=1)

    def program() -> None:
        lu, piv = da.linalg.lu_factor(da.asarray(a))
        pivots = np.asarray(piv)
        for given in (pivots, pivots.astype(np.uint8), pivots.tolist()):
            assert is_solution(
                turned(a, trans), np.asarray(da.linalg.lu_solve((lu, given), b, trans)), b
            )
        for given in (da.asarray(np.tile(pivots, (23, 1))), np.tile(pivots, (23, 1))):
            found = np.asarray(da.linalg.lu_solve((lu, given), b, trans))
            assert found.shape == (23, 23, 2)
            assert is_solution(turned(a, trans), found[3], b)

    on_ranks(program)


def test_factors_of_small_matrices_are_scipys() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    a, b = draw(9, 9), draw(9, 2)
    wanted = linalg.lu_factor(a)
    solution = linalg.lu_solve(wanted, b)  # writes to `piv` meanwhile: not for several threads

    def program() -> None:
        for found, one in zip(da.linalg.lu_factor(da.asarray(a)), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(found), one)
        x = da.linalg.lu_solve(wanted, da.asarray(b))
        np.testing.assert_allclose(np.asarray(x), solution)

    on_ranks(program)


SHAPES = [
    (7, 12),
    (12, 7),
    (1, 1),
    (0, 3),
    (3, 0),
    (2, 5, 5),
    (2, 3, 5, 4),
    (9, 7),
    (23, 23),
    (23, 50),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128, np.int32])
@pytest.mark.usefixtures("_least")
def test_matrices_are_products_of_a_permutation_and_triangles(
    shape: tuple[int, ...], dtype: Any, request: Any
) -> None:
    linalg = pytest.importorskip("scipy.linalg")
    value = (10 * draw(*shape, dtype=dtype if dtype != np.int32 else float)).astype(dtype)
    theirs = linalg.lu(value)
    eps, name = 100 * np.finfo(theirs[1].dtype).eps, request.node.name

    def program() -> None:
        for mesh_shape, placements in (
            ((4,), [Shard(0)]),
            ((4,), [Shard(1)]),
            ((4,), [da.Partial()]),
            ((2, 2), [Shard(1), Shard(0)]),
            ((2, 2), [Replicate(), Shard(1)]),
        ):
            mesh = da.init_device_mesh(mesh_shape)
            x = da.distribute_array(value, mesh, placements, src=None)
            a, found = np.asarray(x), da.linalg.lu(x)
            p, lower, upper = map(np.asarray, found)
            for ours, other in zip((lower, upper), theirs[1:], strict=True):
                assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(p @ lower @ upper, a, atol=eps * 100)
            np.testing.assert_array_equal(lower, np.tril(lower))
            np.testing.assert_array_equal(upper, np.triu(upper))
            assert (lower.diagonal(axis1=-2, axis2=-1) == 1).all()
            assert (p.sum(-1) == 1).all()
            assert (p.sum(-2) == 1).all()
            joined, again = map(np.asarray, da.linalg.lu(x, permute_l=True))
            np.testing.assert_array_equal(joined, p @ lower)
            np.testing.assert_array_equal(again, upper)
            places, lower, _ = map(np.asarray, da.linalg.lu(x, p_indices=True))
            assert (places.shape, places.dtype) == (a.shape[:-1], np.int32)
            np.testing.assert_array_equal(np.take_along_axis(lower, places[..., None], -2), joined)
            if shape in SHAPES[-2:] and da.Partial() not in placements and "tiles" in name:
                assert found[1].placements == found[2].placements == tuple(placements)

    simulate(RANKS, program)


def test_triangles_of_small_matrices_are_scipys() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    singular = draw(6, 6)
    singular[:, 2] = 0
    for value in (draw(9, 9), draw(5, 8), draw(8, 5), draw(3, 4, 4), singular):
        wanted = linalg.lu(value), linalg.lu(value, True), linalg.lu(value, p_indices=True)

        def program(value: np.ndarray = value, wanted: Any = wanted) -> None:
            x = da.asarray(value)
            found = da.linalg.lu(x), da.linalg.lu(x, True), da.linalg.lu(x, p_indices=True)
            for ours, theirs in zip(found, wanted, strict=True):
                for one, other in zip(ours, theirs, strict=True):
                    np.testing.assert_array_equal(np.asarray(one), other)

        on_ranks(program)


def test_no_process_receives_a_matrix_for_triangles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", 16)
    n = 256
    a = draw(n, n)

    def program() -> None:
        x = da.distribute_array(a, da.init_device_mesh((RANKS,)), [Shard(0)], src=None)
        for arguments, most in (((), 4), ((True,), 5)):
            with CommLog() as log:
                da.linalg.lu(x, *arguments)
            assert log.bytes() < most * x.to_local().nbytes

    simulate(RANKS, program)
    da.testing.reset()


@pytest.mark.parametrize(("rows", "columns"), [(4096, 8), (1024, 96)])
def test_no_process_receives_a_tall_matrix(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has three quarters of its own by the tiles and back, with rows that change places."""
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 8 * columns**2)
    monkeypatch.setattr(_tiles, "WIDTH", 32)
    a = draw(rows, columns)

    def program() -> None:
        x = da.distribute_array(a, da.init_device_mesh((RANKS,)), [Shard(0)], src=None)
        for form, most in (({"p_indices": True}, 1.9), ({"permute_l": True}, 2)):
            with CommLog() as log:
                first, *_, u = da.linalg.lu(x, **form)
            assert first.placements == (Shard(0),)
            assert u.placements == (Replicate(),)
            # Panels go to all processes, and so do pivots and their rows.
            assert log.bytes() < most * x.to_local().nbytes + 2 * RANKS * columns**2 * 8

    simulate(RANKS, program)
    da.testing.reset()


@pytest.mark.usefixtures("_least")
def test_a_tall_matrix_of_pivots_of_0_or_nan_is_eliminated() -> None:
    zeros, missing = draw(37, 9), draw(37, 9)
    zeros[:, 3:6] = 0
    missing[5, 4] = np.nan

    def program() -> None:
        p, lower, upper = map(np.asarray, da.linalg.lu(da.asarray(zeros), p_indices=True))
        np.testing.assert_allclose(lower[p] @ upper, zeros, atol=1e-13)
        p, lower, upper = map(np.asarray, da.linalg.lu(da.asarray(missing), p_indices=True))
        assert np.array_equal(np.sort(p), np.arange(37))
        assert np.isnan(lower[p] @ upper).any()

    simulate(RANKS, program)


@pytest.mark.usefixtures("_least")
def test_a_pivot_of_0_is_a_warning_first_and_an_error_then() -> None:
    a = np.eye(23) * (np.arange(23) != 17)
    said: list[str] = []

    def program() -> None:
        x = da.asarray(a)
        factors = da.linalg.lu_factor(x)
        assert not np.asarray(factors[0]).diagonal().all()
        with pytest.raises(da.linalg.LinAlgError, match="Singular") as error:
            da.linalg.lu_solve(factors, np.ones(23))
        said.append(str(error.value))

    with pytest.warns(RuntimeWarning, match="singular"):
        simulate(RANKS, program)
    assert len(said) == RANKS
    assert len(set(said)) == 1


@pytest.mark.usefixtures("_least")
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
@pytest.mark.parametrize("item", [np.nan, np.inf])
@pytest.mark.parametrize("n", [1, 23])
def test_items_that_are_not_finite_are_in_the_factors(n: int, item: float, dtype: Any) -> None:
    a = draw(n, n, dtype=dtype)
    a[n // 2, n // 2] = item

    def program() -> None:
        lu, piv = (np.asarray(one) for one in da.linalg.lu_factor(da.asarray(a)))
        assert not np.isfinite(lu).all()
        assert ((piv >= 0) & (piv < n)).all()

    on_ranks(program)


def test_no_process_receives_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", 16)
    n = 256
    a, b = draw(n, n), draw(n, 1)

    def program() -> None:
        x = da.distribute_array(a, da.init_device_mesh((RANKS,)), [Shard(0)], src=None)
        with CommLog() as log:
            factors = da.linalg.lu_factor(x)
        block = x.to_local().nbytes
        assert log.bytes() < 4 * block  # panels, tiles twice, and rows
        with CommLog() as log:
            da.linalg.lu_solve(factors, b)
        assert log.bytes() < 4.5 * block  # panels and tiles, twice

    simulate(RANKS, program)
    da.testing.reset()


def test_wrong_arguments_are_refused_on_every_rank() -> None:
    def program() -> None:
        factors = da.linalg.lu_factor(da.eye(4) * 2)
        with pytest.raises(ArgumentError, match="lu_factor"):
            da.linalg.lu_solve(factors[0][:3], da.ones(4))
        with pytest.raises(ArgumentError, match="trans"):
            da.linalg.lu_solve(factors, da.ones(4), trans=3)
        with pytest.raises(ArgumentError, match="integers"):
            da.linalg.lu_solve((factors[0], da.ones(4)), da.ones(4))
        with pytest.raises(da.linalg.LinAlgError, match="rows"):
            da.linalg.lu_solve((factors[0], factors[1] + 4), da.ones(4))
        with pytest.raises(ArgumentError):
            da.linalg.lu_solve((factors[0], factors[1][:3]), da.ones(4))
        with pytest.raises((ArgumentError, da.linalg.LinAlgError)):
            da.linalg.lu_solve(factors, da.ones(5))
        for b in (3.0, da.asarray(3.0), np.float64(3)):
            for solve in (
                lambda b: da.linalg.lu_solve(factors, b),
                lambda b: da.linalg.cho_solve((factors[0], False), b),
                lambda b: da.linalg.solve_triangular(factors[0], b),
                lambda b: da.linalg.solve(factors[0], b),
            ):
                with pytest.raises(ShapeError, match=r"right-hand side of shape \(\); .*\(m,\)"):
                    solve(b)
        with pytest.raises(da.linalg.LinAlgError):
            da.linalg.lu_factor(da.ones((4, 3)))
        with pytest.raises(da.linalg.LinAlgError):
            da.linalg.lu_factor(da.ones(4))
        with pytest.raises(da.linalg.LinAlgError, match="at least 2 axes"):
            da.linalg.lu(da.ones(4))
        with pytest.raises(DTypeError, match="float16"):
            da.linalg.lu(da.ones((4, 4), dtype=np.float16))
        with pytest.raises(ArgumentTypeError, match="lu"):
            da.linalg.lu(np.eye(3))
        with pytest.raises(ArgumentTypeError, match="p_indices"):
            da.linalg.lu(da.eye(3), p_indices=np.ones(2))

    on_ranks(program)


@pytest.mark.host_only
def test_one_process_solves_with_factors_where_they_lie() -> None:
    factors = np.triu(draw(400, 400)) + 400 * np.eye(400)
    pivots = np.arange(400)

    def call(x: Any) -> Any:
        return da.linalg.lu_solve((x, pivots), np.ones(400))

    assert peak_memory.scratch(call, factors, 1) < 0.2
