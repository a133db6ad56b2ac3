"""Draws are distributed arrays with the same values on any mesh; the interface is NumPy's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.comm import simulate
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    PlacementError,
    ShapeError,
)
from distarray.random import Generator, default_rng
from distarray.random._seeding import derive_key
from tests.on_device import host

LAYOUTS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((1,), [Replicate()]),
    ((2,), [Shard(0)]),
    ((3,), [Shard(1)]),
    ((4,), [Partial()]),
    ((2, 2), [Shard(1), Shard(0)]),
    ((2, 3), [Shard(0), Shard(0)]),
    ((3, 2), [Replicate(), Shard(1)]),
    ((7,), [Shard(0)]),
]


def draws(mesh: Any, placements: Any) -> list[np.ndarray]:
    rng = default_rng([7, 2**100])
    where = {"mesh": mesh, "placements": placements}
    arrays = [
        rng.random((5, 6), **where),
        rng.standard_normal((5, 6), dtype=np.float32, **where),
        rng.integers(-10, 10, (5, 6), np.int16, **where),
        rng.uniform(-1, 1, (5, 6), **where),
        rng.normal(10, 2, (5, 6), **where),
        rng.integers(0, 1, (5, 6), bool, endpoint=True, **where),
    ]
    assert all(array.placements == tuple(placements) for array in arrays)
    return [array.full_array() for array in arrays]


@pytest.mark.parametrize(("mesh_shape", "placements"), LAYOUTS, ids=str)
def test_values_do_not_depend_on_mesh_or_placements(
    mesh_shape: tuple[int, ...], placements: list[Any]
) -> None:
    def program() -> list[np.ndarray]:
        return draws(da.init_device_mesh(mesh_shape), placements)

    alone = simulate(1, lambda: draws(da.init_device_mesh((1,)), [Replicate()]))[0]
    for found in simulate(int(np.prod(mesh_shape)), program):
        for values, expected in zip(found, alone, strict=True):
            assert values.dtype == expected.dtype
            np.testing.assert_array_equal(values, expected)


def test_streams_of_one_seed_never_change() -> None:
    """Results of users' programs rest on these values."""

    def program() -> None:
        rng = default_rng(42)
        assert rng.random(4).full_array().tolist() == [
            0.49368037569200285,
            0.987053965751309,
            0.6093589681379876,
            0.4355938523515889,
        ]
        assert rng.standard_normal(4).full_array().tolist() == [
            1.3970139154934766,
            -0.5957652741312359,
            -0.00033674458685425826,
            1.0880253583392998,
        ]
        integers = rng.integers(1000, size=6).full_array()
        assert integers.tolist() == [505, 757, 606, 897, 25, 146]

    simulate(1, program)


def test_process_outside_the_mesh_keeps_step() -> None:
    def program() -> np.ndarray:
        rng = default_rng(3)
        part = da.DeviceMesh([1, 2])
        first = rng.random(10, mesh=part)
        if part.coordinate is None:
            assert first.to_local().size == 0
        return rng.random(10).full_array()

    results = simulate(4, program)
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_no_seed_is_the_same_on_all_ranks_and_new_each_time() -> None:
    def program() -> list[np.ndarray]:
        return [host(default_rng().random(8).full_array()) for _ in range(2)]

    results = simulate(3, program)
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    assert not np.isin(results[0][0], results[0][1]).any()


def test_draw_sends_nothing() -> None:
    def program() -> int:
        rng = default_rng(1)
        with da.CommLog() as log:
            rng.normal(size=(20, 30))
            rng.integers(5, size=(20, 30))
            rng.random()
        return log.count()

    assert simulate(3, program) == [0, 0, 0]


def test_single_numbers_are_scalars_alike_on_all_ranks() -> None:
    def program() -> tuple[Any, ...]:
        rng = default_rng(5)
        return rng.random(), rng.integers(100), rng.normal(1, 2), rng.integers(2, dtype=bool)

    first, *others = simulate(3, program)
    assert [type(value) for value in first] == [np.float64, np.int64, np.float64, np.bool_]
    assert others == [first, first]


def test_empty_size_makes_an_array_without_axes() -> None:
    def program() -> None:
        value = default_rng(5).random(())
        assert value.shape == ()
        assert float(value) == default_rng(5).random()
        assert default_rng(5).random((0, 3)).full_array().shape == (0, 3)

    simulate(2, program)


def test_calls_advance_the_stream_and_failed_ones_do_not() -> None:
    def program() -> None:
        rng, other = default_rng(9), default_rng(9)
        for _ in range(2):
            with pytest.raises(ShapeError, match="negative"):
                rng.random(-1)
            with pytest.raises(PlacementError):
                rng.random(5, placements=[Shard(0), Shard(0)])
            np.testing.assert_array_equal(rng.random(3).full_array(), other.random(3).full_array())
        assert rng.random() != rng.random()

    simulate(2, program)


