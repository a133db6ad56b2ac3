"""What a reduction does to values before and after they travel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distarray.comm import world
from distarray.comm._collectives import from_host, on_host
from distarray.comm._reductions import (
    UFUNCS,
    divide,
    narrow_bfloat16,
    plain_ufunc,
    prepare_reduction,
    widen_bfloat16,
)
from distarray.layout import REDUCTIONS
from distarray.testing import simulate

ALL_BITS = np.arange(2**16, dtype=np.uint16)


def test_ops_are_those_that_partial_knows():
    assert set(UFUNCS) == set(REDUCTIONS)


def test_bfloat16_bits_survive_widening_and_narrowing():
    values = widen_bfloat16(ALL_BITS)
    nan = np.isnan(values)
    back = narrow_bfloat16(values)
    np.testing.assert_array_equal(back[~nan], ALL_BITS[~nan])
    assert np.isnan(widen_bfloat16(back[nan])).all()


@given(st.floats(width=32, allow_nan=False))
def test_narrowing_to_bfloat16_takes_the_nearest_and_the_even_of_two(value):
    value = np.float32(value)
    narrowed = narrow_bfloat16(np.array([value]))[0]
    got = float(widen_bfloat16(np.array([narrowed]))[0])
    if abs(float(value)) >= 2.0**127 * (2 - 2.0**-8):  # half a unit past the largest
        assert got == np.copysign(np.inf, value)
        return
    neighbours = widen_bfloat16(
        np.array([int(narrowed) - 1, int(narrowed) + 1]).astype(np.uint16)
    ).astype(float)
    error = abs(got - float(value))
    for other in neighbours[np.isfinite(neighbours) & (np.sign(neighbours) == np.sign(got))]:
        assert error <= abs(other - float(value))
        if error and error == abs(other - float(value)):
            assert narrowed % 2 == 0


def test_ties_go_to_the_even_neighbour_when_narrowed_to_bfloat16():
    high = ALL_BITS[np.isfinite(widen_bfloat16(ALL_BITS))].astype(np.uint32)
    ties = ((high << 16) | 0x8000).view(np.float32)
    np.testing.assert_array_equal(narrow_bfloat16(ties), high + (high & 1))


def test_nan_with_a_payload_stays_nan_when_narrowed():
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(widen_bfloat16(narrow_bfloat16(nan))).all()


def test_averages_divide_the_parts_of_complex_values_each_by_itself():
    sums = np.array([5 + 7j, np.inf + 1j])
    assert divide(sums, 3).tolist() == [5 / 3 + 7j / 3, complex(np.inf, 1 / 3)]


def test_preparation_leaves_the_values_of_the_caller_alone():
    for op, dtype in (("avg", "f8"), ("avg", "i4"), ("sum", "e"), ("sum", ">f8"), ("avg", "c8")):
        array = np.arange(4).astype(dtype)
        reduction = prepare_reduction(array, op, 2)
        wire = reduction.wire.copy()
        result = wire if reduction.finish is None else reduction.finish(wire)
        assert result.dtype == reduction.dtype
        np.testing.assert_array_equal(array, np.arange(4))


def test_sums_of_half_precision_are_rounded_once_whatever_adds_up_what_travels():
    prepared = [prepare_reduction(np.full(2, item, "e"), "sum", 4) for item in (2048, 1, 1, 1)]
    total = sum(reduction.wire for reduction in prepared)
    assert prepared[0].finish is not None
    assert prepared[0].finish(total).tolist() == [2052, 2052]  # 2051 is no half


@pytest.mark.parametrize("dtype", ["e", ">f8", "S2", "O"])
def test_dtypes_that_must_be_prepared_have_no_plain_function(dtype):
    assert plain_ufunc("sum", np.dtype(dtype)) is None


def test_average_of_integers_has_no_plain_function():
    assert plain_ufunc("avg", np.dtype("i4")) is None
    assert plain_ufunc("avg", np.dtype("f4")) is np.add


class DeviceArray:
    """Stands for an array that is not in host memory."""

    itemsize, flags = 8, np.zeros(0).flags

    def __init__(self, values):
        self.values = values
        self.dtype, self.size, self.shape = values.dtype, values.size, values.shape
        self.nbytes, self.ndim = values.nbytes, values.ndim

    def reshape(self, *shape):
        return DeviceArray(self.values.reshape(*shape))

    def get(self):
        return self.values.copy()

    def set(self, host):
        self.values[...] = host


def test_values_on_a_device_travel_through_host_memory():
    def run():
        c = world()
        send, recv = DeviceArray(np.full((2, 1), c.rank + 1.0)), DeviceArray(np.zeros(4))
        c.all_gather(send, recv)
        assert recv.values.tolist() == [1, 1, 2, 2]
        out = DeviceArray(np.zeros((2, 1)))
        assert c.all_reduce(send, out=out) is out
        assert out.values.tolist() == [[3], [3]]
        assert c.all_reduce(send, "avg", out=send) is send
        assert send.values.tolist() == [[1.5], [1.5]]

    simulate(2, run)
    host = np.arange(3.0)
    assert on_host(host).base is host
    assert from_host(on_host(host), host) is host
