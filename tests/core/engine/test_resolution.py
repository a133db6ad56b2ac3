"""Of all ways to meet the rules of an operation the first of the cheapest is chosen."""

from __future__ import annotations

from itertools import chain, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.core._spec import ADDITIVE, LINEAR, POINTWISE, Spec, pointwise
from distarray.core.engine import _resolution
from distarray.core.engine._resolution import resolve
from distarray.layout import AbstractMesh, Layout, Shard
from distarray.testing import simulate
from tests.layout.strategies import layouts
from tests.on_device import host


@st.composite
def calls(draw: Any) -> tuple[Spec, list[Layout]]:
    """Draw an operation and layouts of one mesh for its operands."""
    shape = draw(st.lists(st.sampled_from([1, 2, 4, 5, 300]), min_size=1, max_size=3).map(tuple))
    first = draw(layouts(shape))
    kind = draw(st.sampled_from(["unary", "binary", "reduction", "product"]))
    letters = tuple(range(len(shape)))
    if kind == "unary":
        return pointwise((shape,), shape, draw(st.sampled_from([POINTWISE, LINEAR]))), [first]
    if kind == "reduction":
        return Spec((letters,), letters[1:], draw(st.sampled_from([None, "sum"]))), [first]
    second = draw(layouts(shape).filter(lambda one: one.mesh.shape == first.mesh.shape))
    second = second.replace(mesh=first.mesh)
    if kind == "binary":
        rules = draw(st.sampled_from([POINTWISE, ADDITIVE]))
        return pointwise((shape, shape), shape, rules), [first, second]
    return Spec((letters, letters), letters[:-1], "sum"), [first, second]


@given(calls(), st.booleans(), st.lists(st.sampled_from([1, 4, 8, 16]), min_size=3, max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_choice_is_that_of_a_search_through_all(
    call: Any, weighed: bool, sizes: list[int]
) -> None:
    spec, operands = call
    sizes = sizes[-1 - len(operands) :]
    work = (lambda targets: 1e-6 * sum(one.size for one in targets)) if weighed else None
    placements = zip(*(one.placements for one in operands), strict=True)
    choices = product(*(_resolution._choices(spec, have) for have in placements))
    costs = []
    for targets, output in chain(*(_resolution._layouts(spec, operands, one) for one in choices)):
        cost = _resolution._cost(operands, targets, output, sizes)
        costs.append((cost + work(targets) if cost and work else cost, targets, output))
    _, targets, output = min(costs, key=lambda one: one[0])
    moves, found = resolve(spec, operands, sizes, work)
    assert found is output
    assert [one and one[1] for one in moves] == [
        None if src is dst else dst for src, dst in zip(operands, targets, strict=True)
    ]


def test_operands_that_fit_are_not_weighed_against_other_ways(monkeypatch) -> None:
    layout = Layout(AbstractMesh((2, 3)), (Shard(0), Shard(1)), (7, 5))
    priced = []
    plain = _resolution._cost
    monkeypatch.setattr(_resolution, "_cost", lambda *one: priced.append(one) or plain(*one))
    moves, output = resolve(pointwise(((7, 5),), (7, 5)), [layout], [8, 8])
    assert moves == [None]
    assert output is layout
    assert not priced
    uneven = layout.replace(boundaries={0: (0, 1, 7)})
    moves, output = resolve(pointwise(((7, 5),), (7, 5)), [uneven], [8, 8])
    assert moves == [None]
    assert output is uneven
    assert len(priced) == 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_has_the_smaller_items_moves_to_what_has_the_larger_ones(ranks: int) -> None:
    mask, values = np.arange(600).reshape(24, 25) % 7 > 2, np.arange(600.0).reshape(24, 25) * 1j

    def program() -> None:
        by_rows = da.distribute_array(mask, placements=[da.Shard(0)])
        by_columns = da.distribute_array(values, placements=[da.Shard(1)])
        for function in (np.multiply, lambda a, b: np.where(a, b, 0)):
            with da.CommLog() as log:
                found = function(by_rows, by_columns)
            assert found.layout is by_columns.layout
            assert 0 < log.bytes() <= found.to_local().size
            assert np.array_equal(host(found.full_array()), function(mask, values))

    simulate(ranks, program)
