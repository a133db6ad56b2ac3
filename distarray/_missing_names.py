"""The errors for names that NumPy has and we have not, with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from distarray.core import INSTEAD


def missing_name_error(path: str, names: Sequence[str] = ()) -> AttributeError:
    """Return the error for an attribute that one of our modules has not.

    Parameters
    ----------
    path : str
        Where it would be inside of the namespace: ``random.seed``.
    names : sequence of str
        Those of the module, of which one may be meant.
    """
    home, _, name = f"distarray.{path}".rpartition(".")
    if path in INSTEAD or (path in np.__all__ and not name.startswith("__")):
        import difflib

        near = difflib.get_close_matches(name, names, 3, 0.8)
        return AttributeError(f"{home} has no {name!r} as NumPy has; {_remedy(path, near)}")
    return AttributeError(f"module {home!r} has no attribute {name!r}")


def _remedy(name: str, near: list[str]) -> str:
    if name in INSTEAD:
        return f"use {INSTEAD[name]}"
    theirs: Any = getattr(np, name)
    if isinstance(theirs, type) or not callable(theirs):
        return f"use NumPy's own, np.{name}"
    nearest = f"near it are {', '.join(f'da.{one}' for one in near)}; " if near else ""
    return (
        f"{nearest}call np.{name}(x.full_array(), ...), which gathers x on every process, or, "
        f"where blocks can be taken one by one, da.map_blocks(np.{name}, x, ...)"
    )


class _MissingName:
    """An attribute of a class of NumPy's that ours lacks.

    A descriptor, because a `__getattr__` would make looking for slots that are not set slow.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        raise AttributeError(self._text)

    def __set__(self, instance: Any, value: Any) -> NoReturn:
        raise AttributeError(self._text)


def add_missing_names(cls: type, path: str) -> None:
    """Let a class tell what to do instead of names that NumPy's, at `path`, has.

    They stay names that it has not, as `hasattr` and `dir` say.
    """
    added = set()
    for known, remedy in INSTEAD.items():
        home, _, name = known.rpartition(".")
        if home == path:
            text = f"{cls.__name__} has no {name!r} as NumPy's has; use {remedy}"
            setattr(cls, name, _MissingName(text))
            added.add(name)

    def names(self: Any) -> list[str]:
        return [name for name in object.__dir__(self) if name not in added]

    cls.__dir__ = names  # type: ignore[assignment,method-assign]
