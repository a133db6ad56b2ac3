"""The suite's choice of combinations shows every two values of a test's parameters together."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from tests import pairwise


@pytest.mark.skipif(pairwise.ALL, reason="all combinations are wanted")
@pytest.mark.parametrize("counts", [(3,), (4, 5), (2, 3, 4), (2, 2, 2, 2, 6)])
def test_every_pair_of_values_is_kept_in_order(counts: tuple[int, ...]) -> None:
    values = [[[axis, i] for i in range(count)] for axis, count in enumerate(counts)]
    items = [
        SimpleNamespace(
            nodeid=f"test_x[{chosen}]",
            callspec=SimpleNamespace(params=dict(zip("abcde", chosen, strict=False))),
        )
        for chosen in itertools.product(*values)
    ]
    alone = SimpleNamespace(nodeid="test_y")
    kept = pairwise.choose([*items, alone])
    assert kept == [item for item in [*items, alone] if item in kept]
    assert kept[-1] is alone
    wanted = {
        frozenset(map(str, pair)) for two in itertools.combinations(values, 2)
        for pair in itertools.product(*two)
    }  # fmt: skip
    shown = {
        frozenset(map(str, pair))
        for item in kept[:-1]
        for pair in itertools.combinations(item.callspec.params.values(), 2)
    }
    assert wanted == shown
    if len(counts) < 3:
        assert len(kept) == len(items) + 1
    else:
        assert len(kept) < len(items)


@pytest.mark.skipif(pairwise.ALL, reason="all combinations are wanted")
def test_every_value_is_kept_where_single_ones_are_wanted() -> None:
    items = [
        SimpleNamespace(nodeid=f"test_x[{a}{b}]", callspec=SimpleNamespace(params={"a": a, "b": b}))
        for a, b in itertools.product([(1,), (2,), (3,)], ["x", "y"])
    ]
    kept = [item.callspec.params for item in pairwise.choose(items, 1)]
    assert len(kept) == 3
    assert {chosen["b"] for chosen in kept} == {"x", "y"}
