"""Speeds of the machine, as ``python -m distarray bench`` has measured them for later processes.

They tell how long a plan takes, and are kept for each number of ranks on a node.
"""

from __future__ import annotations

import contextlib
from functools import cache
from math import log2
from typing import Any, Final

from distarray.comm import load_measured, store_measured
from distarray.redistribute._cost import Curve, Grids, MeasuredModel

_FILE: Final = "speeds"
_GRIDS: Final = (
    "cut", "fill", "keep", "exchange", "exchange_small", "reduce", "reduce_small", "all_reduce"
)  # fmt: skip


def keep_speeds(model: MeasuredModel) -> str:
    """Keep the speeds of a node; return where, or nothing where it cannot."""
    grids = {name: getattr(model, name) for name in _GRIDS}
    path = store_measured(_FILE, {**load_measured(_FILE), str(model.ranks): grids})
    return "" if path is None else str(path)


def forget_speeds() -> None:
    """Read what is kept again."""
    _kept.cache_clear()


def known_speeds(ranks: int) -> MeasuredModel | None:
    """Return the speeds kept for the number of ranks on a node that is nearest, if any.

    One rank alone has exchanged nothing, and tells nothing of several.
    """
    kept = {n: model for n, model in _kept().items() if n > 1 or ranks == 1}
    if not kept:
        return None
    return kept[min(kept, key=lambda n: abs(log2(n / ranks)))]


@cache
def _kept() -> dict[int, MeasuredModel]:
    found = {}
    for ranks, kept in load_measured(_FILE).items():
        # What another version has kept is left alone.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            grids: dict[str, Any] = {name: _grids(kept[name]) for name in _GRIDS}
            found[int(ranks)] = MeasuredModel(ranks=int(ranks), **grids)
    return found


def _grids(kept: Any) -> Grids:
    return tuple([(group, tuple([_curve(*one) for one in grid])) for group, grid in kept])


def _curve(run: float, kept: Any) -> tuple[float, Curve]:
    return run, tuple([(n, seconds) for n, seconds in kept])
