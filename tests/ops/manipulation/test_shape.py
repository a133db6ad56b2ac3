"""Shape functions agree with NumPy for every layout, and keep data in place where they can."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, _backend, init_device_mesh
from distarray.core.engine._policy import communication
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    ImplicitCommunicationError,
    ReadOnlyError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops import flatten, ravel, reshape
from distarray.ops.manipulation import _shape as shaping
from distarray.ops.manipulation._routes import TOLERATED
from tests.array.strategies import Case, agrees, cases, on_ranks

OPS = ("sum", "max")
axes_ = st.integers(-4, 3)


@st.composite
def reshapes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two shapes of equally many items, also zero, with ones strewn in."""
    primes = draw(st.lists(st.sampled_from((1, 2, 2, 3, 4, 5)), max_size=4))
    if draw(st.integers(0, 9)) == 0:
        primes.append(0)
    shapes = []
    for _ in range(2):
        parts = draw(st.permutations(primes))
        shape: list[int] = []
        for part in parts:
            if shape and draw(st.booleans()):
                shape[-1] *= part
            else:
                shape.append(part)
        if draw(st.integers(0, 3)) == 0:
            shape.insert(draw(st.integers(0, len(shape))), 1)
        shapes.append(tuple(shape))
    return shapes[0], shapes[1]


@settings(max_examples=75)
@given(data=st.data())
def test_reshape_agrees_with_numpy(data: st.DataObject) -> None:
    before, after = data.draw(reshapes())
    case: Case = data.draw(cases((np.float64, np.int16), OPS, shape=before))
    asked: Any = after
    if after and math.prod(after) and data.draw(st.booleans()):
        unknown = data.draw(st.integers(0, len(after) - 1))
        asked = (*after[:unknown], -1, *after[unknown + 1 :])
    order = data.draw(st.sampled_from("CCCF"))

    def program() -> None:
        x = case.build()
        y = reshape(x, asked, order)
        agrees(y, case.value.reshape(asked, order=order))
        assert y.layout.partial_axes == x.layout.partial_axes

    on_ranks(program)


