"""Covering sets: of the products of a test's parameters, as many as show every two values together.

Where a test has three parameters or more, a mistake mostly needs one value or two of them to show
(Kuhn, Wallace, Gallo 2004): a greedy choice of all pairs tries about as many combinations as the
two longest parameters have. On a device each value is tried once, as all pairs are in host memory.
``DISTARRAY_TEST_ALL=1`` tries all.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from typing import Any

ALL = bool(os.environ.get("DISTARRAY_TEST_ALL"))

Pairs = frozenset[tuple[tuple[str, int], ...]]


def choose(items: list[Any], together: int = 2) -> list[Any]:
    """Return the items of covering sets of so many values, in the order that they had."""
    if ALL:
        return items
    functions: defaultdict[str, list[tuple[Any, Pairs]]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append((item, _pairs_of(item, together)))
    kept = {id(item) for members in functions.values() for item in _cover(members)}
    return [item for item in items if id(item) in kept]


def _pairs_of(item: Any, together: int) -> Pairs:
    """Return the pairs of values that an item tries, or tuples of other lengths, up to all."""
    spec = getattr(item, "callspec", None)
    # Values need no hash, and are the same objects in all items.
    values = [(name, id(value)) for name, value in sorted(spec.params.items())] if spec else []
    return frozenset(itertools.combinations(values, min(together, len(values))))


def _cover(members: list[tuple[Any, Pairs]]) -> list[Any]:
    left = set[Any]().union(*(pairs for _, pairs in members))
    kept = []
    while left:
        item, pairs = max(members, key=lambda member: len(member[1] & left))
        kept.append(item)
        left -= pairs
    return kept
