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


@pytest.mark.parametrize("where", [MASK, np.array([2, 0, 2]), np.array(-1)], ids=str)
def test_values_are_put_in_where_a_distributed_array_says(where: Any) -> None:
    values = np.arange(6).reshape(3, 2)

    def program() -> None:
        agrees(np.insert(da.asarray(values), da.asarray(where), 7, axis=0), expected)
        with da.CommLog() as log, pytest.raises(IndexingError):
            da.insert(da.asarray(values), da.asarray([0.5]), 7)
        assert log.count() == 0

    expected = np.insert(values, where, 7, axis=0)
    on_ranks(program)


VALUES = np.arange(42.0).reshape(7, 6)
KNOWN = {
    "a slice": lambda xp, x: xp.delete(x, slice(None, None, 2), 0),
    "a slice backwards": lambda xp, x: xp.delete(x, slice(5, None, -2), 0),
    "no slice": lambda xp, x: xp.delete(x, slice(3, 1), 1),
    "places": lambda xp, x: xp.delete(x, [0, -1, 3, 3], 1),
    "bytes": lambda xp, x: xp.delete(x, np.array([3, 1], np.int8), 0),
    "booleans": lambda xp, x: xp.delete(x, VALUES[:, 0] > 10, 0),
    "flat": lambda xp, x: xp.delete(x, 3),
    "a mask of items": lambda xp, x: x[VALUES > 7],
    "a mask among others": lambda xp, x: x[1:, VALUES[0] > 2],
    "compress": lambda xp, x: xp.compress([True, False, True], x, axis=0),
    "below": lambda xp, x: xp.tril_indices_from(x, 1)[0],
    "above": lambda xp, x: xp.triu_indices_from(x, -2)[1],
    "above all": lambda xp, x: xp.triu_indices_from(x, 9)[0],
    "average": lambda xp, x: xp.average(x, axis=0, weights=VALUES, returned=True)[1],
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(
    "placement", [da.Shard(0), da.Shard(1), da.Replicate(), da.Partial()], ids=str
)
def test_processes_outside_know_layouts_that_follow_from_arguments(
    name: str, placement: Any
) -> None:
    expected = KNOWN[name](np, VALUES)

    def program() -> Any:
        mesh = da.DeviceMesh([2, 0])
        result = KNOWN[name](da, da.distribute_array(VALUES, mesh, [placement], src=None))
        agrees(result, expected)
        return result.placements, result.layout.boundaries

    inside, outside, same, *_ = on_ranks(program)
    assert inside == outside == same


def test_a_place_out_of_range_is_refused_outside_as_well() -> None:
    def program() -> None:
        x = da.distribute_array(VALUES, da.DeviceMesh([2, 0]), [da.Shard(0)], src=None)
        with pytest.raises(IndexingError, match="delete got place 9"):
            da.delete(x, [1, 9], 0)

    on_ranks(program)


@pytest.mark.parametrize("place", [0, 3, 8, -1])
@pytest.mark.parametrize("placement", [da.Shard(0), da.Shard(1), da.Replicate(), da.Partial()])
def test_rows_at_one_place_leave_the_others_together(place: int, placement: Any) -> None:
    values, more = np.arange(32.0).reshape(8, 4), np.array([[-1.0], [-2], [-3]])

    def program() -> None:
        x = da.asarray(values).redistribute([placement])
        with da.CommLog() as log:
            found = da.insert(x, [place], more, axis=0)
        agrees(found, np.insert(values, [place], more, axis=0))
        assert "all_gather" not in {record.collective for record in log.records}

    on_ranks(program)


@pytest.mark.parametrize(
    "where",
    [3, -1, slice(2, 5), slice(None, None, 3), slice(6, 1, -2), [7, 0, 3, -8], [], VALUES[0] > 3],
    ids=str,
)
@pytest.mark.parametrize("axis", [0, 1])
def test_known_places_leave_without_a_message(where: Any, axis: int) -> None:
    """Blocks of any strides, some of them without items or without any that leave."""
    values = np.arange(8.0 * 9).reshape(8, 9)
    if isinstance(where, np.ndarray):
        where = np.arange(values.shape[axis]) % 3 > 0
    expected = np.delete(values, where, axis)

    def program() -> None:
        mesh = da.default_mesh()
        for placement in (da.Shard(0), da.Shard(1), da.Replicate(), da.Partial()):
            x = da.distribute_array(values, mesh, [placement], src=None)
            turned = da.distribute_array(values.T.copy(), mesh, [placement], src=None).T
            with da.CommLog() as log:
                found = da.delete(x, where, axis), da.delete(turned, where, axis)
            assert not log.records
            for one in found:
                agrees(one, expected)
                assert one.to_local().flags.c_contiguous

    on_ranks(program)