@settings(max_examples=50)
@given(data=st.data())
def test_reshape_leaves_no_rank_with_much_more_than_its_share(data: st.DataObject) -> None:
    before, after = data.draw(reshapes())
    size = data.draw(st.sampled_from((2, 3, 4)))
    axis = data.draw(st.integers(0, max(len(before) - 1, 0)))
    if not before or not math.prod(before) or before[axis] < size or max(after) < size:
        return

    def program() -> None:
        mesh = init_device_mesh((size,))
        x = distribute_array(np.zeros(before), mesh, [Shard(axis)], src=None)
        y = reshape(x, after)
        total = math.prod(before)
        possible = total * min(-(-n // size) / n for n in after)
        assert y.layout.largest_block <= max(
            TOLERATED * x.layout.largest_block, TOLERATED * -(-total // size), possible
        )

    on_ranks(program)


@pytest.mark.parametrize(
    ("before", "placements", "after", "placed", "boundaries"),
    [
        ((8, 6), (Shard(0), Replicate()), (48,), (Shard(0), Replicate()), None),
        ((48,), (Shard(0), Replicate()), (8, 6), (Shard(0), Replicate()), None),
        ((5, 6), (Shard(0), Replicate()), (30,), (Shard(0), Replicate()), {0: (0, 18, 30)}),
        ((4, 3, 2), (Replicate(), Shard(0)), (6, 4), (Replicate(), Shard(0)), None),
        ((2, 6), (Shard(0), Shard(1)), (12,), (Shard(0), Shard(0)), None),
        ((12,), (Shard(0), Shard(0)), (2, 6), (Shard(0), Shard(1)), None),
        ((5, 4, 5), (Shard(0), Shard(2)), (20, 5), (Shard(0), Shard(1)), {0: (0, 12, 20)}),
    ],
)
def test_reshape_stays_in_place_where_blocks_stay_whole(
    before: Any, placements: Any, after: Any, placed: Any, boundaries: Any
) -> None:
    def program() -> None:
        whole = np.arange(math.prod(before), dtype=float).reshape(before)
        x = distribute_array(whole, init_device_mesh((2, 2)), placements, src=None)
        with communication("raise"):
            y = reshape(x, after)
        assert y.placements == placed
        assert y.layout.boundaries == boundaries
        if len(after) == 1 and Shard(1) in placements:
            # A slice might take all of some blocks and part of others, along the inner axis.
            assert not _backend.is_writeable(y.to_local())
        else:
            assert np.shares_memory(y.to_local(), x.to_local())
        agrees(y, whole.reshape(after))

    on_ranks(program)


@pytest.mark.parametrize(
    ("before", "axis", "after"),
    [
        ((2, 1000), 1, (2000,)),
        ((2, 1000), 1, (4, 500)),
        ((2, 3, 40), 2, (240,)),
        ((400,), 0, (2, 200)),
        ((3, 40), 1, (2, 60)),
        ((10, 7), 0, (7, 10)),
    ],
)
def test_reshape_that_fits_no_axis_moves_each_rank_its_own_part(
    before: Any, axis: int, after: Any
) -> None:
    def program() -> None:
        whole = np.arange(math.prod(before), dtype=float).reshape(before)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(axis)], src=None)
        y = reshape(x, after)
        agrees(y, whole.reshape(after))
        assert y.layout.largest_block <= 1.5 * whole.size / 4

    on_ranks(program)


@pytest.mark.parametrize("rows", [3, 7, 8])
def test_writing_into_a_reshape_changes_all_of_the_array_or_raises(rows: int) -> None:
    whole = np.arange(5.0 * rows).reshape(rows, 5)

    def program() -> None:
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        part, flat = reshape(x[:, 1:3], -1), reshape(x, -1)
        if rows != 8:  # the last block is shorter, or empty
            for y in (part, flat):
                with pytest.raises(ReadOnlyError):
                    y -= 100
            return
        part -= 100  # NumPy copies
        agrees(x, whole)
        flat -= 100
        agrees(x, whole - 100)

    on_ranks(program)


@pytest.mark.host_only
def test_a_copied_reshape_is_writable_once_nothing_looks_at_what_it_was_copied_from() -> None:
    def program() -> None:
        x = da.arange(6.0)
        y, part = reshape(x, (2, 3)), x[1:]
        z = reshape(y, (3, 2))
        for one in (y, z):
            with pytest.raises(ReadOnlyError):
                one[0] = 1
        del x, y, one
        with pytest.raises(ReadOnlyError):  # a view is left
            z += 1
        del part
        z += 1
        z[0, 1:] = -z[0, 1:]
        agrees(z, [[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]])
        large = reshape(da.arange(100_002), (3, -1))
        large[:, 0] = 0
        assert large.sum() == sum(range(100_002)) - 33334 - 66668

    on_ranks(program)


VIEWS = {
    "slice": lambda f, x, k: x[tuple(slice(k % 2, None, 1 + k % 3) for _ in range(x.ndim))],
    "slice last": lambda f, x, k: x[..., k % 2 :] if x.ndim else x[...],
    "transpose": lambda f, x, k: f.transpose(x, np.random.default_rng(k).permutation(x.ndim)),
    "expand": lambda f, x, k: f.expand_dims(x, k % (x.ndim + 1)),
    "squeeze": lambda f, x, k: f.squeeze(x),
    "flip": lambda f, x, k: f.flip(x, k % x.ndim) if x.ndim else f.flip(x),
    "split": lambda f, x, k: f.reshape(x, (*x.shape[:-1], 1, x.shape[-1])) if x.ndim else x[...],
}


@settings(max_examples=75)
@given(
    shape=st.lists(st.integers(1, 6), max_size=3),
    cuts=st.lists(st.sampled_from((None, 0, 1, 2)), min_size=2, max_size=2),
    ranks=st.sampled_from(((2, 2), (1, 4), (4, 1), (2, 1))),
    views=st.lists(st.tuples(st.sampled_from(tuple(VIEWS)), st.integers(0, 9)), max_size=3),
    flat=st.sampled_from(("ravel C", "ravel F", "reshape", "rows", "columns")),
)
def test_flat_order_of_views_is_written_through_alike_on_all_ranks_and_as_numpys(
    shape: list[int], cuts: list[Any], ranks: tuple[int, int], views: list[Any], flat: str
) -> None:
    whole = np.arange(math.prod(shape), dtype=float).reshape(shape)
    placements = [Replicate() if c is None or c >= whole.ndim else Shard(c) for c in cuts]

    def changed(f: Any, x: Any) -> Any:
        for name, k in views:
            x = VIEWS[name](f, x, k)
        if flat.startswith("ravel"):
            return f.ravel(x, order=flat[-1])
        if flat == "reshape" or not x.ndim or 0 in x.shape:
            return f.reshape(x, (-1,))
        return f.reshape(x, (x.shape[0], -1) if flat == "rows" else (-1, x.shape[-1]))

    def program() -> tuple[bool, Any]:
        mesh = DeviceMesh(np.arange(math.prod(ranks)).reshape(ranks))
        base = distribute_array(whole, mesh, placements, src=None)
        y = changed(da, base)
        agrees(y, changed(np, whole))
        block = y.to_local()
        shared = _backend.may_share_memory(block, base.to_local()) if block.size else None
        return _backend.is_writeable(block), shared

    found = on_ranks(program)
    inside = found[: math.prod(ranks)]
    assert len({writeable for writeable, _ in inside}) == 1
    if inside[0][0]:
        assert all(writeable for writeable, _ in found)
        theirs = changed(np, whole)
        shared = {one for _, one in inside} - {None}
        assert shared <= {np.shares_memory(theirs, whole)}


def test_flip_of_no_axes_is_no_view() -> None:
    def program() -> None:
        x = distribute_array(np.array(1.0), init_device_mesh((2,)), [Replicate()], src=None)
        y = da.flip(x)
        y += 10
        agrees(x, np.array(1.0))

    on_ranks(program)


def test_reshape_without_copy_is_refused_alike_where_only_some_blocks_need_one() -> None:
    def program() -> None:
        x = distribute_array(np.ones((7, 5)), init_device_mesh((4,)), [Shard(0)], src=None)
        with pytest.raises(ArgumentError, match="copy=False"):
            reshape(x[:, 1:3], -1, copy=False)

    on_ranks(program)


def test_reshape_copy_decides_whether_memory_is_shared() -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(8, 6), init_device_mesh((4,)), [Shard(0)], src=None
        )
        assert np.shares_memory(reshape(x, 48, copy=False).to_local(), x.to_local())
        assert not np.shares_memory(reshape(x, 48, copy=True).to_local(), x.to_local())
        with CommLog() as log:
            with pytest.raises(ArgumentError, match="copy=False"):
                reshape(shaping.transpose(x), 48, copy=False)
            with pytest.raises(ArgumentError, match="copy=False"):
                reshape(x[:, 1:3], 16, copy=False)
        assert log.count() == 0
        assert not np.shares_memory(flatten(x).to_local(), x.to_local())

    on_ranks(program)


