"""Polynomials: values where the items are, coefficients on every process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Replicate, Shard
from distarray.errors import ArgumentError, DTypeError, ShapeError
from distarray.ops import _polynomials
from distarray.testing import simulate
from tests.array.strategies import agrees


def test_values_stay_where_the_items_are() -> None:
    value, p = np.linspace(-1, 1, 12).reshape(3, 4), np.array([2.0, 0, -1])

    def program() -> None:
        mesh = da.init_device_mesh((3,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        with da.CommLog() as log, da.communication("raise"):
            y = np.polyval(p, x)
        assert not log.records
        assert y.layout is x.layout
        agrees(y, np.polyval(p, value))
        q = da.distribute_array(p, mesh, [Shard(0)])
        agrees(da.polyval(q, x), np.polyval(p, value))
        agrees(da.polyval(q, value), np.polyval(p, value))
        agrees(da.polyval([], x), np.polyval([], value))

    simulate(3, program)


def test_coefficients_that_are_distributed_give_replicated_results() -> None:
    zeros = np.array([1.0, 2, 3])

    def program() -> None:
        x = da.distribute_array(zeros, da.init_device_mesh((2,)), [Shard(0)])
        p = da.poly(x)
        assert p.placements == (Replicate(),)
        agrees(p, np.poly(zeros))
        agrees(da.roots(p), np.roots(np.poly(zeros)))
        for found, wanted in zip(da.polydiv(p, x), np.polydiv(np.poly(zeros), zeros), strict=True):
            agrees(found, wanted)
        assert isinstance(da.polyadd([1, 2], [3]), np.ndarray)
        with pytest.raises(ArgumentError, match="65536"):
            da.polyadd(da.ones(70_000), x)
        with pytest.raises(ArgumentError):
            da.roots(x.reshape(1, 3))
        with pytest.raises(TypeError, match="boolean subtract"):
            da.polysub(x > 1, x > 2)
        with pytest.raises(TypeError, match="same length"):
            da.polyfit(x, x[:2], 1)
        with pytest.raises(ShapeError):
            da.polyval(x.reshape(1, 3), x)

    simulate(2, program)


@pytest.mark.parametrize("options", [{}, {"N": 2}, {"N": 0}, {"N": 4, "increasing": True}])
def test_powers_of_items_lie_in_their_rows(options: dict[str, Any]) -> None:
    value = np.array([1, -2, 3, 4, 5], np.int8)

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((3,)))
        with da.CommLog() as log, da.communication("raise"):
            y = da.vander(x, **options)
        assert not log.records
        agrees(y, np.vander(value, **options))
        with pytest.raises(ShapeError):
            da.vander(y)
        with pytest.raises(ArgumentError):
            da.vander(x, -1)

    simulate(3, program)


@pytest.mark.parametrize(
    "options",
    [{}, {"full": True}, {"cov": True}, {"cov": "unscaled", "w": 1}, {"w": 1, "deg": 0}],
    ids=str,
)
def test_many_points_are_fitted_where_they_are(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_polynomials, "COEFFICIENTS", 40)
    rng = np.random.default_rng(0)
    t, w = np.linspace(-1, 2, 500), rng.random(500) + 0.5
    ys = rng.random(500), rng.random((500, 3))

    def program() -> None:
        for y in ys:
            given = {"deg": 2, **options, **({"w": w} if "w" in options else {})}
            x, z = da.distribute_array(t, src=None), da.distribute_array(y, src=None)
            with da.CommLog() as log:
                found = da.polyfit(x, z, **given)
            assert max(one.nbytes for one in log.records) < t.nbytes // 2
            expected = np.polyfit(t, y, **given)
            several = isinstance(expected, tuple)
            for ours, theirs in zip(
                found if several else [found], expected if several else [expected], strict=True
            ):
                np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-10, atol=1e-13)
        with pytest.raises(ArgumentError, match="shapes"):
            da.polyfit(x, z[1:], 1)

    simulate(3, program)


def test_coefficients_that_items_do_not_multiply_are_refused() -> None:
    def program() -> None:
        dates = np.array([1, 2], "M8[D]")
        with pytest.raises(DTypeError, match="polyval of datetime64"):
            da.polyval(dates, da.arange(3))
        for coefficients in (np.array([np.inf, 1.0]), np.array([2.5])):
            with np.errstate(all="raise"):
                agrees(da.polyval(coefficients, da.ones(3)), np.polyval(coefficients, np.ones(3)))

    simulate(2, program)
