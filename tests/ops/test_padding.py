"""Padding agrees with NumPy in every mode and layout, and leaves the array's items in place."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Replicate, Shard
from distarray.errors import ArgumentError, ArgumentTypeError, DistArrayError
from distarray.testing import simulate
from tests.array.strategies import KIND, agrees, cases, on_ranks

MODES = (
    "constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect",
    "symmetric", "wrap",
)  # fmt: skip


def _options(mode: str, i: int) -> dict[str, Any]:
    options: dict[str, tuple[Any, ...]] = {
        "constant_values": (0, (1, 2), 3.5),
        # Beyond a dtype, numbers become others on a GPU.
        "end_values": (0, (1, -2 if KIND == "cpu" else 2), 0.5),
        "stat_length": (None, 2, ((1, 3),)),
        "reflect_type": ("even", "odd", "odd"),
    }
    names = {
        "constant": "constant_values",
        "linear_ramp": "end_values",
        "maximum": "stat_length",
        "mean": "stat_length",
        "median": "stat_length",
        "minimum": "stat_length",
        "reflect": "reflect_type",
        "symmetric": "reflect_type",
    }
    return {names[mode]: options[names[mode]][i % 3]} if mode in names and i % 4 else {}


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=12)
@given(data=st.data(), i=st.integers(0, 11))
def test_pad_agrees_with_numpy(mode: str, data: st.DataObject, i: int) -> None:
    case = data.draw(cases(tuple(map(np.dtype, ("f8", "i2", "u1", "c16", "f4"))), ("sum", "max")))
    width = st.tuples(st.integers(0, 9), st.integers(0, 9))
    widths = tuple(data.draw(width) for _ in case.shape) if i % 2 else (i % 3, i % 5)
    options = _options(mode, i)
    expected: Any = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = np.pad(case.value, widths, mode, **options)
        except (TypeError, ValueError) as error:
            expected = error

    def program() -> None:
        x = case.build()
        if isinstance(expected, Exception):
            with pytest.raises((DistArrayError, TypeError)):
                da.pad(x, widths, mode, **options)
            return
        inexact = mode in ("mean", "median", "linear_ramp") and expected.dtype.kind in "fc"
        close = {"rtol": 1e-6, "atol": 1e-6} if inexact else {}
        agrees(da.pad(x, widths, mode, **options), expected, **close)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_ranks(program)


@pytest.mark.skipif(KIND != "cpu", reason="devices have one byte order")
@pytest.mark.parametrize("dtype", [">f8", ">i4"])
def test_ramps_of_the_other_byte_order_are_numpy_s(dtype: str) -> None:
    value = np.arange(6, dtype=dtype).reshape(3, 2)

    def program() -> None:
        found = da.pad(da.asarray(value), (1, 2), "linear_ramp", end_values=5)
        agrees(found, np.pad(value, (1, 2), "linear_ramp", end_values=5))

    simulate(2, program)


def test_items_stay_where_they_are_and_the_ends_get_longer() -> None:
    def program() -> None:
        mesh = da.init_device_mesh((3,))
        x = da.arange(9.0, mesh=mesh)
        with da.CommLog() as log, da.communication("raise"):
            y = da.pad(x, (2, 1))
            z = da.pad(x, (2, 1), mode="edge")
            empty = da.pad(x, (2, 1), mode="empty")
        assert not log.records
        assert y.layout.boundaries == z.layout.boundaries == {0: (0, 5, 8, 12)}
        assert empty.layout is y.layout
        assert x.to_local().tolist() == y.to_local()[2 if mesh.rank == 0 else 0 :][:3].tolist()

    simulate(3, program)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize(
    "dtype", ["f8", "f2", "?", "c8", *(["M8[s]", "m8[ms]", "U3"] if KIND == "cpu" else [])]
)
def test_ends_in_empty_blocks_are_made_of_what_others_have(mode: Any, dtype: str) -> None:
    value = (np.arange(45).reshape(9, 5) % 7).astype(dtype)
    expected = np.pad(value, ((4, 12), (1, 2)), mode)

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.distribute_array(value, mesh, [Shard(0)])
        x = x.redistribute(boundaries={0: (0, 0, 4, 9, 9)})
        with da.CommLog() as log:
            y = da.pad(x, ((4, 12), (1, 2)), mode=mode)
        assert y.layout.boundaries == {0: (0, 4, 8, 13, 25)}
        assert log.count() == log.count("exchange") == (mode != "constant")
        rows = {"constant": (0, 0), "edge": (1, 1)}.get(mode, (4, 12))
        there = 4 if mode in ("reflect", "symmetric") else 0  # of both
        sent = [rows[0], 0, 0, rows[1]][mesh.rank]
        assert log.bytes() <= sent * (5 + 3 + there) * value.itemsize
        agrees(y, expected)

    on_ranks(program)


def test_all_axes_are_padded_in_one_exchange() -> None:
    value = np.arange(48.0).reshape(6, 8)

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((2, 2)), [Shard(0), Shard(1)])
        with da.CommLog() as log:
            agrees(da.pad(x, 2, mode="wrap"), np.pad(value, 2, mode="wrap"))
        # Two rows, two columns and the corner, of others.
        assert log.count("exchange") == 1
        assert log.bytes("exchange") == (2 * 4 + 3 * 2 + 4) * 8

    on_ranks(program)


def test_reflection_sends_no_more_than_it_puts_there() -> None:
    def program() -> int:
        x = da.ones((3000, 10), mesh=da.init_device_mesh((3,)))
        with da.CommLog() as log:
            da.pad(x, ((2, 3), (0, 0)), mode="reflect")
        return log.bytes()

    assert max(simulate(3, program)) <= 5 * 10 * 8


def test_function_fills_in_the_ends_of_every_line() -> None:
    def ends(line: Any, widths: tuple[int, int], axis: int, options: Any) -> None:
        before, after = widths
        if before:
            line[:before] = options.get("value", 7) + axis
        if after:
            line[-after:] = line.sum()

    value = np.arange(12.0).reshape(3, 4)
    expected = np.pad(value, ((1, 2), (2, 0)), ends, value=5)  # type: ignore[call-overload]

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((2,)), [Shard(1)])
        agrees(da.pad(x, ((1, 2), (2, 0)), ends, value=5), expected)
        line = da.pad(x[0], 1, ends)
        agrees(line, np.pad(value[0], 1, ends))  # type: ignore[call-overload]

        def broken(line: Any, *_: Any) -> None:
            raise KeyError("no")

        with pytest.raises(KeyError):
            da.pad(x, 1, broken)

    simulate(2, program)


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_odd_images_of_a_single_item_are_that_item(mode: str) -> None:
    value = np.array([[1.5e308, np.inf, -0.0, 2.0]])
    kept = np.pad(value, [(2, 1), (0, 0)], mode, reflect_type="odd")  # type: ignore[call-overload]

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((2,)), [Shard(1)])
        found = da.pad(x, [(2, 1), (0, 0)], mode, reflect_type="odd")
        agrees(found, kept)
        agrees(da.signbit(found), np.signbit(kept))

    simulate(2, program)


def test_widths_may_be_a_dict() -> None:
    def program() -> None:
        x = da.ones((2, 3), mesh=da.init_device_mesh((2,)), placements=[Replicate()])
        agrees(da.pad(x, {-1: (1, 2)}), np.pad(np.ones((2, 3)), {-1: (1, 2)}))

    simulate(2, program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        for width, mode, options, error in (
            (-1, "edge", {}, ArgumentError),
            (1.5, "edge", {}, ArgumentTypeError),
            ((1, 2, 3), "edge", {}, ArgumentError),
            (1, "nothing", {}, ArgumentError),
            (1, "edge", {"constant_values": 1}, ArgumentTypeError),
            (1, "maximum", {"stat_length": 0}, ArgumentError),
            (1, "reflect", {"reflect_type": "strange"}, ArgumentError),
        ):
            with pytest.raises(error):
                da.pad(x, width, mode, **options)
        with pytest.raises(ArgumentError, match="no items to extend"):
            da.pad(x[:0], 1, "edge")

    simulate(2, program)
