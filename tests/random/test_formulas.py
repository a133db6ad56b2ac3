"""The generator is Philox 4x32-10, and our series are the functions they stand for."""

from __future__ import annotations

import decimal
import math

import numpy as np
import pytest

from distarray.random import _formulas
from distarray.random._formulas import (
    cosine_and_sine,
    logarithm,
    normal_pair,
    philox,
    scaled,
    unit_double,
    unit_single,
)

u64 = np.uint64


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),  # digits of pi
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: str
) -> None:
    """The known-answer vectors that come with Random123."""
    block = np.array([counter[0] | counter[1] << 32], u64)
    halves = philox(block, u64(counter[2]), u64(counter[3]), u64(key[0]), u64(key[1]))
    words = [int(half[0]) >> shift & 0xFFFFFFFF for half in halves for shift in (0, 32)]
    assert " ".join(f"{word:08x}" for word in words) == expected


def test_unit_floats_use_the_upper_bits_and_stay_below_one() -> None:
    x = np.array([0, 1 << 11, (1 << 64) - 1], u64)
    np.testing.assert_array_equal(unit_double(x), [0, 2.0**-53, 1 - 2.0**-53])
    singles = unit_single(np.array([0, 1 << 40, (1 << 64) - 1], u64))
    np.testing.assert_array_equal(singles.astype(np.float32), [0, 2.0**-24, 1 - 2.0**-24])


def test_formulas_of_numbers_give_the_bits_of_those_of_arrays() -> None:
    few = _formulas.of_numbers
    rng = np.random.default_rng(5)
    x = rng.integers(0, 1 << 64, (2, 200), u64, endpoint=False)
    x[:, :4] = [0, 1, (1 << 64) - 1, 1 << 63]
    words = [u64(0xFFFFFFFF), u64(7), u64(0xABCDEF01), u64(0xFFFFFFFE)]
    blocks = np.array(philox(x[0], *words)).T.tolist()
    assert [list(few.philox(one, *map(int, words))) for one in x[0].tolist()] == blocks
    pairs = np.array(normal_pair(*x)).T.tobytes()
    assert np.array([few.normal_pair(*pair) for pair in x.T.tolist()]).tobytes() == pairs
    for name in ("unit_double", "unit_single", "exponential"):
        found = np.array([getattr(few, name)(one) for one in x[0].tolist()])
        assert found.tobytes() == getattr(_formulas, name)(x[0]).tobytes()


def test_parts_of_ln2_sum_to_it() -> None:
    with decimal.localcontext() as context:
        context.prec = 40
        rest = decimal.Decimal(2).ln() - decimal.Decimal(_formulas._LN2_HIGH)
        assert float(rest) == _formulas._LN2_LOW


def test_logarithm_is_within_two_units_in_the_last_place() -> None:
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
    assert max(errors) < 2


def test_cosine_and_sine_are_within_two_units_of_one() -> None:
    steps = np.random.default_rng(1).integers(0, 1 << 53, 5000).astype(u64)
    corners = np.array([i << 50 for i in range(8)] + [(1 << 53) - 1, 1, (1 << 50) - 1], u64)
    turn = np.concatenate([steps, corners])
    cosine, sine = cosine_and_sine(turn)
    angle = turn.astype(np.float64) * 2.0**-53 * 2 * math.pi
    np.testing.assert_allclose(cosine, np.cos(angle), atol=2e-15, rtol=0)
    np.testing.assert_allclose(sine, np.sin(angle), atol=2e-15, rtol=0)
    np.testing.assert_allclose(cosine**2 + sine**2, 1, rtol=5e-16)
    assert cosine_and_sine(np.array([1 << 51], u64))[0] == 0, "a quarter turn is exact"


def test_normal_pair_is_finite_at_the_ends() -> None:
    ends = np.array([0, 0, (1 << 64) - 1, (1 << 64) - 1], u64)
    a, b = normal_pair(ends, ends[[0, 2, 0, 2]])
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    assert a[0] == pytest.approx(math.sqrt(2 * 53 * math.log(2)))
    assert a[2] == 0


def test_scaled_is_the_product_of_128_bits() -> None:
    x = np.random.default_rng(2).integers(0, 1 << 64, 100, u64)
    for count in (1, 2, 3, 1000, 1 << 32, (1 << 63) + 1, (1 << 64) - 1):
        high, low = scaled(x, u64(count))
        products = [int(value) * count for value in x]
        np.testing.assert_array_equal(high, np.array([p >> 64 for p in products], u64))
        np.testing.assert_array_equal(low, np.array([p % 2**64 for p in products], u64))
