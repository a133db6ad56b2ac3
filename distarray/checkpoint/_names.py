"""Names with points in them, and which are within which: of thousands, without comparing all."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator


def containers(name: str) -> Iterator[str]:
    """Yield a name, and those of the containers that it may be in."""
    yield name
    at = name.rfind(".")
    while at >= 0:
        yield name[:at]
        at = name.rfind(".", 0, at)


class Names:
    """Names in some order, to be asked for those within a container."""

    def __init__(self, names: Iterable[str]) -> None:
        self._ordered = list(names)
        self._places = {name: place for place, name in enumerate(self._ordered)}
        self._sorted = sorted(self._ordered)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ordered)

    def within(self, container: str) -> list[str]:
        """Return the names in a container, in their order; all of them for ""."""
        if not container:
            return list(self._ordered)
        start = f"{container}."
        at = bisect_left(self._sorted, start)
        found = []
        while at < len(self._sorted) and self._sorted[at].startswith(start):
            found.append(self._sorted[at])
            at += 1
        return sorted(found, key=self._places.__getitem__)


class Containers:
    """Containers, to be asked for whether a name is within any of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._above = {above for name in self._names for above in containers(name)}

    def hold(self, name: str) -> bool:
        """Tell whether a name is one of them, or within one."""
        return any(one in self._names for one in containers(name))

    def meet(self, name: str) -> bool:
        """Tell whether a name is within one of them, or one of them within it."""
        return name in self._above or self.hold(name)
