"""Shape operations on local blocks alone give the blocks of the global result."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.layout import (
    AbstractMesh,
    DimMap,
    Layout,
    Partial,
    Replicate,
    Shard,
    propagate,
    stages,
)
from distarray.layout import dimmap as maps
from tests.layout.strategies import blocks, full_shapes, layouts, shapes

Array = np.ndarray[Any, Any]
S, R = Shard, Replicate()


@st.composite
def reshapes(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two shapes with the same number of elements."""
    shape = draw(full_shapes)
    left, wanted = prod(shape), []
    while left > 1:
        divisors = [d for d in range(1, left + 1) if left % d == 0]
        wanted.append(draw(st.sampled_from(divisors)))
        left //= wanted[-1]
        if len(wanted) == 4:
            wanted.append(left)
            break
    return shape, tuple(wanted)


def check(made: DimMap, layout: Layout, local: Callable[[Array, Any], Array], want: Array) -> None:
    """Do the operation block by block and compare with the blocks of the global result."""
    whole = np.arange(prod(made.in_shape)).reshape(made.in_shape)
    required, result = propagate(made, layout)
    assert required.shape == made.in_shape
    assert result.shape == made.out_shape == want.shape
    assert required.partial_axes == result.partial_axes == layout.partial_axes
    for (coordinate, block), (_, place) in zip(blocks(required), blocks(result), strict=True):
        got = local(whole[block], result.local_shape(coordinate))
        assert np.array_equal(got, want[place])
        assert got.shape == want[place].shape


@given(st.data())
@settings(max_examples=100)
def test_reshape_of_blocks_is_reshape_of_the_array(data: Any) -> None:
    shape, wanted = data.draw(reshapes())
    layout = data.draw(layouts(shape))
    want = np.arange(prod(shape)).reshape(wanted)
    check(maps.reshape(shape, wanted), layout, lambda block, new: block.reshape(new), want)


@given(st.data())
@settings(max_examples=100)
def test_stages_of_a_reshape_lead_to_the_same_array(data: Any) -> None:
    shape, wanted = data.draw(reshapes())
    layout = data.draw(layouts(shape))
    array = np.arange(prod(shape)).reshape(shape)
    for required, result in stages(maps.reshape(shape, wanted), layout):
        assert array.shape == required.shape
        after = array.reshape(result.shape)
        for (coordinate, block), (_, place) in zip(blocks(required), blocks(result), strict=True):
            assert np.array_equal(
                array[block].reshape(result.local_shape(coordinate)), after[place]
            )
        array = after
    assert array.shape == wanted


@given(layouts(), st.data())
@settings(max_examples=100)
def test_other_operations_on_blocks_are_those_on_the_array(layout: Layout, data: Any) -> None:
    shape = layout.shape
    array = np.arange(prod(shape)).reshape(shape)
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    new = tuple(data.draw(st.permutations(range(len(shape) + 2)))[:2])
    wanted = (3, *(data.draw(st.sampled_from([0, 4])) if n == 1 else n for n in shape))
    check(
        maps.transpose(shape, axes), layout, lambda b, _: b.transpose(axes), array.transpose(axes)
    )
    check(maps.squeeze(shape), layout, lambda b, new: b.reshape(new), array.squeeze())
    check(maps.expand_dims(shape, new), layout, lambda b, _: np.expand_dims(b, new),
          np.expand_dims(array, new))  # fmt: skip
    check(maps.broadcast_to(shape, wanted), layout, lambda b, new: np.broadcast_to(b, new),
          np.broadcast_to(array, wanted))  # fmt: skip


@given(st.data())
@settings(max_examples=60)
def test_reshape_without_elements_moves_nothing(data: Any) -> None:
    shape = (0, *data.draw(shapes))
    wanted = (5, *data.draw(st.permutations(shape)))
    layout = data.draw(layouts(shape))
    required, result = propagate(maps.reshape(shape, wanted), layout)
    assert required is layout
    assert result.shape == wanted


