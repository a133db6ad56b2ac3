"""Code for plain arrays: on blocks as they are, and as functions with a rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray import fft, linalg, random  # noqa: F401 - whose functions are registered then
from distarray.array._array import distribute_array
from distarray.array._mapping import map_blocks
from distarray.comm import CommLog, DeviceMesh, init_device_mesh
from distarray.core.engine._policy import communication
from distarray.core.families._registry import functions
from distarray.core.families._user_rules import register_rule
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    CommunicationError,
    DTypeError,
    ImplicitCommunicationError,
    LayoutError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import agrees, cases, on_ranks

R = Replicate()


@settings(max_examples=25)
@given(data=st.data())
def test_blocks_of_a_mapped_function_keep_the_layout(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32), ("sum",)))

    def program() -> None:
        x = case.build()
        y = map_blocks(lambda block, shift: block * 2.0 + shift, x, shift=1)
        if x.mesh.coordinate is not None:
            agrees(y, case.value * 2.0 + 1)
        if not x.layout.has_partial:
            assert y.layout is x.layout

    on_ranks(program)


def test_mapped_function_may_change_lengths_and_leave_a_sum() -> None:
    value = np.arange(24.0).reshape(6, 4)

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(value, mesh, [Shard(0)])
        kept = map_blocks(lambda block: block[block[:, 0] > 5], x)
        agrees(kept, value[value[:, 0] > 5])
        total = map_blocks(lambda block: block.sum(0), x, out_placements=[Partial("sum")])
        agrees(total, value.sum(0))
        agrees(map_blocks(np.cumsum, x, 1, out_shape=(6, 4)), np.cumsum(value, 1))

    on_ranks(program)


def test_mapped_function_that_fails_or_does_not_fit_raises_on_every_rank() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.arange(8.0), mesh, [Shard(0)])

        def fails(block: Any) -> Any:
            if mesh.rank == 2:
                raise RuntimeError("no")
            return block

        with pytest.raises(RuntimeError if mesh.rank == 2 else CommunicationError, match="no"):
            map_blocks(fails, x)
        with pytest.raises(LayoutError):
            map_blocks(lambda block: block.reshape((1,) * mesh.rank + (2,)), x)
        with pytest.raises(LayoutError):
            map_blocks(lambda block: block[1:], x, out_shape=(8,))
        with pytest.raises(DTypeError):
            map_blocks(lambda block: block.astype("f4" if mesh.rank else "f8"), x)
        with pytest.raises(DTypeError, match="a function may lack a return"):
            map_blocks(lambda block: None, x)
        for function, axes in ((np.sum, 0), (lambda block: block.sum(keepdims=True), 1)):
            told = rf"{axes}-d.*out_placements=\[Partial\(\"sum\"\)\]"
            with pytest.raises(AxisError, match=told):
                map_blocks(function, x, out_placements=None if axes == 0 else [Shard(1)])
        with pytest.raises(ArgumentTypeError, match="pass a function"):
            map_blocks(3, x)
        with pytest.raises(ArgumentTypeError):
            map_blocks(np.sin, np.ones(3))
        agrees(map_blocks(np.sin, x), np.sin(np.arange(8.0)), rtol=1e-15)

    on_ranks(program)


def test_an_error_without_a_text_reaches_every_rank() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise KeyError("text")

    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.arange(8.0), mesh, [Shard(0)])

        def fails(block: Any) -> Any:
            if mesh.rank == 2:
                raise MuteError
            return block

        with pytest.raises(MuteError if mesh.rank == 2 else CommunicationError) as caught:
            map_blocks(fails, x)
        if mesh.rank != 2:
            assert "MuteError: (it cannot be printed, for a KeyError)" in str(caught.value)
            assert f"failed there at {__file__}, line " in str(caught.value)
        agrees(map_blocks(np.negative, x), -np.arange(8.0))

    on_ranks(program)


def test_outside_the_mesh_the_function_is_not_called() -> None:
    def program() -> None:
        mesh = DeviceMesh([0, 1])
        x = distribute_array(np.arange(8.0), mesh, [Shard(0)])
        y = map_blocks(lambda block: block[: 1 + mesh.rank], x, out_shape=(3,))
        agrees(y, np.array([0.0, 4.0, 5.0]))

    on_ranks(program)


@settings(max_examples=30)
@given(data=st.data())
def test_function_with_a_rule_agrees_whatever_the_layouts(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from((1, 3, 6)))
    x = data.draw(cases((np.float64,), ("sum",), shape=(4, 5, size)))
    weights = data.draw(cases((np.float64,), (), x.mesh_shape, (size,)))
    scaled = register_rule(lambda a, w: a * w, "...i,i->...i")
    dotted = register_rule(lambda a, w: a @ w, "...i,i->...", combine="sum")
    stacked = register_rule(lambda a: np.stack([a.sum(-1), a.prod(-1)], -1), "...i->...k")

    def program() -> None:
        a, w = x.build(), weights.build()
        agrees(scaled(a, w), x.value * weights.value)
        agrees(scaled(a, weights.value), x.value * weights.value)
        agrees(dotted(a, w), x.value @ weights.value)
        if a.mesh.coordinate is not None:
            agrees(stacked(a), np.stack([x.value.sum(-1), x.value.prod(-1)], -1))

    on_ranks(program)


def test_a_letter_that_is_not_combined_is_made_whole_first() -> None:
    value = np.random.default_rng(0).random((6, 8))
    ordered = register_rule(lambda a: np.sort(a, axis=1) - a.min(1, keepdims=True), "ij->ik")
    norms = register_rule(lambda a: np.sqrt((a * a).sum(1)), "ij->i")

    def program() -> None:
        mesh = init_device_mesh((2, 2))
        x = distribute_array(value, mesh, [Shard(0), Shard(1)])
        agrees(norms(x), np.sqrt((value * value).sum(1)), rtol=1e-15)
        agrees(ordered(x), np.sort(value, 1) - value.min(1, keepdims=True))
        with communication("raise"), pytest.raises(ImplicitCommunicationError):
            norms(x)
        rows = distribute_array(value, mesh, [Shard(0), R])
        with CommLog() as log:
            result = norms(rows)
        assert log.count() == 0
        assert result.placements == (Shard(0), R)

    on_ranks(program)


def test_a_registered_numpy_function_answers_through_numpy() -> None:
    assert np.is_busday not in functions
    row = register_rule(np.is_busday, "->i")
    try:
        assert functions[np.is_busday] is row
    finally:
        del functions[np.is_busday]


def test_rules_that_cannot_be_read_or_do_not_fit_are_refused() -> None:
    for wrong in ("ij", "ii->i", "i1->i", "ij->ii"):
        with pytest.raises(ArgumentError, match="letters"):
            register_rule(np.sin, wrong)
    with pytest.raises(ArgumentError, match="combine"):
        register_rule(np.sin, "ij->i", combine="add")
    for pair in ((3, "i->i"), (np.sin, 3)):
        with pytest.raises(ArgumentTypeError, match="function and text"):
            register_rule(*pair)
    row = register_rule(lambda a, b: a, "ij,j->ij")

    def program() -> None:
        x = distribute_array(np.ones((4, 3)), init_device_mesh((4,)), [Shard(0)])
        with pytest.raises(ShapeError, match="lengths"):
            row(x, np.ones(4))
        with pytest.raises(ShapeError, match="fit"):
            row(x, np.ones((3, 1)))
        with pytest.raises(ArgumentTypeError, match="missing 1 required"):
            row(x)
        with pytest.raises(ShapeError, match="promises"):
            register_rule(lambda a: a[0], "ij->ij")(x)

    on_ranks(program)
