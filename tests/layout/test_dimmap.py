"""Shape operations as data have NumPy's shapes and errors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.errors import ArgumentTypeError, AxisError, DistArrayError, ShapeError
from distarray.layout import dimmap as maps
from tests.layout.strategies import shapes

Flatten, Group, InputAxis = maps.Flatten, maps.Group, maps.InputAxis
Singleton, Split = maps.Singleton, maps.Split


@given(shapes, st.data())
@settings(max_examples=150)
def test_shapes_are_those_of_numpy(shape: tuple[int, ...], data: Any) -> None:
    array = np.empty(shape)
    axes = data.draw(st.permutations(range(len(shape))))
    assert maps.transpose(shape, axes).out_shape == array.transpose(axes).shape
    assert maps.transpose(shape).out_shape == array.T.shape
    assert maps.squeeze(shape).out_shape == array.squeeze().shape
    moved = axes[: len(axes) // 2]
    places = data.draw(st.permutations(range(len(shape))))[: len(moved)]
    assert maps.moveaxis(shape, moved, places).out_shape == np.moveaxis(array, moved, places).shape
    new = data.draw(st.permutations(range(len(shape) + 2)))[:2]
    assert maps.expand_dims(shape, new).out_shape == np.expand_dims(array, tuple(new)).shape
    wanted = (3, *(5 if size == 1 else size for size in shape))
    assert maps.broadcast_to(shape, wanted).out_shape == wanted


@given(shapes, st.data())
@settings(max_examples=200)
def test_reshape_groups_hold_the_same_number_of_elements(shape: tuple[int, ...], data: Any) -> None:
    wanted = tuple(data.draw(st.permutations(shape)))
    if data.draw(st.booleans()):
        wanted = (prod(shape),)
    made = maps.reshape(shape, wanted)
    assert made.out_shape == wanted
    inputs = [axis for group in made.groups for axis in group.inputs]
    outputs = [axis for group in made.groups for axis in group.outputs]
    assert len(set(inputs)) == len(inputs)
    assert len(set(outputs)) == len(outputs)
    for group in made.groups:
        assert prod(shape[i] for i in group.inputs) == prod(wanted[o] for o in group.outputs)
    assert all(shape[i] == 1 for i in range(len(shape)) if i not in inputs)


def test_reshape_finds_the_smallest_groups() -> None:
    made = maps.reshape((4, 6, 5, 1), (4, 1, 2, 15))
    both = Flatten((1, 2))
    assert made.axes == (
        InputAxis(0),
        Singleton(),
        Split(both, (2, 15), 0),
        Split(both, (2, 15), 1),
    )
    assert made.groups == (Group((0,), (0,)), Group((1, 2), (2, 3)))


def test_reshape_resolves_one_free_length() -> None:
    assert maps.reshape((6, 4), (-1, 8)).out_shape == (3, 8)
    assert maps.reshape((0, 4), (-1, 4)).out_shape == (0, 4)
    assert maps.reshape((), (-1,)).out_shape == (1,)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: maps.reshape((6,), (4,)), ShapeError, "number of elements, 6"),
        (lambda: maps.reshape((6,), (-1, -1)), ShapeError, "at most one"),
        (lambda: maps.reshape((6,), (-1, 4)), ShapeError, "cannot become"),
        (lambda: maps.reshape((0,), (-1, 0)), ShapeError, "cannot become"),
        (lambda: maps.reshape((6,), (-2, -3)), ShapeError, "cannot become"),
        (lambda: maps.reshape((6,), (2.0, 3)), ArgumentTypeError, "integers"),  # type: ignore[arg-type]
        (lambda: maps.transpose((2, 3), (0,)), AxisError, "name all 2 axes"),
        (lambda: maps.transpose((2, 3), (0, -2)), AxisError, "twice"),
        (lambda: maps.transpose((2, 3), (0, 2)), AxisError, "out of range"),
        (lambda: maps.moveaxis((2, 3), 0, (0, 1)), AxisError, "as many destinations"),
        (lambda: maps.squeeze((2, 1), 0), ShapeError, "its length is 2"),
        (lambda: maps.expand_dims((2,), (0, 0)), AxisError, "twice"),
        (lambda: maps.squeeze((2,), "0"), ArgumentTypeError, "integer"),  # type: ignore[arg-type]
        (lambda: maps.broadcast_to((2, 3), (2, 4)), ShapeError, "must agree or be 1"),
        (lambda: maps.broadcast_to((2, 3), (3,)), ShapeError, "must agree or be 1"),
    ],
)
def test_what_numpy_refuses_raises(
    make: Callable[[], Any], error: type[DistArrayError], match: str
) -> None:
    with pytest.raises(error, match=match):
        make()
