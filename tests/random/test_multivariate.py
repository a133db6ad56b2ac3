"""Rows of counts, fractions and normal numbers: the same on any mesh, and those that names say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Replicate, Shard
from distarray.comm import simulate
from distarray.errors import ArgumentError, ArgumentTypeError, ShapeError
from distarray.random import _streams, default_rng
from tests.on_device import host

MEAN, COV = np.array([1.0, -5.0, 0.0]), np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0, 0.5, 1]])
SIZE = 20_000


def draws(**where: Any) -> list[np.ndarray]:
    rng = default_rng(9)
    found = [
        rng.multinomial(50, [0.2, 0.3, 0.5], 13, **where),
        rng.multinomial(np.arange(13), np.full((13, 4), 0.25), **where),
        rng.multivariate_hypergeometric([30, 20, 0, 50], 40, 13, **where),
        rng.dirichlet([0.5, 3.0, 1e-3], 13, **where),
        rng.dirichlet([2.0, 2.0], 13, dtype=np.float32, **where),
        rng.multivariate_normal(MEAN, COV, 13, **where),
    ]
    return [host(one.full_array()) for one in found]


LAYOUTS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((2,), [Shard(0)]),
    ((3,), [Shard(1)]),
    ((4,), [Shard(0)]),
    ((2, 2), [Shard(1), Shard(0)]),
    ((8,), [Shard(0)]),
]


@pytest.mark.parametrize(("mesh_shape", "placements"), LAYOUTS, ids=str)
def test_values_do_not_depend_on_mesh_or_placements(
    mesh_shape: tuple[int, ...], placements: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = simulate(1, draws)[0]
    monkeypatch.setattr(_streams, "PIECE", 7)
    for found in simulate(
        math.prod(mesh_shape),
        lambda: draws(mesh=da.init_device_mesh(mesh_shape), placements=placements),
    ):
        for values, expected in zip(found, alone, strict=True):
            assert values.dtype == expected.dtype
            np.testing.assert_array_equal(values, expected)


def close_to(values: np.ndarray, mean: Any) -> None:
    """Compare means of columns."""
    error = values.std(axis=0) / math.sqrt(len(values))
    assert (abs(values.mean(axis=0) - mean) <= 4.5 * error + 1e-12).all()


def test_moments_and_sums() -> None:
    def program() -> None:
        rng = default_rng(3)
        p = np.array([0.1, 0.0, 0.6, 0.3])
        counts = host(rng.multinomial(30, p, SIZE).full_array())
        assert (counts.sum(axis=1) == 30).all()
        close_to(counts, 30 * p)
        close_to((counts - 30 * p) ** 2, 30 * p * (1 - p))
        close_to((counts[:, :1] - 3) * (counts[:, 2:3] - 18), -30 * 0.1 * 0.6)
        colors = np.array([10, 0, 25, 15])
        sample = host(rng.multivariate_hypergeometric(colors, 20, SIZE).full_array())
        assert (sample.sum(axis=1) == 20).all()
        assert (sample <= colors).all()
        share = colors / 50
        close_to(sample, 20 * share)
        close_to((sample - 20 * share) ** 2, 20 * share * (1 - share) * 30 / 49)
        alpha = np.array([0.3, 0.0, 2.0, 5.0])
        parts = host(rng.dirichlet(alpha, SIZE).full_array())
        np.testing.assert_allclose(parts.sum(axis=1), 1)
        share = alpha / alpha.sum()
        close_to(parts, share)
        close_to((parts - share) ** 2, share * (1 - share) / (alpha.sum() + 1))
        for method in ("svd", "eigh", "cholesky"):
            z = host(rng.multivariate_normal(MEAN, COV, SIZE, method=method).full_array())
            close_to(z, MEAN)
            products = (z - MEAN)[:, :, None] * (z - MEAN)[:, None, :]
            close_to(products.reshape(SIZE, 9), COV.ravel())

    simulate(1, program)


def test_tiny_shapes_have_fractions_and_no_nan() -> None:
    def program() -> None:
        rng = default_rng(3)
        for alpha in ([1e-9, 1e-9], [1e-300, 1e-300, 1e-300]):
            parts = host(rng.dirichlet(alpha, 400).full_array())
            np.testing.assert_allclose(parts.sum(axis=1), 1)
            assert (parts.max(axis=1) > 0.5).all()
        assert host(rng.dirichlet([0.0, 0.0], 3).full_array()).tolist() == [[0, 0]] * 3
        assert host(rng.multinomial(0, [1.0], 2).full_array()).tolist() == [[0], [0]]
        assert rng.multinomial(5, [0.5, 0.5]).shape == (2,)
        assert rng.dirichlet([1.0, 2.0], (0, 3)).shape == (0, 3, 2)
        assert rng.multivariate_normal([1.0], [[0.0]], 4).full_array().tolist() == [[1.0]] * 4

    simulate(2, program)


def test_distributed_mean_and_covariance() -> None:
    def program() -> None:
        for method in ("svd", "cholesky"):
            found, expected = (
                host(default_rng(1).multivariate_normal(*two, 6, method=method).full_array())
                for two in ((da.asarray(MEAN), da.asarray(COV)), (MEAN, COV))
            )
            if method == "cholesky":  # the others' vectors have signs of their own
                np.testing.assert_allclose(found, expected, rtol=1e-12)

    simulate(2, program)


def test_covariances_that_are_none() -> None:
    wrong = [[1.0, 2.0], [2.0, 1.0]]

    def program() -> None:
        rng = default_rng(1)
        for method in ("svd", "eigh"):
            with pytest.warns(RuntimeWarning, match="positive semidefinite"):
                rng.multivariate_normal([0.0, 0.0], wrong, 3, method=method)
            rng.multivariate_normal([0.0, 0.0], wrong, 3, "ignore", method=method)
            with pytest.raises(ArgumentError, match="tol"):
                rng.multivariate_normal([0.0, 0.0], wrong, 3, "raise", method=method)
        with pytest.raises(np.linalg.LinAlgError, match="svd"):
            rng.multivariate_normal([0.0, 0.0], wrong, 3, method="cholesky")
        with pytest.raises(np.linalg.LinAlgError, match="finite"):
            rng.multivariate_normal([0.0, 0.0], [[np.inf, 0.0], [0.0, 1.0]], 3)

    simulate(1, program)


@pytest.mark.parametrize(
    ("call", "error", "shown"),
    [
        (lambda rng: rng.multinomial(5, [0.5, 0.6, 0.1]), ArgumentError, "at most 1"),
        (lambda rng: rng.multinomial(5, [np.nan, 0.6]), ArgumentError, "pvals=nan"),
        (lambda rng: rng.multinomial(-1, [1.0]), ArgumentError, "n=-1"),
        (lambda rng: rng.multinomial(5, 1.0), ShapeError, "pvals"),
        (lambda rng: rng.multinomial(5, []), ShapeError, "pvals"),
        (lambda rng: rng.multinomial([5, 6], [1.0], 3), ShapeError, "to size"),
        (lambda rng: rng.multinomial(5, da.ones(1)), ArgumentTypeError, "full_array"),
        (lambda rng: rng.multivariate_hypergeometric([3, 4], 8), ArgumentError, "nsample=8"),
        (lambda rng: rng.multivariate_hypergeometric([[3]], 1), ShapeError, "one axis"),
        (lambda rng: rng.multivariate_hypergeometric([3], 1, method="x"), ArgumentError, "'x'"),
        (lambda rng: rng.dirichlet([-1.0, 2.0]), ArgumentError, "alpha=-1.0"),
        (lambda rng: rng.dirichlet([[1.0], [2.0]]), ShapeError, "one axis"),
        (lambda rng: rng.multivariate_normal([0, 1], [[1.0]]), ShapeError, "must be"),
        (lambda rng: rng.multivariate_normal([0], [[1j]]), ArgumentTypeError, "cov"),
        (lambda rng: rng.multivariate_normal([0], da.asarray([[1j]])), ArgumentTypeError, "cov"),
        (lambda rng: rng.multivariate_normal(["a"], [[1.0]]), ArgumentTypeError, "mean"),
        (lambda rng: rng.multivariate_normal([0], [[1.0]], method="x"), ArgumentError, "'x'"),
        (lambda rng: rng.multivariate_normal([0], [[1.0]], check_valid=1), ArgumentError, "=1"),
    ],
)
def test_mistakes_raise_on_every_rank(call: Any, error: Any, shown: str) -> None:
    def program() -> str:
        rng = default_rng(1)
        with pytest.raises(error, match=shown) as raised:
            call(rng)
        assert rng.random() == default_rng(1).random()
        return str(raised.value)

    assert len(set(simulate(2, program))) == 1


def test_columns_on_other_ranks_are_the_rows_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> int:
        with da.CommLog() as log:
            default_rng(1).multinomial(9, [0.5, 0.25, 0.25], 8, placements=[Shard(1)])
            default_rng(1).dirichlet([1.0, 2.0, 3.0], 8, placements=[Replicate()])
        return log.count()

    assert simulate(3, program) == [0, 0, 0]


def test_numbers_are_those_of_one_factor_where_processes_round_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    svd: Any = np.linalg.svd
    cov = np.ones((3, 3)) + np.eye(3)

    def of_another_processor(x: Any) -> Any:
        u, s, vh = svd(x)
        order = [0, 2, 1] if da.default_mesh().rank else [0, 1, 2]  # of equal singular values
        return u[:, order], s, vh[order]

    monkeypatch.setattr(np.linalg, "svd", of_another_processor)

    def program() -> np.ndarray:
        rng = default_rng(0)
        x = rng.multivariate_normal(np.zeros(3), cov, 4, placements=[Replicate()])
        return np.array(host(x.to_local()))

    first, *others = simulate(3, program)
    assert all((one == first).all() for one in others)
