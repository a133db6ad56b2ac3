"""How contenders are timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks import measure


class _Ranks:
    """Ranks of a node that may each run on some cores."""

    def __init__(self, bound: Sequence[set[int]]) -> None:
        self.size, self._bound = len(bound), bound

    def allgather(self, own: frozenset[int]) -> list[frozenset[int]]:
        assert isinstance(own, frozenset)
        return [frozenset(one) for one in self._bound]


@pytest.mark.parametrize(
    ("bound", "shared"),
    [
        ([{0}, {1}], False),
        ([{0}, {0}], True),
        ([{0, 1}, {0, 1}], False),
        ([{0, 1}, {0, 1}, {1}], True),
        ([{0}, {0}, {1, 2}], False),
    ],
    ids=str,
)
def test_ranks_that_a_launcher_binds_share_no_cores(bound: Any, shared: bool) -> None:
    assert measure._shares_cores(_Ranks(bound)) is shared  # type: ignore[arg-type]
