"""The cache of resolutions: dictionaries on interned layouts, with one bound in bytes for all.

Each kind of resolution (operations, selections, reshapes, short paths) has a dictionary of its own,
so that a look-up is nothing but one. What they keep is estimated together, and where it has grown
too large all are emptied: what programs use again is resolved again once.
"""

from __future__ import annotations

from typing import Any

from distarray.layout import Layout

LIMIT_BYTES = 64 << 20
"""Most bytes that all resolutions may take, as estimated."""
_ENTRY_BYTES = 4 << 10
"""Of a key, a resolution and its functions: 2 to 5 KiB by tracemalloc, layouts included."""
_OFFSET_BYTES = 40
"""Of one offset in explicit boundaries: an integer and its place in a tuple."""

_dictionaries: list[dict[Any, Any]] = []
_used = 0


def cache(kind: type[dict[Any, Any]] = dict) -> dict[Any, Any]:
    """Return a dictionary whose entries `remember` puts in and `clear` drops."""
    made = kind()
    _dictionaries.append(made)
    return made


def remember(into: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep `value` in a dictionary of `cache`."""
    global _used
    nbytes = _ENTRY_BYTES + _OFFSET_BYTES * _offsets(key)
    if _used + nbytes > LIMIT_BYTES:
        clear()
    _used += nbytes
    into[key] = value


def clear() -> None:
    """Empty all dictionaries of `cache`."""
    global _used
    _used = 0
    for kept in _dictionaries:
        kept.clear()


def _offsets(key: Any) -> int:
    """Return how many offsets the layouts in a key have."""
    parts = key if isinstance(key, tuple) else (key,)
    boundaries = [part.boundaries for part in parts if isinstance(part, Layout)]
    return sum(len(offsets) for one in boundaries if one for offsets in one.values())