def test_reshape_in_a_context_that_refuses_communication_raises_before_it() -> None:
    def program() -> None:
        x = distribute_array(
            np.arange(48.0).reshape(8, 6), init_device_mesh((4,)), [Shard(1)], src=None
        )
        with communication("raise"), pytest.raises(ImplicitCommunicationError):
            reshape(x, 48)
        with communication("raise"), pytest.raises(ImplicitCommunicationError):
            reshape(x, (2, 24))

    on_ranks(program)


@settings(max_examples=38)
@given(data=st.data())
def test_order_of_axes_agrees_with_numpy_and_stays_in_place(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int8), OPS))
    ndim = len(case.shape)
    order = data.draw(st.permutations(range(ndim)))
    ends = data.draw(st.tuples(*[st.integers(-ndim, ndim - 1)] * 2)) if ndim else None
    count = data.draw(st.integers(0, ndim))
    froms, tos = (data.draw(st.permutations(range(ndim)))[:count] for _ in range(2))

    def program() -> None:
        x, value = case.build(), case.value
        with communication("raise"):
            agrees(shaping.permute_dims(x, order), np.transpose(value, order))
            agrees(shaping.transpose(x), value.T)
            agrees(np.transpose(x, order), np.transpose(value, order))
            if ends:
                agrees(shaping.swapaxes(x, *ends), np.swapaxes(value, *ends))
            if ndim > 1:
                agrees(shaping.matrix_transpose(x), np.matrix_transpose(value))
            agrees(shaping.moveaxis(x, froms, tos), np.moveaxis(value, froms, tos))
            assert np.shares_memory(x.T.to_local(), x.to_local()) or not x.to_local().size

    # full_array inside agrees communicates because it is asked to.
    on_ranks(program)


