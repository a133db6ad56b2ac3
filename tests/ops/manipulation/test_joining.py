"""Joining, repeating and shifting agree with NumPy for parts of any layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh, simulate
from distarray.comm.shared_memory import _arena
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.manipulation import _joining as joining
from tests.array.strategies import Case, agrees, cases, on_ranks

OPS = ("sum", "max")
DTYPES = (np.float64, np.int8, np.float32)


@settings(max_examples=38)
@given(data=st.data())
def test_concat_and_stack_agree_with_numpy(data: st.DataObject) -> None:
    first: Case = data.draw(cases(DTYPES, OPS))
    if not first.shape:
        return
    axis = data.draw(st.integers(-len(first.shape), len(first.shape) - 1))
    count = data.draw(st.integers(0, 3))
    parts: list[Any] = [first]
    for _ in range(count):
        shape = list(first.shape)
        shape[axis] = data.draw(st.integers(0, 5))
        parts.append(data.draw(cases(DTYPES, OPS, first.mesh_shape, tuple(shape))))
    twin: Case = data.draw(cases(DTYPES, OPS, first.mesh_shape, first.shape))
    values = [part.value for part in parts]

    def program() -> None:
        built = [part.build() for part in parts]
        agrees(joining.concat(built, axis=axis), np.concatenate(values, axis))
        agrees(joining.concat(built, axis=None), np.concatenate(values, None))
        agrees(
            np.concatenate([*built, values[0]], axis), np.concatenate([*values, values[0]], axis)
        )
        pair = [first.build(), twin.build()]
        stacked = np.stack([first.value, twin.value], axis)
        agrees(joining.stack(pair, axis=axis), stacked)
        for casting in ("same_kind", "unsafe"):
            dtype = np.float64 if casting == "same_kind" else np.int16
            whole = distribute_array(np.zeros(stacked.shape, dtype), pair[0].mesh, src=None)
            layout = whole.layout
            assert np.stack(pair, axis, out=whole, casting=casting) is whole
            assert whole.layout is layout
            agrees(whole, np.stack([first.value, twin.value], axis, dtype=dtype, casting=casting))

    on_ranks(program)


def test_parts_are_joined_in_out() -> None:
    def program() -> None:
        whole = np.arange(42.0).reshape(6, 7)
        mesh = init_device_mesh((4,))
        x = distribute_array(whole, mesh, [Shard(1)], src=None)
        into = distribute_array(whole, mesh, [Shard(0)], src=None)
        assert np.concatenate([into[2:], x[:2]], out=into) is into  # of parts of itself
        agrees(into, np.concatenate([whole[2:], whole[:2]]))
        with CommLog() as log:
            for wrong, options, error in (
                (into[1:], {}, ShapeError),
                (into.astype(int), {}, DTypeError),
                (into, {"dtype": float}, ArgumentTypeError),
                (whole, {}, ArgumentTypeError),
            ):
                with pytest.raises(error):
                    joining.concat([x[:2], x[2:]], out=wrong, **options)
        assert log.count() == 0

    on_ranks(program)


@settings(max_examples=25)
@given(data=st.data())
def test_roll_repeat_tile_and_unstack_agree_with_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, OPS))
    if not case.shape:
        return
    axis = data.draw(st.integers(-len(case.shape), len(case.shape) - 1))
    shift = data.draw(st.integers(-9, 9))
    times = data.draw(st.integers(0, 3))
    counts = data.draw(
        st.lists(st.integers(0, 3), min_size=case.shape[axis], max_size=case.shape[axis])
    )
    reps = tuple(data.draw(st.lists(st.integers(0, 2), max_size=4)))

    def program() -> None:
        x, value = case.build(), case.value
        agrees(joining.roll(x, shift, axis=axis), np.roll(value, shift, axis))
        agrees(joining.roll(x, shift), np.roll(value, shift))
        agrees(np.roll(x, (shift, 1), (axis, 0)), np.roll(value, (shift, 1), (axis, 0)))
        with CommLog() as log:
            repeated = joining.repeat(x, times, axis=axis), joining.repeat(x, counts, axis=axis)
        assert log.count() == 0
        agrees(repeated[0], np.repeat(value, times, axis))
        agrees(repeated[1], np.repeat(value, np.array(counts, int), axis))
        agrees(joining.repeat(x, times), np.repeat(value, times))
        agrees(joining.tile(x, reps), np.tile(value, reps))
        for part, expected in zip(
            joining.unstack(x, axis=axis), np.unstack(value, axis=axis), strict=True
        ):
            agrees(part, expected)
        agrees(x, value)

    on_ranks(program)


def test_concat_along_an_uncut_axis_sends_nothing() -> None:
    def program() -> None:
        whole = np.arange(48.0).reshape(8, 6)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        with CommLog() as log:
            y = joining.concat([x, x, whole], axis=1)
            z = joining.stack([x, x], axis=0)
        assert log.count() == 0
        assert (y.placements, z.placements) == ((Shard(0),), (Shard(1),))
        agrees(y, np.concatenate([whole, whole, whole], 1))

    on_ranks(program)


@pytest.mark.host_only  # small blocks of a node travel in one round, others are read in place
@pytest.mark.parametrize("columns", [5, 4096])
def test_rolls_and_tiles_along_a_cut_axis_are_one_exchange(columns: int) -> None:
    values = np.arange(8.0 * columns).reshape(8, columns)

    def program() -> None:
        x = da.asarray(values).redistribute([Shard(0)])
        for shift in (1, 2):
            with CommLog() as log:
                found = joining.roll(x, shift, 0)
            agrees(found, np.roll(values, shift, 0))
            assert log.count() == 1
            assert log.bytes() == shift * values[0].nbytes
        with CommLog() as log:
            found = joining.tile(x, (2, 1))
        agrees(found, np.tile(values, (2, 1)))
        assert log.count() == 1

    on_ranks(program)


@pytest.mark.host_only  # those of a node are read in place
def test_large_operands_of_a_join_are_read_in_one_round_each() -> None:
    values = np.arange(8 * 4096.0).reshape(8, 4096)

    def program() -> None:
        x = da.asarray(values).redistribute([Shard(0)])
        with CommLog() as log:
            found = joining.concat([x, x[:3], -x])
        agrees(found, np.concatenate([values, values[:3], -values]))
        assert log.count() == 3

    on_ranks(program)


@pytest.mark.host_only  # where memory comes from the pool
def test_large_parts_are_copied_once_from_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, take = [], _arena.take
    monkeypatch.setattr(_arena, "take", lambda n: (taken.append(n), take(n))[1])
    values = np.arange(700.0 * 601).reshape(700, 601)
    mine = -values

    def program() -> None:
        mesh = init_device_mesh((2,))
        x = da.asarray(distribute_array(values, mesh, [Shard(0)], src=None), copy=True)
        y = da.asarray(distribute_array(mine, mesh, [Shard(0)], src=None), copy=True)
        for call in (
            lambda n, x, y: n.concat([x, y, x]),
            lambda n, x, y: n.roll(x, 5, 0),
            lambda n, x, y: n.roll(x, -400, 0),
            lambda n, x, y: n.tile(x, (2, 1)),
        ):
            call(da, x, y)  # what is kept for the layouts is made
            mesh.communicator().barrier()
            before = len(taken)
            mesh.communicator().barrier()
            with CommLog() as log:
                found = call(da, x, y)
            mesh.communicator().barrier()
            blocks = len(taken) - before
            mesh.communicator().barrier()
            assert blocks == 2  # the result's on each rank
            assert log.count() > 0
            agrees(found, call(np, values, mine))
            agrees(call(da, x, mine), call(np, values, mine))
        # Of other ranks' memory that cannot be read in place blocks are still right.
        z = da.DistArray.from_local(mine[:350] if mesh.rank == 0 else mine[350:], mesh, [Shard(0)])
        agrees(da.concat([x, z]), np.concatenate([values, mine]))
        agrees(da.roll(z, 3, 0), np.roll(mine, 3, 0))

    simulate(2, program)


def test_concat_takes_the_layout_for_which_least_has_to_move() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        row = distribute_array(np.zeros((1, 400)), mesh, [Replicate()], src=None)
        large = distribute_array(np.ones((399, 400)), mesh, [Shard(1)], src=None)
        assert joining.concat([row, large], axis=0).placements == (Shard(1),)

    on_ranks(program)


def test_sums_stay_sums_when_all_parts_are() -> None:
    def program() -> None:
        x = Case((4,), (Partial("sum"),), np.arange(48.0).reshape(4, 4, 3)).build()
        assert joining.concat([x, x], axis=1).placements == (Partial("sum"),)
        assert joining.roll(x, 1, axis=0).placements == (Partial("sum"),)

    on_ranks(program)


def test_process_outside_the_mesh_takes_part_with_empty_blocks() -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 6)
        x = distribute_array(whole, DeviceMesh([3, 1]), [Shard(0)], src=None)
        agrees(joining.concat([x, x], axis=0), np.concatenate([whole, whole]))
        agrees(joining.stack([x, x], axis=1), np.stack([whole, whole], 1))
        agrees(joining.roll(x, 1, axis=0), np.roll(whole, 1, 0))
        agrees(joining.repeat(x, 2, axis=0), np.repeat(whole, 2, 0))
        agrees(joining.tile(x, (2, 1)), np.tile(whole, (2, 1)))

    on_ranks(program)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: joining.concat([]), ShapeError),
        (lambda x: joining.concat([x, x[:, :2]]), ShapeError),
        (lambda x: joining.concat([x, x[:, 0]]), ShapeError),
        (lambda x: joining.concat([x, x], axis=2), AxisError),
        (lambda x: joining.concat([np.zeros(3)]), ArgumentTypeError),
        (lambda x: joining.stack([]), ShapeError),
        (lambda x: joining.stack([x, x.T]), ShapeError),
        (lambda x: joining.roll(x, 1, axis=5), AxisError),
        (lambda x: joining.roll(x, (1, 2, 3), axis=(0, 1)), ArgumentError),
        (lambda x: joining.repeat(x, -1, axis=0), ArgumentError),
        (lambda x: joining.repeat(x, [1, 2], axis=0), ArgumentError),
        (lambda x: joining.repeat(x, 1.5, axis=0), ArgumentError),
        (lambda x: joining.tile(x, -1), ArgumentError),
        (lambda x: joining.tile(x, 1.5), ArgumentTypeError),
        (lambda x: joining.concat(5), ArgumentTypeError),
        (lambda x: joining.stack(5), ArgumentTypeError),
        (lambda x: joining.roll(x, 1.5), ArgumentTypeError),
        (lambda x: joining.unstack(x, axis=3), AxisError),
    ],
)
def test_bad_argument_raises_on_every_rank_and_sends_nothing(call: Any, error: Any) -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 6)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        with CommLog() as log, pytest.raises(error):
            call(x)
        assert log.count() == 0
        agrees(x, whole)

    on_ranks(program)


@pytest.mark.parametrize("reps", [1, (1, 1), (1, 1, 1), ()])
def test_tile_once_is_a_copy(reps: Any) -> None:
    whole = np.arange(30.0).reshape(6, 5)

    def program() -> None:
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        y = joining.tile(x, reps)
        agrees(y, np.tile(whole, reps))
        y[...] = 0
        agrees(x, whole)

    on_ranks(program)


def test_roll_takes_arrays_of_shifts_and_axes() -> None:
    whole = np.arange(30.0).reshape(6, 5)

    def program() -> None:
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        by = np.array([1, 7])
        agrees(joining.roll(x, by, axis=(0, 1)), np.roll(whole, by, axis=(0, 1)))
        agrees(joining.roll(x, by, axis=0), np.roll(whole, by, axis=0))
        agrees(joining.roll(x, 2, axis=np.array([0, 1])), np.roll(whole, 2, axis=(0, 1)))

    on_ranks(program)


@pytest.mark.host_only  # GPUs have one byte order
def test_tile_keeps_the_byte_order_as_in_numpy() -> None:
    def program() -> None:
        value = np.arange(5, dtype=">f8")
        x = distribute_array(value, init_device_mesh((4,)), [Shard(0)], src=None)
        agrees(da.tile(x, 2), np.tile(value, 2))

    on_ranks(program)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: da.repeat(x, 2**61), ArgumentError),
        (lambda x: da.repeat(x, [0, 0, 0, 0, 0, 0, 2**62]), ArgumentError),
        (lambda x: da.tile(x, 2**62), ArgumentError),
        (lambda x: da.broadcast_to(x, (2**62, 7)), ShapeError),
    ],
)
def test_more_items_than_can_be_counted_are_refused_on_every_rank(call: Any, error: Any) -> None:
    def program() -> None:
        x = distribute_array(np.ones(7), init_device_mesh((4,)), [Shard(0)], src=None)
        with pytest.raises(error):
            call(x)

    on_ranks(program)


@settings(max_examples=10)
@given(data=st.data())
def test_repeats_that_are_distributed_agree_with_numpy(data: st.DataObject) -> None:
    x = data.draw(cases((np.float64, np.int32), ("sum",)))
    axis = data.draw(st.sampled_from((None, *range(len(x.shape)))))
    size = x.shape[axis] if axis is not None else math.prod(x.shape)
    size = data.draw(st.sampled_from((size, size, 1)))
    kinds = (np.int64, np.uint8, np.int16, np.bool_)
    counts = data.draw(cases(kinds, ("max",), mesh_shape=x.mesh_shape, shape=(size,)))
    negative = bool((counts.value < 0).any())
    expected = None if negative else np.repeat(x.value, counts.value, axis)

    def program() -> str | None:
        array, times = x.build(), counts.build()
        if array.mesh.coordinate is None:
            return None  # the lengths depend on values
        if expected is None:
            with pytest.raises(ArgumentError) as caught:
                joining.repeat(array, times, axis)
            return str(caught.value)
        agrees(joining.repeat(array, times, axis), expected)
        agrees(np.repeat(array, times, axis), expected)
        return ""

    assert len({one for one in on_ranks(program) if one is not None}) == 1


@pytest.mark.host_only
def test_what_a_join_moves_between_nodes_is_recorded_once() -> None:
    values = np.arange(300.0 * 200).reshape(300, 200)

    def program() -> tuple[int, int]:
        parts = [da.distribute_array(part) for part in (values[:200], values[200:])]
        with CommLog() as log:
            joined = joining.concat(parts, axis=0)
        agrees(joined, values)
        return log.count(), log.bytes()

    found = simulate(2, program, ranks_per_node=1)
    assert [count for count, _ in found] == [1, 1]
    assert sum(nbytes for _, nbytes in found) == 100 * values[0].nbytes
