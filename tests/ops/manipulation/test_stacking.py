"""Stacks take arrays in any layouts, numbers and plain arrays among them; splits send nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import Shard
from distarray.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from distarray.testing import simulate
from tests.array.strategies import agrees, cases, on_ranks

DTYPES = tuple(map(np.dtype, ("f8", "i2", "?", "c16")))
STACKS = ("hstack", "vstack", "dstack", "column_stack", "row_stack")


@pytest.mark.parametrize("name", STACKS)
@settings(max_examples=15)
@given(data=st.data())
def test_stacks_of_different_layouts_agree_with_numpy(name: str, data: st.DataObject) -> None:
    x = data.draw(cases(DTYPES, ("sum",)))
    y = data.draw(cases(DTYPES, ("max",), x.mesh_shape, x.shape))
    theirs = np.vstack if name == "row_stack" else getattr(np, name)
    expected = theirs([x.value, y.value, x.value])

    def program() -> None:
        agrees(getattr(da, name)([x.build(), y.build(), x.value]), expected)
        agrees(theirs([x.build(), y.build(), x.value]), expected)

    on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_blocks_are_assembled_as_by_numpy(data: st.DataObject) -> None:
    rows, columns = (data.draw(st.tuples(*[st.sampled_from((1, 2, 3, 0))] * 2)) for _ in "ab")
    mesh = None
    parts: list[list[Any]] = []
    for n in rows:
        parts.append([])
        for m in columns:
            case = data.draw(cases(DTYPES, ("sum",), mesh, (n, m)))
            mesh = case.mesh_shape
            parts[-1].append(case)
    expected = np.block([[case.value for case in row] for row in parts])

    def program() -> None:
        built = [[case.build() for case in row] for row in parts]
        built[1][0] = parts[1][0].value
        agrees(da.block(built), expected)

    on_ranks(program)


def test_block_gives_arrays_the_axes_of_the_lists() -> None:
    value = np.arange(4)

    def program() -> None:
        x = da.asarray(value)
        for nested in ([x, 7], [[x], [x]], [[[x, x]]], x, [[x, 1], [[1, 2], x[:3]]][:1]):

            def plain(part: Any) -> Any:
                if isinstance(part, list):
                    return [plain(one) for one in part]
                return np.asarray(part)

            agrees(da.block(nested), np.block(plain(nested)))
        copied = da.block(x)
        copied[...] = 9
        agrees(x, value)

    simulate(2, program)


def test_parts_are_views_and_nothing_is_sent() -> None:
    value = np.arange(20.0).reshape(10, 2)

    def program() -> None:
        x = da.distribute_array(value, da.init_device_mesh((3,)), [Shard(0)])
        with da.CommLog() as log, da.communication("raise"):
            parts = da.array_split(x, 4)
            halves = da.vsplit(x, 2)
        assert not log.records
        for part, wanted in zip(
            [*parts, *halves], [*np.array_split(value, 4), *np.vsplit(value, 2)], strict=True
        ):
            agrees(part, wanted)
        parts[1][...] = 0
        assert not np.asarray(x)[3:6].any()

    simulate(3, program)


def test_wrong_arguments_are_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        calls: list[tuple[Any, type[Exception]]] = [
            (lambda: da.split(x, 3), ArgumentError),
            (lambda: da.array_split(x, 0), ArgumentError),
            (lambda: da.array_split(x, "a"), ArgumentTypeError),
            (lambda: da.array_split(x, 2, axis=2), AxisError),
            (lambda: da.dsplit(x, 1), ShapeError),
            (lambda: da.hsplit(x[0, 0], 1), ShapeError),
            (lambda: da.hstack([]), ShapeError),
            (lambda: da.hstack([x, x[:2]]), ShapeError),
            (lambda: da.vstack([[1, 2], [3, 4]]), ArgumentTypeError),
            (lambda: da.vstack([x, x], dtype=int), DTypeError),
            (lambda: da.block([]), ArgumentError),
            (lambda: da.block([x, [x]]), ArgumentError),
            (lambda: da.block((x, x)), ArgumentTypeError),
            (lambda: da.block([1, 2]), ArgumentTypeError),
            (lambda: da.rot90(x, axes=(0,)), AxisError),
            (lambda: da.rollaxis(x, 0, 3), AxisError),
        ]
        for call, error in calls:
            with pytest.raises(error):
                call()

    simulate(2, program)
