"""Items taken out and put in: places and booleans that do not fit are NumPy's errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.errors import IndexingError, ShapeError
from tests.array.strategies import agrees, on_ranks

MASK = np.array([True, False, True])


@pytest.mark.parametrize("name", ["delete", "insert"])
@pytest.mark.parametrize(
    "where",
    [
        MASK,
        MASK.tolist(),
        np.array([], int),
        [],
        (0, True),
        slice(0, 2),
        np.array([-1, -3]),
        slice(-5, -1, -1),
        slice(-5, None, -2),
        slice(2, 1),
        slice(9, None, -2),
    ],
    ids=str,
)
def test_places_and_booleans_are_those_of_numpy(name: str, where: Any) -> None:
    values = np.array([10, 20, 30])
    more = () if name == "delete" else (7,)
    same = MASK if isinstance(where, list) and where else where  # NumPy 2.4 inserts by no list
    expected = getattr(np, name)(values, same, *more)

    def program() -> None:
        agrees(getattr(da, name)(da.asarray(values), where, *more), expected)

    on_ranks(program)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (True, ShapeError),
        (np.array(False), ShapeError),
        (MASK[None], ShapeError),
        ([1.5], IndexingError),
        (9, IndexingError),
    ],
    ids=str,
)
def test_what_is_no_place_is_refused(where: Any, error: Any) -> None:
    def program() -> None:
        x = da.asarray([10, 20, 30])
        with pytest.raises(error):
            da.delete(x, where)
        with pytest.raises(error):
            da.insert(x, where, 7)
        for mask in ([True], np.array([], bool), da.asarray([True, False]), da.asarray(True)):
            with pytest.raises(ShapeError, match="one for each place"):
                da.delete(x, mask)

    on_ranks(program)
