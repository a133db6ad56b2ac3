"""Assignment writes what NumPy writes, from values of any layout, and keeps the array's own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh
from distarray.errors import ArgumentError, DTypeError, ShapeError
from distarray.layout import Partial, Replicate, Shard
from distarray.ops import copyto
from distarray.ops.manipulation._shape import broadcast_to
from tests.array.index_keys import fitting, keys
from tests.array.strategies import Case, agrees, cases, on_ranks, values_of

DTYPES = (np.float64, np.int32, np.complex128, np.float32)


def written(case: Case, key: Any, value: Any) -> np.ndarray:
    """Return the global array after the assignment, by NumPy."""
    whole = case.value.astype(case.values.dtype).copy()
    key = key if isinstance(key, tuple) else (key,)
    if not any(entry is Ellipsis for entry in key):
        key = (*key, ...)  # so that NumPy broadcasts also into a single item
    with np.errstate(all="ignore"):
        whole[key] = value
    return whole


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=75)
@given(data=st.data())
def test_distributed_value_of_any_layout_is_written(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, ("sum", "max") if data.draw(st.booleans()) else ()))
    if case.values.dtype.kind == "c" and case.op == "max":
        return
    key = data.draw(keys(case.shape))
    shape = data.draw(fitting(case.value[key].shape))
    mesh_shape = data.draw(st.sampled_from((case.mesh_shape, (4,), (2, 2), (1,))))
    value: Case = data.draw(cases(DTYPES, ("sum",), mesh_shape, shape))
    expected = written(case, key, value.value)

    def program() -> None:
        x, v = case.build(), value.build()
        before = x.layout
        x[key] = v
        assert x.layout is before
        agrees(x, expected)
        agrees(v, value.value)

    on_ranks(program)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=50)
@given(data=st.data())
def test_plain_value_is_written_without_communication(data: st.DataObject) -> None:
    case: Case = data.draw(cases(DTYPES, ("sum",)))
    key = data.draw(keys(case.shape))
    shape = data.draw(fitting(case.value[key].shape))
    dtype = data.draw(st.sampled_from((*DTYPES, np.bool_)))
    value: Any = values_of(dtype, shape, data.draw(st.integers(0, 99)))
    if not shape and data.draw(st.booleans()):
        value = value.item() if case.values.dtype.kind == "c" or value.dtype.kind != "c" else 3
    expected = written(case, key, value)

    def program() -> None:
        x = case.build()
        with CommLog() as log:
            x[key] = value
        assert log.count() == 0
        agrees(x, expected)

    on_ranks(program)


def test_in_place_operator_on_a_slice_changes_the_array_without_communication() -> None:
    def program() -> None:
        whole = np.arange(48.0).reshape(12, 4)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        with CommLog() as log:
            x[2:9, 1:] += 1
            x[3:, 0] *= 2
        assert log.count() == 0
        whole[2:9, 1:] += 1
        whole[3:, 0] *= 2
        agrees(x, whole)

    on_ranks(program)


def test_in_place_operator_on_an_item_of_a_cut_axis_changes_the_array() -> None:
    def program() -> None:
        whole = np.arange(48.0).reshape(12, 4)
        x = distribute_array(whole, init_device_mesh((2, 2)), [Shard(0), Shard(1)], src=None)
        x[5] += 1
        x[-1, 2] -= 3
        x[::-1] *= 2
        whole[5] += 1
        whole[-1, 2] -= 3
        whole *= 2
        agrees(x, whole)

    on_ranks(program)


SLICES = (slice(None, None, 2), slice(8), slice(8, None), slice(1, 9), slice(None, None, -2))
CUTS = {"even": (0, 4, 8, 12, 16), "on one rank": (0, 0, 16, 16, 16), "replicated": None}


@pytest.mark.parametrize("cuts", CUTS.values(), ids=list(CUTS))
def test_slices_with_other_steps_are_read_before_they_are_written(cuts: Any) -> None:
    values = np.arange(16.0)

    def program() -> None:
        own = {"boundaries": {0: cuts}} if cuts else {}
        for target, source in itertools.product(SLICES, SLICES):
            expected = values.copy()
            expected[target] = values[source]
            x = distribute_array(values).redistribute([Shard(0) if cuts else Replicate()], **own)
            x[target] = x[source]
            agrees(x, expected)
            if cuts or target.step == -2:  # else a view may be a copy
                continue
            for write in (copyto, lambda view, other: copyto(view, other, where=values[:8] >= 0)):
                x[...] = values
                write(x[target], x[source])
                agrees(x, expected)
            x[...] = values
            x[target] = x.to_local()[source]
            agrees(x, expected)

    on_ranks(program)


def test_overlapping_slices_of_one_array_are_read_before_they_are_written() -> None:
    def program() -> None:
        for placement in (Shard(0), Shard(1), Replicate()):
            whole = np.arange(48.0).reshape(12, 4)
            x = distribute_array(whole, init_device_mesh((4,)), [placement], src=None)
            x[1:] = x[:-1]
            whole[1:] = whole[:-1].copy()
            agrees(x, whole)
            x[::-1] = x
            agrees(x, whole[::-1])

    on_ranks(program)


@pytest.mark.parametrize("source", ["whole", "down", "across"])
@pytest.mark.parametrize("target", ["whole", "down", "across"])
def test_value_on_a_sub_mesh_counts_as_replicated_along_the_other_axes(
    target: str, source: str
) -> None:
    before, value = np.zeros((4, 6)), np.arange(1.0, 25.0).reshape(4, 6)
    mask = value % 3 > 0

    def program() -> None:
        mesh = init_device_mesh((2, 2), ("down", "across"))
        layouts = {
            "whole": (mesh, [Shard(0), Shard(1)]),
            "down": (mesh["down"], [Shard(0)]),
            "across": (mesh["across"], [Shard(1)]),
        }
        x, expected = distribute_array(before, *layouts[target]), before.copy()
        y, where = (distribute_array(one, *layouts[source]) for one in (value, mask))
        x[1:] = y[:-1]
        expected[1:] = value[:-1]
        agrees(x, expected)
        x[:, 2] = y[:, 0]
        expected[:, 2] = value[:, 0]
        agrees(x, expected)
        x[where] = 0
        expected[mask] = 0
        agrees(x, expected)
        x[where] += y[where]
        expected[mask] += value[mask]
        agrees(x, expected)

    on_ranks(program)


def test_value_comes_from_another_mesh() -> None:
    def program() -> None:
        whole = np.arange(12.0).reshape(4, 3)
        x = distribute_array(whole, DeviceMesh([0, 1, 2]), [Shard(0)], src=None)
        v = distribute_array(np.arange(3.0), DeviceMesh([3, 1]), [Shard(0)], src=None)
        x[2] = v
        x[1:3] = v
        whole[1:3] = np.arange(3.0)
        agrees(x, whole)

    on_ranks(program)


def test_partial_array_takes_values_that_its_blocks_reduce_to() -> None:
    def program() -> None:
        for op in ("sum", "max", "prod", "min"):
            case = Case((4,), (Partial(op),), np.arange(1.0, 25.0).reshape(4, 2, 3))
            x = case.build()
            whole = case.value.copy()
            x[0] = [5.0, 6.0, 7.0]
            x[1, 1] = 8
            whole[0] = [5, 6, 7]
            whole[1, 1] = 8
            assert x.placements == (Partial(op),)
            agrees(x, whole)

    on_ranks(program)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.zeros((3, 5)), ShapeError),
        (np.zeros(5), ShapeError),
        (np.zeros((2, 2, 4)), ShapeError),
        ("word", ArgumentError),
        pytest.param(np.array(["a", "b", "c", "d"]), ArgumentError, marks=pytest.mark.host_only),
        (1j, DTypeError),
        (object(), DTypeError),
    ],
)
def test_bad_value_raises_on_every_rank_and_changes_nothing(
    value: Any, error: type[Exception]
) -> None:
    def program() -> None:
        whole = np.arange(48.0).reshape(12, 4)
        x = distribute_array(whole, init_device_mesh((4,)), [Shard(0)], src=None)
        with pytest.raises(error):
            x[5] = value
        agrees(x, whole)

    on_ranks(program)


def test_number_too_large_for_the_dtype_raises_on_every_rank() -> None:
    def program() -> None:
        x = distribute_array(np.zeros(8, np.int8), init_device_mesh((4,)), [Shard(0)], src=None)
        with pytest.raises(ArgumentError, match="300"):
            x[2] = 300
        agrees(x, np.zeros(8, np.int8))

    on_ranks(program)


@pytest.mark.host_only
def test_an_array_of_one_text_is_written_into_another_without_axes() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.array("ab"), mesh, [Replicate()], src=None)
        x[...] = np.array(["cd"])
        agrees(x, np.array("cd"))

    on_ranks(program)


@pytest.mark.host_only
def test_read_only_block_is_refused_with_the_remedy() -> None:
    def program() -> None:
        x = distribute_array(np.arange(4.0), init_device_mesh((4,)), [Replicate()], src=None)
        with pytest.raises(ArgumentError, match="copy"):
            broadcast_to(x, (3, 4))[0] = 1

    on_ranks(program)


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
def test_real_and_imaginary_parts_are_written_by_name(placement: Any) -> None:
    whole = np.arange(15.0).reshape(5, 3) * (1 - 2j)

    def program() -> None:
        x = distribute_array(whole, init_device_mesh((4,)), [placement], src=None)
        x.real = distribute_array(whole.imag, x.mesh, [Shard(0)], src=None)
        x.imag = [7, 8, 9]
        expected = whole.imag + 1j * np.array([7, 8, 9])
        agrees(x, expected)
        x.imag += 1
        agrees(x, expected + 1j)
        y = x.real.copy()
        y.real = 3
        agrees(y, np.full((5, 3), 3.0))
        with pytest.raises(DTypeError, match="no imaginary part"):
            y.imag = 0

    on_ranks(program)


@pytest.mark.host_only
def test_a_tuple_is_an_item_with_fields() -> None:
    dtype = np.dtype([("a", "i4"), ("b", "f8")])

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.zeros(6, dtype), mesh, [Shard(0)], src=None)
        expected = np.zeros(6, dtype)
        for key, value in (
            (..., (1, 2.5)),
            (4, (3, 4)),
            (slice(2), [(5, 6), (7, 8)]),
            ([3], (9, 9)),
        ):
            x[key] = value
            expected[key] = value
            agrees(x, expected)
        x.fill((4, 2.5))
        expected[...] = (4, 2.5)
        agrees(x, expected)
        with pytest.raises(ArgumentError, match="2 fields"):
            x[...] = (1,)

    on_ranks(program)
