"""Parameters that are arrays: of NumPy, or distributed, whose layout the result has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.comm import simulate
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    OutOfRangeError,
    ShapeError,
)
from distarray.random import default_rng
from tests.on_device import host

SHAPES = np.linspace(0.2, 30, 24).reshape(4, 6)
CHANCES = np.linspace(0.05, 1, 6)
COUNTS = np.arange(0, 240, 10).reshape(4, 6)
CASES: dict[str, tuple[Any, ...]] = {
    "uniform": (-SHAPES, CHANCES),
    "normal": (SHAPES, 2.0),
    "exponential": (SHAPES,),
    "gumbel": (CHANCES, SHAPES),
    "weibull": (np.array([0.0, 1, 2, 3, 4, 5]),),
    "triangular": (-SHAPES, 0.0, CHANCES),
    "geometric": (CHANCES,),
    "gamma": (SHAPES, CHANCES),
    "standard_gamma": (CHANCES,),
    "beta": (SHAPES, CHANCES),
    "f": (SHAPES, CHANCES),
    "noncentral_chisquare": (SHAPES / 5, CHANCES),
    "vonmises": (0.5, SHAPES),
    "wald": (SHAPES, 2.0),
    "poisson": (SHAPES,),
    "binomial": (COUNTS, CHANCES),
    "negative_binomial": (SHAPES, CHANCES),
    "hypergeometric": (COUNTS, 100, 50),
    "logseries": (CHANCES / 2,),
    "zipf": (SHAPES + 1,),
    "integers": (-COUNTS, COUNTS + 1),
}


@pytest.mark.parametrize("name", CASES)
def test_items_are_those_that_numbers_in_their_place_give(name: str) -> None:
    args = CASES[name]

    def program() -> None:
        together = host(getattr(default_rng(7), name)(*args, size=(4, 6)).full_array())
        wide = np.broadcast_arrays(*args, np.empty((4, 6)))[:-1]
        for place in ((0, 0), (1, 3), (3, 5)):
            single = [one[place].item() for one in wide]
            alone = host(getattr(default_rng(7), name)(*single, size=(4, 6)).full_array())
            np.testing.assert_array_equal(together[place], alone[place])

    simulate(1, program)


@pytest.mark.parametrize("name", CASES)
def test_distributed_ones_give_the_numbers_of_plain_ones_in_their_layout(name: str) -> None:
    args = CASES[name]

    def program() -> None:
        plain = host(getattr(default_rng(7), name)(*args, size=(4, 6)).full_array())
        mesh = da.init_device_mesh((2, 2))
        for placements in ([Shard(0), Shard(1)], [Shard(1), Replicate()]):
            given = [
                da.asarray(one, mesh=mesh, placements=placements) if np.ndim(one) == 2 else one
                for one in args
            ]
            if not any(np.ndim(one) == 2 for one in args):
                given[0] = da.asarray(given[0], mesh=mesh, placements=[Shard(0), Replicate()])
            rng = default_rng(7)
            drawn = getattr(rng, name)(*given, size=(4, 6))
            if np.ndim(given[0]) == 2:
                assert drawn.placements == tuple(placements)
            np.testing.assert_array_equal(drawn.full_array(), plain)
            assert rng.random() == _second(name, args)

    simulate(4, program)


def _second(name: str, args: Any) -> Any:
    rng = default_rng(7)
    getattr(rng, name)(*args, size=(4, 6))
    return rng.random()


def test_uneven_partial_and_moved_parameters() -> None:
    def program() -> None:
        rng = default_rng(3)
        plain = host(rng.poisson(np.arange(7.0)).full_array())
        x = da.arange(9.0)[da.arange(9) % 9 < 7]  # in uneven blocks
        for lam in (x, x.redistribute([Replicate()]), x.redistribute([Partial()])):
            drawn = default_rng(3).poisson(lam)
            assert not drawn.layout.has_partial
            np.testing.assert_array_equal(drawn.full_array(), plain)
        assert default_rng(3).poisson(x).layout is x.layout
        moved = default_rng(3).poisson(x, placements=[Replicate()])
        assert moved.placements == (Replicate(),)
        np.testing.assert_array_equal(moved.full_array(), plain)
        one = default_rng(3).poisson(da.asarray(4.0))
        assert one.shape == ()
        assert int(one) == default_rng(3).poisson(4.0)
        empty = default_rng(3).normal(da.zeros((0, 3)))
        assert empty.shape == (0, 3)

    simulate(3, program)


def test_nothing_moves_where_parameters_lie_alike() -> None:
    def program() -> int:
        a, b = da.ones((60, 40)), da.full((60, 40), 2.0)
        with da.CommLog() as log:
            default_rng(1).beta(a, b)
            default_rng(1).beta(np.ones((60, 40)), 3.0)
        return log.bytes()

    assert max(simulate(3, program)) < 200  # words on whether their values make sense


@pytest.mark.parametrize(
    ("name", "args", "shown"),
    [
        ("poisson", (np.array([1.0, np.nan, 2.0]),), "lam=nan"),
        ("gamma", (np.array([1.0, 2.0, -3.0]), 1.0), "shape=-3.0"),
        ("binomial", (np.array([5, 5, 5]), np.array([0.5, 0.5, 1.5])), "p=1.5"),
        ("binomial", (np.array([5, 2.5, 5]), 0.5), "n=2.5"),
        ("hypergeometric", (np.array([5, 1, 5]), 3, 6), "ngood=1.*, nbad=3.*, nsample=6"),
        ("triangular", (np.array([0.0, 5.0, 0.0]), 1.0, 2.0), "left=5.0, mode=1.0, right=2.0"),
        ("integers", (np.array([5, 9, 5]), 7), "low=9, high=7"),
        ("negative_binomial", (1e18, np.array([0.5, 0.5, 1e-9])), "p=1e-09"),
    ],
)
def test_values_that_make_no_sense_raise_on_every_rank(name: str, args: Any, shown: str) -> None:
    def program() -> str:
        texts = []
        for distributed in (False, True):
            rng = default_rng(1)
            given = [da.asarray(one) if distributed and np.ndim(one) else one for one in args]
            with pytest.raises(ArgumentError, match=shown) as raised:
                getattr(rng, name)(*given)
            texts.append(str(raised.value))
            assert rng.random() == default_rng(1).random()  # it did not count
        return texts[0]

    assert len(set(simulate(3, program))) == 1


@pytest.mark.parametrize(
    ("call", "error", "shown"),
    [
        (lambda rng: rng.poisson("x"), ArgumentTypeError, "lam='x'"),
        (lambda rng: rng.poisson([1, [2]]), ArgumentTypeError, "lam="),
        (lambda rng: rng.poisson(1j), ArgumentTypeError, "lam=1j"),
        (lambda rng: rng.poisson(da.ones(3, dtype=complex)), ArgumentTypeError, "complex128"),
        (lambda rng: rng.normal([1, 2], [1, 2, 3]), ShapeError, "(2,).*(3,)"),
        (lambda rng: rng.normal([1, 2], 1, (2, 3)), ShapeError, "to size="),
        (lambda rng: rng.normal([[1], [2]], 1, 2), ShapeError, "to size="),
        (lambda rng: rng.normal(da.ones(2), [1, 2, 3]), ShapeError, "(2,).*(3,)"),
        (lambda rng: rng.standard_gamma(np.inf), ArgumentError, "finite"),
        (lambda rng: rng.poisson(1e19), ArgumentError, "below"),
        (lambda rng: rng.zipf(1), ArgumentError, "a=1.0"),
        (lambda rng: rng.logseries(1.0), ArgumentError, "p=1.0"),
        (lambda rng: rng.vonmises(np.nan, 1.0), ArgumentError, "mu=nan"),
        (lambda rng: rng.binomial(2.0**54, 0.5), ArgumentError, "2..53"),
    ],
)
def test_error_says_what_was_asked(call: Any, error: Any, shown: str) -> None:
    def program() -> None:
        with pytest.raises(error, match=shown) as raised:
            call(default_rng(1))
        assert isinstance(raised.value, DistArrayError)

    simulate(2, program)


def test_results_have_numpys_shapes_and_dtypes() -> None:
    theirs = np.random.default_rng(0)

    def program() -> None:
        ours = default_rng(0)
        for call in (
            lambda g: g.gamma([1.0, 2.0], [[1.0], [2.0], [3.0]]),
            lambda g: g.standard_gamma(2.0, 3, np.float32),
            lambda g: g.poisson([1, 2, 3], (2, 3)),
            lambda g: g.binomial([[1], [2]], [0.1, 0.2]),
            lambda g: g.integers([1, 2], [[5], [6]], dtype=np.uint8),
            lambda g: g.poisson([]),
        ):
            found, expected = call(ours), call(theirs)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert isinstance(ours.gamma(2.0), np.float64)
        assert isinstance(ours.poisson(2.0), np.int64)

    simulate(1, program)


def test_a_range_beyond_floats_is_the_overflow_that_numpy_finds() -> None:
    highs = np.array([1.0, 2.0, np.inf])

    def program() -> None:
        for low, high in ((-1e308, 1e308), (0.0, highs), (0.0, da.asarray(highs))):
            with pytest.raises(OutOfRangeError, match="high - low is finite"):
                default_rng(0).uniform(low, high, size=3)
        with pytest.raises(ArgumentError, match="not above") as caught:
            default_rng(0).uniform(2.0, 1.0)
        assert not isinstance(caught.value, OverflowError)

    simulate(2, program)
