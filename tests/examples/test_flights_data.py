"""The reader of the flights: parts tile the table, whatever their number."""

from __future__ import annotations

import flights_data
import numpy as np
import pytest

SHARE = 0.01


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    return flights_data.read_part(0, 1, share=SHARE)


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_tile_the_table(whole: np.ndarray, parts: int) -> None:
    pieces = [flights_data.read_part(part, parts, share=SHARE) for part in range(parts)]
    assert min(len(piece) for piece in pieces) > 0
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_more_parts_than_lines_leave_some_empty() -> None:
    parts = 40
    pieces = [flights_data.read_part(part, parts, share=2e-5) for part in range(parts)]
    assert any(piece.shape == (0, len(flights_data.FEATURES)) for piece in pieces)
    whole = flights_data.read_part(0, 1, share=2e-5)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_rows_are_complete_and_clock_times_are_hours(whole: np.ndarray) -> None:
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(whole[0], [5 + 15 / 60, 2, 8 + 19 / 60, 11, 227, 1400])
    clock = whole[:, [flights_data.FEATURES.index(name) for name in flights_data.CLOCK_FEATURES]]
    assert clock.min() >= 0
    assert clock.max() < 25
