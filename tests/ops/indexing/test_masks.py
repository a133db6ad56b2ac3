"""Boolean masks select what NumPy selects; only the lengths of blocks are sent for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import ImplicitCommunicationError, IndexingError, MeshError, MismatchError
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import RANKS, Case, agrees, cases, on_ranks, special_items
from tests.on_device import DEVICE, host

DTYPES = (np.float64, np.int32, np.bool_, np.complex64, np.int16)
OPS = ("sum", "max")
R = Replicate()


@st.composite
def masks(draw: Any, shape: tuple[int, ...], mesh_shape: tuple[int, ...]) -> Case:
    """Draw a mask over the first axes of a shape, of any layout."""
    shape = shape[: draw(st.integers(1, len(shape)))]
    found: Case = draw(cases((np.bool_,), ("any", "all"), mesh_shape, shape))
    density = draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    drawn = np.random.default_rng(draw(st.integers(0, 99))).random(found.values.shape) < density
    found.values[...] = drawn
    return found


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_items_are_those_of_numpy_for_all_layouts(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, OPS if data.draw(st.booleans()) else ()))
    if not case.shape or (case.values.dtype == bool and case.op == "sum"):
        return
    own = data.draw(masks(case.shape, case.mesh_shape))
    how = data.draw(st.sampled_from(("distributed", "plain", "list", "tuple")))
    mask, expected = own.value, case.value[own.value]
    if how == "list" and not mask.size:
        return  # lists without items have no dtype

    def program() -> None:
        x = case.build()
        key = {
            "distributed": own.build,
            "plain": lambda: mask,
            "list": mask.tolist,
            "tuple": lambda: (mask,),
        }[how]()
        if x.mesh.coordinate is None:
            with pytest.raises(MeshError, match="cannot know the shape"):
                x[key]
            return
        y = x[key]
        agrees(y, expected)
        assert sum(y.layout.shape) == sum(expected.shape)
        agrees(x[key], expected)  # from memory
        agrees(x, case.value)
        y.to_local()[...] = 0  # a copy, which may be written into
        agrees(x, case.value)

    on_ranks(program)


@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "c16", "u8", "U3", "S2", "M8[s]", "m8[D]", "?", ">f8", "f8,i4"]
)
def test_items_of_all_dtypes_are_copied_bit_by_bit(dtype: str) -> None:
    if DEVICE != "cpu" and (dtype[0] in "USMm>" or "," in dtype):
        pytest.skip("GPUs have no such items")
    if "," in dtype:
        items = np.array([(np.nan, 1), (-0.0, 2), (np.inf, -3)], dtype)
    elif dtype[0] in "USMm":
        items = np.array(["a", "", "NaT" if dtype[0] in "Mm" else "xyz"][:3], "U3")
        items = np.array([1, 2, "NaT"], dtype) if dtype[0] in "Mm" else items.astype(dtype)
    else:
        items = special_items(np.dtype(dtype).newbyteorder("=")).astype(dtype)
    values = np.resize(items, (11, 3))
    mask = np.arange(33).reshape(11, 3) % 3 != 1

    def program() -> None:
        x = da.distribute_array(values, placements=[Shard(0)], src=None)
        for key, expected in ((mask, values[mask]), (mask[:, 0], values[mask[:, 0]])):
            y = x[key]
            assert y.dtype == values.dtype
            assert host(y.full_array()).tobytes() == expected.tobytes()

    on_ranks(program)


def test_8_bytes_of_each_process_and_no_item_are_sent() -> None:
    def program() -> None:
        x = da.arange(40000.0).reshape(1000, 40)
        mask = x % 3 == 0
        with CommLog() as log, da.communication("raise"):
            y = x[mask]
        assert log.count() == 1
        assert log.bytes() == 8 * (RANKS - 1)
        assert y.layout.is_counted
        assert y.placements == (Shard(0),)
        assert y.to_local().size == np.count_nonzero(mask.to_local())
        with CommLog() as log, da.communication("raise"):
            plain, rows = np.arange(1000) % 7 > 2, x[np.arange(1000) % 7 > 2]
        assert log.bytes() == 8 * (RANKS - 1)
        assert rows.shape == (np.count_nonzero(plain), 40)
        with CommLog() as log:  # the same counts, the same layout: nothing is resolved again
            assert x[mask].layout is y.layout
        assert log.bytes() == 8 * (RANKS - 1)

    on_ranks(program)


def test_lengths_are_not_exchanged_where_the_axis_is_not_cut() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(80.0).reshape(10, 8), placements=[Shard(1)], src=None)
        mask = np.arange(10) % 2 == 0
        with CommLog() as log:
            y = x[mask]
        assert log.count() == 0
        assert y.placements == (Shard(1),)
        agrees(y, np.arange(80.0).reshape(10, 8)[mask])
        whole = x.redistribute([R])
        with CommLog() as log:
            z = whole[mask]
        assert log.count() == 0
        assert z.placements == (R,)

    on_ranks(program)


def test_a_replicated_array_is_cut_as_the_mask_is() -> None:
    def program() -> None:
        values = np.arange(30.0).reshape(10, 3)
        x = da.distribute_array(values, placements=[R], src=None)
        mask = da.arange(10) % 3 == 1
        with CommLog() as log:
            y = x[mask]
        assert log.bytes() == 8 * (RANKS - 1)
        assert y.placements == (Shard(0),)
        agrees(y, values[np.arange(10) % 3 == 1])

    on_ranks(program)


def test_blocks_are_numbered_in_the_order_of_the_cuts() -> None:
    values = np.arange(48.0).reshape(24, 2)

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        x = da.distribute_array(values, mesh, [Shard(0), Shard(0)], src=None)
        x = x.redistribute(x.placements, shard_order=(1, 0))
        y = x[values[:, 0] < 13]
        assert y.layout.shard_order == (1, 0)
        assert y.layout.boundaries == {0: (0, 6, 7, 7, 7)}
        agrees(y, values[values[:, 0] < 13])
        tiles = da.distribute_array(values, mesh, [Shard(0), Shard(1)], src=None)
        agrees(tiles[values % 5 > 1], values[values % 5 > 1])
        rows = tiles[values[:, 0] % 5 > 1]
        assert rows.placements == (Shard(0), Shard(1))
        agrees(rows, values[values[:, 0] % 5 > 1])

    on_ranks(program)


def test_partial_arrays_stay_partial() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(8.0), placements=[Partial()], src=None)
        y = x[np.arange(8) % 2 == 0]
        assert y.placements == (Partial(),)
        agrees(y, np.arange(8.0)[::2])

    on_ranks(program)


def test_results_take_part_in_further_operations() -> None:
    def program() -> None:
        values = np.random.default_rng(3).normal(size=1000)
        x = da.distribute_array(values, src=None)
        positive = x[x > 0]
        expected = values[values > 0]
        agrees(positive + x[x > 0], 2 * expected)
        agrees(positive[positive < 1], expected[expected < 1])
        assert math.isclose(float(positive.sum()), expected.sum(), rel_tol=1e-12)
        agrees(positive.rebalance() * positive, expected * expected)
        agrees(x[x > 9], values[values > 9])
        agrees(x[x > 9].rebalance(), values[values > 9])

    on_ranks(program)


@pytest.mark.parametrize("shape", [(5,), (10, 2), (10, 3, 1)], ids=str)
@pytest.mark.parametrize("distributed", [False, True])
def test_masks_of_other_lengths_are_refused(shape: tuple[int, ...], distributed: bool) -> None:
    def program() -> None:
        x = da.ones((10, 3))
        mask = da.ones(shape, dtype=bool) if distributed else np.ones(shape, bool)
        with CommLog() as log, pytest.raises(IndexingError, match="first axes"):
            x[mask]
        assert log.count() == 0
        assert x[x > 0].shape == (30,)

    on_ranks(program)


def test_other_arrays_are_still_refused() -> None:
    x = da.ones((4, 3))
    for key in ([0, 1], np.array([1]), [[True], [True, False]], (np.ones(4, bool), 0), True, []):
        with pytest.raises(IndexingError):
            x[key]


def test_what_must_move_first_is_shown_to_the_policy() -> None:
    def program() -> None:
        x = da.distribute_array(np.ones((8, 8)), placements=[Shard(1)], src=None)
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError, match="mask"):
            x[np.eye(8) > 0]
        agrees(x[np.eye(8) > 0], np.ones(8))

    on_ranks(program)


def test_ranks_that_select_from_other_layouts_are_told_apart() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.ones((8 + (mesh.rank == 2),), mesh=mesh)
        with pytest.raises(MismatchError):
            x[np.ones(x.shape, bool)]
        assert da.ones((8,))[np.ones(8, bool)].shape == (8,)

    on_ranks(program)