@settings(max_examples=38)
@given(data=st.data())
def test_axes_of_length_1_come_and_go_as_in_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int8), OPS))
    ndim = len(case.shape)
    ones = [axis for axis, size in enumerate(case.shape) if size == 1]
    gone = tuple(data.draw(st.lists(st.sampled_from(ones), unique=True))) if ones else ()
    count = data.draw(st.integers(1, 2))
    new = data.draw(
        st.lists(st.integers(0, ndim + count - 1), min_size=count, max_size=count, unique=True)
    )

    def program() -> None:
        x, value = case.build(), case.value
        agrees(shaping.squeeze(x), np.squeeze(value))
        agrees(shaping.squeeze(x, gone), np.squeeze(value, gone))
        agrees(shaping.expand_dims(x, tuple(new)), np.expand_dims(value, tuple(new)))
        agrees(shaping.expand_dims(x, -1), np.expand_dims(value, -1))

    on_ranks(program)


@settings(max_examples=38)
@given(data=st.data())
def test_broadcasting_agrees_with_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int8), OPS))
    lead = tuple(data.draw(st.lists(st.integers(0, 3), max_size=2)))
    tail = tuple(
        data.draw(st.sampled_from((1, 4, 5))) if size == 1 else size for size in case.shape
    )

    def program() -> None:
        x = case.build()
        y = shaping.broadcast_to(x, (*lead, *tail))
        agrees(y, np.broadcast_to(case.value, (*lead, *tail)))
        first, second = shaping.broadcast_arrays(x, y)
        agrees(first, np.broadcast_to(case.value, (*lead, *tail)))
        assert second.shape == y.shape

    on_ranks(program)


@settings(max_examples=38)
@given(data=st.data())
def test_flip_and_triangles_agree_with_numpy(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.int8), OPS))
    ndim = len(case.shape)
    axis = data.draw(
        st.none()
        | st.integers(-ndim, ndim - 1)
        | st.lists(st.integers(0, ndim - 1), unique=True).map(tuple)
        if ndim
        else st.none()
    )
    k = data.draw(st.integers(-5, 5))

    def program() -> None:
        x, value = case.build(), case.value
        agrees(shaping.flip(x, axis=axis), np.flip(value, axis=axis))
        if ndim > 1:
            agrees(shaping.tril(x, k=k), np.tril(value, k))
            agrees(shaping.triu(x, k=k), np.triu(value, k))
        agrees(x, value)

    on_ranks(program)


@settings(max_examples=12)
@given(case=cases((np.float64,), OPS))
def test_flat_order_agrees_with_numpy(case: Case) -> None:
    def program() -> None:
        x = case.build()
        agrees(ravel(x), case.value.ravel())
        agrees(x.flatten(), case.value.flatten())
        agrees(np.ravel(x, "F"), case.value.ravel("F"))

    on_ranks(program)


def test_process_outside_the_mesh_takes_part_with_empty_blocks() -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 1, 6)
        x = distribute_array(whole, DeviceMesh([3, 1]), [Shard(2)], src=None)
        agrees(x.T, whole.T)
        agrees(reshape(x, (24,)), whole.reshape(24))
        agrees(reshape(x, (2, 12)), whole.reshape(2, 12))
        agrees(shaping.squeeze(x), whole.squeeze())
        agrees(shaping.flip(x), np.flip(whole))
        agrees(shaping.broadcast_to(x, (4, 5, 6)), np.broadcast_to(whole, (4, 5, 6)))

    on_ranks(program)


