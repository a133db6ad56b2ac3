"""Questions about whole arrays are answered as NumPy answers them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import agrees, cases, on_ranks, pairs


@settings(max_examples=15)
@given(data=st.data())
def test_shapes_and_dtypes_are_known_without_communication(data: st.DataObject) -> None:
    case = data.draw(cases((np.float32, np.complex64, np.int8), ("sum",)))
    value = case.value

    def program() -> None:
        x = case.build()
        with CommLog() as log:
            assert np.shape(x) == value.shape
            assert np.ndim(x) == value.ndim
            assert np.size(x) == value.size
            if value.ndim:
                assert np.size(x, 0) == value.shape[0]
            assert np.iscomplexobj(x) == np.iscomplexobj(value)
            assert np.isrealobj(x) == np.isrealobj(value)
            assert np.result_type(x, np.float64) == np.result_type(value, np.float64)
            assert np.result_type(x, 2.5) == np.result_type(value.dtype, 2.5)
            assert np.can_cast(x, np.float64) == np.can_cast(value.dtype, np.float64)
            assert np.array_repr(x[:0] if value.ndim else x).startswith("DistArray(")
        assert log.count("all_gather") + log.count("all_reduce") <= 1

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_equality_of_arrays_is_one_answer_on_every_rank(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64,), ("sum",)))
    twin = data.draw(cases((np.float64,), (), x.mesh_shape, x.shape))

    def program() -> None:
        a, b = x.build(), y.build()
        if a.mesh.coordinate is None:
            return
        same = distribute_array(x.value, a.mesh, twin.layout().placements, src=None)
        assert np.array_equal(a, same)
        assert np.allclose(a, same)
        assert np.array_equal(a, b) == np.array_equal(x.value, y.value)
        assert np.array_equal(a, y.value) == np.array_equal(x.value, y.value)
        assert np.array_equiv(a, b) == np.array_equiv(x.value, y.value)
        assert np.allclose(a, b, atol=2) == np.allclose(x.value, y.value, atol=2)
        assert not np.array_equal(a, np.ones((2, 2, 2, 2)))

    on_ranks(program)


def test_nan_is_equal_to_nan_only_where_asked() -> None:
    def program() -> None:
        x = distribute_array(np.array([1.0, np.nan, 3.0]), init_device_mesh((4,)), [Shard(0)])
        assert not np.array_equal(x, x)
        assert np.array_equal(x, x, equal_nan=True)

    on_ranks(program)


def test_copyto_of_a_broadcast_value_passes_ranks_outside_the_mesh() -> None:
    def program() -> None:
        mesh = DeviceMesh([0])
        out = distribute_array(np.ones((1, 1, 1)), mesh, [Partial()])
        np.copyto(out, distribute_array(np.array([4.0]), mesh, [Replicate()]))
        agrees(out, np.full((1, 1, 1), 4.0))

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_copyto_and_range_agree_with_numpy(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64,), ("sum", "max")))
    shape = np.broadcast_shapes(x.shape, y.shape)
    target = data.draw(cases((np.float64,), ("sum", "max"), x.mesh_shape, shape))
    mask = data.draw(cases((np.bool_,), (), x.mesh_shape, shape))
    masked = data.draw(st.booleans())
    expected = target.value.copy()
    np.copyto(expected, y.value, where=mask.value if masked else True)

    def program() -> None:
        out = target.build()
        np.copyto(out, y.build(), where=mask.build() if masked else True)
        agrees(out, expected)
        if x.value.size:
            agrees(np.ptp(x.build()), np.ptp(x.value))

    on_ranks(program)


def test_plain_values_are_copied_into_a_partial_array() -> None:
    def program() -> None:
        out = da.ones((6, 3)).sum(axis=0)
        np.copyto(out, np.arange(3.0))
        agrees(out, np.arange(3.0))
        assert np.add(np.ones(3), 1.0, out=out) is out
        agrees(out, np.full(3, 2.0))

    on_ranks(program)


def test_copyto_takes_more_axes_of_length_1_in_front() -> None:
    whole = np.arange(12.0).reshape(3, 4)

    def program() -> None:
        for more in (da.asarray(whole[None, None]), whole[None], whole[None, :1].tolist()):
            out = da.zeros((3, 4))
            da.copyto(out, more)
            agrees(out, np.broadcast_to(np.asarray(more)[0], (1, 3, 4))[0])
        with pytest.raises(ValueError, match="does not fit"):
            da.copyto(out, np.ones((2, 3, 4)))

    on_ranks(program)


@settings(max_examples=10)
@given(data=st.data())
def test_tolerances_may_be_arrays(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64,), ("sum", "max")))
    shape = np.broadcast_shapes(x.shape, y.shape)
    rtol, atol = (data.draw(cases((np.float64,), (), x.mesh_shape, shape)) for _ in range(2))
    plain = data.draw(st.booleans())
    expected = np.isclose(x.value, y.value, rtol.value, atol.value, equal_nan=plain)

    def program() -> None:
        by = (rtol.value if plain else rtol.build(), atol.build())
        agrees(da.isclose(x.build(), y.build(), *by, equal_nan=plain), expected)
        if by[1].mesh.coordinate is not None:
            assert da.allclose(x.build(), y.build(), *by, equal_nan=plain) == expected.all()

    on_ranks(program)
