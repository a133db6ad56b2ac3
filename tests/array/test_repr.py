"""Printing shows global values, the same on every rank, and fetches only what it shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import DistArray, distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh
from distarray.core.engine._policy import communication
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import cases, on_ranks


@settings(max_examples=30)
@given(data=st.data())
def test_str_is_numpys_of_the_global_array(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.bool_, np.complex64), ("sum",)))

    def program() -> tuple[bool, str, str]:
        x = case.build()
        return x.mesh.coordinate is not None, str(x), repr(x)

    expected = str(case.value[()] if case.value.ndim == 0 else case.value)
    for inside, text, shown in on_ranks(program):
        if inside and not case.value.ndim:
            assert shown == repr(np.asarray(case.value)).replace("array", "DistArray")
        else:
            assert "dtype=" in shown
            assert "layout=" in shown
        if inside:
            assert text == expected
        else:
            assert "outside" in text


@settings(max_examples=20)
@given(data=st.data(), edge=st.integers(1, 3))
def test_corners_of_a_long_array_print_as_numpy_prints_them(data: st.DataObject, edge: int) -> None:
    shape = data.draw(st.sampled_from(((50,), (7, 9), (2, 40), (3, 8, 9), (40, 1), (5, 0))))
    case = data.draw(cases((np.float64, np.int32), ("sum", "max"), shape=shape))

    def program() -> tuple[bool, str]:
        x = case.build()
        with np.printoptions(threshold=5, edgeitems=edge):
            return x.mesh.coordinate is not None, str(x)

    with np.printoptions(threshold=5, edgeitems=edge):
        expected = str(case.value)
    for inside, text in on_ranks(program):
        if inside:
            assert text == expected


def test_a_large_array_fetches_its_corners_alone() -> None:
    def program() -> str:
        mesh = init_device_mesh((2, 2))
        x = distribute_array(np.arange(1_000_000.0).reshape(1000, 1000), mesh, [Shard(0), Shard(1)])
        with CommLog() as log, communication("raise"):
            text = repr(x)
        assert log.bytes() < 4 * 49 * 8 * 4
        return text

    texts = on_ranks(program)
    assert len(set(texts)) == 1
    assert "..." in texts[0]
    assert "9.99999e+05" in texts[0]
    assert "shape=(1000, 1000), dtype=float64, layout=1000x1000 [" in texts[0]


def test_partial_arrays_print_their_value() -> None:
    def program() -> str:
        mesh = init_device_mesh((4,))
        return repr(DistArray.from_local(np.ones(2), mesh, [Partial("sum")]))

    assert on_ranks(program)[0] == (
        "DistArray([4., 4.], shape=(2,), dtype=float64, layout=2 [axis0:P(sum)])"
    )


def test_small_array_prints_like_numpy_with_a_prefix() -> None:
    def program() -> str:
        value = np.arange(4).reshape(2, 2)
        return repr(distribute_array(value, init_device_mesh((4,)), [Replicate()]))

    assert on_ranks(program)[0].startswith("DistArray([[0, 1],\n           [2, 3]], shape=(2, 2)")


def test_outside_the_mesh_nothing_is_sent() -> None:
    def program() -> None:
        mesh = DeviceMesh([0])
        x = distribute_array(np.arange(4.0), mesh, [Shard(0)])
        if mesh.coordinate is None:
            with CommLog() as log:
                assert "outside" in repr(x)
            assert log.count() == 0
        else:
            assert str(x) == "[0. 1. 2. 3.]"

    on_ranks(program)


@pytest.mark.parametrize("spec", ["", ".2f"])
def test_format_of_a_number_takes_its_spec(spec: str) -> None:
    def program() -> str:
        x = distribute_array(np.arange(3.0), init_device_mesh((2,)), [Shard(0)])
        return format(x.sum(), spec) if x.mesh.coordinate is not None else ""

    assert on_ranks(program)[0] == format(3.0, spec)
