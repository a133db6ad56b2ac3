"""Layouts: canonical form, attributes, replacement, and every way in which one can be wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from distarray.errors import (
    ArgumentTypeError,
    AxisError,
    DistArrayError,
    LayoutError,
    MeshError,
    PlacementError,
    ShapeError,
)
from distarray.layout import AbstractMesh, Layout, Mesh, Partial, Replicate, Shard
from tests.layout.strategies import blocks, layouts

MESH = AbstractMesh((2, 4), axis_names=("dp", "tp"))
S, R, P = Shard, Replicate(), Partial()


class Process(Mesh):
    """A mesh that some process looks at from a coordinate, or from outside."""

    __slots__ = ("_coordinate",)

    def __init__(self, coordinate: tuple[int, ...] | None) -> None:
        self._describe(MESH.shape, MESH.axis_names, MESH.ranks)
        self._coordinate = coordinate

    @property
    def coordinate(self) -> tuple[int, ...] | None:
        return self._coordinate


def test_attributes() -> None:
    layout = Layout(MESH, [S(-1), P], [511, 64])
    assert layout.placements == (S(1), P)
    assert (layout.shape, layout.ndim, layout.size) == ((511, 64), 2, 511 * 64)
    assert layout.partial_axes == (1,)
    assert layout.replicated_axes == ()
    assert layout.has_partial
    assert not layout.is_replicated
    assert layout.sharding_axes(-1) == (0,)
    assert layout.sharding_axes(0) == ()
    assert layout.partition(0).count == 1
    assert layout.partition(-1).offsets == (0, 32, 64)
    assert Layout(MESH, [R, R], ()).is_replicated


@given(layouts())
@settings(max_examples=200)
def test_the_shortest_layout_has_one_item_in_each_block(layout: Layout) -> None:
    lengths = [s.stop - s.start for _, box in blocks(layout) for s in box]
    assert layout.has_empty == (0 in lengths) == layout.has_empty
    if not layout.has_empty:
        found = layout.shortest
        assert (found.mesh, found.placements) == (layout.mesh, layout.placements)
        assert {s.stop - s.start for _, box in blocks(found) for s in box} <= {1}


def test_str_and_repr() -> None:
    layout = Layout(MESH, (S(0), R), (512, 64))
    assert str(layout) == "512x64 [dp:S(0), tp:R]"
    assert str(Layout(MESH, (R, P), ())) == "scalar [dp:R, tp:P(sum)]"
    other = Layout(MESH, (S(0), S(0)), (16,), shard_order=(1, 0))
    assert str(other) == "16 [dp:S(0), tp:S(0)] order tp>dp"


@given(layouts())
@settings(max_examples=100)
def test_repr_makes_the_same_layout(layout: Layout) -> None:
    assert eval(repr(layout)) is layout


def test_order_that_changes_nothing_is_dropped() -> None:
    default = Layout(MESH, (S(0), S(1)), (8, 8))
    assert Layout(MESH, (S(0), S(1)), (8, 8), shard_order=(1, 0)) is default
    assert default.shard_order is None
    both = Layout(MESH, (S(0), S(0)), (8, 8), shard_order=("tp", "dp"))
    assert both.shard_order == (1, 0)
    assert both.sharding_axes(0) == (1, 0)
    assert Layout(MESH, (S(0), S(0)), (8, 8), shard_order=(1,)) is both
    assert Layout(MESH, (S(0), S(0)), (8, 8), shard_order=()) is not both
    flat = AbstractMesh((1, 4))
    assert Layout(flat, (S(0), S(0)), (8,), shard_order=(1, 0)).shard_order is None


def test_boundaries_equal_to_the_default_are_dropped() -> None:
    default = Layout(MESH, (S(0), R), (7, 8))
    assert Layout(MESH, (S(0), R), (7, 8), boundaries={-2: [0, 4, 7]}) is default
    assert Layout(MESH, (S(0), R), (7, 8), boundaries={1: (0, 8)}) is default
    assert Layout(MESH, (S(0), R), (7, 8), boundaries={}) is default
    other = Layout(MESH, (S(0), R), (7, 8), boundaries={0: np.array([0, 1, 7])})  # type: ignore[dict-item]
    assert other.boundaries == {0: (0, 1, 7)}
    assert other is not default
    assert default.boundaries is None


def test_boundaries_follow_the_shard_order() -> None:
    mesh = AbstractMesh((2, 2))
    layout = Layout(mesh, (S(0), S(0)), (10,), shard_order=(1, 0), boundaries={0: (0, 1, 3, 6, 10)})
    assert [layout.local_box((i, j)) for j in (0, 1) for i in (0, 1)] == [
        ((0, 1),),
        ((1, 3),),
        ((3, 6),),
        ((6, 10),),
    ]


def test_changing_the_returned_boundaries_leaves_the_layout() -> None:
    layout = Layout(MESH, (S(0), R), (7,), boundaries={0: (0, 1, 7)})
    boundaries = layout.boundaries
    assert boundaries is not None
    boundaries[0] = (0, 2, 7)
    assert layout.boundaries == {0: (0, 1, 7)}


def test_replace_keeps_order_and_boundaries_unless_told() -> None:
    layout = Layout(MESH, (S(0), R), (7, 8), boundaries={0: (0, 1, 7)})
    assert layout.replace() is layout
    assert layout.replace(placements=(S(0), P)).boundaries == {0: (0, 1, 7)}
    assert layout.replace(boundaries=None) is Layout(MESH, (S(0), R), (7, 8))
    with pytest.raises(LayoutError, match="make 4 blocks"):
        layout.replace(placements=(R, S(0)))
    with pytest.raises(LayoutError, match="end with 7"):
        layout.replace(shape=(9, 8))
    both = Layout(MESH, (S(0), S(0)), (8,), shard_order=(1, 0))
    assert both.replace(shape=(9,)).shard_order == (1, 0)
    assert both.replace(shard_order=None).shard_order is None


def test_own_block_inside_and_outside_the_mesh() -> None:
    inside = Layout(Process((1, 3)), (S(0), R), (7, 8))
    assert inside.local_box() == ((4, 7), (0, 8))
    assert inside.local_shape() == inside.local_shape() == (3, 8)
    outside = Layout(Process(None), (S(0), R), (7, 8))
    assert outside.local_box() is None
    assert outside.local_shape() == (0, 8)
    assert Layout(Process(None), (R, R), ()).local_shape() == (0,)
    assert Layout(MESH, (R, R), (3, 4)).local_shape() == (0, 4)


def test_abstract_layout_has_the_same_blocks_and_no_process() -> None:
    layout = Layout(Process((1, 3)), (S(0), S(0)), (7,), shard_order=(1, 0))
    assert layout.abstract.mesh is MESH
    assert layout.abstract is layout.abstract
    assert layout.abstract.abstract is layout.abstract
    assert layout.abstract.shard_order == (1, 0)
    assert layout.abstract.local_box((1, 3)) == layout.local_box()
    assert layout.abstract.fingerprint == layout.fingerprint


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**63, 0), (0, 3, 2**70)])
def test_shapes_that_64_bits_cannot_count_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="64 bits"):
        Layout(MESH, (S(0), R), shape)


def test_fingerprints_differ_where_layouts_do() -> None:
    variants = [
        Layout(MESH, (S(0), R), (8, 8)),
        Layout(MESH, (S(1), R), (8, 8)),
        Layout(MESH, (S(0), R), (8, 9)),
        Layout(MESH, (S(0), S(0)), (8, 8)),
        Layout(MESH, (S(0), S(0)), (8, 8), shard_order=(1, 0)),
        Layout(MESH, (S(0), R), (8, 8), boundaries={0: (0, 1, 8)}),
        Layout(MESH, (S(0), R), (8, 8), boundaries={0: (0, 2, 8)}),
        Layout(MESH, (S(1), R), (8, 8), boundaries={1: (0, 1, 8)}),
        Layout(AbstractMesh((2, 4)), (S(0), R), (8, 8)),
        Layout(AbstractMesh((2, 4), ("dp", "tp"), ranks=range(1, 9)), (S(0), R), (8, 8)),
    ]
    prints = {layout.fingerprint for layout in variants}
    assert len(prints) == len(variants)
    assert all(0 <= value < 2**64 for value in prints)


def test_pending_reductions_that_do_not_commute_raise() -> None:
    with pytest.raises(PlacementError, match="max and sum"):
        Layout(MESH, (Partial("max"), P), (4,))
    with pytest.raises(PlacementError, match="different"):
        Layout(MESH, (Partial("min"), Partial("max")), (4,))
    assert Layout(MESH, (Partial("avg"), P), (4,)).partial_axes == (0, 1)
    assert Layout(MESH, (Partial("max"), Partial("max")), (4,)).has_partial


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda: Layout(MESH, (R,), (4,)),
            PlacementError,
            r"it takes 2, one for each mesh axis, not 1",
        ),
        (lambda: Layout(MESH, (R, None), (4,)), ArgumentTypeError, "placement None"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, (R, "R"), (4,)), ArgumentTypeError, "placement 'R'"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, "SR", (4,)), ArgumentTypeError, "one placement per mesh axis"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, R, (4,)), ArgumentTypeError, "one placement per mesh axis"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, (R, [R]), (4,)), ArgumentTypeError, "placement"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, (S(1), R), (4,)), AxisError, "use an axis from -1 to 0"),
        (lambda: Layout(MESH, (S(-2), R), (4,)), AxisError, "1 axes"),
        (lambda: Layout(MESH, (S(0), R), ()), AxisError, "0-d array by Replicate"),
        (lambda: Layout(MESH, (R, R), (-1,)), ShapeError, "negative"),
        (lambda: Layout(MESH, (R, R), (1.5,)), ArgumentTypeError, "integers"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, (R, R), 4), ArgumentTypeError, "sequence of integers"),  # type: ignore[arg-type]
        (lambda: Layout(None, (R, R), (4,)), ArgumentTypeError, "AbstractMesh"),  # type: ignore[arg-type]
        (lambda: Layout(MESH, (R, R), (4,), shard_order=("x",)), MeshError, "'x'.*dp, tp"),
        (lambda: Layout(MESH, (R, R), (4,), shard_order="tp"), ArgumentTypeError, "sequence"),
        (lambda: Layout(MESH, (R, R), (4,), shard_order=(0, 0)), MeshError, "at most once"),
        (lambda: Layout(MESH, (S(0), R), (4,), boundaries={0: (0, 4)}), LayoutError, "needs 3"),
        (
            lambda: Layout(MESH, (S(0), R), (4,), boundaries={0: (0, 2, 5)}),
            LayoutError,
            "length, 4",
        ),
        (lambda: Layout(MESH, (S(0), R), (4,), boundaries={0: (1, 2, 4)}), LayoutError, "start"),
        (lambda: Layout(MESH, (S(0), R), (4,), boundaries={0: (0, 5, 4)}), LayoutError, "decrease"),
        (lambda: Layout(MESH, (S(0), R), (4,), boundaries={1: (0, 4)}), AxisError, "axis 1"),
        (
            lambda: Layout(MESH, (R, R), (4,), boundaries={0: (0, 4), -1: (0, 4)}),
            AxisError,
            "twice",
        ),
        (lambda: Layout(MESH, (S(0), R), (4,), boundaries=[0, 4]), ArgumentTypeError, "must map"),  # type: ignore[arg-type]
        (
            lambda: Layout(MESH, (S(0), R), (4,), boundaries={0: (0, 1.5, 4)}),  # type: ignore[dict-item]
            ArgumentTypeError,
            "integers",
        ),
        (lambda: Layout(MESH, (R, R), (4,)).partition(1), AxisError, "axis 1"),
        (lambda: Layout(MESH, (R, R), (4,)).local_box((2, 0)), MeshError, "not in the mesh"),
        (lambda: Layout(MESH, (R, R), (4,)).local_shape((0,)), MeshError, "needs 2 integers"),
        (lambda: Layout(MESH, (R, R), (4,)).block_index(0, (0, 9)), MeshError, "not in the mesh"),
    ],
)
def test_what_does_not_fit_raises_with_value_rule_and_remedy(
    make: Callable[[], Any], error: type[DistArrayError], match: str
) -> None:
    with pytest.raises(error, match=match):
        make()


def test_layout_is_immutable() -> None:
    with pytest.raises(AttributeError, match="use layout"):
        Layout(MESH, (R, R), (4,)).shape = (5,)


def test_one_rank_of_a_hundred_thousand_is_found_in_milliseconds() -> None:
    mesh = AbstractMesh((100, 10, 100))
    start = time.process_time()
    layout = Layout(mesh, (S(0), S(1), S(0)), (10**9 + 1, 4099), shard_order=(2, 1, 0))
    box = layout.local_box((57, 3, 42))
    assert box is not None
    assert layout.fingerprint
    assert not layout.is_even
    assert time.process_time() - start < 0.05


def test_without_partial_is_the_layout_of_the_reduced_values() -> None:
    mesh = AbstractMesh((2, 2, 3))
    layout = Layout(mesh, (Partial(), S(1), Partial("avg")), (4, 6), boundaries={1: (0, 1, 6)})
    plain = Layout(mesh, (R, S(1), R), (4, 6), boundaries={1: (0, 1, 6)})
    assert layout.without_partial() is plain
    assert plain.without_partial() is plain
