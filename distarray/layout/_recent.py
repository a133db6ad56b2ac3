"""Caches on layouts, and one short memory for what was made of layouts that are counted.

A layout whose boundaries depend on values hardly comes back, and at 1,024 ranks what is made of it
takes 40 KiB and more. So caches keep nothing of such layouts. But a few operations in turn on one
filtered array should not plan anew each time: all caches together keep the last of these in
`RECENT_BYTES`.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol, TypeVar, cast

from distarray.layout._layout import Layout, latest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

RECENT_BYTES: Final = 1 << 20
"""Most bytes of all that is kept of counted layouts, as estimated."""
ENTRY_BYTES: Final = 4 << 10
"""Of a key and a plan or resolution: 2 to 5 KiB by tracemalloc, layouts included."""
OFFSET_BYTES: Final = 40
"""Of one offset in explicit boundaries: an integer and its place in a tuple."""

_entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
_used = 0
# Re-entrant: values are dropped while it is held, and so may run code that makes layouts.
_lock = threading.RLock()


def has_counted(key: object) -> bool:
    """Tell whether a key is a counted layout, or a tuple with one in it at any depth."""
    for part in key if isinstance(key, tuple) else (key,):
        if part.__class__ is Layout:
            if part.is_counted:
                return True
        elif isinstance(part, tuple) and has_counted(part):
            return True
    return False


def entry_bytes(key: object) -> int:
    """Return about how many bytes the entry of a key takes in a cache."""
    return ENTRY_BYTES + OFFSET_BYTES * _offsets(key)


def _offsets(key: object) -> int:
    count = 0
    for part in key if isinstance(key, tuple) else (key,):
        if part.__class__ is Layout:
            count += sum([len(offsets) for _, offsets in part._boundaries])
        elif isinstance(part, tuple):
            count += _offsets(part)
    return count


def recall(owner: object, key: Hashable) -> Any:
    """Return what `keep_recent` got for this cache and key, or None where it is gone."""
    if not _entries:
        return None
    with _lock:
        found = _entries.get((id(owner), key))
        if found is None:
            return None
        _entries.move_to_end((id(owner), key))
        return found[0]


def keep_recent(owner: object, key: Hashable, value: object, nbytes: int | None = None) -> None:
    """Keep a value for a cache, which is never deleted, until newer ones need its place.

    It takes `nbytes`, where that is known.
    """
    global _used
    if nbytes is None:
        nbytes = entry_bytes(key)
    with _lock:
        _, before = _entries.pop((id(owner), key), (None, 0))
        _entries[id(owner), key] = value, nbytes
        _used += nbytes - before
        while _used > RECENT_BYTES:
            _, (_, gone) = _entries.popitem(last=False)
            _used -= gone


def forget_recent() -> None:
    """Drop what all caches have in the short memory, and the layouts that were built last."""
    global _used
    latest.clear()
    with _lock:
        _entries.clear()
        _used = 0


class Kept(Protocol[T_co]):
    """A function whose results are kept."""

    def __call__(self, *args: Any) -> T_co:
        """Return the result, made at need."""
        ...

    def cache_clear(self) -> None:
        """Forget all results but those of the short memory."""
        ...


def kept(maxsize: int) -> Callable[[Callable[..., T]], Kept[T]]:
    """Return a decorator like `functools.lru_cache` that keeps counted layouts only for a while.

    All arguments are positional.
    """

    def decorate(function: Callable[..., T]) -> Kept[T]:
        always = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def call(*args: Any) -> T:
            for arg in args:
                if arg.__class__ is Layout and arg.is_counted:
                    break
            else:
                return always(*args)
            found: tuple[T] | None = recall(function, args)
            if found is None:
                found = (function(*args),)
                keep_recent(function, args, found)
            return found[0]

        made = cast("Any", call)
        made.cache_clear = always.cache_clear
        return cast("Kept[T]", made)

    return decorate