def test_interface_is_numpys() -> None:
    rng, theirs = default_rng(0), np.random.default_rng(0)

    def program() -> None:
        for call in (
            lambda g: g.random(3, np.float32),
            lambda g: g.random(size=(2, 3)),
            lambda g: g.uniform(1, 2, 3),
            lambda g: g.normal(0.5, 2.0, (2, 2)),
            lambda g: g.standard_normal(4, np.float32),
            lambda g: g.integers(5, size=3),
            lambda g: g.integers(2, 5, 3, np.uint8, True),
        ):
            ours, expected = call(rng), call(theirs)
            assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)

    simulate(1, program)


SEEDS: list[Any] = [
    0,
    1,
    2**32,
    2**64,
    2**200,
    (0, 0),
    (0,) * 3,
    (1, 0),
    (0, 1),
    [256, 1],
    (1, 256),
]


def test_seeds_of_any_size_have_keys_of_their_own() -> None:
    keys = {derive_key((seed,) if isinstance(seed, int) else tuple(seed)) for seed in SEEDS}
    assert len(keys) == len(SEEDS)
    assert (
        default_rng((5,)).random() == default_rng(5).random() == default_rng(np.array([5])).random()
    )


def test_children_are_independent_and_reproducible() -> None:
    first = [child.random() for child in default_rng(3).spawn(3)]
    parent = default_rng(3)
    again = [child.random() for child in (*parent.spawn(1), *parent.spawn(2))]
    assert first == again
    grandchild = default_rng(3).spawn(1)[0].spawn(1)[0]
    assert len({*first, parent.random(), grandchild.random()}) == 5


def test_generator_can_be_copied_and_passed_on() -> None:
    rng = default_rng(4)
    rng.random()
    copies = [copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))]
    expected = rng.random()
    assert [other.random() for other in copies] == [expected, expected]
    assert default_rng(rng) is rng
    assert repr(rng) == "Generator(Philox4x64-10, seed=4, draws=2)"
    assert "spawned=(0,)" in repr(rng.spawn(1)[0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: default_rng("abc"), ArgumentTypeError, "seed='abc'"),
        (lambda: default_rng(1.5), ArgumentTypeError, "seed=1.5"),
        (lambda: default_rng(-1), ArgumentError, "0 or more"),
        (lambda: default_rng([]), ArgumentError, "one or more integers"),
        (lambda: default_rng(0).random(3, int), DTypeError, "float64 or float32"),
        (lambda: default_rng(0).random("x"), ArgumentTypeError, "shape 'x'"),
        (lambda: default_rng(0).uniform(2, 1), ArgumentError, "low=2.0, high=1.0"),
        (lambda: default_rng(0).uniform(0, np.inf), ArgumentError, "finite"),
        (lambda: default_rng(0).uniform("0", 2), ArgumentTypeError, "not one real number"),
        (lambda: default_rng(0).uniform([0, 3], 2), ArgumentError, "low=3.0, high=2.0"),
        (lambda: default_rng(0).uniform([0, 1], 2, 3), ShapeError, r"to size=\(3,\)"),
        (lambda: default_rng(0).pareto(), ArgumentTypeError, "pareto.a, size=None"),
        (lambda: default_rng(0).integers([1, 0]), ArgumentError, "low=0, high=0"),
        (lambda: default_rng(0).integers([1, 300], dtype="u1"), ArgumentError, "high=300"),
        (lambda: default_rng(0).integers([1.5, 2]), ArgumentTypeError, "low="),
        (lambda: default_rng(0).bytes(-1), ArgumentError, "length=-1"),
        (lambda: default_rng(0).normal(0, -1), ArgumentError, "scale=-1.0"),
        (lambda: default_rng(0).normal(0, np.nan), ArgumentError, "scale=nan"),
        (lambda: default_rng(0).integers(0), ArgumentError, "no integer from 0 to -1"),
        (lambda: default_rng(0).integers(5, 5), ArgumentError, "endpoint=True"),
        (lambda: default_rng(0).integers(0, 300, dtype=np.uint8), ArgumentError, "holds 0 to 255"),
        (lambda: default_rng(0).integers(-1, 2, dtype=bool), ArgumentError, "do not fit bool"),
        (lambda: default_rng(0).integers(3, dtype=float), DTypeError, "holds no integers"),
        (lambda: default_rng(0).integers(2.5), ArgumentTypeError, "low=2.5"),
        (lambda: default_rng(0).spawn(-1), ArgumentError, "n_children=-1"),
    ],
)
def test_error_says_what_was_asked_and_what_must_hold(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_generator_is_what_default_rng_makes() -> None:
    assert isinstance(default_rng(1), Generator)
