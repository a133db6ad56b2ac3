"""Reproducible products have the same bits on any layout, and the error that is stated."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import simulate
from distarray.errors import ArgumentTypeError, ShapeError
from tests.on_device import host

RNG = np.random.default_rng(7)
LEFT = RNG.standard_normal((9, 37)) * 10.0 ** RNG.integers(-6, 6, (9, 37))
RIGHT = RNG.standard_normal((37, 5))
LEFT[3], LEFT[4] = 0, LEFT[4] * 1e300
RIGHT[:, 2] *= 1e-300
PLACES = (da.Shard(0), da.Shard(1), da.Replicate())


def of_all_layouts(function: Any, *operands: np.ndarray) -> np.ndarray:
    """Return what a function gives on 1 rank and 3, and all layouts, with the same bits."""
    found: list[tuple[bytes, np.ndarray]] = []

    def program() -> None:
        places_of_one = PLACES if da.default_mesh().size > 1 else PLACES[-1:]
        for places in product(places_of_one, repeat=len(operands)):
            if any(
                place == da.Shard(1) and x.ndim < 2
                for place, x in zip(places, operands, strict=True)
            ):
                continue
            given = [
                da.distribute_array(x, placements=[place], src=None)
                for x, place in zip(operands, places, strict=True)
            ]
            result = host(function(*given).full_array())
            found.append((result.tobytes(), result))

    for size in (1, 3):
        simulate(size, program)
    assert len({bits for bits, _ in found}) == 1
    return found[0][1]


def test_matrix_product_has_the_error_that_is_stated() -> None:
    result = of_all_layouts(lambda a, b: da.matmul(a, b, reproducible=True), LEFT, RIGHT)
    bound = 7 * 37 * 2.0 ** (-23 * 3) + 4 * 2.0**-53
    for i, j in np.ndindex(result.shape):
        pairs = zip(LEFT[i].tolist(), RIGHT[:, j].tolist(), strict=True)
        exact = sum(Fraction(a) * Fraction(b) for a, b in pairs)
        scale = Fraction(np.abs(LEFT[i]).max()) * Fraction(np.abs(RIGHT[:, j]).max())
        assert abs(Fraction(result[i, j]) - exact) <= Fraction(bound) * scale


@pytest.mark.parametrize("dtype", ["f2", "f4", "c8", "c16", "i4"])
def test_products_of_other_dtypes_agree_with_numpy(dtype: str) -> None:
    a, b = np.clip(LEFT, -9, 9), RIGHT[:, :2]
    if "c" in dtype:
        a, b = a + 1j * a[::-1], b - 2j * b[:, ::-1]
    a, b = a.astype(dtype), b.astype(dtype)
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b)
    assert result.dtype == a.dtype
    wide = "D" if "c" in dtype else "d"
    close = {"f2": 1e-3, "f4": 1e-6, "c8": 1e-6}.get(dtype, 1e-13)
    np.testing.assert_allclose(result, a.astype(wide) @ b.astype(wide), close, 9 * close)


def test_items_that_are_not_finite_are_where_numpy_has_them() -> None:
    a = LEFT.copy()
    a[0, 0], a[1, 1] = np.inf, np.nan

    def multiply(x: Any, y: Any) -> Any:
        with np.errstate(invalid="ignore"):  # the BLAS of some processors tells of inf - inf
            return da.matmul(x, y, reproducible=True)

    result = of_all_layouts(multiply, a, RIGHT)
    with np.errstate(invalid="ignore"):
        expected = a @ RIGHT
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    clean = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), LEFT, RIGHT)
    np.testing.assert_array_equal(result[finite], clean[finite])


def test_stacks_and_vectors_are_multiplied() -> None:
    stack = RNG.standard_normal((3, 4, 6))
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), stack, stack[0].T)
    np.testing.assert_allclose(result, stack @ stack[0].T, 1e-13, 1e-13)
    column = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), RIGHT.T, RIGHT[:, 0])
    np.testing.assert_allclose(column, RIGHT.T @ RIGHT[:, 0], 1e-13, 1e-13)
    row = of_all_layouts(lambda x, y: da.dot(x, y, reproducible=True), RIGHT[:, 1], RIGHT)
    np.testing.assert_allclose(row, RIGHT[:, 1] @ RIGHT, 1e-13, 1e-13)


def test_dot_of_vectors_is_the_exact_sum_of_rounded_products() -> None:
    x, y = LEFT.reshape(-1) * 1e-150, np.resize(RIGHT, LEFT.size)
    for function in (da.dot, da.matmul, da.vdot, da.vecdot):
        result = of_all_layouts(lambda a, b, f=function: f(a, b, reproducible=True), x, y)
        assert result == math.fsum(x * y)
    z = x + 1j * y
    result = of_all_layouts(lambda a, b: da.vecdot(a, b, reproducible=True), z, z[::-1].copy())
    parts = (z.real * z.real[::-1] + z.imag * z.imag[::-1], z.real * z.imag[::-1])
    assert result.real == math.fsum(parts[0])
    assert result.imag == math.fsum(parts[1] + -(z.imag * z.real[::-1]))


def test_wrong_operands_are_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        with pytest.raises(ShapeError, match="3 columns and 4 rows"):
            da.matmul(x, x, reproducible=True)
        with pytest.raises(ShapeError, match="lengths"):
            da.vecdot(x, x.T, reproducible=True)
        with pytest.raises(ArgumentTypeError, match="second operand may have two"):
            da.dot(x, da.ones((2, 3, 4)), reproducible=True)
        with da.CommLog() as log, da.communication("raise"):
            da.matmul(x, np.ones((3, 2)), reproducible=True)
        assert log.bytes() <= 16  # whether all items are finite

    simulate(2, program)
