"""Which module a move is made for, so that ranks notice where they move for different ones.

Layers of one shape move alike: ranks that call two of them in different orders, or go back through
them so, would add what does not belong together. A move for a module remembers the module's path,
which the ranks compare before values leave, forward and backward.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from distarray.comm import Purpose


class Origin:
    """What a move is for; `reversed` is what the move of its gradient is for."""

    __slots__ = ("reversed", "there")
    reversed: Origin

    def __init__(self, there: Purpose) -> None:
        self.there = there


class _Current(threading.local):
    origin: Origin | None = None


_current = _Current()


def current() -> Origin | None:
    """Return what moves of this thread are for; None outside of modules that have a path."""
    return _current.origin


class moving_for:  # noqa: N801 - reads as a phrase: with moving_for(path)
    """Let moves inside be for the module of a path; "" is none."""

    __slots__ = ("_before", "_origin")

    def __init__(self, path: str) -> None:
        self._origin = _origin(path) if path else None

    def __enter__(self) -> None:
        self._before = _current.origin
        _current.origin = self._origin

    def __exit__(self, *_: object) -> None:
        _current.origin = self._before


@lru_cache(maxsize=4096)
def _origin(path: str) -> Origin:
    there = Origin(Purpose.of(path))
    back = Origin(Purpose.of(f"backward through {path}, which each rank's loss must depend on"))
    there.reversed, back.reversed = back, there
    return there


@lru_cache(maxsize=4096)
def joined(first: Purpose | None, second: Purpose | None) -> Purpose | None:
    """Return one purpose for two."""
    if first is None or second is None:
        return first or second
    return Purpose(first.token ^ second.token, f"{first.text}: {second.text}")
