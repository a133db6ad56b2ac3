"""Placements are values: one object each, immutable, checked."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from distarray.errors import ArgumentTypeError, PlacementError
from distarray.layout import REDUCTIONS, Partial, Placement, Replicate, Shard

ALL = [Shard(0), Shard(-1), Shard(3), Replicate(), *map(Partial, REDUCTIONS)]


@pytest.mark.parametrize("placement", ALL, ids=repr)
def test_placement_is_one_object_after_pickle_copy_and_repr(placement: Placement) -> None:
    assert pickle.loads(pickle.dumps(placement)) is placement
    assert copy.copy(placement) is placement
    assert copy.deepcopy(placement) is placement
    assert eval(repr(placement)) is placement


def test_placements_differ_by_value() -> None:
    assert len(set(ALL)) == len(ALL)
    assert Shard(1) is not Shard(2)
    assert Partial("min") is not Partial("max")
    assert Partial() is Partial("sum")


def test_str_is_compact() -> None:
    texts = [str(p) for p in (Shard(2), Replicate(), Partial(), Partial("max"))]
    assert texts == ["S(2)", "R", "P(sum)", "P(max)"]


def test_questions_about_kind() -> None:
    assert Shard(1).is_shard()
    assert Shard(1).is_shard(1)
    assert not Shard(1).is_shard(0)
    assert not Shard(1).is_replicate()
    assert Replicate().is_replicate()
    assert not Replicate().is_partial()
    assert Partial("max").is_partial()
    assert Partial("max").is_partial("max")
    assert not Partial("max").is_partial("sum")
    assert not Partial("max").is_shard()


def test_index_like_axis_is_taken_as_int() -> None:
    class Two:
        def __index__(self) -> int:
            return 2

    axis: Any = Two()
    assert Shard(axis) is Shard(2)


@pytest.mark.parametrize("axis", [None, "0", 1.0, (0,)])
def test_shard_of_no_integer_raises_with_value(axis: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="integer"):
        Shard(axis)


def test_partial_of_unknown_reduction_raises_and_lists_the_known() -> None:
    with pytest.raises(PlacementError, match=r"'mean'.*sum avg min max prod any all"):
        Partial("mean")
    wrong: Any = 3
    with pytest.raises(ArgumentTypeError, match="string"):
        Partial(wrong)


def test_setting_an_attribute_raises() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Shard(0).axis = 1
    with pytest.raises(AttributeError, match="immutable"):
        del Partial("sum").op


def test_threads_that_race_get_one_object() -> None:
    with ThreadPoolExecutor(8) as pool:
        for axis in range(1000, 1200):
            made = list(pool.map(Shard, [axis] * 8))
            assert all(shard is made[0] for shard in made)
