"""Sums of large blocks by products with ones are NumPy's, but for rounding."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from distarray.core.families._folding import reduce_block, sum_piece

LARGE = [
    ((65_536,), (0,)),
    ((100_003,), (0,)),
    ((256, 300), (0, 1)),
    ((3, 5, 8192), (2,)),
    ((7, 10_000), (1,)),
    ((2, 70, 1000), (1, 2)),
]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of how many lines each product adds up."""
    products: list[int] = []
    matmul = np.matmul

    def counted(lines: np.ndarray, ones: np.ndarray) -> Any:
        products.append(lines.size // ones.size)
        return matmul(lines, ones)

    monkeypatch.setattr(np, "matmul", counted)
    return products


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("shape", "axes"), LARGE, ids=str)
def test_large_sums_are_as_accurate_as_numpys(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, order: Any, rows: list[int]
) -> None:
    block = np.asarray(np.random.default_rng(5).random(shape) * 9 + 1, dtype, order=order)
    for keepdims in (False, True):
        numpys = np.add.reduce(block, axes, keepdims=keepdims)
        found = reduce_block(np.add, block, axes, None, keepdims)
        assert (type(found), found.shape, found.dtype) == (type(numpys), numpys.shape, block.dtype)
        exact = np.add.reduce(block.astype(np.longdouble), axes, keepdims=keepdims)
        error = abs(found - exact) / exact
        assert np.max(error) <= max(4 * np.finfo(dtype).eps, np.max(abs(numpys - exact) / exact))
    assert len(rows) == (2 if order == "C" or len(axes) == len(shape) else 0)


def test_a_row_has_the_same_sum_wherever_it_lies() -> None:
    row = np.random.default_rng(6).standard_normal(10_007)
    alone = reduce_block(np.add, np.tile(row, (7, 1)), (1,), None, False)
    assert len({*alone.tolist()}) == 1
    among = reduce_block(np.add, np.stack([row * i for i in (5, 3, 1, 2)] * 3), (1,), None, False)
    assert among[2] == alone[0]


@pytest.mark.parametrize("item", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_as_in_numpy(item: float) -> None:
    block = np.ones((9, 8192))
    block[3, 17] = item
    block[5, :2] = math.inf, -math.inf
    with warnings.catch_warnings(record=True) as numpys:
        warnings.simplefilter("always")
        expected = block.sum(1), block.sum()
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        found = (
            reduce_block(np.add, block, (1,), None, False),
            reduce_block(np.add, block, (0, 1), None, False),
        )
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert [str(one.message) for one in ours] == [str(one.message) for one in numpys]


def test_sums_whose_lanes_overflow_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    block = np.random.default_rng(7).standard_normal(2**17)
    products = np.full((1, 256), [np.inf, -np.inf] * 128)  # as lanes of some processors may
    monkeypatch.setattr(np, "matmul", lambda *_: products)
    assert reduce_block(np.add, block, (0,), None, False) == np.add.reduce(block)


@pytest.mark.parametrize(
    "block",
    [
        np.arange(2.0**17)[::2],
        np.arange(2**17),
        np.arange(2.0**17).astype(">f8"),
        np.ones(2**17, np.float16),
        np.frombuffer(b"\0" + np.arange(2.0**17).tobytes(), np.uint8)[1:].view(np.float64),
    ],
    ids=["strided", "integers", "swapped", "half", "unaligned"],
)
def test_other_blocks_are_summed_by_numpy(block: np.ndarray, rows: list[int]) -> None:
    with np.errstate(over="ignore"):
        assert reduce_block(np.add, block, (0,), None, False) == np.add.reduce(block)
        assert sum_piece(block[:1024]) == np.add.reduce(block[:1024])
    assert not rows


def test_other_dtypes_and_options_are_numpys(rows: list[int]) -> None:
    block = np.full(2**17, 0.1, np.float32)
    assert reduce_block(np.add, block, (0,), np.dtype("f8"), False) == block.sum(dtype="f8")
    mask = np.arange(block.size) % 3 == 0
    assert reduce_block(np.add, block, (0,), None, False, where=mask) == block.sum(where=mask)
    assert reduce_block(np.maximum, block, (0,), None, False) == np.float32(0.1)
    assert not rows
