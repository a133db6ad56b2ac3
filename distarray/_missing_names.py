"""The error for names that NumPy has and the namespace has not, with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distarray.core import INSTEAD


def missing_name_error(name: str, names: Sequence[str]) -> AttributeError:
    """Return the error for an attribute that the namespace, whose `names` are given, has not."""
    text = f"module 'distarray' has no attribute {name!r}"
    if name in np.__all__ and not name.startswith("__"):
        import difflib

        near = difflib.get_close_matches(name, names, 3, 0.8)
        text = f"distarray has no {name!r} as NumPy has; {_remedy(name, near)}"
    return AttributeError(text)


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
