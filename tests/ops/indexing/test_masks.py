"""Boolean masks select what NumPy selects; only the lengths of blocks are sent for them."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.comm import CommLog
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    ImplicitCommunicationError,
    IndexingError,
    MeshError,
    MismatchError,
    ReadOnlyError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from tests.array.index_keys import fitting, slices
from tests.array.strategies import RANKS, Case, agrees, cases, on_ranks, special_items
from tests.on_device import DEVICE, host

DTYPES = (np.float64, np.int32, np.bool_, np.complex64, np.int16)
OPS = ("sum", "max")
R = Replicate()


@st.composite
def masks(
    draw: Any, shape: tuple[int, ...], mesh_shape: tuple[int, ...], whole: bool = False
) -> Case:
    """Draw a mask over the first axes of a shape, or all, of any layout."""
    shape = shape if whole else shape[: draw(st.integers(1, len(shape)))]
    found: Case = draw(cases((np.bool_,), ("any", "all"), mesh_shape, shape))
    density = draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    drawn = np.random.default_rng(draw(st.integers(0, 99))).random(found.values.shape) < density
    found.values[...] = drawn
    return found


@settings(max_examples=40, deadline=None)
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
        if x.mesh.coordinate is None and how == "distributed" and mask.size:
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


@st.composite
def keys_around(draw: Any, shape: tuple[int, ...]) -> tuple[list[Any], list[Any], range]:
    """Draw what stands before and after a mask in a key, and the axes of the mask."""
    first = draw(st.integers(0, len(shape) - 1))
    stop = draw(st.integers(first + 1, len(shape)))
    before, after = [*range(first)], [*range(stop, len(shape))]
    dots = draw(st.sampled_from(("", "before", "after")))
    if dots == "before":
        before = before[draw(st.integers(0, first)) :]
    else:
        after = after[: draw(st.integers(0, len(after)))]
    extra = st.sampled_from([[]] * 7 + [[None], [True], [False]])

    def entries(axes: list[int]) -> list[Any]:
        found = draw(extra)
        for axis in axes:
            size = shape[axis]
            kind = draw(st.integers(0, 2))
            if kind == 0 and size:
                found = [*found, draw(st.integers(-size, size - 1))]
            else:
                found = [*found, slice(None) if kind == 1 else draw(slices(size))]
            found = [*found, *draw(extra)]
        return found

    front = [...] if dots == "before" else []
    back = [...] if dots == "after" else []
    return front + entries(before), entries(after) + back, range(first, stop)


@st.composite
def masked(draw: Any, ops: tuple[str, ...], dtypes: Any = DTYPES) -> tuple[Case, Any, Any]:
    """Draw an array, a mask of some of its axes, and the function that makes a key of a mask."""
    case: Case = draw(cases(dtypes, ops).filter(lambda case: case.shape))
    before, after, axes = draw(keys_around(case.shape))
    mask = draw(masks(case.shape[axes.start : axes.stop], case.mesh_shape, whole=True))
    alone = not before and not after and draw(st.booleans())
    return case, mask, lambda one: one if alone else (*before, one, *after)


def numpys(function: Any) -> Any:
    """Return what a function of plain arrays gives, or None where it raises."""
    with np.errstate(all="ignore"):
        try:
            return function()
        except (IndexError, ValueError, TypeError):
            return None


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_masks_stand_beside_other_entries_as_in_numpy(data: st.DataObject) -> None:
    case, own, key = data.draw(masked(OPS if data.draw(st.booleans()) else ()))
    assume(not (case.values.dtype == bool and case.op == "sum"))
    expected = numpys(lambda: case.value[key(own.value)])
    plain = data.draw(st.booleans())

    def program() -> None:
        x = case.build()
        mask = own.value if plain else own.build()
        outside = x.mesh.coordinate is None
        if (outside and not plain and mask.size) or expected is None:
            with pytest.raises((MeshError, IndexingError)):
                x[key(mask)]
            return
        y = x[key(mask)]
        agrees(y, expected)
        y.to_local()[...] = 0
        agrees(x, case.value)

    on_ranks(program)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_values_are_written_as_numpy_writes_them(data: st.DataObject) -> None:
    dtypes = (np.float64, np.int32, np.complex64)
    case, own, key = data.draw(masked(("sum", "max") if data.draw(st.booleans()) else (), dtypes))
    assume(not (case.values.dtype.kind == "c" and case.op == "max"))
    mesh_shape = data.draw(st.sampled_from((case.mesh_shape, (1,), (2,), (4,))))
    selected = numpys(lambda: case.value[key(own.value)])
    assume(selected is not None)
    shape = data.draw(fitting(selected.shape))
    if shape and data.draw(st.integers(0, 5)) == 0:
        shape = (*shape[:-1], shape[-1] + 1 + (shape[-1] == 0))  # of a wrong length
    value: Case = data.draw(cases((np.float64, np.int8), ("sum",), mesh_shape, shape))
    distributed = data.draw(st.booleans())
    plain = data.draw(st.booleans())
    inside = math.prod(mesh_shape) <= math.prod(case.mesh_shape)

    def written() -> Any:
        whole = case.value.astype(case.values.dtype)
        given = value.value
        full = own.value.ndim == whole.ndim and key(0) in (0, (0,))
        if full and given.ndim > 1 and given.shape[:-1] == (1,) * (given.ndim - 1):
            given = given.reshape(given.shape[-1:])  # which NumPy refuses there alone
        whole[key(own.value)] = given
        return whole

    expected = numpys(written)

    def program() -> None:
        x = case.build()
        mask = own.value if plain else own.build()
        v = value.build() if distributed else value.value
        before = x.layout
        outside = x.mesh.coordinate is None
        if expected is None:
            refused = pytest.raises((ShapeError, MeshError))
            with contextlib.suppress(DistArrayError) if outside else refused:
                x[key(mask)] = v
        else:
            try:
                x[key(mask)] = v
            except MeshError:  # one item for each, from processes that cannot know how many
                assert outside or (distributed and not inside)
                return
        assert x.layout is before
        agrees(x, case.value if expected is None else expected)

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
        with CommLog() as log, pytest.raises(IndexingError, match=r"mask of shape|is for"):
            x[mask]
        assert log.count() == 0
        assert x[x > 0].shape == (30,)

    on_ranks(program)


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ArgumentError):
        da.ones((4, 3))[[[True], [True, False]]]


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


# --- writing -------------------------------------------------------------------------------------


def test_masks_with_an_axis_without_items_select_nothing() -> None:
    values = np.arange(6.0).reshape(2, 3)

    def program() -> None:
        x = da.asarray(values)
        for shape in ((0, 0), (2, 0), (0, 3), (0,)):
            mask = np.zeros(shape, bool)
            for key in (mask, da.asarray(mask)):
                agrees(x[key], values[mask])
                x[key] = 7
        agrees(x, values)

    on_ranks(program)


def test_what_is_written_where_a_mask_is_true_goes_there_alone() -> None:
    def program() -> None:
        values = np.arange(4000.0).reshape(1000, 4)
        x, mask = da.asarray(values), da.asarray(values % 3 == 0)
        with CommLog() as log, da.communication("raise"):
            x[mask] = -1
            x[mask[:, 0]] = [1, 2, 3, 4]
        assert log.count() == 0
        values[values % 3 == 0] = -1
        values[host(mask.full_array())[:, 0]] = [1, 2, 3, 4]
        agrees(x, values)
        with CommLog() as log, da.communication("raise"):
            x[mask] = x[mask] * 2
        assert log.bytes() == 2 * 8 * (RANKS - 1)  # lengths, read and written
        values[host(mask.full_array())] *= 2
        agrees(x, values)

    on_ranks(program)


def test_tiles_take_values_for_the_masked_items_alone() -> None:
    values = np.arange(80.0).reshape(10, 8)
    mask = values % 3 > 0

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        for placements in ((Shard(0), Shard(1)), (Shard(1), Shard(0)), (Shard(1), R)):
            for key in (mask, da.distribute_array(mask, mesh, placements, src=None)):
                x = da.distribute_array(values.copy(), mesh, placements, src=None)
                x[key] = -np.arange(mask.sum())
                expected = values.copy()
                expected[mask] = -np.arange(mask.sum())
                agrees(x, expected)
                x[key] = x[key][::-1]
                expected[mask] = expected[mask][::-1]
                agrees(x, expected)

    on_ranks(program)


def test_masks_come_from_other_meshes() -> None:
    def program() -> None:
        mesh = da.DeviceMesh([2, 0])
        x = da.distribute_array(np.arange(6.0), mesh, [Shard(0)], src=None)
        mask = da.arange(6) % 3 > 0
        if mesh.coordinate is None:
            with pytest.raises(MeshError, match="cannot know the shape"):
                x[mask]
        else:
            agrees(x[mask], [1.0, 2.0, 4.0, 5.0])
        x[mask] = 7
        agrees(x, [0.0, 7, 7, 3, 7, 7])

    on_ranks(program)


def test_processes_outside_know_what_an_empty_mask_selects() -> None:
    def program() -> None:
        mesh = da.DeviceMesh([2, 0])
        for shape in ((0, 4), (4, 0)):
            x = da.distribute_array(np.ones((*shape, 2)), mesh, [Shard(0)], src=None)
            for kind in (mesh, da.init_device_mesh((RANKS,))):
                mask = da.distribute_array(np.ones(shape, bool), kind, [Shard(0)], src=None)
                agrees(x[mask], np.ones((0, 2)))

    on_ranks(program)


def test_values_from_other_processes_are_refused_on_all() -> None:
    def program() -> None:
        x = da.distribute_array(np.arange(6.0), da.DeviceMesh([0, 1]), [Shard(0)], src=None)
        with pytest.raises(MeshError, match="outside of this"):
            x[np.arange(6) > 2] = da.arange(3.0)
        x[np.arange(6) > 2] = da.ones(1)  # of which no length is asked
        agrees(x, [0.0, 1, 2, 1, 1, 1])

    on_ranks(program)


def test_a_view_of_a_read_only_array_is_not_written() -> None:
    def program() -> None:
        x = da.arange(8.0)
        with pytest.raises(ReadOnlyError):
            x[::-1][np.arange(8) > 2] = 0
        agrees(x, np.arange(8.0))

    on_ranks(program)


# --- beside index arrays -------------------------------------------------------------------------


@pytest.mark.parametrize("placements", [(Shard(0),), (Shard(1),), (Shard(2), Shard(0)), (R, R)])
@pytest.mark.parametrize("distributed", [False, True])
def test_masks_beside_arrays_count_as_the_places_of_their_items(
    placements: tuple[Any, ...], distributed: bool
) -> None:
    values = np.arange(120.0).reshape(6, 5, 4)
    first, second = np.array([1, 0, 1, 0, 0, 1], bool), np.array([1, 1, 0, 1], bool)
    both, places = values[..., 0] % 8 > 3, np.array([[3, -1, 0]])
    keys = (
        lambda a, b, c: (a, slice(None), b),
        lambda a, b, c: (a, places, b),
        lambda a, b, c: (slice(1, None, 2), [0, 1, 1], b),
        lambda a, b, c: (c, 2),
        lambda a, b, c: (c, np.arange(both.sum()) % 4),
        lambda a, b, c: (None, a, ..., True, [0, 1, -1]),
    )

    def program() -> None:
        mesh = da.init_device_mesh((4,) if len(placements) == 1 else (2, 2))
        x = da.distribute_array(values, mesh, placements, src=None)
        masks = first, second, both
        own = [da.distribute_array(m, mesh, src=None) for m in masks] if distributed else masks
        for key in keys:
            agrees(x[key(*own)], values[key(*masks)])
            y, expected = x.copy(), values.copy()
            value = np.arange(values[key(*masks)].shape[-1]) - 7.0
            y[key(*own)] = value
            expected[key(*masks)] = value
            agrees(y, expected)

    on_ranks(program)


def test_keys_whose_class_means_more_are_refused_on_every_rank() -> None:
    some = np.ma.masked_array(np.arange(6) > 1, np.arange(6) > 3)
    places = np.ma.masked_array([1, 2], [True, False])

    def program() -> None:
        x = da.asarray(np.arange(6.0))
        for key in (some, places, (some,)):
            for value in (1.0, np.ones(2), da.ones(2)):
                with pytest.raises(ArgumentTypeError, match="would lose"):
                    x[key] = value
            with pytest.raises(ArgumentTypeError, match="would lose"):
                x[key]
        agrees(x, np.arange(6.0))

    on_ranks(program)