@pytest.mark.parametrize(
    ("mesh", "shape", "placements", "wanted", "expected"),
    [
        ((4,), (8, 6), [S(0)], (48,), "48 [axis0:S(0)]"),
        ((4,), (48,), [S(0)], (8, 6), "8x6 [axis0:S(0)]"),
        ((2, 4), (16, 5), [S(0), S(0)], (2, 8, 5), "2x8x5 [axis0:S(0), axis1:S(1)]"),
        ((2, 4), (2, 8, 5), [S(0), S(1)], (16, 5), "16x5 [axis0:S(0), axis1:S(0)]"),
        ((4,), (3, 8, 5), [S(1)], (3, 8, 5, 1), "3x8x5x1 [axis0:S(1)]"),
        ((4,), (3, 8, 10), [S(1)], (3, 8, 2, 5), "3x8x2x5 [axis0:S(1)]"),
        ((3,), (4, 6), [S(0)], (8, 3), "8x3 [axis0:S(0)] split 0"),
        ((2, 2), (8, 3), [R, Partial("max")], (24,), "24 [axis0:R, axis1:P(max)]"),
        ((1,), (1, 3), [S(0)], (3,), "3 [axis0:R]"),
    ],
)
def test_reshape_moves_nothing_where_blocks_stay_runs(
    mesh: tuple[int, ...], shape: tuple[int, ...], placements: Any, wanted: Any, expected: str
) -> None:
    layout = Layout(AbstractMesh(mesh), placements, shape)
    required, result = propagate(maps.reshape(shape, wanted), layout)
    assert required is layout
    assert str(result) == expected


@pytest.mark.parametrize(
    ("mesh", "shape", "placements", "offsets", "wanted", "moves"),
    [
        # Rows cut at different places are no box of two axes.
        ((2, 2), (8,), [S(0), S(0)], (0, 1, 4, 6, 8), (2, 4), True),
        ((2, 2), (8,), [S(0), S(0)], (0, 1, 4, 5, 8), (2, 4), False),
        # More ranks than rows: the empty blocks stay at the end of the runs.
        ((3, 2), (2, 4), [S(0), S(1)], None, (8,), False),
        ((3, 2), (8,), [S(0), S(0)], (0, 2, 4, 6, 8, 8, 8), (2, 4), False),
        # An empty block amid the others, not at the start of a row.
        ((3, 2), (8,), [S(0), S(0)], (0, 2, 4, 4, 4, 6, 8), (2, 4), False),
        ((3, 2), (9,), [S(0), S(0)], (0, 2, 4, 4, 4, 6, 9), (3, 3), True),
        # One rank holds everything.
        ((4,), (8,), [S(0)], (0, 8, 8, 8, 8), (1, 8), False),
        ((4,), (8,), [S(0)], (0, 0, 0, 8, 8), (2, 4), False),
    ],
)
def test_reshape_of_uneven_runs(
    mesh: tuple[int, ...],
    shape: tuple[int, ...],
    placements: Any,
    offsets: Any,
    wanted: tuple[int, ...],
    moves: bool,
) -> None:
    boundaries = None if offsets is None else {0: offsets}
    layout = Layout(AbstractMesh(mesh), placements, shape, boundaries=boundaries)
    made = maps.reshape(shape, wanted)
    assert (propagate(made, layout)[0] is not layout) is moves
    array = np.arange(prod(shape)).reshape(wanted)
    check(made, layout, lambda block, new: block.reshape(new), array)


def test_reshape_shifts_boundaries_rather_than_gathering() -> None:
    layout = Layout(AbstractMesh((3,)), [S(0)], (40,))
    required, result = propagate(maps.reshape((40,), (10, 4)), layout)
    assert required.boundaries == {0: (0, 16, 32, 40)}
    assert str(result) == "10x4 [axis0:S(0)]"


def test_reshape_takes_another_axis_where_its_own_cannot_be_split() -> None:
    layout = Layout(AbstractMesh((4,)), [S(0)], (6, 1000))
    required, result = propagate(maps.reshape((6, 1000), (2, 3, 1000)), layout)
    assert str(required) == "6x1000 [axis0:S(1)]"
    assert str(result) == "2x3x1000 [axis0:S(2)]"


def test_stages_go_through_the_flat_array_where_blocks_would_be_large() -> None:
    layout = Layout(AbstractMesh((8,)), [S(0)], (40, 9))
    rounds = stages(maps.reshape((40, 9), (9, 40)), layout)
    assert [tuple(map(str, pair)) for pair in rounds] == [
        ("40x9 [axis0:S(0)]", "360 [axis0:S(0)]"),
        ("360 [axis0:S(0)] split 0", "9x40 [axis0:S(0)]"),
    ]


def test_shard_of_a_vanishing_or_repeated_axis_replicates_where_nothing_else_can_be_cut() -> None:
    layout = Layout(AbstractMesh((4,)), [S(0)], (1, 1))
    required, result = propagate(maps.squeeze((1, 1)), layout)
    assert (str(required), str(result)) == ("1x1 [axis0:R]", "scalar [axis0:R]")
    required, result = propagate(maps.broadcast_to((1, 1), (5, 1)), layout)
    assert (str(required), str(result)) == ("1x1 [axis0:R]", "5x1 [axis0:R]")
