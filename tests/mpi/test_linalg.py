"""Functions of whole axes under real MPI: exchanges, copies, and errors of one rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import testing
from distarray.comm import world
from distarray.layout import Replicate, Shard
from distarray.linalg import _tiles
from distarray.ops.linear_algebra import _panels

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]


def test_matrices_in_all_placements_give_numpys_results() -> None:
    size = world().size
    values = np.random.default_rng(1).normal(size=(2 * size + 1, 5, 5))
    mesh = da.DeviceMesh(list(range(size)))
    line_of = {Shard(2): Shard(1)} | {p: p for p in (Shard(0), Shard(1), Replicate())}
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        x = da.distribute_array(values, mesh, [placement], src=None)
        assert np.allclose(da.linalg.inv(x).full_array(), np.linalg.inv(values))
        u, s, vh = np.linalg.svd(x)
        assert np.allclose(((u * s[..., None, :]) @ vh).full_array(), values)
        one = da.distribute_array(values[0], mesh, [line_of[placement]], src=None)
        inverse = da.linalg.inv(one)
        assert inverse.placements == one.placements
        assert np.allclose(inverse.full_array(), np.linalg.inv(values[0]))
        assert np.allclose(np.fft.fftn(x).full_array(), np.fft.fftn(values))
        line = da.distribute_array(values[:, 0, 0], mesh, [Shard(0)], src=None)
        assert np.allclose(da.fft.rfft(line).full_array(), np.fft.rfft(values[:, 0, 0]))
        assert np.array_equal(np.diagonal(x, 1, 1, 2).full_array(), np.diagonal(values, 1, 1, 2))


@pytest.mark.parametrize("narrow", [1, 1 << 62])
def test_products_by_panels_give_numpys_results(
    monkeypatch: pytest.MonkeyPatch, narrow: int
) -> None:
    monkeypatch.setattr(_panels, "PANEL_BYTES", 1)
    monkeypatch.setattr(_panels, "NARROW", narrow)  # from 1 on they are read in place in a node
    testing.reset()
    size = world().size
    rng = np.random.default_rng(3)
    left, right = (rng.integers(-9, 9, shape).astype(float) for shape in ((70, 101), (101, 53)))
    choices: dict[tuple[int, ...], tuple[Any, ...]] = {(size,): ((Shard(0),), (Shard(1),))}
    if size == 4:
        choices[2, 2] = (Shard(0), Shard(1)), (Shard(1), Shard(0)), (Shard(0), Shard(0))
    for shape, placements in choices.items():
        mesh = da.init_device_mesh(shape)
        for a, b in itertools.product(placements, repeat=2):
            x = da.distribute_array(left, mesh, a, src=None)
            y = da.distribute_array(right, mesh, b, src=None)
            assert np.array_equal((x @ y).full_array(), left @ right)
    testing.reset()


def test_large_matrices_are_factorized_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "WIDTH", 24)
    testing.reset()
    n = 149
    values = np.random.default_rng(4).normal(size=(n, n))
    definite = values @ values.T + np.eye(n)
    for placement in (Shard(0), Shard(1)):
        x = da.distribute_array(values, placements=[placement], src=None)
        y = da.distribute_array(definite, placements=[placement], src=None)
        factor = da.linalg.cholesky(y).full_array()
        assert np.allclose(factor, np.linalg.cholesky(definite), atol=1e-10)
        solution = da.linalg.solve(x, values[0]).full_array()
        assert np.allclose(values @ solution, values[0], atol=1e-9)
        factors = da.linalg.lu_factor(x)
        for trans, matrix in enumerate((values, values.T)):
            solution = da.linalg.lu_solve(factors, values[0], trans).full_array()
            assert np.allclose(matrix @ solution, values[0], atol=1e-9)
        joined, upper = da.linalg.lu(x, permute_l=True)
        assert np.allclose(joined.full_array() @ upper.full_array(), values, atol=1e-10)
        w, _ = da.linalg.lobpcg(y, x[:, :3], tol=1e-5, maxiter=100)
        assert np.allclose(w.full_array(), np.linalg.eigvalsh(definite)[:-4:-1])
        assert np.allclose(da.linalg.inv(x).full_array() @ values, np.eye(n), atol=1e-9)
        assert np.isclose(float(da.linalg.slogdet(x).logabsdet), np.linalg.slogdet(values)[1])
        q, r = (one.full_array() for one in da.linalg.qr(x))
        assert np.allclose(q @ r, values, atol=1e-10)
        assert np.allclose(q.T @ q, np.eye(n), atol=1e-12)
        with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
            da.linalg.cholesky(y - 2 * da.eye(n) * definite[-1, -1])
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            da.linalg.solve(x * 0, values[0])
    testing.reset()


def test_larger_matrices_are_divided_for_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_tiles, "COLLECTED_BYTES", 40**2 * 8)
    monkeypatch.setattr(_tiles, "WIDTH", 24)
    testing.reset()
    values = np.random.default_rng(5).normal(size=(50, 50))
    x = da.asarray(values)
    w, v = (one.full_array() for one in da.linalg.eigh(x))
    symmetric = np.tril(values) + np.tril(values, -1).T
    assert np.allclose(symmetric @ v, v * w, atol=1e-11)
    assert np.allclose(w, np.linalg.eigvalsh(values), atol=1e-11)
    assert np.allclose(da.linalg.svdvals(x).full_array(), np.linalg.svdvals(values), atol=1e-11)
    testing.reset()


def test_replicas_have_the_same_bits() -> None:
    mesh = da.DeviceMesh(list(range(world().size)))
    x = da.distribute_array(np.random.default_rng(2).normal(size=(40, 40)), mesh, src=None)
    s = da.linalg.svdvals(x)
    assert s.placements == (Replicate(),)
    everyone = mesh.communicator().all_gather_object(s.to_local().tobytes())
    assert len(set(everyone)) == 1


def test_a_singular_matrix_on_one_rank_is_an_error_on_all() -> None:
    size = world().size
    values = np.stack([np.eye(3)] * size)
    values[-1] = 0
    x = da.asarray(values)
    with pytest.raises(np.linalg.LinAlgError, match="Singular"):
        da.linalg.inv(x)
    assert np.array_equal(da.linalg.det(x).full_array(), np.linalg.det(values))


def test_iterative_solvers_end_alike_on_all_ranks() -> None:
    n = 8 * world().size + 3
    value = np.random.default_rng(2).normal(size=n)
    d = np.arange(1.0, n + 1)
    b = da.distribute_array(value, None, [Shard(0)], src=None)
    mine = d[slice(*b.layout.local_box()[0])]
    for solver in ("cg", "minres", "gmres", "bicgstab"):
        with da.CommLog() as log:
            x, info = getattr(da.linalg, solver)(
                lambda x: da.map_blocks(lambda block: mine * block, x), b, rtol=1e-10, maxiter=9 * n
            )
        assert info == 0
        assert log.count("all_reduce") > 0 or world().size == 1
        assert np.allclose(x.full_array(), value / d)
    w, v = da.linalg.eigsh(lambda x: x * da.asarray(d), 3, v0=b)
    assert np.allclose(w.full_array(), d[-3:])
    assert np.allclose(d[:, None] * v.full_array(), v.full_array() * d[-3:])
