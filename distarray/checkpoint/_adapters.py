"""Which kinds of objects a checkpoint takes: a small registry, which other packages add to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distarray.checkpoint._values import Node

if TYPE_CHECKING:
    from distarray.checkpoint._loading import Loading
    from distarray.checkpoint._manifest import Entry
    from distarray.checkpoint._saving import Saving

Made = Callable[[], Any]
"""Called when everything has been read; returns the value that was loaded."""


class Adapter(ABC):
    """How objects of some type are saved and loaded."""

    @abstractmethod
    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Return a value's node in the tree; its arrays are told to ``saving``."""

    @abstractmethod
    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Tell ``loading`` what is to be read into a value, and return what then finishes it."""


Maker = Callable[["Entry", "Loading"], Made]
"""Makes an array, where no template says what it shall be, and tells ``loading`` to fill it."""

_by_type: list[tuple[type, Adapter]] = []
_makers: dict[str, Maker] = {}


def register(kind: type, adapter: Adapter) -> None:
    """Let an adapter take care of objects of a type and of its subclasses; the last one wins."""
    _by_type.insert(0, (kind, adapter))


def register_maker(kind: str, maker: Maker) -> None:
    """Let a function make arrays that were saved as this kind."""
    _makers[kind] = maker


def adapter_of(value: Any) -> Adapter | None:
    """Return the adapter of an object; None for containers and plain values."""
    for kind, adapter in _by_type:
        if isinstance(value, kind):
            return adapter
    if has_state(value):
        return _by_state
    return None


def maker_of(kind: Any, otherwise: str) -> Maker:
    """Return what makes arrays of a kind."""
    return _makers.get(kind) or _makers[otherwise]


def has_state(value: Any) -> bool:
    """Tell whether an object is saved by its ``state_dict()``."""
    return (
        not isinstance(value, (type, Mapping))
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


class _ByState(Adapter):
    """Any object with ``state_dict()`` and ``load_state_dict()``."""

    def save(self, value: Any, saving: Saving, name: str) -> Node:
        """Save what ``state_dict()`` returns."""
        return {
            "object": type(value).__qualname__,
            "of": saving.node(value.state_dict(), name),
        }

    def load(self, value: Any, loading: Loading, name: str) -> Made:
        """Pass what was saved to ``load_state_dict()``."""
        made = loading.stored(name)
        if made is None:
            return lambda: value

        def finish() -> Any:
            value.load_state_dict(made())
            return value

        return finish


_by_state = _ByState()
