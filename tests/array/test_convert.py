"""Ways in and out: from_local, distribute_array, full_array, redistribute, their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._array import DistArray, distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh, simulate, use_mesh
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    LayoutError,
    MismatchError,
    PlacementError,
)
from distarray.layout import Layout, Partial, Replicate, Shard
from tests.array.strategies import RANKS, agrees, cases, on_ranks
from tests.on_device import DEVICE

R = Replicate()
OPS = ("sum", "avg", "prod", "min", "max")


@settings(max_examples=40)
@given(data=st.data(), src=st.sampled_from((0, None, -1)))
def test_distributed_value_comes_back_whole(data: st.DataObject, src: int | None) -> None:
    case = data.draw(cases((np.float64, np.int32, np.bool_, np.complex64), ("sum", "max")))
    value = case.value

    def program() -> None:
        layout = case.layout()
        mesh = layout.mesh
        position = mesh.size - 1 if src == -1 else src
        mine = value
        if position is not None and mesh.coordinate is not None and mesh.rank != position:
            mine = np.empty(3)
        x = distribute_array(mine, mesh, layout.placements, src=position)
        assert x.placements == layout.placements
        agrees(x, value)
        assert not np.shares_memory(x.to_local(), value)

    on_ranks(program)


@settings(max_examples=40)
@given(data=st.data())
def test_blocks_of_any_split_are_adopted_without_a_copy(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32), OPS))

    def program() -> None:
        built = case.build()
        layout = built.layout
        block = built.to_local()
        options: dict[str, Any] = {}
        if layout.mesh.coordinate is None or data_told:
            options["shape"] = case.shape
        if case.order is None or layout.shard_order is None:
            x = DistArray.from_local(block, layout.mesh, layout.placements, **options)
            agrees(x, case.value)
            if layout.mesh.coordinate is not None:
                assert x.to_local() is block
                assert x.layout is layout

    data_told = data.draw(st.booleans())
    on_ranks(program)


@settings(max_examples=40)
@given(data=st.data())
def test_redistribute_keeps_values_between_any_placements_and_meshes(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32), ("sum", "max")))
    target = data.draw(cases((np.float64,), ("sum", "max"), shape=case.shape))
    same_mesh = data.draw(cases((np.float64,), ("sum",), case.mesh_shape, case.shape))
    handle = data.draw(st.booleans())

    def program() -> None:
        x = case.build()
        for layout in (same_mesh.layout(), target.layout()):
            y = x.redistribute(layout.placements, mesh=layout.mesh, async_op=handle)
            if handle:
                y.test()
                pending, y = y, y.wait()
                assert pending.wait() is y
                assert pending.test()
            assert y.placements == layout.placements
            assert y.mesh is layout.mesh
            agrees(y, case.value)
            agrees(x, case.value)

    on_ranks(program)


@pytest.mark.parametrize("source", ["whole", "down", "across"])
@pytest.mark.parametrize("target", ["whole", "down", "across"])
def test_sub_meshes_count_as_replicated_along_the_other_axes(target: str, source: str) -> None:
    value = np.arange(24.0).reshape(4, 6)

    def program() -> None:
        mesh = init_device_mesh((2, 2), ("down", "across"))
        layouts = {
            "whole": (mesh, [Shard(0), Shard(1)]),
            "down": (mesh["down"], [Shard(0)]),
            "across": (mesh["across"], [Shard(1)]),
        }
        own, placements = layouts[target]
        x = distribute_array(value, *layouts[source])
        parts = [Partial("sum")] * x.mesh.ndim
        summed = x.redistribute(parts)
        for y in (
            x.redistribute(placements, mesh=own),
            x.redistribute(placements, mesh=own, async_op=True).wait(),
            da.asarray(x, mesh=own, placements=placements),
            summed.redistribute(placements, mesh=own),
        ):
            assert y.mesh is own
            assert y.placements == tuple(placements)
            agrees(y, value)

    on_ranks(program)


def test_result_of_redistribute_shares_no_memory_with_replicas() -> None:
    def program() -> None:
        x = distribute_array(np.zeros(8), init_device_mesh((4,)), [R])
        y = x.redistribute([Shard(0)])
        y += 1
        agrees(x, np.zeros(8))

    on_ranks(program)


def test_average_of_integers_is_float64() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = DistArray.from_local(np.array([mesh.rank, 1]), mesh, [Partial("avg")])
        assert x.dtype == np.float64
        agrees(x, np.array([1.5, 1.0]))
        y = distribute_array(np.array([1, 2]), mesh, [Partial("avg")])
        agrees(y, np.array([1.0, 2.0]))
        agrees(
            distribute_array(np.arange(3), mesh, [R]).redistribute([Partial("avg")]), [0.0, 1, 2]
        )

    on_ranks(program)


def test_defaults_are_those_of_the_mesh_in_use() -> None:
    def program() -> None:
        x = distribute_array(np.arange(9.0))
        assert x.placements == (Shard(0),)
        assert x.mesh.shape == (4,)
        assert distribute_array(np.float64(3)).placements == (R,)
        assert distribute_array(2.5).shape == ()
        with use_mesh(init_device_mesh((2, 2)), [R, Shard(1)]):
            y = distribute_array(np.ones((2, 4)))
        assert y.placements == (R, Shard(1))
        assert distribute_array(y, placements=[Shard(0), R]).placements == (Shard(0), R)

    on_ranks(program)


def test_checked_adoption_exchanges_once_and_unchecked_never() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        with CommLog() as log:
            x = DistArray.from_local(np.ones((2, 3)), mesh, [Shard(0)], check=False)
        assert log.count() == 0
        assert x.shape == (8, 3)
        with CommLog() as log:
            sizes = (3, 0, 1, 2)
            y = DistArray.from_local(np.ones(sizes[mesh.rank]), mesh, [Shard(0)])
        assert log.count() <= 1
        assert y.shape == (6,)
        assert y.layout.boundaries == {0: (0, 3, 3, 4, 6)}

    on_ranks(program)


def test_blocks_that_do_not_fit_raise_the_same_error_everywhere() -> None:
    def program() -> list[str]:
        mesh = init_device_mesh((2, 2))
        rank = mesh.rank
        messages = []
        for error, call in (
            (
                LayoutError,
                lambda: DistArray.from_local(np.ones((2, 2 + rank)), mesh, [Shard(0), R]),
            ),
            (
                LayoutError,
                lambda: DistArray.from_local(np.ones((2,) * (1 + rank % 2)), mesh, [R, R]),
            ),
            (
                LayoutError,
                lambda: DistArray.from_local(np.ones(2), mesh, [Shard(0), R], shape=(5,)),
            ),
            (LayoutError, lambda: DistArray.from_local(np.ones(rank), mesh, [R, R])),
            (
                DTypeError,
                lambda: DistArray.from_local(np.ones(2, f"f{4 + 4 * (rank > 1)}"), mesh, [R, R]),
            ),
            (
                PlacementError,
                lambda: DistArray.from_local(np.ones(2), mesh, [Shard(0), R if rank else Shard(0)]),
            ),
        ):
            with pytest.raises(error) as caught:
                call()
            messages.append(str(caught.value))
        agrees(DistArray.from_local(np.ones(2), mesh, [Shard(0), R]), np.ones(4))
        return messages

    results = on_ranks(program)
    assert all(messages == results[0] for messages in results)


def test_bad_arguments_raise_before_anything_is_sent() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.ones(4), mesh, [Shard(0)])
        with CommLog() as log:
            for error, call in (
                (PlacementError, lambda: x.redistribute([Shard(0), R])),
                (ValueError, lambda: x.redistribute([Shard(1)])),
                (ArgumentError, lambda: distribute_array(np.ones(3), mesh, [R], src=4)),
                (DTypeError, lambda: distribute_array(np.array([None]), mesh, [R], src=None)),
                (DTypeError, lambda: DistArray.from_local(np.array([None]), mesh, [R])),
                (LayoutError, lambda: DistArray.from_local(
                    np.ones(3), mesh, [Shard(0)], shape=(20,), check=False)),
                (TypeError, DistArray),
            ):  # fmt: skip
                with pytest.raises(error):
                    call()
        # The ranks heard that all of them fail, and nothing else.
        assert log.count() == log.count("all_gather_object") == 2
        with pytest.raises(DTypeError):
            distribute_array(np.array([None]) if mesh.rank == 0 else None, mesh, [R])
        agrees(x, np.ones(4))

    on_ranks(program)


def test_a_process_outside_the_mesh_must_pass_an_empty_block() -> None:
    def program() -> None:
        mesh = DeviceMesh([0, 1])
        if mesh.coordinate is None:
            with pytest.raises(LayoutError, match="empty"):
                DistArray.from_local(np.ones(2), mesh, [Shard(0)])
            x = DistArray.from_local(np.ones(0), mesh, [Shard(0)], shape=(4,))
        else:
            x = DistArray.from_local(np.ones(2), mesh, [Shard(0)])
        assert x.shape == (4,)

    on_ranks(program)


@pytest.mark.host_only
def test_structured_and_text_items_travel() -> None:
    record = np.array([(1, 2.5), (3, 4.5), (5, 6.5)], dtype=[("a", "i4"), ("b", "f8")])
    words = np.array(["one", "three", "five"])

    def program() -> None:
        mesh = init_device_mesh((4,))
        for value in (record, words, words.astype("S"), np.arange(3).astype("M8[s]")):
            x = distribute_array(value, mesh, [Shard(0)])
            agrees(x, value)
            agrees(x.redistribute([R]), value)

    on_ranks(program)


def test_attributes_are_told_without_communication() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.ones((5, 3), np.float32), mesh, [Shard(0)])
        with CommLog() as log:
            assert (x.shape, x.ndim, x.size) == ((5, 3), 2, 15)
            assert (x.dtype, x.itemsize, x.nbytes) == (np.float32, 4, 60)
            assert x.mesh is mesh
            assert x.device == DEVICE
            assert x.layout is Layout(mesh, [Shard(0)], (5, 3))
        assert log.count() == 0

    on_ranks(program)


def test_redistribute_takes_boundaries_and_shard_order():
    value = np.arange(30.0).reshape(10, 3)

    def program():
        mesh = init_device_mesh((2, 2), ("a", "b"))
        x = distribute_array(value, mesh, [Shard(0), Shard(0)])
        uneven = x.redistribute(boundaries={0: (0, 1, 1, 7, 10)})
        turned = x.redistribute(x.placements, shard_order=("b", "a"))
        assert uneven.layout.boundaries == {0: (0, 1, 1, 7, 10)}
        assert turned.layout.shard_order == (1, 0)
        assert uneven.redistribute(x.placements).layout is x.layout
        for y in (uneven, turned):
            box = y.layout.local_box()
            np.testing.assert_array_equal(y.to_local(), value[slice(*box[0])])
            np.testing.assert_array_equal(y.full_array(), value)
        with pytest.raises(LayoutError):
            x.redistribute(boundaries={0: (0, 5, 10)})

    on_ranks(program)


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_ranks_of_one_mesh_only_plan_a_move_to_another_alike_on_several_nodes(
    ranks_per_node: int,
) -> None:
    value = np.arange(229 * 286.0).reshape(229, 286)  # large enough that nodes matter

    def program() -> None:
        x = distribute_array(value, DeviceMesh([3]), [Shard(0)], src=None)
        agrees(x.redistribute([R], mesh=DeviceMesh([2, 0])), value)

    simulate(RANKS, program, ranks_per_node=ranks_per_node)


def test_negative_zero_keeps_its_sign_through_a_sum_yet_to_be_formed():
    value = np.array([-0.0, 0.0, 1.0])

    def program():
        mesh = init_device_mesh((4,))
        for start in (R, Shard(0)):
            for dtype in (np.float32, np.float64, np.complex128):
                x = distribute_array(value.astype(dtype) * 1, mesh, [start])
                back = x.redistribute([Partial("sum")]).full_array()
                np.testing.assert_array_equal(np.signbit(back.real), [True, False, False])

    on_ranks(program)


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_take_different_ways_in_hear_of_it_and_stay_in_step(first) -> None:
    def program() -> None:
        mesh = init_device_mesh((2,))
        block = np.full(3, mesh.rank + 1.0)
        way = distribute_array if mesh.rank == first else DistArray.from_local
        with pytest.raises(MismatchError, match="from_local on") as caught:
            way(block, mesh, [Shard(0)])
        assert "distribute_array on" in str(caught.value)
        x = DistArray.from_local(block, mesh, [Shard(0)])
        np.testing.assert_array_equal(x.full_array(), [1, 1, 1, 2, 2, 2])

    simulate(2, program)


@pytest.mark.parametrize("axes", [(1, 2), (2, 1)])
def test_ranks_that_ask_for_other_layouts_hear_of_it_and_stay_in_step(axes) -> None:
    """Steps of one kind: nothing but the layouts tells them apart."""

    def program() -> None:
        value = np.arange(64.0).reshape(4, 4, 4)
        x = distribute_array(value, placements=[Shard(0)])
        rank = x.mesh.rank
        with pytest.raises(MismatchError, match=rf"S\({axes[0]}\).*S\({axes[1]}\)"):
            x.redistribute([Shard(axes[rank])])
        found = x.redistribute([Shard(1)]).to_local()
        np.testing.assert_array_equal(found, value[:, 2 * rank : 2 * rank + 2])

    simulate(2, program)


@pytest.mark.parametrize(
    "name", ["sum", "max", "any", "mean", "std", "median", "argmax", "cumsum", "unique_values"]
)
def test_a_list_of_distributed_arrays_is_stacked_and_not_gathered(name: str) -> None:
    # Of a line of up to 65,536 items all are gathered for its median.
    values = np.arange(1.0, 400_001 if name == "median" else 8001) % 7

    def program() -> None:
        x = distribute_array(values, src=None)
        parts, known = [x, x * 2], [values, values * 2]
        options = {} if name == "unique_values" else {"axis": 1}
        with CommLog() as log:
            y = da.asarray(parts)
            found = getattr(da, name)(parts, **options)
        assert y.layout.placements == (Shard(1),)
        assert all(one.nbytes < values.nbytes // 2 for one in log.records)
        agrees(y, known)
        agrees(da.asarray(((x, list(values)), (x, x))), [[values, values], [values, values]])
        agrees(found, getattr(np, name)(known, **options))
        with pytest.raises(ArgumentTypeError, match="stack"):
            da.append(parts, 1.0)

    on_ranks(program)


@pytest.mark.skipif(DEVICE != "cpu", reason="these loops are NumPy's")
def test_dtypes_are_those_that_loops_of_numpy_ask_for() -> None:
    def program() -> None:
        for dtype in ("f8", "i4", "?", "c8"):
            x = da.distribute_array(np.ones(5, dtype))
            assert x.to_local().dtype is np.dtype(dtype)
        for dtype in (">f8", "U3", "M8[D]", "i4,f8"):
            assert da.distribute_array(np.zeros(5, dtype)).dtype == np.dtype(dtype)

    on_ranks(program)
