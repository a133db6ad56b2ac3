"""The cache of resolutions: dictionaries on interned layouts, with one bound in bytes for all.

Each kind of resolution (operations, selections, reshapes, short paths) has a dictionary of its own,
so that a look-up is nothing but one. What they keep is estimated together, and where it has grown
too large all are emptied: what programs use again is resolved again once. What is resolved for
counted layouts is not among it: that goes into the short memory of all caches.
"""

from __future__ import annotations

from typing import Any

from distarray.layout import entry_bytes, forget_recent, has_counted, keep_recent, recall

LIMIT_BYTES = 64 << 20
"""Most bytes that all resolutions may take, as estimated."""

_dictionaries: list[dict[Any, Any]] = []
_used = 0


class Resolutions(dict[Any, Any]):
    """A dictionary whose entries `remember` puts in and `clear` drops; None stands for no entry."""

    def __missing__(self, key: Any) -> Any:
        return recall(self, key)


def cache(kind: type[Resolutions] = Resolutions) -> Resolutions:
    """Return a new dictionary of resolutions, which is never deleted."""
    made = kind()
    _dictionaries.append(made)
    return made


def remember(into: Resolutions, key: Any, value: Any, nbytes: int | None = None) -> None:
    """Keep `value` in a dictionary of `cache`; the entry takes `nbytes`, where that is known."""
    global _used
    if has_counted(key):
        keep_recent(into, key, value)
        return
    if nbytes is None:
        nbytes = entry_bytes(key)
    if _used + nbytes > LIMIT_BYTES:
        clear()
    _used += nbytes
    into[key] = value


def clear() -> None:
    """Empty all dictionaries of `cache`, and the short memory."""
    global _used
    _used = 0
    for kept in _dictionaries:
        kept.clear()
    forget_recent()
