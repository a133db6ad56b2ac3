"""The generator is Philox 4x64-10, and our polynomials are the functions they stand for."""

from __future__ import annotations

import decimal
import math

import numpy as np
import pytest

from distarray.random import _arrays, _formulas
from distarray.random._formulas import (
    cosine_and_sine,
    exponential,
    logarithm,
    normal_pair,
    philox,
    scaled,
    unit_double,
    unit_single,
)

u64 = np.uint64


PI = 0x243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89
"""Digits of pi."""


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b",
        ),
        (
            (2**64 - 1,) * 4,
            (2**64 - 1,) * 2,
            "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
        ),
    ],
)
def test_rounds_give_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: str
) -> None:
    """The known-answer vectors that come with Random123."""
    words = [np.array([word], u64) for word in counter]
    keys = [np.array([word], u64) for word in key]
    for _ in range(_formulas.ROUNDS):
        words = list(_formulas.mix(*words, *keys))
        keys = [keys[0] + _formulas.WEYL_0, keys[1] + _formulas.WEYL_1]
    assert " ".join(f"{int(word[0]):016x}" for word in words) == expected


@pytest.mark.parametrize("block", [0, 1, 2**61])
@pytest.mark.parametrize(("call", "turn"), [(0, 0), (2**63 + 5, 2**64 - 1)])
def test_philox_is_that_of_numpy(block: int, call: int, turn: int) -> None:
    key = PI >> 192, PI & (2**64 - 1)
    numpy = np.random.Philox(key=np.array(key, u64), counter=np.array([block, call, turn, 0], u64))
    with np.errstate(over="ignore"):
        blocks = np.arange(block, block + 5, dtype=u64)
        words = philox(blocks, u64(call), u64(turn), *map(u64, key))
    np.testing.assert_array_equal(np.stack(words, axis=-1).reshape(-1), numpy.random_raw(20))


def test_unit_floats_use_the_upper_bits_and_stay_below_one() -> None:
    x = np.array([0, 1 << 11, (1 << 64) - 1], u64)
    np.testing.assert_array_equal(unit_double(x), [0, 2.0**-53, 1 - 2.0**-53])
    singles = unit_single(np.array([0, 1 << 40, (1 << 64) - 1], u64))
    np.testing.assert_array_equal(singles.astype(np.float32), [0, 2.0**-24, 1 - 2.0**-24])


def uniform(count: int) -> np.ndarray:
    """Return uniform numbers, with those at the ends among them."""
    u = np.random.default_rng(5).random(count)
    u[:5] = [0, 1 - 2.0**-53, 2.0**-53, 0.5, 0.25]
    u[5 : 5 + count // 8] = u[5 : 5 + count // 8] ** 9 // 2.0**-53 * 2.0**-53
    return u


@pytest.mark.parametrize("count", [14, 200, 5000])
def test_numbers_and_arrays_in_place_have_the_bits_of_the_formulas(count: int) -> None:
    u = uniform(count)
    few, memory = _formulas.of_numbers, _arrays.memory_for(count)
    expected = np.stack(normal_pair(u[::2], u[1::2]), axis=-1).reshape(-1).tobytes()
    pairs = zip(u[::2].tolist(), u[1::2].tolist(), strict=True)
    assert np.array([few.normal_pair(*pair) for pair in pairs]).tobytes() == expected
    _arrays.make_normal(found := u.copy(), memory)
    assert found.tobytes() == expected
    expected = exponential(u).tobytes()
    assert np.array([few.exponential(one) for one in u.tolist()]).tobytes() == expected
    _arrays.make_exponential(found := u.copy(), memory)
    assert found.tobytes() == expected


@pytest.mark.parametrize("among", [1, 2, 3, 1000, 1 << 32, (1 << 32) + 1, 1 << 63, (1 << 64) - 1])
def test_integers_of_arrays_are_those_of_the_formula(among: int) -> None:
    x = np.random.default_rng(2).integers(0, 1 << 64, 100, u64)
    upper, lower = _arrays.scaled(x.copy(), among, _arrays.memory_for(100))
    expected = scaled(x, u64(among))
    np.testing.assert_array_equal(upper, expected[0])
    if lower is None:
        assert 2**64 % among == 0
    else:
        np.testing.assert_array_equal(lower, expected[1])


def test_logarithm_is_within_some_units_in_the_last_place() -> None:
    generator = np.random.default_rng(0)
    u = np.concatenate(
        [
            generator.random(2000) + 2.0**-53,
            1 - generator.integers(0, 1000, 500) * 2.0**-53,
            generator.integers(1, 1 << 20, 500) * 2.0**-53,
            [1.0, 0.5, 2.0**-53, math.sqrt(0.5)],
        ]
    )
    got = logarithm(u)
    with decimal.localcontext() as context:
        context.prec = 40
        exact = [decimal.Decimal(float(value)).ln() for value in u]
        errors = [
            abs(float(decimal.Decimal(float(a)) - b)) / math.ulp(float(b)) if b else abs(float(a))
            for a, b in zip(got, exact, strict=True)
        ]
    assert max(errors) < 2.5


def test_cosine_and_sine_are_within_2e_15() -> None:
    turns = np.concatenate([uniform(5000) - 0.5, np.arange(-8, 9) / 16, [2.0**-53]])
    cosine, sine = cosine_and_sine(turns)
    angle = turns.astype(np.longdouble) * 2 * np.longdouble("3.14159265358979323846264338327950288")
    assert abs(cosine - np.cos(angle)).max() < 2e-15
    assert abs(sine - np.sin(angle)).max() < 2e-15
    np.testing.assert_allclose(cosine**2 + sine**2, 1, rtol=4e-15)


def test_normal_pair_is_finite_at_the_ends() -> None:
    ends = np.array([0, 0, 1 - 2.0**-53, 1 - 2.0**-53])
    a, b = normal_pair(ends[[2, 3, 0, 1]], ends[[0, 2, 0, 2]])
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    assert a[0] == pytest.approx(-math.sqrt(2 * 53 * math.log(2)))
    assert a[2] == 0


def test_scaled_is_the_product_of_128_bits() -> None:
    x = np.random.default_rng(2).integers(0, 1 << 64, 100, u64)
    for count in (1, 2, 3, 1000, 1 << 32, (1 << 63) + 1, (1 << 64) - 1):
        high, low = scaled(x, u64(count))
        products = [int(value) * count for value in x]
        np.testing.assert_array_equal(high, np.array([p >> 64 for p in products], u64))
        np.testing.assert_array_equal(low, np.array([p % 2**64 for p in products], u64))