def test_numpys_functions_reach_ours() -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 1, 6)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        for call in (
            lambda a: np.reshape(a, (6, 4)),
            lambda a: np.moveaxis(a, 0, -1),
            lambda a: np.squeeze(a, axis=1),
            lambda a: np.expand_dims(a, 0),
            lambda a: np.broadcast_to(a, (4, 3, 6)),
            lambda a: np.flip(a, 2),
            lambda a: np.tril(a[:, 0], 1),
            lambda a: a.reshape(2, -1),
            lambda a: a.swapaxes(0, 2),
            lambda a: a.transpose(2, 0, 1),
            lambda a: a.mT,
        ):
            agrees(call(x), call(whole))

    on_ranks(program)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: reshape(x, (5, 5)), ShapeError),
        (lambda x: reshape(x, (-1, -1)), ShapeError),
        (lambda x: reshape(x, (5, -1)), ShapeError),
        (lambda x: reshape(x, (-2, 12)), ShapeError),
        (lambda x: reshape(x, 2.0), (ArgumentTypeError, TypeError)),
        (lambda x: reshape(x, (24,), "A"), ArgumentError),
        (lambda x: shaping.transpose(x, (0, 0)), AxisError),
        (lambda x: shaping.permute_dims(x, (0,)), AxisError),
        (lambda x: shaping.permute_dims(x, (0, 2)), AxisError),
        (lambda x: shaping.swapaxes(x, 0, 2), AxisError),
        (lambda x: shaping.moveaxis(x, 3, 0), AxisError),
        (lambda x: shaping.moveaxis(x, (0, 1), 0), AxisError),
        (lambda x: shaping.squeeze(x, 0), ShapeError),
        (lambda x: shaping.squeeze(x, 2), AxisError),
        (lambda x: shaping.expand_dims(x, 4), AxisError),
        (lambda x: shaping.broadcast_to(x, (4, 5)), ShapeError),
        (lambda x: shaping.flip(x, axis=2), AxisError),
        (lambda x: shaping.matrix_transpose(x[0]), AxisError),
        (lambda x: shaping.transpose(np.zeros(3)), ArgumentTypeError),
        (lambda x: reshape(np.zeros(3), 3), ArgumentTypeError),
        (lambda x: shaping.tril(x, k=1.5), ArgumentTypeError),
    ],
)
def test_bad_argument_raises_on_every_rank_and_sends_nothing(call: Any, error: Any) -> None:
    def program() -> None:
        whole = np.arange(24.0).reshape(4, 6)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(1)], src=None)
        with pytest.raises(error):
            call(x)
        agrees(x.T, whole.T)

    on_ranks(program)


def test_partial_stays_partial() -> None:
    def program() -> None:
        x = Case((4,), (Partial("sum"),), np.arange(96.0).reshape(4, 4, 6)).build()
        with communication("raise"):
            results = (
                x.T,
                reshape(x, (24,)),
                shaping.flip(x),
                shaping.tril(x),
                shaping.expand_dims(x),
            )
        assert {y.placements for y in results} == {(Partial("sum"),)}

    on_ranks(program)


def test_uneven_rows_stay_where_they_are_when_axes_are_merged() -> None:
    value = np.arange(30).reshape(5, 2, 3)

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((3,)), placements=[Shard(0)])
        for bounds in ((0, 2, 4, 5), (0, 1, 1, 5)):
            moved = x.redistribute([Shard(0)], boundaries={0: bounds})
            for shape in ((30,), (10, 3)):
                with da.communication("raise"):
                    y = moved.reshape(shape)
                row = 6 // math.prod(shape[1:])
                assert y.layout.partition(0).offsets == tuple(row * i for i in bounds)
                agrees(y, value.reshape(shape))

    da.testing.simulate(3, program)
