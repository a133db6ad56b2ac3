"""Bits: bytes lie where their bits were, but for those that a boundary divides."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.errors import ArgumentError, AxisError, DTypeError
from distarray.testing import simulate
from tests.array.strategies import agrees


@pytest.mark.parametrize("order", ["big", "little"])
def test_bytes_are_numpys_and_seven_items_move_at_most(order: str) -> None:
    value = np.random.default_rng(3).integers(0, 3, (101, 2))

    def program() -> int:
        mesh = da.init_device_mesh((4,))
        x = da.asarray(value, mesh=mesh)
        with da.CommLog() as log:
            packed = da.packbits(x, 0, order)
        agrees(packed, np.packbits(value, 0, order))
        with da.CommLog() as none, da.communication("raise"):
            bits = da.unpackbits(packed, 0, 101, order)
        assert not none.records
        agrees(bits, np.unpackbits(np.packbits(value, 0, order), 0, 101, order))
        return log.bytes()

    assert max(simulate(4, program)) <= 7 * 2 * 8


def test_bits_that_nobody_has_are_zeros() -> None:
    value = np.zeros((5, 0, 2), np.uint8)
    expected = np.zeros((5, 3, 2), np.uint8)
    simulate(2, lambda: agrees(da.unpackbits(da.asarray(value), 1, 3), expected))


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.ones(8, dtype=np.uint8)
        with pytest.raises(DTypeError):
            da.packbits(x.astype(float))
        with pytest.raises(DTypeError):
            da.unpackbits(x.astype(np.int8))
        with pytest.raises(ArgumentError):
            da.unpackbits(x, bitorder="middle")
        with pytest.raises(ArgumentError):
            da.unpackbits(x, count=-65)
        for axis in (1, -2):
            with pytest.raises(AxisError):
                da.packbits(x[0], axis=axis)

    simulate(2, program)
