"""Speeds of the machine, as ``python -m distarray bench`` has measured them for later processes.

They tell how long a plan takes, and are kept for each number of ranks on a node.
"""

from __future__ import annotations

import contextlib
from functools import cache
from math import log2
from typing import Final

from distarray.comm import load_measured, store_measured
from distarray.redistribute._cost import MeasuredModel

_FILE: Final = "speeds"
_CURVES: Final = ("copy", "reduce", "fill", "fresh", "run", "reduced_run")
_FIELDS: Final = ("round_near", "message_near", "step", *_CURVES)


def keep_speeds(model: MeasuredModel, ranks: int) -> str:
    """Keep the speeds of a node with so many ranks; return where, or nothing where it cannot."""
    fields = {name: getattr(model, name) for name in _FIELDS}
    path = store_measured(_FILE, {**load_measured(_FILE), str(ranks): fields})
    return "" if path is None else str(path)


def forget_speeds() -> None:
    """Read what is kept again."""
    _kept.cache_clear()


def known_speeds(ranks: int) -> MeasuredModel | None:
    """Return the speeds kept for the number of ranks on a node that is nearest, if any."""
    kept = _kept()
    if not kept:
        return None
    return kept[min(kept, key=lambda n: abs(log2(n / ranks)))]


@cache
def _kept() -> dict[int, MeasuredModel]:
    found = {}
    for name, fields in load_measured(_FILE).items():
        # What another version has kept is left alone.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            for key in _CURVES:
                fields[key] = tuple([(n, speed) for n, speed in fields[key]])
            found[int(name)] = MeasuredModel(**fields)
    return found
