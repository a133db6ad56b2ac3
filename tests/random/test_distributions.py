"""Distributions made by formulas: the same on any mesh, and those that their names say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Replicate, Shard
from distarray.comm import simulate
from distarray.errors import ArgumentError, ArgumentTypeError, DTypeError
from distarray.random import default_rng
from tests.on_device import host
from tests.random.test_statistics import kolmogorov_smirnov

SIZE = 100_000
CASES: dict[str, tuple[tuple[float, ...], Callable[[Any], Any]]] = {
    "exponential": ((2.5,), lambda x: -np.expm1(-x / 2.5)),
    "gumbel": ((1.0, 2.0), lambda x: np.exp(-np.exp(-(x - 1) / 2))),
    "laplace": (
        (1.0, 2.0),
        lambda x: np.where(x < 1, np.exp(-abs(x - 1) / 2) / 2, 1 - np.exp(-abs(x - 1) / 2) / 2),
    ),
    "logistic": ((1.0, 2.0), lambda x: 1 / (1 + np.exp(-(x - 1) / 2))),
    "lognormal": (
        (0.5, 0.7),
        lambda x: np.array([0.5 * math.erfc((0.5 - v) / (0.7 * math.sqrt(2))) for v in np.log(x)]),
    ),
    "pareto": ((3.0,), lambda x: 1 - (1 + x) ** -3.0),
    "power": ((3.0,), lambda x: x**3),
    "rayleigh": ((2.0,), lambda x: -np.expm1(-((x / 2) ** 2) / 2)),
    "standard_cauchy": ((), lambda x: 0.5 + np.arctan(x) / np.pi),
    "standard_exponential": ((), lambda x: -np.expm1(-x)),
    "triangular": (
        (-1.0, 0.0, 3.0),
        lambda x: np.where(x < 0, (x + 1) ** 2 / 4, 1 - (3 - x) ** 2 / 12),
    ),
    "weibull": ((1.5,), lambda x: -np.expm1(-(x**1.5))),
}


@pytest.mark.parametrize("name", CASES)
def test_distribution_functions_are_met(name: str) -> None:
    args, distribution = CASES[name]
    (drawn,) = simulate(1, lambda: getattr(default_rng(3), name)(*args, SIZE).full_array())
    values = np.sort(host(drawn))
    assert np.isfinite(values).all()
    assert kolmogorov_smirnov(values, distribution(values)) < 1.95


def test_trials_until_success() -> None:
    def program() -> None:
        for p in (0.3, 0.02, 1.0):
            values = host(default_rng(5).geometric(p, SIZE).full_array())
            assert values.dtype == np.int64
            assert values.min() == 1
            for least in (1, 2, 5, 40):
                chance = (1 - p) ** least
                error = math.sqrt(chance * (1 - chance) / SIZE)
                assert abs((values > least).mean() - chance) <= 4.5 * error

    simulate(1, program)


LAYOUTS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((2,), [Shard(0)]),
    ((3,), [Shard(1)]),
    ((2, 2), [Shard(1), Shard(0)]),
]


@pytest.mark.parametrize(("mesh_shape", "placements"), LAYOUTS, ids=str)
def test_values_do_not_depend_on_mesh_or_placements(
    mesh_shape: tuple[int, ...], placements: list[Any]
) -> None:
    def draws(mesh: Any, placements: Any) -> list[np.ndarray]:
        rng = default_rng(7)
        where = {"mesh": mesh, "placements": placements}
        found = []
        for name, (args, _) in CASES.items():
            for dtype in (np.float64, np.float32):
                x = getattr(rng, name)(*args, (53, 6), dtype=dtype, **where)
                assert x.dtype == dtype
                found.append(host(x.full_array()))
        return [*found, host(rng.geometric(0.1, (53, 6), **where).full_array())]

    alone = simulate(1, lambda: draws(da.init_device_mesh((1,)), [Replicate()]))[0]
    for found in simulate(
        math.prod(mesh_shape), lambda: draws(da.init_device_mesh(mesh_shape), placements)
    ):
        for values, expected in zip(found, alone, strict=True):
            np.testing.assert_array_equal(values, expected)


def test_without_size_it_is_one_number() -> None:
    def program() -> None:
        rng = default_rng(1)
        assert isinstance(rng.exponential(), np.float64)
        assert isinstance(rng.gumbel(), np.float64)
        assert isinstance(rng.geometric(0.5), np.int64)

    simulate(2, program)


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("exponential", (-1,), ArgumentError),
        ("gumbel", (0, -1), ArgumentError),
        ("lognormal", (0, float("nan")), ArgumentError),
        ("pareto", (0,), ArgumentError),
        ("weibull", ("a",), ArgumentTypeError),
        ("triangular", (1, 0, 2), ArgumentError),
        ("triangular", (1, 1, 1), ArgumentError),
        ("geometric", (1.5,), ArgumentError),
        ("geometric", (0,), ArgumentError),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name: str, args: Any, error: Any) -> None:
    with pytest.raises(error):
        getattr(default_rng(1), name)(*args, 3)
    with pytest.raises(DTypeError):
        default_rng(1).rayleigh(1.0, 3, dtype=np.int8)
