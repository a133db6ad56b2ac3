"""Basic indices select what NumPy selects, and move nothing where nothing need move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh, world
from distarray.core.engine._cache import clear as clear_cache
from distarray.core.engine._policy import communication
from distarray.errors import (
    ArgumentTypeError,
    ImplicitCommunicationError,
    IndexingError,
    MismatchError,
    ReadOnlyError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.families import _selection
from tests.array.index_keys import keys
from tests.array.strategies import Case, agrees, cases, on_ranks
from tests.on_device import host

OPS = ("sum", "max")


@settings(max_examples=150)
@given(data=st.data())
def test_getitem_agrees_with_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(
        cases((np.float64, np.int32, np.bool_), OPS if data.draw(st.booleans()) else ())
    )
    if case.values.dtype == bool and case.op == "sum":
        return
    key = data.draw(keys(case.shape))

    def program() -> None:
        x = case.build()
        agrees(x[key], case.value[key])
        agrees(x[key], case.value[key])  # from memory
        agrees(x, case.value)

    on_ranks(program)


def test_slice_of_a_cut_axis_stays_in_place_with_explicit_boundaries() -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(12, 4), init_device_mesh((4,)), [Shard(0)], src=None
        )
        with CommLog() as log:
            y = x[1:11:2]
        assert log.count() == 0
        assert y.layout.boundaries == {0: (0, 1, 3, 4, 5)}
        assert np.shares_memory(y.to_local(), x.to_local())

    on_ranks(program)


def test_integer_on_a_cut_axis_comes_from_its_owner_to_every_rank() -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(12, 4), init_device_mesh((4,)), [Shard(0)], src=None
        )
        for _ in range(2):  # the second time by the short way
            with CommLog() as log:
                y = x[7]
            assert y.placements == (Replicate(),)
            assert log.count() == 1
            assert log.bytes() == (0 if x.mesh.coordinate == (2,) else 4 * 8)
            assert not np.shares_memory(y.to_local(), x.to_local())
            agrees(y, np.arange(28.0, 32.0))
            with pytest.raises(ReadOnlyError, match=r"x\[7, 0:4\] is a copy"):
                y[0] = 1

    on_ranks(program)


@pytest.mark.parametrize("keys", [(6, 7), ((slice(0, 3), 6), (slice(0, 4), 6))])
def test_ranks_that_take_other_items_are_told_which(keys: tuple[Any, Any]) -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(4, 12), init_device_mesh((4,)), [Shard(1)], src=None
        )
        x = x.T if keys == (6, 7) else x
        for _ in range(2):  # the second time by the short way
            agrees(x[keys[0]], host(x.full_array())[keys[0]])
            key = keys[world().rank == 2]
            with pytest.raises(MismatchError, match=r"6.*rank 2: x\["):
                x[key]

    on_ranks(program)


@pytest.mark.parametrize("values", [[np.nan, -0.0, np.inf, -np.inf], [True, False, True, True]])
def test_integer_on_a_cut_axis_keeps_every_bit(values: list[Any]) -> None:
    def program() -> None:
        whole = np.array([values, values[::-1]])
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        assert x[1].full_array().tobytes() == whole[1].tobytes()

    on_ranks(program)


def test_large_item_of_a_cut_axis_is_spread_over_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_selection, "SPREAD_ITEMS", 20)

    def program() -> None:
        whole = np.arange(96.0).reshape(4, 2, 12)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        y = x[2]
        assert y.placements == (Shard(1),)
        agrees(y, whole[2])

    on_ranks(program)


def test_items_of_one_block_share_their_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    outcome = _selection._layouts_of

    def counted(*args: Any) -> Any:
        found.append(args)
        return outcome(*args)

    monkeypatch.setattr(_selection, "_layouts_of", counted)

    def program() -> None:
        x = distribute_array(np.arange(50.0), DeviceMesh([0]), [Shard(0)], src=None)
        if x.mesh.coordinate is not None:
            clear_cache()
            assert [float(x[i]) for i in range(50)] == [*range(50)]

    on_ranks(program)
    assert len(found) == 1


def test_partial_stays_partial_under_an_index() -> None:
    def program() -> None:
        case = Case((4,), (Partial("sum"),), np.arange(4 * 6.0).reshape(4, 2, 3))
        x = case.build()
        with CommLog() as log:
            y = x[1, ::-1]
        assert log.count() == 0
        assert y.placements == (Partial("sum"),)
        agrees(y, case.value[1, ::-1])

    on_ranks(program)


def test_negative_step_along_an_uncut_axis_is_a_view() -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(12, 4), init_device_mesh((4,)), [Shard(0)], src=None
        )
        with CommLog() as log:
            y = x[:, ::-1]
        assert log.count() == 0
        assert np.shares_memory(y.to_local(), x.to_local())

    on_ranks(program)


def test_reversal_of_a_cut_axis_takes_one_exchange_of_the_blocks() -> None:
    def program() -> None:
        whole = np.arange(40.0).reshape(10, 4)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        y = x[::-1]
        assert y.layout.boundaries == {0: (0, 1, 4, 7, 10)}
        agrees(y, whole[::-1])

    on_ranks(program)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (12, "out of range for axis 0 of length 12"),
        ((0, -5), "out of range for axis 1 of length 4"),
        ((0, 0, 0), "for 3 axes"),
        ((..., 0, ...), "2 ellipses"),
        (1.0, "holds a float"),
        ([0, 12], "index 12 is out of range"),
        (np.array([0, -13]), "index -13 is out of range"),
        ([0.5], "an array of float64"),
        (np.ones((11, 4), bool), "mask of shape"),
        ("name", "holds the name"),
    ],
)
def test_bad_key_raises_on_every_rank_and_sends_nothing(key: Any, words: str) -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(12, 4), init_device_mesh((4,)), [Shard(0)], src=None
        )
        x[1:3]  # an equal key of another type must not be taken for it
        x[1]
        with CommLog() as log:
            with pytest.raises(IndexingError, match=words):
                x[key]
            with pytest.raises(IndexError, match=words):
                x[key] = 0
        assert log.count() == 0
        agrees(x[0], np.arange(4.0))  # and the next operation works

    on_ranks(program)


def test_slice_of_no_integers_is_the_error_that_numpy_raises() -> None:
    def program() -> None:
        x = distribute_array(np.arange(4.0), init_device_mesh((4,)), [Shard(0)], src=None)
        for key in (slice(1.0, 3), slice(None, "a"), (slice(None, None, 0.5), ...)):
            with pytest.raises(TypeError):
                np.arange(4.0)[key]
            with pytest.raises(ArgumentTypeError, match="has the bound"):
                x[key]

    on_ranks(program)


def test_policy_refuses_an_index_that_would_communicate() -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(12, 4), init_device_mesh((4,)), [Shard(0)], src=None
        )
        with communication("raise"):
            x[2:5, 1]
            with pytest.raises(ImplicitCommunicationError):
                x[3]
            with pytest.raises(ImplicitCommunicationError):
                x[::-1]

    on_ranks(program)


def test_process_outside_the_mesh_gets_empty_blocks() -> None:
    def program() -> None:
        whole = np.arange(12.0).reshape(4, 3)
        x = distribute_array(whole, DeviceMesh([1, 3]), [Shard(0)], src=None)
        for key in (2, (slice(None), 1), slice(None, None, -1), (0, 0), ..., (None, 3)):
            agrees(x[key], whole[key])

    on_ranks(program)


def test_slice_and_tuple_with_the_same_numbers_stay_apart_once_remembered() -> None:
    value = np.arange(60.0).reshape(3, 4, 5)

    def program() -> None:
        x = distribute_array(value, init_device_mesh((4,)), [Shard(1)], src=None)
        for key in ((None, None, None), slice(None), (1, 2, 3), slice(1, 2, 3), (0, 2, None)):
            agrees(x[key], value[key])
        agrees(x[0:2], value[0:2])

    on_ranks(program)


def test_len_and_iteration_follow_axis_0() -> None:
    def program() -> None:
        whole = np.arange(12.0).reshape(4, 3)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        assert len(x) == 4
        for row, expected in zip(x, whole, strict=True):
            agrees(row, expected)
        with pytest.raises(ArgumentTypeError, match="0-d"):
            len(x[0, 0])
        with pytest.raises(ArgumentTypeError, match="0-d"):
            iter(x[0, 0])

    on_ranks(program)


@pytest.mark.host_only  # GPUs have no text
def test_item_of_text_keeps_its_length_on_every_rank() -> None:
    def program() -> None:
        x = distribute_array(np.array(["", "abc", "d"]), init_device_mesh((2,)), [Shard(0)])
        assert [x[i].dtype for i in range(3)] == ["U3"] * 3

    on_ranks(program)


def test_a_step_of_0_is_a_value_error_as_in_numpy() -> None:
    x = distribute_array(np.arange(4))
    for call in (lambda: x[::0], lambda: x.__setitem__(slice(0, 3, 0), 1)):
        with pytest.raises(ValueError, match="step 0"):
            call()
